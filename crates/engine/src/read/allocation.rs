//! Determines which parts of an object hold data, and loads parts of it into memory.

use store::base::group::GroupKey;
use store::map::Piece;
use store::objects::Object;
use surface::{Allocation, Result, Run};
use units::{BLOCK_BYTES, BlockIndex, BlockMask, GROUP_BLOCKS, GroupIndex};

use crate::read::Reads;
use crate::read::runs::Runs;

/// Groups that are searched at once (128 MiB); after a nearly empty search, twice as many the next
/// time. So a hole that fills most of a huge volume is crossed in a few steps, and a caller that
/// wants a few runs of a full one does not search all of it.
const WINDOW_GROUPS: u64 = 1024;
/// Upper bound of groups with records that are found at once.
const FOUND_MAX: usize = WINDOW_GROUPS as usize;

impl Reads {
    /// See `BlockDevice::allocation`.
    pub(crate) fn allocation(&self, object: &Object, offset: u64, length: u64, runs_max: usize) -> Result<Vec<Run>> {
        let mut runs = Runs::new(runs_max);
        if length == 0 {
            return Ok(runs.finish());
        }
        let end = offset + length;
        let last = BlockIndex::containing(end - 1).group();
        let mut group = BlockIndex::containing(offset).group();
        // Appends the part of blocks `from..to` in the range.
        let push = |runs: &mut Runs, from: u64, to: u64, allocation| {
            let low = (from * BLOCK_BYTES as u64).clamp(offset, end);
            let high = (to * BLOCK_BYTES as u64).clamp(offset, end);
            runs.push(high - low, allocation)
        };
        let mut window = WINDOW_GROUPS;
        while group <= last {
            let to = GroupIndex((group.0 + window).min(last.0 + 1));
            let (known, next) = self.known_groups(object, group, to, FOUND_MAX)?;
            window = if known.len() < FOUND_MAX / 2 { 2 * window } else { WINDOW_GROUPS };
            let mut at = group.first_block().0;
            for known in known {
                let start = known.first_block().0;
                if !push(&mut runs, at, start, Allocation::Hole) {
                    return Ok(runs.finish());
                }
                let data = self.allocated_mask(object, known, BlockMask::FULL)?;
                for block in 0..GROUP_BLOCKS as u32 {
                    let kind = if data.has(block) { Allocation::Data } else { Allocation::Hole };
                    let block = start + u64::from(block);
                    if !push(&mut runs, block, block + 1, kind) {
                        return Ok(runs.finish());
                    }
                }
                at = start + GROUP_BLOCKS as u64;
            }
            if !push(&mut runs, at, next.first_block().0, Allocation::Hole) {
                return Ok(runs.finish());
            }
            group = next;
        }
        Ok(runs.finish())
    }

    /// Returns the groups known to the write buffer or the map, in order, and where the search
    /// ended: at `to`, or earlier, after `records_max` groups with records.
    pub(crate) fn known_groups(
        &self,
        object: &Object,
        from: GroupIndex,
        mut to: GroupIndex,
        records_max: usize,
    ) -> Result<(Vec<GroupIndex>, GroupIndex)> {
        // The buffer comes first, as for a reader: data that leaves it is in the map by then. The
        // other way round, data drained between the two looks would be in neither, and be taken for
        // a hole.
        let mut groups = self.buffer.groups_in(object.id, from, to);
        // Origins come first, for the same reason: between two looks, a destroyed origin may lose
        // the blocks that a clone has just written over.
        for level in object.levels().iter().rev() {
            let (found, end) = self.map.groups_in(level.object, from, to, records_max)?;
            groups.extend(found);
            to = end;
            groups.extend((from.0..to.0.min(level.image_groups())).map(GroupIndex));
        }
        groups.retain(|group| *group < to);
        groups.sort_unstable();
        groups.dedup();
        Ok((groups, to))
    }

    /// Returns those of the `wanted` blocks of a group that hold data, or may: unfetched blocks of
    /// an image.
    pub(crate) fn allocated_mask(&self, object: &Object, group: GroupIndex, wanted: BlockMask) -> Result<BlockMask> {
        self.masks(object, group, wanted, |_| true).map(|(data, absent)| data.or(absent))
    }

    /// Like `allocated_mask`, but counts only those pieces in the map that `counts` accepts, and no
    /// unfetched blocks.
    pub(crate) fn data_mask(
        &self,
        object: &Object,
        group: GroupIndex,
        wanted: BlockMask,
        counts: impl Fn(&Piece) -> bool,
    ) -> Result<BlockMask> {
        self.masks(object, group, wanted, counts).map(|(data, _)| data)
    }

    /// Returns the blocks with data, and the unfetched blocks of an image.
    fn masks(
        &self,
        object: &Object,
        group: GroupIndex,
        wanted: BlockMask,
        counts: impl Fn(&Piece) -> bool,
    ) -> Result<(BlockMask, BlockMask)> {
        let (mut data, mut absent) = (BlockMask::EMPTY, BlockMask::EMPTY);
        let key = GroupKey { object: object.id, group };
        let dirty = self.buffer.read(key, wanted, &mut |run| {
            data = if run.data.is_some() { data.or(run.mask()) } else { data.minus(run.mask()) };
        });
        let missing = wanted.minus(dirty);
        if !missing.is_empty() {
            let pieces;
            (pieces, absent) = self.map.lookup_partly(&object.levels(), group, missing)?;
            for piece in pieces.iter().filter(|piece| counts(piece)) {
                data = data.or(piece.fragment.live);
            }
        }
        Ok((data, absent))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use bytes::Bytes;
    use env::{MapError, MapStore, ScanStep, StoreLayer};
    use parking_lot::Mutex;
    use sim::Machine;
    use store::base::options::PoolEnv;
    use surface::{BlockDevice, WriteOptions};

    use super::*;
    use crate::pool::testing::{env_on, pool_in};

    /// A store that counts the keys of its scans, and remembers where they began.
    struct Counting(Arc<dyn MapStore>, AtomicU64, Mutex<Vec<Vec<u8>>>);

    impl StoreLayer for Counting {
        fn below(&self) -> &dyn MapStore {
            &*self.0
        }
        fn scan(
            &self,
            from: &[u8],
            to: &[u8],
            visit: &mut dyn FnMut(&[u8], &[u8]) -> ScanStep,
        ) -> std::result::Result<(), MapError> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.2.lock().push(from.to_vec());
            self.0.scan(from, to, visit)
        }
    }

    /// For data in any place: in the write buffer, in the map's changes, in the store.
    #[test]
    fn a_huge_hole_is_crossed_in_a_few_steps() {
        const SIZE: u64 = 16 << 40;
        let machine = Machine::new(64 << 20, 1);
        let store = Arc::new(Counting(machine.store.handle(), AtomicU64::new(0), Mutex::default()));
        let env = PoolEnv { store: store.clone(), ..env_on(&machine, machine.disk.handle()) };
        let pool = pool_in(env, 64 << 20, 0);
        pool.create_volume("v", SIZE, &Default::default()).unwrap();
        let volume = pool.volume("v").unwrap();
        let runs = |runs_max: usize| {
            let before = store.1.load(Ordering::Relaxed);
            let runs = volume.allocation(0, SIZE, runs_max).unwrap();
            let scans = store.1.load(Ordering::Relaxed) - before;
            assert!(scans < 100, "{scans} looks through the store");
            runs.into_iter().map(|run| (run.length, run.allocation)).collect::<Vec<_>>()
        };
        assert_eq!(runs(usize::MAX), [(SIZE, Allocation::Hole)]);
        // One far away, and before it more groups than are found at once.
        let (far, many) = (SIZE / 2, 3 * FOUND_MAX as u64);
        let group_bytes = (GROUP_BLOCKS * BLOCK_BYTES) as u64;
        let write = |at: u64, len: usize| volume.write(at, Bytes::from(vec![1; len]), WriteOptions::default()).unwrap();
        write(far, 2 * BLOCK_BYTES);
        for group in 0..many {
            write(far / 2 + group * group_bytes, BLOCK_BYTES);
        }
        let (block, gap) = (BLOCK_BYTES as u64, group_bytes - BLOCK_BYTES as u64);
        let mut expected = vec![(far / 2, Allocation::Hole)];
        for _ in 0..many {
            expected.extend([(block, Allocation::Data), (gap, Allocation::Hole)]);
        }
        expected.pop();
        expected.push((far - far / 2 - many * group_bytes + gap, Allocation::Hole));
        expected.extend([(2 * block, Allocation::Data), (SIZE - far - 2 * block, Allocation::Hole)]);
        assert!(runs(usize::MAX) == expected, "in the write buffer");
        pool.flush().unwrap();
        assert!(runs(usize::MAX) == expected, "among the changes");
        pool.checkpoint().unwrap();
        assert!(runs(usize::MAX) == expected, "in the store");
        assert!(runs(7) == expected[..7]);
        pool.snapshot("v", "s").unwrap();
        volume.discard(far, 2 * block).unwrap();
        expected.truncate(expected.len() - 3);
        expected.push((SIZE - far / 2 - many * group_bytes + gap, Allocation::Hole));
        assert!(runs(usize::MAX) == expected, "over a snapshot");
    }

    /// Blocks of a destroyed origin that a clone has overwritten go at the checkpoint that has the
    /// clone's record. A look-up that visits the clone before that checkpoint and the origin after
    /// it finds the block nowhere, and takes it for a hole.
    #[test]
    fn origins_are_looked_at_before_what_came_from_them() {
        let machine = Machine::new(64 << 20, 1);
        let store = Arc::new(Counting(machine.store.handle(), AtomicU64::new(0), Mutex::default()));
        let env = PoolEnv { store: store.clone(), ..env_on(&machine, machine.disk.handle()) };
        let pool = pool_in(env, 64 << 20, 0);
        pool.create_volume("v", 1 << 20, &Default::default()).unwrap();
        pool.snapshot("v", "s").unwrap();
        pool.clone_snapshot("v@s", "c", &Default::default()).unwrap();
        let clone = pool.volume("c").unwrap();
        let levels: Vec<_> = clone.object.levels().iter().map(|level| level.object).collect();
        assert_eq!(levels.len(), 2);
        store.2.lock().clear();
        clone.allocation(0, 1 << 20, usize::MAX).unwrap();
        let first_of = |object| format::record_key_range(object, GroupIndex(0), GroupIndex(1)).0.to_vec();
        assert_eq!(*store.2.lock(), [first_of(levels[1]), first_of(levels[0])]);
    }
}
