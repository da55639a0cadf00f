//! The map: from (object, group) to the location of each block. Owns the layers of it. **Only this
//! room changes it**: batches of the log do, by way of `apply`, and checkpoints take changes from
//! layer to layer. All others look, on any thread; a look may wait for the map store.
//!
//! It has four layers, newest first:
//! 1. the *active* overlay: changes since the last checkpoint began;
//! 2. the *frozen* overlay: changes that a checkpoint is writing right now;
//! 3. the *settled* overlay: changes that light checkpoints made durable as they are, without
//!    rewriting records;
//! 4. the records of the store, read through a cache of decoded groups.
//!
//! The records with the settled overlay laid over them are the *base*: the map as of the last
//! checkpoint.
//!
//! **The store is never asked while the layers' lock is held**: a store may be slow, and the lock
//! is taken exclusively in the middle of a capture, with the log's state held. A look at the layers
//! that needs a group which memory does not have releases the lock, loads the group, and starts
//! again from the beginning (`look`).
//!
//! **Coherence of the cache with the base.** A cached group may lack settled fragments, and differs
//! from the base in nothing else. A reader takes the settled changes of a group and the cached
//! group under one hold of the layers' read lock. So a change leaves the settled overlay in these
//! steps, the *departure*:
//! 1. The store gets the change.
//! 2. The departure is counted under the write lock. From here on no reader looks at a group that
//!    was loaded before, and none gets into the cache: a loaded group is used only if there has
//!    been no departure since before it was loaded. Then it lacks only changes that layers above
//!    have, and step 3 will apply them to it.
//! 3. The change is laid over the affected cached groups.
//! 4. The change leaves the overlay.
//!
//! Folded groups (`fold`) leave in this way. So does the whole settled overlay with a full
//! checkpoint, which takes the frozen overlay through the same steps. A light checkpoint lays the
//! frozen changes over the settled ones. The frozen overlay goes last, under the write lock. Until
//! then it lies above old and new records alike; laying a change over a record that contains it
//! already changes nothing.
//!
//! A scan of many records of the base (`scan`) holds the lock `base_stays` shared, which each
//! departure takes exclusively at its step 2. So does a reader whose loaded group was repeatedly
//! out of date.
//!
//! With several epochs the layers are not merged for a look-up: epoch by epoch, newest first, the
//! newest layer that knows a block answers for it. The overlays above the store may still name
//! blocks that a checkpoint has taken out of the store. No point sees these any more, because the
//! records that hide them from all points are still there (see `timeline`).

pub mod apply;
pub mod compare;
pub mod deltas;
pub mod group_pages;
pub mod kind;
pub mod loaded;
pub mod overlay;
pub mod relocation_notes;

mod look;
mod scan;

use std::sync::Arc;
use std::time::Duration;

use env::MapStore;
use format::{FragmentRef, Record};
use quick_cache::Weighter;
use quick_cache::sync::{Cache, EntryAction};
use smallvec::SmallVec;
use surface::{Error, ErrorKind, Result};
use units::{BlockMask, Epoch, GroupIndex, ObjectId};

use crate::base::group::{GroupKey, GroupRecords};
use crate::base::ranked::{RwLock, RwLockWriteGuard};
use crate::base::ranks;
use crate::map::kind::Kind;
use crate::map::look::{Loaded, Looked};
use crate::map::overlay::Overlay;
use crate::objects::level::Level;

/// A fragment that answers for some blocks, and its owner (its checksum covers that).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub object: ObjectId,
    pub epoch: Epoch,
    /// Its live mask is cut down to the requested blocks.
    pub fragment: FragmentRef,
}

#[derive(Clone, Copy)]
struct GroupWeight;

impl Weighter<GroupKey, Arc<GroupRecords>> for GroupWeight {
    fn weight(&self, _: &GroupKey, records: &Arc<GroupRecords>) -> u64 {
        let fragments: usize = records.iter().map(|(_, r)| r.fragments.capacity()).sum();
        // Key, pointer, counts, vectors; see `overlay` for the fragment.
        (144 + 48 * records.len() + size_of::<FragmentRef>() * fragments) as u64
    }
}

struct Layers {
    active: Arc<Overlay>,
    frozen: Option<Arc<Overlay>>,
    /// Empty after a full checkpoint.
    settled: Arc<Overlay>,
    /// The store has the settled changes, and the frozen ones above them: a full checkpoint is
    /// being published.
    is_merged: bool,
    /// Number of departures of changes to the store: see the head of this file.
    departures: u64,
}

impl Layers {
    /// Changes that the store does not have yet.
    fn unmerged(&self) -> Option<&Overlay> {
        (!self.is_merged).then_some(&*self.settled)
    }
}

/// A group as of the last checkpoint.
pub struct Base {
    pub records: Arc<GroupRecords>,
    /// Whether it was in the cache.
    pub cached: bool,
}

pub struct Map {
    layers: RwLock<Layers, ranks::MapLayers>,
    /// Held shared during scans of the base's records, exclusively where changes leave for the
    /// store.
    base_stays: RwLock<(), ranks::MapBase>,
    cache: Cache<GroupKey, Arc<GroupRecords>, GroupWeight>,
    store: Arc<dyn MapStore>,
}

impl Map {
    pub fn new(store: Arc<dyn MapStore>, cache_bytes: usize, settled: Arc<Overlay>) -> Self {
        let items = cache_bytes / 512;
        Self {
            layers: RwLock::new(Layers {
                active: Arc::default(),
                frozen: None,
                settled,
                is_merged: false,
                departures: 0,
            }),
            base_stays: RwLock::default(),
            cache: Cache::with_weighter(items.max(64), cache_bytes as u64, GroupWeight),
            store,
        }
    }

    /// Returns the overlay for new changes.
    #[inline]
    pub fn active(&self) -> Arc<Overlay> {
        self.layers.read().active.clone()
    }

    /// Returns the locations of the `wanted` blocks, going down `levels`, and the unfetched blocks
    /// of an image: these have no piece, and are never zeroes. Other blocks without a piece read as
    /// zeroes.
    ///
    /// # Errors
    /// When the store fails or a record is damaged.
    #[inline]
    pub fn lookup_partly(
        &self,
        levels: &[Level],
        group: GroupIndex,
        wanted: BlockMask,
    ) -> Result<(Vec<Piece>, BlockMask)> {
        self.look(|layers, loaded| self.walk(layers, loaded, levels, group, wanted))
    }

    /// Like `lookup_partly` without the unfetched blocks, for callers that only need the locations
    /// of stored data.
    #[inline]
    pub fn lookup_stored(&self, levels: &[Level], group: GroupIndex, wanted: BlockMask) -> Result<Vec<Piece>> {
        self.lookup_partly(levels, group, wanted).map(|(pieces, _)| pieces)
    }

    /// Like [`lookup_partly`](Self::lookup_partly), but only in memory: `None` if the store would have to be
    /// asked, or an image.
    #[inline]
    pub fn lookup_cached(&self, levels: &[Level], group: GroupIndex, wanted: BlockMask) -> Option<Vec<Piece>> {
        match self.walk(&self.layers.read(), &Loaded::default(), levels, group, wanted) {
            Ok((pieces, absent)) if absent.is_empty() => Some(pieces),
            _ => None,
        }
    }

    /// Finds blocks in memory and loaded groups, and the unfetched ones of an image.
    fn walk(
        &self,
        layers: &Layers,
        loaded: &Loaded,
        levels: &[Level],
        group: GroupIndex,
        wanted: BlockMask,
    ) -> Looked<(Vec<Piece>, BlockMask)> {
        let mut pieces = Vec::new();
        let found: &mut dyn FnMut(Piece) = &mut |piece| pieces.push(piece);
        let mut missing = wanted;
        for level in levels {
            if missing.is_empty() {
                break;
            }
            let key = GroupKey { object: level.object, group };
            // Data of the newest epoch hides everything else: often the store need not be asked.
            for overlay in [Some(&layers.active), layers.frozen.as_ref(), Some(&layers.settled)].into_iter().flatten() {
                overlay.with(key, |records| missing = take_newest(records, level, missing, found));
                if missing.is_empty() {
                    return Ok((pieces, missing));
                }
            }
            let settled = layers.settled.with(key, Clone::clone);
            let group = self.group(loaded, key, || level.has_only_first())?;
            let active = layers.active.records(key);
            let frozen = layers.frozen.as_ref().and_then(|frozen| frozen.records(key));
            let all = [active.as_deref(), frozen.as_deref(), settled.as_ref(), Some(&*group)];
            missing = take(all, level, missing, found);
        }
        let absent = levels.last().map_or(BlockMask::EMPTY, |level| level.image_mask(group).and(missing));
        Ok((pieces, absent))
    }

    /// The group as of the last checkpoint: of the one that is being published if it is a full one.
    fn base(&self, layers: &Layers, loaded: &Loaded, key: GroupKey, newest: Epoch) -> Looked<Arc<GroupRecords>> {
        let settled = layers.settled.with(key, Clone::clone);
        let mut group = self.group(loaded, key, || newest == Epoch(0))?;
        if let Some(settled) = settled {
            lay(&mut group, &settled);
            // It may have lain over them in the store already.
            let frozen = layers.frozen.as_ref().filter(|_| layers.is_merged);
            frozen.and_then(|frozen| frozen.with(key, |changes| lay(&mut group, changes)));
        }
        Ok(group)
    }

    /// Returns the group as a checkpoint must merge it, with these changes `settled`: from the
    /// cache, otherwise loaded without filling the cache.
    pub fn base_for_checkpoint(&self, key: GroupKey, newest: Epoch, settled: &GroupRecords) -> Result<Base> {
        let (mut records, cached) = match self.cache.peek(&key) {
            Some(records) => (records, true),
            None => (Arc::new(self.stored(key, newest == Epoch(0))?), false),
        };
        lay(&mut records, settled);
        Ok(Base { records, cached })
    }

    /// Returns the group as of the last checkpoint, with all epochs. Fills the cache.
    #[inline]
    pub fn records_of(&self, key: GroupKey) -> Result<Arc<GroupRecords>> {
        self.look(|layers, loaded| self.base(layers, loaded, key, Epoch(u32::MAX)))
    }

    /// Returns the group as of the last checkpoint, for the cleaner. Fills the cache: the cleaner
    /// asks for it again for the group's next fragment, and so does the account of the moved
    /// fragments. `newest` gives the object's epoch: an epoch read before the layers are held may
    /// be out of date when they are.
    pub fn base_for_cleaning(&self, key: GroupKey, newest: impl Fn() -> Epoch) -> Result<Arc<GroupRecords>> {
        // As a reader does: see the head of this file.
        self.look(|layers, loaded| self.base(layers, loaded, key, newest()))
    }

    /// Returns the base's records for the blocks of `changes`. Fills the cache.
    #[inline]
    pub fn base_below(&self, key: GroupKey, newest: Epoch, changes: &GroupRecords) -> Result<GroupRecords> {
        self.look(|layers, loaded| self.below(layers, loaded, (key, newest), changes))
    }

    fn below(
        &self,
        layers: &Layers,
        loaded: &Loaded,
        (key, newest): (GroupKey, Epoch),
        changes: &GroupRecords,
    ) -> Looked<GroupRecords> {
        let mut below: GroupRecords = changes.iter().map(|(epoch, _)| (*epoch, Record::default())).collect();
        let mut open: SmallVec<[BlockMask; 1]> = changes.iter().map(|(_, change)| change.known()).collect();
        let mut take = |records: &GroupRecords| {
            for ((epoch, below), open) in below.iter_mut().zip(&mut open) {
                let Some((_, record)) = records.iter().find(|(e, _)| e == epoch) else { continue };
                *open = take_fragments(record, *open, |fragment| below.fragments.push(fragment));
            }
        };
        layers.settled.with(key, &mut take);
        let group = self.group(loaded, key, || newest == Epoch(0))?;
        take(&group);
        Ok(below)
    }

    /// Returns the changes that light checkpoints made durable, and no full one has merged yet.
    #[inline]
    pub fn settled(&self) -> Arc<Overlay> {
        self.layers.read().settled.clone()
    }

    /// Forgets the settled changes of groups whose records in the store contain them by now.
    pub fn unsettle(&self, groups: &[GroupKey]) {
        let settled = self.settled();
        // From here on no reader looks at records that were loaded before.
        drop(self.depart());
        for key in groups {
            settled.with(*key, |changes| self.renew(*key, changes));
            settled.remove(*key);
        }
    }

    /// Counts a departure: step 2 in the head of this file.
    fn depart(&self) -> RwLockWriteGuard<'_, Layers, ranks::MapLayers> {
        let _alone = self.base_stays.write();
        let mut layers = self.layers.write();
        layers.departures += 1;
        layers
    }

    /// Returns which of a group's `blocks` are allocated in an epoch below the active overlay, and
    /// for which of them memory knows that.
    pub(crate) fn allocated_below(&self, key: GroupKey, epoch: Epoch, blocks: BlockMask) -> (BlockMask, BlockMask) {
        let layers = self.layers.read();
        let (mut below, mut known) = (BlockMask::EMPTY, BlockMask::EMPTY);
        let mut look = |records: &GroupRecords, may_lack: bool| {
            for (_, record) in records.iter().filter(|(e, _)| *e == epoch) {
                let open = blocks.minus(known);
                for fragment in &record.fragments {
                    below = below.or(fragment.live.and(open));
                    if below == blocks {
                        return true;
                    }
                }
                known = known.or(if may_lack { below } else { record.known() });
            }
            blocks.minus(known).is_empty()
        };
        if layers.frozen.as_ref().and_then(|frozen| frozen.with(key, |records| look(records, false))) == Some(true) {
            return (below, blocks);
        }
        // Streams of new data find the cache empty, and need no look-up. A cached group may lack
        // settled fragments, but no holes.
        let group = if self.cache.is_empty() { None } else { self.cache.peek(&key) };
        if group.as_ref().is_none_or(|group| !look(group, true)) {
            layers.settled.with(key, |records| look(records, false));
        }
        (below, if group.is_some() { blocks } else { known })
    }

    /// Begins a checkpoint: all changes so far are frozen. If an earlier checkpoint failed, its
    /// frozen changes come first, and changes since stay active.
    pub fn freeze(&self) -> Arc<Overlay> {
        let mut layers = self.layers.write();
        if let Some(frozen) = &layers.frozen {
            return frozen.clone();
        }
        let frozen = std::mem::take(&mut layers.active);
        layers.frozen = Some(frozen.clone());
        frozen
    }

    /// Ends a checkpoint whose batch was committed. After a full one nothing is settled, and cached
    /// groups have got the settled and the frozen changes; after a light one the frozen changes are
    /// settled. The groups in `trimmed` have lost more blocks: where they are cached, they are
    /// replaced by the groups given, or dropped.
    pub fn thaw(&self, kind: Kind, trimmed: Vec<(GroupKey, Option<GroupRecords>)>) {
        self.bring_up(kind, trimmed);
        self.drop_frozen(kind);
    }

    /// Drops the frozen overlay, which no reader needs any more; after a full checkpoint the
    /// settled overlay, too.
    fn drop_frozen(&self, kind: Kind) {
        let mut layers = self.layers.write();
        layers.frozen = None;
        if kind == Kind::Full {
            layers.settled = Arc::default();
            layers.is_merged = false;
        }
    }

    /// Brings the layers below the frozen overlay up to it.
    fn bring_up(&self, kind: Kind, trimmed: Vec<(GroupKey, Option<GroupRecords>)>) {
        let (frozen, settled) = {
            let layers = self.layers.read();
            (layers.frozen.clone().unwrap_or_default(), layers.settled.clone())
        };
        if kind == Kind::Light {
            settled.lay(&frozen);
            // Holes are few, and `allocated_below` should find them immediately.
            frozen.each(|key, changes| {
                if changes.iter().any(|(_, change)| !change.holes.is_empty()) {
                    self.renew(key, changes);
                }
            });
        } else {
            // From here on no reader looks at a group that was loaded before the commit, and no
            // thread lays older changes over one that is loaded.
            self.depart().is_merged = true;
            for overlay in [&settled, &frozen] {
                overlay.each(|key, changes| self.renew(key, changes));
            }
        }
        for (key, records) in trimmed {
            // Only cached groups are replaced: a checkpoint must not evict groups that readers
            // want.
            match records.filter(|_| self.cache.peek(&key).is_some()) {
                Some(records) => self.cache.insert(key, Arc::new(records)),
                None => drop(self.cache.remove(&key)),
            }
        }
    }

    /// Lays changes over a group if it is cached, in place: usually no reader holds a copy.
    fn renew(&self, key: GroupKey, changes: &GroupRecords) {
        // A reader that loads the group from now on finds them in the store, or settled.
        if self.cache.peek(&key).is_none() {
            return;
        }
        let renewed = self.cache.entry(&key, Some(Duration::ZERO), |_, records| {
            lay(records, changes);
            EntryAction::Retain(())
        });
        // A group evicted since gets an entry for a moment, which is removed with the guard.
        drop(renewed);
    }

    /// Returns those of `blocks`, for which a fragment at `location` was correct at the last
    /// checkpoint, that no change since has assigned to another one, or made holes.
    #[inline]
    pub fn unmoved(&self, key: GroupKey, epoch: Epoch, location: u64, blocks: BlockMask) -> BlockMask {
        Self::unmoved_in(&self.layers.read(), key, epoch, location, blocks)
    }

    /// Returns the live blocks of a group in the fragment at `location` that `is_it` recognises as
    /// the right one, in one look at all layers.
    ///
    /// # Errors
    /// When the store fails or a record is damaged.
    pub fn lives_at(
        &self,
        key: GroupKey,
        newest: Epoch,
        epoch: Epoch,
        location: u64,
        is_it: impl Fn(&FragmentRef) -> bool,
    ) -> Result<BlockMask> {
        self.look(|layers, loaded| {
            let base = self.base(layers, loaded, key, newest)?;
            let record = base.iter().find(|(e, _)| *e == epoch).map(|(_, record)| record);
            let fragment = record.and_then(|r| r.fragments.iter().find(|f| f.location == location && is_it(f)));
            let live = fragment.map_or(BlockMask::EMPTY, |fragment| fragment.live);
            Ok(Self::unmoved_in(layers, key, epoch, location, live))
        })
    }

    fn unmoved_in(layers: &Layers, key: GroupKey, epoch: Epoch, location: u64, blocks: BlockMask) -> BlockMask {
        let (mut open, mut still) = (blocks, BlockMask::EMPTY);
        for overlay in std::iter::once(&layers.active).chain(&layers.frozen) {
            overlay.with(key, |records| {
                let Some((_, record)) = records.iter().find(|(e, _)| *e == epoch) else { return };
                for fragment in record.fragments.iter().filter(|f| f.location == location) {
                    still = still.or(fragment.live.and(open));
                }
                open = open.minus(record.known());
            });
        }
        still.or(open)
    }

    /// Whether some layer above the records has changes of an object.
    pub fn has_changes_of(&self, object: ObjectId) -> bool {
        let layers = self.layers.read();
        let mut found = false;
        for overlay in [&layers.active, &layers.settled].into_iter().chain(&layers.frozen) {
            overlay.each(|key, _| found |= key.object == object);
        }
        found
    }

    /// Whether a checkpoint is writing changes.
    #[inline]
    pub fn is_frozen(&self) -> bool {
        self.layers.read().frozen.is_some()
    }

    /// Empties the cache.
    pub fn drop_cache(&self) {
        self.cache.clear();
    }
}

fn decode(key: GroupKey, value: &[u8]) -> Result<Record> {
    Record::decode(value).map_err(|error| {
        let place = format!("map record of object {} group {} is damaged", key.object.0, key.group.0);
        Error::with_source(ErrorKind::Corrupt, place, error)
    })
}

/// Takes a record's fragments for `missing`, their live masks cut down to that; returns the blocks
/// still missing. No block has two fragments, so those after the last wanted one need not be
/// examined.
fn take_fragments(record: &Record, missing: BlockMask, mut found: impl FnMut(FragmentRef)) -> BlockMask {
    let mut missing = missing.minus(record.holes);
    for fragment in &record.fragments {
        if missing.is_empty() {
            break;
        }
        let live = fragment.live.and(missing);
        if !live.is_empty() {
            found(FragmentRef { live, ..*fragment });
            missing = missing.minus(live);
        }
    }
    missing
}

/// Takes the blocks of `missing` that a record knows; returns the blocks still missing.
fn take_record(
    epoch: Epoch,
    record: &Record,
    level: &Level,
    missing: BlockMask,
    found: &mut dyn FnMut(Piece),
) -> BlockMask {
    take_fragments(record, missing, |fragment| found(Piece { object: level.object, epoch, fragment }))
}

/// Takes the blocks of `missing` that `records` know in the newest epoch of the level; returns the
/// blocks still missing.
fn take_newest(records: &GroupRecords, level: &Level, missing: BlockMask, found: &mut dyn FnMut(Piece)) -> BlockMask {
    match records.iter().find(|(epoch, _)| *epoch <= level.epoch) {
        Some((epoch, record)) if *epoch == level.epoch => take_record(*epoch, record, level, missing, found),
        _ => missing,
    }
}

/// Takes the blocks of `missing` that several layers, newest first, know, epoch by epoch; returns
/// the blocks still missing.
pub fn take<const N: usize>(
    layers: [Option<&GroupRecords>; N],
    level: &Level,
    mut missing: BlockMask,
    found: &mut dyn FnMut(Piece),
) -> BlockMask {
    let mut rest = layers.map(|records| {
        let records = records.map_or(&[][..], |records| records.as_slice());
        &records[records.partition_point(|(epoch, _)| *epoch > level.epoch)..]
    });
    while !missing.is_empty() {
        let Some(epoch) = rest.iter().filter_map(|records| records.first()).map(|(epoch, _)| *epoch).max() else {
            break;
        };
        let is_seen = level.sees(epoch);
        for records in &mut rest {
            if let Some(((first, record), others)) = records.split_first()
                && *first == epoch
            {
                *records = others;
                if is_seen {
                    missing = take_record(epoch, record, level, missing, found);
                }
            }
        }
    }
    missing
}

/// Lays changes over a group that others may hold; it is copied only then, and only if there are
/// changes.
fn lay(group: &mut Arc<GroupRecords>, changes: &GroupRecords) {
    if !changes.is_empty() {
        absorb(Arc::make_mut(group), changes, &mut |_, _| ());
    }
}

/// Lays changes over records, epoch by epoch; `lost` gets the fragments that lose blocks, with
/// those blocks as their live mask.
pub fn absorb(records: &mut GroupRecords, changes: &GroupRecords, lost: &mut dyn FnMut(Epoch, &FragmentRef)) {
    for (epoch, change) in changes {
        match records.binary_search_by(|(e, _)| epoch.cmp(e)) {
            Ok(at) => records[at].1.absorb(change, &mut |fragment| lost(*epoch, fragment)),
            Err(at) => records.insert(at, (*epoch, change.clone())),
        }
    }
}

/// A copy of records with changes laid over it.
pub fn laid_over(records: &GroupRecords, changes: &GroupRecords) -> GroupRecords {
    let more = |epoch| changes.iter().find(|(e, _)| *e == epoch).map_or(0, |(_, change)| change.fragments.len());
    let mut copy = records.iter().map(|(epoch, record)| (*epoch, record.with_room(more(*epoch)))).collect();
    absorb(&mut copy, changes, &mut |_, _| ());
    copy
}

#[cfg(test)]
mod slow_store_tests;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use env::MapBatch;
    use format::{RecordKey, record_key};
    use sim::Machine;
    use smallvec::smallvec;

    use super::*;

    const KEY: GroupKey = GroupKey { object: ObjectId(1), group: GroupIndex(0) };
    const EPOCH: Epoch = Epoch(0);

    fn at(location: u64) -> FragmentRef {
        let live = BlockMask::run(3, 1);
        FragmentRef { live, first: 3, count: 1, codec: 16, stored: 900, checksum: 7, location }
    }

    /// The chain of an object whose current epoch is `newest`.
    fn level(epoch: Epoch, newest: &Arc<AtomicU32>) -> Level {
        let newest = (epoch == Epoch(0)).then(|| Arc::clone(newest));
        Level { object: KEY.object, epoch, newest, cuts: Vec::new(), image: None }
    }

    /// Returns the block's location for a reader, and as of the last checkpoint for the cleaner,
    /// which reads the group or scans all of them.
    fn places(map: &Map) -> [u64; 3] {
        let level = level(EPOCH, &Arc::default());
        let pieces = map.lookup_stored(&[level], KEY.group, BlockMask::run(3, 1)).unwrap();
        let base = map.base_for_cleaning(KEY, || EPOCH).unwrap();
        let scanned = map.fragments_in(0, u64::MAX).unwrap().found;
        assert_eq!(scanned.len(), 1);
        [pieces[0].fragment.location, base[0].1.fragments[0].location, scanned[0].1.location]
    }

    fn commit(machine: &Machine, fragment: FragmentRef) {
        commit_in(machine, EPOCH, fragment);
    }

    fn commit_in(machine: &Machine, epoch: Epoch, fragment: FragmentRef) {
        let record = Record { holes: BlockMask::EMPTY, fragments: smallvec![fragment] };
        let mut batch = MapBatch::default();
        batch.put(record_key(&RecordKey { object: KEY.object, group: KEY.group, epoch }), record.encode());
        machine.store.handle().commit(batch).unwrap();
    }

    /// A reader that loads a group while a full checkpoint is being published does not bring back
    /// the changes settled before.
    #[test]
    fn a_group_that_is_loaded_while_a_full_checkpoint_is_published_is_the_new_one() {
        let machine = Machine::new(1 << 20, 1);
        commit(&machine, at(1000));
        let map = Map::new(machine.store.handle(), 1 << 20, Arc::default());
        let change = |location| {
            map.active().change(KEY, EPOCH, |record| record.put(at(location), &mut |_| ()));
            map.freeze();
        };
        change(2000);
        map.thaw(Kind::Light, Vec::new());
        assert_eq!(places(&map), [2000; 3]);
        change(3000);
        assert_eq!(places(&map), [3000, 2000, 2000]);
        map.drop_cache();
        commit(&machine, at(3000));
        map.bring_up(Kind::Full, Vec::new());
        assert_eq!(places(&map), [3000; 3], "while it is published");
        map.drop_frozen(Kind::Full);
        assert_eq!(places(&map), [3000; 3], "afterwards");
        map.drop_cache();
        assert_eq!(places(&map), [3000; 3], "loaded anew");
    }

    /// A reader looks down from an object that had no snapshot when its levels were read, and has
    /// one by now.
    #[test]
    fn a_way_down_from_before_a_snapshot_does_not_leave_half_a_group_in_the_cache() {
        let machine = Machine::new(1 << 20, 1);
        commit(&machine, at(1000));
        let map = Map::new(machine.store.handle(), 1 << 20, Arc::default());
        let newest = Arc::default();
        let before = level(EPOCH, &newest);
        newest.store(1, Ordering::Release);
        commit_in(&machine, Epoch(1), at(2000));
        let find =
            |level: Level| map.lookup_stored(&[level], KEY.group, BlockMask::run(3, 1)).unwrap()[0].fragment.location;
        assert_eq!(find(before), 1000, "as it was then");
        assert_eq!(find(level(Epoch(1), &newest)), 2000, "as it is now");
    }

    #[test]
    fn all_records_are_found_a_few_at_a_time() {
        let machine = Machine::new(1 << 20, 1);
        let mut batch = MapBatch::default();
        for (object, group, epoch) in
            [(1, 0, 0), (1, 0, 1), (1, 7, 2), (2, 0, 0), (2, u64::from(u32::MAX), 1), (3, 9, 0)]
        {
            let record = Record { holes: BlockMask::EMPTY, fragments: smallvec![at(1000 * object + group)] };
            let key = RecordKey { object: ObjectId(object), group: GroupIndex(group), epoch: Epoch(epoch) };
            batch.put(record_key(&key), record.encode());
        }
        machine.store.handle().commit(batch).unwrap();
        let settled = Arc::<Overlay>::default();
        for group in [3, 8] {
            let key = GroupKey { object: ObjectId(2), group: GroupIndex(group) };
            settled.change(key, EPOCH, |record| record.put(at(50 + group), &mut |_| ()));
        }
        let map = Map::new(machine.store.handle(), 1 << 20, settled);
        let all = map.fragments_in(0, u64::MAX).unwrap().found;
        assert_eq!(all.len(), 8);
        for records_max in 1..9 {
            let paged = map.fragments_by_pages(0, u64::MAX, records_max).unwrap();
            assert_eq!((paged.found, paged.damaged.len()), (all.clone(), 0), "{records_max} at a time");
        }
        // One of two records of a group is damaged: all other groups are found.
        let id = RecordKey { object: ObjectId(1), group: GroupIndex(0), epoch: Epoch(1) };
        machine.store.flip_bit(&record_key(&id), 3, 1);
        for records_max in 1..9 {
            let paged = map.fragments_by_pages(0, u64::MAX, records_max).unwrap();
            let damaged: Vec<_> = paged.damaged.iter().map(|(key, _)| *key).collect();
            assert_eq!((paged.found.len(), damaged), (6, vec![GroupKey { object: id.object, group: id.group }]));
            assert!(map.scan_records(b"R", b"S", &mut |_, _| std::ops::ControlFlow::Continue(())).is_err());
        }
    }
}
