//! Keeps requests that wait for a disk from delaying those that do not. Owns the decision on which
//! thread such a request is carried out. The queue and its threads are those of [`surface::Pool`].
//!
//! # Which thread
//!
//! The threads that receive requests from the kernel must be few: with 16 instead of 4, each
//! request wakes another one, and small requests at depth 32 cost twice as much (measured on 2
//! cores). But a few threads are soon all blocked in a flush. So a request that may wait is passed
//! to the lane of its kind:
//!
//! 1. It runs on its receiving thread if no other request of the lane has a receiving thread, and
//!    another one is left that never waits. This saves the hand-over for a single writer that syncs
//!    after each write.
//! 2. Otherwise it is queued for the lane's own threads. The thread of a ring's queue always does
//!    that: no other thread can take requests from that ring.
//! 3. If the queue has reached its limit, the request runs on its receiving thread, and so the
//!    kernel waits: when all receiving threads are busy with that, everything that follows waits.
//!
//! Each kind has a lane, so reads do not wait for flushes or a full write buffer.
//!
//! # Why not more readers
//!
//! A receiving thread that is about to wait could start another one instead. But each has a buffer
//! for the largest request (1 MiB), where a queued request takes some hundred bytes, so the limit
//! would be lower; and rings need lanes in any case.
//!
//! Requests that rarely wait have no lane: names that are not in memory are read on the receiving
//! thread, because handing over each look-up would cost all of them.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use surface::{Job, Pool};

use crate::io_flusher::become_io_flusher;

/// Most requests queued in a lane: as many as the kernel sends without a waiting caller for each.
const QUEUE_MAX: usize = 256;

/// Most bytes of queued writes (they hold their data): some tens of the largest requests.
const QUEUE_BYTES_MAX: usize = 32 << 20;

thread_local! {
    /// How many threads receive requests of this thread's connection; 0: this one does not, or it
    /// may not wait.
    static RECEIVERS: Cell<usize> = const { Cell::new(0) };
}

/// Says that the calling thread is one of `count` that receive requests, and may wait while another
/// one does not.
pub(crate) fn receive_with(count: usize) {
    RECEIVERS.set(count);
}

/// A lane.
#[derive(Debug, Clone, Copy)]
pub struct LaneOptions {
    /// Most requests that wait at once on threads of the lane, at least 1.
    pub threads: usize,
    /// Whether a request may wait on its receiving thread.
    pub may_borrow: bool,
}

/// The lanes of a mount, one for each kind of request that may wait.
pub struct Lanes {
    pool: Pool<Work>,
    /// All lanes of the mount are classes of one lane of the pool.
    place: surface::Lane,
    lanes: Vec<Lane>,
    /// Receiving threads that wait.
    borrowed: AtomicUsize,
    queued_bytes: Arc<AtomicUsize>,
}

struct Lane {
    /// Whether a receiving thread waits in this lane, or none may.
    is_occupied: AtomicBool,
}

/// A queued request.
struct Work {
    lane: usize,
    bytes: usize,
    queued_bytes: Arc<AtomicUsize>,
    run: Box<dyn FnOnce() + Send>,
}

impl Job for Work {
    fn class(&self) -> usize {
        self.lane
    }

    fn run(self) -> Option<Self> {
        self.queued_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        (self.run)();
        None
    }

    fn begin_thread() {
        become_io_flusher();
    }
}

impl Lanes {
    /// Creates lanes, which are identified by their index in `lanes`. Their threads are named
    /// `NAME-work-N`, and started when they are needed.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn new(name: &str, lanes: &[LaneOptions]) -> io::Result<Self> {
        let limits: Vec<usize> = lanes.iter().map(|lane| lane.threads.max(1)).collect();
        let pool = Pool::with_limits(name, &limits, limits.iter().sum())?;
        let lane = |options: &LaneOptions| Lane { is_occupied: AtomicBool::new(!options.may_borrow) };
        Ok(Self {
            place: pool.open(),
            pool,
            lanes: lanes.iter().map(lane).collect(),
            borrowed: AtomicUsize::new(0),
            queued_bytes: Arc::default(),
        })
    }

    /// Runs `work`, which holds `bytes` of data, here or on a thread of the lane.
    pub fn run(&self, lane: usize, bytes: usize, work: impl FnOnce() + Send + 'static) {
        if let Some(_borrowed) = self.borrow(lane) {
            return work();
        }
        let queued = self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let work = Work { lane, bytes, queued_bytes: Arc::clone(&self.queued_bytes), run: Box::new(work) };
        let queue_max = if bytes > 0 && queued.saturating_add(bytes) > QUEUE_BYTES_MAX { 0 } else { QUEUE_MAX };
        if let Err(work) = self.pool.offer(self.place, work, queue_max) {
            work.run();
        }
    }

    /// Borrows the calling thread for a lane, if it may wait.
    fn borrow(&self, lane: usize) -> Option<Borrowed<'_>> {
        let waiting_max = RECEIVERS.get().saturating_sub(1);
        if waiting_max == 0 || self.lanes[lane].is_occupied.swap(true, Ordering::Acquire) {
            return None;
        }
        let borrowed = Borrowed { lanes: self, lane };
        (self.borrowed.fetch_add(1, Ordering::Relaxed) < waiting_max).then_some(borrowed)
    }

    /// Does the queued requests, then ends the threads. Requests that come later are done by their
    /// own threads.
    pub fn close(&self) {
        self.pool.stop();
    }
}

/// A receiving thread that waits in a lane.
struct Borrowed<'a> {
    lanes: &'a Lanes,
    lane: usize,
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        self.lanes.borrowed.fetch_sub(1, Ordering::Relaxed);
        self.lanes.lanes[self.lane].is_occupied.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::{self, JoinHandle};

    use super::*;

    /// One lane, for requests of the calling thread and a second one.
    fn lanes(threads: usize, may_borrow: bool) -> Arc<Lanes> {
        receive_with(2);
        Arc::new(Lanes::new("t", &[LaneOptions { threads, may_borrow }]).unwrap())
    }

    /// Occupies the lane's inline place until the sender is dropped.
    fn occupy(lane: &Arc<Lanes>) -> (mpsc::Sender<()>, JoinHandle<()>) {
        let (release, wait) = mpsc::channel::<()>();
        let (started, has_started) = mpsc::channel();
        let lane = lane.clone();
        let thread = thread::spawn(move || {
            receive_with(2);
            lane.run(0, 0, move || {
                started.send(()).unwrap();
                let _ = wait.recv();
            });
        });
        has_started.recv().unwrap();
        (release, thread)
    }

    #[test]
    fn a_lone_request_is_done_by_its_own_thread() {
        let lane = lanes(1, true);
        let (sender, receiver) = mpsc::channel();
        lane.run(0, 0, move || sender.send(thread::current().id()).unwrap());
        assert_eq!(receiver.recv().unwrap(), thread::current().id());
    }

    #[test]
    fn the_second_request_does_not_wait_for_the_first() {
        let lane = lanes(1, true);
        let (release, thread) = occupy(&lane);
        let (sender, receiver) = mpsc::channel();
        lane.run(0, 0, move || sender.send(thread::current().id()).unwrap());
        assert_ne!(receiver.recv().unwrap(), thread::current().id());
        drop(release);
        thread.join().unwrap();
    }

    #[test]
    fn a_lane_that_may_not_borrow_does_not() {
        let lane = lanes(1, false);
        let (sender, receiver) = mpsc::channel();
        lane.run(0, 0, move || sender.send(thread::current().id()).unwrap());
        assert_ne!(receiver.recv().unwrap(), thread::current().id());
    }

    #[test]
    fn what_is_too_much_for_the_queue_is_done_by_its_own_thread() {
        let lane = lanes(1, true);
        let (release, thread) = occupy(&lane);
        // The lane's only thread waits too.
        let (free, wait) = mpsc::channel::<()>();
        let (started, has_started) = mpsc::channel();
        lane.run(0, 0, move || {
            started.send(()).unwrap();
            let _ = wait.recv();
        });
        has_started.recv().unwrap();

        let (sender, receiver) = mpsc::channel();
        let large = sender.clone();
        lane.run(0, QUEUE_BYTES_MAX + 1, move || large.send(0).unwrap());
        assert_eq!(receiver.try_recv(), Ok(0), "too many bytes");
        for number in 1..=QUEUE_MAX + 1 {
            let sender = sender.clone();
            lane.run(0, 0, move || sender.send(number).unwrap());
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
        let lane = lanes(2, true);
        let (release, thread) = occupy(&lane);
        lane.close();
        let (sender, receiver) = mpsc::channel();
        lane.run(0, 0, move || sender.send(()).unwrap());
        assert_eq!(receiver.try_recv(), Ok(()));
        drop(release);
        thread.join().unwrap();
    }

    #[test]
    fn a_receiving_thread_is_left_that_does_not_wait() {
        receive_with(2);
        let both = [LaneOptions { threads: 1, may_borrow: true }; 2];
        let lanes = Arc::new(Lanes::new("t", &both).unwrap());
        let (release, thread) = occupy(&lanes);
        let (sender, receiver) = mpsc::channel();
        let runs_on = |lane| {
            let sender = sender.clone();
            lanes.run(lane, 0, move || sender.send(thread::current().id()).unwrap());
            receiver.recv().unwrap()
        };
        assert_ne!(runs_on(1), thread::current().id(), "the other lane has borrowed one of two");
        receive_with(3);
        assert_eq!(runs_on(1), thread::current().id());
        receive_with(0);
        assert_ne!(runs_on(1), thread::current().id(), "a queue of a ring");
        drop(release);
        thread.join().unwrap();
    }

    #[test]
    fn a_lane_goes_on_while_many_requests_wait_in_another_one() {
        let lanes = Lanes::new("t", &[LaneOptions { threads: 8, may_borrow: false }; 2]).unwrap();
        let (sender, receiver) = mpsc::channel();
        let gates: Vec<_> = (0..64)
            .map(|_| {
                let (gate, wait) = mpsc::channel::<()>();
                let sender = sender.clone();
                lanes.run(0, 0, move || {
                    let _ = wait.recv();
                    sender.send(0).unwrap();
                });
                gate
            })
            .collect();
        for _ in 0..100 {
            let sender = sender.clone();
            lanes.run(1, 0, move || sender.send(1).unwrap());
            assert_eq!(receiver.recv().unwrap(), 1);
        }
        drop(gates);
        lanes.close();
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [0; 64]);
    }
}
