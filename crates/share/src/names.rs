//! Names in directories, and the order in which they are listed.
//!
//! The key of an entry is its directory, 8 bytes, and its *cookie*, 8 bytes, both big-endian: the
//! order of keys is that of a listing, and a cookie says from where a listing goes on, whatever is
//! made or removed meanwhile. A cookie is 46 bits of a hash of the name, keyed by a secret of the
//! share so that no user can choose names that collide, and 16 bits that tell apart names of equal
//! hash. The value is inode 8, type 4 (as `S_IFMT` masks it), both little-endian, and the name.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::failure::{Failure, Result};

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Cookie of `.`, from which a listing goes on with `..`.
pub const COOKIE_DOT: u64 = 1;

/// Cookie of `..`, from which a listing goes on with the first name.
pub const COOKIE_DOT_DOT: u64 = 2;

/// The name at the root of a share that no file can have: it leads to the share's snapshots.
pub const KEPT_NAME: &[u8] = b".shale";

const HASH_BITS: u32 = 46;

/// How many names of equal hash a directory holds: at 2^46 values, two are a rarity.
pub(crate) const TWINS_MAX: u64 = 1 << 16;

/// All cookies are less.
pub(crate) const COOKIES_END: u64 = 1 << 63;

/// The first cookie that a name of that hash can have. It is above those of the dots, and fits in a
/// signed number.
pub(crate) fn first_cookie(name: &[u8], secret: u64) -> u64 {
    let hash = xxh3_64_with_seed(name, secret) >> (64 - HASH_BITS);
    (hash | 1 << HASH_BITS) << 16
}

/// The key of an entry.
pub(crate) fn key(directory: u64, cookie: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&directory.to_be_bytes());
    key[8..].copy_from_slice(&cookie.to_be_bytes());
    key
}

/// The cookie in a key.
pub(crate) fn cookie_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(*key.get(8..)?.first_chunk()?))
}

/// What an entry names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) inode: u64,
    pub(crate) kind: u32,
    pub(crate) name: Vec<u8>,
}

pub(crate) fn encode(inode: u64, kind: u32, name: &[u8]) -> Vec<u8> {
    [&inode.to_le_bytes()[..], &kind.to_le_bytes(), name].concat()
}

/// The name in an entry's value.
pub(crate) fn name_of(bytes: &[u8]) -> &[u8] {
    bytes.get(12..).unwrap_or_default()
}

pub(crate) fn decode(bytes: &[u8]) -> Result<Named> {
    let parts = || {
        let (inode, rest) = bytes.split_first_chunk()?;
        let (kind, name) = rest.split_first_chunk()?;
        Some(Named { inode: u64::from_le_bytes(*inode), kind: u32::from_le_bytes(*kind), name: name.to_vec() })
    };
    parts().ok_or_else(|| Failure::damaged(format_args!("an entry of a directory has {} bytes", bytes.len())))
}

/// Refuses what is no name of an entry.
///
/// # Errors
/// `ENAMETOOLONG`, `EINVAL` for an empty name, one with `/` or NUL, and the dots.
pub(crate) fn check(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Failure::new(libc::ENAMETOOLONG));
    }
    if name.is_empty() || name == b"." || name == b".." || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err(Failure::new(libc::EINVAL));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_follow_the_dots_and_stay_positive() {
        for name in [&b"a"[..], b"b", &[0xff; 255]] {
            let cookie = first_cookie(name, 7);
            assert!(cookie > COOKIE_DOT_DOT && cookie + TWINS_MAX < i64::MAX as u64);
            assert_eq!(cookie % TWINS_MAX, 0);
            assert_eq!(cookie_of(&key(3, cookie)), Some(cookie));
            assert_ne!(cookie, first_cookie(name, 8));
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(check(bad), Err(Failure::new(libc::EINVAL)));
        }
        assert_eq!(check(&[b'x'; 256]), Err(Failure::new(libc::ENAMETOOLONG)));
        assert!(check(&[0xff; 255]).is_ok());
    }
}
