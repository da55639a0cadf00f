//! Large ranges that become holes, bypassing the write buffer: discarded ranges, and the end of a
//! volume that shrinks.
//!
//! A hole costs the map a change for each known group, so a range goes into the log in *pieces* of
//! a few thousand such groups, and before each piece the caller waits until the changes have their
//! share of memory again. A piece of a mostly empty range is long: a batch for each half gigabyte
//! would fill the log for nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::{Entry, HOLE_BLOCKS_MAX, ObjectDescriptor};
use store::base::canary::Canary;
use store::objects::Object;
use surface::{Hint, Result};
use units::{BLOCK_BYTES, BlockIndex, GROUP_BLOCKS, GroupIndex, format_size};

use crate::volume::Volume;
use crate::volume::parts::Volumes;

/// Groups with data in one piece. They are looked up while nothing else is applied.
const PIECE_GROUPS: u64 = 4096;
/// Blocks that cannot have more groups, whatever the map holds.
pub(crate) const PIECE_BLOCKS_MIN: u64 = PIECE_GROUPS * GROUP_BLOCKS as u64;
/// Ranges of one piece, of up to 64 GiB each.
const PIECE_RANGES: u64 = 16;
const PIECE_BLOCKS_MAX: u64 = PIECE_RANGES * HOLE_BLOCKS_MAX as u64;

/// Blocks of the next piece to try.
pub(crate) struct Pace(u64);

impl Default for Pace {
    fn default() -> Self {
        Self(PIECE_BLOCKS_MAX)
    }
}

impl Pace {
    /// Returns the blocks of the next piece of `left`. `holds_many` returns whether so many blocks
    /// hold too much for a piece.
    fn next(&mut self, left: u64, mut holds_many: impl FnMut(u64) -> Result<bool>) -> Result<u64> {
        let mut blocks = self.0.min(left);
        while blocks > PIECE_BLOCKS_MIN && holds_many(blocks)? {
            blocks /= 2;
        }
        // The next piece may be as dense, or empty.
        self.0 = (2 * blocks).clamp(PIECE_BLOCKS_MIN, PIECE_BLOCKS_MAX);
        Ok(blocks)
    }
}

impl Volumes {
    /// Makes a piece of a large range holes without going through the write buffer block by block;
    /// returns its end.
    ///
    /// 1. Data dirty by now is drained, so that the log keeps the order.
    /// 2. The piece is appended, and applied.
    ///
    /// A concurrent write to the range is ordered before or after it, block by block; a write of a
    /// partial block waits: it would restore its copy of the rest.
    pub(crate) fn punch_piece(
        &self,
        object: &Object,
        (from, to): (BlockIndex, BlockIndex),
        pace: &mut Pace,
    ) -> Result<BlockIndex> {
        let _punching = self.punching.read();
        let _no_parts = object.parts.write();
        self.writes.drain_all()?;
        self.checkpoints.bound_changes()?;
        let blocks = pace.next(to.0 - from.0, |blocks| self.holds_many(object, from.0, from.0 + blocks))?;
        let end = BlockIndex(from.0 + blocks);
        let result = self.writes.append_applied(self.writes.holes(object, from.0, end.0));
        // Even if it failed: it may have been applied.
        self.punches.fetch_add(1, Ordering::AcqRel);
        result.map(|()| end)
    }

    /// Cuts off the range after `size_bytes`, piece by piece, from the end: after an error or a
    /// crash the volume has the size reached by then, which the error names. Durable on return,
    /// also with an error. The caller holds the gate.
    pub(crate) fn cut_off(&self, object: &Object, size_bytes: u64) -> Result<()> {
        let before = object.size_bytes();
        let cut = self.cut_pieces(object, size_bytes);
        let reached = object.size_bytes();
        if cut.is_ok() || reached < before {
            let synced = self.log.sync();
            // Of two errors the first one is the cause.
            return cut.and(synced).map_err(|error| match reached > size_bytes {
                true => error.context(format_args!("the volume was cut to {} only", format_size(reached))),
                false => error,
            });
        }
        cut
    }

    fn cut_pieces(&self, object: &Object, size_bytes: u64) -> Result<()> {
        // Data that is dirty now must come before the holes in the log, and never after them.
        self.writes.drain_past_current()?;
        // A partly kept block stays: its rest is not visible, and is zeroed before the volume grows
        // over it.
        let first = size_bytes.div_ceil(BLOCK_BYTES as u64);
        let mut end = object.size_bytes().div_ceil(BLOCK_BYTES as u64);
        let mut pace = Pace::default();
        while end > first {
            self.checkpoints.bound_changes()?;
            let from = end - pace.next(end - first, |blocks| self.holds_many(object, end - blocks, end))?;
            let size_bytes = if from == first { size_bytes } else { from * BLOCK_BYTES as u64 };
            // One batch for both: cut off and smaller, or neither.
            let resized = Entry::Object(ObjectDescriptor { size_bytes, ..object.descriptor.read().clone() });
            let entries = self.writes.holes(object, from, end).into_iter().chain([resized]);
            self.writes.append_applied(entries.collect())?;
            end = from;
        }
        if object.size_bytes() != size_bytes {
            let resized = Entry::Object(ObjectDescriptor { size_bytes, ..object.descriptor.read().clone() });
            self.writes.append_applied(vec![resized])?;
        }
        Ok(())
    }

    /// Zeroes the rest of the last block of a volume that does not end with a block: it is about to
    /// be visible, because the volume grows. Precedes all later changes in the log. The caller
    /// holds the gate exclusively.
    pub(crate) fn zero_past_end(self: &Arc<Self>, object: &Arc<Object>) -> Result<()> {
        let size_bytes = object.size_bytes();
        let used = (size_bytes % BLOCK_BYTES as u64) as usize;
        if used == 0 || Canary::CutBlockNotZeroed.is_planted() {
            return Ok(());
        }
        let mut block = vec![0; BLOCK_BYTES];
        self.reads.read(object, size_bytes - used as u64, &mut block)?;
        if !policy::is_zero(&block[used..]) {
            let behind = BLOCK_BYTES - used;
            let room = self.make_room.admit(object, size_bytes, behind as u64)?;
            let volume = Volume::new(Arc::clone(self), Arc::clone(object));
            volume.write_part(size_bytes, &vec![0; behind], false, Hint::default(), &room)?;
        }
        // Also where zeroes are only in the write buffer: the log may have older bytes there, and a
        // crash must not restore them in the larger volume.
        self.writes.drain_past_current()
    }

    /// Returns whether the store has more groups of these blocks than a piece may have. The active
    /// overlay's groups do not grow by the piece; frozen or settled groups that are not in the
    /// store yet may be added once more, and have their share of memory.
    fn holds_many(&self, object: &Object, from: u64, to: u64) -> Result<bool> {
        let (from, to) = (BlockIndex(from).group(), GroupIndex(BlockIndex(to - 1).group().0 + 1));
        let mut groups = 0;
        for level in object.levels().iter() {
            groups += self.map.count_groups(level.object, from, to, PIECE_GROUPS + 1)?;
            groups += to.0.min(level.image_groups()).saturating_sub(from.0);
        }
        Ok(groups > PIECE_GROUPS)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use bytes::Bytes;
    use sim::{Fault, Machine};
    use store::base::options::{FormatOptions, PoolOptions};
    use surface::{BlockDevice, WriteOptions};

    use super::*;
    use crate::pool::Pool;
    use crate::pool::testing::env_on;

    const GROUP_BYTES: u64 = (GROUP_BLOCKS * BLOCK_BYTES) as u64;

    #[test]
    fn the_pace_follows_what_is_there() {
        let dense = 2 * PIECE_BLOCKS_MIN;
        let mut pace = Pace::default();
        let looked = std::cell::Cell::new(0);
        let holds_many = |blocks| {
            looked.set(looked.get() + 1);
            Ok(blocks > dense)
        };
        let mut left = 100 * dense;
        while left > 0 {
            let blocks = pace.next(left, holds_many).unwrap();
            assert!(0 < blocks && blocks <= dense);
            left -= blocks;
        }
        assert!(looked.get() < 2 * 200 + 20, "{} looks", looked.get());
        assert_eq!(Pace::default().next(u64::MAX, |_| Ok(false)).unwrap(), PIECE_BLOCKS_MAX);
    }

    fn open(machine: &Machine) -> Pool {
        let options = PoolOptions { workers: 0, memory_bytes: 4 << 20, ..PoolOptions::default() };
        Pool::open(env_on(machine, machine.disk.handle()), options).unwrap()
    }

    /// A pool with little memory, and a volume with a block in each of so many groups.
    fn scattered(machine: &Machine, groups: u64) -> Pool {
        let env = env_on(machine, machine.disk.handle());
        let options =
            FormatOptions { capacity_bytes: 128 << 20, extent_bytes: 256 << 10, properties: Default::default() };
        Pool::format(&env, &options).unwrap();
        let pool = open(machine);
        pool.create_volume("v", groups * GROUP_BYTES, &Default::default()).unwrap();
        let volume = pool.volume("v").unwrap();
        for group in 0..groups {
            let block = vec![group as u8 | 1; BLOCK_BYTES];
            volume.write(group * GROUP_BYTES, Bytes::from(block), WriteOptions::default()).unwrap();
        }
        pool.checkpoint().unwrap();
        pool
    }

    fn changes_stay_bounded(change: impl FnOnce(&Pool)) {
        let machine = Machine::new(128 << 20, 1);
        let pool = scattered(&machine, 5 * PIECE_GROUPS);
        change(&pool);
        let piece_bytes = 256 * PIECE_GROUPS as usize;
        let (bytes, share) = (pool.core.map.active().bytes(), pool.core.shares.overlay);
        assert!(bytes <= share + piece_bytes, "{bytes} bytes of changes, of which {share} are allowed");
        assert_eq!(pool.volumes()[0].allocated_bytes, 0);
        pool.checkpoint().unwrap();
        pool.drop_caches();
        assert!(pool.check(false, &mut |_, _| ()).unwrap().problems.is_empty());
        pool.close().unwrap();
    }

    #[test]
    fn a_large_discard_does_not_fill_memory() {
        changes_stay_bounded(|pool| {
            let volume = pool.volume("v").unwrap();
            volume.discard(0, volume.size_bytes()).unwrap();
        });
    }

    #[test]
    fn a_volume_that_shrinks_does_not_fill_memory() {
        changes_stay_bounded(|pool| {
            // The first block remains; it becomes a hole, so that nothing is left.
            pool.volume("v").unwrap().discard(0, BLOCK_BYTES as u64).unwrap();
            pool.resize_volume("v", BLOCK_BYTES as u64).unwrap();
        });
    }

    /// The error said nothing about the part cut off so far, and that part was not durable.
    #[test]
    fn a_volume_that_is_cut_in_part_says_how_large_it_is_and_stays_so() {
        let machine = Machine::new(128 << 20, 1);
        scattered(&machine, 5 * PIECE_GROUPS).close().unwrap();
        let before = 5 * PIECE_GROUPS * GROUP_BYTES;
        // A write that fails once is tried again; a look into the map is not.
        let cut_in_part = |steps| {
            let mut machine = machine.duplicate(steps);
            let pool = open(&machine);
            machine.power.number_reads(true);
            machine.power.plan(machine.power.next_point() + steps, Fault::Io);
            let error = pool.resize_volume("v", BLOCK_BYTES as u64).err()?;
            machine.power.number_reads(false);
            let size_bytes = pool.volumes()[0].size_bytes;
            drop(pool);
            machine.power_cycle();
            (size_bytes < before).then_some((error.to_string(), size_bytes, machine))
        };
        let (text, size_bytes, machine) = (0..1000).find_map(cut_in_part).unwrap();
        assert!(text.contains(&format!("cut to {} only", format_size(size_bytes))), "{text}");
        let pool = open(&machine);
        assert_eq!(pool.volumes()[0].size_bytes, size_bytes);
        pool.close().unwrap();
    }

    /// A size that ends within a block: the rest of that block must not show when the volume, or
    /// a clone of its snapshot, grows.
    #[test]
    fn what_was_cut_off_within_a_block_reads_as_zeroes_after_growing() {
        const ALL: usize = 3 * BLOCK_BYTES;
        for (cut, is_stored) in [(1, true), (1, false), (4095, true), (4097, false), (5000, true), (8191, true)] {
            let mut machine = Machine::new(128 << 20, 1);
            let pool = scattered(&machine, 1);
            let volume = pool.volume("v").unwrap();
            volume.write(0, Bytes::from(vec![7; ALL]), WriteOptions::default()).unwrap();
            if is_stored {
                pool.checkpoint().unwrap();
            }
            pool.resize_volume("v", cut as u64).unwrap();
            assert_eq!(volume.size_bytes(), cut as u64);
            let mut last = [0; 1];
            volume.read(cut as u64 - 1, &mut last).unwrap();
            assert_eq!(last, [7]);
            assert!(volume.read(cut as u64 - 1, &mut [0; 2]).is_err(), "a read past the end of {cut} bytes");
            assert!(volume.write(cut as u64, Bytes::from_static(b"x"), WriteOptions::default()).is_err());
            pool.snapshot("v", "s").unwrap();
            pool.clone_snapshot("v@s", "c", &Default::default()).unwrap();
            let expected: Vec<u8> = (0..ALL).map(|at| if at < cut { 7 } else { 0 }).collect();
            for name in ["v", "c"] {
                pool.resize_volume(name, ALL as u64).unwrap();
                let mut bytes = vec![1; ALL];
                pool.volume(name).unwrap().read(0, &mut bytes).unwrap();
                assert!(bytes == expected, "'{name}' cut to {cut} shows what was cut off");
            }
            drop((volume, pool));
            machine.power_cycle();
            let pool = open(&machine);
            for name in ["v", "c"] {
                let mut bytes = vec![1; ALL];
                pool.volume(name).unwrap().read(0, &mut bytes).unwrap();
                assert!(bytes == expected, "'{name}' cut to {cut} shows what was cut off after the power failed");
            }
            assert_eq!(pool.volume("v@s").unwrap().size_bytes(), cut as u64);
            pool.close().unwrap();
        }
    }

    /// The zeroes after the end were in the write buffer, and the log's data there reappeared.
    #[test]
    fn what_was_cut_off_does_not_come_back_with_a_crash_after_growing() {
        let mut machine = Machine::new(128 << 20, 1);
        let pool = scattered(&machine, 1);
        let volume = pool.volume("v").unwrap();
        volume.write(0, Bytes::from(vec![7; 2 * BLOCK_BYTES]), WriteOptions::default()).unwrap();
        pool.flush().unwrap();
        pool.resize_volume("v", 5000).unwrap();
        volume.discard(0, 5000).unwrap();
        pool.resize_volume("v", 2 * BLOCK_BYTES as u64).unwrap();
        drop((volume, pool));
        machine.power_cycle();
        let pool = open(&machine);
        let volume = pool.volume("v").unwrap();
        assert_eq!(volume.size_bytes(), 2 * BLOCK_BYTES as u64);
        let mut behind = vec![1; 2 * BLOCK_BYTES - 5000];
        volume.read(5000, &mut behind).unwrap();
        assert!(behind.iter().all(|byte| *byte == 0), "what was cut off is back");
        pool.close().unwrap();
    }

    /// A discard up to an end within a block leaves nothing of that block allocated.
    #[test]
    fn a_discard_up_to_an_odd_end_leaves_nothing() {
        let machine = Machine::new(128 << 20, 1);
        let pool = scattered(&machine, 1);
        let volume = pool.volume("v").unwrap();
        volume.write(0, Bytes::from(vec![7; 3 * BLOCK_BYTES]), WriteOptions::default()).unwrap();
        pool.resize_volume("v", 5000).unwrap();
        volume.discard(0, 5000).unwrap();
        pool.checkpoint().unwrap();
        assert_eq!(pool.volumes()[0].allocated_bytes, 0);
        pool.close().unwrap();
    }

    #[test]
    fn what_is_empty_costs_few_batches() {
        let machine = Machine::new(128 << 20, 1);
        let pool = scattered(&machine, 8);
        pool.resize_volume("v", 64 << 40).unwrap();
        let before = pool.status().log_bytes;
        pool.volume("v").unwrap().discard(0, 64 << 40).unwrap();
        let written = pool.status().log_bytes - before;
        assert!(written < 1 << 20, "{written} bytes of log");
        pool.close().unwrap();
    }
}
