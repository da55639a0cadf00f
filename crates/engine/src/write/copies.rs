//! Copies of data (the property `copies`). Owns how a batch's fragments are stored once more, and
//! the knowledge of which objects have copies.
//!
//! A copy of a block is a fragment of the same object and epoch at an address of its own: the
//! block's index, and above it the number of the copy ([`BlockIndex::nth_copy`]). So all that
//! handles fragments handles copies: the map, snapshots, the cleaner, checkpoints, scrubbing.
//!
//! 1. A batch that changes blocks of an object with copies also makes the copies of these blocks
//!    holes (`holes_of_copies`), in the same part. So at each moment, whatever a crash leaves, a
//!    copy of an epoch either has the content of its original in that epoch, or does not exist.
//! 2. The batches of the copies follow, one for each number, each in a stream of its own
//!    (`parts_of_copies`): no two copies of a block are ever in one extent.
//! 3. The groups leave the write buffer, and a flush ends, when all of them are applied.

use std::ops::Range;
use std::sync::Arc;

use format::{Entry, FragmentEntry, FragmentIdentity, HOLE_BLOCKS_MAX, Stream, header_bytes, reseal};
use store::base::canary::Canary;
use store::base::group::GroupKey;
use store::buffer::write_buffer::{DirtyRun, Taken};
use store::log::prepared::Prepared;
use store::objects::{Object, file_layout};
use surface::Result;
use units::{BlockIndex, BlockMask, COPIES_MAX, Epoch, GroupIndex, ObjectId};

use crate::codecs::hints::copies_of;
use crate::write::Writes;
use crate::write::drain::HOLES_PER_ENTRY;

/// Groups of which blocks are stored in several copies, in the order of their keys.
pub(crate) struct Copied(Vec<(GroupKey, Arc<Vec<DirtyRun>>)>);

impl Copied {
    /// Those among the taken groups, which are in the order of their keys.
    pub(crate) fn among(taken: &[Taken]) -> Self {
        let has_copies = |taken: &&Taken| taken.runs.iter().any(|run| run.data.is_some() && run.hint.copies > 0);
        Self(taken.iter().filter(has_copies).map(|taken| (taken.key, taken.runs.clone())).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In how many more copies a fragment is stored.
    pub(crate) fn of(&self, object: ObjectId, fragment: &FragmentEntry) -> u8 {
        let key = GroupKey { object, group: fragment.first.group() };
        let known = self.0.binary_search_by_key(&key, |(key, _)| *key);
        known.map_or(0, |index| copies_of(&self.0[index].1, fragment.unit()))
    }
}

/// A fragment as the copy of that number has it. The checksum is converted, not computed again: a
/// payload that was damaged since does not match it either.
pub(crate) fn copied(fragment: &FragmentEntry, object: ObjectId, epoch: Epoch, number: u8) -> FragmentEntry {
    let FragmentEntry { first, count, codec, stored, checksum } = *fragment;
    let identity = |first| FragmentIdentity { object, epoch, first, count, codec };
    let own = first.nth_copy(number);
    FragmentEntry { first: own, checksum: reseal(checksum, &identity(first), &identity(own), stored), ..*fragment }
}

/// The entry that makes the copies of that number of some ranges holes, if there are any.
fn holes_of<'a>(
    (object, epoch): (ObjectId, Epoch),
    number: u8,
    ranges: impl Iterator<Item = &'a (BlockIndex, u32)>,
) -> Option<Entry> {
    let ranges: Vec<_> = ranges.map(|(first, count)| (first.nth_copy(number), *count)).collect();
    let is_needed = !ranges.is_empty() && !Canary::CopiesOutlived.is_planted();
    is_needed.then_some(Entry::Holes { object, epoch, ranges })
}

impl Writes {
    /// Returns the highest number of a copy of data, or of names, that an object, or one that it came
    /// from, may have.
    pub(crate) fn copies_known(&self, object: &Object, of_names: bool) -> u8 {
        object.copies_known(of_names).unwrap_or_else(|| {
            let zones = match (object.is_share(), of_names) {
                (true, _) => file_layout::zones(of_names),
                (false, true) => [0..0, 0..0, 0..0],
                (false, false) => [0..file_layout::NAMES.end, 0..0, 0..0],
            };
            let groups = |number: u8| {
                let group = move |address: u64| BlockIndex::containing(address).group().nth_copy(number);
                zones.iter().filter(|zone| !zone.is_empty()).map(move |zone| (group(zone.start), group(zone.end)))
            };
            let mut known = 0;
            for level in object.levels().iter() {
                // What cannot be read may be there.
                let is_known = |(from, to)| {
                    self.map.groups_in(level.object, from, to, 1).map_or(true, |(found, _)| !found.is_empty())
                };
                let has = |number: &u8| groups(*number).any(is_known);
                known = (known + 1..=COPIES_MAX).rev().find(has).unwrap_or(known);
            }
            object.note_copies(of_names, known)
        })
    }

    /// Notes that a block of an object is stored in so many more copies from now on.
    pub(crate) fn note_copies(&self, object: &Object, block: BlockIndex, copies: u8) {
        let of_names = object.has_names_at(block);
        if copies > 0 && copies > self.copies_known(object, of_names) {
            object.note_copies(of_names, copies);
        }
        self.geometry.note_copies(copies);
    }

    /// Bytes that the copies of a group take, by codec.
    ///
    /// # Errors
    /// Those of the map store.
    pub(crate) fn bytes_of_copies(&self, object: &Object, group: GroupIndex) -> Result<Vec<(u8, u64)>> {
        let mut found = Vec::new();
        for number in 1..=self.copies_known(object, object.has_names_at(group.first_block())) {
            let pieces = self.map.lookup_stored(&object.levels(), group.nth_copy(number), BlockMask::FULL)?;
            found.extend(pieces.iter().map(|piece| (piece.fragment.codec, u64::from(piece.fragment.live_bytes()))));
        }
        Ok(found)
    }

    /// Entries that make blocks `from..to` and their copies holes.
    pub(crate) fn holes(&self, object: &Object, from: u64, to: u64) -> Vec<Entry> {
        let range = |at: u64| (BlockIndex(at), (to - at).min(HOLE_BLOCKS_MAX.into()) as u32);
        let ranges: Vec<_> = (from..to).step_by(HOLE_BLOCKS_MAX as usize).map(range).collect();
        let (first, last) = (BlockIndex(from).offset_bytes(), BlockIndex(to).offset_bytes());
        let is_in = |zone: &Range<u64>| first < zone.end && zone.start < last;
        let is_touched = |of_names: &bool| !object.is_share() || file_layout::zones(*of_names).iter().any(is_in);
        let known = [false, true].into_iter().filter(is_touched).map(|of_names| self.copies_known(object, of_names));
        let (most, id, epoch) = (known.max().unwrap_or(0), object.id, object.epoch());
        let copies: Vec<_> = (1..=most).filter_map(|number| holes_of((id, epoch), number, ranges.iter())).collect();
        [Entry::Holes { object: id, epoch, ranges }].into_iter().chain(copies).collect()
    }

    /// Step 1: the entries that make the copies of changed ranges of an object holes. No range is
    /// longer than a group.
    pub(crate) fn holes_of_copies(
        &self,
        object: &Object,
        (id, epoch): (ObjectId, Epoch),
        ranges: impl Iterator<Item = (BlockIndex, u32)>,
    ) -> Vec<Entry> {
        let of_names = object.is_share() && self.copies_known(object, true) > 0;
        let known = [self.copies_known(object, false), if of_names { self.copies_known(object, true) } else { 0 }];
        if known == [0, 0] {
            return Vec::new();
        }
        let most = |first: BlockIndex| known[usize::from(object.has_names_at(first))];
        let ranges: Vec<_> = ranges.filter(|(first, _)| most(*first) > 0).collect();
        let mut entries = Vec::new();
        for number in 1..=COPIES_MAX {
            for some in ranges.chunks(HOLES_PER_ENTRY) {
                let mine = some.iter().filter(|(first, _)| most(*first) >= number);
                entries.extend(holes_of((id, epoch), number, mine));
            }
        }
        entries
    }

    /// The same for received data, which is the first in its epoch: returns the batches that come
    /// before `part`, which may record that all of it has come. The first one makes copies of
    /// earlier epochs holes, the others have the copies.
    pub(crate) fn before_received(&self, volume: &Object, part: Prepared) -> (Vec<Prepared>, Prepared) {
        let copies = self.parts_of_copies(&part, |_, fragment| volume.copies_of(fragment.first.group()));
        let mut holes = Vec::new();
        for entry in &part.entries {
            match entry {
                Entry::Fragments { object, epoch, fragments } => {
                    let ranges = fragments.iter().map(|fragment| (fragment.first, u32::from(fragment.count)));
                    holes.extend(self.holes_of_copies(volume, (*object, *epoch), ranges));
                }
                Entry::Holes { object, epoch, ranges } => {
                    holes.extend(self.holes_of_copies(volume, (*object, *epoch), ranges.iter().copied()));
                }
                _ => {}
            }
        }
        for (_, _, fragment) in part.entries.iter().flat_map(Entry::payloads) {
            self.note_copies(volume, fragment.first, volume.copies_of(fragment.first.group()));
        }
        let holes = (!holes.is_empty()).then(|| Prepared::metadata(holes, &self.buffers));
        (holes.into_iter().chain(copies).collect(), part)
    }

    /// Step 2: the batches of the copies of a part's fragments; `copies` tells how many each has.
    pub(crate) fn parts_of_copies(
        &self,
        part: &Prepared,
        copies: impl Fn(ObjectId, &FragmentEntry) -> u8,
    ) -> Vec<Prepared> {
        let mut parts = Vec::new();
        for number in 1..=COPIES_MAX {
            let (mut entries, mut payloads) = (Vec::new(), Vec::new());
            let mut at = part.header_bytes();
            for entry in &part.entries {
                let mut mine = Vec::new();
                for (object, epoch, fragment) in entry.payloads() {
                    let payload = at..at + fragment.stored as usize;
                    at = payload.end;
                    if copies(object, fragment) >= number {
                        mine.push(copied(fragment, object, epoch, number));
                        payloads.push(payload);
                    }
                }
                if let Entry::Fragments { object, epoch, .. } = entry
                    && !mine.is_empty()
                {
                    entries.push(Entry::Fragments { object: *object, epoch: *epoch, fragments: mine });
                }
            }
            if entries.is_empty() {
                break;
            }
            let header = header_bytes(&entries);
            let payload = payloads.iter().map(ExactSizeIterator::len).sum::<usize>();
            let mut buf = self.buffers.get(header + payload);
            let mut to = header;
            for range in payloads {
                let len = range.len();
                buf[to..to + len].copy_from_slice(&part.buf[range]);
                to += len;
            }
            let mut copy = Prepared::new(entries, payload, buf, Vec::new());
            if let Some(stream) = Stream::of_copies(number).filter(|_| !Canary::CopiesBesideData.is_planted()) {
                copy.stream = stream;
            }
            copy.whole = part.whole;
            parts.push(copy);
        }
        parts
    }
}
