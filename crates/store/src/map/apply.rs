//! Applies batches to the map and the objects, in the order of the log, while running and in
//! recovery alike.
//!
//! A *move* takes a block over from an older fragment if the block's record still points there, and
//! the result must be the same now and in replay, without asking the store. The rule: of the blocks
//! that the move names, it takes those that neither overlay knows in that epoch, and those that an
//! overlay has at the location that the move names.
//!
//! This is exact, because the cleaner, which appends moves, verifies each against the whole map at
//! a time *T*, and it holds the capture of the next checkpoint back until the batch is applied. Let
//! a block be named by the move:
//! - If it changed between *T* and the move, the active overlay knows it, now and in replay, and it
//!   decides.
//! - If it did not, it was verified to be at the location that the move names. An overlay that
//!   knows it agrees; and if none does, the move applies, which is right. It does not matter which
//!   of the overlays know it: running, those of a checkpoint in progress may be dropped at any
//!   time, because it is published; in replay, they begin with the checkpoint that was loaded.
//!
//! In replay there is one overlay, which has all changes since the checkpoint that was loaded; that
//! is one captured before *T*, else the batch would not be replayed: so it has everything that
//! changed between *T* and the move.
//!
//! A *wide hole* covers groups that some layer of the map knows. The store is asked for its part
//! before the batch gets its position, without the log's lock ([`Sink::foresee`]). The layers above
//! are read when the batch is applied. Anything added to the store since it was asked is still in
//! one of them, unless changes have left for the store in the meantime (`map`, departures): then
//! the batch is not applied before the store has been asked again.

use std::sync::Arc;

use format::{BATCH_ALIGN, Entry, FragmentEntry, FragmentRef, Move};
use units::{BlockIndex, BlockMask, Epoch, GROUP_BLOCKS, GroupIndex, ObjectId, Seq};

use crate::base::canary::Canary;
use crate::base::group::{GroupKey, StoredGroups};
use crate::base::ranked::Mutex;
use crate::base::ranks;
use crate::buffer::write_buffer::{Taken, WriteBuffer};
use crate::log::Sink;
use crate::log::catalogue::Catalogue;
use crate::log::geometry::Geometry;
use crate::log::inventory::Inventories;
use crate::map::Map;
use crate::map::overlay::Overlay;
use crate::objects::{Object, Objects};
use crate::space::dead_map::{Death, Deaths};

/// Groups of a hole range beyond which only groups with content are searched.
const HOLE_GROUPS_BLIND: u64 = 64;

/// A hole range limited to groups with content.
struct WideHole {
    object: ObjectId,
    from: GroupIndex,
    to: GroupIndex,
    /// `None`: the store could not be read, and all groups are assumed to have content.
    groups: Option<Vec<GroupIndex>>,
}

pub struct Applier {
    pub map: Arc<Map>,
    pub objects: Arc<Objects>,
    pub buffer: Arc<WriteBuffer>,
    pub catalogue: Arc<Catalogue>,
    pub deaths: Mutex<Deaths, ranks::Deaths>,
    pub geometry: Geometry,
    pub inventories: Inventories,
}

impl Sink for Applier {
    fn foresee(&self, entries: &[Entry]) -> Vec<StoredGroups> {
        let mut foreseen = Vec::new();
        for entry in entries {
            let Entry::Holes { object, ranges, .. } = entry else { continue };
            for (from, to) in ranges.iter().filter_map(|(first, count)| wide_groups(*first, (*count).into())) {
                let levels = self.objects.get(*object).map(|object| object.levels());
                for level in levels.iter().flat_map(|levels| levels.iter()) {
                    foreseen.push(self.map.foresee_groups(level.object, from, to));
                }
            }
        }
        foreseen
    }

    fn apply(&self, seq: Seq, entries: &[Entry], payload: u64, foreseen: &[StoredGroups]) -> bool {
        let Some(wide_holes) = self.wide_holes(entries, foreseen) else { return false };
        let overlay = self.map.active();
        // A batch without payloads may end where its extent does.
        self.catalogue.note(entries, self.geometry.extent_at(payload.saturating_sub(1)));
        let mut location = payload;
        // Fragments that die before any checkpoint has counted them.
        let mut deaths = Vec::new();
        for entry in entries {
            match entry {
                Entry::Fragments { object, epoch, fragments } => {
                    let object = self.objects.get(*object).filter(|o| o.is_growing());
                    for fragment in fragments {
                        if let Some(object) = &object {
                            self.put_fragment(&overlay, object, *epoch, fragment, location, &mut deaths);
                        } else {
                            let fragment = fragment.at(location);
                            deaths.push(Death::of(&self.geometry, &fragment, fragment.live));
                        }
                        location += u64::from(fragment.stored);
                    }
                }
                Entry::Moves { object, epoch, moves } => {
                    // A destroyed one may still be seen by clones.
                    let object = self.objects.get(*object);
                    for moved in moves {
                        let taken = object.as_ref().map_or(BlockMask::EMPTY, |object| {
                            self.take_over(&overlay, object, *epoch, moved, location, &mut deaths)
                        });
                        let dead = moved.live.minus(taken);
                        if !dead.is_empty() {
                            deaths.push(Death::of(&self.geometry, &moved.fragment.at(location), dead));
                        }
                        location += u64::from(moved.fragment.stored);
                    }
                }
                Entry::Holes { object, epoch, ranges } => {
                    let Some(object) = self.objects.get(*object).filter(|o| o.is_growing()) else { continue };
                    for (first, count) in ranges {
                        let range = (*first, u64::from(*count));
                        self.put_holes(&overlay, &object, *epoch, range, &wide_holes, &mut deaths);
                    }
                }
                Entry::Object(descriptor) => self.objects.apply(descriptor),
                Entry::PoolProperties(properties) => self.objects.apply_pool(properties),
                Entry::Catalogue(_) => {}
            }
        }
        if !deaths.is_empty() {
            self.deaths.lock().enter(&deaths);
        }
        let end = location.next_multiple_of(BATCH_ALIGN as u64);
        let extent = self.geometry.extent_at(location.saturating_sub(1));
        self.inventories.note(extent, (end - self.geometry.start(extent)) as u32, seq);
        true
    }

    fn reached(&self, seq: Seq) {
        if let Some(ring) = self.buffer.standby() {
            ring.log_reached(seq);
        }
    }

    fn completed(&self, taken: &[Taken]) {
        if !taken.is_empty() {
            self.buffer.completed(taken);
        }
    }

    fn failed(&self, taken: &[Taken]) {
        if !taken.is_empty() {
            self.buffer.failed(taken);
        }
    }
}

impl Applier {
    /// Applies a batch that recovery has found.
    pub fn replay(&self, seq: Seq, entries: &[Entry], payload: u64) {
        while !self.apply(seq, entries, payload, &self.foresee(entries)) {}
    }

    /// See the head of this file. Returns the blocks that it takes over.
    fn take_over(
        &self,
        overlay: &Overlay,
        object: &Object,
        epoch: Epoch,
        moved: &Move,
        location: u64,
        deaths: &mut Vec<Death>,
    ) -> BlockMask {
        let key = GroupKey { object: object.id, group: moved.fragment.first.group() };
        let live = if Canary::MoveOverNewerWrite.is_planted() {
            moved.live
        } else {
            self.map.unmoved(key, epoch, moved.from, moved.live)
        };
        if !live.is_empty() {
            let fragment = FragmentRef { live, ..moved.fragment.at(location) };
            // The allocated bytes stay the same.
            overlay.change(key, epoch, |record| {
                if Canary::CleanerDropsSnapshotFragment.is_planted() && epoch != object.epoch() {
                    record.put_holes(live, &mut |_| ());
                } else {
                    record.put(fragment, &mut |lost| deaths.push(Death::of(&self.geometry, lost, lost.live)));
                }
            });
        }
        live
    }

    fn put_fragment(
        &self,
        overlay: &Overlay,
        object: &Object,
        epoch: Epoch,
        entry: &FragmentEntry,
        location: u64,
        deaths: &mut Vec<Death>,
    ) {
        let key = GroupKey { object: object.id, group: entry.first.group() };
        let fragment = entry.at(location);
        let stored = i64::from(fragment.live_bytes());
        self.change(overlay, object, (key, epoch), (false, stored), deaths, |record, lost| record.put(fragment, lost));
    }

    fn put_holes(
        &self,
        overlay: &Overlay,
        object: &Object,
        epoch: Epoch,
        (first, count): (BlockIndex, u64),
        wide_holes: &[WideHole],
        deaths: &mut Vec<Death>,
    ) {
        if count == 0 {
            return;
        }
        let end = first.0 + count;
        let (from, to) = groups_of(first, count);
        let mut put = |group: GroupIndex, is_held: bool| {
            let start = group.first_block().0;
            let (low, high) = (first.0.max(start), end.min(start + GROUP_BLOCKS as u64));
            let mask = BlockMask::run((low - start) as u32, (high - low) as u32);
            let key = GroupKey { object: object.id, group };
            let change = (is_held, 0);
            self.change(overlay, object, (key, epoch), change, deaths, |record, lost| record.put_holes(mask, lost));
        };
        let wide = wide_holes.iter().find(|hole| (hole.object, hole.from, hole.to) == (object.id, from, to));
        if let Some(groups) = wide.and_then(|hole| hole.groups.as_ref()) {
            let mut groups = groups.clone();
            // Entries before it in the same batch may have added some.
            overlay.add_groups(object.id, from, to, &mut groups);
            groups.sort_unstable();
            groups.dedup();
            groups.into_iter().for_each(|group| put(group, true));
            return;
        }
        // The error of an unreadable store is reported by the next checkpoint; the holes apply
        // anyway.
        (from.0..to.0).for_each(|group| put(GroupIndex(group), false));
    }

    /// Returns the wide holes of a batch. `None`: the foreseen groups are out of date.
    fn wide_holes(&self, entries: &[Entry], foreseen: &[StoredGroups]) -> Option<Vec<WideHole>> {
        let mut holes = Vec::new();
        for entry in entries {
            let Entry::Holes { object, ranges, .. } = entry else { continue };
            let Some(object) = self.objects.get(*object).filter(|o| o.is_growing()) else { continue };
            for (from, to) in ranges.iter().filter_map(|(first, count)| wide_groups(*first, (*count).into())) {
                let groups = self.groups_in(&object, from, to, foreseen)?;
                holes.push(WideHole { object: object.id, from, to, groups });
            }
        }
        Some(holes)
    }

    /// Returns the groups known to the object or one of its origins: records below must be hidden
    /// too. The outer `None`: the foreseen groups are out of date; the inner one: the store could
    /// not be read.
    fn groups_in(
        &self,
        object: &Object,
        from: GroupIndex,
        to: GroupIndex,
        foreseen: &[StoredGroups],
    ) -> Option<Option<Vec<GroupIndex>>> {
        let mut groups = Vec::new();
        for level in object.levels().iter() {
            let stored = foreseen.iter().find(|f| (f.object, f.from, f.to) == (level.object, from, to))?;
            let Some(known) = self.map.known_groups(stored)? else { return Some(None) };
            groups.extend(known);
            // Groups that have not been fetched must be hidden as well.
            if !Canary::ImageHolesForgotten.is_planted() {
                groups.extend((from.0..to.0.min(level.image_groups())).map(GroupIndex));
            }
        }
        Some(Some(groups))
    }

    /// Changes a record by fragments of so many stored bytes, and estimates the effect on the
    /// object's figures. `is_held`: the group is known to hold data; so blocks unknown to memory
    /// are assumed to be allocated, otherwise not.
    fn change(
        &self,
        overlay: &Overlay,
        object: &Object,
        (key, epoch): (GroupKey, Epoch),
        (is_held, stored): (bool, i64),
        deaths: &mut Vec<Death>,
        change: impl FnOnce(&mut format::Record, &mut dyn FnMut(&FragmentRef)),
    ) {
        let mut bytes = stored;
        let done = overlay.change(key, epoch, |record| {
            change(record, &mut |lost| {
                bytes -= i64::from(lost.live_bytes());
                deaths.push(Death::of(&self.geometry, lost, lost.live));
            });
        });
        if key.group.copy() > 0 {
            // A copy takes bytes, but no blocks of its own. What it replaces below memory is not
            // estimated: the next checkpoint counts it.
            object.estimate(0, bytes);
            return;
        }
        let mut blocks = i64::from(done.allocated_after) - i64::from(done.allocated_before);
        if !done.new.is_empty() {
            let (below, known) = self.map.allocated_below(key, epoch, done.new);
            let unknown = if is_held { done.new.minus(known).count() } else { 0 };
            let replaced = below.count() + unknown;
            blocks -= i64::from(replaced);
            bytes -= object.stored_for(replaced);
        }
        object.estimate(blocks, bytes);
    }
}

/// The groups that a range of at least one block touches.
fn groups_of(first: BlockIndex, count: u64) -> (GroupIndex, GroupIndex) {
    (first.group(), GroupIndex(BlockIndex(first.0 + count - 1).group().0 + 1))
}

/// The same if there are so many that only those with content are searched.
fn wide_groups(first: BlockIndex, count: u64) -> Option<(GroupIndex, GroupIndex)> {
    let (from, to) = groups_of(first, count.max(1));
    (to.0 - from.0 > HOLE_GROUPS_BLIND).then_some((from, to))
}
