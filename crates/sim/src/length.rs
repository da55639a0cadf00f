//! The length of a simulated file: as its user sees it, and as a power loss may leave it. A device
//! has a fixed length.

use crate::Rng;

/// A length in bytes that is not certain before a sync.
#[derive(Debug, Clone)]
pub(crate) struct Length {
    seen: u64,
    certain: u64,
    /// Those that it was given since the last sync, oldest first.
    pending: Vec<u64>,
    /// A sync over them failed: no later sync makes them certain.
    is_doomed: bool,
}

impl Length {
    pub fn new(bytes: u64) -> Self {
        Self { seen: bytes, certain: bytes, pending: Vec::new(), is_doomed: false }
    }

    pub const fn bytes(&self) -> u64 {
        self.seen
    }

    pub fn set(&mut self, bytes: u64) {
        self.seen = bytes;
        self.pending.push(bytes);
    }

    pub fn sync(&mut self) {
        if !self.is_doomed {
            self.certain = self.seen;
            self.pending.clear();
        }
    }

    pub const fn fail_sync(&mut self) {
        self.is_doomed = !self.pending.is_empty();
    }

    /// Decides the state after a power loss.
    pub fn settle(&mut self, rng: &mut Rng) {
        if !self.pending.is_empty() {
            self.pending.push(self.certain);
            self.certain = *rng.pick(&self.pending);
        }
        *self = Self::new(self.certain);
    }

    /// Decides the state that the next process sees: a change that could not be synced was dropped,
    /// or is an ordinary change again.
    pub fn restart(&mut self, rng: &mut Rng) {
        if std::mem::take(&mut self.is_doomed) && rng.coin() {
            self.pending.clear();
            self.seen = self.certain;
        }
    }
}
