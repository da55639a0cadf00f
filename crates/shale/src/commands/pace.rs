//! How much of the time background work leaves to others.

use std::time::Duration;

/// While others are at work, background work rests so many times as long as it works.
const REST_FACTOR: u32 = 9;
/// Longest rest: the progress shall be seen, and an interruption noticed.
const REST_MAX: Duration = Duration::from_secs(2);

/// How long to rest after a slice of so many bytes that took `work`.
pub fn rest(slice_bytes: u64, rate: Option<u64>, work: Duration, is_busy: bool) -> Duration {
    let rest = match rate {
        Some(rate) => Duration::from_secs_f64(slice_bytes as f64 / rate.max(1) as f64).saturating_sub(work),
        None if is_busy => work * REST_FACTOR,
        None => Duration::ZERO,
    };
    // A rate below a slice in that time is meant as it is said.
    if rate.is_some() { rest } else { rest.min(REST_MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_follow_the_rate_or_the_users() {
        const SLICE: u64 = 8 << 20;
        let work = Duration::from_millis(10);
        assert_eq!(rest(SLICE, None, work, false), Duration::ZERO);
        assert_eq!(rest(SLICE, None, work, true), Duration::from_millis(90));
        assert_eq!(rest(SLICE, None, Duration::from_secs(1), true), REST_MAX);
        assert_eq!(rest(SLICE, Some(u64::MAX), work, true), Duration::ZERO);
        assert_eq!(rest(SLICE, Some(SLICE), work, true), Duration::from_millis(990));
        assert_eq!(rest(SLICE, Some(SLICE / 8), work, false), Duration::from_millis(7990));
    }
}
