//! Which parts of an object hold data, and bringing parts of it into memory.

use surface::{Allocation, Result, Run};
use units::{BLOCK_BYTES, BlockIndex, BlockMask, GROUP_BLOCKS, GroupIndex};

use crate::core::Core;
use crate::map::Piece;
use crate::objects::Object;
use crate::volume::Runs;
use crate::write_buffer::GroupKey;

/// Groups that are looked through at once (128 MiB).
const WINDOW_GROUPS: u64 = 1024;

impl Core {
    /// See `BlockDevice::allocation`.
    pub(crate) fn allocation(&self, object: &Object, offset: u64, length: u64, runs_max: usize) -> Result<Vec<Run>> {
        let mut runs = Runs::new(runs_max);
        if length == 0 {
            return Ok(runs.finish());
        }
        let end = offset + length;
        let last = BlockIndex::containing(end - 1).group();
        let mut group = BlockIndex::containing(offset).group();
        // Appends what of blocks `from..to` lies in the range.
        let push = |runs: &mut Runs, from: u64, to: u64, allocation| {
            let low = (from * BLOCK_BYTES as u64).clamp(offset, end);
            let high = (to * BLOCK_BYTES as u64).clamp(offset, end);
            runs.push(high - low, allocation)
        };
        while group <= last {
            let next = GroupIndex((group.0 + WINDOW_GROUPS).min(last.0 + 1));
            let known = self.known_groups(object, group, next)?;
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

    /// Groups of which the write buffer or the map knows something.
    pub(crate) fn known_groups(&self, object: &Object, from: GroupIndex, to: GroupIndex) -> Result<Vec<GroupIndex>> {
        let mut groups = Vec::new();
        // The buffer comes first, as for a reader: what leaves it is in the map by then. The other way round, what is drained between the two
        // looks would be in neither, and be taken for a hole.
        if self.buffer.groups() > 0 {
            for group in (from.0..to.0).map(GroupIndex) {
                let key = GroupKey { object: object.id, group };
                if !self.buffer.read(key, BlockMask::FULL, &mut |_| ()).is_empty() {
                    groups.push(group);
                }
            }
        }
        for level in object.levels().iter() {
            groups.extend(self.map.groups_in(level.object, from, to)?);
        }
        groups.sort_unstable();
        groups.dedup();
        Ok(groups)
    }

    /// Those of `wanted` blocks of a group that hold data.
    pub(crate) fn allocated_mask(&self, object: &Object, group: GroupIndex, wanted: BlockMask) -> Result<BlockMask> {
        self.data_mask(object, group, wanted, |_| true)
    }

    /// The same, of what is in the map only the pieces that `counts` names.
    pub(crate) fn data_mask(
        &self,
        object: &Object,
        group: GroupIndex,
        wanted: BlockMask,
        counts: impl Fn(&Piece) -> bool,
    ) -> Result<BlockMask> {
        let mut data = BlockMask::EMPTY;
        let key = GroupKey { object: object.id, group };
        let dirty = self.buffer.read(key, wanted, &mut |run| {
            data = if run.data.is_some() { data.or(run.mask()) } else { data.minus(run.mask()) };
        });
        let missing = wanted.minus(dirty);
        if !missing.is_empty() {
            for piece in self.map.lookup(&object.levels(), group, missing)?.iter().filter(|piece| counts(piece)) {
                data = data.or(piece.fragment.live);
            }
        }
        Ok(data)
    }
}
