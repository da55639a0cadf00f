//! Faults of one volume or snapshot of a [`view`](super::view) that is rebuilt: ranges that cannot
//! be read, ranges that the log does not hold, and bounds on missing data. Owns the translation
//! from faults of records to ranges of the volumes and snapshots that see them.

use std::collections::BTreeMap;

use salvage::report::{DamagedRange, SalvagedVolume};
use store::base::group::GroupKey;
use store::objects::Object;
use store::objects::level::Level;
use surface::{Allocation, BlockDevice, Result};
use units::{BLOCK_BYTES, BlockIndex, BlockMask, Epoch, GroupIndex, ObjectId};

use super::UNBOUNDED;
use super::rebuild::Rebuild;
use crate::volume::Volume;

/// Runs of holes and data that are requested in one go.
const RUNS_MAX: usize = 1000;
/// Upper bound of ranges that are listed for a volume.
const RANGES_MAX: usize = 1000;
/// The detail of a range that the map names.
const GONE: &str = "the log does not hold the data that was written here: it reads as zeroes, or as an older \
     state";
const BLOCK: u64 = BLOCK_BYTES as u64;

impl Rebuild<'_> {
    /// Lists the damage that `object` sees.
    pub(super) fn damages(&mut self, object: &Object, salvaged: &mut SalvagedVolume) -> Result<()> {
        let levels = object.levels();
        let mut ranges: BTreeMap<u64, (u64, &str)> = BTreeMap::new();
        for ((owner, epoch, group), (mask, detail)) in &self.broken {
            if !levels.iter().any(|level| level.object == *owner) {
                continue;
            }
            for piece in self.old.core.map.lookup_stored(&levels, *group, *mask)? {
                if (piece.object, piece.epoch) != (*owner, *epoch) {
                    continue;
                }
                for (first, count) in piece.fragment.live.runs() {
                    let offset = BlockIndex(group.first_block().0 + u64::from(first)).offset_bytes();
                    let length = (u64::from(count) * BLOCK).min(salvaged.size_bytes.saturating_sub(offset));
                    if length > 0 {
                        ranges.insert(offset, (length, detail));
                    }
                }
            }
        }
        for (offset, (length, detail)) in ranges {
            salvaged.damaged_bytes += length;
            list(&mut salvaged.damaged, offset, length, detail);
        }
        Ok(())
    }

    /// Lists the ranges of `object` whose data the log does not hold.
    pub(super) fn gone(&mut self, object: &Object, salvaged: &mut SalvagedVolume) -> Result<()> {
        let levels = object.levels();
        let mut ranges = BTreeMap::new();
        for ((owner, epoch, group), mask) in &self.figures.gone {
            if !levels.iter().any(|level| level.object == *owner) {
                continue;
            }
            for (first, count) in self.uncovered(&levels, (*owner, *epoch), *group, *mask)?.runs() {
                let offset = BlockIndex(group.first_block().0 + u64::from(first)).offset_bytes();
                let length = (u64::from(count) * BLOCK).min(salvaged.size_bytes.saturating_sub(offset));
                if length > 0 {
                    ranges.insert(offset, length);
                }
            }
        }
        for (offset, length) in ranges {
            list(&mut salvaged.missing, offset, length, GONE);
        }
        Ok(())
    }

    /// Returns the visible blocks of a record of `owner` through these levels: the record is seen
    /// and nothing newer knows the blocks.
    fn uncovered(
        &self,
        levels: &[Level],
        (owner, epoch): (ObjectId, Epoch),
        group: GroupIndex,
        mask: BlockMask,
    ) -> Result<BlockMask> {
        let mut open = mask;
        for level in levels {
            let is_its = level.object == owner;
            if is_its && !level.sees(epoch) {
                return Ok(BlockMask::EMPTY);
            }
            let records = self.old.core.map.records_of(GroupKey { object: level.object, group })?;
            let newer = records.iter().filter(|(e, _)| level.sees(*e) && !(is_its && *e <= epoch));
            open = newer.fold(open, |open, (_, record)| open.minus(record.known()));
            if is_its {
                return Ok(open);
            }
        }
        Ok(BlockMask::EMPTY)
    }

    /// See [`SalvagedVolume::missing_bytes_max`]. With a map: the blocks that this volume and its
    /// origins lack. Otherwise at most as many as they had, and at most those that read as zeroes,
    /// unless it may be a different volume.
    pub(super) fn missing_max(&self, source: &Volume) -> Result<u64> {
        let size = source.size_bytes();
        let blocks = self.figures.missing(&source.object.levels());
        if blocks == 0 || blocks >= UNBOUNDED {
            return Ok(if blocks == 0 { 0 } else { size });
        }
        if self.by_map {
            return Ok(blocks.saturating_mul(BLOCK).min(size));
        }
        let (mut holes, mut at) = (0, 0);
        while at < size {
            let runs = source.allocation(at, size - at, RUNS_MAX)?;
            let before = at;
            for run in runs {
                holes += if run.allocation == Allocation::Hole { run.length } else { 0 };
                at += run.length;
            }
            if at == before {
                return Ok(size);
            }
        }
        Ok(blocks.saturating_mul(BLOCK).min(holes))
    }
}

/// Adds a range to a list, joined with the one before it.
fn list(ranges: &mut Vec<DamagedRange>, offset: u64, length: u64, detail: &str) {
    let has_room = ranges.len() < RANGES_MAX;
    match ranges.last_mut() {
        Some(last) if last.offset + last.length == offset => last.length += length,
        _ if has_room => ranges.push(DamagedRange { offset, length, detail: detail.to_owned() }),
        _ => {}
    }
}
