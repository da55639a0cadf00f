//! Incompressible bytes.

use crate::Rng;

/// `length` bytes of noise. The same seed gives the same bytes, and a shorter piece is the
/// beginning of a longer one.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Rng::new(seed).fill(&mut bytes);
    bytes
}
