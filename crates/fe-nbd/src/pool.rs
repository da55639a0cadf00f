//! The threads for requests that may wait, shared by all connections. Owns the queue of jobs not yet begun.
//!
//! Each connection has a lane; threads take from the lanes in turn, so that one connection with many requests does not
//! keep others waiting behind all of them. Lanes are bounded by their users: a connection has a limit on requests in
//! flight. Jobs never wait for a client.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

/// Something to be done by the pool.
pub trait Job: Send + Sized + 'static {
    /// Does it, or a part of it: what is left goes to the end of its lane, behind the turns of other lanes.
    fn run(self) -> Option<Self>;
}

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
    lanes: Vec<VecDeque<J>>,
    free: Vec<usize>,
    /// Lanes with jobs, each once, in the order of their turns.
    turns: VecDeque<usize>,
    stop: bool,
}

impl<J: Job> Pool<J> {
    /// Starts `threads` threads (at least one).
    pub fn start(threads: usize) -> io::Result<Self> {
        let state = State { lanes: Vec::new(), free: Vec::new(), turns: VecDeque::new(), stop: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), work: Condvar::new() });
        let pool = Self { shared, threads: Mutex::new(Vec::new()) };
        for index in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("nbd-work-{index}"));
            // If this fails, dropping `pool` stops those that were started.
            let thread = builder.spawn(move || shared.work())?;
            pool.threads.lock().push(thread);
        }
        Ok(pool)
    }

    /// A lane of one's own, to be given back with [`close`](Self::close).
    pub fn open(&self) -> Lane {
        let mut state = self.shared.state.lock();
        if let Some(index) = state.free.pop() {
            return Lane(index);
        }
        state.lanes.push(VecDeque::new());
        Lane(state.lanes.len() - 1)
    }

    /// Gives a lane back. All its jobs must have ended.
    pub fn close(&self, lane: Lane) {
        let mut state = self.shared.state.lock();
        debug_assert!(state.lanes[lane.0].is_empty());
        state.free.push(lane.0);
    }

    /// Queues a job.
    pub fn submit(&self, lane: Lane, job: J) {
        let mut state = self.shared.state.lock();
        state.push(lane.0, job);
        drop(state);
        self.shared.work.notify_one();
    }

    /// Does what is queued, then ends the threads.
    pub fn stop(&self) {
        self.shared.state.lock().stop = true;
        self.shared.work.notify_all();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A thread that panicked was reported by the panic handler; there is nothing left of it to end.
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
            let job = state.lanes[lane].pop_front();
            if !state.lanes[lane].is_empty() {
                state.turns.push_back(lane);
            }
            drop(state);
            let rest = job.and_then(Job::run);
            state = self.state.lock();
            if let Some(rest) = rest {
                state.push(lane, rest);
            }
        }
    }
}

impl<J> State<J> {
    fn push(&mut self, lane: usize, job: J) {
        if self.lanes[lane].is_empty() {
            self.turns.push_back(lane);
        }
        self.lanes[lane].push_back(job);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Waits for its gate, tells its name, and comes back as often as it says.
    struct Named {
        name: &'static str,
        again: u32,
        gate: Option<mpsc::Receiver<()>>,
        out: mpsc::Sender<&'static str>,
    }

    impl Job for Named {
        fn run(mut self) -> Option<Self> {
            if let Some(gate) = self.gate.take() {
                gate.recv().unwrap();
            }
            self.out.send(self.name).unwrap();
            self.again = self.again.checked_sub(1)?;
            Some(self)
        }
    }

    #[test]
    fn lanes_take_turns_and_jobs_of_many_parts_go_behind() {
        let pool = Pool::start(1).unwrap();
        let (out, names) = mpsc::channel();
        let (open_gate, gate) = mpsc::channel();
        let job = |name, again| Named { name, again, gate: None, out: out.clone() };
        let (held, a, b, c) = (pool.open(), pool.open(), pool.open(), pool.open());
        // The only thread is held in the first job until all the others are queued.
        pool.submit(held, Named { name: "gate", again: 0, gate: Some(gate), out: out.clone() });
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
    fn a_closed_lane_is_used_again() {
        let pool = Pool::<Named>::start(1).unwrap();
        let first = pool.open();
        pool.close(first);
        assert_eq!(pool.open().0, first.0);
    }
}
