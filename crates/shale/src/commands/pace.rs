//! Work that goes through a whole pool slice by slice, and how much of the time it leaves to
//! others. How far it came is kept with the pool, so that interrupting the command pauses the work:
//! it ends behind a slice, and a pool that it opened is closed in order, because otherwise what the
//! map was told last is lost, and that is how far it came.

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
    pub(super) fn rest(&self, time: Duration) {
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

/// From now on a signal ends the process at once, as its default would, but says so in the way of
/// all commands. For those that leave nothing to be put in order: a pool that is open then has
/// crashed, which it is made for. To be called before any other thread is started.
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
    /// Bytes that users of the pool have read and written, and that were sent and received for
    /// them.
    pub foreground_bytes: u64,
    /// What the progress bar says of it.
    pub said: String,
}

/// How much is asked for at a time, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct SliceBytes {
    /// While others use the pool, and where a rate is given: so little that no client waits long
    /// for it.
    pub busy: u64,
    /// Without other users, or with none to be spared: the beginning and the end of a slice cost
    /// time.
    pub idle: u64,
}

impl SliceBytes {
    /// The same with and without other users of the pool.
    pub const fn always(bytes: u64) -> Self {
        Self { busy: bytes, idle: bytes }
    }
}

/// Asks for slices with `call` (bytes, whether to begin anew), until all is done, resting between
/// them as the pacing or the pool's users demand; only asks how far it is when `pacing` says so.
/// Returns the last answer.
///
/// # Errors
/// Those of `call`; `Interrupted`.
pub fn in_slices<S>(
    title: &'static str,
    bytes: SliceBytes,
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
    let mut is_busy = true;
    while restart || !is.finished {
        let (began, before) = (Instant::now(), is.foreground_bytes);
        let spares_others = pacing.rate.map_or(is_busy, |rate| rate < u64::MAX);
        let asked = if spares_others { bytes.busy } else { bytes.idle };
        slice = call(asked, restart)?;
        restart = false;
        is = standing(&slice);
        is_busy = is.foreground_bytes != before;
        progress.set_total(is.bytes_total);
        progress.set(is.bytes_done);
        progress.say(is.said);
        if !is.finished {
            interruption.rest(rest(asked, pacing.rate, began.elapsed(), is_busy));
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
    #![allow(clippy::unwrap_used)]

    use std::cell::RefCell;

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

    /// Larger slices while no other client is at work, or is to be spared.
    #[test]
    fn slices_are_larger_while_nobody_else_is_at_work() {
        const BYTES: SliceBytes = SliceBytes { busy: 8, idle: 64 };
        for (rate, expected) in [(None, [8, 64, 64, 8, 8]), (Some(1 << 40), [8; 5]), (Some(u64::MAX), [64; 5])] {
            let pacing = Pacing { rate, restart: false, report: false };
            let interruption = Interruption { flag: Arc::default() };
            let (asked, foreground) = (RefCell::new(Vec::new()), [0, 0, 0, 5, 9, 9]);
            let call = |bytes: u64, _| {
                if bytes > 0 {
                    asked.borrow_mut().push(bytes);
                }
                Ok(asked.borrow().len())
            };
            let standing = |done: &usize| Standing {
                finished: *done == expected.len(),
                bytes_done: *done as u64,
                bytes_total: expected.len() as u64,
                foreground_bytes: foreground[*done],
                said: String::new(),
            };
            let output = Output::new(false, true);
            in_slices("test", BYTES, &pacing, &interruption, &output, call, standing).unwrap();
            assert_eq!(asked.into_inner(), expected, "{rate:?}");
        }
    }
}
