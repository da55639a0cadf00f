//! Time that only advances on command.

use std::sync::atomic::{AtomicU64, Ordering};

use env::Clock;

/// Wall-clock second at which every simulation begins.
const START_UNIX_S: u64 = 1_700_000_000;

/// Largest step of CPU time between two readings, in nanoseconds: from much less than any codec
/// takes to much more.
const CPU_STEP_NS_MAX: u64 = 1 << 20;

/// A clock that only [`advance_ms`](Self::advance_ms) moves. CPU time advances separately, in steps
/// that look random and are the same in every run, so that decisions based on measured times take
/// all branches, repeatably.
#[derive(Debug, Default)]
pub struct SimClock {
    now_ns: AtomicU64,
    cpu_looks: AtomicU64,
    cpu_ns: AtomicU64,
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
    fn thread_cpu_ns(&self) -> u64 {
        let look = self.cpu_looks.fetch_add(1, Ordering::SeqCst);
        let mixed = look.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let step = ((mixed ^ (mixed >> 29)) % CPU_STEP_NS_MAX) >> ((mixed >> 56) % 20);
        self.cpu_ns.fetch_add(step, Ordering::SeqCst) + step
    }
}
