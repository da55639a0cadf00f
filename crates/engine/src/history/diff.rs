//! The changes between a snapshot and a later one, or the volume's current state: from the map and
//! the write buffer alone, no data is read, and nothing is written: who may only read a pool may
//! ask for it.
//!
//! A block is the same if both find it in the same record: the content of a record of a past epoch
//! never changes. It may be reported as changed although the same bytes were written again.
//!
//! 1. The groups are listed of which memory has more than the last checkpoint.
//! 2. A page of records of that checkpoint is read, of both states in parallel.
//! 3. The groups of step 1 are looked up in all layers of the map and in the write buffer. A change
//!    that left memory after step 1 is in the page.

use format::FragmentRef;
use surface::{Allocation, Error, ErrorKind, Result};
use units::{BLOCK_BYTES, BlockIndex, BlockMask, GroupIndex, ObjectId};

use crate::base::group::GroupKey;
use crate::map::Piece;
use crate::map::group_pages::look_down;
use crate::objects::Object;
use crate::objects::level::Level;
use crate::pool::Pool;

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

impl Pool {
    /// Lists changes from `from`, a snapshot, to `to`, another snapshot or a volume, beginning at
    /// byte `start`. Returns after a bounded number of map records: continue at [`DiffPage::next`].
    /// All writes acknowledged before the call are included; of a volume that is being written,
    /// later ones may or may not be.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Corrupt`], and the errors of the store.
    pub fn diff(&self, from: &str, to: &str, start: u64) -> Result<DiffPage> {
        let core = &self.core;
        let old = core.objects.snapshot_named(from)?;
        let new = core.objects.readable(to)?;
        loop {
            let (old_levels, new_levels) = (old.levels(), new.levels());
            let sizes = (old.size_bytes(), new.size_bytes());
            let page = self.page_of_changes((&old_levels, &new_levels), Some(&new), sizes, start)?;
            if let Some(gone) = [&old, &new].into_iter().find(|object| !object.is_readable()) {
                return Err(Error::new(ErrorKind::NotFound, format!("'{}' has been destroyed", gone.title())));
            }
            // As long as both look from the same points, all data that they see is still there.
            if (old.levels(), new.levels()) == (old_levels, new_levels) {
                return Ok(page);
            }
        }
    }

    /// Lists changes as of the last checkpoint.
    pub(crate) fn diff_page(&self, old: &[Level], new: &[Level], sizes: (u64, u64), start: u64) -> Result<DiffPage> {
        self.page_of_changes((old, new), None, sizes, start)
    }

    /// Lists changes; `head` has the newer state, and none means that of the last checkpoint.
    fn page_of_changes(
        &self,
        (old, new): (&[Level], &[Level]),
        head: Option<&Object>,
        sizes: (u64, u64),
        start: u64,
    ) -> Result<DiffPage> {
        let core = &self.core;
        let from = BlockIndex::containing(start).group();
        let mut objects: Vec<ObjectId> = old.iter().chain(new).map(|level| level.object).collect();
        objects.sort_unstable();
        objects.dedup();
        let mut in_memory = head.map_or_else(Vec::new, |head| self.groups_in_memory(head, &objects, from));
        let mut page = core.map.page_of_both(&objects, (old, new), from)?;
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
        for (group, of_all) in &page.groups {
            let ([before, now], buffered) = match head.filter(|_| in_memory.binary_search(group).is_ok()) {
                Some(head) => self.group_in_memory(head, (old, new), *group)?,
                None => {
                    let view = |levels: &[Level]| look_down(levels, &objects, (*group, of_all), BlockMask::FULL);
                    ([view(old), view(new)], BlockMask::EMPTY)
                }
            };
            changes.push(*group, changed(&before, &now).or(buffered), allocated(&now).or(buffered), end);
        }
        let next = page.next.map(|group| group.first_block().offset_bytes()).filter(|next| *next < end);
        Ok(DiffPage { changes: changes.list, next, sizes })
    }

    /// Returns the groups from `from` on, in order, for which memory has something that the last
    /// checkpoint has not: a change in the map of one of `objects`, or data of `head` in the write
    /// buffer. What leaves memory later is found by a page that is read later.
    fn groups_in_memory(&self, head: &Object, objects: &[ObjectId], from: GroupIndex) -> Vec<GroupIndex> {
        // Data goes from the buffer to the map: in this order it is not missed.
        let mut groups = self.core.buffer.groups_in(head.id, from, GroupIndex(u64::MAX));
        objects.iter().for_each(|object| self.core.map.add_changed_groups(*object, from, &mut groups));
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// Returns the pieces of a group in two states, of which the newer one is that of `head`, and
    /// the blocks with data in the write buffer. The newer pieces are without all blocks that the
    /// buffer has.
    fn group_in_memory(
        &self,
        head: &Object,
        states: (&[Level], &[Level]),
        group: GroupIndex,
    ) -> Result<([Vec<Piece>; 2], BlockMask)> {
        let mut data = BlockMask::EMPTY;
        // The buffer comes first, as for a reader.
        let dirty = self.core.buffer.read(GroupKey { object: head.id, group }, BlockMask::FULL, &mut |run| {
            data = if run.data.is_some() { data.or(run.mask()) } else { data.minus(run.mask()) };
        });
        Ok((self.core.map.group_of_both(states, group, BlockMask::FULL.minus(dirty))?, data))
    }
}

pub(crate) fn allocated(pieces: &[Piece]) -> BlockMask {
    pieces.iter().fold(BlockMask::EMPTY, |mask, Piece { fragment: FragmentRef { live, .. }, .. }| mask.or(*live))
}

/// Blocks that are not found in the same record.
pub(crate) fn changed(before: &[Piece], now: &[Piece]) -> BlockMask {
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
