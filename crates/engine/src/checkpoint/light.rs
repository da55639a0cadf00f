//! Settling: a light checkpoint's handling of the map's changes. It counts new live and dead bytes,
//! as merging does, and puts the changes into the store unmerged (*deltas*).
//!
//! Where the changes of a group are all moves, or lie over moves, the cleaner's notes have the
//! previous content (`map::relocation_notes`); for other groups the map is read.

use format::{DeltaWriter, RecordKey, delta_key};
use store::base::group::{GroupKey, GroupRecords};
use store::map::overlay::Overlay;
use store::map::relocation_notes::{MovedFrom, Notes, base_of};
use store::objects::Object;
use surface::Result;

use crate::checkpoint::Checkpoints;
use crate::checkpoint::merged::{Merged, in_two};
use crate::checkpoint::state::{Captured, CheckpointState};

/// Puts a group's changes into deltas.
fn say(writer: &mut DeltaWriter, key: GroupKey, changes: &GroupRecords) {
    for (epoch, change) in changes {
        writer.push(&RecordKey { object: key.object, group: key.group, epoch: *epoch }, change);
    }
}

impl Checkpoints {
    /// Step 2. Every change gets a delta, but those of objects that are gone: `thaw` lays all of
    /// `frozen` over the settled overlay, and the next full checkpoint must not count a change
    /// without a delta as one with a delta. It does not:
    ///
    /// - An object that is there is seen. One that is not is due for reaping from the moment when
    ///   the last point went (`Table::lost_a_point`, `Table::enter`) until the full checkpoint that
    ///   removes it; while anything is due, checkpoints are full (`checkpoint_with`).
    /// - One that is gone may have changes: a move of its data that was decided between the capture
    ///   and the end of that full checkpoint. Reaping has counted the old place as dead, nothing
    ///   counts the new one, no point sees it, and the next full checkpoint drops the change
    ///   (`merge` skips objects that are gone). Object identifiers are never reused.
    pub(crate) fn settle(&self, state: &CheckpointState, frozen: &Overlay, captured: &Captured) -> Result<Merged> {
        let settled = self.map.settled();
        let is_there = |key: &&GroupKey| self.objects.get(key.object).is_some() && captured.sees(key.object);
        let mut again = DeltaWriter::default();
        for key in state.folding.folded.left.iter().filter(is_there) {
            settled.with(*key, |changes| say(&mut again, *key, changes));
        }
        let (keys, notes) = (frozen.keys(), frozen.notes());
        let part = |keys: &[GroupKey]| self.settle_part(keys, frozen, &notes, state.last_full, captured);
        let (mut counted, deltas) = in_two(&self.vitals, &keys, part, |first, mut behind| {
            first.0.append(behind.0);
            first.1.append(&mut behind.1);
        })?;
        let number = state.number + 1;
        for (part, delta) in (0..).zip(again.finish().into_iter().chain(deltas)) {
            counted.batch.put(delta_key(number, part), delta);
            counted.deltas.push((number, part));
        }
        Ok(counted)
    }

    /// Counts the changes of some groups, and puts them into deltas.
    fn settle_part(
        &self,
        keys: &[GroupKey],
        frozen: &Overlay,
        notes: &[MovedFrom],
        last_full: u64,
        captured: &Captured,
    ) -> Result<(Merged, Vec<Vec<u8>>)> {
        let (mut merged, mut writer) = (Merged::default(), DeltaWriter::default());
        let mut notes = Notes::of(notes);
        let mut last = None;
        for key in keys.iter().copied() {
            let object = self.objects.get_again(&mut last, key.object);
            let is_seen = captured.sees(key.object);
            debug_assert!(
                object.is_none() || is_seen,
                "{key:?}: a light checkpoint has met an object that no point sees"
            );
            let (Some(object), true) = (object, is_seen) else { continue };
            let Some(changes) = frozen.frozen_records(key) else { continue };
            let base = match base_of(notes.about(key), &changes, last_full) {
                Some(base) => base,
                None => self.map.base_below(key, object.epoch(), &changes)?,
            };
            debug_assert!(self.counts_alike(key, object, &base, &changes), "{key:?}: differs from the map");
            self.count_changes(key, &base, &changes, &mut merged);
            say(&mut writer, key, &changes);
        }
        Ok((merged, writer.finish()))
    }

    /// Returns whether changes of a group count the same over `base` as over the records in the
    /// map, if these can be read.
    fn counts_alike(&self, key: GroupKey, object: &Object, base: &GroupRecords, changes: &GroupRecords) -> bool {
        let settled = self.map.settled().with(key, Clone::clone).unwrap_or_default();
        let Ok(real) = self.map.base_for_checkpoint(key, object.epoch(), &settled) else { return true };
        let [one, other] = [base, &*real.records].map(|base| {
            let mut merged = Merged::default();
            self.count_changes(key, base, changes, &mut merged);
            (merged.usage, merged.objects)
        });
        one == other
    }
}
