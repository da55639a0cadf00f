//! Power of a busy CPU and the source of that figure: for the columns of joules.

use env::{Clock, Rapl, SystemClock};
use policy::Power;

/// CPU time over which it is measured.
const BUSY_NS: u64 = 1_000_000_000;

/// Counted by the processor where it can be read, else nominal.
pub fn power() -> Power {
    let Some(rapl) = Rapl::open() else { return Power::NOMINAL };
    let clock = SystemClock::default();
    let (before, began) = (rapl.used_uj(), clock.thread_cpu_ns());
    let mut sum = 0u64;
    while clock.thread_cpu_ns() - began < BUSY_NS {
        sum = (0..1 << 20).fold(sum, |sum, i| std::hint::black_box(sum.wrapping_add(i * i)));
    }
    let used = before.zip(rapl.used_uj()).map(|(before, after)| after - before);
    used.and_then(|used| Power::measured(used, clock.thread_cpu_ns() - began)).unwrap_or(Power::NOMINAL)
}
