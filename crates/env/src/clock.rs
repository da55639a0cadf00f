//! Time.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A source of time.
pub trait Clock: Send + Sync {
    /// Monotonic nanoseconds from an arbitrary start.
    fn now_ns(&self) -> u64;
    /// Wall-clock seconds since 1970.
    fn unix_s(&self) -> u64;
    /// CPU nanoseconds used by the calling thread, from an arbitrary start; 0 where the system
    /// cannot report them. A system call: too expensive to make for every unit.
    fn thread_cpu_ns(&self) -> u64;
}

/// The system's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
    fn unix_s(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
    }
    fn thread_cpu_ns(&self) -> u64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let (seconds, ns) = (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
        seconds * 1_000_000_000 + ns
    }
}

/// Monotonic nanoseconds from an arbitrary start, the same for all of the process: for front ends,
/// which are not simulated. No system call where the kernel maps its clock into processes.
pub fn monotonic_ns() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Wall-clock seconds since 1970 (negative before), and the nanoseconds within that second.
pub fn wall_time() -> (i64, u32) {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    (time.tv_sec, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_that_of_the_thread() {
        let clock = SystemClock::default();
        let (wall, cpu) = (clock.now_ns(), clock.thread_cpu_ns());
        let mut sum = 0u64;
        for i in 0..20_000_000u64 {
            sum = std::hint::black_box(sum.wrapping_add(i * i));
        }
        let (wall, cpu) = (clock.now_ns() - wall, clock.thread_cpu_ns() - cpu);
        assert!(cpu > 0 && cpu <= wall + 1_000_000, "{cpu} ns of CPU in {wall} ns");
        let elsewhere = std::thread::spawn(|| SystemClock::default().thread_cpu_ns()).join().unwrap();
        assert!(elsewhere < cpu, "a new thread has used {elsewhere} ns, this one {cpu} ns");
    }
}
