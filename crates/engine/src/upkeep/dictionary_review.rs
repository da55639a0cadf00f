//! Drops dictionaries that no fragment needs any more: the end of a recompression, which has
//! rewritten the data compressed with older ones. References to dictionaries are not counted; so
//! before one is dropped, every fragment that could need it is examined.
//!
//! 1. All dictionaries of the volume but the newest are *retired*: nothing is compressed with them
//!    until the needed ones are known.
//! 2. Drains and rounds of the cleaner that may have used one before are waited for, and a
//!    checkpoint is taken: every fragment that needs one is part of the map as of a checkpoint now.
//!    From here on no new record needs one: a move leaves a fragment in its record, and everything
//!    else only removes fragments.
//! 3. All objects' records, as of the last checkpoint, are read in the order of their keys; for
//!    each fragment with a dictionary the payload is read and verified, and its dictionary noted. A
//!    fragment that cannot be read or verified may need any of them.
//! 4. A checkpoint makes that state durable, earlier readers are waited for, and dictionaries that
//!    no fragment names are destroyed. The others may be used again.
//!
//! Records are examined page by page. Checkpoints are held off only for a page: until the next one,
//! the locations of the last checkpoint stay valid.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use codec::{CodecId, DictionaryNumber};
use format::{Entry, ObjectDescriptor, ObjectState, RecordKey, record_key};
use store::base::canary::Canary;
use store::base::group::GroupKey;
use store::base::scratch;
use store::map::Piece;
use store::objects::object::Object;
use surface::Result;
use units::{Epoch, GroupIndex, ObjectId};

use crate::read::reader::verify;
use crate::upkeep::Upkeep;

/// Groups examined while checkpoints are held off.
const PAGE_GROUPS: usize = 256;

/// Dictionaries needed by the fragments of a page.
#[derive(Default)]
struct Needed {
    dictionaries: BTreeSet<ObjectId>,
    /// One could not be read.
    is_unknown: bool,
}

impl Upkeep {
    /// Runs all steps for the dictionaries of one volume; returns how many were dropped.
    /// Recompression must be held off by the caller.
    ///
    /// # Errors
    /// When the storage fails.
    pub(crate) fn review_dictionaries(&self, volume: &Object) -> Result<u64> {
        let mut old: BTreeSet<_> = self.objects.dictionaries_of(volume.id).into_iter().collect();
        if old.pop_last().is_none() || old.is_empty() {
            return Ok(0);
        }
        // Step 1.
        self.dictionaries.retire(&old);
        let gone = self.destroy_unneeded(old.clone())?;
        old.retain(|id| !gone.contains(id));
        self.dictionaries.recall(&old);
        Ok(gone.len() as u64)
    }

    /// Steps 2 to 4 for retired dictionaries: returns those that are gone. After an error some may
    /// be.
    fn destroy_unneeded(&self, mut old: BTreeSet<ObjectId>) -> Result<BTreeSet<ObjectId>> {
        // Step 2.
        self.writes.drain_all()?;
        drop(self.dictionaries.in_use.write());
        self.checkpoints.take()?;
        // Step 3.
        let mut from = vec![b'R'];
        loop {
            let mut needed = Needed::default();
            let next = self.review_page(&from, &mut needed);
            old.retain(|id| !needed.dictionaries.contains(id));
            if needed.is_unknown || old.is_empty() {
                return Ok(BTreeSet::new());
            }
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        // Step 4.
        self.checkpoints.take()?;
        self.reads.readers.wait_until_gone();
        let _admin = self.objects.admin.lock();
        let gone = old.iter().filter_map(|id| self.objects.get(*id)).map(|dictionary| {
            let descriptor = dictionary.descriptor.read().clone();
            Entry::Object(ObjectDescriptor { state: ObjectState::Deleting, ..descriptor })
        });
        self.writes.append_durably(gone.collect())?;
        Ok(old)
    }

    /// Step 3 for one page from a key on; returns where the next one begins, if there is one.
    fn review_page(&self, from: &[u8], needed: &mut Needed) -> Option<Vec<u8>> {
        let _still = self.checkpoints.state.lock();
        let mut pieces = Vec::new();
        let (mut groups, mut last) = (0, None);
        let scanned = self.map.scan_records(from, b"S", &mut |key, records| {
            for (epoch, record) in records {
                let helped = record.fragments.into_iter().filter(|f| CodecId(f.codec) == CodecId::ZSTD_DICTIONARY);
                pieces.extend(helped.map(|fragment| (key.group, Piece { object: key.object, epoch, fragment })));
            }
            groups += 1;
            if groups < PAGE_GROUPS {
                return ControlFlow::Continue(());
            }
            last = Some(key);
            ControlFlow::Break(())
        });
        needed.is_unknown |= scanned.is_err();
        pieces.sort_unstable_by_key(|(_, piece)| piece.fragment.location);
        for (group, piece) in &pieces {
            if Canary::DictionaryGivenUpUnseen.is_planted() {
                break;
            }
            match self.dictionary_needed(*group, piece) {
                Some(id) => drop(needed.dictionaries.insert(id)),
                None => needed.is_unknown = true,
            }
        }
        let next = |key: GroupKey| RecordKey {
            object: key.object,
            group: GroupIndex(key.group.0 + 1),
            epoch: Epoch(u32::MAX),
        };
        last.map(|last| record_key(&next(last)).to_vec())
    }

    /// Returns the dictionary that a fragment needs; `None` if it cannot be read.
    fn dictionary_needed(&self, group: GroupIndex, piece: &Piece) -> Option<ObjectId> {
        let fragment = &piece.fragment;
        if !self.geometry.holds(fragment.location, fragment.stored) {
            return None;
        }
        let align = self.vitals.env.disk.read_alignment() as u64;
        let start = fragment.location / align * align;
        let len = ((fragment.location + u64::from(fragment.stored)).next_multiple_of(align) - start) as usize;
        scratch::with(|scratch| {
            scratch.grow_io(len);
            self.vitals.env.disk.read_at(start, &mut scratch.io, len).ok()?;
            let from = (fragment.location - start) as usize;
            let payload = &scratch.io[from..from + fragment.stored as usize];
            verify(group, piece, payload).inspect_err(|_| self.reads.suspects.note(fragment.location)).ok()?;
            DictionaryNumber::split(payload).map(|(number, _)| ObjectId(number.0.into()))
        })
    }
}
