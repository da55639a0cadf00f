//! Work that goes through a whole pool slice by slice, and how much of the time it leaves to others. How far it came is kept with the
//! pool, so that interrupting the command pauses the work: it ends behind a slice, and a pool that it opened is closed in order, because
//! otherwise what the map was told last is lost, and that is how far it came.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use surface::Error;
use units::format_size;

use crate::cli::Pacing;
use crate::exit::{Failure, Outcome};
use crate::output::Output;
use crate::progress::Progress;
use crate::system::{Termination, exit_now};

/// While others are at work, background work rests so many times as long as it works.
const REST_FACTOR: u32 = 9;
/// Longest rest: the progress shall be seen, and an interruption noticed.
const REST_MAX: Duration = Duration::from_secs(2);

/// How often a rest looks whether it was interrupted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Whether a signal has asked for an end. A second one ends the process at once.
pub struct Interruption {
    flag: Arc<AtomicBool>,
}

impl Interruption {
    /// Watches for signals. To be made before any other thread is started.
    ///
    /// # Errors
    /// When they cannot be blocked, or the thread that waits for them cannot be started.
    pub fn watch() -> Outcome<Self> {
        let signals = Termination::block().map_err(|error| Error::from_io("cannot block signals", error))?;
        let flag = signals.flag().map_err(|error| Error::from_io("cannot watch for signals", error))?;
        Ok(Self { flag })
    }

    /// Whether it has come.
    pub fn has_come(&self) -> bool {
        self.flag.load(Ordering::SeqCst)
    }

    /// Rests so long, or until it comes.
    fn rest(&self, time: Duration) {
        let began = Instant::now();
        while !self.has_come() {
            let left = time.saturating_sub(began.elapsed());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(LOOK_EVERY));
        }
    }
}

/// From now on a signal ends the process at once, as its default would, but says so in the way of all commands. For those that leave nothing
/// to be put in order: a pool that is open then has crashed, which it is made for. To be called before any other thread is started.
///
/// # Errors
/// When signals cannot be blocked, or the thread that waits for them cannot be started.
pub fn end_when_interrupted(output: &Output) -> Outcome {
    let output = *output;
    let signals = Termination::block().map_err(|error| Error::from_io("cannot block signals", error))?;
    let end = move |_| {
        let interrupted = Failure::Interrupted("interrupted".to_owned());
        interrupted.report(&output);
        exit_now(interrupted.code().into());
    };
    signals.watch(end).map_err(|error| Error::from_io("cannot watch for signals", error).into())
}

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
/// Those of `call`; `Interrupted`.
pub fn in_slices<S>(
    title: &'static str,
    slice_bytes: u64,
    pacing: &Pacing,
    interruption: &Interruption,
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
            interruption.rest(rest(slice_bytes, pacing.rate, began.elapsed(), is.foreground_bytes != before));
        }
        if !is.finished && interruption.has_come() {
            progress.finish();
            let (done, total) = (format_size(is.bytes_done), format_size(is.bytes_total));
            let text = format!(
                "interrupted: {title} is paused at {done} of {total}; the same command without --restart goes on from there"
            );
            return Err(Failure::Interrupted(text));
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
