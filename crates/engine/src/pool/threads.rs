//! The work of the pool's own threads. *Workers* drain the write buffer and compress; *writers* put
//! batches on the device; *readers* read ahead; the *keeper* watches ages and takes checkpoints;
//! the *cleaner* makes space; the *trainer* makes dictionaries; one thread fetches the rest of
//! images. With no workers there is no thread at all, and callers do all the work.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use surface::{Error, Result};

use crate::pool::core::Core;
use crate::write::room::room_mark;

/// Interval at which the keeper checks for due work.
const KEEPER_PERIOD: Duration = Duration::from_millis(100);
/// The same while nothing is written: an idle pool must not keep the processor awake.
const KEEPER_PERIOD_QUIET: Duration = Duration::from_secs(1);
/// Threads that read ahead. They are separate from the compressing ones, so that a reader never
/// waits for a batch; several, because each waits for the device most of the time.
const READERS: usize = 6;
/// Threads that write batches to the log. A device reaches full speed only with several requests in
/// flight.
const WRITERS: usize = 4;

/// Starts the threads.
///
/// # Errors
/// When the system gives no thread.
pub(super) fn start(core: &Arc<Core>) -> Result<()> {
    if core.vitals.is_inline() {
        return Ok(());
    }
    let mut threads = core.workers.threads.lock();
    for index in 0..core.vitals.options.workers {
        threads.push(spawn(format!("shale-worker-{index}"), Arc::downgrade(core), work)?);
    }
    for index in 0..READERS {
        threads.push(spawn(format!("shale-reader-{index}"), Arc::downgrade(core), read)?);
    }
    for index in 0..WRITERS {
        threads.push(spawn(format!("shale-writer-{index}"), Arc::downgrade(core), write)?);
    }
    threads.push(spawn("shale-keeper".to_owned(), Arc::downgrade(core), keep)?);
    threads.push(spawn("shale-cleaner".to_owned(), Arc::downgrade(&core.clean), crate::clean::pacing::run)?);
    threads.push(spawn("shale-cleaner-2".to_owned(), Arc::downgrade(&core.clean), crate::clean::pacing::help)?);
    threads.push(spawn("shale-trainer".to_owned(), Arc::downgrade(&core.upkeep), crate::upkeep::training::run)?);
    threads.push(spawn("shale-hydrate".to_owned(), Arc::downgrade(&core.images), crate::images::hydrate::run)?);
    Ok(())
}

/// Starts a thread that runs while the part that it works for is there.
fn spawn<T: Send + Sync + 'static>(name: String, part: Weak<T>, run: fn(&Weak<T>)) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name)
        .spawn(move || run(&part))
        .map_err(|e| Error::from_io("starting a worker thread", e))
}

/// A worker: drains the write buffer down to a quarter of its size, or as far as a flush requires.
fn work(core: &Weak<Core>) {
    let mut seen = 0;
    let mut keep_off = env::KeepOff::default();
    while let Some(core) = core.upgrade() {
        let pressed = core.buffer.held() > core.space.buffer_limit() / 4;
        let Some(wakes) = core.signals.wakes() else { return };
        if pressed || wakes != seen {
            keep_off.clear();
            match core.writes.drain_ahead() {
                Ok(drained) => {
                    if !drained {
                        seen = wakes;
                    }
                    core.signals.drained();
                    if drained {
                        continue;
                    }
                }
                Err(error) => {
                    seen = wakes;
                    core.signals.drain_failed(&error, wakes);
                    continue;
                }
            }
        } else if let Some(cpu) = core.writes.ahead.take_asked() {
            keep_off.set(cpu);
            // The flush that waits for the failed groups gets the same error.
            while core.writes.compress_ahead().unwrap_or(false) {}
        }
        core.signals.wait_for_work(seen, || core.writes.ahead.is_asked());
    }
}

/// A reader: runs the read-ahead jobs.
fn read(core: &Weak<Core>) {
    while let Some(core) = core.upgrade() {
        if !core.jobs.run_one() {
            return;
        }
    }
}

/// A writer: writes waiting batches, and lets waiting clients continue if there is room again.
fn write(core: &Weak<Core>) {
    while let Some(core) = core.upgrade() {
        if !core.log.write_queued() {
            return;
        }
        if core.buffer.held() <= room_mark(core.space.buffer_limit()) {
            core.signals.note_room();
        }
    }
}

/// The keeper: does all due work, about ten times a second and on request; once a second while
/// nothing is written.
fn keep(core: &Weak<Core>) {
    let (mut seen, mut written) = (0, u64::MAX);
    while let Some(core) = core.upgrade() {
        // An error occurs again in the next flush or write, which reports it.
        let _ = core.tick();
        let earlier = std::mem::replace(&mut written, core.vitals.counters.written_bytes.get());
        let is_quiet = written == earlier && core.buffer.held() == 0;
        let period = if is_quiet { KEEPER_PERIOD_QUIET } else { KEEPER_PERIOD };
        match core.signals.wait_for_keeping(seen, period) {
            Some(wakes) => seen = wakes,
            None => return,
        }
    }
}

impl Core {
    /// Does the work that is due: replaces lost standby memory, drains old data, takes a
    /// checkpoint. Without threads, cleans a little.
    pub(crate) fn tick(&self) -> Result<()> {
        if self.vitals.check_failed().is_err() {
            return Ok(());
        }
        self.upkeep.forget_shrinking();
        self.space.refresh_host_space();
        self.look_at_standby();
        let now = self.vitals.env.clock.now_ns();
        let old = {
            let mut aging = self.workers.aging.lock();
            let due = now.saturating_sub(aging.1) >= self.vitals.options.age_limit_ms.saturating_mul(1_000_000);
            due.then(|| {
                let generation = aging.0;
                *aging = (self.buffer.begin_flush(), now);
                generation
            })
        };
        if let Some(generation) = old {
            while !self.buffer.is_drained(generation) && self.writes.drain(generation)? {}
        }
        if self.checkpoints.is_due() {
            self.checkpoints.take_unless(self.checkpoints.kind_due(), || !self.checkpoints.is_due())?;
        }
        self.checkpoints.take_if_idle()?;
        self.history.pass_on();
        self.checkpoints.punch_owed();
        self.repairs.repair_suspects();
        if self.vitals.is_inline() {
            self.clean.clean_some(false)?;
            self.upkeep.train_some(false)?;
            self.images.hydrate_some(crate::images::hydrate::TICK_BYTES)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use bytes::Bytes;
    use sim::Machine;
    use surface::{BlockDevice, ErrorKind, WriteOptions};
    use units::BLOCK_BYTES;

    use super::*;
    use crate::pool::testing::pool_on;

    /// The failure does not concern the next writer that waits for room, and no worker may have had
    /// a reason to try again.
    #[test]
    fn a_flush_that_succeeds_ends_what_kept_the_workers_from_draining() {
        let machine = Machine::new(8 << 20, 1);
        let pool = pool_on(&machine, machine.disk.handle(), 8 << 20, 0);
        pool.create_volume("v", 1 << 20, &Default::default()).unwrap();
        // As a worker that was woken since.
        pool.core.signals.drain_failed(&Error::new(ErrorKind::Io, "a write that failed"), u64::MAX);
        assert!(pool.core.signals.wait_for_room(|| true).is_err());
        let data = Bytes::from(vec![1; BLOCK_BYTES]);
        pool.volume("v").unwrap().write(0, data, WriteOptions::default()).unwrap();
        pool.flush().unwrap();
        assert!(pool.core.signals.wait_for_room(|| true).is_ok());
    }
}
