//! The encoding of a POSIX access control list in the kernel's extended attributes: version 2 (4
//! bytes), then entries of tag 2, permissions 2, id 4, little-endian
//! (`include/uapi/linux/posix_acl_xattr.h`). Owns the encoding; `acl` checks validity.

use crate::failure::{Failure, Result};

const VERSION: u32 = 2;
/// Tag of the owner's entry.
pub const USER_OBJ: u16 = 0x01;
/// Tag of an entry for a named user.
pub const USER: u16 = 0x02;
/// Tag of the owning group's entry.
pub const GROUP_OBJ: u16 = 0x04;
/// Tag of an entry for a group that is named.
pub const GROUP: u16 = 0x08;
/// Tag of the mask.
pub const MASK: u16 = 0x10;
/// Tag of the entry for all others.
pub const OTHER: u16 = 0x20;

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AclEntry {
    /// Kind of entry.
    pub tag: u16,
    /// The user or group that it names.
    pub id: u32,
    /// Read 4, write 2, execute 1.
    pub permissions: u16,
}

/// Splits bytes into entries.
///
/// # Errors
/// `EINVAL` if they are not entries, `EOPNOTSUPP` for another version.
pub fn decode(bytes: &[u8]) -> Result<Vec<AclEntry>> {
    let invalid = Failure::new(libc::EINVAL);
    let (version, rest) = bytes.split_first_chunk().ok_or(invalid)?;
    if u32::from_le_bytes(*version) != VERSION {
        return Err(Failure::new(libc::EOPNOTSUPP));
    }
    if rest.len() % 8 != 0 {
        return Err(invalid);
    }
    let entry = |entry: &[u8]| AclEntry {
        tag: u16::from_le_bytes([entry[0], entry[1]]),
        permissions: u16::from_le_bytes([entry[2], entry[3]]),
        id: u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]),
    };
    Ok(rest.chunks_exact(8).map(entry).collect())
}

/// Returns the bytes of entries.
pub fn encode(entries: &[AclEntry]) -> Vec<u8> {
    let mut out = VERSION.to_le_bytes().to_vec();
    for entry in entries {
        out.extend(entry.tag.to_le_bytes());
        out.extend(entry.permissions.to_le_bytes());
        out.extend(entry.id.to_le_bytes());
    }
    out
}
