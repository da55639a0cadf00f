//! Compression ahead of a flush. A client that syncs after every few dozen blocks would wait, each
//! time, until one thread has compressed all of them, while the other cores are idle before the
//! flush and during it. Owns the finished parts and the detection of such clients; workers
//! compress, drains and flushes collect.
//!
//! 1. A pool is *bound by flushes* when several in a row have found little in the write buffer, and
//!    left nothing. A client that writes during its own flush already uses all cores, and would
//!    lose one (an NBD client with 32 requests in flight is a fifth slower with a worker that
//!    compresses ahead).
//! 2. Then a worker takes the oldest groups of the buffer, a few at a time, and compresses them as
//!    a drain would; the resulting *part* waits here. It has no position in the log yet, so that a
//!    burst still makes one batch. The newest data stays in the buffer: it may still grow.
//! 3. The next drain, on any thread, takes all parts along. A flush that is past that point waits
//!    for the groups taken already, so the worker itself appends the parts that it has finished by
//!    then.
//!
//! For all other code a part is a batch in flight: its groups are in flight in the write buffer,
//! and readers find them there.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use store::base::ranked::Mutex;
use store::base::ranks;
use store::log::prepared::Prepared;
use surface::Result;

use crate::write::Writes;

/// A flush that finds at most this much raw data is a small one.
const FLUSH_BYTES_MAX: usize = 512 << 10;
/// Consecutive small flushes that form the pattern.
const STREAK_MIN: u32 = 4;
/// Groups in the write buffer, in addition to those of the parts, from which on a worker is woken.
/// A flush compresses fewer faster than a worker wakes.
const GROUPS_MIN: usize = 4;
/// Groups that stay in the buffer: a writer may be adding to them block by block.
const GROUPS_LEFT: usize = 2;
/// Raw bytes of a part: a flush may have to wait for one.
const PART_BYTES: usize = 16 << 10;

/// No CPU.
const NOWHERE: usize = usize::MAX;

#[derive(Default)]
struct State {
    parts: Vec<Prepared>,
    /// Drains that will still take parts along.
    collecting: usize,
}

/// See the module.
pub(crate) struct Ahead {
    state: Mutex<State, ranks::Ahead>,
    /// Flushes that wait for all earlier writes; changed under the lock.
    flushing: AtomicUsize,
    /// Consecutive flushes that found little and left nothing.
    streak: AtomicU32,
    /// Groups of the parts.
    groups: AtomicUsize,
    /// The CPU of the writer that woke a worker, until the worker checks.
    asked_on: AtomicUsize,
}

impl Ahead {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::default(),
            flushing: AtomicUsize::new(0),
            streak: AtomicU32::new(0),
            groups: AtomicUsize::new(0),
            asked_on: AtomicUsize::new(NOWHERE),
        }
    }

    /// Returns whether a worker has been woken that has not checked yet.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked_on.load(Ordering::Acquire) != NOWHERE
    }

    /// Called by a worker that checks: returns the CPU of the writer that woke it, if one did.
    pub(crate) fn take_asked(&self) -> Option<usize> {
        Some(self.asked_on.swap(NOWHERE, Ordering::AcqRel)).filter(|cpu| *cpu != NOWHERE)
    }

    /// Begins a flush that finds `bytes` in the write buffer. It ends when the result is dropped.
    pub(crate) fn flush(&self, bytes: usize) -> Flushing<'_> {
        let streak = if bytes <= FLUSH_BYTES_MAX { self.streak.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.streak.store(streak, Ordering::Relaxed);
        let _state = self.state.lock();
        self.flushing.fetch_add(1, Ordering::Relaxed);
        Flushing(self)
    }

    /// Called at the end of a flush; `groups` have been added to the write buffer during it.
    pub(crate) fn flushed(&self, groups: usize) {
        if groups > 0 {
            self.streak.store(0, Ordering::Relaxed);
        }
    }

    /// Begins a drain, which takes parts along.
    pub(crate) fn collect(&self) -> Collecting<'_> {
        self.state.lock().collecting += 1;
        Collecting(Some(self))
    }

    /// Keeps a part for the next drain. Returns it if a flush waits for it, and no drain would take
    /// it along.
    fn keep(&self, part: Prepared) -> Option<Prepared> {
        let mut state = self.state.lock();
        if self.flushing.load(Ordering::Relaxed) > 0 && state.collecting == 0 {
            return Some(part);
        }
        self.groups.fetch_add(part.taken.len(), Ordering::Relaxed);
        state.parts.push(part);
        None
    }
}

/// A flush that waits until all data is written.
pub(crate) struct Flushing<'a>(&'a Ahead);

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        let _state = self.0.state.lock();
        self.0.flushing.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A drain that has not taken parts along yet.
pub(crate) struct Collecting<'a>(Option<&'a Ahead>);

impl Collecting<'_> {
    /// Takes all present parts. A worker that finishes another one from now on does not rely on
    /// this drain.
    pub(crate) fn parts(mut self) -> Vec<Prepared> {
        let Some(ahead) = self.0.take() else { return Vec::new() };
        let mut state = ahead.state.lock();
        state.collecting -= 1;
        let parts = std::mem::take(&mut state.parts);
        ahead.groups.fetch_sub(parts.iter().map(|part| part.taken.len()).sum(), Ordering::Relaxed);
        parts
    }
}

impl Drop for Collecting<'_> {
    fn drop(&mut self) {
        if let Some(ahead) = self.0 {
            ahead.state.lock().collecting -= 1;
        }
    }
}

impl Writes {
    /// Returns whether the pool is bound by flushes, and between two of them.
    fn is_bound_by_flushes(&self) -> bool {
        self.ahead.streak.load(Ordering::Relaxed) >= STREAK_MIN
            && self.ahead.flushing.load(Ordering::Relaxed) == 0
            && self.buffer.bytes() <= FLUSH_BYTES_MAX
    }

    /// Wakes a worker if there is data to compress ahead, and none has been woken for it.
    ///
    /// # Errors
    /// Without threads, those of compressing.
    pub(crate) fn ask_to_compress_ahead(&self) -> Result<()> {
        let waiting = || self.buffer.groups().saturating_sub(self.ahead.groups.load(Ordering::Relaxed));
        if !self.is_bound_by_flushes() || waiting() < GROUPS_MIN {
            return Ok(());
        }
        if self.vitals.is_inline() {
            return self.compress_ahead().map(|_| ());
        }
        let asked_on = &self.ahead.asked_on;
        if !self.ahead.is_asked() && asked_on.swap(env::current_cpu(), Ordering::AcqRel) == NOWHERE {
            self.signals.wake_one();
        }
        Ok(())
    }

    /// Compresses a few groups ahead. Returns `false` if there is nothing to take.
    ///
    /// # Errors
    /// When a flush waits for them, and they cannot be appended.
    pub(crate) fn compress_ahead(&self) -> Result<bool> {
        if !self.is_bound_by_flushes() {
            return Ok(false);
        }
        let taken = self.buffer.take_leaving(PART_BYTES, u64::MAX, GROUPS_LEFT);
        if taken.is_empty() {
            return Ok(false);
        }
        if let Some(part) = self.compress_taken(taken) {
            self.hand_over(part)?;
        }
        Ok(true)
    }

    /// Leaves a part to the next drain, or appends it.
    fn hand_over(&self, part: Prepared) -> Result<()> {
        match self.ahead.keep(part) {
            Some(part) => self.append_drained(self.complete(part)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use bytes::Bytes;
    use sim::Machine;
    use surface::{BlockDevice, WriteOptions};
    use units::{BLOCK_BYTES, GROUP_BYTES};

    use super::*;
    use crate::pool::Pool;
    use crate::pool::testing::{pool_on, reopen_on};
    use crate::volume::Volume;

    const BURST: u64 = 24;

    fn write(volume: &Volume, group: u64, value: u8) {
        let data = Bytes::from(vec![value; BLOCK_BYTES]);
        volume.write(group * GROUP_BYTES as u64, data, WriteOptions::default()).unwrap();
    }

    fn read(volume: &Volume, group: u64) -> u8 {
        let mut block = vec![0; BLOCK_BYTES];
        volume.read(group * GROUP_BYTES as u64, &mut block).unwrap();
        assert!(block.iter().all(|byte| *byte == block[0]));
        block[0]
    }

    /// A pool without threads that is bound by flushes, and its volume.
    fn bound_by_flushes(machine: &Machine) -> (Pool, std::sync::Arc<Volume>) {
        let pool = pool_on(machine, machine.disk.handle(), 16 << 20, 0);
        pool.create_volume("v", 64 << 20, &Default::default()).unwrap();
        let volume = pool.volume("v").unwrap();
        for value in 1..=STREAK_MIN as u8 {
            write(&volume, 0, value);
            pool.flush().unwrap();
        }
        assert!(pool.core.writes.is_bound_by_flushes());
        (pool, volume)
    }

    fn burst(volume: &Volume, value: u8) {
        (0..BURST).for_each(|group| write(volume, group, value));
    }

    fn parts(pool: &Pool) -> usize {
        pool.core.writes.ahead.state.lock().parts.len()
    }

    #[test]
    fn a_burst_is_compressed_before_its_flush_and_makes_one_batch() {
        let mut machine = Machine::new(32 << 20, 1);
        let (pool, volume) = bound_by_flushes(&machine);
        for group in 0..BURST {
            write(&volume, group, 100 + group as u8);
        }
        assert!(parts(&pool) >= 2, "{} parts", parts(&pool));
        // Readers see no change, and data written again while the part waits is newer.
        assert_eq!(read(&volume, 1), 101);
        write(&volume, 1, 7);
        assert_eq!(read(&volume, 1), 7);
        let before = pool.core.log.applied_seq();
        pool.flush().unwrap();
        assert_eq!(parts(&pool), 0);
        assert_eq!(pool.core.writes.ahead.groups.load(Ordering::Relaxed), 0);
        // The block that was written twice cannot lie in one batch with itself.
        assert_eq!(pool.core.log.applied_seq().0 - before.0, 2);
        drop((volume, pool));
        machine.power_cycle();
        let pool = reopen_on(&machine, machine.disk.handle());
        let volume = pool.volume("v").unwrap();
        for group in 0..BURST {
            assert_eq!(read(&volume, group), if group == 1 { 7 } else { 100 + group as u8 });
        }
    }

    #[test]
    fn a_pool_that_is_not_bound_by_flushes_compresses_nothing_ahead() {
        let machine = Machine::new(32 << 20, 1);
        let (pool, volume) = bound_by_flushes(&machine);
        let much = Bytes::from(vec![9; FLUSH_BYTES_MAX + BLOCK_BYTES]);
        volume.write(0, much, WriteOptions::default()).unwrap();
        pool.flush().unwrap();
        burst(&volume, 1);
        assert_eq!(parts(&pool), 0);
    }

    /// A client that writes during its own flush needs the cores itself.
    #[test]
    fn whoever_writes_during_a_flush_has_nothing_compressed_ahead() {
        let machine = Machine::new(32 << 20, 1);
        let (pool, volume) = bound_by_flushes(&machine);
        pool.core.writes.ahead.flushed(0);
        assert!(pool.core.writes.is_bound_by_flushes());
        pool.core.writes.ahead.flushed(1);
        burst(&volume, 1);
        assert_eq!(parts(&pool), 0);
    }

    /// A snapshot holds all data written before it, in either queue.
    #[test]
    fn what_waits_is_part_of_a_snapshot_and_of_none_before_it() {
        let machine = Machine::new(32 << 20, 1);
        let (pool, volume) = bound_by_flushes(&machine);
        burst(&volume, 50);
        assert!(parts(&pool) > 0);
        pool.snapshot("v", "s").unwrap();
        assert_eq!(parts(&pool), 0);
        burst(&volume, 60);
        let snapshot = pool.volume("v@s").unwrap();
        assert!((0..BURST).all(|group| read(&snapshot, group) == 50 && read(&volume, group) == 60));
        pool.destroy("v@s", false).unwrap();
        pool.flush().unwrap();
        assert!((0..BURST).all(|group| read(&volume, group) == 60));
    }

    /// If a worker finishes a part while a flush waits for it, and no drain will come, the worker
    /// appends it.
    #[test]
    fn a_part_that_no_drain_will_take_along_is_appended_by_whoever_made_it() {
        let machine = Machine::new(32 << 20, 1);
        let (pool, volume) = bound_by_flushes(&machine);
        burst(&volume, 80);
        let core = &pool.core;
        core.writes.flush().unwrap();
        let take = |value: u8| {
            burst(&volume, value);
            core.writes.compress_taken(core.buffer.take(PART_BYTES, u64::MAX)).unwrap()
        };
        // It was begun before the flush, and ends after the flush's last drain.
        core.writes.ahead.flushed(1);
        let part = take(81);
        let generation = core.buffer.begin_flush();
        let flushing = core.writes.ahead.flush(core.buffer.bytes());
        while core.writes.drain(generation).unwrap() {}
        assert!(core.buffer.groups() > 0, "it is on its way");
        core.writes.hand_over(part).unwrap();
        assert_eq!((parts(&pool), core.buffer.groups()), (0, 0));
        // A drain that is going to take it along.
        let part = take(82);
        let collecting = core.writes.ahead.collect();
        core.writes.hand_over(part).unwrap();
        let kept = collecting.parts();
        assert_eq!(kept.len(), 1);
        for part in kept {
            core.writes.append_drained(core.writes.complete(part)).unwrap();
        }
        drop(flushing);
        core.writes.flush().unwrap();
        assert!((0..BURST).all(|group| read(&volume, group) == 82));
    }

    /// Threads and flushes at once: nothing is lost, and no thread waits without end.
    #[test]
    fn with_threads_every_flush_ends_and_holds() {
        let mut machine = Machine::new(64 << 20, 1);
        let pool = pool_on(&machine, machine.disk.handle(), 32 << 20, 2);
        pool.create_volume("v", 64 << 20, &Default::default()).unwrap();
        std::thread::scope(|scope| {
            for part in 0..3 {
                let volume = pool.volume("v").unwrap();
                scope.spawn(move || {
                    for round in 0..60 {
                        for group in 0..BURST {
                            write(&volume, part * BURST + group, (round + group) as u8);
                        }
                        volume.flush().unwrap();
                    }
                });
            }
        });
        drop(pool);
        machine.power_cycle();
        let pool = reopen_on(&machine, machine.disk.handle());
        let volume = pool.volume("v").unwrap();
        for group in 0..3 * BURST {
            assert_eq!(read(&volume, group), (59 + group % BURST) as u8);
        }
    }
}
