//! POSIX access control lists, in the form of the extended attributes `system.posix_acl_access` and
//! `_default` ([`posix_acl`](crate::posix_acl)).

use crate::failure::{Failure, Result};
use crate::posix_acl::{AclEntry, GROUP, GROUP_OBJ, MASK, OTHER, USER, USER_OBJ, decode, encode};

/// Name of the attribute that holds a file's ACL.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the attribute with the ACL inherited by new entries of a directory.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Returns whether an attribute holds an ACL.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// A valid ACL: one entry each for owner, group and others, and a mask if there are named users or
/// groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl(Vec<AclEntry>);

impl Acl {
    /// # Errors
    /// `EINVAL` if it is not valid, `EOPNOTSUPP` for another version.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let entries = decode(bytes)?;
        let count = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
        let is_known = entries.iter().all(|entry| {
            matches!(entry.tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER) && entry.permissions <= 7
        });
        let has_named = count(USER) + count(GROUP) > 0;
        let is_whole = [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|&tag| count(tag) == 1);
        if !is_known || !is_whole || count(MASK) > 1 || (has_named && count(MASK) == 0) {
            return Err(Failure::new(libc::EINVAL));
        }
        Ok(Self(entries))
    }

    /// An ACL that grants rights to the owner alone.
    pub(crate) fn of_owner(permissions: u16) -> Self {
        let entry = |tag, permissions| AclEntry { tag, permissions, id: u32::MAX };
        Self(vec![entry(USER_OBJ, permissions), entry(GROUP_OBJ, 0), entry(OTHER, 0)])
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(&self.0)
    }

    /// Whether permission bits can express it completely.
    pub(crate) fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    fn of(&self, tag: u16) -> Option<u16> {
        self.0.iter().find(|entry| entry.tag == tag).map(|entry| entry.permissions)
    }

    /// The nine permission bits displayed for it: those of the group are the mask, if there is one.
    pub(crate) fn mode_bits(&self) -> u32 {
        let group = self.of(MASK).or_else(|| self.of(GROUP_OBJ)).unwrap_or(0);
        let (user, other) = (self.of(USER_OBJ).unwrap_or(0), self.of(OTHER).unwrap_or(0));
        u32::from(user) << 6 | u32::from(group) << 3 | u32::from(other)
    }

    /// Changes it as `chmod` does.
    pub(crate) fn set_mode_bits(&mut self, mode: u32) {
        self.change(|_, bits| bits, mode);
    }

    /// Removes permissions that the mode of a new file does not include (POSIX 1003.1e, 23.1.5.4).
    pub(crate) fn restrict(&mut self, mode: u32) {
        self.change(|before, bits| before & bits, mode);
    }

    fn change(&mut self, new: impl Fn(u16, u16) -> u16, mode: u32) {
        let has_mask = self.of(MASK).is_some();
        let bits = |shift: u32| (mode >> shift & 7) as u16;
        for entry in &mut self.0 {
            let given = match entry.tag {
                USER_OBJ => bits(6),
                MASK => bits(3),
                GROUP_OBJ if !has_mask => bits(3),
                OTHER => bits(0),
                _ => continue,
            };
            entry.permissions = new(entry.permissions, given);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        Acl(entries.iter().map(|&(tag, permissions, id)| AclEntry { tag, permissions, id }).collect()).encode()
    }

    #[test]
    fn an_acl_must_be_whole() {
        let whole = acl(&[(USER_OBJ, 7, 0), (USER, 5, 9), (GROUP_OBJ, 5, 0), (MASK, 4, 0), (OTHER, 1, 0)]);
        assert_eq!(Acl::parse(&whole).unwrap().encode(), whole);
        assert_eq!(Acl::parse(&whole).unwrap().mode_bits(), 0o741);
        for bad in [
            acl(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 5, 0)]),
            acl(&[(USER_OBJ, 7, 0), (USER, 5, 9), (GROUP_OBJ, 5, 0), (OTHER, 1, 0)]),
            acl(&[(USER_OBJ, 9, 0), (GROUP_OBJ, 5, 0), (OTHER, 1, 0)]),
            whole[..whole.len() - 1].to_vec(),
            Vec::new(),
        ] {
            assert_eq!(Acl::parse(&bad), Err(Failure::new(libc::EINVAL)));
        }
    }

    #[test]
    fn chmod_changes_the_mask_and_a_new_file_gets_no_more_than_it_asks_for() {
        let bytes = acl(&[(USER_OBJ, 7, 0), (USER, 7, 9), (GROUP_OBJ, 5, 0), (MASK, 7, 0), (OTHER, 5, 0)]);
        let mut changed = Acl::parse(&bytes).unwrap();
        changed.set_mode_bits(0o640);
        assert_eq!((changed.mode_bits(), changed.of(GROUP_OBJ)), (0o640, Some(5)));
        let mut made = Acl::parse(&bytes).unwrap();
        made.restrict(0o666);
        assert_eq!((made.mode_bits(), made.of(USER)), (0o664, Some(7)));
        let mut minimal = Acl::parse(&acl(&[(USER_OBJ, 6, 0), (GROUP_OBJ, 6, 0), (OTHER, 6, 0)])).unwrap();
        minimal.restrict(0o640);
        assert_eq!((minimal.mode_bits(), minimal.is_minimal()), (0o640, true));
    }
}
