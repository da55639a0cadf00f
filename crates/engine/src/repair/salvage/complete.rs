//! Tells whether the log holds everything that it should, by the
//! [`inventory`](crate::log::inventory). Owns what is expected of each extent, and what was found
//! short of it.
//!
//! 1. The newest copy that holds counts. If a newer one was torn, its checkpoint was never
//!    durable: then the older copy counts, and all batches up to the newer one's position must
//!    be there as well. A crash during a checkpoint may be why they are missing. The report
//!    says so, and counts them as lost, because damage looks the same.
//! 2. Each extent that the inventory names has batches from its first byte on, without a gap,
//!    up to where it is filled. The last of them is the one that the inventory names.
//! 3. All batches behind its position are there that some batch knows to be durable.
//! 4. If a later opening than the inventory's has written something, a program that keeps no
//!    inventory did: then nothing is known.
//!
//! An inventory that is *coarse* says of each extent only whether it holds something. Then an
//! extent that is gone as a whole is missed, and nothing else is known.

use format::{ExtentEntry, Filled, Inventory};
use units::{ExtentIndex, Seq};

use super::extent::Located;
use crate::log::inventory::Copy;

/// Extents that are short which are remembered one by one.
const SHORT_MAX: usize = 1000;

/// Whether something is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Completeness {
    /// All is there, by the inventory.
    Complete,
    /// Something is missing, by the inventory.
    Incomplete,
    /// It cannot be known, because the inventory is damaged.
    Damaged,
    /// It cannot be known, because none was kept, or one that says too little.
    #[default]
    NotKept,
}

/// An extent that does not hold what it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Short {
    pub extent: ExtentIndex,
    /// Bytes that are there.
    pub has: u32,
    /// Bytes that should be; `None`: not known.
    pub wants: Option<u32>,
}

/// What is expected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    pub completeness: Completeness,
    inventory: Option<Inventory>,
    /// All batches before it were durable, unless that is in doubt.
    pub until: Seq,
    /// A crash during the newest copy's checkpoint may be why batches before `until` are missing.
    pub is_in_doubt: bool,
    /// Of the newest copy, whether it holds or not.
    incarnation: u64,
    pub short: Vec<Short>,
    /// Extents that are short beyond those.
    pub short_more: u64,
    /// Bytes that are missing in all.
    pub missing_bytes: u64,
    /// Extents of which it is not known how far they were filled.
    pub unknown: u64,
    /// The inventory says of no extent how far it is filled.
    pub is_coarse: bool,
    /// An extent has been used again that it says to be in use: it is not the newest.
    is_stale: bool,
    /// Batches are missing that are newer than it.
    pub misses_recent: bool,
    /// Descriptors may be missing, with the catalogue or newer than that.
    pub misses_objects: bool,
}

impl Expected {
    /// Step 1. `is_kept`: the pool is one that has an inventory.
    pub(crate) fn by(copies: [Copy; 2], is_kept: bool) -> Self {
        let nothing = |completeness| Self { completeness, ..Self::default() };
        if !is_kept {
            return nothing(Completeness::NotKept);
        }
        let closed = |copy: &Copy| matches!(copy, Copy::Whole(known) | Copy::Torn(known) if known.is_closed);
        let [a, b] = copies;
        let (newer, older) = if a.age() >= b.age() { (a, b) } else { (b, a) };
        let is_in_doubt = !closed(&newer);
        let incarnation = newer.age().map_or(0, |(incarnation, _)| incarnation);
        let (inventory, until) = match (newer, older) {
            // A copy that cannot be told at all may have been the newest one.
            (_, Copy::Damaged) | (Copy::Damaged, _) => return nothing(Completeness::Damaged),
            (Copy::Whole(inventory), _) => {
                let until = inventory.next_seq;
                (inventory, until)
            }
            (Copy::Torn(torn), Copy::Whole(inventory)) => (inventory, torn.next_seq),
            (Copy::Torn(_), Copy::Torn(_)) => return nothing(Completeness::Damaged),
        };
        if inventory.extents.is_none() {
            return nothing(Completeness::NotKept);
        }
        let (completeness, is_coarse) = (Completeness::Complete, inventory.is_coarse);
        Self { completeness, until, is_in_doubt, is_coarse, incarnation, inventory: Some(inventory), ..Self::default() }
    }

    /// The position of the inventory that counts.
    pub(crate) fn next_seq(&self) -> Seq {
        self.inventory.as_ref().map_or(Seq(0), |inventory| inventory.next_seq)
    }

    /// Whether the log ended there.
    pub(crate) fn is_closed(&self) -> bool {
        self.inventory.as_ref().is_some_and(|inventory| inventory.is_closed)
    }

    /// Objects and their blocks of data, if that is known.
    pub(crate) fn objects(&self) -> Option<&[(units::ObjectId, u64)]> {
        self.inventory.as_ref()?.objects.as_deref()
    }

    /// Step 2, of an extent with these batches.
    pub(crate) fn look(&mut self, extent: ExtentIndex, extent_bytes: u32, found: &[Located]) {
        let Some(inventory) = &self.inventory else { return };
        let entries = inventory.extents.as_deref().unwrap_or_default();
        let entry = entries.get(extent.0 as usize).copied().unwrap_or_default();
        let open = inventory.open.iter().flatten().find(|(open, _)| *open == extent).map(|(_, filled)| *filled);
        let (wants, is_last): (Option<u32>, &dyn Fn(Filled) -> bool) = match (&open, entry) {
            (Some(open), _) => {
                (Some(open.end), &|filled| filled == *open || open.last == Seq(0) && filled.end == open.end)
            }
            (None, ExtentEntry::UNUSED) => return,
            (None, ExtentEntry::UNKNOWN) => (None, &|_| true),
            (None, entry) => (entry.end(), &move |filled| ExtentEntry::of(filled) == entry),
        };
        let (mut end, mut has, mut is_whole) = (0, 0, wants == Some(0));
        for located in found.iter().filter(|located| !located.is_left_over) {
            let seq = located.batch.header.seq;
            if located.at != end {
                break;
            }
            if open.is_none() && end == 0 && seq >= inventory.next_seq {
                self.is_stale = true;
            }
            end += located.batch.batch_bytes;
            if wants.is_some_and(|wants| end > wants as usize) {
                break;
            }
            has = end as u32;
            is_whole |= is_last(Filled { end: has, last: seq });
        }
        if is_whole {
            self.unknown += u64::from(wants.is_none());
            return;
        }
        // One that is filled so far, but not by the batches that should be there, has nothing of
        // them.
        let has = if wants == Some(has) { 0 } else { has };
        self.misses_objects |= inventory.pinned.contains(&extent);
        self.missing_bytes += u64::from(wants.unwrap_or(extent_bytes) - has);
        if self.short.len() < SHORT_MAX {
            self.short.push(Short { extent, has, wants });
        } else {
            self.short_more += 1;
        }
    }

    /// Steps 3 and 4. `newest` is the newest opening that left a trace, `has_recent` says whether
    /// all batches from one number to another are there.
    pub(crate) fn finish(&mut self, newest: u64, durable_before: Seq, has_recent: impl Fn(Seq, Seq) -> bool) {
        if self.completeness != Completeness::Complete {
            return;
        }
        let until = self.until.max(durable_before);
        self.is_in_doubt &= durable_before < self.until;
        if newest > self.incarnation || self.is_stale {
            *self = Self { completeness: Completeness::NotKept, ..Self::default() };
        } else if !has_recent(self.next_seq(), until) {
            self.completeness = Completeness::Incomplete;
            (self.misses_recent, self.misses_objects) = (true, true);
        } else if !self.short.is_empty() {
            self.completeness = Completeness::Incomplete;
        } else if self.is_coarse {
            self.completeness = Completeness::NotKept;
        }
    }
}
