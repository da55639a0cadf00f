//! Punches the space of free extents out of the data file at opening, at closing, and when the
//! maintenance thread calls; a checkpoint does it itself for the extents that it frees
//! (`space::trim` has the steps). Owns no state. Each turn holds the checkpoint's lock, so that no
//! checkpoint lists an extent meanwhile.

use surface::Result;
use units::ExtentIndex;

use crate::checkpoint::Checkpoints;

/// How long opening and closing a pool may be held up, in nanoseconds: less than users take for a
/// hang, and much less than service managers give a process to end.
const OPEN_NS_MAX: u64 = 2_000_000_000;
const CLOSE_NS_MAX: u64 = 10_000_000_000;

impl Checkpoints {
    /// Punches out a turn of owed extents, if there is no reason to keep them any more.
    pub(crate) fn punch_owed(&self) {
        if self.vitals.options.repair || !self.space.owes_punches() || self.space.is_pressed() && !self.is_resting() {
            return;
        }
        // A running checkpoint does it by itself, or leaves it for the next time.
        if let Some(_still) = self.state.try_lock() {
            self.space.punch_turn();
        }
    }

    /// The last checkpoint of a pool that is being closed.
    pub(crate) fn take_last(&self) -> Result<()> {
        self.vitals.end(self.space.occupies_too_much(self.log.ahead() as u64));
        self.take()?;
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
        while from < self.geometry.extents()
            && self.space.occupies_too_much(0)
            && self.vitals.env.clock.now_ns() < until
        {
            let to = from.saturating_add(self.space.turn_extents()).min(self.geometry.extents());
            let _still = self.state.lock();
            self.space.punch_free((from..to).map(ExtentIndex));
            from = to;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use env::{Clock, Disk};
    use sim::Machine;
    use store::base::options::{FormatOptions, PoolOptions};
    use store::space::trim::TURN_EXTENTS;

    use super::*;
    use crate::pool::Pool;
    use crate::pool::testing::env_on;

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
        pool.core.space.owe(all);
        let mut before = CAPACITY;
        for turn in 0..TURNS {
            pool.core.checkpoints.punch_owed();
            let now = occupied(&machine);
            assert!(now < before && before - now <= FREED_MAX, "turn {turn}: {before} to {now}");
            before = now;
        }
        assert!(before < FREED_MAX && !pool.core.space.owes_punches(), "{before}");
    }

    /// A service manager kills a process that has not ended by then.
    #[test]
    fn closing_gives_back_for_a_bounded_time() {
        let machine = Machine::new(CAPACITY, 1);
        let pool = occupied_pool(&machine);
        // The first look decides when to end, each turn begins with one.
        pool.core.checkpoints.punch_all_free(3_000_000_000);
        let left = occupied(&machine);
        assert!((CAPACITY - 2 * FREED_MAX..CAPACITY - FREED_MAX).contains(&left), "{left} of {CAPACITY}");
        pool.core.checkpoints.punch_all_free(CLOSE_NS_MAX);
        assert!(occupied(&machine) < FREED_MAX);
    }
}
