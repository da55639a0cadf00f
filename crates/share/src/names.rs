//! Names in directories, and the order of listings.
//!
//! The key of an entry is its directory, 8 bytes, and its *cookie*, 8 bytes, both big-endian: the
//! order of keys is that of a listing, and a cookie marks a position in a listing, whatever is
//! created or removed in the meantime. A cookie is 46 bits of a hash of the name, keyed by a secret
//! of the share so that no user can choose colliding names, and 16 bits that distinguish names with
//! equal hashes. The value is inode 8, type 4 (as masked by `S_IFMT`), both little-endian, and the
//! name.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::failure::{Failure, Result};

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Cookie of `.`, after which a listing continues with `..`.
pub const COOKIE_DOT: u64 = 1;

/// Cookie of `..`, after which a listing continues with the first name.
pub const COOKIE_DOT_DOT: u64 = 2;

/// The name at the root of a share that no file can have: it leads to the share's snapshots.
pub const KEPT_NAME: &[u8] = b".shale";

const HASH_BITS: u32 = 46;

/// How many names of equal hash a directory holds: at 2^46 values, two are a rarity.
pub(crate) const TWINS_MAX: u64 = 1 << 16;

/// All cookies are less.
pub(crate) const COOKIES_END: u64 = 1 << 63;

/// The first possible cookie for a name with that hash. It is above those of the dots, and fits
/// into a signed number.
pub(crate) fn first_cookie(name: &[u8], secret: u64) -> u64 {
    let hash = xxh3_64_with_seed(name, secret) >> (64 - HASH_BITS);
    (hash | 1 << HASH_BITS) << 16
}

/// A name or a path in words: bytes that are no text are written as `\xNN`, so that names that
/// differ in them do not look alike.
pub fn in_words(name: &[u8]) -> String {
    let mut words = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        words.push_str(chunk.valid());
        for byte in chunk.invalid() {
            words.push_str(&format!("\\x{byte:02x}"));
        }
    }
    words
}

/// Inverse of [`in_words`], unless the name itself contains `\xNN`.
pub fn out_of_words(words: &str) -> Vec<u8> {
    let (mut name, mut rest) = (Vec::with_capacity(words.len()), words.as_bytes());
    while let Some((&first, behind)) = rest.split_first() {
        let digits = rest.strip_prefix(b"\\x").and_then(|digits| digits.get(..2));
        let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let byte = digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok());
        name.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &rest[4..] } else { behind };
    }
    name
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

/// A decoded entry.
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

/// Refuses invalid names of entries.
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
    fn names_that_are_no_text_are_told_apart() {
        for (name, words) in [
            (&b"letters/m\xc3\xbcller"[..], "letters/müller"),
            (b"L\xfc\xfe", "L\\xfc\\xfe"),
            (b"L\xfc\xff.txt", "L\\xfc\\xff.txt"),
            (b"\xe2\x82", "\\xe2\\x82"),
            (b"", ""),
        ] {
            assert_eq!(in_words(name), words);
            assert_eq!(out_of_words(words), name);
        }
        for as_it_is in ["\\", "\\x", "\\xf", "\\xg0", "\\x+1", "a\\b"] {
            assert_eq!(out_of_words(as_it_is), as_it_is.as_bytes());
        }
    }

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
