//! Keeps requests that wait for a disk from delaying those that do not. Owns the threads that wait.
//!
//! The threads that receive requests from the kernel must be few: with 16 instead of 4, each
//! request wakes another one, and small requests at depth 32 cost twice as much (measured on 2
//! cores). But a few threads are soon all blocked in a flush. So a request that may wait runs on
//! its receiving thread only if no other request of its lane is blocking a receiver, which saves
//! the hand-over for a single writer that syncs after each write; otherwise it is queued for the
//! lane's own threads. Reads have a separate lane, so they do not wait for flushes or a full write
//! buffer, as long as the queue of changes has room: the kernel delivers requests in its own order,
//! so requests beyond the queue's limit run on their receiving threads, and when all of them are
//! busy with that, everything that follows waits.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use fuse::{become_io_flusher, before_wait};
use parking_lot::{Condvar, Mutex};

/// Most requests queued in a lane: as many as the kernel sends without a waiting caller for each.
/// Beyond that, the receiving thread does the work, and so the kernel waits.
const QUEUE_MAX: usize = 256;

/// Most bytes of queued writes (they hold their data): some tens of the largest requests.
const QUEUE_BYTES_MAX: usize = 32 << 20;

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    work: VecDeque<(usize, Work)>,
    bytes: usize,
    is_closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Requests of one kind that may wait.
pub(crate) struct Lane {
    shared: Arc<Shared>,
    /// Whether a receiving thread is waiting in this lane, or none may.
    is_occupied: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Lane {
    /// A lane with that many threads of its own, at least one. `may_borrow`: a receiving thread may
    /// wait in it; there must be another one that never does.
    pub(crate) fn new(name: &str, threads: usize, may_borrow: bool) -> io::Result<Self> {
        let lane = Self {
            shared: Arc::new(Shared::default()),
            is_occupied: AtomicBool::new(!may_borrow),
            threads: Mutex::new(Vec::new()),
        };
        for number in 0..threads.max(1) {
            let shared = lane.shared.clone();
            let thread = thread::Builder::new().name(format!("{name}-{number}")).spawn(move || {
                become_io_flusher();
                shared.work();
            });
            match thread {
                Ok(thread) => lane.threads.lock().push(thread),
                Err(error) => {
                    lane.close();
                    return Err(error);
                }
            }
        }
        Ok(lane)
    }

    /// Runs `work`, which holds `bytes` of data, here or on one of the lane's threads.
    pub(crate) fn run(&self, bytes: usize, work: impl FnOnce() + Send + 'static) {
        if !self.is_occupied.swap(true, Ordering::Acquire) {
            before_wait();
            work();
            self.is_occupied.store(false, Ordering::Release);
            return;
        }
        let mut queue = self.shared.queue.lock();
        if queue.is_closed || queue.work.len() >= QUEUE_MAX || queue.bytes.saturating_add(bytes) > QUEUE_BYTES_MAX {
            drop(queue);
            before_wait();
            return work();
        }
        queue.bytes += bytes;
        queue.work.push_back((bytes, Box::new(work)));
        drop(queue);
        self.shared.changed.notify_one();
    }

    /// Does the queued requests, then ends the threads.
    pub(crate) fn close(&self) {
        self.shared.queue.lock().is_closed = true;
        self.shared.changed.notify_all();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.join().is_err() {
                log::error!("a thread of the FUSE front end panicked: requests may remain unanswered");
            }
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some((bytes, work)) = queue.work.pop_front() {
                queue.bytes -= bytes;
                drop(queue);
                work();
                queue = self.queue.lock();
            } else if queue.is_closed {
                return;
            } else {
                self.changed.wait(&mut queue);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Occupies the lane's inline place until the sender is dropped.
    fn occupy(lane: &Arc<Lane>) -> (mpsc::Sender<()>, JoinHandle<()>) {
        let (release, wait) = mpsc::channel::<()>();
        let (started, has_started) = mpsc::channel();
        let lane = lane.clone();
        let thread = thread::spawn(move || {
            lane.run(0, move || {
                started.send(()).unwrap();
                let _ = wait.recv();
            });
        });
        has_started.recv().unwrap();
        (release, thread)
    }

    #[test]
    fn a_lone_request_is_done_by_its_own_thread() {
        let lane = Lane::new("t", 1, true).unwrap();
        let (sender, receiver) = mpsc::channel();
        lane.run(0, move || sender.send(thread::current().id()).unwrap());
        assert_eq!(receiver.recv().unwrap(), thread::current().id());
    }

    #[test]
    fn the_second_request_does_not_wait_for_the_first() {
        let lane = Arc::new(Lane::new("t", 1, true).unwrap());
        let (release, thread) = occupy(&lane);
        let (sender, receiver) = mpsc::channel();
        lane.run(0, move || sender.send(thread::current().id()).unwrap());
        assert_ne!(receiver.recv().unwrap(), thread::current().id());
        drop(release);
        thread.join().unwrap();
    }

    #[test]
    fn a_lane_that_may_not_borrow_does_not() {
        let lane = Lane::new("t", 1, false).unwrap();
        let (sender, receiver) = mpsc::channel();
        lane.run(0, move || sender.send(thread::current().id()).unwrap());
        assert_ne!(receiver.recv().unwrap(), thread::current().id());
    }

    #[test]
    fn what_is_too_much_for_the_queue_is_done_by_its_own_thread() {
        let lane = Arc::new(Lane::new("t", 1, true).unwrap());
        let (release, thread) = occupy(&lane);
        // The lane's only thread waits too.
        let (free, wait) = mpsc::channel::<()>();
        let (started, has_started) = mpsc::channel();
        lane.run(0, move || {
            started.send(()).unwrap();
            let _ = wait.recv();
        });
        has_started.recv().unwrap();

        let (sender, receiver) = mpsc::channel();
        let large = sender.clone();
        lane.run(QUEUE_BYTES_MAX + 1, move || large.send(0).unwrap());
        assert_eq!(receiver.try_recv(), Ok(0), "too many bytes");
        for number in 1..=QUEUE_MAX + 1 {
            let sender = sender.clone();
            lane.run(0, move || sender.send(number).unwrap());
        }
        assert_eq!(receiver.try_recv(), Ok(QUEUE_MAX + 1), "too many requests");
        drop((free, release));
        thread.join().unwrap();
        lane.close();
        assert_eq!(
            receiver.try_iter().collect::<Vec<_>>(),
            (1..=QUEUE_MAX).collect::<Vec<_>>(),
            "closing does the rest"
        );
    }

    #[test]
    fn a_closed_lane_still_does_what_comes() {
        let lane = Arc::new(Lane::new("t", 2, true).unwrap());
        let (release, thread) = occupy(&lane);
        lane.close();
        let (sender, receiver) = mpsc::channel();
        lane.run(0, move || sender.send(()).unwrap());
        assert_eq!(receiver.try_recv(), Ok(()));
        drop(release);
        thread.join().unwrap();
    }
}
