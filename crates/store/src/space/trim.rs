//! Punches the space of free extents out of the data file. Owns the list of owed extents.
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
//! (`Checkpoints::list_target`) while it is open, by a few extents and a sixteenth when it is closed.

use units::ExtentIndex;

use crate::space::Space;

/// Occupied space in excess of the used extents that is ignored: file systems count some blocks for
/// themselves. A part of the used extents, and a number of extents.
const EXCESS_DIVISOR: u64 = 16;
const EXCESS_EXTENTS: u64 = 16;
/// Bytes of one turn, and extents: some tens of milliseconds on a file system that is slow at it,
/// and a list of a few KiB.
const TURN_BYTES: u64 = 1 << 30;
pub const TURN_EXTENTS: u32 = 1024;

impl Space {
    /// Punches out the extents that a checkpoint has freed, and owed ones, or owes them. The caller
    /// holds the checkpoint's lock.
    pub fn give_back(&self, freed: &[ExtentIndex]) {
        self.learn_freed(freed);
        self.refresh_host_space();
        self.owe(freed.iter().copied());
        let is_tight = self.is_tight();
        if self.vitals.options.repair || self.is_pressed() && !is_tight {
            return;
        }
        while self.punch_turn() && is_tight {}
        if is_tight {
            self.refresh_host_space();
        }
    }

    /// Notes that free extents have their space still.
    pub fn owe(&self, extents: impl Iterator<Item = ExtentIndex>) {
        self.unpunched.lock().extend(extents);
    }

    /// Returns whether extents are owed.
    pub fn owes_punches(&self) -> bool {
        !self.unpunched.lock().is_empty()
    }

    /// Returns whether the data file occupies clearly more than the used and listed extents, not
    /// counting `spared` extents.
    pub fn occupies_too_much(&self, spared: u64) -> bool {
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
    pub fn turn_extents(&self) -> u32 {
        turn_extents(self.geometry.extent_bytes)
    }

    /// Punches out a turn of owed extents; returns whether more are owed. The caller holds the
    /// checkpoint's lock.
    pub fn punch_turn(&self) -> bool {
        let (owed, is_more) = {
            let mut unpunched = self.unpunched.lock();
            let owed: Vec<_> = (0..self.turn_extents()).map_while(|_| unpunched.pop_first()).collect();
            (owed, !unpunched.is_empty())
        };
        self.punch_free(owed.into_iter());
        is_more
    }

    /// Punches out those of these extents, in ascending order, that are free. The caller holds the
    /// checkpoint's lock.
    pub fn punch_free(&self, extents: impl Iterator<Item = ExtentIndex>) {
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
    use super::*;

    /// It was 16 GiB in extents of 16 MiB, often in one call.
    #[test]
    fn a_turn_gives_back_no_more_than_a_gibibyte() {
        let turns = [32 << 10, 1 << 20, 4 << 20, units::EXTENT_BYTES_MAX].map(turn_extents);
        assert_eq!(turns, [1024, 1024, 256, (TURN_BYTES / u64::from(units::EXTENT_BYTES_MAX)) as u32]);
    }
}
