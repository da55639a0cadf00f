//! The table of jobs: those under way, and the last that ended. Owns their numbers, their states,
//! their pending requests, and their threads.
//!
//! One lock is enough: it is taken once per slice, which takes milliseconds. One condition
//! variable, [`Jobs::changed`], signals all changes; each waiter then checks its own job.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use surface::{DeviceId, Error, ErrorKind, Result};

use super::numbers::Numbers;
use super::panics::{or_panicked, panicked};
use super::rule;
use host::unix_s;
use report::{JobFault, JobKind, JobReport, JobResult, JobState};

/// Maximum number of jobs under way: each has a thread or a connection.
const UNDER_WAY_MAX: usize = 64;
/// Ended jobs that stay listed. The result of a scrub with a thousand damages takes some 300 KB, so
/// that this bounds the table to 10 MB.
pub const ENDED_MAX: usize = 32;
/// Maximum length of a job's target: a path in a share, with the share's name. A client can send
/// any, and lists include all of them.
const TARGET_BYTES_MAX: usize = 4096 + 256;
/// Time for a job that was just cancelled to end before one that it excludes is refused: an
/// interrupted command is often followed by the next one at once.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// Maximum wait of a single request: a stopping server waits for running requests.
const WATCH_MAX: Duration = Duration::from_secs(2);

/// Reason why a job ends early.
#[derive(Debug)]
pub enum Stop {
    /// It was cancelled, with a message for its user.
    Cancelled(String),
    /// It met an error.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Outcome of a piece of work.
pub type Work<T> = std::result::Result<T, Stop>;

/// A request to a job that is still pending.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Asked {
    Nothing,
    Pause,
    /// With the reason.
    Cancel(String),
}

/// Place of a job's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worker {
    /// In a thread of the pool's process.
    Pool,
    /// In a client, which reports the progress.
    Client,
}

/// A job that is about to begin.
#[derive(Debug, Clone)]
pub struct Begin {
    /// Kind of the job.
    pub kind: JobKind,
    /// Name of its target, unless that is the pool.
    pub target: Option<String>,
    /// Its target volume, under any name.
    pub volume: Option<DeviceId>,
    /// Path in that volume, if the target is a part of a share.
    pub path: Option<String>,
    /// It continues without the command that started it.
    pub background: bool,
    /// Where its work is done.
    pub worker: Worker,
}

struct Job {
    begin: Begin,
    state: JobState,
    changes: u64,
    asked: Asked,
    phase: String,
    said: String,
    bytes_done: u64,
    bytes_total: Option<u64>,
    /// Progress at the beginning of the phase, and the job's working time until then: rates are per
    /// phase.
    phase_bytes: u64,
    phase_worked: Duration,
    /// Working time up to the last pause, and the beginning of the current period.
    worked: Duration,
    works_since: Option<Instant>,
    started_unix_s: u64,
    ended_unix_s: Option<u64>,
    fault: Option<JobFault>,
    result: Option<JobResult>,
}

impl Job {
    fn new(begin: Begin) -> Self {
        Self {
            begin,
            state: JobState::Running,
            changes: 0,
            asked: Asked::Nothing,
            phase: String::new(),
            said: String::new(),
            bytes_done: 0,
            bytes_total: None,
            phase_bytes: 0,
            phase_worked: Duration::ZERO,
            worked: Duration::ZERO,
            works_since: Some(Instant::now()),
            started_unix_s: unix_s(),
            ended_unix_s: None,
            fault: None,
            result: None,
        }
    }

    fn worked(&self) -> Duration {
        self.worked + self.works_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn become_state(&mut self, state: JobState) {
        let works = self.works_since.is_some();
        self.worked = self.worked();
        let goes_on = state == JobState::Running || works && state == JobState::Cancelling;
        self.works_since = goes_on.then(Instant::now);
        self.ended_unix_s = state.has_ended().then(unix_s);
        self.state = state;
        self.changes += 1;
    }

    fn excludes(&self, wanted: &Begin) -> bool {
        let own = &self.begin;
        let is_of_object = match (own.volume, wanted.volume) {
            (Some(own), Some(wanted)) => own == wanted,
            // One of them is about to create it.
            _ => own.target == wanted.target,
        };
        let excludes =
            rule::excludes(own.kind, wanted.kind) || is_of_object && rule::excludes_in_object(own.kind, wanted.kind);
        excludes && !self.state.has_ended()
    }

    /// The first reason wins.
    fn cancel(&mut self, why: &str) {
        if !matches!(self.asked, Asked::Cancel(_)) {
            self.asked = Asked::Cancel(why.to_owned());
            self.become_state(JobState::Cancelling);
        }
    }

    /// Returns the reason of its cancellation, if it was cancelled.
    fn is_cancelled(&self) -> Option<&str> {
        match &self.asked {
            Asked::Cancel(why) => Some(why),
            Asked::Nothing | Asked::Pause => None,
        }
    }

    fn end(&mut self, state: JobState, fault: Option<JobFault>, result: Option<JobResult>) {
        (self.fault, self.result) = (fault.map(JobFault::bounded), result);
        self.become_state(state);
    }

    /// Updates the name of its volume.
    fn call_volume(&mut self, name: &str) {
        let Some(target) = &mut self.begin.target else { return };
        let path = self.begin.path.as_ref().map_or_else(String::new, |path| format!("/{path}"));
        *target = format!("{name}{path}");
    }

    fn report(&self, id: u64, with_result: bool) -> JobReport {
        let worked = self.worked();
        let rate = rate(self.bytes_done.saturating_sub(self.phase_bytes), worked.saturating_sub(self.phase_worked));
        let left = self.bytes_total.filter(|_| !self.state.has_ended()).zip(rate);
        JobReport {
            id,
            kind: self.begin.kind,
            target: self.begin.target.clone(),
            path: self.begin.path.clone(),
            state: self.state,
            changes: self.changes,
            phase: self.phase.clone(),
            bytes_done: self.bytes_done,
            bytes_total: self.bytes_total,
            bytes_per_second: rate,
            seconds_left: left.map(|(total, rate)| total.saturating_sub(self.bytes_done).div_ceil(rate)),
            started_unix_s: self.started_unix_s,
            ended_unix_s: self.ended_unix_s,
            seconds: worked.as_secs_f64(),
            background: self.begin.background,
            said: self.said.clone(),
            asked: match self.asked {
                Asked::Pause if self.state == JobState::Running => Some("pause".to_owned()),
                Asked::Cancel(_) if !self.state.has_ended() => Some("cancel".to_owned()),
                _ => None,
            },
            error: self.fault.clone(),
            result: self.result.as_ref().filter(|_| with_result).cloned(),
        }
    }
}

/// Returns bytes per second, at least one, once there is any progress.
fn rate(bytes: u64, worked: Duration) -> Option<u64> {
    let seconds = worked.as_secs_f64();
    (bytes > 0 && seconds > 0.0).then(|| ((bytes as f64 / seconds) as u64).max(1))
}

#[derive(Default)]
struct Table {
    numbers: Numbers,
    jobs: BTreeMap<u64, Job>,
    /// Ended jobs, in the order of their ends.
    ended: VecDeque<u64>,
    /// Threads of jobs in the pool's process; ended ones are dropped when the next job begins.
    threads: Vec<JoinHandle<()>>,
    is_stopping: bool,
}

impl Table {
    fn under_way(&self) -> impl Iterator<Item = (&u64, &Job)> {
        self.jobs.iter().filter(|(_, job)| !job.state.has_ended())
    }

    fn job(&self, id: u64) -> Result<&Job> {
        self.jobs.get(&id).ok_or_else(|| {
            let text = format!(
                "there is no job {id}: 'shale jobs POOL' lists the jobs under way, and the last {ENDED_MAX} that ended"
            );
            Error::new(ErrorKind::NotFound, text)
        })
    }

    /// Returns a job that accepts requests.
    fn asked(&mut self, id: u64) -> Result<&mut Job> {
        let state = self.job(id)?.state;
        match self.jobs.get_mut(&id) {
            Some(job) if !state.has_ended() => Ok(job),
            _ => {
                let text = format!("job {id} is not under way any more: it is {}", state.name());
                Err(Error::new(ErrorKind::NotFound, text))
            }
        }
    }

    /// Returns whether a job has no pending request.
    fn may_rest(&self, id: u64) -> bool {
        self.jobs.get(&id).is_some_and(|job| job.asked == Asked::Nothing)
    }

    fn note_end(&mut self, id: u64) {
        self.ended.push_back(id);
        while self.ended.len() > ENDED_MAX {
            if let Some(oldest) = self.ended.pop_front() {
                self.jobs.remove(&oldest);
            }
        }
    }
}

/// The jobs of an open pool.
#[derive(Default)]
pub struct Jobs {
    table: Mutex<Table>,
    /// The state of a job changed, or a request to one is pending.
    changed: Condvar,
}

impl Jobs {
    /// Numbers jobs after those of earlier servers of the pool, which the file keeps.
    pub(crate) fn keep_numbers(&self, file: PathBuf) {
        self.table.lock().numbers = Numbers::kept_in(file);
    }

    /// Begins a job, unless another excludes it. The caller does the work.
    ///
    /// # Errors
    /// `InUse`, when one that excludes it does not end within [`END_PATIENCE`], or too many are
    /// under way; `Io`, when the pool is about to be closed; `Invalid` for a target that is too
    /// long.
    pub(crate) fn begin(self: &Arc<Self>, begin: Begin) -> Result<Doing> {
        let bytes = begin.target.as_ref().map_or(0, String::len);
        if bytes > TARGET_BYTES_MAX {
            let text = format!("the target of a job has at most {TARGET_BYTES_MAX} bytes, and this one has {bytes}");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let mut table = self.turn_of(&begin)?;
        if table.under_way().count() >= UNDER_WAY_MAX {
            let text = format!("{UNDER_WAY_MAX} jobs are under way: wait for one of them, or cancel one");
            return Err(Error::new(ErrorKind::InUse, text));
        }
        table.threads.retain(|thread| !thread.is_finished());
        let id = table.numbers.assign();
        table.jobs.insert(id, Job::new(begin));
        Ok(Doing { jobs: Arc::clone(self), id })
    }

    /// Returns the table, once no job under way excludes this one.
    fn turn_of(&self, wanted: &Begin) -> Result<MutexGuard<'_, Table>> {
        let mut table = self.table.lock();
        let give_up = Instant::now() + END_PATIENCE;
        loop {
            if table.is_stopping {
                return Err(Error::new(ErrorKind::Io, "the pool's server is stopping: no job can begin"));
            }
            let excluding = table.under_way().find(|(_, job)| job.excludes(wanted));
            let Some((id, other)) = excluding else { return Ok(table) };
            let refusal = rule::refusal(*id, other.begin.kind, other.begin.target.as_deref());
            if self.changed.wait_until(&mut table, give_up).timed_out() {
                return Err(refusal);
            }
        }
    }

    /// Fails while an import into a volume is under way, other than the job `own`.
    ///
    /// # Errors
    /// `InUse`.
    pub(crate) fn refuse_during_import(&self, volume: DeviceId, name: &str, own: Option<u64>) -> Result<()> {
        let (table, wanted) = (self.table.lock(), rule::import_into(volume, name));
        let mut others = table.under_way().filter(|(id, _)| Some(**id) != own);
        let importing = others.find(|(_, job)| job.excludes(&wanted));
        importing.map_or(Ok(()), |(id, _)| Err(rule::refusal(*id, wanted.kind, Some(name))))
    }

    /// Runs the work of a job in a thread of the pool's process.
    ///
    /// # Errors
    /// When the thread cannot be started; the job has then ended.
    pub(crate) fn run(
        self: &Arc<Self>,
        doing: Doing,
        work: impl FnOnce(&Doing) -> Work<JobResult> + Send + 'static,
    ) -> Result<()> {
        let body = move || {
            let outcome = or_panicked(|| work(&doing));
            doing.end(outcome);
        };
        let spawned = std::thread::Builder::new().name("job".to_owned()).spawn(body);
        let thread = spawned.map_err(|error| Error::from_io("cannot start a thread for the job", error))?;
        self.table.lock().threads.push(thread);
        Ok(())
    }

    /// Returns all jobs by number, without their results.
    pub fn list(&self) -> Vec<JobReport> {
        self.table.lock().jobs.iter().map(|(id, job)| job.report(*id, false)).collect()
    }

    /// Returns the jobs that have not ended.
    pub fn under_way(&self) -> Vec<JobReport> {
        self.table.lock().under_way().map(|(id, job)| job.report(*id, false)).collect()
    }

    /// Returns a job with its result.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn report(&self, id: u64) -> Result<JobReport> {
        Ok(self.table.lock().job(id)?.report(id, true))
    }

    /// Waits until a job has changed its state since `seen`, for at most `patience`. Returns its
    /// state.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn watch(&self, id: u64, seen: u64, patience: Duration) -> Result<JobReport> {
        let mut table = self.table.lock();
        let give_up = Instant::now() + patience.min(WATCH_MAX);
        while table.job(id)?.changes == seen {
            if self.changed.wait_until(&mut table, give_up).timed_out() {
                break;
            }
        }
        Ok(table.job(id)?.report(id, true))
    }

    /// Asks a job to pause after its current slice.
    ///
    /// # Errors
    /// `NotFound`; `Unsupported` for one whose work a client does, and for one that measures.
    pub fn pause(&self, id: u64) -> Result<JobReport> {
        self.ask(id, |job| {
            let why = match job.begin.kind {
                _ if job.begin.worker != Worker::Pool => {
                    "its bytes pass through the command that started it, which can be stopped itself (Ctrl-Z)"
                }
                JobKind::Push => "the object store would close its connections; cancel it, and push again later",
                JobKind::Calibrate => "a pause would distort the measurement, which takes only some seconds",
                _ => "",
            };
            if !why.is_empty() {
                let text = format!("job {id} cannot be paused: {why}");
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
            // A cancelled job is about to end.
            if job.asked == Asked::Nothing {
                job.asked = Asked::Pause;
            }
            Ok(())
        })
    }

    /// Resumes a paused job.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn resume(&self, id: u64) -> Result<JobReport> {
        self.ask(id, |job| {
            if job.asked == Asked::Pause {
                job.asked = Asked::Nothing;
            }
            Ok(())
        })
    }

    /// Asks a job to end after its current slice. `why` is the beginning of its outcome, unless it
    /// completes or fails before. A client learns of it at its next request. A job whose slices are
    /// requested by a client ends at once between two of them.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn cancel(&self, id: u64, why: &str) -> Result<JobReport> {
        let mut table = self.table.lock();
        let job = table.asked(id)?;
        job.cancel(why);
        self.changed.notify_all();
        Ok(table.job(id)?.report(id, false))
    }

    /// Updates the volumes' names, which may have changed: `name` returns the current one, if the
    /// volume exists.
    pub(crate) fn follow_names(&self, name: impl Fn(DeviceId) -> Option<String>) {
        let mut table = self.table.lock();
        for job in table.jobs.values_mut().filter(|job| !job.state.has_ended()) {
            if let Some(name) = job.begin.volume.and_then(&name) {
                job.call_volume(&name);
            }
        }
    }

    fn ask(&self, id: u64, ask: impl FnOnce(&mut Job) -> Result<()>) -> Result<JobReport> {
        let mut table = self.table.lock();
        ask(table.asked(id)?)?;
        self.changed.notify_all();
        Ok(table.job(id)?.report(id, false))
    }

    /// Asks all jobs to end, and lets no other begin.
    pub fn ask_to_stop(&self) {
        let mut table = self.table.lock();
        table.is_stopping = true;
        for job in table.jobs.values_mut().filter(|job| !job.state.has_ended()) {
            job.cancel("the pool's server was stopped");
        }
        self.changed.notify_all();
    }

    /// Waits until no job of a kind is under way, for at most `patience`; returns whether none is.
    pub fn await_end_of(&self, kind: JobKind, patience: Duration) -> bool {
        let mut table = self.table.lock();
        let give_up = Instant::now() + patience;
        while table.under_way().any(|(_, job)| job.begin.kind == kind) {
            if self.changed.wait_until(&mut table, give_up).timed_out() {
                return !table.under_way().any(|(_, job)| job.begin.kind == kind);
            }
        }
        true
    }

    /// Asks all jobs to end, and waits until no thread of the pool's process works on one.
    pub fn stop(&self) {
        self.ask_to_stop();
        let threads = {
            let mut table = self.table.lock();
            while table.under_way().any(|(_, job)| job.begin.worker == Worker::Pool) {
                self.changed.wait(&mut table);
            }
            table.numbers.close();
            std::mem::take(&mut table.threads)
        };
        for thread in threads {
            // A panic of the work is the outcome of its job.
            drop(thread.join());
        }
    }
}

/// A job, as its worker holds it. Dropping it without an outcome abandons the job.
pub struct Doing {
    jobs: Arc<Jobs>,
    id: u64,
}

impl Doing {
    /// Returns its number.
    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    /// Begins a phase of the work, part of which may be done already.
    pub(crate) fn begin_phase(&self, phase: &str, bytes_done: u64, bytes_total: Option<u64>) {
        if let Some(job) = self.jobs.table.lock().jobs.get_mut(&self.id) {
            phase.clone_into(&mut job.phase);
            job.said.clear();
            (job.bytes_done, job.bytes_total) = (bytes_done, bytes_total);
            (job.phase_bytes, job.phase_worked) = (bytes_done, job.worked());
        }
    }

    /// Reports the progress of the phase.
    pub(crate) fn tell(&self, bytes_done: u64, bytes_total: Option<u64>, said: String) {
        if let Some(job) = self.jobs.table.lock().jobs.get_mut(&self.id) {
            (job.bytes_done, job.bytes_total, job.said) = (bytes_done, bytes_total, said);
        }
    }

    /// Rests that long, or until the job has a request.
    pub(crate) fn rest(&self, time: Duration) {
        let give_up = Instant::now() + time;
        let mut table = self.jobs.table.lock();
        while table.may_rest(self.id) && !self.jobs.changed.wait_until(&mut table, give_up).timed_out() {}
    }

    /// Waits while the job is paused.
    ///
    /// # Errors
    /// The reason of its cancellation, if it was cancelled.
    pub(crate) fn go_on(&self) -> std::result::Result<(), String> {
        let mut table = self.jobs.table.lock();
        while let Some(job) = table.jobs.get_mut(&self.id) {
            let state = match &job.asked {
                Asked::Cancel(why) => return Err(why.clone()),
                Asked::Pause => JobState::Paused,
                Asked::Nothing => JobState::Running,
            };
            if job.state != state {
                job.become_state(state);
                self.jobs.changed.notify_all();
            }
            if state == JobState::Running {
                break;
            }
            self.jobs.changed.wait(&mut table);
        }
        Ok(())
    }

    /// Returns the reason why the job should end, if it should.
    pub(crate) fn is_cancelled(&self) -> Option<String> {
        match self.jobs.table.lock().jobs.get(&self.id) {
            Some(job) => job.is_cancelled().map(str::to_owned),
            None => Some("it has ended".to_owned()),
        }
    }

    /// Updates the name of the job's volume.
    pub(super) fn call_volume(&self, name: &str) {
        if let Some(job) = self.jobs.table.lock().jobs.get_mut(&self.id) {
            job.call_volume(name);
        }
    }

    /// Ends the job.
    pub(crate) fn end(self, outcome: Work<JobResult>) {
        match outcome {
            Ok(result) => self.end_as(JobState::Done, None, Some(result)),
            Err(Stop::Cancelled(why)) => self.end_as(JobState::Cancelled, Some(JobFault::cancelled(why)), None),
            Err(Stop::Failed(error)) => self.end_with(JobFault::from(&error)),
        }
    }

    /// Ends the job with an error, or as cancelled.
    pub(crate) fn end_with(&self, fault: JobFault) {
        let state = if fault.is_cancellation() { JobState::Cancelled } else { JobState::Failed };
        self.end_as(state, Some(fault), None);
    }

    fn end_as(&self, state: JobState, fault: Option<JobFault>, result: Option<JobResult>) {
        let mut table = self.jobs.table.lock();
        let Some(job) = table.jobs.get_mut(&self.id).filter(|job| !job.state.has_ended()) else { return };
        job.end(state, fault, result);
        table.note_end(self.id);
        self.jobs.changed.notify_all();
    }
}

impl Drop for Doing {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return self.end_with(JobFault::from(&panicked("in the thread of its client")));
        }
        let why = self.is_cancelled().unwrap_or_else(|| "its command has ended".to_owned());
        self.end_as(JobState::Cancelled, Some(JobFault::cancelled(why)), None);
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
