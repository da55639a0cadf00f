//! Replaces damaged fragments by another copy (the property `copies`). Owns no state. A scrub, and
//! whoever looks at suspected extents, call it; so does the cleaner for what it moves.
//!
//! 1. Of the live blocks of a damaged fragment another copy is read, and verified.
//! 2. It is appended as a move from the damaged place, under the identity of the damaged fragment.
//!    So a block that was written again in the meantime stays as it is, and readers find the good
//!    data as soon as the move is applied.
//! 3. The damaged place holds nothing live any more; its extent is freed and filled again as usual.

use std::sync::atomic::Ordering;

use format::{FragmentEntry, FragmentIdentity, FragmentRef, Move, fragment_checksum};
use store::log::Purpose;
use surface::Result;
use units::{BlockIndex, BlockMask};

use crate::clean::Cleaning;
use crate::clean::extent_liveness::{Resident, is_same};
use crate::clean::survivors::Survivors;

/// Attempts: the first one may find the log's list of extents used up.
const TRIES: usize = 2;

impl Cleaning {
    /// Repairs damaged fragments as far as they have another copy, and returns for each whether it
    /// did. They must have been counted by a checkpoint.
    ///
    /// # Errors
    /// When the map or the log fails.
    pub(crate) fn repair(&self, damaged: &[&Resident]) -> Result<Vec<bool>> {
        let mut repaired = vec![false; damaged.len()];
        for _ in 0..TRIES {
            let seen = self.checkpoints.map_version.load(Ordering::Acquire);
            let mut survivors = Survivors::default();
            for (resident, repaired) in damaged.iter().zip(&mut repaired) {
                let Resident { object, stored, location, .. } = resident;
                let same = |fragment: &FragmentRef| is_same(&stored.fragment, fragment);
                let live = self.map.lives_at(resident.key(), object.epoch(), stored.epoch, *location, same)?;
                *repaired = !live.is_empty() && self.survive_by_copy(resident, live, &mut survivors);
            }
            if !repaired.contains(&true) {
                return Ok(repaired);
            }
            let _aside = self.space.reserve(survivors.payload_bytes() as u64);
            if self.move_survivors(&mut survivors, seen, None, Purpose::Clean)?.is_some() {
                let count = repaired.iter().filter(|repaired| **repaired).count();
                self.vitals.counters.repaired_fragments.add(count as u64);
                return Ok(repaired);
            }
            self.checkpoints.take_light()?;
        }
        Ok(vec![false; damaged.len()])
    }

    /// Steps 1 and 2 for some live blocks of a damaged fragment. Returns whether there is a copy.
    pub(super) fn survive_by_copy(&self, resident: &Resident, live: BlockMask, survivors: &mut Survivors) -> bool {
        let Resident { object, stored, location, .. } = resident;
        let group = resident.key().group;
        let _in_extents = self.reads.readers.read();
        let mut others = self.reads.other_copies((stored.object, stored.epoch), group, live);
        others.any(|copy| {
            let mark = survivors.mark();
            let is_whole = copy.iter().all(|wanted| {
                let Some(payload) = self.reads.payload_alone(object, wanted) else { return false };
                let FragmentRef { first, count, codec, stored: bytes, live, .. } = wanted.piece.fragment;
                let first = BlockIndex(group.first_block().0 + u64::from(first));
                let identity = FragmentIdentity { object: stored.object, epoch: stored.epoch, first, count, codec };
                let checksum = fragment_checksum(&identity, &payload);
                let fragment = FragmentEntry { first, count, codec, stored: bytes, checksum };
                survivors.push(stored, Move { fragment, live, from: *location, made: stored.made }, &payload);
                true
            });
            if !is_whole {
                survivors.cut_back(mark);
            }
            is_whole
        })
    }
}
