//! Work that covers a whole pool slice by slice, and the share of time that it leaves to others.
//! Its progress is stored in the pool, so that cancelling a job only pauses it: it ends after a
//! slice, and the next job continues from there.

use std::time::{Duration, Instant};

use surface::Result;
use units::format_size;

use super::table::{Doing, Stop, Work};
use report::JobPace;

/// Ratio of rest to work while others use the pool.
const REST_FACTOR: u32 = 9;
/// Maximum rest without a rate, so that progress remains visible.
const REST_MAX: Duration = Duration::from_secs(2);

/// Progress of the work after a slice.
pub(super) struct Standing {
    pub(super) finished: bool,
    pub(super) bytes_done: u64,
    pub(super) bytes_total: u64,
    /// Bytes that users of the pool have read and written, and that were sent and received for
    /// them.
    pub(super) foreground_bytes: u64,
    /// Message of the work itself.
    pub(super) said: String,
}

/// Size of a slice in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct SliceBytes {
    /// While others use the pool, and with a given rate: small enough that no client waits long for
    /// it.
    pub(super) busy: u64,
    /// Without other users, or if they need no consideration: larger, because each slice has a
    /// fixed cost.
    pub(super) idle: u64,
}

impl SliceBytes {
    /// The same size with and without other users of the pool.
    pub(super) const fn always(bytes: u64) -> Self {
        Self { busy: bytes, idle: bytes }
    }
}

/// Requests slices with `call` (bytes, whether to restart) until all is done, resting between them
/// as the pace or the pool's users demand. Returns the last answer. At least one slice is done,
/// even if the job is cancelled meanwhile.
///
/// # Errors
/// Those of `call`; `Cancelled`, with the progress.
pub(super) fn in_slices<S>(
    phase: &'static str,
    bytes: SliceBytes,
    pace: JobPace,
    doing: &Doing,
    call: impl Fn(u64, bool) -> Result<S>,
    standing: impl Fn(&S) -> Standing,
) -> Work<S> {
    let mut slice = call(0, false)?;
    let mut is = standing(&slice);
    // A finished pass is not continued.
    let mut restart = pace.restart || is.finished;
    doing.begin_phase(phase, if restart { 0 } else { is.bytes_done }, Some(is.bytes_total));
    let mut is_busy = true;
    while restart || !is.finished {
        let (began, before) = (Instant::now(), is.foreground_bytes);
        let spares_others = pace.rate.map_or(is_busy, |rate| rate < u64::MAX);
        let asked = if spares_others { bytes.busy } else { bytes.idle };
        slice = call(asked, restart)?;
        restart = false;
        is = standing(&slice);
        is_busy = is.foreground_bytes != before;
        doing.tell(is.bytes_done, Some(is.bytes_total), is.said.clone());
        if !is.finished {
            doing.rest(rest(asked, pace.rate, began.elapsed(), is_busy));
            doing.go_on().map_err(|why| {
                let (done, total) = (format_size(is.bytes_done), format_size(is.bytes_total));
                let text = format!(
                    "{why}: {phase} is paused at {done} of {total}; the same command without --restart resumes it"
                );
                Stop::Cancelled(text)
            })?;
        }
    }
    Ok(slice)
}

/// Returns the rest after work of that duration without a rate.
pub(crate) fn rest_after(work: Duration, is_busy: bool) -> Duration {
    rest(0, None, work, is_busy)
}

/// Returns the rest after a slice of so many bytes that took `work`.
fn rest(slice_bytes: u64, rate: Option<u64>, work: Duration, is_busy: bool) -> Duration {
    let rest = match rate {
        Some(rate) => Duration::from_secs_f64(slice_bytes as f64 / rate.max(1) as f64).saturating_sub(work),
        None if is_busy => work * REST_FACTOR,
        None => Duration::ZERO,
    };
    // A rate below one slice per `REST_MAX` is respected.
    if rate.is_some() { rest } else { rest.min(REST_MAX) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::cell::RefCell;
    use std::sync::Arc;

    use super::super::table::{Begin, Jobs, Worker};
    use super::*;
    use report::{JobKind, JobState};

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

    fn begun(jobs: &Arc<Jobs>) -> Doing {
        let (kind, worker) = (JobKind::Recompress, Worker::Pool);
        let begin = Begin { kind, target: None, volume: None, path: None, background: true, worker };
        jobs.begin(begin).unwrap()
    }

    /// Slices are larger while no other client is at work, or when others need no consideration.
    #[test]
    fn slices_are_larger_while_nobody_else_is_at_work() {
        const BYTES: SliceBytes = SliceBytes { busy: 8, idle: 64 };
        for (rate, expected) in [(None, [8, 64, 64, 8, 8]), (Some(1 << 40), [8; 5]), (Some(u64::MAX), [64; 5])] {
            let pace = JobPace { rate, restart: false };
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
            let doing = begun(&Arc::default());
            in_slices("test", BYTES, pace, &doing, call, standing).unwrap();
            assert_eq!(asked.into_inner(), expected, "{rate:?}");
        }
    }

    /// Ten slices, the last of which is never reached: `ask` is called after each of them.
    fn ten_slices(doing: &Doing, ask: impl Fn(u64)) -> Work<u64> {
        let done = RefCell::new(0);
        let call = |bytes, _| {
            let mut done = done.borrow_mut();
            *done += bytes;
            if bytes > 0 {
                ask(*done);
            }
            Ok(*done)
        };
        let standing = |done: &u64| Standing {
            finished: *done == 10,
            bytes_done: *done,
            bytes_total: 10,
            foreground_bytes: 0,
            said: String::new(),
        };
        let pace = JobPace { rate: Some(u64::MAX), restart: false };
        in_slices("testing", SliceBytes::always(1), pace, doing, call, standing)
    }

    #[test]
    fn a_cancelled_job_ends_behind_its_slice_and_says_where() {
        let jobs = Arc::<Jobs>::default();
        let doing = begun(&jobs);
        let id = doing.id();
        let ended = ten_slices(&doing, |done| {
            if done == 3 {
                jobs.cancel(id, "interrupted").unwrap();
            }
        });
        let Err(Stop::Cancelled(text)) = ended else { panic!("{ended:?}") };
        assert!(text.starts_with("interrupted: testing is paused at 3 B of 10 B; the same command"), "{text}");
    }

    #[test]
    fn a_job_that_was_cancelled_before_it_began_does_one_slice() {
        let jobs = Arc::<Jobs>::default();
        let doing = begun(&jobs);
        jobs.cancel(doing.id(), "interrupted").unwrap();
        let Err(Stop::Cancelled(text)) = ten_slices(&doing, |_| {}) else { panic!("it was not cancelled") };
        assert!(text.contains("paused at 1 B"), "{text}");
    }

    #[test]
    fn a_paused_job_stands_still_until_it_is_resumed() {
        let jobs = Arc::<Jobs>::default();
        let doing = begun(&jobs);
        let id = doing.id();
        std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                ten_slices(&doing, |done| {
                    if done == 4 {
                        jobs.pause(id).unwrap();
                    }
                })
            });
            let mut is = jobs.report(id).unwrap();
            while is.state != JobState::Paused {
                is = jobs.watch(id, is.changes, Duration::from_secs(2)).unwrap();
            }
            assert_eq!((is.bytes_done, is.bytes_total), (4, Some(10)));
            // No change follows, so the whole timeout passes.
            let still = jobs.watch(id, is.changes, Duration::from_millis(50)).unwrap();
            assert_eq!((still.state, still.bytes_done), (JobState::Paused, 4));
            jobs.resume(id).unwrap();
            assert_eq!(work.join().unwrap().unwrap(), 10);
        });
    }
}
