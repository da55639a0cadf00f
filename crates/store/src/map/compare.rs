//! Compares two states of a volume: from the map and the write buffer alone, no data is read, and
//! nothing is written.
//!
//! A block is the same if both find it in the same record: the content of a record of a past epoch
//! never changes. It may be reported as changed although the same bytes were written again.
//!
//! 1. The groups are listed of which memory has more than the last checkpoint.
//! 2. A page of records of that checkpoint is read, of both states in parallel.
//! 3. The groups of step 1 are looked up in all layers of the map and in the write buffer. A change
//!    that left memory after step 1 is in the page.

use format::FragmentRef;
use surface::{Allocation, Result};
use units::{BLOCK_BYTES, BlockIndex, BlockMask, GroupIndex, ObjectId};

use super::group_pages::look_down;
use super::{Map, Piece};
use crate::base::group::GroupKey;
use crate::buffer::write_buffer::WriteBuffer;
use crate::objects::Object;
use crate::objects::level::Level;

/// Groups in memory that are looked up for a page: each may cost a read of the store.
const GROUPS_IN_MEMORY_MAX: usize = 4096;

/// A range that has changed, and its present content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// First byte.
    pub offset: u64,
    /// Bytes: a multiple of 4096.
    pub length: u64,
    /// Whether it holds data now, or reads as zeroes.
    pub now: Allocation,
}

/// A stretch of changed blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiffPage {
    /// In order; neighbours differ in their content.
    pub changes: Vec<Changed>,
    /// Where to continue; `None` at the end.
    pub next: Option<u64>,
    /// Sizes before and now, in bytes: data beyond the smaller one exists in one of them only.
    pub sizes: (u64, u64),
}

/// What a comparison of two states reads.
pub struct Comparison<'a> {
    pub map: &'a Map,
    /// The write buffer and the volume that has the newer state: without it, both states are those
    /// of the last checkpoint.
    pub head: Option<(&'a WriteBuffer, &'a Object)>,
}

impl Comparison<'_> {
    /// Lists changes from byte `start` on, until a bounded number of map records.
    ///
    /// # Errors
    /// When the store cannot be read, or a record is damaged.
    pub fn page(&self, (old, new): (&[Level], &[Level]), sizes: (u64, u64), start: u64) -> Result<DiffPage> {
        let from = BlockIndex::containing(start).group();
        let mut objects: Vec<ObjectId> = old.iter().chain(new).map(|level| level.object).collect();
        objects.sort_unstable();
        objects.dedup();
        let mut in_memory = self.groups_in_memory(&objects, from);
        let mut page = self.map.page_of_both(&objects, (old, new), from)?;
        in_memory.retain(|group| page.next.is_none_or(|next| *group < next));
        if let Some(next) = in_memory.get(GROUPS_IN_MEMORY_MAX).copied() {
            in_memory.truncate(GROUPS_IN_MEMORY_MAX);
            page.groups.split_off(&next);
            page.next = Some(next);
        }
        for group in &in_memory {
            page.groups.entry(*group).or_default();
        }
        let mut changes = Changes::default();
        let end = sizes.0.max(sizes.1);
        // Copies come after all that an object may have, and have the same content.
        for (group, of_all) in page.groups.range(..GroupIndex(0).nth_copy(1)) {
            let ([before, now], buffered) = if in_memory.binary_search(group).is_ok() {
                self.group_in_memory((old, new), *group)?
            } else {
                let view = |levels: &[Level]| look_down(levels, &objects, (*group, of_all), BlockMask::FULL);
                ([view(old), view(new)], BlockMask::EMPTY)
            };
            changes.push(*group, changed(&before, &now).or(buffered), allocated(&now).or(buffered), end);
        }
        let next = page.next.filter(|group| group.copy() == 0).map(|group| group.first_block().offset_bytes());
        let next = next.filter(|next| *next < end);
        Ok(DiffPage { changes: changes.list, next, sizes })
    }

    /// Returns the groups from `from` on, in order, for which memory has something that the last
    /// checkpoint has not: a change in the map of one of `objects`, or data of the head in the write
    /// buffer. What leaves memory later is found by a page that is read later.
    fn groups_in_memory(&self, objects: &[ObjectId], from: GroupIndex) -> Vec<GroupIndex> {
        let Some((buffer, head)) = self.head else { return Vec::new() };
        // Data goes from the buffer to the map: in this order it is not missed.
        let mut groups = buffer.groups_in(head.id, from, GroupIndex(u64::MAX));
        objects.iter().for_each(|object| self.map.add_changed_groups(*object, from, &mut groups));
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// Returns the pieces of a group in two states, and the blocks with data in the write buffer.
    /// The newer pieces are without all blocks that the buffer has.
    fn group_in_memory(&self, states: (&[Level], &[Level]), group: GroupIndex) -> Result<([Vec<Piece>; 2], BlockMask)> {
        let (mut data, mut dirty) = (BlockMask::EMPTY, BlockMask::EMPTY);
        // The buffer comes first, as for a reader.
        if let Some((buffer, head)) = self.head {
            dirty = buffer.read(GroupKey { object: head.id, group }, BlockMask::FULL, &mut |run| {
                data = if run.data.is_some() { data.or(run.mask()) } else { data.minus(run.mask()) };
            });
        }
        Ok((self.map.group_of_both(states, group, BlockMask::FULL.minus(dirty))?, data))
    }
}

pub fn allocated(pieces: &[Piece]) -> BlockMask {
    pieces.iter().fold(BlockMask::EMPTY, |mask, Piece { fragment: FragmentRef { live, .. }, .. }| mask.or(*live))
}

/// Blocks that are not found in the same record.
pub fn changed(before: &[Piece], now: &[Piece]) -> BlockMask {
    let mut same = BlockMask::EMPTY;
    for old in before {
        for new in now.iter().filter(|new| (new.object, new.epoch) == (old.object, old.epoch)) {
            same = same.or(new.fragment.live.and(old.fragment.live));
        }
    }
    allocated(before).or(allocated(now)).minus(same)
}

#[derive(Default)]
struct Changes {
    list: Vec<Changed>,
}

impl Changes {
    fn push(&mut self, group: GroupIndex, changed: BlockMask, data: BlockMask, end: u64) {
        for (mask, now) in [(changed.and(data), Allocation::Data), (changed.minus(data), Allocation::Hole)] {
            for (first, count) in mask.runs() {
                let offset = BlockIndex(group.first_block().0 + u64::from(first)).offset_bytes();
                let length = (u64::from(count) * BLOCK_BYTES as u64).min(end.saturating_sub(offset));
                if length > 0 {
                    self.list.push(Changed { offset, length, now });
                }
            }
        }
        // Both kinds of a group in order, joined to the preceding range.
        let begin =
            self.list.iter().rposition(|c| c.offset < group.first_block().offset_bytes()).map_or(0, |at| at + 1);
        self.list[begin..].sort_unstable_by_key(|change| change.offset);
        let tail = self.list.split_off(begin);
        for change in tail {
            match self.list.last_mut() {
                Some(last) if last.now == change.now && last.offset + last.length == change.offset => {
                    last.length += change.length;
                }
                _ => self.list.push(change),
            }
        }
    }
}
