//! Determines from the [`inventory`](store::log::inventory) whether the log is complete. Owns the
//! expected content of each extent, and the shortages.
//!
//! 1. The newest readable copy applies, unless its checkpoint never became durable: then the older
//!    copy does. The map shows that if it is present ([`MapMark`]). Without the map it is uncertain
//!    whether a crash during that checkpoint explains missing data. Then the older copy is examined
//!    as well, and shows up to where the log is complete; damage looks the same, so the report
//!    counts the missing batches as lost.
//! 2. Each extent that the inventory names has batches from its first byte on, without a gap,
//!    up to where it is filled. The last of them is the one that the inventory names.
//! 3. All later batches that some batch records as durable are present.
//! 4. If a later opening than the inventory's has written something, a program that keeps no
//!    inventory did: then nothing is known.
//!
//! An inventory that is *coarse* says of each extent only whether it holds something. Then an
//! extent that is gone as a whole is missed, and nothing else is known.

use format::{Checkpoint, ExtentEntry, Filled, Inventory};
use store::log::inventory::Copy;
use units::{ExtentIndex, Seq};

use super::extent::Located;

/// Upper bound of short extents that are remembered one by one.
const SHORT_MAX: usize = 1000;

/// The last checkpoint that a map knows: incarnation and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MapMark {
    incarnation: u64,
    number: u64,
}

impl MapMark {
    /// The mark of that pool's map, from its record of the checkpoint.
    pub fn of(checkpoint: &Checkpoint) -> Self {
        Self { incarnation: checkpoint.incarnation, number: checkpoint.number }
    }

    const fn age(self) -> (u64, u64) {
        (self.incarnation, self.number)
    }
}

/// Whether something is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Completeness {
    /// By the inventory everything is present, and the pool was closed.
    Complete,
    /// The inventory shows that everything older than
    /// [`complete_before`](super::SalvageReport::complete_before) is present. The pool was not
    /// closed, and later batches may be missing.
    UpTo,
    /// The same, and the last checkpoint lists more, which is missing. It was never durable if the
    /// machine failed during that checkpoint. Damage looks the same.
    InDoubt,
    /// Something is missing, by the inventory.
    Incomplete,
    /// Unknown, because the inventory is damaged.
    Damaged,
    /// Unknown, because no inventory was kept, or one with too little detail.
    #[default]
    NotKept,
}

/// An extent with less data than expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Short {
    pub extent: ExtentIndex,
    /// Bytes found.
    pub has: u32,
    /// Bytes expected; `None`: unknown.
    pub wants: Option<u32>,
}

impl Short {
    /// The expected data is missing entirely, and its amount is known.
    pub fn is_empty(&self) -> bool {
        self.has == 0 && self.wants.is_some()
    }
}

/// The expected content of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    pub completeness: Completeness,
    inventory: Option<Inventory>,
    /// All batches before it were durable, unless that is in doubt.
    pub until: Seq,
    /// Expectations of the older copy, if a crash during the newest copy's checkpoint may explain
    /// missing data.
    older: Option<Box<Self>>,
    /// All batches before it are there.
    pub complete_before: Seq,
    /// Of the newest copy, whether it is valid or not.
    incarnation: u64,
    pub short: Vec<Short>,
    /// Further short extents.
    pub short_more: u64,
    /// Bytes that are missing in all.
    pub missing_bytes: u64,
    /// Extents whose expected fill is unknown.
    pub unknown: u64,
    /// The inventory does not say how far extents are filled.
    pub is_coarse: bool,
    /// An extent has been reused that it lists as used: it is not the newest.
    is_stale: bool,
    /// Batches are missing that are newer than it.
    pub misses_recent: bool,
    /// Descriptors may be missing, with the catalogue or newer than that.
    pub misses_objects: bool,
    /// The map matches the applicable inventory, and every batch newer than the map is present: so
    /// the map shows block by block which data is missing.
    pub by_map: bool,
    /// A copy is damaged, and it is unknown whether the other one applies. A map may replace them.
    pub is_gone: bool,
}

impl Expected {
    /// Step 1. `is_kept`: the pool is one that has an inventory. `mark` is that of the map.
    pub fn by(copies: [Copy; 2], is_kept: bool, mark: Option<MapMark>) -> Self {
        if !is_kept {
            return Self::nothing(Completeness::NotKept, 0);
        }
        let closed = |copy: &Copy| matches!(copy, Copy::Whole(known) | Copy::Torn(known) if known.is_closed);
        let [a, b] = copies;
        let (newer, older) = if a.age() >= b.age() { (a, b) } else { (b, a) };
        let is_gone = newer == Copy::Damaged || older == Copy::Damaged;
        let (incarnation, newest) = (newer.age().map_or(0, |(incarnation, _)| incarnation), newer.age());
        let mark = mark.map(MapMark::age);
        if mark.is_some() && mark > newest {
            // The data is older than the map, or its inventory is.
            return Self { is_gone, ..Self::nothing(Completeness::Damaged, incarnation) };
        }
        // A map older than both copies is from a backup, and proves nothing.
        let is_committed = mark.is_some() && mark == newest || closed(&newer);
        let is_void = !closed(&newer) && mark.is_some() && mark == older.age() && mark != newest;
        let mut expected = match (newer, older) {
            // The map's checkpoint is the one of this copy: the damaged copy is older, or of a
            // checkpoint that was never durable.
            (Copy::Whole(newer), Copy::Damaged) if mark.is_some() && mark == newest => {
                Self::of(newer, None, incarnation)
            }
            // An undecodable copy may have been the newest one.
            (_, Copy::Damaged) | (Copy::Damaged, _) => Self::nothing(Completeness::Damaged, incarnation),
            (_, Copy::Whole(older)) if is_void => Self::of(older, None, incarnation),
            (Copy::Whole(newer), Copy::Whole(older)) => {
                let mut expected = Self::of(newer, None, incarnation);
                expected.older = (!is_committed).then(|| Box::new(Self::of(older, None, incarnation)));
                expected
            }
            (Copy::Whole(newer), Copy::Torn(_)) => Self::of(newer, None, incarnation),
            (Copy::Torn(torn), Copy::Whole(older)) => {
                let mut expected = Self::of(older.clone(), Some(torn.next_seq), incarnation);
                expected.older = (!is_committed).then(|| Box::new(Self::of(older, None, incarnation)));
                expected
            }
            (Copy::Torn(_), Copy::Torn(_)) => Self::nothing(Completeness::Damaged, incarnation),
        };
        expected.is_gone = is_gone && expected.inventory.is_none();
        expected.by_map = expected.inventory.is_some() && (is_void || mark.is_some() && mark == newest);
        expected
    }

    fn nothing(completeness: Completeness, incarnation: u64) -> Self {
        Self { completeness, incarnation, ..Self::default() }
    }

    /// Expects the content of that copy; all batches before `until` must be present, or before its
    /// own position.
    fn of(inventory: Inventory, until: Option<Seq>, incarnation: u64) -> Self {
        if inventory.extents.is_none() {
            return Self::nothing(Completeness::NotKept, incarnation);
        }
        Self {
            completeness: Completeness::Complete,
            until: until.unwrap_or(inventory.next_seq),
            is_coarse: inventory.is_coarse,
            incarnation,
            inventory: Some(inventory),
            ..Self::default()
        }
    }

    /// The position of the applicable inventory.
    pub fn next_seq(&self) -> Seq {
        self.inventory.as_ref().map_or(Seq(0), |inventory| inventory.next_seq)
    }

    /// The opening that wrote it.
    fn written_by(&self) -> u64 {
        self.inventory.as_ref().map_or(0, |inventory| inventory.incarnation)
    }

    /// Whether the log ended there.
    pub fn is_closed(&self) -> bool {
        self.inventory.as_ref().is_some_and(|inventory| inventory.is_closed)
    }

    /// Objects and their blocks of data, if that is known.
    pub fn objects(&self) -> Option<&[(units::ObjectId, u64)]> {
        self.inventory.as_ref()?.objects.as_deref()
    }

    /// Step 2, of an extent with these batches.
    pub fn look(&mut self, extent: ExtentIndex, extent_bytes: u32, found: &[Located]) {
        if let Some(older) = &mut self.older {
            older.look(extent, extent_bytes, found);
        }
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
        // One that is filled so far, but not by the expected batches, has none of them.
        let has = if wants == Some(has) { 0 } else { has };
        self.misses_objects |= inventory.pinned.contains(&extent);
        self.missing_bytes += u64::from(wants.unwrap_or(extent_bytes) - has);
        if self.short.len() < SHORT_MAX {
            self.short.push(Short { extent, has, wants });
        } else {
            self.short_more += 1;
        }
    }

    /// Steps 3 and 4. `newest` is the newest opening that left a trace; `has_recent` returns
    /// whether all batches from one number to another are present.
    pub fn finish(&mut self, newest: u64, durable_before: Seq, has_recent: &dyn Fn(Seq, Seq) -> bool) {
        self.judge(newest, durable_before, has_recent);
        self.by_map &= !self.misses_recent && self.completeness != Completeness::InDoubt;
    }

    /// The map replaces unusable copies: all batches before `until` that are newer than the map are
    /// present.
    pub(crate) fn stand_in(&mut self, until: Seq) {
        (self.by_map, self.completeness) = (true, Completeness::UpTo);
        (self.until, self.complete_before) = (until, until);
    }

    fn judge(&mut self, newest: u64, durable_before: Seq, has_recent: &dyn Fn(Seq, Seq) -> bool) {
        if self.completeness != Completeness::Complete {
            return;
        }
        let until = self.until.max(durable_before);
        self.complete_before = until;
        // If a batch records all of it as durable, there is no doubt.
        let older = self.older.take().filter(|_| durable_before < self.until);
        if newest > self.incarnation || self.is_stale {
            *self = Self::nothing(Completeness::NotKept, self.incarnation);
        } else if !has_recent(self.next_seq(), until) {
            self.completeness = Completeness::Incomplete;
            (self.misses_recent, self.misses_objects) = (true, true);
        } else if !self.short.is_empty() {
            self.completeness = Completeness::Incomplete;
        } else if self.is_coarse {
            self.completeness = Completeness::NotKept;
        } else if !self.is_closed() || newest > self.written_by() {
            self.completeness = Completeness::UpTo;
        }
        if self.completeness != Completeness::Incomplete {
            return;
        }
        self.complete_before = Seq(0);
        let Some(mut older) = older else { return };
        older.finish(newest, durable_before, has_recent);
        if matches!(older.completeness, Completeness::Complete | Completeness::UpTo) {
            self.completeness = Completeness::InDoubt;
            self.complete_before = older.complete_before;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(number: u64) -> Copy {
        Copy::Whole(Inventory {
            pool: [1; 16],
            number,
            incarnation: 3,
            next_seq: Seq(9),
            open: Default::default(),
            extents: Some(Vec::new()),
            is_coarse: false,
            pinned: Vec::new(),
            objects: None,
            is_closed: false,
        })
    }

    fn map(number: u64) -> Option<MapMark> {
        Some(MapMark { incarnation: 3, number })
    }

    #[test]
    fn a_map_tells_whether_the_copy_that_is_left_counts() {
        let known = Expected::by([Copy::Damaged, copy(7)], true, map(7));
        assert!(known.by_map && !known.is_gone && known.completeness == Completeness::Complete);
        for mark in [None, map(6), map(8)] {
            let unknown = Expected::by([Copy::Damaged, copy(7)], true, mark);
            assert!(!unknown.by_map && unknown.is_gone && unknown.completeness == Completeness::Damaged, "{mark:?}");
        }
        // Both copies are older than the map: the data is.
        assert!(!Expected::by([copy(6), copy(7)], true, map(8)).is_gone);
    }
}
