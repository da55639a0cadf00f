//! The space of free extents goes back to what is below the data file. Owns when that is done, and what is owed.
//!
//! An extent is punched out only while it is free as of a durable checkpoint, no reader is left in it, and no checkpoint can put it on the
//! log's list: whoever does it holds the checkpoint's lock, or is the only one who has the pool.
//!
//! 1. A checkpoint gives back what it has freed. Not while the pool is short of space, because it is filled again at once (see
//!    `backing`), unless it is the storage below that is: then it is *owed*.
//! 2. The keeper pays what is owed when the pool is not short of space any more, or rests.
//! 3. When the pool is closed or opened, and its data file occupies clearly more than what is in use and what the log has listed, all
//!    that is free is given back: what was owed in an earlier life is not known any more. At the end, the log's list is made short before: what
//!    is on it is not given back, and nobody is going to fill it soon.
//!
//! So what a pool occupies beside what is in use is bounded by the log's list (`Core::list_target`) while it is open, by a few extents
//! and a sixteenth when it is closed.

use std::sync::atomic::Ordering;

use surface::Result;
use units::ExtentIndex;

use crate::core::Core;

/// Occupied beyond what is in use, and not worth looking for: what file systems count for themselves. A part of what is in use, and extents.
const EXCESS_DIVISOR: u64 = 16;
const EXCESS_EXTENTS: u64 = 16;

impl Core {
    /// Gives back what a checkpoint has freed, and what is owed, or owes it. The caller holds the checkpoint's lock.
    pub(crate) fn give_back(&self, freed: &[ExtentIndex]) {
        self.look_below();
        self.unpunched.lock().extend(freed);
        let is_tight = self.is_tight();
        if self.is_pressed() && !is_tight {
            return;
        }
        self.pay();
        if is_tight {
            self.look_below();
        }
    }

    /// Gives back what is owed, if there is no reason to keep it any more.
    pub(crate) fn pay_owed(&self) {
        if self.unpunched.lock().is_empty() || self.is_pressed() && !self.is_resting() {
            return;
        }
        // One that is under way comes to it by itself, or leaves it for the next time.
        if let Some(_still) = self.checkpoint.try_lock() {
            self.pay();
        }
    }

    /// The last checkpoint of a pool that is being closed.
    pub(crate) fn take_last_checkpoint(&self) -> Result<()> {
        if self.occupies_too_much(self.log.ahead() as u64) {
            self.ends.store(true, Ordering::Relaxed);
        }
        self.take_checkpoint()?;
        self.give_back_all();
        Ok(())
    }

    /// Gives back all that is free, if that is much.
    pub(crate) fn give_back_all(&self) {
        if !self.occupies_too_much(0) {
            return;
        }
        let _still = self.checkpoint.lock();
        let all = (1..self.geometry.extents()).map(ExtentIndex);
        self.unpunched.lock().extend(all);
        self.pay();
    }

    /// Whether the data file occupies clearly more than what is in use and listed, but for `spared` extents of that.
    fn occupies_too_much(&self, spared: u64) -> bool {
        // Nobody else can use what is free on a device.
        if self.env.disk.room_bytes() == u64::MAX {
            return false;
        }
        let kept = u64::from(self.geometry.extents()).saturating_sub(self.extents.lock().free() + spared);
        let most = kept + kept / EXCESS_DIVISOR + EXCESS_EXTENTS;
        // Who cannot be asked has nothing to give.
        self.env.disk.occupied_bytes().unwrap_or(0) > most * u64::from(self.geometry.extent_bytes)
    }

    fn pay(&self) {
        let owed = std::mem::take(&mut *self.unpunched.lock());
        let free: Vec<_> = {
            let extents = self.extents.lock();
            owed.into_iter().filter(|extent| extents.is_free(*extent)).collect()
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
            // Space that is not given back now is when the extent is freed again; nothing depends on it.
            let _ = self.env.disk.punch(self.geometry.start(*first), len);
            rest = &rest[count..];
        }
    }
}
