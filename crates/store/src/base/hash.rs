//! A hasher for small integer keys that no attacker controls: one multiplication a word. Block
//! numbers come from clients, but a client that crafts collisions slows down only its own volume's
//! groups within one shard.

use std::hash::{BuildHasherDefault, Hasher};

pub(crate) type FastHash = BuildHasherDefault<WordHasher>;

#[derive(Default)]
pub(crate) struct WordHasher(u64);

/// 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming, 6.4).
pub const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for WordHasher {
    fn finish(&self) -> u64 {
        // The table takes its index from the low bits and its tags from the high ones; fold so that
        // both are mixed.
        self.0 ^ (self.0 >> 32)
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(MULTIPLIER);
    }
    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }
}
