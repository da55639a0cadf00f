//! Time that stands still until it is moved.

use std::sync::atomic::{AtomicU64, Ordering};

use env::Clock;

/// Wall-clock second at which every simulation begins.
const START_UNIX_S: u64 = 1_700_000_000;

/// A clock that only [`advance_ms`](Self::advance_ms) moves.
#[derive(Debug, Default)]
pub struct SimClock {
    now_ns: AtomicU64,
}

impl SimClock {
    /// Moves the time forward.
    pub fn advance_ms(&self, ms: u64) {
        self.now_ns.fetch_add(ms * 1_000_000, Ordering::SeqCst);
    }
}

impl Clock for SimClock {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::SeqCst)
    }
    fn unix_s(&self) -> u64 {
        START_UNIX_S + self.now_ns() / 1_000_000_000
    }
}
