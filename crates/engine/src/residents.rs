//! What lives in an extent: the fragments that its own batches name and that records of the map point to.
//!
//! 1. The batches tell who has written what where ([`extent_scan`]).
//! 2. The map tells what of it counts, as of the last checkpoint. Fragments are looked up in the order of their groups, each
//!    group once.
//! 3. If that makes fewer live bytes than the checkpoint counted, headers are damaged, and all records are searched for ones that
//!    point here: slow, but it finds everything.

use std::sync::Arc;

use format::{FragmentEntry, FragmentRef, Record};
use surface::Result;
use units::{BlockIndex, Epoch, Seq};

use crate::core::Core;
use crate::extent_scan::{self, Stored};
use crate::extents::Victim;
use crate::objects::Object;
use crate::overlay::GroupRecords;
use crate::write_buffer::GroupKey;

/// A fragment that lives in an extent.
pub(crate) struct Resident {
    pub object: Arc<Object>,
    pub stored: Stored,
    /// Where its payload begins in the data file.
    pub location: u64,
    /// What the record says of it.
    pub reference: FragmentRef,
}

impl Resident {
    pub(crate) fn key(&self) -> GroupKey {
        key_of(&self.stored)
    }
}

fn key_of(stored: &Stored) -> GroupKey {
    GroupKey { object: stored.object, group: stored.fragment.first.group() }
}

/// Looks fragments up in the map as of the last checkpoint, and remembers the group that was asked for last.
#[derive(Default)]
pub(crate) struct Lookup {
    known: Option<(GroupKey, Arc<GroupRecords>)>,
}

impl Lookup {
    /// The fragment at `location` in the record of that group and epoch.
    pub(crate) fn at(
        &mut self,
        core: &Core,
        object: &Object,
        key: GroupKey,
        epoch: Epoch,
        location: u64,
    ) -> Result<Option<FragmentRef>> {
        if self.known.as_ref().is_none_or(|(known, _)| *known != key) {
            self.known = Some((key, core.map.base_for_cleaning(key, object.epoch())?));
        }
        let mut records = self.known.iter().flat_map(|(_, records)| records.iter());
        let record: Option<&Record> = records.find(|(e, _)| *e == epoch).map(|(_, record)| record);
        Ok(record.and_then(|record| record.fragments.iter().find(|f| f.location == location)).copied())
    }
}

impl Core {
    /// What lives in an extent whose bytes are `bytes`, and whether its headers are whole. `is_current` tells whether the
    /// last checkpoint is still the one as of which `victim.live` was read.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub(crate) fn residents(
        &self,
        victim: Victim,
        bytes: &[u8],
        is_current: impl Fn() -> bool,
    ) -> Result<(Vec<Resident>, bool)> {
        let start = self.geometry.start(victim.extent);
        let mut named: Vec<Stored> = Vec::new();
        for (at, batch) in extent_scan::batches(self.log.pool(), victim.extent, bytes) {
            named.extend(extent_scan::fragments(at, &batch));
        }
        named.sort_unstable_by_key(|stored| (key_of(stored), stored.offset));
        let mut lookup = Lookup::default();
        let mut residents = Vec::new();
        let mut live = 0;
        for stored in named {
            let Some(object) = self.objects.get(stored.object) else { continue };
            let location = start + stored.offset as u64;
            let found = lookup.at(self, &object, key_of(&stored), stored.epoch, location)?;
            let Some(reference) = found.filter(|found| is_same(&stored.fragment, found)) else { continue };
            live += reference.live_bytes();
            residents.push(Resident { object, stored, location, reference });
        }
        if live == victim.live || !is_current() {
            return Ok((residents, true));
        }
        let made = Seq(self.log.applied_seq().0.saturating_sub(1));
        let mut residents = Vec::new();
        for (id, reference) in self.map.fragments_in(start, u64::from(self.geometry.extent_bytes))? {
            let Some(object) = self.objects.get(id.object) else { continue };
            let first = BlockIndex(id.group.first_block().0 + u64::from(reference.first));
            let FragmentRef { count, codec, stored, checksum, location, .. } = reference;
            let fragment = FragmentEntry { first, count, codec, stored, checksum };
            let offset = (location - start) as usize;
            // How old it is cannot be told any more. What was written before this look at the map is older than what the map says now;
            // what is written from now on is newer than that.
            let stored = Stored { object: id.object, epoch: id.epoch, fragment, made, offset };
            residents.push(Resident { object, stored, location, reference });
        }
        Ok((residents, false))
    }
}

/// Whether a batch's entry and a record speak of the same fragment.
pub(crate) fn is_same(entry: &FragmentEntry, reference: &FragmentRef) -> bool {
    let place = (entry.first.in_group(), entry.count, entry.codec);
    place == (reference.first.into(), reference.count, reference.codec)
        && (entry.stored, entry.checksum) == (reference.stored, reference.checksum)
}
