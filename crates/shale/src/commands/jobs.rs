//! `shale jobs`: lists the jobs of a served pool, watches one, and asks it to pause, continue or
//! end.

use std::time::{Duration, Instant};

use units::format_size;

use super::interruption::Interruption;
use super::watch::{CtrlC, Shown, ask, outcome, to_end};
use super::{calibrate, clean, estimate, image, recompress, scrub, shrink};
use crate::cli::JobsArgs;
use crate::output::{Output, table};
use crate::times::{show_moment, show_seconds};
use operations::{Failure, Outcome};
use operations::{Reply, Request};
use report::{JobReport, JobResult, JobState};
use server::session::Session;

/// Time that the pool waits for a job to follow a request.
const PATIENCE_MS: u64 = 500;
/// Time for the command of a cancelled job to end: it may be waiting for its input or its output,
/// or be stopped (Ctrl-Z).
const COMMAND_PATIENCE: Duration = Duration::from_secs(5);

/// Lists jobs, or performs an action on one.
pub fn run(args: &JobsArgs, output: &Output) -> Outcome {
    let interruption = Interruption::watch()?;
    let session = Session::of_server(&args.pool)?;
    let session = session.ok_or_else(|| Session::unserved(&args.pool, "there are no jobs"))?;
    let Some(id) = args.id else { return list(&session, output) };
    if args.pause {
        let job = ask(&session, Request::PauseJob { id })?;
        let job = until(&session, job, |job| job.state != JobState::Running, &interruption)?;
        output.done(&job, || said(&job));
    } else if args.resume {
        let job = ask(&session, Request::ResumeJob { id })?;
        let job = until(&session, job, |job| job.state != JobState::Paused, &interruption)?;
        output.done(&job, || said(&job));
    } else if args.cancel {
        let job = ask(&session, Request::CancelJob { id, interrupted: false })?;
        let give_up = job.kind.is_of_command().then(|| Instant::now() + COMMAND_PATIENCE);
        let is_over = |job: &JobReport| job.state.has_ended() || give_up.is_some_and(|at| Instant::now() >= at);
        let job = until(&session, job, is_over, &interruption)?;
        output.done(&job, || said(&job));
    } else {
        let job = ask(&session, Request::WatchJob { id, seen: None, patience_ms: 0 })?;
        let job = to_end(&session, job, CtrlC::EndsWatching, &interruption, Shown::new(output, None))?;
        return tell(job, output);
    }
    Ok(())
}

/// Waits until a job has the requested state, or has ended.
fn until(
    session: &Session,
    mut job: JobReport,
    is_so: impl Fn(&JobReport) -> bool,
    interruption: &Interruption,
) -> Outcome<JobReport> {
    while !is_so(&job) && !job.state.has_ended() {
        if interruption.has_come() {
            let text = format!("interrupted: {} was asked, and will follow after its current slice", job.title());
            return Err(Failure::Interrupted(text));
        }
        let (id, seen) = (job.id, Some(job.changes));
        job = ask(session, Request::WatchJob { id, seen, patience_ms: PATIENCE_MS })?;
    }
    Ok(job)
}

/// Reports the outcome of a job, as the command for the same work would.
fn tell(job: JobReport, output: &Output) -> Outcome {
    let (title, seconds, target) = (job.title(), job.seconds, job.target.clone().unwrap_or_default());
    if output.is_json() {
        let document = job.clone();
        let result = outcome(job)?;
        output.json(&document);
        return verdict(&result);
    }
    let result = outcome(job)?;
    match &result {
        JobResult::Recompressed(slice) => recompress::tell(slice, Some(seconds), output),
        JobResult::Cleaned(done) => clean::tell(done, Some(seconds), output),
        JobResult::Scrubbed(slice) => scrub::tell(slice, Some(seconds), output),
        JobResult::Calibrated(found) => calibrate::tell(found, output),
        JobResult::Restored(total) => {
            let kept = total.kept_first.as_ref().map_or_else(String::new, |first| {
                format!("; {} existing files were kept, the first is '{}'", total.kept, units::shown(first))
            });
            output.text(&format!("{title}: {} restored, {}{kept}\n", total.restored, format_size(total.bytes)))
        }
        JobResult::Shrunk(slice) => shrink::tell(slice, seconds, output),
        JobResult::Pushed(pushed) => image::tell(pushed, &target, output),
        JobResult::Estimated(report) => estimate::tell(report, output),
        JobResult::Moved { bytes } => output.text(&format!("{title}: {}, in {seconds:.1} s\n", format_size(*bytes))),
    }
    verdict(&result)
}

/// Returns an error if a job found one.
fn verdict(result: &JobResult) -> Outcome {
    match result {
        JobResult::Scrubbed(slice) => scrub::verdict(slice),
        _ => Ok(()),
    }
}

fn list(session: &Session, output: &Output) -> Outcome {
    let jobs = match session.call(Request::Jobs)? {
        Reply::Jobs(jobs) => jobs,
        other => return Err(other.unexpected().into()),
    };
    output.result(&jobs, || match jobs.is_empty() {
        true => "no job was started since the server started".to_owned(),
        false => show(&jobs),
    });
    Ok(())
}

fn show(jobs: &[JobReport]) -> String {
    let mut rows = vec![["JOB", "STATE", "DONE", "RATE", "LEFT", "STARTED"].map(str::to_owned).to_vec()];
    rows.extend(jobs.iter().map(row));
    let mut text = table(&rows);
    for (job, fault) in jobs.iter().filter_map(|job| job.error.as_ref().map(|fault| (job, fault))) {
        text.push_str(&format!("job {}: {}\n", job.id, fault.message));
    }
    text
}

fn row(job: &JobReport) -> Vec<String> {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let is_running = job.state == JobState::Running;
    let state = match &job.asked {
        Some(asked) if job.state != JobState::Cancelling => format!("{}, {asked} asked", job.state.name()),
        _ => job.state.name().to_owned(),
    };
    vec![
        format!("{} {} {}", job.id, job.kind.name(), job.target.as_deref().unwrap_or_default()),
        state,
        done(job),
        or_none(job.bytes_per_second.map(|rate| format!("{}/s", format_size(rate)))),
        or_none(job.seconds_left.filter(|_| is_running).map(show_seconds)),
        show_moment(job.started_unix_s),
    ]
}

/// Formats the progress: a percentage if known.
pub(super) fn done(job: &JobReport) -> String {
    match job.bytes_total {
        _ if job.state == JobState::Done => "100%".to_owned(),
        Some(total) if total > 0 => format!("{}%", (u128::from(job.bytes_done) * 100 / u128::from(total)).min(100)),
        _ => format_size(job.bytes_done),
    }
}

/// Describes the state of a job in a line.
fn said(job: &JobReport) -> String {
    let title = job.title();
    match (job.state, &job.error) {
        (JobState::Running, _) => format!("{title} is running again\n"),
        (JobState::Paused, _) => format!("{title} is paused at {}\n", done(job)),
        (JobState::Cancelling, _) if job.kind.is_of_command() => format!(
            "{title} is cancelling: its command, which is waiting for its input or output or is stopped, has not \
             ended yet\n"
        ),
        (JobState::Done, _) => format!("{title} completed before that\n"),
        (_, Some(fault)) => format!("{title} is {}: {}\n", job.state.name(), fault.message),
        (state, None) => format!("{title} is {}\n", state.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::{JobFault, JobKind};

    #[test]
    fn a_list_tells_how_far_each_job_is_and_why_it_failed() {
        let running = JobReport::sample();
        let fault = JobFault { kind: "full".to_owned(), message: "no room".to_owned() };
        let failed = JobReport {
            id: 4,
            target: None,
            state: JobState::Failed,
            bytes_total: None,
            error: Some(fault),
            ..running.clone()
        };
        let expected = "\
JOB                STATE   DONE     RATE    LEFT           STARTED
3 recompress vm  running    25%  1 KiB/s  51 min  1970-01-01 00:00
4 recompress      failed  1 MiB  1 KiB/s       -  1970-01-01 00:00
job 4: no room
";
        assert_eq!(show(&[running.clone(), failed]), expected);
        let asked = JobReport { asked: Some("pause".to_owned()), ..running };
        assert!(show(&[asked]).contains("  running, pause asked  "));
        let asked = Some("cancel".to_owned());
        let cancelling = JobReport { asked, state: JobState::Cancelling, ..JobReport::sample() };
        assert!(show(&[cancelling]).contains("  cancelling  "));
    }

    #[test]
    fn what_became_of_a_request_is_said() {
        let job = JobReport::sample();
        assert_eq!(said(&job), "job 3 (recompress vm) is running again\n");
        let paused = JobReport { state: JobState::Paused, ..job.clone() };
        assert_eq!(said(&paused), "job 3 (recompress vm) is paused at 25%\n");
        let fault = JobFault::cancelled("cancelled by a command: so far".to_owned());
        let cancelled = JobReport { state: JobState::Cancelled, error: Some(fault), ..job.clone() };
        assert!(said(&cancelled).ends_with(" is cancelled: cancelled by a command: so far\n"));
        let late = JobReport { state: JobState::Done, ..job.clone() };
        assert!(said(&late).contains("before"));
        let waits = JobReport { state: JobState::Cancelling, kind: JobKind::Send, ..job };
        assert!(said(&waits).contains("is cancelling: its command"));
    }
}
