//! Checkpoints: the map on disk is brought up to a position of the log, in one atomic batch of the
//! store. Owns their state, and the lock by which others keep off while one captures
//! ([`Checkpoints`]). One is taken at a time: by the keeper's thread, by cleaners and writers that
//! need space, or by a client's thread whose operation needs one. Each waits for the data file and
//! the map store.
//!
//! 1. *Capture*, while no batch can be applied: the log's position, the descriptors that changed,
//!    and the overlay, which is frozen; changes go to a new one from here on.
//! 2. *Merge* the frozen changes into the records (`merge`), counting new live and dead bytes in
//!    each extent. Blocks that no point needs any more are removed from the merged groups, and from
//!    others as far as that is due (see `reap`).
//! 3. *Decide* which extents are freed and which the log fills next.
//! 4. *Write the inventory* of extents (`inventory`), and *sync* the data file: one sync for the
//!    log and for the inventory. A store may keep a batch that no call asked it to persist, and must
//!    not refer to bytes that are not durable.
//! 5. *Commit* all of it and *persist*. From here on the checkpoint is valid. One that names a new
//!    incarnation is noted in the data file (`opening`).
//! 6. *Publish*: the changes are laid over the cached groups, too, the overlays go, and, when no
//!    reader is left that could be in a freed extent, the log gets its new extents and the other
//!    freed ones are punched out.
//!
//! A **light** checkpoint leaves out the expensive parts: in step 2 it counts new live and dead
//! bytes, but does not rewrite records (`checkpoint::light`); in step 5 the changes go into the
//! store unmerged (*deltas*), and in step 6 they become the map's *settled* overlay, which lies
//! over the records until they are merged: a slice at a time after each light checkpoint (`fold`),
//! the rest by the next full one. So it frees extents for the price of a few syncs: the cleaner
//! needs many of them. It is taken where space is needed, and as long as the settled overlay is
//! within its memory.
//!
//! An error before step 5 leaves everything unchanged; the next checkpoint repeats it. After an
//! error in step 5 the content of the store is unknown: the pool accepts no writes until it is
//! reopened.

pub(crate) mod catalogue;
#[cfg(test)]
mod count_tests;
pub(crate) mod fold;
#[cfg(test)]
pub(crate) mod late_moves_tests;
pub(crate) mod light;
pub(crate) mod merge;
pub(crate) mod merged;
mod needs;
pub(crate) mod opening;
mod punching;
pub(crate) mod reap;
pub(crate) mod schedule;
pub(crate) mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use format::{Checkpoint, KEY_CHECKPOINT, KEY_LEARNED, delta_key, encode_usage_page, object_key, usage_key};
use store::base::buffers::BufferPool;
use store::base::canary::Canary;
use store::base::ranked::{Mutex, MutexGuard, RwLock};
use store::base::ranks;
use store::base::shares::Shares;
use store::base::signals::Signals;
use store::base::store_error::store_error;
use store::base::vitals::Vitals;
use store::buffer::write_buffer::WriteBuffer;
use store::log::Log;
use store::log::catalogue::{Catalogue, Pins};
use store::log::geometry::Geometry;
use store::log::inventory::Stand;
use store::log::write_over::write_over;
use store::map::Map;
use store::map::apply::Applier;
use store::map::kind::Kind;
use store::objects::{Object, Objects};
use store::space::Space;
use store::space::extents::ExtentPlan;
use surface::Result;
use units::ExtentIndex;

use crate::checkpoint::merged::Merged;
use crate::checkpoint::state::{Captured, CheckpointState, Folding};
use crate::codecs::chooser::Chooser;
use crate::read::Reads;

/// Minimum and maximum length of the log's list of extents. The maximum bounds the checkpoint's
/// record to 16 KiB.
const LISTED_MIN: u64 = 16;
const LISTED_MAX: u64 = 4096;

/// The state, held by the thread that takes a checkpoint.
type Running<'a> = MutexGuard<'a, CheckpointState, ranks::Checkpoint>;

/// Takes checkpoints. Owns their state, and what others must not do while one captures.
pub(crate) struct Checkpoints {
    vitals: Arc<Vitals>,
    shares: Shares,
    geometry: Geometry,
    pool_id: [u8; 16],
    buffers: Arc<BufferPool>,
    buffer: Arc<WriteBuffer>,
    map: Arc<Map>,
    objects: Arc<Objects>,
    catalogue: Arc<Catalogue>,
    applier: Arc<Applier>,
    log: Arc<Log>,
    space: Arc<Space>,
    reads: Arc<Reads>,
    chooser: Arc<Chooser>,
    signals: Arc<Signals>,
    pub state: Mutex<CheckpointState, ranks::Checkpoint>,
    /// Held shared from a look at the map to the moves that follow from it, exclusively for a
    /// moment while a checkpoint captures.
    pub still: RwLock<(), ranks::Still>,
    /// Raised when a checkpoint captures, and before and after it is published: a look in between
    /// may have seen a mixture.
    pub map_version: AtomicU64,
    /// Number of the checkpoint that captured last.
    pub captured: AtomicU64,
    /// The newest incarnation whose opening was noted, or for which that was tried.
    noted: AtomicU64,
    /// Unreadable areas after the end of the log, until the first checkpoint is durable.
    unreadable: Mutex<Vec<Range<u64>>, ranks::Unreadable>,
    /// Bytes of the log since the last checkpoint when that figure last changed, and the time of
    /// that.
    resting: Mutex<(u64, u64), ranks::Resting>,
}

impl Checkpoints {
    /// `captured`: the number of the last one.
    pub(crate) fn new(
        (vitals, shares, pool_id): (Arc<Vitals>, Shares, [u8; 16]),
        (applier, buffers, log): (Arc<Applier>, Arc<BufferPool>, Arc<Log>),
        (space, reads, chooser, signals): (Arc<Space>, Arc<Reads>, Arc<Chooser>, Arc<Signals>),
        (state, captured, unreadable): (CheckpointState, u64, Vec<Range<u64>>),
    ) -> Self {
        Self {
            vitals,
            shares,
            geometry: applier.geometry.clone(),
            pool_id,
            buffers,
            buffer: applier.buffer.clone(),
            map: applier.map.clone(),
            objects: applier.objects.clone(),
            catalogue: applier.catalogue.clone(),
            applier,
            log,
            space,
            reads,
            chooser,
            signals,
            state: Mutex::new(state),
            still: RwLock::new(()),
            map_version: AtomicU64::new(0),
            captured: AtomicU64::new(captured),
            noted: AtomicU64::new(0),
            unreadable: Mutex::new(unreadable),
            resting: Mutex::new((0, 0)),
        }
    }
}

/// Returns whether the delta of an earlier checkpoint stays when one of this kind is taken.
const fn is_kept(kind: Kind, folded: u64, number: u64) -> bool {
    matches!(kind, Kind::Light) && number > folded
}

impl Checkpoints {
    /// Takes a full checkpoint.
    pub(crate) fn take(&self) -> Result<()> {
        self.take_unless(Kind::Full, || false)
    }

    /// Takes the kind of checkpoint that frees space soonest.
    pub(crate) fn take_light(&self) -> Result<()> {
        self.take_unless(Kind::Light, || false)
    }

    /// Takes a checkpoint unless `done` returns, once no other checkpoint runs, that it is not
    /// needed any more. A light one becomes a full one if there is more to do.
    pub(crate) fn take_unless(&self, kind: Kind, done: impl Fn() -> bool) -> Result<()> {
        let mut state = self.state.lock();
        if done() {
            return Ok(());
        }
        self.checkpoint_with(&mut state, kind)
    }

    /// Takes a full checkpoint and holds off the next one for the lifetime of the returned guard:
    /// the store has everything.
    pub(crate) fn take_and_hold(&self) -> Result<Running<'_>> {
        let mut state = self.state.lock();
        self.checkpoint_with(&mut state, Kind::Full)?;
        Ok(state)
    }

    fn checkpoint_with(&self, state: &mut Running<'_>, kind: Kind) -> Result<()> {
        self.vitals.check_failed()?;
        if let Some(captured) = state.unfinished.take() {
            self.run_checkpoint(state, Kind::Full, captured)?;
        }
        self.mark_opening();
        self.renew_catalogue(false);
        let captured = self.capture(state.number + 1);
        let settled = self.map.settled();
        let timelines = captured.timelines.clone();
        let (changes, groups) = (settled.bytes() + self.map.freeze().bytes(), settled.groups());
        let is_light = kind == Kind::Light
            && captured.reaping.is_empty()
            && captured.drops.is_empty()
            && changes <= self.settled_bytes_max();
        let is_in_the_way = self.run_checkpoint(state, if is_light { Kind::Light } else { Kind::Full }, captured)?;
        if is_in_the_way {
            self.renew_catalogue(true);
            let captured = self.capture(state.number + 1);
            if self.run_checkpoint(state, Kind::Full, captured)? {
                self.catalogue.give_up();
                let captured = self.capture(state.number + 1);
                self.run_checkpoint(state, Kind::Full, captured)?;
            }
        }
        if is_light {
            self.fold_some(state, &timelines, settled.groups().saturating_sub(groups))?;
        }
        Ok(())
    }

    /// Memory for the settled overlay.
    pub(crate) fn settled_bytes_max(&self) -> usize {
        self.vitals.options.settled_bytes_max.unwrap_or(self.shares.overlay)
    }

    /// Lets the log continue after a failed write.
    pub(crate) fn heal(&self) -> Result<()> {
        if self.log.is_broken() {
            self.take_unless(Kind::Light, || !self.log.is_broken())?;
        }
        Ok(())
    }

    /// Step 1.
    fn capture(&self, number: u64) -> Captured {
        // Moves that follow from a look at the map are applied first.
        let _still = self.still.write();
        self.map_version.fetch_add(1, Ordering::AcqRel);
        self.captured.store(number, Ordering::Release);
        let evacuated = self.space.evacuated();
        let mut descriptors = Vec::new();
        let (mut next_object, mut objects) = (0, 0);
        let mut properties = BTreeMap::new();
        let mut timelines = Arc::default();
        let mut reaping = Vec::new();
        let mut pins = Pins::default();
        let mut filled = BTreeMap::new();
        let position = self.log.position(ExtentIndex(self.geometry.extents_usable()), self.wants_short_list(), || {
            next_object = self.objects.next_id();
            properties = self.objects.pool_properties();
            let all = self.objects.all();
            objects = all.len();
            for object in all {
                object.freeze_estimate();
                descriptors.extend(object.capture());
            }
            timelines = self.objects.timelines();
            reaping = self.objects.reaping();
            pins = self.catalogue.pins();
            filled = self.applier.inventories.capture();
            self.map.freeze();
        });
        self.catalogue.enter(position.incarnation, position.incarnation_first_seq, false);
        pins.incarnations = self.catalogue.pins().incarnations;
        Captured {
            position,
            next_object,
            objects,
            properties,
            pins,
            descriptors,
            timelines,
            reaping,
            drops: self.reads.images.take_drops(),
            evacuated,
            filled,
        }
    }

    /// Returns whether extents that are kept only for the catalogue take space from writers now.
    fn run_checkpoint(&self, state: &mut Running<'_>, kind: Kind, captured: Captured) -> Result<bool> {
        let result = self.prepare_checkpoint(state, kind, &captured);
        let (mut merged, plan) = match result {
            Ok(prepared) => prepared,
            Err(error) => {
                state.unfinished = Some(captured);
                return Err(error);
            }
        };
        let mut batch = std::mem::take(&mut merged.batch);
        let folded = std::mem::take(&mut state.folding.folded).number;
        if kind == Kind::Full {
            state.folding = Folding::default();
        }
        state.deltas.retain(|(number, part)| {
            let stays = is_kept(kind, folded, *number);
            if !stays {
                batch.delete(delta_key(*number, *part));
            }
            stays
        });
        state.deltas.append(&mut merged.deltas);
        if let Some(ring) = self.buffer.standby() {
            ring.goes_with(captured.position.incarnation);
        }
        let committed = self.vitals.env.store.commit(batch).and_then(|()| {
            if Canary::EarlyExtentReuse.is_planted() { Ok(()) } else { self.vitals.env.store.persist() }
        });
        if let Err(error) = committed {
            let error = store_error(error);
            self.vitals.fail(&error);
            return Err(error);
        }
        state.number += 1;
        if kind == Kind::Full {
            state.last_full = state.number;
        }
        self.applier.inventories.is_durable(&captured.position);
        self.note_opening(captured.position.incarnation)?;
        // Before anything is appended: the log, or a catalogue that moves to the open extent, may
        // get there immediately.
        write_over(&*self.vitals.env.disk, &std::mem::take(&mut *self.unreadable.lock()));
        self.catalogue.begin();
        let count = if kind == Kind::Full {
            &self.vitals.counters.checkpoints
        } else {
            &self.vitals.counters.light_checkpoints
        };
        count.add(1);
        self.publish(kind, &captured, merged, &plan);
        Ok(!plan.idle.is_empty() && self.is_short_of_extents(self.space.extents_left()))
    }

    /// Steps 2 to 4, and the batch of step 5.
    fn prepare_checkpoint(
        &self,
        state: &CheckpointState,
        kind: Kind,
        captured: &Captured,
    ) -> Result<(Merged, ExtentPlan)> {
        let number = state.number + 1;
        let frozen = self.map.freeze();
        let mut merged = match kind {
            Kind::Full => {
                let settled = self.map.settled();
                let mut merged = self.merge(&frozen, &settled, captured)?;
                self.reap(&frozen, &settled, captured, &mut merged)?;
                self.drop_groups(&frozen, &settled, captured, &mut merged)?;
                merged
            }
            Kind::Light => self.settle(state, &frozen, captured)?,
        };
        self.put_descriptors(captured, &mut merged);
        let position = &captured.position;
        let usage = std::mem::take(&mut merged.usage);
        let (plan, live_bytes, used) = {
            let mut extents = self.space.extents.lock();
            let pinned = captured.pins.extents();
            let target = self.list_target();
            let has_space = |extent| self.log.backing.has(extent, 1);
            let comes_first: Option<&dyn Fn(ExtentIndex) -> bool> =
                if self.space.is_tight() { Some(&has_space) } else { None };
            let plan = extents.plan(
                usage,
                position.passed.clone(),
                &position.dropped,
                &position.extents,
                pinned,
                (target, comes_first, self.geometry.copies() > 0),
            );
            let mut pages = BTreeSet::new();
            for extent in plan.usage.keys() {
                if pages.insert(usage_key(*extent)) {
                    let page = extents.page_after(*extent, &plan.usage);
                    merged.batch.put(usage_key(*extent), encode_usage_page(&page));
                }
            }
            let live_bytes = extents.live_bytes_after(&plan.usage);
            let used = extents.used_after(&plan);
            (plan, live_bytes, used)
        };
        // Every captured object has a descriptor in the store: it was stored when it was new, or is
        // in this batch.
        let gone = merged.reaped.iter().filter(|reaped| reaped.is_gone).count();
        let folded = state.folding.folded.number;
        let deltas_kept = state.deltas.iter().filter(|(number, _)| is_kept(kind, folded, *number)).count();
        let extents: Vec<_> = position.extents.iter().chain(&plan.listed).copied().collect();
        if extents.is_empty() && position.open.iter().all(Option::is_none) {
            return Err(self.space.full_error());
        }
        let checkpoint = Checkpoint {
            pool: self.pool_id,
            incarnation: position.incarnation,
            incarnation_first_seq: position.incarnation_first_seq,
            next_seq: position.next_seq,
            open: position.open,
            extents,
            next_object: captured.next_object,
            number,
            objects: captured.objects.saturating_sub(gone) as u32,
            live_bytes,
            deltas: (deltas_kept + merged.deltas.len()) as u32,
            properties: captured.properties.clone(),
            catalogue: captured.pins.stored(),
        };
        merged.batch.put(KEY_CHECKPOINT, checkpoint.encode());
        // Nothing depends on it; if this checkpoint fails, the next change stores it again.
        if let Some(learned) = self.chooser.costs.encode_if_changed() {
            merged.batch.put(KEY_LEARNED, learned);
        }
        let blocks = |object: Arc<Object>| {
            let change = merged.objects.get(&object.id).map_or(0, |change| change.0);
            (object.id, object.settled().0.saturating_add_signed(change))
        };
        let objects = self.objects.all().into_iter().map(blocks).filter(|(_, blocks)| *blocks > 0).collect();
        let is_closed = self.vitals.is_ending();
        let pinned = captured.pins.extents().into_iter().collect();
        let stand = Stand { number, position, filled: &captured.filled, objects, pinned, used, is_closed };
        self.write_and_sync(stand)?;
        Ok((merged, plan))
    }

    /// Step 4.
    fn write_and_sync(&self, stand: Stand<'_>) -> Result<()> {
        let syncs = !Canary::NoSyncBeforeCheckpoint.is_planted();
        if stand.is_closed && syncs {
            self.log.sync()?;
        }
        if !Canary::InventoryNotWritten.is_planted() {
            self.applier.inventories.write(&*self.vitals.env.disk, &self.geometry, self.pool_id, stand);
        }
        if syncs { self.log.sync_all() } else { Ok(()) }
    }

    /// Returns how many listed extents the log should have: two intervals' worth, and the reserve.
    /// Fewer if the file system is short of space, or the pool is being closed, because listed
    /// extents are not punched out.
    fn list_target(&self) -> usize {
        if self.wants_short_list() {
            return (LISTED_MIN + self.geometry.reserve_extents()) as usize;
        }
        let interval = self.vitals.options.checkpoint_log_bytes / u64::from(self.geometry.extent_bytes);
        ((2 * interval).clamp(LISTED_MIN, LISTED_MAX) + self.geometry.reserve_extents()) as usize
    }

    fn wants_short_list(&self) -> bool {
        self.space.is_tight() || self.vitals.sheds_list()
    }

    fn put_descriptors(&self, captured: &Captured, merged: &mut Merged) {
        let mut descriptors: BTreeMap<_, _> = captured.descriptors.iter().map(|d| (d.id, d.clone())).collect();
        for id in merged.objects.keys() {
            if let Some(object) = self.objects.get(*id) {
                descriptors.entry(*id).or_insert_with(|| object.captured());
            }
        }
        for reaped in &merged.reaped {
            if let Some(object) = self.objects.get(reaped.id) {
                reaped.enter(descriptors.entry(reaped.id).or_insert_with(|| object.captured()));
            }
        }
        let gone: BTreeSet<_> = merged.reaped.iter().filter(|r| r.is_gone).map(|r| r.id).collect();
        for (id, mut descriptor) in descriptors.into_iter().filter(|(id, _)| !gone.contains(id)) {
            let (allocated, stored) = self.objects.get(id).map_or((0, 0), |o| o.settled());
            let change = merged.objects.get(&id).copied().unwrap_or_default();
            descriptor.allocated_blocks = allocated.saturating_add_signed(change.0);
            descriptor.stored_bytes = stored.saturating_add_signed(change.1);
            merged.batch.put(object_key(id), descriptor.encode());
        }
    }

    /// Step 6.
    fn publish(&self, kind: Kind, captured: &Captured, merged: Merged, plan: &ExtentPlan) {
        for object in self.objects.all() {
            let (allocated, stored) = object.settled();
            let change = merged.objects.get(&object.id).copied().unwrap_or_default();
            object.settle(allocated.saturating_add_signed(change.0), stored.saturating_add_signed(change.1));
        }
        self.space.count_reservations();
        {
            let mut extents = self.space.extents.lock();
            extents.apply(plan);
            // Before the thaw: a reader that looks at the overlays first, and then at this, sees
            // each change in one of them.
            let mut deaths = self.applier.deaths.lock();
            deaths.take(&merged.deaths, &plan.freed);
            deaths.begin(&plan.listed, (captured.position.incarnation, captured.position.next_seq));
        }
        self.map_version.fetch_add(1, Ordering::AcqRel);
        self.map.thaw(kind, merged.trimmed);
        self.map_version.fetch_add(1, Ordering::AcqRel);
        // Not earlier: until here the frozen changes may have named blocks that a dropped cut
        // hides.
        for reaped in &merged.reaped {
            self.objects.reaped(reaped);
        }
        self.vitals.counters.published.add(1);
        // A reader that looked up a location before the thaw has read it when this returns.
        if !Canary::ExtentFreedUnderReader.is_planted() {
            self.reads.readers.wait_until_gone();
        }
        let freed = {
            let mut extents = self.space.extents.lock();
            let freed = extents.release(plan);
            self.space.publish(&extents);
            freed
        };
        self.space.freed_evacuated(captured.evacuated);
        self.log.extend(&captured.position, &plan.listed);
        self.space.ease_brake();
        self.space.give_back(&freed);
    }
}
