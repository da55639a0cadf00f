//! The pool's own threads. *Workers* drain the write buffer and compress; *writers* put batches on
//! the device; *readers* read ahead; the *keeper* watches ages and takes checkpoints; the *cleaner*
//! makes space; the *trainer* makes dictionaries. With no workers there is no thread at all, and
//! callers do all the work.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use surface::{Error, ErrorKind, Result};

use crate::base::ranked::{Condvar, Mutex};
use crate::base::ranks;
use crate::buffer::write_buffer::WriteBuffer;
use crate::log::Log;
use crate::pool::core::Core;
use crate::write::room::room_mark;

/// Upper bound of waiting jobs: more read-ahead than this would be stale before it ran.
const JOBS_MAX: usize = 64;
/// Interval at which the keeper checks for due work.
const KEEPER_PERIOD: Duration = Duration::from_millis(100);
/// The same while nothing is written, and the pause of workers with nothing to do: an idle pool
/// must not keep the processor awake.
const QUIET_PERIOD: Duration = Duration::from_secs(1);
/// Threads that read ahead. They are separate from the compressing ones, so that a reader never
/// waits for a batch; several, because each waits for the device most of the time.
const READERS: usize = 6;
/// Threads that write batches to the log. A device reaches full speed only with several requests in
/// flight.
const WRITERS: usize = 4;
/// Pause of a worker after an error, unless it is woken.
const ERROR_PAUSE: Duration = Duration::from_millis(500);

pub(crate) type Job = Box<dyn FnOnce(&Core) + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Raised by `wake`; a worker that saw an older number checks again.
    wakes: u64,
    keeper_wakes: u64,
    stop: bool,
    /// The last error of a drain, until one succeeds.
    error: Option<(ErrorKind, String)>,
}

pub(crate) struct Workers {
    state: Mutex<State, ranks::Work>,
    work: Condvar,
    reading: Condvar,
    keeper: Condvar,
    cleaner: Condvar,
    /// Writers wait here for room.
    room: Condvar,
    idle: AtomicUsize,
    threads: Mutex<Vec<JoinHandle<()>>, ranks::Threads>,
}

impl Workers {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::default(),
            work: Condvar::new(),
            reading: Condvar::new(),
            keeper: Condvar::new(),
            cleaner: Condvar::new(),
            room: Condvar::new(),
            idle: AtomicUsize::new(0),
            threads: Mutex::default(),
        }
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(core: &Arc<Core>) -> Result<()> {
        if core.is_inline() {
            return Ok(());
        }
        let mut threads = core.workers.threads.lock();
        for index in 0..core.options.workers {
            threads.push(spawn(format!("shale-worker-{index}"), Arc::downgrade(core), work)?);
        }
        for index in 0..READERS {
            threads.push(spawn(format!("shale-reader-{index}"), Arc::downgrade(core), read)?);
        }
        for index in 0..WRITERS {
            threads.push(spawn(format!("shale-writer-{index}"), Arc::downgrade(core), write)?);
        }
        threads.push(spawn("shale-keeper".to_owned(), Arc::downgrade(core), keep)?);
        threads.push(spawn("shale-cleaner".to_owned(), Arc::downgrade(core), crate::clean::pacing::run)?);
        threads.push(spawn("shale-cleaner-2".to_owned(), Arc::downgrade(core), crate::clean::pacing::help)?);
        threads.push(spawn("shale-trainer".to_owned(), Arc::downgrade(core), crate::upkeep::training::run)?);
        threads.push(spawn("shale-hydrate".to_owned(), Arc::downgrade(core), crate::images::hydrate::run)?);
        Ok(())
    }

    /// Stops the threads and waits for them; jobs that have not begun are dropped, waiting batches
    /// are written.
    pub(crate) fn stop(&self, log: &Log) {
        {
            let mut state = self.state.lock();
            state.stop = true;
            state.jobs.clear();
        }
        self.work.notify_all();
        self.reading.notify_all();
        self.keeper.notify_all();
        self.cleaner.notify_all();
        self.room.notify_all();
        log.stop_writers();
        let me = std::thread::current().id();
        for thread in self.threads.lock().drain(..) {
            // The last owner of the pool may be one of its own threads.
            if thread.thread().id() != me {
                let _ = thread.join();
            }
        }
    }

    /// Pauses the cleaner or the trainer. Returns `true` if the pool is being closed.
    pub(crate) fn rest(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.stop && !time.is_zero() {
            self.cleaner.wait_for(&mut state, time);
        }
        state.stop
    }

    /// Wakes the workers: there is data to drain.
    pub(crate) fn wake(&self) {
        if self.idle.load(Ordering::Acquire) > 0 {
            let mut state = self.state.lock();
            state.wakes += 1;
            // They are on their way: no other thread need wake them.
            self.idle.store(0, Ordering::Release);
            drop(state);
            self.work.notify_all();
        }
    }

    /// Wakes one worker for work other than draining.
    pub(crate) fn wake_one(&self) {
        drop(self.state.lock());
        self.work.notify_one();
    }

    /// Wakes the cleaner: a writer waits for space.
    pub(crate) fn wake_cleaner(&self) {
        self.cleaner.notify_all();
    }

    /// Wakes the keeper: a checkpoint is due.
    pub(crate) fn wake_keeper(&self) {
        self.state.lock().keeper_wakes += 1;
        self.keeper.notify_all();
    }

    /// Passes a job to the workers; dropped when too many wait.
    pub(crate) fn submit(&self, job: Job) {
        let mut state = self.state.lock();
        if state.jobs.len() < JOBS_MAX && !state.stop {
            state.jobs.push_back(job);
            drop(state);
            self.reading.notify_one();
        }
    }

    /// Lets waiting writers continue if there is room again.
    fn tell_room(&self, core: &Core) {
        if core.buffer.held() <= room_mark(core.buffer_limit()) {
            self.room.notify_all();
        }
    }

    /// Notes a successful drain by any thread: the error that kept a worker from draining is over.
    pub(crate) fn drained(&self) {
        self.state.lock().error = None;
    }

    /// Waits briefly until the buffer has no more than `bytes` bytes.
    ///
    /// # Errors
    /// When the workers cannot drain it.
    pub(crate) fn wait_for_room(&self, buffer: &WriteBuffer, bytes: usize) -> Result<()> {
        let mut state = self.state.lock();
        if buffer.held() <= bytes {
            return Ok(());
        }
        if let Some((kind, text)) = &state.error {
            return Err(Error::new(*kind, text.clone()));
        }
        if state.stop {
            return Err(Error::new(ErrorKind::Io, "the pool is being closed"));
        }
        self.room.wait_for(&mut state, KEEPER_PERIOD);
        Ok(())
    }
}

fn spawn(name: String, core: Weak<Core>, run: fn(&Weak<Core>)) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name)
        .spawn(move || run(&core))
        .map_err(|e| Error::from_io("starting a worker thread", e))
}

/// A worker: drains the write buffer down to a quarter of its size, or as far as a flush requires.
fn work(core: &Weak<Core>) {
    let mut seen = 0;
    let mut keep_off = env::KeepOff::default();
    while let Some(core) = core.upgrade() {
        let workers = &core.workers;
        let pressed = core.buffer.held() > core.buffer_limit() / 4;
        let wakes = {
            let state = workers.state.lock();
            if state.stop {
                return;
            }
            state.wakes
        };
        if pressed || wakes != seen {
            keep_off.clear();
            match core.drain_ahead() {
                Ok(drained) => {
                    if !drained {
                        seen = wakes;
                    }
                    workers.drained();
                    if drained {
                        continue;
                    }
                }
                Err(error) => {
                    seen = wakes;
                    let mut state = workers.state.lock();
                    state.error = Some((error.kind(), error.to_string()));
                    workers.room.notify_all();
                    if !state.stop && state.wakes == wakes {
                        workers.work.wait_for(&mut state, ERROR_PAUSE);
                    }
                    continue;
                }
            }
        } else if let Some(cpu) = core.ahead.take_asked() {
            keep_off.set(cpu);
            // The flush that waits for the failed groups gets the same error.
            while core.compress_ahead().unwrap_or(false) {}
        }
        let mut state = workers.state.lock();
        if !state.stop && state.wakes == seen && !core.ahead.is_asked() {
            workers.idle.fetch_add(1, Ordering::AcqRel);
            workers.work.wait_for(&mut state, QUIET_PERIOD);
            // The waking thread has set the count of idle workers to zero.
            if state.wakes == seen {
                workers.idle.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}

/// A reader: runs the read-ahead jobs.
fn read(core: &Weak<Core>) {
    while let Some(core) = core.upgrade() {
        let job = {
            let mut state = core.workers.state.lock();
            loop {
                if state.stop {
                    return;
                }
                if let Some(job) = state.jobs.pop_front() {
                    break job;
                }
                core.workers.reading.wait(&mut state);
            }
        };
        job(&core);
    }
}

/// A writer: writes waiting batches.
fn write(core: &Weak<Core>) {
    while let Some(core) = core.upgrade() {
        if !core.log.write_queued() {
            return;
        }
        core.workers.tell_room(&core);
    }
}

/// The keeper: does all due work, about ten times a second and on request; once a second while
/// nothing is written.
fn keep(core: &Weak<Core>) {
    let (mut seen, mut written) = (0, u64::MAX);
    while let Some(core) = core.upgrade() {
        // An error occurs again in the next flush or write, which reports it.
        let _ = core.tick();
        let earlier = std::mem::replace(&mut written, core.counters.written_bytes.get());
        let is_quiet = written == earlier && core.buffer.held() == 0;
        let mut state = core.workers.state.lock();
        if state.stop {
            return;
        }
        if state.keeper_wakes == seen {
            core.workers.keeper.wait_for(&mut state, if is_quiet { QUIET_PERIOD } else { KEEPER_PERIOD });
        }
        seen = state.keeper_wakes;
    }
}

impl Core {
    /// Does the work that is due: replaces lost standby memory, drains old data, takes a
    /// checkpoint. Without threads, cleans a little.
    pub(crate) fn tick(&self) -> Result<()> {
        if self.check_failed().is_err() {
            return Ok(());
        }
        self.forget_shrinking();
        self.refresh_host_space();
        self.look_at_standby();
        let now = self.env.clock.now_ns();
        let old = {
            let mut aging = self.aging.lock();
            let due = now.saturating_sub(aging.1) >= self.options.age_limit_ms.saturating_mul(1_000_000);
            due.then(|| {
                let generation = aging.0;
                *aging = (self.buffer.begin_flush(), now);
                generation
            })
        };
        if let Some(generation) = old {
            while !self.buffer.is_drained(generation) && self.drain(generation)? {}
        }
        if self.checkpoint_due() {
            self.checkpoint_unless(self.checkpoint_kind(), |core| !core.checkpoint_due())?;
        }
        self.checkpoint_if_idle()?;
        self.pass_on();
        self.punch_owed();
        if self.is_inline() {
            self.clean_some(false)?;
            self.train_some(false)?;
            self.hydrate_some(crate::images::hydrate::TICK_BYTES)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use bytes::Bytes;
    use sim::Machine;
    use surface::{BlockDevice, WriteOptions};
    use units::BLOCK_BYTES;

    use super::*;
    use crate::base::testing::pool_on;

    /// The failure does not concern the next writer that waits for room, and no worker may have had
    /// a reason to try again.
    #[test]
    fn a_flush_that_succeeds_ends_what_kept_the_workers_from_draining() {
        let machine = Machine::new(8 << 20, 1);
        let pool = pool_on(&machine, machine.disk.handle(), 8 << 20, 0);
        pool.create_volume("v", 1 << 20, &Default::default()).unwrap();
        pool.core.workers.state.lock().error = Some((ErrorKind::Io, "a write that failed".to_owned()));
        let data = Bytes::from(vec![1; BLOCK_BYTES]);
        pool.volume("v").unwrap().write(0, data, WriteOptions::default()).unwrap();
        pool.flush().unwrap();
        assert!(pool.core.workers.state.lock().error.is_none());
    }
}
