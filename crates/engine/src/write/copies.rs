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

use std::sync::Arc;

use format::{Entry, FragmentEntry, FragmentIdentity, HOLE_BLOCKS_MAX, Stream, header_bytes, reseal};
use store::base::canary::Canary;
use store::base::group::GroupKey;
use store::buffer::write_buffer::{DirtyRun, Taken};
use store::log::prepared::Prepared;
use store::objects::Object;
use units::{BlockIndex, COPIES_MAX, Epoch, GroupIndex, ObjectId};

use crate::codecs::hints::copies_of;
use crate::write::Writes;

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
fn copied(fragment: &FragmentEntry, object: ObjectId, epoch: Epoch, number: u8) -> FragmentEntry {
    let FragmentEntry { first, count, codec, stored, checksum } = *fragment;
    let identity = |first| FragmentIdentity { object, epoch, first, count, codec };
    let own = first.nth_copy(number);
    FragmentEntry { first: own, checksum: reseal(checksum, &identity(first), &identity(own), stored), ..*fragment }
}

impl Writes {
    /// Returns the highest number of a copy that an object, or one that it came from, may have.
    pub(crate) fn copies_known(&self, object: &Object) -> u8 {
        object.copies_known().unwrap_or_else(|| {
            let mut known = 0;
            for level in object.levels().iter() {
                let has = |number: &u8| {
                    let (from, to) = (GroupIndex(0).nth_copy(*number), GroupIndex(0).nth_copy(*number + 1));
                    // What cannot be read may be there.
                    self.map.groups_in(level.object, from, to, 1).map_or(true, |(groups, _)| !groups.is_empty())
                };
                known = (known + 1..=COPIES_MAX).rev().find(has).unwrap_or(known);
            }
            object.note_copies(known)
        })
    }

    /// Entries that make blocks `from..to` and their copies holes.
    pub(crate) fn holes(&self, object: &Object, from: u64, to: u64) -> Vec<Entry> {
        let range = |at: u64| (BlockIndex(at), (to - at).min(HOLE_BLOCKS_MAX.into()) as u32);
        let ranges: Vec<_> = (from..to).step_by(HOLE_BLOCKS_MAX as usize).map(range).collect();
        let (most, id, epoch) = (self.copies_known(object), object.id, object.epoch());
        let copies: Vec<_> = Self::holes_of_copies((id, epoch), most, &ranges).collect();
        [Entry::Holes { object: id, epoch, ranges }].into_iter().chain(copies).collect()
    }

    /// Step 1: the entries that make the copies of changed ranges of an object holes, for copies 1
    /// to `most`.
    pub(crate) fn holes_of_copies(
        (object, epoch): (ObjectId, Epoch),
        most: u8,
        ranges: &[(BlockIndex, u32)],
    ) -> impl Iterator<Item = Entry> {
        let most = if Canary::CopiesOutlived.is_planted() { 0 } else { most };
        (1..=most).map(move |number| {
            let ranges = ranges.iter().map(|(first, count)| (first.nth_copy(number), *count)).collect();
            Entry::Holes { object, epoch, ranges }
        })
    }

    /// The same for received data, which is the first in its epoch: returns the batches that come
    /// before `part`, which may record that all of it has come. The first one makes copies of
    /// earlier epochs holes, the others have the copies.
    pub(crate) fn before_received(&self, volume: &Object, part: Prepared) -> (Vec<Prepared>, Prepared) {
        let known = self.copies_known(volume);
        let copies = self.parts_of_copies(&part, |_, fragment| volume.copies_of(fragment.first.group()));
        let mut holes = Vec::new();
        for entry in &part.entries {
            match entry {
                Entry::Fragments { object, epoch, fragments } => {
                    let ranges: Vec<_> = fragments.iter().map(|f| (f.first, u32::from(f.count))).collect();
                    holes.extend(Self::holes_of_copies((*object, *epoch), known, &ranges));
                }
                Entry::Holes { object, epoch, ranges } => {
                    holes.extend(Self::holes_of_copies((*object, *epoch), known, ranges));
                }
                _ => {}
            }
        }
        volume.note_copies(copies.len() as u8);
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
