//! The map: from (object, group) to where each block lies. Three layers, newest first: the active overlay (changes
//! since the last checkpoint began), the frozen overlay (changes that a checkpoint is writing right now), and the store,
//! read through a cache of decoded groups.
//!
//! Coherence of the cache with the store: a reader that finds a group in neither overlay nor cache loads it from the store and
//! puts it into the cache, all under the layers' read lock. A checkpoint commits to the store, then takes the write
//! lock once (from here on nobody holds a group that was loaded before the commit), then replaces the cached groups, then
//! drops the frozen overlay under the write lock. Until then the frozen overlay lies above old and new groups alike,
//! and laying a change over a record that contains it already changes nothing.

use std::ops::ControlFlow;
use std::sync::Arc;

use env::{MapError, MapStore};
use format::{FragmentRef, Record, parse_record_key, record_key, record_key_range};
use parking_lot::RwLock;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use surface::{Error, ErrorKind, Result};
use units::{BlockMask, Epoch, GroupIndex, ObjectId};

use crate::overlay::{GroupRecords, Overlay};
use crate::write_buffer::GroupKey;

/// One step of the way down from an object: it, then its origin, and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Level {
    pub object: ObjectId,
    /// Newest epoch that is seen.
    pub epoch: Epoch,
}

/// A fragment that answers for some blocks, and whose it is (its checksum covers that).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub object: ObjectId,
    pub epoch: Epoch,
    /// Its live mask is cut down to the blocks that were asked for.
    pub fragment: FragmentRef,
}

#[derive(Clone, Copy)]
struct GroupWeight;

impl Weighter<GroupKey, Arc<GroupRecords>> for GroupWeight {
    fn weight(&self, _: &GroupKey, records: &Arc<GroupRecords>) -> u64 {
        let fragments: usize = records.iter().map(|(_, r)| r.fragments.len()).sum();
        // Key, pointer, counts, vectors; see `overlay` for the fragment.
        (144 + 48 * records.len() + size_of::<FragmentRef>() * fragments) as u64
    }
}

struct Layers {
    active: Arc<Overlay>,
    frozen: Option<Arc<Overlay>>,
}

pub(crate) struct Map {
    layers: RwLock<Layers>,
    cache: Cache<GroupKey, Arc<GroupRecords>, GroupWeight>,
    store: Arc<dyn MapStore>,
}

/// The error for a failure of the store.
pub(crate) fn store_error(error: MapError) -> Error {
    let kind = if error.corrupt { ErrorKind::Corrupt } else { ErrorKind::Io };
    Error::with_source(kind, "the pool's metadata could not be read or written", error)
}

impl Map {
    pub(crate) fn new(store: Arc<dyn MapStore>, cache_bytes: usize) -> Self {
        let items = cache_bytes / 512;
        Self {
            layers: RwLock::new(Layers { active: Arc::default(), frozen: None }),
            cache: Cache::with_weighter(items.max(64), cache_bytes as u64, GroupWeight),
            store,
        }
    }

    /// The overlay that takes changes.
    pub(crate) fn active(&self) -> Arc<Overlay> {
        self.layers.read().active.clone()
    }

    /// Where the blocks of `wanted` are found, going down `levels`. What no piece covers reads as zeroes.
    ///
    /// # Errors
    /// When the store fails or a record is damaged.
    pub(crate) fn lookup(&self, levels: &[Level], group: GroupIndex, wanted: BlockMask) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        self.walk(levels, group, wanted, true, &mut |piece| pieces.push(piece))?;
        Ok(pieces)
    }

    /// Like [`lookup`](Self::lookup), but only in memory: `None` if the store would have to be asked.
    pub(crate) fn lookup_cached(&self, levels: &[Level], group: GroupIndex, wanted: BlockMask) -> Option<Vec<Piece>> {
        let mut pieces = Vec::new();
        match self.walk(levels, group, wanted, false, &mut |piece| pieces.push(piece)) {
            Ok(true) => Some(pieces),
            _ => None,
        }
    }

    fn walk(
        &self,
        levels: &[Level],
        group: GroupIndex,
        wanted: BlockMask,
        load: bool,
        found: &mut dyn FnMut(Piece),
    ) -> Result<bool> {
        let layers = self.layers.read();
        let mut missing = wanted;
        for level in levels {
            if missing.is_empty() {
                break;
            }
            let key = GroupKey { object: level.object, group };
            let overlays = std::iter::once(&layers.active).chain(&layers.frozen);
            // With a single epoch the layers need not be merged: each answers for what those above it left open.
            if level.epoch == Epoch(0) {
                for overlay in overlays {
                    overlay.with(key, |records| missing = take(records, level, missing, found));
                    if missing.is_empty() {
                        return Ok(true);
                    }
                }
                match self.base(key, level.epoch, load)? {
                    Some(records) => missing = take(&records, level, missing, found),
                    None => return Ok(false),
                }
                continue;
            }
            let mut merged: GroupRecords = match self.base(key, level.epoch, load)? {
                Some(records) => (*records).clone(),
                None => return Ok(false),
            };
            for overlay in overlays.rev() {
                overlay.with(key, |records| absorb(&mut merged, records, &mut |_, _| ()));
            }
            missing = take(&merged, level, missing, found);
        }
        Ok(true)
    }

    /// The group as it is in the store. `None`: not in memory, and loading was not allowed.
    fn base(&self, key: GroupKey, newest: Epoch, load: bool) -> Result<Option<Arc<GroupRecords>>> {
        if let Some(records) = self.cache.get(&key) {
            return Ok(Some(records));
        }
        if !load {
            return Ok(None);
        }
        let records = Arc::new(self.load(key, newest)?);
        self.cache.insert(key, records.clone());
        Ok(Some(records))
    }

    fn load(&self, key: GroupKey, newest: Epoch) -> Result<GroupRecords> {
        if newest == Epoch(0) {
            // Nothing but epoch 0 can be there: a point lookup is several times cheaper than a scan.
            let epoch = Epoch(0);
            let id = record_key(&format::RecordKey { object: key.object, group: key.group, epoch });
            let value = self.store.get(&id).map_err(store_error)?;
            return value.map_or(Ok(Vec::new()), |v| Ok(vec![(epoch, decode(key, &v)?)]));
        }
        let (from, to) = record_key_range(key.object, key.group, GroupIndex(key.group.0 + 1));
        let mut records = GroupRecords::new();
        let mut failure = None;
        let scanned = self.store.scan(&from, &to, &mut |id, value| {
            let Some(id) = parse_record_key(id) else { return ControlFlow::Continue(()) };
            match decode(key, value) {
                Ok(record) => records.push((id.epoch, record)),
                Err(error) => {
                    failure = Some(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        });
        scanned.map_err(store_error)?;
        failure.map_or(Ok(records), Err)
    }

    /// The group as a checkpoint must merge it: from the cache (`true`), else from the store, without filling the cache.
    pub(crate) fn base_for_checkpoint(&self, key: GroupKey, newest: Epoch) -> Result<(Arc<GroupRecords>, bool)> {
        match self.cache.peek(&key) {
            Some(records) => Ok((records, true)),
            None => Ok((Arc::new(self.load(key, newest)?), false)),
        }
    }

    /// Groups in `from..to` of an object of which some layer knows something, in order; at most `max` of them.
    pub(crate) fn groups_in(&self, object: ObjectId, from: GroupIndex, to: GroupIndex) -> Result<Vec<GroupIndex>> {
        let layers = self.layers.read();
        let mut groups = Vec::new();
        let (low, high) = record_key_range(object, from, to);
        self.store
            .scan(&low, &high, &mut |key, _| {
                if let Some(key) = parse_record_key(key) {
                    groups.push(key.group);
                }
                ControlFlow::Continue(())
            })
            .map_err(store_error)?;
        for overlay in std::iter::once(&layers.active).chain(&layers.frozen) {
            if (overlay.groups() as u64) < to.0.saturating_sub(from.0) {
                let inside = |key: &GroupKey| key.object == object && key.group >= from && key.group < to;
                groups.extend(overlay.keys().into_iter().filter(inside).map(|key| key.group));
                continue;
            }
            for group in from.0..to.0 {
                let group = GroupIndex(group);
                if overlay.with(GroupKey { object, group }, |_| ()).is_some() {
                    groups.push(group);
                }
            }
        }
        groups.sort_unstable();
        groups.dedup();
        Ok(groups)
    }

    /// Blocks of a group that are allocated below the active overlay, as far as memory knows.
    pub(crate) fn allocated_below(&self, key: GroupKey) -> BlockMask {
        let layers = self.layers.read();
        let mut below = BlockMask::EMPTY;
        let mut known = BlockMask::EMPTY;
        let mut look = |records: &GroupRecords| {
            for (_, record) in records {
                below = below.or(record.allocated().minus(known));
                known = known.or(record.known());
            }
        };
        if let Some(frozen) = &layers.frozen {
            frozen.with(key, &mut look);
        }
        // Streams of new data find the cache empty, and need not look.
        if !self.cache.is_empty()
            && let Some(records) = self.cache.peek(&key)
        {
            look(&records);
        }
        below
    }

    /// Begins a checkpoint: what changed so far is frozen. If an earlier checkpoint failed, its frozen changes come first,
    /// and what changed since stays active.
    pub(crate) fn freeze(&self) -> Arc<Overlay> {
        let mut layers = self.layers.write();
        if let Some(frozen) = &layers.frozen {
            return frozen.clone();
        }
        let frozen = std::mem::take(&mut layers.active);
        layers.frozen = Some(frozen.clone());
        frozen
    }

    /// Ends a checkpoint whose batch was committed: `merged` are those of the frozen groups that were cached, in order, as
    /// they are in the store now.
    pub(crate) fn thaw(&self, merged: Vec<(GroupKey, GroupRecords)>) {
        let frozen = {
            let layers = self.layers.write();
            layers.frozen.clone()
        };
        let mut merged = merged.into_iter().peekable();
        for key in frozen.iter().flat_map(|frozen| frozen.keys()) {
            match merged.next_if(|(cached, _)| *cached == key) {
                // Only what is in the cache already is replaced: a checkpoint must not push out what readers want.
                Some((_, records)) if self.cache.peek(&key).is_some() => self.cache.insert(key, Arc::new(records)),
                // What was not cached may be by now, as it was before.
                _ => drop(self.cache.remove(&key)),
            }
        }
        self.layers.write().frozen = None;
    }

    /// Those of `blocks`, for which a fragment at `location` was the truth at the last checkpoint, that no change since has given to
    /// another one, or made holes.
    pub(crate) fn unmoved(&self, key: GroupKey, epoch: Epoch, location: u64, blocks: BlockMask) -> BlockMask {
        let layers = self.layers.read();
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

    /// Every fragment to which a record in the store points within `len` bytes from `start` of the data file. Looks at all records of
    /// the pool.
    pub(crate) fn fragments_in(&self, start: u64, len: u64) -> Result<Vec<(format::RecordKey, FragmentRef)>> {
        let mut found = Vec::new();
        let mut failure = None;
        self.store
            .scan(b"R", b"S", &mut |id, value| {
                let Some(id) = parse_record_key(id) else { return ControlFlow::Continue(()) };
                match decode(GroupKey { object: id.object, group: id.group }, value) {
                    Ok(record) => {
                        let inside = |f: &&FragmentRef| f.location >= start && f.location - start < len;
                        found.extend(record.fragments.iter().filter(inside).map(|f| (id, *f)));
                        ControlFlow::Continue(())
                    }
                    Err(error) => {
                        failure = Some(error);
                        ControlFlow::Break(())
                    }
                }
            })
            .map_err(store_error)?;
        failure.map_or(Ok(found), Err)
    }

    /// Whether a checkpoint is writing changes.
    pub(crate) fn is_frozen(&self) -> bool {
        self.layers.read().frozen.is_some()
    }

    /// Empties the cache.
    pub(crate) fn drop_cache(&self) {
        self.cache.clear();
    }
}

fn decode(key: GroupKey, value: &[u8]) -> Result<Record> {
    Record::decode(value).map_err(|error| {
        let place = format!("map record of object {} group {} is damaged", key.object.0, key.group.0);
        Error::with_source(ErrorKind::Corrupt, place, error)
    })
}

/// Takes what `records` know of `missing` up to the level's epoch; returns what is still missing.
fn take(records: &GroupRecords, level: &Level, mut missing: BlockMask, found: &mut dyn FnMut(Piece)) -> BlockMask {
    for (epoch, record) in records {
        if *epoch > level.epoch {
            continue;
        }
        for fragment in &record.fragments {
            let live = fragment.live.and(missing);
            if !live.is_empty() {
                found(Piece { object: level.object, epoch: *epoch, fragment: FragmentRef { live, ..*fragment } });
            }
        }
        missing = missing.minus(record.known());
        if missing.is_empty() {
            break;
        }
    }
    missing
}

/// Lays changes over records, epoch by epoch; `lost` gets what fragments lose by it, with those blocks as their live mask.
pub(crate) fn absorb(records: &mut GroupRecords, changes: &GroupRecords, lost: &mut dyn FnMut(Epoch, &FragmentRef)) {
    for (epoch, change) in changes {
        match records.binary_search_by(|(e, _)| epoch.cmp(e)) {
            Ok(at) => records[at].1.absorb(change, &mut |fragment| lost(*epoch, fragment)),
            Err(at) => records.insert(at, (*epoch, change.clone())),
        }
    }
}
