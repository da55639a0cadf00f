//! Randomness that repeats.

use env::Entropy;
use parking_lot::Mutex;

use crate::Rng;

/// Random bytes from a seed.
#[derive(Debug)]
pub struct SimEntropy(Mutex<Rng>);

impl SimEntropy {
    /// The bytes of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(Mutex::new(Rng::new(seed)))
    }
}

impl Entropy for SimEntropy {
    fn fill(&self, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.lock().fill(buf);
        Ok(())
    }
}
