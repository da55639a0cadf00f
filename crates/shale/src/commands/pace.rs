//! Work that goes through a whole pool slice by slice, and how much of the time it leaves to others. How far it came is kept with the
//! pool, so that interrupting the command pauses the work.

use std::time::{Duration, Instant};

use crate::cli::Pacing;
use crate::exit::Outcome;
use crate::output::Output;
use crate::progress::Progress;

/// While others are at work, background work rests so many times as long as it works.
const REST_FACTOR: u32 = 9;
/// Longest rest: the progress shall be seen, and an interruption noticed.
const REST_MAX: Duration = Duration::from_secs(2);

/// How far the work is, after a slice of it.
pub struct Standing {
    pub finished: bool,
    pub bytes_done: u64,
    pub bytes_total: u64,
    /// Bytes that users of the pool have read and written.
    pub foreground_bytes: u64,
    /// What the progress bar says of it.
    pub said: String,
}

/// Asks for slices of `slice_bytes` with `call` (bytes, whether to begin anew), until all is done, resting between them as the pacing or the pool's
/// users demand; only asks how far it is when `pacing` says so. Returns the last answer.
///
/// # Errors
/// Those of `call`.
pub fn in_slices<S>(
    title: &'static str,
    slice_bytes: u64,
    pacing: &Pacing,
    output: &Output,
    call: impl Fn(u64, bool) -> Outcome<S>,
    standing: impl Fn(&S) -> Standing,
) -> Outcome<S> {
    let mut slice = call(0, false)?;
    if pacing.report {
        return Ok(slice);
    }
    let mut is = standing(&slice);
    // One that was finished is history.
    let mut restart = pacing.restart || is.finished;
    let progress = Progress::new(output, title, Some(is.bytes_total));
    while restart || !is.finished {
        let (began, before) = (Instant::now(), is.foreground_bytes);
        slice = call(slice_bytes, restart)?;
        restart = false;
        is = standing(&slice);
        progress.set_total(is.bytes_total);
        progress.set(is.bytes_done);
        progress.say(is.said);
        if !is.finished {
            std::thread::sleep(rest(slice_bytes, pacing.rate, began.elapsed(), is.foreground_bytes != before));
        }
    }
    progress.finish();
    Ok(slice)
}

/// How long to rest after a slice of so many bytes that took `work`.
fn rest(slice_bytes: u64, rate: Option<u64>, work: Duration, is_busy: bool) -> Duration {
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
