//! The thread of one running ring: takes requests, and decides where each is done. Owns the thread
//! and its receipt of kicks.
//!
//! 1. Requests that an earlier server had taken and not answered are done first, in their order.
//! 2. Up to some dozens of requests are taken at a time. Reads of cached data, and writes that need
//!    not wait, are done here: no thread switch is saved by anything else. The device has accepted
//!    a write before it is answered.
//! 3. A guest that has one request under way at a time gets everything done here.
//! 4. All else goes to the pool, and is answered from there, in any order.
//! 5. When nothing is left the guest is asked for a kick, and the thread sleeps until it comes, or
//!    the ring is to stop. Requests that were taken are answered also after that.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use surface::{Lane, Pool};

use crate::chain::{bytes_of, follow};
use crate::memory::{Guest, Shared};
use crate::request::{Request, Work};
use crate::ring::{Broken, Notifier, Ring};
use crate::task::{Target, Task};

/// Largest cached read that is copied here rather than by the pool.
const INLINE_READ_BYTES_MAX: usize = 128 << 10;
/// Requests that came alone in a row until a guest is taken for one that sends one at a time.
const LONE_STREAK: u32 = 8;
/// Looks at the ring before the thread sleeps, while the queue is busy: some microseconds, less
/// than a kick and the way out of sleep cost both sides.
const LOOKS: u32 = 200;

/// A ring and the thread that takes from it.
pub struct Queue {
    ring: Arc<Ring>,
    stop: Arc<Stop>,
    thread: JoinHandle<()>,
}

struct Stop {
    is_set: AtomicBool,
    wake: OwnedFd,
}

/// The thread's inputs.
pub struct Worker {
    /// Number of the queue.
    pub index: usize,
    /// Device and client of the requests.
    pub target: Arc<Target>,
    /// The guest's memory.
    pub memory: Shared,
    /// Threads for requests that wait.
    pub pool: Arc<Pool<Task>>,
    /// The session's place there.
    pub lane: Lane,
    /// Readable when requests have come.
    pub kick: OwnedFd,
    /// Written to when the ring is broken.
    pub error: Option<Notifier>,
}

impl Queue {
    /// Starts the thread on a ring. `left`: heads that an earlier server had under way.
    ///
    /// # Errors
    /// When there are no more descriptors or threads.
    pub fn start(worker: Worker, ring: Ring, left: Vec<u16>) -> std::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let stop = Arc::new(Stop { is_set: AtomicBool::new(false), wake });
        let ring = Arc::new(ring);
        let name = format!("vhost-queue-{}", worker.index);
        let running =
            Running { worker, ring: Arc::clone(&ring), stop: Arc::clone(&stop), scratch: Vec::new(), streak: 0 };
        let thread = std::thread::Builder::new().name(name).spawn(move || running.run(left))?;
        Ok(Self { ring, stop, thread })
    }

    /// The ring.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Takes nothing more; returns when all that was taken is answered or left, with the first
    /// entry of the available ring that was not taken.
    pub fn stop(self) -> u16 {
        self.stop.is_set.store(true, Ordering::Release);
        // A counter that is full would wake as well; no other error is possible.
        let _ = rustix::io::write(&self.stop.wake, &1_u64.to_ne_bytes());
        // If it panicked, that was reported; it takes nothing more either way.
        drop(self.thread.join());
        self.ring.drain()
    }
}

struct Running {
    worker: Worker,
    ring: Arc<Ring>,
    stop: Arc<Stop>,
    /// For reads that are answered here.
    scratch: Vec<u8>,
    streak: u32,
}

impl Running {
    fn run(mut self, left: Vec<u16>) {
        let memory = self.worker.memory.current();
        left.into_iter().for_each(|head| self.begin(&memory, head, false));
        // The dead server may have answered without a signal.
        self.ring.nudge();
        if let Err(broken) = self.work() {
            self.worker.target.tell(&format!(
                "queue {} is stopped until the guest resets its disk, because it breaks the rules of virtio: {broken}",
                self.worker.index
            ));
            if let Some(error) = &self.worker.error {
                error.notify();
            }
        }
    }

    fn work(&mut self) -> Result<(), Broken> {
        let mut heads = Vec::new();
        while !self.stop.is_set.load(Ordering::Acquire) {
            let memory = self.worker.memory.current();
            let taken = self.ring.take(&memory, &mut heads);
            self.streak = match heads.len() {
                0 => self.streak,
                1 if self.ring.under_way() == 1 => self.streak.saturating_add(1),
                _ => 0,
            };
            let is_busy = !heads.is_empty();
            for head in heads.drain(..) {
                self.begin(&memory, head, self.streak >= LONE_STREAK);
            }
            taken?;
            let has_come = || {
                (0..LOOKS).any(|_| {
                    std::hint::spin_loop();
                    self.ring.has_more(&memory)
                })
            };
            if (is_busy && has_come()) || self.ring.await_kick(&memory)? {
                continue;
            }
            self.sleep();
        }
        Ok(())
    }

    fn sleep(&self) {
        let mut waiting = [PollFd::new(&self.worker.kick, PollFlags::IN), PollFd::new(&self.stop.wake, PollFlags::IN)];
        // If it fails, the ring is looked at again.
        let _ = poll(&mut waiting, None);
        if waiting[0].revents().contains(PollFlags::IN) {
            // How often it was kicked is of no interest, and the ring is looked at again anyway.
            let _ = rustix::io::read(&self.worker.kick, &mut [0; 8]);
        }
    }

    /// Does a request, or hands it to the pool. `is_alone`: the guest waits for nothing else.
    fn begin(&mut self, memory: &Arc<Guest>, head: u16, is_alone: bool) {
        let ring = &self.ring;
        let parsed = follow(memory, ring.descriptors(), ring.size(), head);
        let request = match parsed.and_then(|chain| Request::parse(memory, head, chain)) {
            Ok(request) => request,
            Err(broken) => {
                ring.break_it(broken);
                ring.leave();
                return;
            }
        };
        let target = Arc::clone(&self.worker.target);
        let task = Task { target, ring: Arc::clone(ring), memory: Arc::clone(memory), request };
        let Some(task) = self.read_cached(task) else { return };
        let disk = &task.target.disk;
        let is_done_here = is_alone
            || match task.request.work {
                Work::Write(_) => !disk.is_write_through() && !disk.device().write_would_wait(),
                Work::Identify | Work::Refused(_) => true,
                _ => false,
            };
        let rest = if is_done_here { task.step() } else { Some(task) };
        if let Some(task) = rest {
            self.worker.pool.submit(self.worker.lane, task);
        }
    }

    /// Answers a read of cached data; `Some`: the request, if it is none.
    fn read_cached(&mut self, task: Task) -> Option<Task> {
        let length = bytes_of(&task.request.data) as usize;
        if !matches!(task.request.work, Work::Read(_)) || length > INLINE_READ_BYTES_MAX {
            return Some(task);
        }
        if self.scratch.len() < length {
            self.scratch.resize(length, 0);
        }
        match task.target.disk.read_cached(&task.memory, &task.request, &mut self.scratch[..length]) {
            Ok(Some(answer)) => task.answer(answer),
            // A failure repeats in the pool, which reports it.
            Ok(None) | Err(_) => return Some(task),
        }
        None
    }
}
