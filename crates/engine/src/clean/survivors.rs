//! Live data of the extents that are cleaned, on its way to a new place: collected (`collect`),
//! ordered, and divided into batches. Owns the memory of one round; its thread calls it.
//!
//! 1. *Order*: by object and block over all extents of a round, so that neighbours come together
//!    again; frequently written data apart (`write::write_heat`).
//! 2. *Divide* into batches of at most an extent, of one stream each.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use codec::CodecId;
use format::{
    BATCH_ALIGN, BATCH_FIXED_BYTES, Entry, FragmentEntry, FragmentIdentity, FragmentRef, MOVE_ENTRY_BYTES, Move,
    Stream, fragment_checksum, header_bytes, move_entry_bytes,
};
use store::base::group::GroupKey;
use store::log::extent_scan::Stored;
use store::map::relocation_notes::MovedFrom;
use store::space::dead_map::Since;
use units::{BlockIndex, BlockMask, Epoch, ExtentIndex, GroupIndex, ObjectId};

use crate::write::drain::stream_of;

/// Largest batch of survivors, as that of a drain: more would only cost memory.
pub(super) const BATCH_BYTES_MAX: usize = 1 << 20;
// The count of an entry's moves has two bytes.
const _: () = assert!(BATCH_BYTES_MAX / MOVE_ENTRY_BYTES < 1 << 16);

/// A fragment that moves.
#[derive(Debug, Clone)]
pub(crate) struct Survivor {
    pub object: ObjectId,
    pub epoch: Epoch,
    pub moved: Move,
    /// The fragment that it was taken from.
    pub was: FragmentEntry,
    /// Written often: it goes to the hot stream again, unless it is a copy.
    pub is_hot: bool,
    /// Its payload in [`Survivors::bytes`].
    pub payload: Range<usize>,
}

impl Survivor {
    pub(super) fn key(&self) -> GroupKey {
        GroupKey { object: self.object, group: self.moved.fragment.first.group() }
    }

    /// The stream that it goes to: copies have their own.
    pub(super) fn stream(&self) -> Stream {
        Stream::of_copies(self.copy()).unwrap_or_else(|| stream_of(self.is_hot))
    }

    /// Which copy it is: 0 for the original.
    pub(super) fn copy(&self) -> u8 {
        self.moved.fragment.first.copy()
    }
}

/// A batch that is being filled.
#[derive(Default)]
struct Filling {
    /// Bytes of the survivors added, and of their headers.
    bytes: usize,
    /// The survivor added last.
    last: Option<(ObjectId, Epoch, Stream)>,
}

impl Filling {
    fn cost(&self, survivor: &Survivor) -> usize {
        let head = || header_bytes(&[Entry::Moves { object: ObjectId(0), epoch: Epoch(0), moves: Vec::new() }]);
        let who = (survivor.object, survivor.epoch);
        let heads = match self.last {
            Some((object, epoch, _)) if (object, epoch) == who => 0,
            Some(_) => head() - BATCH_FIXED_BYTES,
            None => head(),
        };
        heads + move_entry_bytes(survivor.moved.fragment.first) + survivor.payload.len()
    }

    /// Returns whether one more fits into `room` bytes, and goes to the same stream.
    fn fits(&self, survivor: &Survivor, room: usize) -> bool {
        self.bytes + self.cost(survivor) <= room && self.last.is_none_or(|(.., stream)| stream == survivor.stream())
    }

    fn add(&mut self, survivor: &Survivor) {
        self.bytes += self.cost(survivor);
        self.last = Some((survivor.object, survivor.epoch, survivor.stream()));
    }

    /// Size of the batch in the log.
    fn batch_bytes(&self) -> usize {
        self.bytes.next_multiple_of(BATCH_ALIGN)
    }
}

/// The data that a round of cleaning moves.
#[derive(Debug, Default)]
pub(crate) struct Survivors {
    list: Vec<Survivor>,
    pub bytes: Vec<u8>,
    /// Extents whose live data was known without asking the map, and when their present use began.
    pub known: BTreeMap<ExtentIndex, Since>,
}

/// The size of a round's batches in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packed {
    pub batches: usize,
    /// Tails of extents that the next batch does not fit into are counted.
    pub bytes: u64,
}

impl Survivors {
    /// Bytes of memory allocated for payloads.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// A mark to [`cut_back`](Self::cut_back) to.
    pub(crate) fn mark(&self) -> (usize, usize) {
        (self.list.len(), self.bytes.len())
    }

    /// Returns which copies the survivors collected since the mark are; all in an extent are alike.
    pub(crate) fn copy_since(&self, mark: (usize, usize)) -> Option<u8> {
        self.list.get(mark.0).map(Survivor::copy)
    }

    /// Discards everything collected since the mark.
    pub(crate) fn cut_back(&mut self, mark: (usize, usize)) {
        self.list.truncate(mark.0);
        self.bytes.truncate(mark.1);
        if self.list.is_empty() {
            self.known.clear();
        }
    }

    /// Bytes of payload.
    pub(crate) fn payload_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Marks the hot ones among those collected since the mark.
    pub(crate) fn mark_hot(&mut self, mark: (usize, usize), are_hot: impl Fn(ObjectId, GroupIndex, BlockMask) -> bool) {
        for survivor in self.list.iter_mut().skip(mark.0) {
            let GroupKey { object, group } = survivor.key();
            survivor.is_hot = are_hot(object, group, survivor.moved.live);
        }
    }

    /// Treats all of them as cold.
    pub(crate) fn forget_hot(&mut self) {
        self.list.iter_mut().for_each(|survivor| survivor.is_hot = false);
    }

    /// Keeps of each survivor the blocks that `still` returns, and only survivors with any left.
    pub(crate) fn keep(
        &mut self,
        mut still: impl FnMut(&Survivor, &BTreeMap<ExtentIndex, Since>) -> surface::Result<BlockMask>,
    ) -> surface::Result<()> {
        for survivor in &mut self.list {
            survivor.moved.live = survivor.moved.live.and(still(survivor, &self.known)?);
        }
        self.list.retain(|s| !s.moved.live.is_empty());
        Ok(())
    }

    pub(super) fn push(&mut self, was: &Stored, moved: Move, payload: &[u8]) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(payload);
        let Stored { object, epoch, fragment: was, .. } = *was;
        self.list.push(Survivor { object, epoch, moved, was, is_hot: false, payload: begin..self.bytes.len() });
    }

    /// Adds a unit that was made of blocks of a fragment at `from`.
    pub(crate) fn push_unit(
        &mut self,
        was: &Stored,
        from: u64,
        (first, count): (BlockIndex, u8),
        codec: CodecId,
        payload: &[u8],
    ) {
        let (stored, codec) = (payload.len() as u32, codec.0);
        let identity = FragmentIdentity { object: was.object, epoch: was.epoch, first, count, codec };
        let checksum = fragment_checksum(&identity, payload);
        let fragment = FragmentEntry { first, count, codec, stored, checksum };
        self.push(was, Move { fragment, live: fragment.unit(), from, made: was.made }, payload);
    }

    /// Returns the payload bytes added since the mark, and their size in the log including entries.
    pub(crate) fn since(&self, mark: (usize, usize)) -> (usize, usize) {
        let payload = self.bytes.len() - mark.1;
        let entries = self.list[mark.0..].iter().map(|survivor| move_entry_bytes(survivor.moved.fragment.first));
        (payload, payload + entries.sum::<usize>())
    }

    /// Returns their former locations, as of a checkpoint of that number or a newer one.
    pub(crate) fn moved_from(&self, as_of: u64) -> Vec<MovedFrom> {
        let note = |survivor: &Survivor| {
            let Move { live, from, .. } = survivor.moved;
            let fragment = FragmentRef { live, ..survivor.was.at(from) };
            MovedFrom { key: survivor.key(), epoch: survivor.epoch, fragment, as_of }
        };
        self.list.iter().map(note).collect()
    }

    /// Step 1.
    pub(super) fn ordered(&self) -> Vec<&Survivor> {
        let mut ordered: Vec<_> = self.list.iter().collect();
        ordered.sort_unstable_by_key(|s| (s.copy(), s.is_hot, s.object, s.moved.fragment.first, s.epoch));
        ordered
    }

    /// Divides ordered survivors into batches of at most `max` bytes, each of one stream;
    /// returns the batches with their bytes.
    fn divide(ordered: &[&Survivor], max: usize) -> Vec<(Range<usize>, usize)> {
        let mut batches = Vec::new();
        let (mut begin, mut filling) = (0, Filling::default());
        for (index, survivor) in ordered.iter().enumerate() {
            if index > begin && !filling.fits(survivor, max) {
                batches.push((begin..index, filling.batch_bytes()));
                (begin, filling) = (index, Filling::default());
            }
            filling.add(survivor);
        }
        if begin < ordered.len() {
            batches.push((begin..ordered.len(), filling.batch_bytes()));
        }
        batches
    }

    /// Takes from `rest` the survivors that fill a batch of at most `room` bytes, in order, if they
    /// are within the first `max` bytes.
    pub(super) fn fill<'a>(rest: &mut VecDeque<&'a Survivor>, room: usize, max: usize) -> Vec<&'a Survivor> {
        let mut filling = Filling::default();
        let (mut taken, mut passed, mut passed_bytes) = (Vec::new(), Vec::new(), 0);
        while passed_bytes <= max
            && let Some(survivor) = rest.pop_front()
        {
            let is_alone = room >= max && taken.is_empty() && passed.is_empty();
            if is_alone || filling.fits(survivor, room) {
                filling.add(survivor);
                taken.push(survivor);
            } else {
                passed_bytes += survivor.payload.len();
                passed.push(survivor);
            }
        }
        passed.into_iter().rev().for_each(|survivor| rest.push_front(survivor));
        taken
    }

    /// Returns the result that [`pack`](Self::pack) would have, beginning with an empty extent.
    pub(crate) fn measure(&self, extent_bytes: u32) -> Packed {
        let extent_bytes = extent_bytes as usize;
        let batches = Self::divide(&self.ordered(), extent_bytes.min(BATCH_BYTES_MAX));
        let largest = self.list.iter().map(|s| s.payload.len() + BATCH_ALIGN).max().unwrap_or(0);
        let (mut bytes, last) = (0u64, batches.len().saturating_sub(1));
        for (index, (_, len)) in batches.iter().enumerate() {
            // A batch of an extent's size was closed because nothing more fits there. The last one
            // leaves a tail that is only useful if such fragments fit in it.
            let closed = extent_bytes <= BATCH_BYTES_MAX && (index < last || extent_bytes - len < largest);
            bytes += if closed { extent_bytes as u64 } else { *len as u64 };
        }
        Packed { batches: batches.len(), bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Seq;

    /// Survivors of one object, each a block of so many stored bytes.
    fn survivors(stored: impl IntoIterator<Item = (u64, u32)>) -> Survivors {
        let mut survivors = Survivors::default();
        for (first, stored) in stored {
            let first = BlockIndex(first);
            let fragment = FragmentEntry { first, count: 1, codec: 0, stored, checksum: 0 };
            let live = BlockMask::run(first.in_group(), 1);
            let was = Stored {
                object: ObjectId(1),
                epoch: Epoch(0),
                fragment,
                made: Seq(1),
                is_moved: false,
                given: live,
                offset: 0,
            };
            let moved = Move { fragment, live, from: 4096, made: Seq(1) };
            survivors.push(&was, moved, &vec![0; stored as usize]);
        }
        survivors
    }

    fn blocks(batch: &[&Survivor]) -> Vec<u64> {
        batch.iter().map(|survivor| survivor.moved.fragment.first.0).collect()
    }

    #[test]
    fn a_batch_fills_the_room_that_is_left_in_order_and_nothing_is_lost() {
        const MAX: usize = 64 << 10;
        let all = survivors((0..400).map(|n| (n, 500 + (n as u32 * 2_654_435) % 3500)));
        for room in (0..MAX).step_by(1000) {
            let mut rest = VecDeque::from(all.ordered());
            let batch = Survivors::fill(&mut rest, room, MAX);
            let bytes = Survivors::divide(&batch, usize::MAX).first().map_or(0, |(_, bytes)| *bytes);
            assert!(bytes <= room.next_multiple_of(BATCH_ALIGN), "{bytes} bytes in {room}");
            let smallest = rest.iter().take(20).map(|survivor| survivor.payload.len()).min().unwrap();
            assert!(
                bytes + smallest + MOVE_ENTRY_BYTES + BATCH_FIXED_BYTES > room,
                "{bytes} bytes in {room}, {smallest} fit too"
            );
            assert!(blocks(&batch).is_sorted());
            let mut left: Vec<_> = rest.into();
            assert!(blocks(&left).is_sorted());
            left.extend(batch);
            assert_eq!(left.len(), 400);
        }
        // A unit larger than any batch is packed alone, and the log reports that it does not fit.
        let large = survivors([(0, 70_000), (1, 100)]);
        let mut rest = VecDeque::from(large.ordered());
        assert!(blocks(&Survivors::fill(&mut rest, 50, MAX)).is_empty());
        assert_eq!(blocks(&Survivors::fill(&mut rest, MAX, MAX)), [0]);
        assert_eq!(blocks(&Survivors::fill(&mut rest, MAX, MAX)), [1]);
    }

    #[test]
    fn hot_survivors_and_others_never_share_a_batch_and_each_kind_is_in_order() {
        let mut survivors = survivors([9, 4, 7, 2, 6, 1, 8, 3].map(|first| (first, 100)));
        let batches = |survivors: &Survivors| -> Vec<Vec<u64>> {
            let ordered = survivors.ordered();
            let divided = Survivors::divide(&ordered, BATCH_BYTES_MAX);
            let divided: Vec<_> = divided.into_iter().map(|(range, _)| blocks(&ordered[range])).collect();
            let mut rest = VecDeque::from(ordered);
            for batch in &divided {
                assert_eq!(blocks(&Survivors::fill(&mut rest, BATCH_BYTES_MAX, BATCH_BYTES_MAX)), *batch);
            }
            divided
        };
        assert_eq!(batches(&survivors), [[1, 2, 3, 4, 6, 7, 8, 9]]);
        survivors.mark_hot((0, 0), |_, _, blocks| blocks.0.trailing_zeros() % 2 == 0);
        assert_eq!(batches(&survivors), [[1, 3, 7, 9], [2, 4, 6, 8]]);
        survivors.forget_hot();
        assert_eq!(batches(&survivors).len(), 1);
    }
}
