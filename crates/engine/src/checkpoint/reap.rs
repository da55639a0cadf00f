//! Reaping: whenever an object loses a point (a snapshot, a clone or a volume was destroyed, a
//! volume was rolled back), or clones need less of it because a point of theirs has gone, the
//! records that only these needed go, a bounded number of them in each checkpoint. Records that
//! clones have overwritten go as the clones' changes are merged (`merge`).
//!
//! 1. The descriptors record that it is due, and from which group on: a circle over all groups,
//!    started over when another point goes in the meantime. So it continues after a crash where the
//!    last durable checkpoint left it.
//! 2. A checkpoint processes as many groups as its budget allows, in the state that it captured.
//!    Groups that it merges anyway, or has trimmed below them, are left out: each removal must be
//!    counted once.
//! 3. At the end of the circle nothing is left within cuts that no point sees: they are dropped, by
//!    the first checkpoint that has removed nothing from them. A record that a checkpoint removes
//!    may have been moved since it captured its state, and the move restores it. A destroyed object
//!    that no point sees is gone.

use std::ops::ControlFlow;

use format::{Reap, Record, object_key, parse_record_key, record_key, record_key_range};
use store::base::canary::Canary;
use store::base::group::{GroupKey, GroupRecords};
use store::base::store_error::store_error;
use store::map::overlay::Overlay;
use store::objects::Reaped;
use store::objects::clone_needs::Needs;
use store::objects::timeline::Timeline;
use store::space::dead_map::Death;
use surface::Result;
use units::{GroupIndex, ObjectId};

use crate::checkpoint::Checkpoints;
use crate::checkpoint::merged::{Merged, put_group};
use crate::checkpoint::state::Captured;

/// Upper bound of records that one checkpoint examines: bounds its time to about a tenth of a
/// second.
const SCANNED_MAX: u64 = 65536;
/// Memory of the pool for each record that one checkpoint examines, and how many it examines for
/// one that it changes or removes: bounds its batch to a fraction of the memory.
const MEMORY_PER_SCANNED: u64 = 8 << 10;
const SCANNED_PER_CHANGED: usize = 4;
/// Lower bound of either, so that it always ends.
const RECORDS_MIN: usize = 8;

/// Remaining budget of a checkpoint.
struct Budget {
    scanned: usize,
    changed: usize,
}

impl Budget {
    fn of(memory_bytes: u64) -> Self {
        let scanned = (memory_bytes / MEMORY_PER_SCANNED).min(SCANNED_MAX) as usize;
        Self { scanned: scanned.max(RECORDS_MIN), changed: (scanned / SCANNED_PER_CHANGED).max(RECORDS_MIN) }
    }

    const fn is_used_up(&self) -> bool {
        self.scanned == 0 || self.changed == 0
    }
}

/// Groups that the checkpoint merges anyway.
struct Changing<'a> {
    frozen: &'a Overlay,
    settled: &'a Overlay,
}

impl Changing<'_> {
    fn merges(&self, key: GroupKey, timeline: &Timeline) -> bool {
        let knows = |overlay: &Overlay| overlay.with(key, |_| ()).is_some();
        knows(self.settled) || !timeline.is_dead() && knows(self.frozen)
    }
}

/// A group as it stands in the store.
struct Stored {
    group: GroupIndex,
    records: GroupRecords,
    /// A record of it could not be decoded: the records that may go are unknown. `check` names it.
    is_damaged: bool,
}

impl Checkpoints {
    /// Continues all reaping that was due when the checkpoint captured its state.
    pub(crate) fn reap(
        &self,
        frozen: &Overlay,
        settled: &Overlay,
        captured: &Captured,
        merged: &mut Merged,
    ) -> Result<()> {
        let changing = Changing { frozen, settled };
        let mut budget = Budget::of(self.vitals.options.memory_bytes);
        for (id, reap, number) in captured.reaping.iter().copied() {
            if budget.is_used_up() {
                break;
            }
            let Some(timeline) = captured.timelines.get(&id) else { continue };
            let mut after = self.reap_object(id, reap, captured, &changing, merged, &mut budget)?;
            let is_gone = after.is_none() && timeline.is_dead();
            let mut dropped = timeline.cuts.clone();
            dropped.retain(|cut| after.is_none() && !timeline.points.iter().any(|p| *p > cut.after && *p < cut.before));
            if !dropped.is_empty() && !is_gone && merged.undone.contains(&id) {
                after = Some(Reap { next: reap.stop, wrapped: true, ..reap });
                dropped.clear();
            }
            if is_gone {
                merged.batch.delete(object_key(id));
            }
            merged.reaped.push(Reaped { id, number, after, dropped, is_gone });
        }
        Ok(())
    }

    /// Processes groups of an object until the circle or the budget ends; returns the position
    /// reached.
    fn reap_object(
        &self,
        id: ObjectId,
        reap: Reap,
        captured: &Captured,
        changing: &Changing<'_>,
        merged: &mut Merged,
        budget: &mut Budget,
    ) -> Result<Option<Reap>> {
        let mut next = reap.next;
        if !reap.wrapped {
            match self.reap_range(id, next, GroupIndex(u64::MAX), captured, changing, merged, budget)? {
                Some(group) => return Ok(Some(Reap { next: group, ..reap })),
                None => next = GroupIndex(0),
            }
        }
        let left = self.reap_range(id, next, reap.stop, captured, changing, merged, budget)?;
        Ok(left.map(|next| Reap { next, stop: reap.stop, wrapped: true }))
    }

    /// Processes the groups `from..to`; returns the first one that exceeded the budget, if any.
    #[allow(clippy::too_many_arguments)]
    fn reap_range(
        &self,
        id: ObjectId,
        from: GroupIndex,
        to: GroupIndex,
        captured: &Captured,
        changing: &Changing<'_>,
        merged: &mut Merged,
        budget: &mut Budget,
    ) -> Result<Option<GroupIndex>> {
        if from >= to {
            return Ok(None);
        }
        let (low, high) = record_key_range(id, from, to);
        let mut open: Option<Stored> = None;
        let mut left = None;
        let mut visit = |key: &[u8], value: &[u8]| {
            let Some(key) = parse_record_key(key) else { return ControlFlow::Continue(()) };
            if open.as_ref().is_some_and(|stored| stored.group != key.group) {
                if let Some(stored) = open.take() {
                    self.reap_group(id, stored, captured, changing, merged, budget);
                }
                if budget.is_used_up() {
                    left = Some(key.group);
                    return ControlFlow::Break(());
                }
            }
            budget.scanned = budget.scanned.saturating_sub(1);
            let stored =
                open.get_or_insert(Stored { group: key.group, records: GroupRecords::new(), is_damaged: false });
            match Record::decode(value) {
                Ok(record) => stored.records.push((key.epoch, record)),
                // For an object that no point sees, the record is deleted unread: its extent counts
                // a few bytes too many until `check`.
                Err(_) if !captured.sees(id) => merged.batch.delete(record_key(&key)),
                Err(_) => stored.is_damaged = true,
            }
            ControlFlow::Continue(())
        };
        self.vitals.env.store.scan(&low, &high, &mut visit).map_err(store_error)?;
        if let Some(stored) = open {
            self.reap_group(id, stored, captured, changing, merged, budget);
        }
        Ok(left)
    }

    fn reap_group(
        &self,
        id: ObjectId,
        stored: Stored,
        captured: &Captured,
        changing: &Changing<'_>,
        merged: &mut Merged,
        budget: &mut Budget,
    ) {
        let key = GroupKey { object: id, group: stored.group };
        let Some(timeline) = captured.timelines.get(&id) else { return };
        let was_merged = changing.merges(key, timeline) || merged.below.contains(&key);
        if stored.is_damaged || was_merged {
            return;
        }
        let before = stored.records;
        let mut records = before.clone();
        let mut reads = 0;
        let overlays = (changing.settled, Some(changing.frozen));
        let needs = self.needs(&captured.timelines, (key, &before), overlays, &mut reads);
        budget.scanned = budget.scanned.saturating_sub(reads);
        if self.trim_group(key, (timeline, &needs), &mut records, &GroupRecords::new(), merged) {
            budget.changed = budget.changed.saturating_sub(before.len());
            put_group(key, &before, &GroupRecords::new(), &mut records, &mut merged.batch);
            merged.trimmed.push((key, Some(records)));
        }
    }

    /// Removes the records that no point needs from a group, and counts them as dead. Records may
    /// be empty afterwards.
    pub(crate) fn trim_group(
        &self,
        key: GroupKey,
        (timeline, needs): (&Timeline, &Needs),
        records: &mut GroupRecords,
        above: &GroupRecords,
        merged: &mut Merged,
    ) -> bool {
        let Merged { usage, deaths, objects, undone, .. } = merged;
        let figures = objects.entry(key.object).or_default();
        timeline.trim(records, needs, above, &mut |epoch, lost| {
            if timeline.cuts.iter().any(|cut| cut.hides(epoch, cut.before)) {
                undone.insert(key.object);
            }
            let bytes = i64::from(lost.live_bytes());
            *usage.entry(self.geometry.extent_at(lost.location)).or_default() -= bytes;
            deaths.push(Death::of(&self.geometry, lost, lost.live));
            figures.0 -= if key.group.copy() > 0 { 0 } else { i64::from(lost.live.count()) };
            figures.1 -= bytes;
        })
    }

    /// Drops groups: a full checkpoint removes their records, as far as it does nothing else with
    /// them. The others stay, and are chosen again.
    pub(super) fn drop_groups(
        &self,
        frozen: &Overlay,
        settled: &Overlay,
        captured: &Captured,
        merged: &mut Merged,
    ) -> Result<()> {
        let mut drops = captured.drops.clone();
        drops.sort_unstable();
        drops.dedup();
        for key in drops {
            let Some(object) = self.objects.get(key.object) else { continue };
            let is_changed = [frozen, settled].iter().any(|overlay| overlay.with(key, |_| ()).is_some());
            let is_reaped = captured.reaping.iter().any(|(id, _, _)| *id == key.object);
            if is_changed || is_reaped || merged.below.contains(&key) {
                continue;
            }
            let base = self.map.base_for_checkpoint(key, object.epoch(), &GroupRecords::new())?.records;
            let mut records = (*base).clone();
            let figures = merged.objects.entry(key.object).or_default();
            for (_, record) in &mut records {
                let known = record.known();
                record.forget(known, &mut |lost| {
                    let bytes = i64::from(lost.live_bytes());
                    *merged.usage.entry(self.geometry.extent_at(lost.location)).or_default() -= bytes;
                    merged.deaths.push(Death::of(&self.geometry, lost, lost.live));
                    figures.0 -= i64::from(lost.live.count());
                    figures.1 -= bytes;
                });
            }
            if Canary::DroppedNotCounted.is_planted() {
                continue;
            }
            put_group(key, &base, &GroupRecords::new(), &mut records, &mut merged.batch);
            merged.trimmed.push((key, Some(records)));
        }
        Ok(())
    }
}
