//! Shared helpers of unit tests of the parts of a pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use env::Clock;
use sim::Machine;

use crate::base::options::PoolOptions;
use crate::base::vitals::Vitals;

/// The shared state of a pool on that machine that has no other parts.
pub(crate) fn vitals_on(machine: &Machine) -> Arc<Vitals> {
    Arc::new(Vitals::new(machine.env(), PoolOptions::default()))
}

/// A clock whose CPU time is 100 ns later at each look, and which counts the looks.
#[derive(Default)]
pub(crate) struct CountingClock(AtomicU64);

impl CountingClock {
    pub(crate) fn looks(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Clock for CountingClock {
    fn now_ns(&self) -> u64 {
        0
    }
    fn unix_s(&self) -> u64 {
        0
    }
    fn thread_cpu_ns(&self) -> u64 {
        100 * self.0.fetch_add(1, Ordering::Relaxed)
    }
}
