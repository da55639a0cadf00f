//! Tests of the table of jobs.

#![allow(clippy::unwrap_used)]

use std::sync::mpsc;

use super::*;

fn wish(target: &str) -> Begin {
    let target = Some(target.to_owned());
    Begin { kind: JobKind::Recompress, target, background: false, is_clients: false }
}

fn result() -> JobResult {
    JobResult::Recompressed(Box::default())
}

fn states(jobs: &Jobs) -> Vec<(u64, JobState)> {
    jobs.list().into_iter().map(|job| (job.id, job.state)).collect()
}

#[test]
fn a_job_excludes_another_until_it_has_ended() {
    let jobs = Arc::<Jobs>::default();
    let first = jobs.begin(wish("v")).unwrap();
    let refused = jobs.begin(wish("w")).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::InUse);
    assert!(refused.to_string().starts_with("'v' is being recompressed by job 1"), "{refused}");
    first.end(Ok(result()));
    let second = jobs.begin(wish("w")).unwrap();
    assert_eq!(second.id(), 2);
    assert_eq!(states(&jobs), [(1, JobState::Done), (2, JobState::Running)]);
}

/// The next command often comes at once.
#[test]
fn a_job_waits_for_one_that_is_about_to_end() {
    let jobs = Arc::<Jobs>::default();
    let first = jobs.begin(wish("v")).unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| jobs.begin(wish("w")).map(|doing| doing.id()));
        first.end(Ok(result()));
        assert_eq!(second.join().unwrap().unwrap(), 2);
    });
}

#[test]
fn outcomes_stay_with_their_reasons() {
    let jobs = Arc::<Jobs>::default();
    jobs.begin(wish("v")).unwrap().end(Ok(result()));
    jobs.begin(wish("v")).unwrap().end(Err(Stop::Failed(Error::new(ErrorKind::Full, "no room"))));
    jobs.begin(wish("v")).unwrap().end(Err(Stop::Cancelled("interrupted: so far".to_owned())));
    drop(jobs.begin(wish("v")).unwrap());
    let expected = [(1, JobState::Done), (2, JobState::Failed), (3, JobState::Cancelled), (4, JobState::Cancelled)];
    assert_eq!(states(&jobs), expected);
    let faults: Vec<_> = (1..=4).map(|id| jobs.report(id).unwrap().error).collect();
    let error = faults[1].as_ref().unwrap().error();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Full, "no room"));
    assert_eq!(faults[2], Some(JobFault::cancelled("interrupted: so far".to_owned())));
    assert!(faults[0].is_none() && faults[3].is_some());
    assert_eq!(jobs.report(1).unwrap().result, Some(result()));
    assert_eq!(jobs.list()[0].result, None);
    assert!(jobs.list().iter().all(|job| job.ended_unix_s.is_some() && job.seconds_left.is_none()));
}

/// One that began first and ended last would have been forgotten first.
#[test]
fn the_last_that_ended_stay_listed() {
    let jobs = Arc::<Jobs>::default();
    let clients = Begin { is_clients: true, ..wish("v") };
    let long = jobs.begin(clients).unwrap();
    // The rule is not what this is about.
    let mut table = jobs.table.lock();
    table.last_id = 10;
    for id in 11..=10 + ENDED_MAX as u64 {
        let mut job = Job::new(wish("w"));
        job.become_state(JobState::Done);
        table.jobs.insert(id, job);
        table.note_end(id);
    }
    drop(table);
    long.end(Ok(result()));
    let listed: Vec<u64> = jobs.list().into_iter().map(|job| job.id).collect();
    assert_eq!((listed.len(), listed[0], listed[1]), (ENDED_MAX, 1, 12));
    assert_eq!(jobs.report(11).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_watcher_is_told_of_a_change_that_it_has_not_seen() {
    let jobs = Arc::<Jobs>::default();
    let doing = jobs.begin(wish("v")).unwrap();
    let seen = jobs.report(1).unwrap().changes;
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut is = jobs.watch(1, seen, WATCH_MAX).unwrap();
            while !is.state.has_ended() {
                is = jobs.watch(1, is.changes, WATCH_MAX).unwrap();
            }
            is
        });
        doing.begin_phase("testing", 10, Some(100));
        doing.tell(60, Some(100), "words".to_owned());
        doing.end(Ok(result()));
        let is = watcher.join().unwrap();
        assert_eq!((is.phase.as_str(), is.bytes_done, is.bytes_total), ("testing", 60, Some(100)));
        assert_eq!((is.said.as_str(), is.state, is.result), ("words", JobState::Done, Some(result())));
    });
    // It was over before this one looked.
    assert_eq!(jobs.watch(1, seen, WATCH_MAX).unwrap().state, JobState::Done);
}

#[test]
fn what_was_asked_is_shown_until_it_is_done() {
    let jobs = Arc::<Jobs>::default();
    let doing = jobs.begin(wish("v")).unwrap();
    assert_eq!(jobs.pause(1).unwrap().asked.as_deref(), Some("pause"));
    assert_eq!(jobs.resume(1).unwrap().asked, None);
    assert_eq!(jobs.cancel(1, "first").unwrap().asked.as_deref(), Some("cancel"));
    assert_eq!(jobs.cancel(1, "second").unwrap().asked.as_deref(), Some("cancel"));
    // A cancellation is not taken back.
    jobs.resume(1).unwrap();
    jobs.pause(1).unwrap();
    assert_eq!(doing.go_on(), Err("first".to_owned()));
    drop(doing);
    assert_eq!(jobs.report(1).unwrap().error.unwrap().message, "first");
    for refused in [jobs.pause(1), jobs.resume(1), jobs.cancel(1, "late"), jobs.cancel(2, "none")] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NotFound);
    }
}

#[test]
fn the_work_of_a_client_and_a_measurement_cannot_be_paused() {
    let jobs = Arc::<Jobs>::default();
    let _clients = jobs.begin(Begin { is_clients: true, ..wish("v") }).unwrap();
    let _measuring = jobs.begin(Begin { kind: JobKind::Calibrate, ..wish("v") }).unwrap();
    for id in [1, 2] {
        assert_eq!(jobs.pause(id).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(jobs.report(id).unwrap().asked, None);
    }
}

/// Its client may be silent for long.
#[test]
fn the_job_of_a_client_ends_at_once_when_it_is_cancelled() {
    let jobs = Arc::<Jobs>::default();
    let doing = jobs.begin(Begin { is_clients: true, ..wish("v") }).unwrap();
    assert_eq!(jobs.cancel(1, "enough").unwrap().state, JobState::Cancelled);
    assert_eq!(doing.is_cancelled().as_deref(), Some("enough"));
    assert!(jobs.begin(wish("w")).is_ok());
    doing.end(Ok(result()));
    assert_eq!(jobs.report(1).unwrap().error, Some(JobFault::cancelled("enough".to_owned())));
}

#[test]
fn a_stop_ends_running_and_paused_jobs_and_lets_none_begin() {
    let jobs = Arc::<Jobs>::default();
    let (begun, is_begun) = mpsc::channel();
    let work = move |doing: &Doing| -> Work<JobResult> {
        begun.send(()).unwrap();
        loop {
            doing.rest(Duration::from_secs(3600));
            doing.go_on().map_err(Stop::Cancelled)?;
        }
    };
    jobs.run(jobs.begin(wish("v")).unwrap(), work).unwrap();
    is_begun.recv().unwrap();
    jobs.pause(1).unwrap();
    jobs.stop();
    assert_eq!(states(&jobs), [(1, JobState::Cancelled)]);
    assert_eq!(jobs.report(1).unwrap().error.unwrap().message, "the pool's server was stopped");
    assert_eq!(jobs.begin(wish("w")).err().unwrap().kind(), ErrorKind::Io);
}

#[test]
fn rates_are_those_of_work() {
    assert_eq!(rate(0, Duration::from_secs(1)), None);
    assert_eq!(rate(10, Duration::ZERO), None);
    assert_eq!(rate(100, Duration::from_secs(4)), Some(25));
    assert_eq!(rate(1, Duration::from_secs(100)), Some(1));
    let mut job = Job::new(wish("v"));
    (job.works_since, job.worked, job.phase_worked) = (None, Duration::from_secs(12), Duration::from_secs(2));
    (job.phase_bytes, job.bytes_done, job.bytes_total) = (50, 150, Some(1155));
    let report = job.report(1, false);
    assert_eq!((report.bytes_per_second, report.seconds_left, report.seconds), (Some(10), Some(101), 12.0));
    job.become_state(JobState::Done);
    assert_eq!(job.report(1, false).seconds_left, None);
}
