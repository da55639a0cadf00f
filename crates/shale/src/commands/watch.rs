//! Starts a job and watches it to its end: the common part of commands whose work is a job.
//!
//! The job runs in the pool's process: in the server, if there is one, otherwise in this process. A
//! bar on the terminal, or lines elsewhere, show the progress.
//!
//! Ctrl-C ends the work of the command. The command that started a job cancels it, and waits for
//! its end, which follows the current slice. A command that only watches stops watching.

use std::time::Instant;

use surface::{Error, ErrorKind};
use units::format_size;

use super::interruption::Interruption;
use crate::heartbeat::{self, LINES_EVERY};
use crate::output::Output;
use crate::progress::Progress;
use crate::times::show_seconds;
use operations::{Failure, Outcome};
use operations::{Reply, Request};
use report::{JobReport, JobResult, JobState, JobWish};
use server::session::Session;

/// Time that the pool waits for a change before it reports the progress of a job; it determines how
/// often bars move and interruptions are noticed.
const PATIENCE_MS: u64 = 200;
/// Effect of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CtrlC {
    /// The job.
    EndsJob,
    /// Only the watching.
    EndsWatching,
}

/// Sends a request about jobs, and returns the job of the reply.
///
/// # Errors
/// Those of the pool.
pub(super) fn ask(session: &Session, request: Request) -> Outcome<JobReport> {
    match session.call(request)? {
        Reply::Job(job) => Ok(*job),
        other => Err(other.unexpected().into()),
    }
}

/// Starts a job, and watches it to its end; returns its result. `None`: it continues in the
/// background, which is reported.
///
/// # Errors
/// Those of the job, and that it was cancelled.
pub(super) fn start(
    session: &Session,
    wish: JobWish,
    background: bool,
    interruption: &Interruption,
    output: &Output,
) -> Outcome<Option<(JobResult, f64)>> {
    if background && !session.is_served() {
        let text = "no server has the pool, so a job would end with this command: start one (shale serve), or omit \
         --background";
        return Err(Error::new(ErrorKind::Invalid, text).into());
    }
    start_by(session, Request::StartJob { wish, background }, background, interruption, output)
}

/// The same, with the operation that starts the job.
///
/// # Errors
/// As [`start`].
pub(super) fn start_by(
    session: &Session,
    request: Request,
    background: bool,
    interruption: &Interruption,
    output: &Output,
) -> Outcome<Option<(JobResult, f64)>> {
    if background {
        let job = ask(session, request)?;
        output.done(&job, || {
            let id = job.id;
            format!("{} runs in the server: 'shale jobs POOL {id}' watches it\n", job.title())
        });
        return Ok(None);
    }
    result_of(session, request, interruption, output).map(Some)
}

/// Starts a job with this request, and watches it to its end; returns its result, and the seconds
/// of work.
///
/// # Errors
/// Those of the job, and that it was cancelled.
pub(super) fn result_of(
    session: &Session,
    request: Request,
    interruption: &Interruption,
    output: &Output,
) -> Outcome<(JobResult, f64)> {
    let job = ask(session, request)?;
    let shown = Shown::new(output, Some(Instant::now()));
    let job = to_end(session, job, CtrlC::EndsJob, interruption, shown)?;
    let seconds = job.seconds;
    outcome(job).map(|result| (result, seconds))
}

/// Returns the outcome of a job that has ended.
///
/// # Errors
/// Those of the job, and that it was cancelled.
pub(super) fn outcome(job: JobReport) -> Outcome<JobResult> {
    match (job.state, job.error, job.result) {
        (JobState::Done, _, Some(result)) => Ok(result),
        (JobState::Cancelled, Some(fault), _) => Err(Failure::Interrupted(fault.message)),
        (_, Some(fault), _) => Err(fault.error().into()),
        _ => Err(Failure::Internal(format!("job {} has ended without an outcome", job.id))),
    }
}

/// Watches a job to its end.
///
/// # Errors
/// Those of the pool; `Interrupted`, where a signal only ends watching.
pub(super) fn to_end(
    session: &Session,
    mut job: JobReport,
    ctrl_c: CtrlC,
    interruption: &Interruption,
    mut shown: Shown<'_>,
) -> Outcome<JobReport> {
    let id = job.id;
    let mut has_cancelled = false;
    let watching = |failure: Failure| failure.context(format_args!("watching job {id}"));
    loop {
        shown.show(&job);
        if job.state.has_ended() {
            return Ok(job);
        }
        if interruption.has_come() {
            if ctrl_c == CtrlC::EndsWatching {
                let text = format!("interrupted: {} continues; 'shale jobs POOL {id} --cancel' ends it", job.title());
                return Err(Failure::Interrupted(text));
            }
            if !has_cancelled {
                // It may have ended just now.
                drop(ask(session, Request::CancelJob { id, interrupted: true }));
                has_cancelled = true;
            }
        }
        let seen = Some(job.changes);
        job = ask(session, Request::WatchJob { id, seen, patience_ms: PATIENCE_MS }).map_err(watching)?;
    }
}

/// Progress display of a job.
pub(super) struct Shown<'a> {
    output: &'a Output,
    /// The bar, with the phase and whether there is a total.
    bar: Option<(String, bool, Progress)>,
    /// Time of the last line, or the start of the wait for the first; and the state in it.
    told: Option<Instant>,
    state: JobState,
}

impl<'a> Shown<'a> {
    /// The first line is due at once, or [`LINES_EVERY`] after `since`.
    pub(super) const fn new(output: &'a Output, since: Option<Instant>) -> Self {
        Self { output, bar: None, told: since, state: JobState::Running }
    }

    fn show(&mut self, job: &JobReport) {
        if job.state.has_ended() {
            self.bar = None;
        } else if self.output.shows_progress() {
            self.show_bar(job);
        } else {
            self.show_line(job);
        }
    }

    fn show_bar(&mut self, job: &JobReport) {
        let kind = (job.phase.as_str(), job.bytes_total.is_some());
        if self.bar.as_ref().is_none_or(|(phase, has_total, _)| (phase.as_str(), *has_total) != kind) {
            // The old one is dropped first, or both are drawn.
            self.bar = None;
            let bar = Progress::new(self.output, &job.phase, job.bytes_total);
            self.bar = Some((job.phase.clone(), job.bytes_total.is_some(), bar));
        }
        if let Some((.., bar)) = &self.bar {
            if let Some(total) = job.bytes_total {
                bar.set_total(total);
            }
            bar.set(job.bytes_done);
            bar.say(stands(job.state).map_or_else(|| job.said.clone(), str::to_owned));
        }
    }

    fn show_line(&mut self, job: &JobReport) {
        heartbeat::replace();
        let is_due = self.told.is_none_or(|at| at.elapsed() >= LINES_EVERY);
        if is_due || job.state != self.state {
            self.output.note(&line(job));
            self.told = Some(Instant::now());
            self.state = job.state;
        }
    }
}

/// Returns a word for a job that is not simply running.
const fn stands(state: JobState) -> Option<&'static str> {
    match state {
        JobState::Paused => Some("paused"),
        JobState::Cancelling => Some("cancelling"),
        JobState::Running | JobState::Done | JobState::Failed | JobState::Cancelled => None,
    }
}

/// Formats the progress of a job as a line.
fn line(job: &JobReport) -> String {
    let mut words = vec![match job.bytes_total {
        Some(total) => format!("{} {} of {}", job.phase, format_size(job.bytes_done), format_size(total)),
        None => format!("{} {}", job.phase, format_size(job.bytes_done)),
    }];
    if let Some(stands) = stands(job.state) {
        words.push(stands.to_owned());
    } else {
        words.extend(job.bytes_per_second.map(|rate| format!("{}/s", format_size(rate))));
        words.extend(job.seconds_left.map(|left| format!("{} left", show_seconds(left))));
    }
    words.extend(Some(job.said.clone()).filter(|said| !said.is_empty()));
    format!("{}: {}", job.title(), words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::JobFault;

    #[test]
    fn a_line_tells_how_far_a_job_is() {
        let job = JobReport::sample();
        let expected = "job 3 (recompress vm): recompressing 1 MiB of 4 MiB, 1 KiB/s, 51 min left, to 40%";
        assert_eq!(line(&job), expected);
        let paused = JobReport { state: JobState::Paused, said: String::new(), target: None, ..job };
        assert_eq!(line(&paused), "job 3 (recompress): recompressing 1 MiB of 4 MiB, paused");
    }

    /// The exit code is that of a command that does the work itself.
    #[test]
    fn a_job_ends_the_command_that_watches_it_as_it_ended() {
        let ended = |state, error: Option<JobFault>| JobReport { state, error, ..JobReport::sample() };
        let full = JobFault::from(&Error::new(ErrorKind::Full, "no room"));
        let failed = outcome(ended(JobState::Failed, Some(full))).err();
        assert!(matches!(&failed, Some(failure) if failure.code() == 5 && failure.to_string() == "no room"));
        let fault = JobFault::cancelled("interrupted: so far".to_owned());
        let cancelled = outcome(ended(JobState::Cancelled, Some(fault))).err();
        assert!(
            matches!(&cancelled, Some(failure) if failure.code() == 130 && failure.to_string().ends_with("so far"))
        );
        let done = JobReport { result: Some(JobResult::Recompressed(Box::default())), ..ended(JobState::Done, None) };
        assert!(outcome(done).is_ok());
    }
}
