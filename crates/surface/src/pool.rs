//! The threads for requests that may wait, shared by all connections of a front end. Owns the queue
//! of jobs not yet started.
//!
//! Each connection has a lane; threads serve the lanes in turn, so that one connection with many
//! requests does not delay the others until all of them are done. Lanes are bounded by their users:
//! a connection has a limit on requests in flight. Jobs never wait for a client.
//!
//! Jobs of one kind, reads, can be executed together by one thread ([`Job::join`]): it takes more
//! of them from the lane as it proceeds, so that few threads have many in progress. While some
//! threads do that for a lane, another such job wakes no thread: one of them takes it as soon as it
//! has finished one.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

/// Work for the pool.
pub trait Job: Send + Sized + 'static {
    /// Executes it, or a part of it: the rest is queued at the end of its lane, after the turns of
    /// other lanes.
    fn run(self) -> Option<Self>;

    /// Whether [`join`](Self::join) does it.
    fn is_joined(&self) -> bool {
        false
    }

    /// Executes it, together with the jobs returned by `next`: more such jobs of its lane, or
    /// `None` if there are none now. Returns when all are done.
    fn join(self, next: &mut dyn FnMut() -> Option<Self>);
}

/// Threads per lane that execute jobs together. Fewer would leave a device with slow reads idle;
/// more would have one job each.
const JOINED_THREADS: u32 = 4;
/// Jobs that a thread takes so from a lane while others wait.
const JOINED_JOBS_MAX: u32 = 64;

/// One connection's place in the pool.
#[derive(Debug, Clone, Copy)]
pub struct Lane(usize);

/// The pool.
pub struct Pool<J: Job> {
    shared: Arc<Shared<J>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared<J> {
    state: Mutex<State<J>>,
    work: Condvar,
}

struct State<J> {
    lanes: Vec<Jobs<J>>,
    free: Vec<usize>,
    /// Lanes with jobs, each once, in the order of their turns.
    turns: VecDeque<usize>,
    stop: bool,
}

/// The jobs of a lane.
struct Jobs<J> {
    queue: VecDeque<J>,
    /// Threads that execute some of them together.
    joined: u32,
    /// The lane's owner is gone; it is free when no such thread looks for more jobs in it.
    is_closed: bool,
}

impl<J: Job> Pool<J> {
    /// Starts `threads` threads (at least one), named `NAME-work-N`.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn start(name: &str, threads: usize) -> io::Result<Self> {
        let state = State { lanes: Vec::new(), free: Vec::new(), turns: VecDeque::new(), stop: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), work: Condvar::new() });
        let pool = Self { shared, threads: Mutex::new(Vec::new()) };
        for index in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("{name}-work-{index}"));
            // If this fails, dropping `pool` stops those that were started.
            let thread = builder.spawn(move || shared.work())?;
            pool.threads.lock().push(thread);
        }
        Ok(pool)
    }

    /// Opens a lane, which must be closed with [`close`](Self::close).
    pub fn open(&self) -> Lane {
        let mut state = self.shared.state.lock();
        if let Some(index) = state.free.pop() {
            state.lanes[index].is_closed = false;
            return Lane(index);
        }
        state.lanes.push(Jobs { queue: VecDeque::new(), joined: 0, is_closed: false });
        Lane(state.lanes.len() - 1)
    }

    /// Gives a lane back. All its jobs must have ended.
    pub fn close(&self, lane: Lane) {
        let mut state = self.shared.state.lock();
        debug_assert!(state.lanes[lane.0].queue.is_empty());
        state.lanes[lane.0].is_closed = true;
        state.free_closed(lane.0);
    }

    /// Queues a job.
    pub fn submit(&self, lane: Lane, job: J) {
        let mut state = self.shared.state.lock();
        let is_awaited = job.is_joined() && state.lanes[lane.0].joined >= JOINED_THREADS;
        state.push(lane.0, job);
        drop(state);
        if !is_awaited {
            self.shared.work.notify_one();
        }
    }

    /// Does the queued jobs, then ends the threads.
    pub fn stop(&self) {
        self.shared.state.lock().stop = true;
        self.shared.work.notify_all();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A thread that panicked was reported by the panic handler; nothing is left to end.
            drop(thread.join());
        }
    }
}

impl<J: Job> Drop for Pool<J> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<J: Job> Shared<J> {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            let Some(lane) = state.turns.pop_front() else {
                if state.stop {
                    return;
                }
                self.work.wait(&mut state);
                continue;
            };
            let jobs = &mut state.lanes[lane];
            let Some(job) = jobs.queue.pop_front() else { continue };
            let is_joined = job.is_joined();
            jobs.joined += u32::from(is_joined);
            if !jobs.queue.is_empty() {
                state.turns.push_back(lane);
            }
            drop(state);
            if is_joined {
                let mut taken = 0;
                job.join(&mut || {
                    let job = self.state.lock().next_joined(lane, taken)?;
                    taken += 1;
                    Some(job)
                });
                state = self.state.lock();
                // Jobs that arrived since the last call are in the lane, and this thread checks
                // there again before it sleeps.
                state.lanes[lane].joined -= 1;
                state.free_closed(lane);
            } else {
                let rest = job.run();
                state = self.state.lock();
                if let Some(rest) = rest {
                    state.push(lane, rest);
                }
            }
        }
    }
}

impl<J> State<J> {
    fn push(&mut self, lane: usize, job: J) {
        let queue = &mut self.lanes[lane].queue;
        if queue.is_empty() {
            self.turns.push_back(lane);
        }
        queue.push_back(job);
    }

    /// Frees a lane if it is closed. Not while a thread looks for more jobs in it: it would mistake
    /// those of the next connection for those of this one.
    fn free_closed(&mut self, lane: usize) {
        if self.lanes[lane].is_closed && self.lanes[lane].joined == 0 {
            self.free.push(lane);
        }
    }

    /// One more job of a lane for a thread that has `taken` some, to be executed together with
    /// them.
    fn next_joined(&mut self, lane: usize, taken: u32) -> Option<J>
    where
        J: Job,
    {
        let queue = &mut self.lanes[lane].queue;
        let are_others_waiting =
            || self.turns.iter().any(|turn| *turn != lane) || queue.iter().any(|job| !job.is_joined());
        if taken >= JOINED_JOBS_MAX && are_others_waiting() {
            return None;
        }
        let job = queue.iter().position(J::is_joined).and_then(|index| queue.remove(index))?;
        if queue.is_empty() {
            self.turns.retain(|turn| *turn != lane);
        }
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn until(is_so: impl Fn() -> bool) {
        while !is_so() {
            std::thread::yield_now();
        }
    }

    /// Waits for its gate, reports its name, and repeats the given number of times.
    struct Named {
        name: &'static str,
        again: u32,
        is_joined: bool,
        gate: Option<mpsc::Receiver<()>>,
        out: mpsc::Sender<&'static str>,
    }

    impl Job for Named {
        fn run(mut self) -> Option<Self> {
            if let Some(gate) = self.gate.take() {
                let _ = gate.recv();
            }
            self.out.send(self.name).unwrap();
            self.again = self.again.checked_sub(1)?;
            Some(self)
        }

        fn is_joined(&self) -> bool {
            self.is_joined
        }

        /// Reports the names of all jobs that it has executed, and then that it is done.
        fn join(self, next: &mut dyn FnMut() -> Option<Self>) {
            let out = self.out.clone();
            let mut job = Some(self);
            while let Some(this) = job.take().or_else(&mut *next) {
                this.run();
            }
            out.send("joined").unwrap();
        }
    }

    #[test]
    fn jobs_that_can_be_are_done_together_but_not_for_ever_while_others_wait() {
        let pool = Pool::start("test", 1).unwrap();
        let (out, names) = mpsc::channel();
        let (open_gate, gate) = mpsc::channel();
        let job = |name, is_joined, gate| Named { name, again: 0, is_joined, gate, out: out.clone() };
        let (held, a, b) = (pool.open(), pool.open(), pool.open());
        pool.submit(held, job("gate", false, Some(gate)));
        for _ in 0..3 * JOINED_JOBS_MAX {
            pool.submit(a, job("a", true, None));
        }
        pool.submit(a, job("flush", false, None));
        pool.submit(b, job("b", false, None));
        open_gate.send(()).unwrap();
        pool.stop();
        let order: Vec<_> = names.try_iter().collect();
        let turn = |name| order.iter().position(|n| *n == name).unwrap();
        assert_eq!(order.iter().filter(|n| **n == "a").count() as u32, 3 * JOINED_JOBS_MAX);
        assert_eq!(order[1..].iter().position(|n| *n == "joined"), Some(JOINED_JOBS_MAX as usize + 1));
        assert!(turn("b") < 2 * JOINED_JOBS_MAX as usize);
        assert_eq!(turn("flush") + 1, order.len(), "when those before it were done");
        assert_eq!(order.iter().filter(|n| **n == "joined").count(), 3);
    }

    #[test]
    fn what_comes_while_others_are_done_together_is_done_too() {
        // No thread more: one that has just begun, or was woken for a job that another took, might
        // do the late one.
        let pool = Pool::start("test", JOINED_THREADS as usize).unwrap();
        let (out, names) = mpsc::channel();
        let lane = pool.open();
        let mut gates = Vec::new();
        for _ in 0..JOINED_THREADS {
            let (open_gate, gate) = mpsc::channel();
            gates.push(open_gate);
            pool.submit(lane, Named { name: "a", again: 0, is_joined: true, gate: Some(gate), out: out.clone() });
        }
        until(|| pool.shared.state.lock().lanes[lane.0].joined >= JOINED_THREADS);
        pool.submit(lane, Named { name: "late", again: 0, is_joined: true, gate: None, out: out.clone() });
        assert!(names.try_recv().is_err(), "nobody is woken for it");
        gates.remove(0).send(()).unwrap();
        let order: Vec<_> = names.iter().take(3).collect();
        assert_eq!(order, ["a", "late", "joined"]);
        drop(gates);
    }

    #[test]
    fn lanes_take_turns_and_jobs_of_many_parts_go_behind() {
        let pool = Pool::start("test", 1).unwrap();
        let (out, names) = mpsc::channel();
        let (open_gate, gate) = mpsc::channel();
        let job = |name, again| Named { name, again, is_joined: false, gate: None, out: out.clone() };
        let (held, a, b, c) = (pool.open(), pool.open(), pool.open(), pool.open());
        // The only thread is held in the first job until all the others are queued.
        pool.submit(held, Named { name: "gate", again: 0, is_joined: false, gate: Some(gate), out: out.clone() });
        pool.submit(b, job("b1", 2));
        for name in ["a1", "a2", "a3"] {
            pool.submit(a, job(name, 0));
        }
        pool.submit(c, job("c1", 0));
        open_gate.send(()).unwrap();
        pool.stop();
        let order: Vec<_> = names.try_iter().collect();
        assert_eq!(order, ["gate", "b1", "a1", "c1", "b1", "a2", "b1", "a3"]);
    }

    #[test]
    fn a_closed_lane_is_used_again_when_nobody_looks_into_it() {
        let pool = Pool::<Named>::start("test", 1).unwrap();
        let first = pool.open();
        pool.close(first);
        assert_eq!(pool.open().0, first.0);
        let (out, names) = mpsc::channel();
        let (open_gate, gate) = mpsc::channel();
        pool.submit(first, Named { name: "a", again: 0, is_joined: true, gate: Some(gate), out });
        until(|| pool.shared.state.lock().lanes[first.0].joined > 0);
        pool.close(first);
        let second = pool.open();
        assert_ne!(second.0, first.0);
        open_gate.send(()).unwrap();
        assert_eq!(names.iter().take(2).collect::<Vec<_>>(), ["a", "joined"]);
        pool.stop();
        assert_eq!(pool.open().0, first.0);
    }
}
