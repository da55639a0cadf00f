//! Which extended attributes a mount has: the properties `xattr` and `acl` of a share.
//!
//! The kernel asks for attributes that hardly any file has: `security.capability` before the first
//! write to a file, and the ACL whenever `ls -l` or a permission check needs it. Only two answers
//! stop it, and both hold for the life of the connection: `ENOSYS` to a request of a kind, and
//! `INIT` without `POSIX_ACL`. So this is decided when the share is mounted.
//!
//! ACLs and other attributes that files already have stay in the tree. An ACL that is not asked for
//! must not give wider rights: a node that has one shows a mode that grants nothing to its group
//! and others, whose bits might be more than the ACL gave them.

use fuse::{Capabilities, Errno, Operation};
use share::Inode;

/// The extended attributes that a mount has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum XattrSupport {
    /// All.
    #[default]
    All,
    /// All except POSIX ACLs.
    WithoutAcls,
    /// None, and so no ACLs.
    None,
}

impl XattrSupport {
    /// Returns the capability to take for it when the connection is negotiated.
    pub(crate) fn capability(self) -> Capabilities {
        if self == Self::All { Capabilities::POSIX_ACL } else { Capabilities::default() }
    }

    /// Returns the error with which a request is answered because of it.
    pub(crate) fn refusal(self, operation: &Operation<'_>) -> Option<Errno> {
        let name = match *operation {
            Operation::GetXattr { name, .. } | Operation::SetXattr { name, .. } | Operation::RemoveXattr { name } => {
                Some(name)
            }
            Operation::ListXattr { .. } => None,
            _ => return None,
        };
        match self {
            Self::All => None,
            // ENOSYS would end all attributes.
            Self::WithoutAcls => name.is_some_and(share::is_acl).then_some(Errno::EOPNOTSUPP),
            // Programs get EOPNOTSUPP, and the kernel never sends such a request again.
            Self::None => Some(Errno::ENOSYS),
        }
    }

    /// Returns whether a file can have an attribute of that name.
    pub fn has(self, name: &[u8]) -> bool {
        self != Self::None && self.shows(name)
    }

    /// Returns whether a listing has a name.
    pub(crate) fn shows(self, name: &[u8]) -> bool {
        self == Self::All || !share::is_acl(name)
    }

    /// Returns the mode of a node by which the kernel checks permissions.
    pub(crate) fn mode(self, inode: &Inode) -> u32 {
        if self != Self::All && inode.has_access_acl() { inode.mode & !0o077 } else { inode.mode }
    }

    /// Returns the mode with which a node is made. The default ACL of a directory, which cannot be
    /// seen or removed now, must not take the place of the umask.
    pub(crate) fn mode_of_new(self, mode: u32, umask: u32) -> u32 {
        if self == Self::All { mode } else { mode & !(umask & 0o777) }
    }

    /// Encodes it for the next server of the mount.
    pub(crate) const fn to_byte(self) -> u8 {
        match self {
            Self::All => 0,
            Self::WithoutAcls => 1,
            Self::None => 2,
        }
    }

    /// Decodes the result of [`to_byte`](Self::to_byte).
    pub(crate) const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::All,
            1 => Self::WithoutAcls,
            2 => Self::None,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACL: &[u8] = b"system.posix_acl_access";

    #[test]
    fn requests_are_refused_by_kind_and_name() {
        let get = |name| Operation::GetXattr { name, size: 0 };
        let set = |name| Operation::SetXattr { name, value: b"", flags: 0, clears_sgid: false };
        let other = Operation::StatFs;
        for (support, of_acl, of_user) in [
            (XattrSupport::All, None, None),
            (XattrSupport::WithoutAcls, Some(Errno::EOPNOTSUPP), None),
            (XattrSupport::None, Some(Errno::ENOSYS), Some(Errno::ENOSYS)),
        ] {
            for (name, expected) in [(ACL, of_acl), (b"user.a", of_user)] {
                assert_eq!(support.refusal(&get(name)), expected);
                assert_eq!(support.refusal(&set(name)), expected);
                assert_eq!(support.refusal(&Operation::RemoveXattr { name }), expected);
            }
            assert_eq!(support.refusal(&Operation::ListXattr { size: 0 }), of_user);
            assert_eq!(support.refusal(&other), None);
            assert_eq!((support.shows(ACL), support.shows(b"user.a")), (of_acl.is_none(), true));
            assert_eq!(XattrSupport::from_byte(support.to_byte()), Some(support));
        }
        assert_eq!(XattrSupport::from_byte(3), None);
    }
}
