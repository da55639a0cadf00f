//! Waiting for an event without a notification.

use std::time::{Duration, Instant};

/// Longer than anything takes in a working test, even on a machine that stalls for a while: a
/// longer wait fails the test instead of hanging it.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// Attempts without a pause: most events come within a few, and a pause would delay them.
const HASTY_ATTEMPTS: u32 = 1000;
/// Pause between the others, so that a long wait does not occupy a CPU that the event needs.
const PAUSE: Duration = Duration::from_millis(1);

/// Polls until `has_come` returns true. No time limit is asserted, but it must happen.
///
/// # Panics
/// When it has not happened within [`PATIENCE`].
#[track_caller]
pub fn until(what: &str, mut has_come: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    let mut attempts = 0_u32;
    while !has_come() {
        assert!(Instant::now() < give_up, "waited in vain until {what}");
        attempts = attempts.saturating_add(1);
        if attempts < HASTY_ATTEMPTS { std::thread::yield_now() } else { std::thread::sleep(PAUSE) }
    }
}
