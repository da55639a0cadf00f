//! The time, only for timeouts of clients: how long a handshake may take. No stored data or reply
//! depends on it.

use std::time::{Duration, Instant};

use rustix::time::Timespec;

/// A point in time until which something may take.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// `patience` from now.
    pub fn after(patience: Duration) -> Self {
        Self(now() + patience)
    }

    /// The time left; zero when it has passed.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(now())
    }

    /// The instant, for a condition variable.
    pub const fn instant(self) -> Instant {
        self.0
    }
}

/// A timeout for `poll`.
pub fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs().min(i64::MAX as u64) as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}

/// The front ends do not run in the simulator, unlike the rest of the system, which must not read
/// the time directly: sockets and their timeouts are real here.
#[allow(clippy::disallowed_methods, reason = "patience with sockets is real time; see above")]
fn now() -> Instant {
    Instant::now()
}
