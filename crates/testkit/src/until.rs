//! Waiting for an event without a notification.

use std::time::{Duration, Instant};

/// Longer than anything takes in a working test, even on a machine that stalls for a while: a
/// longer wait fails the test instead of hanging it.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// Polls until `has_come` returns true. No time limit is asserted, but it must happen.
///
/// # Panics
/// When it has not happened within [`PATIENCE`].
#[track_caller]
pub fn until(what: &str, mut has_come: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !has_come() {
        assert!(Instant::now() < give_up, "waited in vain until {what}");
        std::thread::yield_now();
    }
}
