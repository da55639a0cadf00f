//! The threads for requests that may wait: of a front end's connections, or of a mount (`fuse`'s
//! lanes). Owns the queue of jobs not yet started.
//!
//! Each connection has a lane; threads serve the lanes in turn, so that one connection with many
//! requests does not delay the others until all of them are done. Lanes are bounded by their users:
//! a connection has a limit on requests in flight. Jobs never wait for a client.
//!
//! # Classes
//!
//! Each job belongs to a class, and each class has a limit on the threads that its jobs occupy, over
//! all lanes. The pool has more threads than any limit. So jobs that wait long, flushes on a slow
//! disk or writes that wait for room, occupy the threads of their class, and the jobs of other
//! classes go on. Jobs beyond the limit stay queued.
//!
//! # Threads
//!
//! One thread is started with the pool. A thread that takes a job when no other one is idle starts
//! another one before, up to the limit. It inherits nothing from the thread that queued the job,
//! which may be bound to a CPU. A second idle thread ends after [`IDLE_MAX`].
//!
//! # Jobs done together
//!
//! Jobs of one kind, reads, can be executed together by one thread ([`Job::join`]): it takes more
//! of them from the lane as it proceeds, so that few threads have many in progress. While some
//! threads do that for a lane, another such job wakes no thread: one of them takes it as soon as it
//! has finished one.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Work for the pool.
pub trait Job: Send + Sized + 'static {
    /// The class of the job, below the number of limits of its pool. In a front end's pool:
    /// [`READS`] or [`CHANGES`].
    fn class(&self) -> usize;

    /// Executes it, or a part of it: the rest is queued at the end of its lane, after the turns of
    /// other lanes.
    fn run(self) -> Option<Self>;

    /// Whether [`join`](Self::join) does it.
    fn is_joined(&self) -> bool {
        false
    }

    /// Executes it, together with the jobs returned by `next`: more such jobs of its lane, or
    /// `None` if there are none now. Returns when all are done.
    fn join(self, next: &mut dyn FnMut() -> Option<Self>) {
        let mut job = Some(self);
        while let Some(this) = job.take().or_else(&mut *next) {
            this.run();
        }
    }

    /// Called first on each thread of a pool of such jobs.
    fn begin_thread() {}
}

/// The class of reads.
pub const READS: usize = 0;
/// The class of jobs that may wait for a sync or for room: all others.
pub const CHANGES: usize = 1;

/// Threads of a front end's pool above the limit of each class: reads while all flushes wait, and
/// the reverse.
const SPARE_THREADS: usize = 4;
/// Threads per lane that execute jobs together. Fewer would leave a device with slow reads idle;
/// more would have one job each.
const JOINED_THREADS: u32 = 4;
/// Jobs that a thread takes so from a lane while others wait.
const JOINED_JOBS_MAX: u32 = 64;
/// How long a thread stays without a job: a burst of requests every few seconds starts none.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// One connection's place in the pool.
#[derive(Debug, Clone, Copy)]
pub struct Lane(usize);

/// The pool.
pub struct Pool<J: Job> {
    shared: Arc<Shared<J>>,
}

struct Shared<J> {
    name: String,
    threads_max: usize,
    state: Mutex<State<J>>,
    work: Condvar,
    /// The last thread has ended.
    ended: Condvar,
}

struct State<J> {
    lanes: Vec<Jobs<J>>,
    free: Vec<usize>,
    classes: Vec<Class>,
    /// Threads that have not ended, and those of them that wait for a job.
    alive: usize,
    idle: usize,
    stop: bool,
}

struct Class {
    /// Most threads that execute its jobs.
    limit: usize,
    /// Threads that do.
    running: usize,
    /// Lanes with jobs of the class, each once, in the order of their turns.
    turns: VecDeque<usize>,
}

/// The jobs of a lane.
struct Jobs<J> {
    /// By class.
    queues: Vec<VecDeque<J>>,
    /// Threads that execute some of them together.
    joined: u32,
    /// The lane's owner is gone; it is free when no such thread looks for more jobs in it.
    is_closed: bool,
}

impl<J: Job> Pool<J> {
    /// Starts the pool of a front end, whose threads are named `NAME-work-N`: up to `threads` (at
    /// least one) for each of its two classes.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn start(name: &str, threads: usize) -> io::Result<Self> {
        let threads = threads.max(1);
        Self::with_limits(name, &[threads; 2], threads + threads.min(SPARE_THREADS))
    }

    /// Starts a pool with a limit for each class, and at most `threads_max` threads, which should
    /// be more than each of them.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn with_limits(name: &str, limits: &[usize], threads_max: usize) -> io::Result<Self> {
        let classes = limits.iter().map(|&limit| Class { limit, running: 0, turns: VecDeque::new() }).collect();
        let state = State { lanes: Vec::new(), free: Vec::new(), classes, alive: 1, idle: 0, stop: false };
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            threads_max,
            state: Mutex::new(state),
            work: Condvar::new(),
            ended: Condvar::new(),
        });
        shared.spawn(0)?;
        Ok(Self { shared })
    }

    /// Opens a lane, which must be closed with [`close`](Self::close).
    pub fn open(&self) -> Lane {
        let mut state = self.shared.state.lock();
        if let Some(index) = state.free.pop() {
            state.lanes[index].is_closed = false;
            return Lane(index);
        }
        let queues = state.classes.iter().map(|_| VecDeque::new()).collect();
        state.lanes.push(Jobs { queues, joined: 0, is_closed: false });
        Lane(state.lanes.len() - 1)
    }

    /// Gives a lane back. All its jobs must have ended.
    pub fn close(&self, lane: Lane) {
        let mut state = self.shared.state.lock();
        debug_assert!(state.lanes[lane.0].queues.iter().all(VecDeque::is_empty));
        state.lanes[lane.0].is_closed = true;
        state.free_closed(lane.0);
    }

    /// Queues a job. One that is queued after the pool has stopped is dropped.
    pub fn submit(&self, lane: Lane, job: J) {
        drop(self.offer(lane, job, usize::MAX));
    }

    /// Queues a job.
    ///
    /// # Errors
    /// Returns the job if the lane has `queued_max` of its class, or the pool has stopped.
    pub fn offer(&self, lane: Lane, job: J, queued_max: usize) -> Result<(), J> {
        let mut state = self.shared.state.lock();
        let class = job.class();
        let jobs = &state.lanes[lane.0];
        if state.stop || jobs.queues[class].len() >= queued_max {
            return Err(job);
        }
        let is_awaited = job.is_joined() && jobs.joined >= JOINED_THREADS;
        // A thread of a class at its limit looks for more of its jobs when it has finished one.
        let has_thread = state.classes[class].running < state.classes[class].limit;
        state.push(lane.0, job);
        drop(state);
        if has_thread && !is_awaited {
            self.shared.work.notify_one();
        }
        Ok(())
    }

    /// Does the queued jobs, then ends the threads.
    pub fn stop(&self) {
        let mut state = self.shared.state.lock();
        state.stop = true;
        self.shared.work.notify_all();
        while state.alive > 0 {
            self.shared.ended.wait(&mut state);
        }
    }
}

impl<J: Job> Drop for Pool<J> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A thread of the pool, counted until it ends, also by a panic of a job.
struct Worker<J: Job> {
    shared: Arc<Shared<J>>,
    /// The class of the job in hand.
    class: Option<usize>,
}

impl<J: Job> Drop for Worker<J> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if let Some(class) = self.class {
            state.classes[class].running -= 1;
        }
        state.alive -= 1;
        if state.alive == 0 {
            self.shared.ended.notify_all();
        }
    }
}

impl<J: Job> Shared<J> {
    /// Starts a thread that is counted already.
    fn spawn(self: &Arc<Self>, number: usize) -> io::Result<()> {
        let worker = Worker { shared: Arc::clone(self), class: None };
        // If this fails, the worker is dropped.
        std::thread::Builder::new().name(format!("{}-work-{number}", self.name)).spawn(move || worker.work())?;
        Ok(())
    }
}

impl<J: Job> Worker<J> {
    fn work(mut self) {
        J::begin_thread();
        let shared = Arc::clone(&self.shared);
        let (mut state, mut was_idle) = (shared.state.lock(), false);
        loop {
            let Some((class, lane, job)) = state.next() else {
                if state.stop || was_idle && state.idle > 0 {
                    return;
                }
                let is_spare = state.idle > 0;
                state.idle += 1;
                was_idle = is_spare && shared.work.wait_for(&mut state, IDLE_MAX).timed_out();
                if !is_spare {
                    shared.work.wait(&mut state);
                }
                state.idle -= 1;
                continue;
            };
            (self.class, was_idle) = (Some(class), false);
            let is_joined = job.is_joined();
            state.lanes[lane].joined += u32::from(is_joined);
            let next_thread = (state.idle == 0 && state.alive < shared.threads_max).then_some(state.alive);
            state.alive += usize::from(next_thread.is_some());
            drop(state);
            if let Some(number) = next_thread {
                // Without it the next jobs wait for this one.
                drop(shared.spawn(number));
            }
            if is_joined {
                let mut taken = 0;
                job.join(&mut || {
                    let job = shared.state.lock().next_joined(class, lane, taken)?;
                    taken += 1;
                    Some(job)
                });
                state = shared.state.lock();
                // Jobs that arrived since the last call are in the lane, and this thread checks
                // there again before it sleeps.
                state.lanes[lane].joined -= 1;
                state.free_closed(lane);
            } else {
                let rest = job.run();
                state = shared.state.lock();
                if let Some(rest) = rest {
                    state.push(lane, rest);
                }
            }
            self.class = None;
            state.classes[class].running -= 1;
        }
    }
}

impl<J: Job> State<J> {
    fn push(&mut self, lane: usize, job: J) {
        let class = job.class();
        let queue = &mut self.lanes[lane].queues[class];
        if queue.is_empty() {
            self.classes[class].turns.push_back(lane);
        }
        queue.push_back(job);
    }

    /// Takes the next job whose class is below its limit, and counts it as running; also returns
    /// its class and lane.
    fn next(&mut self) -> Option<(usize, usize, J)> {
        let may_run = |class: &Class| class.running < class.limit && !class.turns.is_empty();
        let number = self.classes.iter().position(may_run)?;
        let class = &mut self.classes[number];
        let lane = class.turns.pop_front()?;
        let queue = &mut self.lanes[lane].queues[number];
        let job = queue.pop_front()?;
        if !queue.is_empty() {
            class.turns.push_back(lane);
        }
        class.running += 1;
        Some((number, lane, job))
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
    fn next_joined(&mut self, class: usize, lane: usize, taken: u32) -> Option<J> {
        let turns = &mut self.classes[class].turns;
        let queue = &mut self.lanes[lane].queues[class];
        let are_others_waiting = || turns.iter().any(|turn| *turn != lane) || queue.iter().any(|job| !job.is_joined());
        if taken >= JOINED_JOBS_MAX && are_others_waiting() {
            return None;
        }
        let job = queue.iter().position(J::is_joined).and_then(|index| queue.remove(index))?;
        if queue.is_empty() {
            turns.retain(|turn| *turn != lane);
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
        fn class(&self) -> usize {
            READS
        }

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
    fn jobs_of_a_class_leave_threads_to_the_others_and_all_are_done_when_it_stops() {
        /// Waits for its gate if it has one.
        struct Of(usize, Option<mpsc::Receiver<()>>, mpsc::Sender<usize>);

        impl Job for Of {
            fn class(&self) -> usize {
                self.0
            }

            fn run(self) -> Option<Self> {
                let _ = self.1.map(|gate| gate.recv());
                self.2.send(self.0).unwrap();
                None
            }
        }

        const CHANGES_MAX: usize = 64;
        let pool = Pool::start("test", 16).unwrap();
        let (out, done) = mpsc::channel();
        let lane = pool.open();
        let gates: Vec<_> = (0..CHANGES_MAX)
            .map(|_| {
                let (open_gate, gate) = mpsc::channel();
                pool.submit(lane, Of(CHANGES, Some(gate), out.clone()));
                open_gate
            })
            .collect();
        until(|| pool.shared.state.lock().classes[CHANGES].running == 16);
        for _ in 0..100 {
            pool.submit(lane, Of(READS, None, out.clone()));
            assert_eq!(done.recv().unwrap(), READS);
        }
        assert!(pool.shared.state.lock().alive <= 16 + SPARE_THREADS);
        let refused = pool.offer(lane, Of(CHANGES, None, out.clone()), CHANGES_MAX - 16);
        assert!(refused.is_err(), "as many are queued already");
        drop(gates);
        pool.stop();
        assert_eq!(done.try_iter().collect::<Vec<_>>(), vec![CHANGES; CHANGES_MAX]);
        assert!(pool.offer(lane, Of(READS, None, out), usize::MAX).is_err(), "it has stopped");
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
