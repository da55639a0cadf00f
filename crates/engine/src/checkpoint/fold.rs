//! Folding: changes stored by light checkpoints are merged into the map's records a slice at a
//! time, so that no full checkpoint has to merge all of them at once. During such a merge no space
//! is freed, and in a full log writers stand still.
//!
//! 1. A *sweep* begins when most of the memory for the settled overlay is used. It covers the
//!    groups with settled changes at that moment: all deltas up to that checkpoint.
//! 2. Each light checkpoint is followed by a slice of it: the groups' records, with their settled
//!    changes laid over them, go into the store in one batch. That does not change the base, so
//!    nothing has to be counted, and it does not matter when it becomes durable. Then the groups
//!    leave the overlay.
//! 3. At the end of the sweep the store is made durable, and the next light checkpoint removes the
//!    deltas up to where it began.
//!
//! Only groups that merging would leave unchanged can be folded: those with one record that some
//! point sees, and without blocks to remove from the object's origin (`objects::clone_needs`), as
//! of the checkpoint: later changes may be lost in a crash. Blocks removed from other records must
//! be counted, and a delta would restore them. Such groups are *left*: the checkpoint that removes
//! the deltas stores their settled changes again.
//!
//! **After a crash** deltas are laid over records that may be newer than they are. The result is
//! the same: the existing deltas are all those since some checkpoint, in order. If a delta names a
//! block, the last one that does has its last change. If none does, its last change was in deltas
//! that were removed, and the record has it.

use env::MapBatch;
use store::base::canary::Canary;
use store::base::group::{GroupKey, GroupRecords};
use store::base::store_error::store_error;
use store::map::overlay::Overlay;
use store::objects::clone_needs::Needs;
use store::objects::timeline::Timelines;
use surface::Result;

use crate::checkpoint::Checkpoints;
use crate::checkpoint::merged::{SHARED_GROUPS_MIN, in_two, put_group};
use crate::checkpoint::state::{CheckpointState, Folded, Sweep};

/// Percentage of the settled overlay's memory that is used before anything is folded: the longer a
/// group waits, the more changes are merged at once.
const FOLD_FROM_PERCENT: usize = 75;
/// Percentage above that at which as many groups are folded as are added, which is also the maximum
/// in use under constant load. Then twice as many are folded long before a full checkpoint is due.
const FOLD_EVEN_PERCENT: usize = 10;
/// Most groups of a slice: some hundred milliseconds.
const SLICE_MAX: usize = 32 << 10;
/// Groups whose records are in memory at the same time: about 5 MB, twice in the store.
const AT_ONCE_MAX: usize = SHARED_GROUPS_MIN;

/// A slice in the making.
#[derive(Default)]
struct Slice {
    batch: MapBatch,
    folded: Vec<GroupKey>,
    left: Vec<GroupKey>,
}

impl Slice {
    fn append(&mut self, mut behind: Self) {
        self.batch.changes.append(&mut behind.batch.changes);
        self.folded.append(&mut behind.folded);
        self.left.append(&mut behind.left);
    }
}

/// Returns how many groups to fold after a checkpoint that added so many to the settled overlay,
/// which has `bytes` of at most `max`.
fn slice_of(added: usize, bytes: usize, max: usize) -> usize {
    let pace = (bytes.saturating_mul(100) / max.max(1)).saturating_sub(FOLD_FROM_PERCENT);
    (added.saturating_mul(pace) / FOLD_EVEN_PERCENT).max(pace).min(SLICE_MAX)
}

impl Checkpoints {
    /// Folds a slice, after a light checkpoint that captured `timelines` and added so many groups
    /// to the settled overlay.
    ///
    /// # Errors
    /// When the store does not accept the slice. The content of the store is unknown then: the pool
    /// accepts no writes until it is reopened.
    pub(crate) fn fold_some(&self, state: &mut CheckpointState, timelines: &Timelines, added: usize) -> Result<()> {
        let settled = self.map.settled();
        let count = slice_of(added, settled.bytes(), self.settled_bytes_max());
        if count == 0 || state.folding.is_vain {
            return Ok(());
        }
        let mut sweep = state.folding.sweep.take().unwrap_or_else(|| {
            let mut groups = settled.keys();
            groups.reverse();
            Sweep { groups, left: Vec::new(), since: state.number }
        });
        let mut next = sweep.groups.split_off(sweep.groups.len().saturating_sub(count));
        next.reverse();
        let (mut folded_groups, left_before) = (0, sweep.left.len());
        for groups in next.chunks(AT_ONCE_MAX) {
            let Ok(Slice { batch, folded, mut left }) = self.slice(groups, &settled, timelines) else {
                // A fault in a record is reported by the full checkpoint that meets it.
                state.folding.is_vain = true;
                return Ok(());
            };
            self.vitals.env.store.commit(batch).map_err(store_error).inspect_err(|error| self.vitals.fail(error))?;
            self.map.unsettle(&folded);
            self.vitals.counters.folded_groups.add(folded.len() as u64);
            folded_groups += folded.len();
            sweep.left.append(&mut left);
        }
        // A volume whose data is all in snapshots cannot be folded: do not try again and again.
        state.folding.is_vain = sweep.left.len() - left_before > folded_groups;
        if Canary::DeltasRemovedEarly.is_planted() {
            sweep.since = state.number;
        }
        if !sweep.groups.is_empty() {
            if !state.folding.is_vain {
                state.folding.sweep = Some(sweep);
            }
            return Ok(());
        }
        self.vitals.env.store.persist().map_err(store_error).inspect_err(|error| self.vitals.fail(error))?;
        state.folding.folded = Folded { number: sweep.since, left: sweep.left };
        Ok(())
    }

    /// Folds some groups.
    fn slice(&self, groups: &[GroupKey], settled: &Overlay, timelines: &Timelines) -> Result<Slice> {
        in_two(&self.vitals, groups, |groups| self.slice_part(groups, settled, timelines), Slice::append)
    }

    fn slice_part(&self, groups: &[GroupKey], all_settled: &Overlay, timelines: &Timelines) -> Result<Slice> {
        let mut slice = Slice::default();
        let mut last = None;
        for key in groups.iter().copied() {
            let object = self.objects.get_again(&mut last, key.object);
            let (Some(object), Some(timeline)) = (object, timelines.get(&key.object)) else {
                slice.left.push(key);
                continue;
            };
            let settled = all_settled.with(key, Clone::clone).unwrap_or_default();
            let base = self.map.base_for_checkpoint(key, object.epoch(), &settled)?.records;
            if !timeline.shows_all_of(&base) || self.frees_some(key, &base, all_settled, timelines)? {
                slice.left.push(key);
                continue;
            }
            let mut records = (*base).clone();
            // That loses only holes that hide nothing.
            timeline.trim(&mut records, &Needs::new(), &GroupRecords::new(), &mut |_, _| ());
            put_group(key, &base, &settled, &mut records, &mut slice.batch);
            slice.folded.push(key);
        }
        Ok(slice)
    }

    /// Returns whether merging would remove blocks from a group, or from one below it, because
    /// clones do not need them any more (`objects::clone_needs`).
    fn frees_some(&self, key: GroupKey, base: &GroupRecords, settled: &Overlay, timelines: &Timelines) -> Result<bool> {
        let frees = |key: GroupKey, base: &GroupRecords| {
            let needs = self.needs(timelines, (key, base), (settled, None), &mut 0);
            !needs.is_empty() && timelines.get(&key.object).is_some_and(|timeline| timeline.loses(base, &needs))
        };
        if frees(key, base) {
            return Ok(true);
        }
        for object in timelines.get(&key.object).map_or(&[][..], |timeline| &timeline.below) {
            let key = GroupKey { object: *object, ..key };
            let Some(object) = self.objects.get(key.object) else { continue };
            let settled = settled.with(key, Clone::clone).unwrap_or_default();
            if frees(key, &self.map.base_for_checkpoint(key, object.epoch(), &settled)?.records) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuller_it_is_the_more_is_folded() {
        let folded = |added: usize, percent: usize| slice_of(added, percent * 10_000, 1_000_000);
        assert_eq!([0, 50, 75].map(|percent| folded(1000, percent)), [0, 0, 0]);
        assert_eq!([76, 80, 85, 95].map(|percent| folded(1000, percent)), [100, 500, 1000, 2000]);
        assert_eq!(folded(0, 80), 5, "it goes on where nothing is added");
        assert_eq!(folded(1 << 20, 95), SLICE_MAX);
        assert_eq!(slice_of(10, 100, 0), SLICE_MAX.min(10 * (10_000 - FOLD_FROM_PERCENT) / FOLD_EVEN_PERCENT));
    }
}
