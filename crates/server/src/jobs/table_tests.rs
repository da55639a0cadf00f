//! Tests of the table of jobs.

#![allow(clippy::unwrap_used)]

use std::sync::mpsc;

use super::*;

fn wish(target: &str) -> Begin {
    let target = Some(target.to_owned());
    let (kind, worker) = (JobKind::Recompress, Worker::Pool);
    Begin { kind, target, volume: None, path: None, background: false, worker }
}

fn of(worker: Worker) -> Begin {
    Begin { worker, ..wish("v") }
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

/// The first to end removed the mark `incomplete` of the other, which was killed afterwards.
#[test]
fn an_import_excludes_another_into_the_same_object() {
    let jobs = Arc::<Jobs>::default();
    let import = |target: &str, volume: Option<u64>| Begin {
        kind: JobKind::Import,
        worker: Worker::Client,
        volume: volume.map(DeviceId),
        ..wish(target)
    };
    // The share is created after its import is registered.
    let first = jobs.begin(import("new", None)).unwrap();
    let other = jobs.begin(import("other", Some(7))).unwrap();
    let refused = jobs.begin(import("new", Some(9))).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::InUse);
    assert!(refused.to_string().starts_with("'new' is being imported by job 1"), "{refused}");
    assert!(jobs.begin(import("renamed", Some(7))).is_err(), "the same share under another name");
    first.end(Ok(result()));
    drop(jobs.begin(import("new", Some(9))).unwrap());
    drop(other);
}

/// The next command often follows at once.
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

/// It was listed as cancelled, because "its command has ended".
#[test]
fn a_panic_ends_a_job_of_any_kind_as_failed() {
    let jobs = Arc::<Jobs>::default();
    for (number, kind) in (1..).zip(JobKind::ALL) {
        let begin = Begin { kind, ..wish("v") };
        if kind.is_of_command() {
            let doing = jobs.begin(Begin { worker: Worker::Client, ..begin }).unwrap();
            let client = std::thread::spawn(move || {
                let _doing = doing;
                panic!("on purpose");
            });
            client.join().unwrap_err();
        } else {
            jobs.run(jobs.begin(begin).unwrap(), |_| panic!("on purpose: {}", 7)).unwrap();
        }
        let mut report = jobs.report(number).unwrap();
        while !report.state.has_ended() {
            report = jobs.watch(number, report.changes, WATCH_MAX).unwrap();
        }
        let fault = report.error.unwrap();
        assert_eq!((report.state, fault.kind.as_str()), (JobState::Failed, "io"), "{kind:?}: {}", fault.message);
        let is_told = kind.is_of_command() || fault.message.contains("on purpose: 7");
        assert!(is_told && fault.message.contains("internal error"), "{kind:?}: {}", fault.message);
    }
    // The next one is not excluded, and the server can stop.
    drop(jobs.begin(wish("v")).unwrap());
    jobs.stop();
}

/// The job that began first and ended last must not be dropped first.
#[test]
fn the_last_that_ended_stay_listed() {
    let jobs = Arc::<Jobs>::default();
    let long = jobs.begin(of(Worker::Client)).unwrap();
    // The exclusion rules are not under test.
    let mut table = jobs.table.lock();
    table.numbers.last = 10;
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
    // It ended before the watch began.
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
    // A cancellation cannot be undone.
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
    let _clients = jobs.begin(of(Worker::Client)).unwrap();
    let _measuring = jobs.begin(Begin { kind: JobKind::Calibrate, ..wish("v") }).unwrap();
    for id in [1, 2] {
        assert_eq!(jobs.pause(id).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(jobs.report(id).unwrap().asked, None);
    }
}

/// It may be past the last point at which it could be ended.
#[test]
fn a_cancellation_is_a_wish_until_the_job_has_ended() {
    let jobs = Arc::<Jobs>::default();
    let ended = |end: fn(Doing)| {
        // A kind that excludes none.
        let doing = jobs.begin(Begin { kind: JobKind::Send, ..of(Worker::Client) }).unwrap();
        let id = doing.id();
        let asked = jobs.cancel(id, "enough").unwrap();
        assert_eq!((asked.state, asked.asked.as_deref()), (JobState::Cancelling, Some("cancel")));
        assert_eq!((asked.ended_unix_s, asked.error), (None, None));
        assert_eq!(doing.is_cancelled().as_deref(), Some("enough"));
        end(doing);
        jobs.report(id).unwrap()
    };
    let done = ended(|doing| doing.end(Ok(result())));
    assert_eq!((done.state, done.error, done.result), (JobState::Done, None, Some(result())));
    let failed = ended(|doing| doing.end(Err(Stop::Failed(Error::new(ErrorKind::Full, "no room")))));
    assert_eq!((failed.state, failed.error.unwrap().message.as_str()), (JobState::Failed, "no room"));
    let cancelled = ended(|doing| doing.end(Err(Stop::Cancelled("enough: so far".to_owned()))));
    assert_eq!((cancelled.state, cancelled.error.unwrap().message.as_str()), (JobState::Cancelled, "enough: so far"));
    let gone = ended(drop);
    assert_eq!((gone.state, gone.error), (JobState::Cancelled, Some(JobFault::cancelled("enough".to_owned()))));
}

#[test]
fn names_are_followed_while_a_job_is_under_way() {
    let jobs = Arc::<Jobs>::default();
    let (volume, path) = (Some(DeviceId(3)), Some("a/b".to_owned()));
    let doing = jobs.begin(Begin { volume, path, target: Some("v/a/b".to_owned()), ..wish("v") }).unwrap();
    let target = || jobs.report(1).unwrap().target.unwrap();
    jobs.follow_names(|id| (id == DeviceId(4)).then(|| "w".to_owned()));
    assert_eq!(target(), "v/a/b");
    jobs.follow_names(|id| (id == DeviceId(3)).then(|| "w".to_owned()));
    assert_eq!(target(), "w/a/b");
    doing.end(Ok(result()));
    jobs.follow_names(|_| Some("x".to_owned()));
    assert_eq!(target(), "w/a/b", "of a job that has ended");
}

/// Lists include all of them.
#[test]
fn what_a_client_says_of_its_job_is_bounded() {
    let jobs = Arc::<Jobs>::default();
    let refused = jobs.begin(wish(&"v".repeat(TARGET_BYTES_MAX + 1))).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("at most 4352 bytes"), "{refused}");
    assert!(jobs.list().is_empty());
    let doing = jobs.begin(wish(&"v".repeat(TARGET_BYTES_MAX))).unwrap();
    doing.end_with(JobFault { kind: "k".repeat(1 << 20), message: "\u{e4}".repeat(1 << 20) });
    let fault = jobs.report(1).unwrap().error.unwrap();
    assert!(fault.kind.len() < 20 && fault.message.len() < 5000 && fault.message.ends_with("\u{e4}..."));
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

/// A stopping server unmounts the shares after this: until then a restore needs the mount of its
/// share, to remove what it has staged.
#[test]
fn the_end_of_one_kind_of_job_is_awaited() {
    let jobs = Arc::<Jobs>::default();
    let _other = jobs.begin(wish("v")).unwrap();
    assert!(jobs.await_end_of(JobKind::Restore, Duration::from_secs(3600)), "there is none");
    let doing = jobs.begin(Begin { kind: JobKind::Restore, ..wish("home") }).unwrap();
    assert!(!jobs.await_end_of(JobKind::Restore, Duration::ZERO), "it is under way");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| jobs.await_end_of(JobKind::Restore, Duration::from_secs(3600)));
        doing.end(Err(Stop::Cancelled("stopped".to_owned())));
        assert!(waiter.join().unwrap());
    });
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
