//! Waiting for an event that nothing announces.

use std::time::{Duration, Instant};

/// Nothing in a test that works takes this long, not even on a machine that stands still for a
/// while: a wait that does ends the test instead of hanging it.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// Asks again and again until it has come. No time is promised for it, but it must come.
///
/// # Panics
/// When it has not come within [`PATIENCE`].
#[track_caller]
pub fn until(what: &str, mut has_come: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !has_come() {
        assert!(Instant::now() < give_up, "waited in vain until {what}");
        std::thread::yield_now();
    }
}
