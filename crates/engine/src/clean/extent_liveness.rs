//! Finds the live fragments of an extent: those that its own batches name and that records of the
//! map point to. Owns no state; any thread may call it.
//!
//! 1. The batches list all fragments with their locations ([`extent_scan`]).
//! 2. The map decides which of them are live, as of the last checkpoint. Fragments are looked up in
//!    the order of their groups, each group once. The cleaner need not ask the map where all dead
//!    fragments are known ([`space::dead_map`](store::space::dead_map)).
//! 3. If this finds fewer live bytes than the checkpoint counted, headers are damaged, and all
//!    records are searched for ones that point here: slow, but complete.

use std::sync::Arc;

use format::{FragmentEntry, FragmentRef, Record};
use store::base::group::{GroupKey, GroupRecords};
use store::log::extent_scan::{self, Stored};
use store::map::Map;
use store::objects::Object;
use store::space::dead_map::Since;
use store::space::extents::Victim;
use surface::{Error, ErrorKind, Result};
use units::{BlockIndex, Epoch, ExtentIndex, Seq};

use crate::clean::Cleaning;

/// A live fragment in an extent.
pub(crate) struct Resident {
    pub object: Arc<Object>,
    pub stored: Stored,
    /// Where its payload begins in the data file.
    pub location: u64,
    /// The reference in its record.
    pub reference: FragmentRef,
}

/// The live fragments of an extent, as far as they can be found.
#[derive(Default)]
pub(crate) struct Residents {
    pub found: Vec<Resident>,
    /// Groups with damaged records, whose fragments are not in `found`.
    pub damaged: Vec<(GroupKey, Error)>,
}

impl Residents {
    /// Live bytes of those that were found.
    pub(crate) fn live(&self) -> u32 {
        self.found.iter().map(|resident| resident.reference.live_bytes()).sum()
    }

    /// All residents.
    ///
    /// # Errors
    /// When a record is damaged.
    fn all(self) -> Result<Vec<Resident>> {
        self.damaged.into_iter().next().map_or(Ok(self.found), |(_, error)| Err(error))
    }
}

impl Resident {
    pub(crate) fn key(&self) -> GroupKey {
        key_of(&self.stored)
    }
}

fn key_of(stored: &Stored) -> GroupKey {
    GroupKey { object: stored.object, group: stored.fragment.first.group() }
}

/// Looks fragments up in the map as of the last checkpoint, and remembers the group that was asked
/// for last.
#[derive(Default)]
pub(crate) struct Lookup {
    known: Option<(GroupKey, Arc<GroupRecords>)>,
}

impl Lookup {
    /// Returns the fragment at `location` in the record of that group and epoch.
    pub(crate) fn at(
        &mut self,
        map: &Map,
        object: &Object,
        key: GroupKey,
        epoch: Epoch,
        location: u64,
    ) -> Result<Option<FragmentRef>> {
        if self.known.as_ref().is_none_or(|(known, _)| *known != key) {
            self.known = Some((key, map.base_for_cleaning(key, || object.epoch())?));
        }
        let mut records = self.known.iter().flat_map(|(_, records)| records.iter());
        let record: Option<&Record> = records.find(|(e, _)| *e == epoch).map(|(_, record)| record);
        Ok(record.and_then(|record| record.fragments.iter().find(|f| f.location == location)).copied())
    }
}

impl Cleaning {
    /// Returns the live fragments of an extent that the log has passed, and when its present use
    /// began, if that is known without asking the map, as of the last published checkpoint. `bytes`
    /// is the extent's content.
    pub(crate) fn known_residents(&self, extent: ExtentIndex, bytes: &[u8]) -> Option<(Vec<Resident>, Since)> {
        let (live, dead) = {
            let extents = self.space.extents.lock();
            (extents.live_of(extent), self.applier.deaths.lock().of(extent)?.clone())
        };
        let start = self.geometry.start(extent);
        let mut residents = Vec::new();
        let mut sum = 0u64;
        let mut last = None;
        for (at, batch) in extent_scan::batches(self.log.pool(), extent, bytes) {
            if batch.header.incarnation < dead.since.0 || batch.header.seq < dead.since.1 {
                // Left over from an earlier use.
                continue;
            }
            for stored in extent_scan::fragments(at, &batch) {
                let live = stored.given.minus(dead.at(stored.offset));
                let object = self.objects.get_again(&mut last, stored.object);
                let Some(object) = object.filter(|_| !live.is_empty()) else { continue };
                let location = start + stored.offset as u64;
                let reference = FragmentRef { live, ..stored.fragment.at(location) };
                sum += u64::from(reference.live_bytes());
                residents.push(Resident { object: object.clone(), stored, location, reference });
            }
        }
        if sum == u64::from(live) {
            debug_assert!(
                !self.vitals.is_inline() || self.are_all(Victim { extent, live }, bytes, &residents),
                "{extent:?}"
            );
            return Some((residents, dead.since));
        }
        // Headers are damaged, or a write has failed here: its batch is named, but was never
        // entered.
        self.applier.deaths.lock().forget(extent);
        None
    }

    /// Returns whether the map agrees, if it can be read.
    fn are_all(&self, victim: Victim, bytes: &[u8], known: &[Resident]) -> bool {
        let Ok(residents) = self.residents(victim, bytes, || false) else { return true };
        let references = |residents: &[Resident]| {
            let mut references: Vec<_> = residents.iter().map(|resident| resident.reference).collect();
            references.sort_unstable_by_key(|reference| reference.location);
            references
        };
        references(&residents) == references(known)
    }

    /// Returns the live fragments of an extent whose bytes are `bytes`. `is_current` returns
    /// whether the last checkpoint is still the one from which `victim.live` was read: if not,
    /// damaged headers are not noticed, and fragments that only they name are left out.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub(crate) fn residents(
        &self,
        victim: Victim,
        bytes: &[u8],
        is_current: impl Fn() -> bool,
    ) -> Result<Vec<Resident>> {
        let named = self.named_residents(victim.extent, bytes)?;
        let live = named.live();
        let residents = named.all()?;
        if live == victim.live || !is_current() {
            return Ok(residents);
        }
        self.residents_by_map(victim.extent)?.all()
    }

    /// Steps 1 and 2: the live fragments of an extent by its own batches.
    ///
    /// # Errors
    /// When the map cannot be read. Damaged records are [`Residents::damaged`].
    pub(crate) fn named_residents(&self, extent: ExtentIndex, bytes: &[u8]) -> Result<Residents> {
        let start = self.geometry.start(extent);
        let mut named: Vec<Stored> = Vec::new();
        for (at, batch) in extent_scan::batches(self.log.pool(), extent, bytes) {
            named.extend(extent_scan::fragments(at, &batch));
        }
        named.sort_unstable_by_key(|stored| (key_of(stored), stored.offset));
        let mut lookup = Lookup::default();
        let mut residents = Residents::default();
        for stored in named {
            let key = key_of(&stored);
            let Some(object) = self.objects.get(stored.object) else { continue };
            if residents.damaged.last().is_some_and(|(damaged, _)| *damaged == key) {
                continue;
            }
            let location = start + stored.offset as u64;
            let found = match lookup.at(&self.map, &object, key, stored.epoch, location) {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    residents.damaged.push((key, error));
                    continue;
                }
                found => found?,
            };
            let Some(reference) = found.filter(|found| is_same(&stored.fragment, found)) else { continue };
            residents.found.push(Resident { object, stored, location, reference });
        }
        Ok(residents)
    }

    /// Step 3: the live fragments of an extent by all records of the map.
    ///
    /// # Errors
    /// When the map cannot be read. Damaged records of the whole map are [`Residents::damaged`].
    pub(crate) fn residents_by_map(&self, extent: ExtentIndex) -> Result<Residents> {
        let start = self.geometry.start(extent);
        let made = Seq(self.log.applied_seq().0.saturating_sub(1));
        let fragments = self.map.fragments_in(start, u64::from(self.geometry.extent_bytes))?;
        let mut residents = Residents { found: Vec::new(), damaged: fragments.damaged };
        for (id, reference) in fragments.found {
            let Some(object) = self.objects.get(id.object) else { continue };
            let first = BlockIndex(id.group.first_block().0 + u64::from(reference.first));
            let FragmentRef { count, codec, stored, checksum, location, .. } = reference;
            let fragment = FragmentEntry { first, count, codec, stored, checksum };
            let offset = (location - start) as usize;
            // Its age is unknown. Data written before this look at the map is older than the map's
            // present state; later data is newer.
            let stored = Stored {
                object: id.object,
                epoch: id.epoch,
                fragment,
                made,
                is_moved: true,
                given: reference.unit(),
                offset,
            };
            residents.found.push(Resident { object, stored, location, reference });
        }
        Ok(residents)
    }
}

/// Returns whether a batch's entry and a record refer to the same fragment.
pub(crate) fn is_same(entry: &FragmentEntry, reference: &FragmentRef) -> bool {
    let place = (entry.first.in_group(), entry.count, entry.codec);
    place == (reference.first.into(), reference.count, reference.codec)
        && (entry.stored, entry.checksum) == (reference.stored, reference.checksum)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use sim::Machine;
    use surface::{BlockDevice, WriteOptions};
    use units::{BLOCK_BYTES, ExtentIndex};

    use super::*;
    use crate::Properties;
    use crate::pool::testing::pool_on;

    const POOL_BYTES: u64 = 64 << 20;
    const BLOCKS: u64 = 4096;

    /// Data that shrinks to about a third.
    fn data(blocks: u64, seed: u64) -> Bytes {
        let words = (0..blocks * BLOCK_BYTES as u64 / 24).map(|n| (seed + n).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut bytes: Vec<u8> = words.flat_map(|word| [word.to_le_bytes(), [0; 8], [1; 8]].concat()).collect();
        bytes.resize(blocks as usize * BLOCK_BYTES, 0);
        bytes.into()
    }

    /// Returns the number of extents with live data whose live fragments are known, and of those
    /// whose are not. The known ones agree with the map.
    fn known(pool: &crate::Pool) -> (usize, usize) {
        let core = &pool.core;
        let (mut known, mut unknown) = (0, 0);
        for extent in (1..core.geometry.extents()).map(ExtentIndex) {
            let live = core.space.extents.lock().live_of(extent);
            if live == 0 || core.space.extents.lock().is_listed(extent) {
                continue;
            }
            let bytes = core.clean.read_extent(extent).unwrap();
            let bytes = &bytes[..core.geometry.extent_bytes as usize];
            let Some((residents, _)) = core.clean.known_residents(extent, bytes) else {
                unknown += 1;
                continue;
            };
            assert!(core.clean.are_all(Victim { extent, live }, bytes, &residents), "{extent:?}");
            known += 1;
        }
        (known, unknown)
    }

    #[test]
    fn what_lives_is_known_without_the_map_from_the_opening_on() {
        for workers in [0, 2] {
            let machine = Machine::new(POOL_BYTES, 5);
            let pool = pool_on(&machine, machine.disk.handle(), POOL_BYTES, workers);
            let properties = [("compression", "lz4"), ("unit", "32K")].map(|(k, v)| (k.to_owned(), v.to_owned()));
            pool.create_volume("v", BLOCKS * BLOCK_BYTES as u64, &Properties::from(properties)).unwrap();
            let volume = pool.volume("v").unwrap();
            let mut random = 1u64;
            let mut next = |below: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % below
            };
            for step in 0..6000 {
                let blocks = 1 + next(12);
                let at = next(BLOCKS - blocks) * BLOCK_BYTES as u64;
                match next(40) {
                    0 => volume.discard(at, blocks * BLOCK_BYTES as u64).unwrap(),
                    1 => pool.flush().unwrap(),
                    _ => volume.write(at, data(blocks, next(u64::MAX >> 33)), WriteOptions::default()).unwrap(),
                }
                if step == 2000 {
                    pool.take_snapshot("v", "s", false).unwrap();
                }
                if step == 4000 {
                    pool.destroy("v@s", false).unwrap();
                }
                if step % 500 == 499 {
                    pool.clean(true, u32::MAX).unwrap();
                }
            }
            pool.checkpoint().unwrap();
            let (all, unknown) = known(&pool);
            assert!(all > 20 && unknown == 0, "{workers} workers: {all} known, {unknown} not");
            drop(volume);
            pool.close().unwrap();
        }
    }
}
