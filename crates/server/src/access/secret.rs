//! Hashes of secrets. Owns the limit on concurrent hashing of passwords.

use std::fmt::Write as _;

use argon2::{Algorithm, Argon2, Params, Version};
use parking_lot::{Condvar, Mutex};
use ring::rand::SecureRandom;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use surface::{Error, ErrorKind, Result};

/// argon2id as OWASP recommends it: 19 MiB, two passes, one lane. Some 30 ms of a CPU.
const MEMORY_KIB: u32 = 19 << 10;
const PASSES: u32 = 2;
const LANES: u32 = 1;
/// Passwords hashed at a time: 38 MiB, and at most two CPUs withheld from clients.
const AT_A_TIME: usize = 2;
/// Bytes of a secret, of a salt and of a hash.
const SECRET_BYTES: usize = 32;
const SALT_BYTES: usize = 16;

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let failed = |_| Error::new(ErrorKind::Io, "the system returned no random bytes");
    ring::rand::SystemRandom::new().fill(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Returns a new secret, as 64 hexadecimal digits.
pub(super) fn random_text() -> Result<String> {
    random::<SECRET_BYTES>().map(|bytes| to_hex(&bytes))
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        (pair.len() == 2).then(|| u8::from_str_radix(pair, 16).ok())?
    });
    pairs.collect()
}

/// SHA-256 of a random secret. A comparison of two of them reveals nothing about the secret, so it
/// need not take constant time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Digest([u8; 32]);

impl Digest {
    /// Hashes a text.
    pub(super) fn of(text: &str) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, text.as_bytes()).as_ref());
        Self(bytes)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.serialize_str(&to_hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = from_hex(&text).and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(|| serde::de::Error::custom("a hash has 64 hexadecimal digits"))
    }
}

/// The hash of a password, with its parameters: stronger settings later leave it valid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Password {
    salt: String,
    hash: String,
    memory_kib: u32,
    passes: u32,
    lanes: u32,
}

impl Password {
    /// Returns a hash that no password matches, and that takes as long to compare.
    pub(super) fn of_nobody() -> Self {
        let (memory_kib, passes, lanes) = (MEMORY_KIB, PASSES, LANES);
        Self { salt: "00".repeat(SALT_BYTES), hash: String::new(), memory_kib, passes, lanes }
    }

    fn compute(&self, password: &str) -> Result<String> {
        let failed = |error: argon2::Error| Error::new(ErrorKind::Io, format!("a password cannot be hashed: {error}"));
        let params = Params::new(self.memory_kib, self.passes, self.lanes, Some(SECRET_BYTES)).map_err(failed)?;
        let salt = from_hex(&self.salt).unwrap_or_default();
        let mut hash = [0; SECRET_BYTES];
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        argon2.hash_password_into(password.as_bytes(), &salt, &mut hash).map_err(failed)?;
        Ok(to_hex(&hash))
    }
}

/// Bounds the number of passwords hashed at a time.
#[derive(Default)]
pub(super) struct Hashing {
    under_way: Mutex<usize>,
    ended: Condvar,
}

impl Hashing {
    fn in_turn<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut under_way = self.under_way.lock();
        self.ended.wait_while(&mut under_way, |under_way| *under_way >= AT_A_TIME);
        *under_way += 1;
        drop(under_way);
        let value = work();
        *self.under_way.lock() -= 1;
        self.ended.notify_one();
        value
    }

    /// Hashes a new password.
    pub(super) fn hash(&self, password: &str) -> Result<Password> {
        let mut stored = Password { salt: to_hex(&random::<SALT_BYTES>()?), ..Password::of_nobody() };
        stored.hash = self.in_turn(|| stored.compute(password))?;
        Ok(stored)
    }

    /// Returns whether that is the password; false if its hash cannot be computed.
    pub(super) fn matches(&self, stored: &Password, password: &str) -> bool {
        // Both sides are hashes: the time to compare them reveals nothing about the password.
        self.in_turn(|| stored.compute(password)).is_ok_and(|hash| hash == stored.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_matches_its_own_hash_and_no_other() {
        let hashing = Hashing::default();
        let stored = hashing.hash("correct horse").unwrap();
        assert!(hashing.matches(&stored, "correct horse"));
        assert!(!hashing.matches(&stored, "correct horsE"));
        assert!(!hashing.matches(&Password::of_nobody(), ""));
        assert_ne!(stored, hashing.hash("correct horse").unwrap(), "the salt is not random");
    }

    /// Computed by another implementation: a new version of the crate must not lock all users out.
    #[test]
    fn stored_hashes_stay_valid() {
        let stored = Password {
            salt: "00112233445566778899aabbccddeeff".to_owned(),
            hash: "a4378dff78e265baa47c84aa9fb8df034fd20c6d5928867495fa54b12f5b66d2".to_owned(),
            ..Password::of_nobody()
        };
        assert!(Hashing::default().matches(&stored, "password"));
    }

    #[test]
    fn hexadecimal_text_round_trips_and_nothing_else_is_taken() {
        assert_eq!(from_hex(&to_hex(&[0, 1, 254])).unwrap(), [0, 1, 254]);
        for bad in ["0", "0g", "+1", "é"] {
            assert_eq!(from_hex(bad), None, "{bad}");
        }
    }
}
