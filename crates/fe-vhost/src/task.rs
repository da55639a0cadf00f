//! Requests on their way: done at once, by the pool, or held until there is room. Owns a request
//! until its answer is in the ring. Called by the threads of queues, of the pool, and of `Held`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use surface::{CHANGES, Client, Error, ErrorKind, Held, Job, PendingRead, READS};
use vm_memory::Bytes;

use crate::caller::Caller;
use crate::chain::bytes_of;
use crate::execute::{Answer, Disk, Outcome, finish_read};
use crate::memory::Guest;
use crate::request::{Request, Work};
use crate::ring::Ring;
use crate::server::Log;

/// Longest read that is done together with others. A thread has some dozens of them under way, each
/// with a buffer of this size.
const JOINED_READ_BYTES_MAX: u32 = 256 << 10;
/// Most failures logged for one session: enough to see the fault, too few to fill a disk.
const FAILURES_TOLD_MAX: u32 = 100;

/// Device and client of a session's requests.
pub struct Target {
    /// The device.
    pub disk: Disk,
    /// Its name, for messages.
    pub name: String,
    /// Whether it does several reads at a time for one thread.
    pub reads_together: bool,
    /// The monitor.
    pub caller: Arc<Caller>,
    /// Writes that wait for room.
    pub held: Arc<Held>,
    /// The server ends: held requests are left to the next one.
    pub is_stopping: Arc<AtomicBool>,
    /// A ring is to be drained: held requests are tried a last time.
    pub is_draining: AtomicBool,
    /// Sink for failures of the storage.
    pub log: Option<Log>,
    /// Failures logged so far.
    pub told: AtomicU32,
}

impl Target {
    /// Logs a message about the session.
    pub fn tell(&self, text: &str) {
        if let Some(log) = &self.log
            && self.told.fetch_add(1, Ordering::Relaxed) < FAILURES_TOLD_MAX
        {
            log(&format!("vhost-user: '{}': {text}", self.name));
        }
    }

    /// Logs failures of the storage; other errors are caused by the guest.
    pub fn tell_failure(&self, error: &Error) {
        if matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::Full) {
            self.tell(&error.to_string());
        }
    }
}

/// A request with all that is needed to answer it.
pub struct Task {
    /// Its device and client.
    pub target: Arc<Target>,
    /// The ring that it came from.
    pub ring: Arc<Ring>,
    /// The guest's memory when it came.
    pub memory: Arc<Guest>,
    /// The rest of it.
    pub request: Request,
}

impl Task {
    /// Answers it.
    pub fn answer(self, answer: Answer) {
        // A status outside of guest memory is the guest's loss.
        let is_told = self.memory.write_obj(answer.status.code(), self.request.status).is_ok();
        self.ring.complete(&self.memory, self.request.head, answer.written + u32::from(is_told));
    }

    fn settle(self, outcome: Outcome) -> Option<Self> {
        match outcome {
            Outcome::Done(answer) => self.answer(answer),
            Outcome::Failed(answer, error) => {
                self.target.tell_failure(&error);
                self.answer(answer);
            }
            Outcome::Left => return Some(self),
            Outcome::Full(most, _) => self.hold(most),
        }
        None
    }

    /// Does one step; `Some`: the rest of it.
    pub fn step(mut self) -> Option<Self> {
        if self.target.caller.is_given_up() {
            self.ring.leave();
            return None;
        }
        let outcome = self.target.disk.step(&self.memory, &mut self.request);
        self.settle(outcome)
    }

    /// Holds it until there is room; its thread goes on with others.
    fn hold(self, most: Duration) {
        let target = Arc::clone(&self.target);
        // One order for each session.
        let queue = Arc::as_ptr(&target) as usize;
        target.held.retry(queue, most, self, Self::try_again);
    }

    /// `None`: it is answered, or left.
    fn try_again(mut self, is_last: bool) -> Option<Self> {
        let target = Arc::clone(&self.target);
        let is_gone = target.caller.is_gone();
        if target.caller.is_given_up() || (is_gone && self.ring.is_tracked()) {
            self.ring.leave();
            return None;
        }
        let is_last = is_last || is_gone || target.is_draining.load(Ordering::Acquire);
        loop {
            match target.disk.step(&self.memory, &mut self.request) {
                Outcome::Left => {}
                Outcome::Full(..)
                    if is_last && target.is_stopping.load(Ordering::Acquire) && self.ring.is_tracked() =>
                {
                    // The next server tries again; the guest goes on waiting.
                    self.ring.leave();
                    return None;
                }
                Outcome::Full(_, error) if is_last => {
                    return self.settle(crate::execute::failure(error));
                }
                Outcome::Full(..) => return Some(self),
                done => return self.settle(done),
            }
        }
    }
}

impl Job for Task {
    fn class(&self) -> usize {
        if matches!(self.request.work, Work::Read(_)) { READS } else { CHANGES }
    }

    fn run(self) -> Option<Self> {
        self.step()
    }

    fn is_joined(&self) -> bool {
        let is_short = || (1..=JOINED_READ_BYTES_MAX).contains(&bytes_of(&self.request.data));
        self.target.reads_together && matches!(self.request.work, Work::Read(_)) && is_short()
    }

    fn join(self, next: &mut dyn FnMut() -> Option<Self>) {
        let target = Arc::clone(&self.target);
        let mut first = Some(self);
        target.disk.device().read_many(&mut || {
            loop {
                let task = first.take().or_else(&mut *next)?;
                match task.request.work {
                    Work::Read(offset) if !task.target.caller.is_given_up() => {
                        let data = vec![0; bytes_of(&task.request.data) as usize];
                        return Some(Box::new(Reading { task, offset, data }));
                    }
                    _ => drop(task.step()),
                }
            }
        });
    }
}

/// A read that is done together with others.
struct Reading {
    task: Task,
    offset: u64,
    data: Vec<u8>,
}

impl PendingRead for Reading {
    fn offset(&self) -> u64 {
        self.offset
    }

    fn buf(&mut self) -> &mut [u8] {
        &mut self.data
    }

    fn finish(self: Box<Self>, result: surface::Result<()>) {
        let Self { task, data, .. } = *self;
        let outcome = finish_read(&task.memory, &task.request, &data, result);
        // A read is never held, and has one step.
        drop(task.settle(outcome));
    }
}
