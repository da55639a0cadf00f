//! Reads all extents of a pool, one at a time, and passes the statements of their batches on as
//! [`Fact`]s.
//!
//! 1. An extent is read whole; if that fails, in pieces, so that as little as possible is missing.
//!    Nothing is written.
//! 2. Its batches are separated ([`extent`](super::extent)); entries about objects go to [`LogObjects`].
//! 3. Each fragment is verified against its checksum, and becomes a fact, as do holes. Ranges of
//!    holes over many groups are kept as ranges: which of their groups hold something is known only
//!    at the end.
//!
//! Memory: one extent, the contents of [`LogObjects`], a few words for each stretch of batches with
//! consecutive numbers and for each gap.

use std::collections::{BTreeMap, BTreeSet};

use codec::{CodecId, DictionaryNumber};
use env::{AlignedBuf, Disk};
use format::{Batch, BatchHeader, Entry, FragmentEntry, FragmentRef, RecordKey};
use store::base::pieces;
use store::log::extent_scan::{self, Stored};
use store::log::geometry::Geometry;
use surface::Result;
use units::{BlockIndex, BlockMask, Epoch, ExtentIndex, GROUP_BLOCKS, GroupIndex, ObjectId, Seq};

use super::complete::{Completeness, Expected};
use super::extent::{self, Gap};
use super::facts::{Fact, Rank, only_blocks};
use super::log_objects::LogObjects;
use super::witness::Witness;

/// Groups of a hole range beyond which it is kept as a range.
const HOLE_GROUPS_MAX: u64 = 64;
/// Upper bound of remembered times at which the same wide range was made a hole.
const AGES_MAX: usize = 64;
/// Upper bound of gaps and unreadable pieces that are remembered one by one.
const PLACES_MAX: usize = 1000;

/// A range of holes over many groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WideHole {
    pub object: ObjectId,
    pub epoch: Epoch,
    pub first: BlockIndex,
    pub count: u64,
}

/// Bytes of the data file that could not be decoded, and the batch after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub location: u64,
    pub bytes: u64,
    pub before: Seq,
    pub incarnation: u64,
}

/// Consecutive batches of one opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    incarnation: u64,
    from: Seq,
    /// The number after the last one.
    to: Seq,
}

/// Data of one object that one opening wrote.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// The first batches with data that is whole, and with data that is not.
    intact: Seq,
    damaged: Seq,
    epoch: Epoch,
    end: BlockIndex,
}

/// Result of reading all extents.
#[derive(Debug, Default)]
pub struct Scan {
    pub log_objects: LogObjects,
    /// When they were made, by batch and opening: the last few times of each.
    pub wide: BTreeMap<WideHole, Vec<(Seq, u64)>>,
    /// All batches before it were durable.
    pub durable_before: Seq,
    seen: BTreeMap<(ObjectId, u64), Seen>,
    /// Whether there are copies of blocks.
    pub(crate) has_copies: bool,
    /// Dictionaries that units were compressed with, and the first batch of each opening with such
    /// a whole unit.
    helpers: BTreeMap<(ObjectId, u64), Seq>,
    pub gaps: Vec<Place>,
    pub unreadable: Vec<Place>,
    /// Further gaps and unreadable pieces.
    pub places_more: u64,
    pub batches: u64,
    stretches: Vec<Stretch>,
    /// The inventory's expectations, and the shortages found.
    pub expected: Expected,
}

/// Where facts go.
pub type Sink<'a> = &'a mut dyn FnMut(Fact) -> Result<()>;

/// Returns, in order, the extents that are not holes, as far as the storage can report that.
fn extents_with_data(data_from: impl Fn(u64) -> Option<u64>, geometry: &Geometry) -> impl Iterator<Item = ExtentIndex> {
    let mut next = 1;
    std::iter::from_fn(move || {
        let from = geometry.start(ExtentIndex(next));
        let at = data_from(from).filter(|_| next < geometry.extents())?.max(from);
        let index = u32::try_from(at / u64::from(geometry.extent_bytes)).ok()?.max(next);
        next = index.saturating_add(1);
        (index < geometry.extents()).then_some(ExtentIndex(index))
    })
}

impl Scan {
    /// Reads all extents. `progress` gets bytes done and bytes to do, for extents that are no holes
    /// of a sparse file.
    ///
    /// # Errors
    /// Those of `sink` and `progress`. Unreadable areas are recorded.
    pub fn read_all(
        &mut self,
        disk: &dyn Disk,
        geometry: &Geometry,
        pool: u64,
        sink: Sink<'_>,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        let extent_bytes = geometry.extent_bytes as usize;
        let mut buf = AlignedBuf::new(extent_bytes);
        let total = extents_with_data(|at| disk.data_from(at), geometry).count() as u64 * extent_bytes as u64;
        let mut with_data = extents_with_data(|at| disk.data_from(at), geometry).peekable();
        let mut done = 0;
        for index in 1..geometry.extents() {
            let extent = ExtentIndex(index);
            progress(done, total)?;
            if with_data.next_if_eq(&extent).is_some() {
                done += extent_bytes as u64;
            }
            self.read_extent(disk, geometry.start(extent), &mut buf);
            self.extent(geometry, pool, extent, &buf[..extent_bytes], sink)?;
        }
        progress(total, total)
    }

    /// Step 1.
    pub fn read_extent(&mut self, disk: &dyn Disk, start: u64, buf: &mut AlignedBuf) {
        let extent_bytes = buf.len();
        for bad in pieces::read(disk, start, buf, extent_bytes) {
            let (location, bytes) = (start + bad.start as u64, bad.len() as u64);
            self.remember(Place { location, bytes, before: Seq(0), incarnation: 0 }, true);
        }
    }

    fn remember(&mut self, place: Place, is_unreadable: bool) {
        let list = if is_unreadable { &mut self.unreadable } else { &mut self.gaps };
        if list.len() < PLACES_MAX {
            list.push(place);
        } else {
            self.places_more += 1;
        }
    }

    /// Steps 2 and 3.
    pub fn extent(
        &mut self,
        geometry: &Geometry,
        pool: u64,
        extent: ExtentIndex,
        bytes: &[u8],
        sink: Sink<'_>,
    ) -> Result<()> {
        let start = geometry.start(extent);
        let (found, gaps) = extent::read(pool, extent, bytes);
        for gap in gaps {
            let Gap { at, bytes, before, incarnation } = gap;
            self.remember(Place { location: start + at as u64, bytes: bytes as u64, before, incarnation }, false);
        }
        self.expected.look(extent, geometry.extent_bytes, &found);
        for located in found {
            let header = &located.batch.header;
            self.batches += 1;
            self.durable_before = self.durable_before.max(header.durable_before);
            self.log_objects.batch(&located.batch);
            self.stretch(header.incarnation, header.seq);
            self.data(start, located.at, &located.batch, bytes, located.is_left_over, sink)?;
            self.holes(&located.batch, sink)?;
        }
        Ok(())
    }

    fn stretch(&mut self, incarnation: u64, seq: Seq) {
        let to = Seq(seq.0.saturating_add(1));
        match self.stretches.last_mut() {
            Some(last) if last.incarnation == incarnation && last.to == seq => last.to = to,
            _ => self.stretches.push(Stretch { incarnation, from: seq, to }),
        }
    }

    fn data(
        &mut self,
        start: u64,
        at: usize,
        batch: &Batch,
        bytes: &[u8],
        is_left_over: bool,
        sink: Sink<'_>,
    ) -> Result<()> {
        for stored in extent_scan::fragments(at, batch) {
            let Stored { object, epoch, made, fragment, given: live, .. } = stored;
            let FragmentEntry { first, count, codec, .. } = fragment;
            let whole = || stored.payload(bytes).filter(|payload| stored.is_intact(payload));
            let (rank, fragment) = if is_left_over {
                (Rank::LeftOver, only_blocks(live))
            } else {
                let fragment = FragmentRef { live, ..fragment.at(start + stored.offset as u64) };
                let payload = whole();
                let helped = payload.filter(|_| CodecId(codec) == CodecId::ZSTD_DICTIONARY);
                if let Some((number, _)) = helped.and_then(DictionaryNumber::split) {
                    let helper = (ObjectId(number.0.into()), batch.header.incarnation);
                    let first = self.helpers.entry(helper).or_insert(batch.header.seq);
                    *first = batch.header.seq.min(*first);
                }
                (if payload.is_some() { Rank::Intact } else { Rank::Damaged }, fragment)
            };
            self.see(&batch.header, object, epoch, BlockIndex(first.original().0 + u64::from(count)), rank);
            self.has_copies |= first.copy() > 0;
            let key = RecordKey { object, group: first.group(), epoch };
            sink(Fact { key, made, rank, seq: batch.header.seq, incarnation: batch.header.incarnation, fragment })?;
        }
        Ok(())
    }

    fn see(&mut self, header: &BatchHeader, object: ObjectId, epoch: Epoch, end: BlockIndex, rank: Rank) {
        let never = Seen { intact: Seq(u64::MAX), damaged: Seq(u64::MAX), epoch, end };
        let seen = self.seen.entry((object, header.incarnation)).or_insert(never);
        match rank {
            Rank::Intact => seen.intact = seen.intact.min(header.seq),
            Rank::Damaged => seen.damaged = seen.damaged.min(header.seq),
            // That it is gone is known.
            Rank::Hole | Rank::LeftOver => {}
        }
        seen.epoch = seen.epoch.max(epoch);
        seen.end = seen.end.max(end);
    }

    /// Returns objects with valid data, their newest epoch, and the block after their last one.
    pub fn seen(&self) -> BTreeMap<ObjectId, (Epoch, BlockIndex)> {
        let mut objects = BTreeMap::new();
        for ((object, incarnation), seen) in &self.seen {
            let is_torn = seen.damaged >= self.durable_before;
            let first = if is_torn { seen.intact } else { seen.intact.min(seen.damaged) };
            // An opening that is not over has no end.
            if first < Seq(u64::MAX) && self.log_objects.openings.happened(*incarnation, first) {
                let known = objects.entry(*object).or_insert((seen.epoch, seen.end));
                *known = (known.0.max(seen.epoch), known.1.max(seen.end));
            }
        }
        objects
    }

    /// Returns the objects that are dictionaries, because units were compressed with them.
    pub fn dictionaries(&self) -> BTreeSet<ObjectId> {
        let happened = |((_, incarnation), first): &(&(ObjectId, u64), &Seq)| {
            self.log_objects.openings.happened(*incarnation, **first)
        };
        self.helpers.iter().filter(happened).map(|((object, _), _)| *object).collect()
    }

    fn holes(&mut self, batch: &Batch, sink: Sink<'_>) -> Result<()> {
        let (seq, incarnation) = (batch.header.seq, batch.header.incarnation);
        for entry in &batch.entries {
            let Entry::Holes { object, epoch, ranges } = entry else { continue };
            for (first, count) in ranges.iter().filter(|(_, count)| *count > 0) {
                let hole = WideHole { object: *object, epoch: *epoch, first: *first, count: u64::from(*count) };
                if hole.groups().count() as u64 <= HOLE_GROUPS_MAX {
                    for group in hole.groups() {
                        sink(hole.fact(group, seq, incarnation))?;
                    }
                } else {
                    let ages = self.wide.entry(hole).or_default();
                    ages.push((seq, incarnation));
                    ages.sort_unstable();
                    // Not only the newest: it may be of a dead opening.
                    if ages.len() > AGES_MAX {
                        ages.remove(0);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the lowest number from which all batches up to at least `until` are present:
    /// statements of older ones may be lost.
    pub fn certain_from(&self, until: Seq) -> Seq {
        let clip = |s: &Stretch| (s.from, s.to.min(self.log_objects.openings.certain_end_of(s.incarnation)));
        let mut stretches: Vec<_> = self.stretches.iter().map(clip).filter(|(from, to)| from < to).collect();
        stretches.sort_unstable();
        let mut from = Seq(0);
        let mut to = Seq(1);
        for stretch in stretches {
            if stretch.0 > to {
                from = stretch.0;
            }
            to = to.max(stretch.1);
        }
        if to < until { until } else { from }
    }

    /// Returns whether all batches from one number up to another, exclusive, are present.
    fn has_all(&self, from: Seq, to: Seq) -> bool {
        let clip = |s: &Stretch| (s.from, s.to.min(self.log_objects.openings.end_of(s.incarnation)));
        let mut stretches: Vec<_> = self.stretches.iter().map(clip).filter(|(from, to)| from < to).collect();
        stretches.sort_unstable();
        let reach = |need: Seq, stretch: &(Seq, Seq)| if stretch.0 <= need { need.max(stretch.1) } else { need };
        stretches.iter().fold(from, reach) >= to
    }

    /// Completes the result when all extents have been read. `noted` is the newest opening by the
    /// data file's own note.
    pub fn finish(&mut self, noted: u64) {
        let mut expected = std::mem::take(&mut self.expected);
        let newest = self.log_objects.openings.newest().max(noted);
        expected.finish(newest, self.durable_before, &|from, to| self.has_all(from, to));
        self.durable_before = self.durable_before.max(expected.until);
        self.expected = expected;
    }

    /// Like [`certain_from`](Self::certain_from), as far as the inventory lists the expected
    /// batches.
    pub(crate) fn certain_by_inventory(&self) -> Seq {
        match self.expected.completeness {
            Completeness::Complete | Completeness::UpTo | Completeness::InDoubt | Completeness::Incomplete => {
                self.certain_from(self.durable_before)
            }
            Completeness::Damaged => Seq(u64::MAX),
            Completeness::NotKept => self.certain_from(Seq(0)),
        }
    }

    /// Like [`certain_from`](Self::certain_from), where the map lists the expected data.
    pub(crate) fn certain_by_map(&self, witness: &Witness) -> Seq {
        self.certain_from(self.durable_before.max(witness.next_seq()))
    }

    /// Uses the map in place of a damaged inventory, if it is of the newest opening, and everything
    /// newer than the map is present.
    pub fn finish_by_map(&mut self, witness: &Witness, noted: u64) {
        let newest = self.log_objects.openings.newest().max(noted);
        let until = self.durable_before.max(witness.next_seq());
        if self.expected.is_gone && newest == witness.incarnation() && self.has_all(witness.next_seq(), until) {
            self.expected.stand_in(until);
            self.durable_before = until;
        }
    }

    /// Returns gaps that no crash can have left: durable data precedes them, so the missing part
    /// was durable as well.
    pub(crate) fn damaged_places(&self) -> Vec<Place> {
        let happened = |gap: &&Place| self.log_objects.openings.happened(gap.incarnation, gap.before);
        self.gaps.iter().filter(happened).filter(|gap| gap.before <= self.durable_before).copied().collect()
    }
}

impl WideHole {
    pub fn end(&self) -> u64 {
        self.first.0.saturating_add(self.count)
    }

    /// The groups that it touches.
    pub fn groups(&self) -> impl Iterator<Item = GroupIndex> + use<> {
        (self.first.group().0..=BlockIndex(self.end() - 1).group().0).map(GroupIndex)
    }

    /// Returns the fact for one group.
    pub fn fact(&self, group: GroupIndex, seq: Seq, incarnation: u64) -> Fact {
        let start = group.first_block().0;
        let low = self.first.0.max(start) - start;
        let high = self.end().min(start + GROUP_BLOCKS as u64).saturating_sub(start);
        let live = BlockMask::run(low as u32, high.saturating_sub(low) as u32);
        let key = RecordKey { object: self.object, group, epoch: self.epoch };
        Fact { key, made: seq, rank: Rank::Hole, seq, incarnation, fragment: only_blocks(live) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sparse file of which two extents hold something, and one begins within a hole: progress
    /// counts these.
    #[test]
    fn holes_of_a_sparse_file_are_no_work() {
        let geometry = Geometry::new(64 << 10, 100 * (64 << 10));
        let extent = 64u64 << 10;
        let data = [(5 * extent, 6 * extent), (7 * extent + 4096, 8 * extent), (99 * extent, 100 * extent)];
        let sparse = |at: u64| data.iter().find(|(_, end)| *end > at).map(|(begin, _)| at.max(*begin));
        let found: Vec<u32> = extents_with_data(sparse, &geometry).map(|extent| extent.0).collect();
        assert_eq!(found, [5, 7, 99]);
        assert_eq!(extents_with_data(Some, &geometry).count(), 99, "all but the superblock's");
        assert_eq!(extents_with_data(|_| None, &geometry).count(), 0);
    }
}
