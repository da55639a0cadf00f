//! Punches the space of free extents out of the data file. Owns when that is done, and the list of
//! owed extents.
//!
//! An extent is punched out only while it is free as of a durable checkpoint, no reader is left in
//! it, and no checkpoint can put it on the log's list: the punching thread holds the checkpoint's
//! lock, or is the only user of the pool.
//!
//! 1. A checkpoint punches out the extents that it has freed. While the pool is short of space they
//!    are filled again at once (see `backing`), so they stay *owed*, unless the file system is short
//!    as well.
//! 2. The maintenance thread punches out owed extents, a turn at each of its looks, when the pool
//!    is not short of space any more, or rests.
//! 3. When the pool is closed or opened, all free extents are punched out for as long as the data
//!    file occupies clearly more than the used extents and the log's list: extents owed before the
//!    last close are not known any more. On closing, the log's list is shortened first: its extents
//!    are not punched out, and no writer will fill it soon. A client that waits for the pool, or a
//!    service manager that waits for the process, waits a bounded time; the next closing continues.
//!
//! The work is done in *turns* of a bounded number of extents, each with fresh locks, so that no
//! thread waits for more than one. Where the file system is short of space, a checkpoint punches
//! all at once: writers wait for it.
//!
//! A repair of a pool punches nothing: data that it accepted as lost may still be in free extents,
//! for a user to examine. The next opening does.
//!
//! So the space that a pool occupies in addition to its used extents is bounded by the log's list
//! (`Core::list_target`) while it is open, by a few extents and a sixteenth when it is closed.

use surface::Result;
use units::ExtentIndex;

use crate::pool::core::Core;

/// Occupied space in excess of the used extents that is ignored: file systems count some blocks for
/// themselves. A part of the used extents, and a number of extents.
const EXCESS_DIVISOR: u64 = 16;
const EXCESS_EXTENTS: u64 = 16;
/// Bytes of one turn, and extents: some tens of milliseconds on a file system that is slow at it,
/// and a list of a few KiB.
const TURN_BYTES: u64 = 1 << 30;
const TURN_EXTENTS: u32 = 1024;
/// How long opening and closing a pool may be held up, in nanoseconds: less than users take for a
/// hang, and much less than service managers give a process to end.
const OPEN_NS_MAX: u64 = 2_000_000_000;
const CLOSE_NS_MAX: u64 = 10_000_000_000;

impl Core {
    /// Punches out the extents that a checkpoint has freed, and owed ones, or owes them. The caller
    /// holds the checkpoint's lock.
    pub(crate) fn give_back(&self, freed: &[ExtentIndex]) {
        self.refresh_host_space();
        self.unpunched.lock().extend(freed);
        let is_tight = self.is_tight();
        if self.vitals.options.repair || self.is_pressed() && !is_tight {
            return;
        }
        while self.pay() && is_tight {}
        if is_tight {
            self.refresh_host_space();
        }
    }

    /// Punches out a turn of owed extents, if there is no reason to keep them any more.
    pub(crate) fn punch_owed(&self) {
        if self.vitals.options.repair || self.unpunched.lock().is_empty() || self.is_pressed() && !self.is_resting() {
            return;
        }
        // A running checkpoint does it by itself, or leaves it for the next time.
        if let Some(_still) = self.checkpoint.try_lock() {
            self.pay();
        }
    }

    /// The last checkpoint of a pool that is being closed.
    pub(crate) fn take_last_checkpoint(&self) -> Result<()> {
        self.vitals.end(self.occupies_too_much(self.log.ahead() as u64));
        self.take_checkpoint()?;
        self.punch_all_free(CLOSE_NS_MAX);
        Ok(())
    }

    /// Called before an opened pool serves any client.
    pub(crate) fn punch_at_open(&self) {
        self.punch_all_free(OPEN_NS_MAX);
    }

    /// Punches out all free extents while they occupy much, for at most so many nanoseconds plus a
    /// turn.
    fn punch_all_free(&self, most_ns: u64) {
        if self.vitals.options.repair {
            return;
        }
        let until = self.vitals.env.clock.now_ns().saturating_add(most_ns);
        let mut from = 1;
        while from < self.geometry.extents() && self.occupies_too_much(0) && self.vitals.env.clock.now_ns() < until {
            let to = from.saturating_add(self.turn_extents()).min(self.geometry.extents());
            let _still = self.checkpoint.lock();
            self.punch_free((from..to).map(ExtentIndex));
            from = to;
        }
    }

    /// Returns whether the data file occupies clearly more than the used and listed extents, not
    /// counting `spared` extents.
    fn occupies_too_much(&self, spared: u64) -> bool {
        // No other program can use free space on a device.
        if self.vitals.env.disk.room_bytes() == u64::MAX {
            return false;
        }
        let kept = u64::from(self.geometry.extents()).saturating_sub(self.extents.lock().free() + spared);
        let most = kept + kept / EXCESS_DIVISOR + EXCESS_EXTENTS;
        // If the storage cannot answer, there is nothing to punch.
        self.vitals.env.disk.occupied_bytes().unwrap_or(0) > most * u64::from(self.geometry.extent_bytes)
    }

    /// Returns how many extents a turn may punch out.
    fn turn_extents(&self) -> u32 {
        turn_extents(self.geometry.extent_bytes)
    }

    /// Runs a turn of owed extents; returns whether more are owed.
    fn pay(&self) -> bool {
        let (owed, is_more) = {
            let mut unpunched = self.unpunched.lock();
            let owed: Vec<_> = (0..self.turn_extents()).map_while(|_| unpunched.pop_first()).collect();
            (owed, !unpunched.is_empty())
        };
        self.punch_free(owed.into_iter());
        is_more
    }

    /// Punches out those of these extents, in ascending order, that are free.
    fn punch_free(&self, extents: impl Iterator<Item = ExtentIndex>) {
        let free: Vec<_> = {
            let all = self.extents.lock();
            extents.filter(|extent| all.is_free(*extent)).collect()
        };
        self.punch(&free);
    }

    /// Punches out free extents, neighbours in one call.
    fn punch(&self, free: &[ExtentIndex]) {
        let mut rest = free;
        while let Some(first) = rest.first() {
            let count = rest.iter().enumerate().take_while(|(i, e)| e.0 == first.0 + *i as u32).count();
            let len = count as u64 * u64::from(self.geometry.extent_bytes);
            self.log.backing.loses(*first, count);
            // An error needs no handling: the space is punched when the extent is freed again.
            let _ = self.vitals.env.disk.punch(self.geometry.start(*first), len);
            rest = &rest[count..];
        }
    }
}

/// Returns how many extents of so many bytes a turn may punch out, at least one.
fn turn_extents(extent_bytes: u32) -> u32 {
    (TURN_BYTES / u64::from(extent_bytes)).clamp(1, TURN_EXTENTS.into()) as u32
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use env::{Clock, Disk};
    use sim::Machine;

    use super::*;
    use crate::base::options::{FormatOptions, PoolOptions};
    use crate::base::testing::env_on;
    use crate::pool::Pool;

    const EXTENT_BYTES: u64 = 32 << 10;
    const TURNS: u64 = 3;
    const CAPACITY: u64 = TURNS * TURN_EXTENTS as u64 * EXTENT_BYTES;
    const FREED_MAX: u64 = TURN_EXTENTS as u64 * EXTENT_BYTES;

    /// Each look at it takes a second.
    #[derive(Debug, Default)]
    struct Slow(AtomicU64);

    impl Clock for Slow {
        fn now_ns(&self) -> u64 {
            self.0.fetch_add(1_000_000_000, Ordering::Relaxed)
        }

        fn unix_s(&self) -> u64 {
            0
        }

        fn thread_cpu_ns(&self) -> u64 {
            0
        }
    }

    /// An empty pool all of whose extents have their space allocated.
    fn occupied_pool(machine: &Machine) -> Pool {
        let mut env = env_on(machine, machine.disk.handle());
        env.clock = Arc::new(Slow::default());
        let options = FormatOptions {
            capacity_bytes: CAPACITY,
            extent_bytes: EXTENT_BYTES as u32,
            properties: Default::default(),
        };
        Pool::format(&env, &options).unwrap();
        // The log lists few extents.
        let options = PoolOptions { workers: 0, checkpoint_log_bytes: 1 << 20, ..PoolOptions::default() };
        let pool = Pool::open(env, options).unwrap();
        machine.disk.limit_space(Some(2 * CAPACITY));
        machine.disk.handle().reserve(0, CAPACITY).unwrap();
        pool
    }

    fn occupied(machine: &Machine) -> u64 {
        machine.disk.handle().occupied_bytes().unwrap()
    }

    /// All of it went in one go, under the lock of checkpoints.
    #[test]
    fn what_is_owed_is_paid_in_turns() {
        let machine = Machine::new(CAPACITY, 1);
        let pool = occupied_pool(&machine);
        let all = (1..pool.core.geometry.extents()).map(ExtentIndex);
        pool.core.unpunched.lock().extend(all);
        let mut before = CAPACITY;
        for turn in 0..TURNS {
            pool.core.punch_owed();
            let now = occupied(&machine);
            assert!(now < before && before - now <= FREED_MAX, "turn {turn}: {before} to {now}");
            before = now;
        }
        assert!(before < FREED_MAX && pool.core.unpunched.lock().is_empty(), "{before}");
    }

    /// It was 16 GiB in extents of 16 MiB, often in one call.
    #[test]
    fn a_turn_gives_back_no_more_than_a_gibibyte() {
        let turns = [32 << 10, 1 << 20, 4 << 20, units::EXTENT_BYTES_MAX].map(turn_extents);
        assert_eq!(turns, [1024, 1024, 256, (TURN_BYTES / u64::from(units::EXTENT_BYTES_MAX)) as u32]);
    }

    /// A service manager kills a process that has not ended by then.
    #[test]
    fn closing_gives_back_for_a_bounded_time() {
        let machine = Machine::new(CAPACITY, 1);
        let pool = occupied_pool(&machine);
        // The first look decides when to end, each turn begins with one.
        pool.core.punch_all_free(3_000_000_000);
        let left = occupied(&machine);
        assert!((CAPACITY - 2 * FREED_MAX..CAPACITY - FREED_MAX).contains(&left), "{left} of {CAPACITY}");
        pool.core.punch_all_free(CLOSE_NS_MAX);
        assert!(occupied(&machine) < FREED_MAX);
    }
}
