//! Extended attributes and ACLs.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use super::{Tree, compression, usage};
use crate::acl::{self, Acl};
use crate::failure::{Failure, Result};
use crate::inode::{Flags, Inode};
use crate::store::State;

/// File capabilities, which a change of the content removes.
pub const CAPABILITY: &[u8] = b"security.capability";

/// The flag of an inode for this attribute, if it has one.
pub(super) fn flag_of(name: &[u8]) -> Option<Flags> {
    match name {
        acl::ACCESS => Some(Flags::ACCESS_ACL),
        acl::DEFAULT => Some(Flags::DEFAULT_ACL),
        CAPABILITY => Some(Flags::CAPABILITY),
        _ => None,
    }
}

/// The largest value, as the kernel has it.
const VALUE_BYTES_MAX: usize = 64 << 10;

/// Removes a file's capabilities. Returns whether there were any.
pub(super) fn drop_capability(state: &mut State, node: u64, inode: &mut Inode) -> Result<bool> {
    let has = inode.flags.has(Flags::CAPABILITY);
    if has {
        state.remove_xattr(node, CAPABILITY);
        inode.flags.set(Flags::CAPABILITY, false);
    }
    Ok(has)
}

/// Prefix of our names.
const OURS: &[u8] = b"user.shale.";

/// Most invalid names logged by one process: a program may try many.
const TOLD_MAX: usize = 100;

/// Whether to log an invalid name: once, however often it is tried.
fn is_to_tell(told: &mut BTreeSet<Vec<u8>>, name: &[u8]) -> bool {
    told.len() < TOLD_MAX && told.insert(name.to_vec())
}

/// Refuses to set an unknown name with our prefix: it would be stored without any effect.
fn check_ours(node: u64, name: &[u8]) -> Result<()> {
    static TOLD: Mutex<BTreeSet<Vec<u8>>> = Mutex::new(BTreeSet::new());
    if !name.starts_with(OURS) || [compression::ATTRIBUTE, usage::ATTRIBUTE].contains(&name) {
        return Ok(());
    }
    if is_to_tell(&mut TOLD.lock(), name) {
        let [set, read] = [compression::ATTRIBUTE, usage::ATTRIBUTE].map(String::from_utf8_lossy);
        let name = name.escape_ascii();
        log::warn!(
            "refused the unknown attribute '{name}' on inode {node} of a share: it would have no effect; set {set} instead, or read {read}"
        );
    }
    Err(Failure::new(libc::EINVAL))
}

/// Refuses names of spaces that the tree does not keep.
fn check(name: &[u8]) -> Result<()> {
    // Asked for by every `ls -l`; this answer, and no other, stops the kernel from asking again.
    if name == b"security.selinux" {
        return Err(Failure::new(libc::EOPNOTSUPP));
    }
    let spaces: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let is_kept = spaces.iter().any(|space| name.len() > space.len() && name.starts_with(space));
    if is_kept || acl::is_acl(name) {
        return Ok(());
    }
    Err(Failure::new(libc::EOPNOTSUPP))
}

impl Tree {
    /// Value of an extended attribute.
    ///
    /// # Errors
    /// `ENODATA`, `EOPNOTSUPP` for an unsupported name.
    pub fn xattr(&self, node: u64, name: &[u8]) -> Result<Vec<u8>> {
        check(name)?;
        match name {
            compression::ATTRIBUTE => return self.compression(node).map(String::into_bytes),
            usage::ATTRIBUTE => return self.usage(node).map(String::into_bytes),
            _ => {}
        }
        let state = self.state.read();
        let inode = state.inode(node)?;
        let absent = Failure::new(libc::ENODATA);
        let flag = flag_of(name);
        if flag.is_some_and(|flag| !inode.flags.has(flag)) {
            return Err(absent);
        }
        match state.xattr(node, name)? {
            // Without the ACL that is lost the mode would give more rights than the ACL did.
            None if flag == Some(Flags::ACCESS_ACL) => Err(Failure::new(libc::EIO)),
            found => found.ok_or(absent),
        }
    }

    /// Names of all extended attributes of a node.
    ///
    /// # Errors
    /// `ESTALE`.
    pub fn xattr_names(&self, node: u64) -> Result<Vec<Vec<u8>>> {
        // Inherited values, and values from rules, must not be copied as if they had been set.
        let own = self.has_own_compression(node)?.then(|| compression::ATTRIBUTE.to_vec());
        let mut names = self.state.read().xattr_names(node)?;
        names.extend(own);
        Ok(names)
    }

    /// Sets an extended attribute. `flags`: `XATTR_CREATE`, `XATTR_REPLACE`. `clears_sgid`: the
    /// caller is not in the file's group, and sets an ACL.
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA`, `E2BIG`, `EOPNOTSUPP`, `EINVAL` for an ACL that is not valid.
    pub fn set_xattr(&self, node: u64, name: &[u8], value: &[u8], flags: i32, clears_sgid: bool) -> Result<()> {
        check(name)?;
        check_ours(node, name)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Failure::new(libc::E2BIG));
        }
        match name {
            compression::ATTRIBUTE => return self.set_compression(node, value, flags),
            usage::ATTRIBUTE => return Err(Failure::new(libc::EPERM)),
            _ => {}
        }
        self.admit(value.len())?;
        let now = self.now();
        let mut state = self.change()?;
        let mut inode = state.inode(node)?;
        let is_there = state.xattr(node, name)?.is_some();
        if flags & libc::XATTR_CREATE != 0 && is_there {
            return Err(Failure::new(libc::EEXIST));
        }
        if flags & libc::XATTR_REPLACE != 0 && !is_there {
            return Err(Failure::new(libc::ENODATA));
        }
        let mut keep = true;
        match name {
            acl::ACCESS => {
                let access = Acl::parse(value)?;
                inode.mode = inode.mode & !0o777 | access.mode_bits();
                if clears_sgid {
                    inode.mode &= !libc::S_ISGID;
                }
                keep = !access.is_minimal();
                inode.flags.set(Flags::ACCESS_ACL, keep);
            }
            acl::DEFAULT => {
                if !inode.is_directory() {
                    return Err(Failure::new(libc::EACCES));
                }
                Acl::parse(value)?;
                inode.flags.set(Flags::DEFAULT_ACL, true);
            }
            CAPABILITY => inode.flags.set(Flags::CAPABILITY, true),
            _ => {}
        }
        if keep {
            state.set_xattr(node, name, value);
        } else if is_there {
            state.remove_xattr(node, name);
        }
        inode.changed = now;
        state.put(node, inode);
        Ok(())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `ENODATA`, `EOPNOTSUPP`.
    pub fn remove_xattr(&self, node: u64, name: &[u8]) -> Result<()> {
        check(name)?;
        match name {
            compression::ATTRIBUTE => return self.unset_compression(node),
            usage::ATTRIBUTE => return Err(Failure::new(libc::EPERM)),
            _ => {}
        }
        let now = self.now();
        let mut state = self.change()?;
        let mut inode = state.inode(node)?;
        if state.xattr(node, name)?.is_none() {
            return Err(Failure::new(libc::ENODATA));
        }
        state.remove_xattr(node, name);
        if let Some(flag) = flag_of(name) {
            inode.flags.set(flag, false);
        }
        inode.changed = now;
        state.put(node, inode);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_name_is_told_once_and_not_many_of_them() {
        let mut told = BTreeSet::new();
        assert!(is_to_tell(&mut told, b"user.shale.compresion"));
        assert!(!is_to_tell(&mut told, b"user.shale.compresion"));
        let more = (0..10 * TOLD_MAX).filter(|n| is_to_tell(&mut told, format!("user.shale.{n}").as_bytes()));
        assert_eq!(more.count(), TOLD_MAX - 1);
    }
}
