//! Randomness: used for identifiers only.

/// A source of random bytes.
pub trait Entropy: Send + Sync {
    /// Fills `buf` with random bytes.
    ///
    /// # Errors
    /// When the system's generator cannot be read.
    fn fill(&self, buf: &mut [u8]) -> std::io::Result<()>;
}

/// The kernel's random number generator.
#[derive(Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, buf: &mut [u8]) -> std::io::Result<()> {
        use std::io::Read;
        std::fs::File::open("/dev/urandom")?.read_exact(buf)
    }
}
