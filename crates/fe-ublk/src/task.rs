//! A request and all that is needed to answer it: at once, after a wait for room, or together with
//! other reads. Called by the threads of queues, of the pool, and of `Held`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use surface::{CHANGES, Error, ErrorKind, Held, Job, Lane, PendingRead, Pool, READS};

use crate::execute::{Disk, Outcome, failure, finish_read};
use crate::queue::Serve;
use crate::request::Work;
use crate::server::Log;
use crate::taken::Taken;
use crate::wire::Descriptor;

/// Largest cached read that is copied by a queue's thread rather than by the pool.
const INLINE_READ_BYTES_MAX: usize = 128 << 10;
/// Requests that came alone in a row until a program is taken for one that sends one at a time.
const LONE_STREAK: u32 = 8;
/// Most failures logged for one device: enough to see the fault, too few to fill a disk.
const FAILURES_TOLD_MAX: u32 = 100;

/// The volume of a device, and how its requests end.
pub struct Target {
    /// The volume.
    pub disk: Disk,
    /// Its name, for messages.
    pub name: String,
    /// Whether it does several reads at a time for one thread.
    pub reads_together: bool,
    /// Writes that wait for room.
    pub held: Arc<Held>,
    /// The device stops: held requests are tried a last time.
    pub is_stopping: AtomicBool,
    /// It waits for the next server: requests that are held, or fail, are left to that.
    pub is_left: AtomicBool,
    /// Sink for failures of the storage.
    pub log: Option<Log>,
    /// Failures logged so far.
    pub told: AtomicU32,
}

impl Target {
    /// Logs a message about the device.
    pub fn tell(&self, text: &str) {
        if let Some(log) = &self.log
            && self.told.fetch_add(1, Ordering::Relaxed) < FAILURES_TOLD_MAX
        {
            log(&format!("ublk: '{}': {text}", self.name));
        }
    }

    /// Logs failures of the storage; other errors are caused by the program.
    fn tell_failure(&self, error: &Error) {
        if matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::Full) {
            self.tell(&error.to_string());
        }
    }
}

/// See the module's text.
pub struct Task {
    target: Arc<Target>,
    taken: Taken,
    work: Work,
}

impl Task {
    fn settle(self, outcome: Outcome) -> Option<Self> {
        match outcome {
            Outcome::Done(answer) => self.taken.answer(answer),
            // For instance because this server does not wait for an image any more.
            Outcome::Failed(..) if self.target.is_left.load(Ordering::Acquire) => self.taken.leave(),
            Outcome::Failed(answer, error) => {
                self.target.tell_failure(&error);
                self.taken.answer(answer);
            }
            Outcome::Left => return Some(self),
            Outcome::Full(most, _) => self.hold(most),
        }
        None
    }

    /// Does one step; `Some`: the rest of it.
    fn step(mut self) -> Option<Self> {
        let outcome = self.target.disk.step(&mut self.work, self.taken.room());
        self.settle(outcome)
    }

    /// Holds it until there is room; its thread goes on with others.
    fn hold(self, most: Duration) {
        let target = Arc::clone(&self.target);
        // One order for each device.
        let queue = Arc::as_ptr(&target) as usize;
        target.held.retry(queue, most, self, Self::try_again);
    }

    /// `None`: it is answered, or left.
    fn try_again(mut self, is_last: bool) -> Option<Self> {
        let target = Arc::clone(&self.target);
        let is_last = is_last || target.is_stopping.load(Ordering::Acquire);
        loop {
            match target.disk.step(&mut self.work, self.taken.room()) {
                Outcome::Left => {}
                Outcome::Full(..) if target.is_left.load(Ordering::Acquire) => {
                    // The next server tries again; its program goes on waiting.
                    self.taken.leave();
                    return None;
                }
                Outcome::Full(_, error) if is_last => return self.settle(failure(error)),
                Outcome::Full(..) => return Some(self),
                done => return self.settle(done),
            }
        }
    }
}

impl Job for Task {
    fn class(&self) -> usize {
        if matches!(self.work, Work::Read { .. }) { READS } else { CHANGES }
    }

    fn run(self) -> Option<Self> {
        self.step()
    }

    fn is_joined(&self) -> bool {
        self.target.reads_together && matches!(self.work, Work::Read { .. })
    }

    fn join(self, next: &mut dyn FnMut() -> Option<Self>) {
        let target = Arc::clone(&self.target);
        let mut first = Some(self);
        target.disk.device().read_many(&mut || {
            loop {
                let Task { target, taken, work } = first.take().or_else(&mut *next)?;
                match work {
                    Work::Read { offset, length } => return Some(Box::new(Reading { target, taken, offset, length })),
                    work => drop(Task { target, taken, work }.step()),
                }
            }
        });
    }
}

/// A read that is done together with others, straight into its buffer.
struct Reading {
    target: Arc<Target>,
    taken: Taken,
    offset: u64,
    length: usize,
}

impl PendingRead for Reading {
    fn offset(&self) -> u64 {
        self.offset
    }

    fn buf(&mut self) -> &mut [u8] {
        // A request is no longer than its buffer.
        &mut self.taken.room()[..self.length]
    }

    fn finish(self: Box<Self>, result: surface::Result<()>) {
        let Self { target, taken, offset, length } = *self;
        let outcome = finish_read(length, result);
        // A read is never held, and has one step.
        drop(Task { target, taken, work: Work::Read { offset, length } }.settle(outcome));
    }
}

/// Decides for each request of a queue where it is done.
///
/// Reads of cached data, and writes that need not wait, are done by the queue's thread: no thread
/// switch is saved by anything else. So is everything of a program that has one request under way
/// at a time. All else goes to the pool, and is answered from there, in any order.
pub struct Dispatch {
    target: Arc<Target>,
    pool: Arc<Pool<Task>>,
    lane: Lane,
    streak: u32,
}

impl Dispatch {
    /// For a queue of a device, which has that lane of the pool.
    pub fn new(target: Arc<Target>, pool: Arc<Pool<Task>>, lane: Lane) -> Self {
        Self { target, pool, lane, streak: 0 }
    }
}

impl Serve for Dispatch {
    fn serve(&mut self, request: &Descriptor, mut taken: Taken, is_alone: bool) {
        self.streak = if is_alone { self.streak.saturating_add(1) } else { 0 };
        let (disk, room) = (&self.target.disk, taken.room());
        let work = Work::of(request, room.len());
        if matches!(work, Work::Read { length, .. } if length <= INLINE_READ_BYTES_MAX)
            && let Some(answer) = disk.read_cached(&work, room)
        {
            taken.answer(answer);
            return;
        }
        let is_done_here = self.streak >= LONE_STREAK
            || match work {
                Work::Write { fua, .. } => !fua && !disk.device().write_would_wait(),
                Work::Refused(_) => true,
                _ => false,
            };
        let task = Task { target: Arc::clone(&self.target), taken, work };
        let rest = if is_done_here { task.step() } else { Some(task) };
        if let Some(task) = rest {
            self.pool.submit(self.lane, task);
        }
    }

    fn removed(&mut self) {
        let target = &self.target;
        if !target.is_stopping.load(Ordering::Acquire) && !target.is_left.load(Ordering::Acquire) {
            target.tell("the device was removed by another program than this server: operations there fail");
        }
    }
}

#[cfg(test)]
#[path = "task_tests.rs"]
mod tests;
