//! A batch on its way to the log: entries, their payloads packed after room for the header, and the
//! groups that it completes.
//!
//! **Whole units.** A batch that is divided takes effect in parts if the power fails between them.
//! All that a batch changes in one unit of an object, fragments and holes, is in one part: so no
//! write within a unit is torn (RELIABILITY.md). A unit is all blocks from one multiple of `whole`
//! to the next. It is larger than a fragment where units are written in pieces, or have holes.

use std::collections::HashSet;

use env::AlignedBuf;
use format::{
    BATCH_ALIGN, Entry, FragmentEntry, Move, ObjectState, Stream, fragment_entry_bytes, header_bytes, move_entry_bytes,
};
use units::{BlockIndex, Epoch, ObjectId};

use crate::base::buffers::BufferPool;
use crate::base::canary::Canary;
use crate::base::group::StoredGroups;
use crate::buffer::write_buffer::Taken;
use crate::log::zero_ahead::TAIL_BYTES;

/// When a batch is divided, its first part keeps the whole header, so that no payload moves, if the
/// header is at most this fraction of the room; the unused header bytes become zeroes.
const HEADER_STAYS_DIVISOR: usize = 16;

/// A batch that has no position yet.
pub struct Prepared {
    pub entries: Vec<Entry>,
    /// See [`Sink::foresee`](super::Sink::foresee).
    pub foreseen: Vec<StoredGroups>,
    /// Its stream: cold for moves, hot for all others, unless the caller decides otherwise.
    pub stream: Stream,
    /// Blocks of the units that are never divided, the largest of any object in it: a power of two.
    pub whole: u32,
    /// Bytes of the header, at least those that `entries` make; the payloads follow it in `buf`.
    header: usize,
    payload: usize,
    pub buf: AlignedBuf,
    /// Groups that are drained when this batch, or the last part of it, is applied.
    pub taken: Vec<Taken>,
    /// The incarnation of the log under which another part was appended already: this one completes
    /// it, and must not be applied under another.
    pub begun: Option<u64>,
}

impl Prepared {
    /// A batch with payloads of `payload` bytes in all, already in `buf` after room for the header
    /// of `entries`.
    pub fn new(entries: Vec<Entry>, payload: usize, buf: AlignedBuf, taken: Vec<Taken>) -> Self {
        let header = header_bytes(&entries);
        debug_assert!(buf.len() >= header + payload);
        let stream = if matches!(entries.first(), Some(Entry::Moves { .. })) { Stream::Cold } else { Stream::Hot };
        Self { entries, foreseen: Vec::new(), stream, whole: 1, header, payload, buf, taken, begun: None }
    }

    /// A batch without payloads.
    pub fn metadata(entries: Vec<Entry>, buffers: &BufferPool) -> Self {
        let buf = buffers.get(header_bytes(&entries));
        Self::new(entries, 0, buf, Vec::new())
    }

    /// Joins several batches, each of which drains groups of its own. Returns `None` for an empty
    /// list.
    pub fn joined(mut parts: Vec<Self>, buffers: &BufferPool) -> Option<Self> {
        if parts.len() < 2 {
            return parts.pop();
        }
        let mut entries: Vec<Entry> = Vec::new();
        let mut taken = Vec::new();
        for part in &mut parts {
            taken.append(&mut part.taken);
            for entry in part.entries.drain(..) {
                match (entries.last_mut(), entry) {
                    (
                        Some(Entry::Fragments { object: o, epoch: e, fragments }),
                        Entry::Fragments { object, epoch, fragments: more },
                    ) if (*o, *e) == (object, epoch) => fragments.extend(more),
                    (_, entry) => entries.push(entry),
                }
            }
        }
        taken.sort_unstable_by_key(|taken| taken.key);
        let header = header_bytes(&entries);
        let payload: usize = parts.iter().map(|part| part.payload).sum();
        let whole = parts.iter().map(|part| part.whole).max().unwrap_or(1);
        // A little more, in case the batch takes zeroes along.
        let mut buf = buffers.get(header + payload + TAIL_BYTES);
        let mut at = header;
        for part in parts {
            buf[at..at + part.payload].copy_from_slice(&part.buf[part.header..part.header + part.payload]);
            at += part.payload;
            buffers.put(part.buf);
        }
        Some(Self { whole, ..Self::new(entries, at - header, buf, taken) })
    }

    /// Bytes in the log.
    pub fn batch_bytes(&self) -> usize {
        (self.header + self.payload).next_multiple_of(BATCH_ALIGN)
    }

    /// Bytes of payload.
    #[inline]
    pub fn payload_bytes(&self) -> usize {
        self.payload
    }

    /// Bytes of its header.
    #[inline]
    pub fn header_bytes(&self) -> usize {
        self.header
    }

    /// The unit to which a block belongs, or its original.
    fn unit_of(&self, object: ObjectId, block: BlockIndex) -> (ObjectId, u64) {
        (object, block.original().0 / if Canary::UnitDivided.is_planted() { 1 } else { u64::from(self.whole) })
    }

    /// The fragments that were written, those of one unit together.
    pub fn units(&self) -> impl Iterator<Item = (ObjectId, &[FragmentEntry])> {
        self.entries.iter().flat_map(move |entry| {
            let (object, fragments): (_, &[_]) = match entry {
                Entry::Fragments { object, fragments, .. } => (*object, fragments),
                _ => (ObjectId(0), &[]),
            };
            let units = fragments.chunk_by(move |a, b| self.unit_of(object, a.first) == self.unit_of(object, b.first));
            units.map(move |fragments| (object, fragments))
        })
    }

    /// Moves as many units as fit in `room` bytes into a new part, from any position: their blocks
    /// are different, so that their order does not matter. Returns `None` if nothing fits. The
    /// groups that it completes stay with the rest.
    pub fn split(&mut self, room: usize, buffers: &BufferPool) -> Option<Self> {
        let is_moves = self.entries.iter().any(|entry| matches!(entry, Entry::Moves { .. }));
        let entry_bytes = if is_moves { move_entry_bytes } else { fragment_entry_bytes };
        let items: usize = self.entries.iter().map(item_bytes).sum();
        let header_stays = self.header <= room / HEADER_STAYS_DIVISOR;
        // Holes are in it already, whichever part they go to.
        let mut used = if header_stays { self.header } else { self.header - items };
        let fits = |_: ObjectId, unit: &[FragmentEntry]| {
            let entry_bytes = |item: &FragmentEntry| if header_stays { 0 } else { entry_bytes(item.first) };
            let cost: usize = unit.iter().map(|item| entry_bytes(item) + item.stored as usize).sum();
            let fits = used + cost <= room;
            used += if fits { cost } else { 0 };
            fits
        };
        self.divide_by(fits, header_stays, buffers).or_else(|| self.split_holes(room, buffers))
    }

    /// Moves the units that `takes` selects by their fragments, in the order of
    /// [`units`](Self::units), into a new part; moves are selected one by one. Returns `None` if it
    /// selects none; then nothing changes. The groups that it completes stay with the rest, and so
    /// do entries without payload, except for holes in units that the part takes.
    ///
    /// A batch with a dictionary is never divided: before its descriptor its content would be
    /// meaningless.
    ///
    /// The part keeps the buffer, in which its payloads move up to its shorter header; the rest is
    /// copied.
    pub fn divide(
        &mut self,
        takes: impl FnMut(ObjectId, &[FragmentEntry]) -> bool,
        buffers: &BufferPool,
    ) -> Option<Self> {
        self.divide_by(takes, false, buffers)
    }

    /// Like `divide`; if the header keeps its length, payloads that the part takes from the
    /// beginning on need not move.
    fn divide_by(
        &mut self,
        mut takes: impl FnMut(ObjectId, &[FragmentEntry]) -> bool,
        header_stays: bool,
        buffers: &BufferPool,
    ) -> Option<Self> {
        if self.entries.iter().any(|e| matches!(e, Entry::Object(d) if d.state == ObjectState::Dictionary)) {
            return None;
        }
        let mut part = Side::default();
        let mut rest = Side::default();
        let mut at = self.header;
        let has_holes = self.entries.iter().any(|entry| matches!(entry, Entry::Holes { .. }));
        let (mut others, mut taken, mut fragments) = (Vec::new(), HashSet::new(), Vec::new());
        for entry in std::mem::take(&mut self.entries) {
            let (object, epoch, items): (_, _, Vec<Item>) = match entry {
                Entry::Fragments { object, epoch, fragments } => {
                    (object, epoch, fragments.into_iter().map(Item::Written).collect())
                }
                Entry::Moves { object, epoch, moves } => (object, epoch, moves.into_iter().map(Item::Moved).collect()),
                other => {
                    others.push(other);
                    continue;
                }
            };
            let unit_of = |item: &Item| self.unit_of(object, item.fragment().first);
            let is_one = |a: &Item, b: &Item| matches!(a, Item::Written(_)) && unit_of(a) == unit_of(b);
            for unit in items.chunk_by(is_one) {
                fragments.clear();
                fragments.extend(unit.iter().map(Item::fragment));
                let is_taken = takes(object, &fragments);
                if is_taken && has_holes {
                    taken.insert(unit_of(&unit[0]));
                }
                let side = if is_taken { &mut part } else { &mut rest };
                for (item, stored) in unit.iter().zip(fragments.iter().map(|fragment| fragment.stored as usize)) {
                    side.push(object, epoch, *item, at..at + stored);
                    at += stored;
                }
            }
        }
        for other in others {
            let Entry::Holes { object, epoch, ranges } = other else {
                rest.entries.push(other);
                continue;
            };
            let (with_part, left): (Vec<_>, Vec<_>) =
                ranges.into_iter().partition(|(first, _)| taken.contains(&self.unit_of(object, *first)));
            for (side, ranges) in [(&mut part, with_part), (&mut rest, left)] {
                if !ranges.is_empty() {
                    side.entries.push(Entry::Holes { object, epoch, ranges });
                }
            }
        }
        if part.entries.is_empty() {
            self.entries = rest.entries;
            return None;
        }
        let rest = rest.copied(self, buffers);
        let Self { stream, whole, mut buf, begun, header: before, .. } = std::mem::replace(self, rest);
        let header = if header_stays { before } else { header_bytes(&part.entries) };
        let mut at = header;
        for range in part.payloads {
            let len = range.len();
            // Header and payloads before it are no longer than the old content: nothing is
            // overwritten before it is read.
            if range.start != at {
                buf.copy_within(range, at);
            }
            at += len;
        }
        let payload = at - header;
        Some(Self {
            entries: part.entries,
            foreseen: Vec::new(),
            stream,
            whole,
            header,
            payload,
            buf,
            taken: Vec::new(),
            begun,
        })
    }
}

impl Prepared {
    /// Moves hole ranges into a new part: a flood of discards makes a header that fits in no small
    /// extent. Only for batches that drain the write buffer: the entries of others must stay
    /// together.
    fn split_holes(&mut self, room: usize, buffers: &BufferPool) -> Option<Self> {
        let empty = |object, epoch| Entry::Holes { object, epoch, ranges: Vec::new() };
        // Holes in units with data stay: there are no more of them than blocks of data.
        let with_data: HashSet<_> =
            self.units().map(|(object, fragments)| self.unit_of(object, fragments[0].first)).collect();
        let is_alone =
            |whole: &Self, object: ObjectId, first: BlockIndex| !with_data.contains(&whole.unit_of(object, first));
        let index = self.entries.iter().position(|entry| {
            matches!(entry, Entry::Holes { object, ranges, .. }
                if ranges.iter().any(|(first, _)| is_alone(self, *object, *first)))
        })?;
        let Entry::Holes { object, epoch, ranges } = &self.entries[index] else { return None };
        let (object, epoch) = (*object, *epoch);
        let fixed = header_bytes(&[empty(object, epoch)]);
        let each = ranges.first().map(|(first, _)| format::hole_bytes(*first))?;
        let mut left = room.checked_sub(fixed)? / each;
        if left == 0 || self.taken.is_empty() {
            return None;
        }
        let (taken, ranges): (Vec<_>, Vec<_>) = ranges.iter().copied().partition(|(first, _)| {
            let is_taken = left > 0 && is_alone(self, object, *first);
            left -= usize::from(is_taken);
            is_taken
        });
        let part = Entry::Holes { object, epoch, ranges: taken };
        if ranges.is_empty() {
            self.entries.remove(index);
        } else {
            self.entries[index] = Entry::Holes { object, epoch, ranges };
        }
        let header = header_bytes(&self.entries);
        self.buf.copy_within(self.header..self.header + self.payload, header);
        self.header = header;
        Some(Self { stream: self.stream, begun: self.begun, ..Self::metadata(vec![part], buffers) })
    }
}

/// One side of a split.
#[derive(Default)]
struct Side {
    entries: Vec<Entry>,
    /// Where the payloads are in the buffer that is split.
    payloads: Vec<std::ops::Range<usize>>,
}

/// Bytes of the header that the fragments of an entry take.
fn item_bytes(entry: &Entry) -> usize {
    match entry {
        Entry::Fragments { .. } | Entry::Moves { .. } => entry.item_bytes(),
        Entry::Holes { .. } | Entry::Object(_) | Entry::PoolProperties(_) | Entry::Catalogue(_) => 0,
    }
}

/// The entry that a payload belongs to.
#[derive(Clone, Copy)]
enum Item {
    Written(FragmentEntry),
    Moved(Move),
}

impl Item {
    fn fragment(&self) -> FragmentEntry {
        match self {
            Self::Written(fragment) | Self::Moved(Move { fragment, .. }) => *fragment,
        }
    }
}

impl Side {
    fn push(&mut self, object: ObjectId, epoch: Epoch, item: Item, payload: std::ops::Range<usize>) {
        self.payloads.push(payload);
        match (self.entries.last_mut(), item) {
            (Some(Entry::Fragments { object: o, epoch: e, fragments }), Item::Written(fragment))
                if (*o, *e) == (object, epoch) =>
            {
                fragments.push(fragment);
            }
            (Some(Entry::Moves { object: o, epoch: e, moves }), Item::Moved(moved)) if (*o, *e) == (object, epoch) => {
                moves.push(moved);
            }
            (_, Item::Written(fragment)) => {
                self.entries.push(Entry::Fragments { object, epoch, fragments: vec![fragment] });
            }
            (_, Item::Moved(moved)) => self.entries.push(Entry::Moves { object, epoch, moves: vec![moved] }),
        }
    }

    /// Makes a batch of its own, in a buffer as large as that of `from`, so that it can be reused
    /// like that one.
    fn copied(self, from: &mut Prepared, buffers: &BufferPool) -> Prepared {
        let header = header_bytes(&self.entries);
        let mut buf = buffers.get(from.buf.len());
        let mut at = header;
        for range in self.payloads {
            let len = range.len();
            buf[at..at + len].copy_from_slice(&from.buf[range]);
            at += len;
        }
        let taken = std::mem::take(&mut from.taken);
        let Prepared { stream, whole, begun, .. } = *from;
        let payload = at - header;
        Prepared { entries: self.entries, foreseen: Vec::new(), stream, whole, header, payload, buf, taken, begun }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::{BatchHeader, encode_batch};
    use units::{BlockIndex, BlockMask, ExtentIndex, Seq};

    #[test]
    fn splitting_fills_the_room_and_keeps_every_payload_with_its_entry() {
        let buffers = BufferPool::default();
        let sizes = [3000u32, 2500, 100, 4000, 900];
        let fragments: Vec<_> = sizes
            .iter()
            .enumerate()
            .map(|(i, stored)| FragmentEntry {
                first: BlockIndex(i as u64),
                count: 1,
                codec: 0,
                stored: *stored,
                checksum: i as u32,
            })
            .collect();
        let moves: Vec<_> = fragments[3..]
            .iter()
            .map(|f| Move { fragment: *f, live: BlockMask::run(f.first.in_group(), 1), from: 4096, made: Seq(1) })
            .collect();
        let entries = vec![
            Entry::Fragments { object: ObjectId(1), epoch: Epoch(0), fragments: fragments[..3].to_vec() },
            Entry::Moves { object: ObjectId(1), epoch: Epoch(0), moves },
            Entry::Holes { object: ObjectId(1), epoch: Epoch(0), ranges: vec![(BlockIndex(40), 2)] },
        ];
        let header = header_bytes(&entries);
        let mut buf = buffers.get(header + 10500);
        let mut at = header;
        for fragment in &fragments {
            buf[at..at + fragment.stored as usize].fill(fragment.checksum as u8 + 1);
            at += fragment.stored as usize;
        }
        let mut prepared = Prepared::new(entries, 10500, buf, Vec::new());
        assert!(prepared.split(100, &buffers).is_none());
        let mut seen = Vec::new();
        for room in [4096, 8192, 16384] {
            let (before, fits) = (prepared.header, prepared.batch_bytes() <= room);
            let room_told = if fits { usize::MAX } else { room };
            let part = prepared.split(room_told, &buffers).unwrap();
            assert!(part.batch_bytes() <= room);
            let own = header_bytes(&part.entries);
            let expected = if before <= room_told / HEADER_STAYS_DIVISOR { before } else { own };
            assert_eq!(part.header, expected, "in a small room a part pays for its own entries only");
            let mut at = part.header;
            for entry in &part.entries {
                assert!(!matches!(entry, Entry::Holes { .. }), "holes stay with the rest");
                for (_, _, fragment) in entry.payloads() {
                    let payload = &part.buf[at..at + fragment.stored as usize];
                    assert!(payload.iter().all(|b| u32::from(*b) == fragment.checksum + 1));
                    at += fragment.stored as usize;
                    seen.push(fragment.checksum);
                }
            }
            if seen.len() == sizes.len() {
                break;
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3, 4]);
        assert_eq!(prepared.entries.len(), 1);
    }

    #[test]
    fn what_is_joined_is_one_batch_with_every_payload_in_its_place() {
        let buffers = BufferPool::default();
        let part = |object: u64, first: u64, sizes: &[u32], holes: bool| {
            let fragment = |(index, stored): (usize, &u32)| FragmentEntry {
                first: BlockIndex(first + index as u64),
                count: 1,
                codec: 0,
                stored: *stored,
                checksum: (first + index as u64) as u32,
            };
            let fragments: Vec<_> = sizes.iter().enumerate().map(fragment).collect();
            let mut entries = Vec::new();
            if holes {
                let ranges = vec![(BlockIndex(first + 100), 2)];
                entries.push(Entry::Holes { object: ObjectId(object), epoch: Epoch(0), ranges });
            }
            entries.push(Entry::Fragments { object: ObjectId(object), epoch: Epoch(0), fragments: fragments.clone() });
            let (header, payload) = (header_bytes(&entries), sizes.iter().sum::<u32>() as usize);
            let mut buf = buffers.get(header + payload);
            let mut at = header;
            for fragment in &fragments {
                buf[at..at + fragment.stored as usize].fill(fragment.checksum as u8);
                at += fragment.stored as usize;
            }
            Prepared::new(entries, payload, buf, Vec::new())
        };
        assert!(Prepared::joined(Vec::new(), &buffers).is_none());
        let parts = vec![
            part(1, 3, &[100, 4096], false),
            part(1, 40, &[77], false),
            part(1, 80, &[1000, 16], true),
            part(2, 5, &[9], false),
        ];
        let joined = Prepared::joined(parts, &buffers).unwrap();
        // Fragments of the first two share an entry; holes and another object separate them.
        assert_eq!(joined.entries.len(), 4);
        assert_eq!(joined.payload, 100 + 4096 + 77 + 1000 + 16 + 9);
        let mut at = joined.header_bytes();
        let mut seen = Vec::new();
        for (object, _, fragment) in joined.entries.iter().flat_map(Entry::payloads) {
            let payload = &joined.buf[at..at + fragment.stored as usize];
            assert!(payload.iter().all(|byte| *byte == fragment.checksum as u8));
            at += fragment.stored as usize;
            seen.push((object.0, fragment.first.0));
        }
        assert_eq!(seen, [(1, 3), (1, 4), (1, 40), (1, 80), (1, 81), (2, 5)]);
    }

    /// In a large room the header stays, and so do payloads taken from the beginning on.
    #[test]
    fn what_comes_first_stays_where_it_is() {
        let buffers = BufferPool::default();
        let entry = |number: u64, stored| FragmentEntry {
            first: BlockIndex(number * 32),
            count: 16,
            codec: 1,
            stored,
            checksum: number as u32,
        };
        let sizes = [30_000, 20_000, 25_000, 9_000, 40_000];
        let fragments: Vec<_> = sizes.iter().zip(1..).map(|(stored, number)| entry(number, *stored)).collect();
        let entries = vec![Entry::Fragments { object: ObjectId(1), epoch: Epoch(0), fragments }];
        let (header, payload) = (header_bytes(&entries), sizes.iter().sum::<u32>() as usize);
        let mut buf = buffers.get(header + payload);
        buf.fill(0xee);
        let mut at = header;
        for (number, stored) in (1..).zip(sizes) {
            buf[at..at + stored as usize].fill(number);
            at += stored as usize;
        }
        let mut rest = Prepared::new(entries, payload, buf, Vec::new());
        let part = rest.split(64 << 10, &buffers).unwrap();
        assert!(part.batch_bytes() <= 64 << 10);
        assert_eq!((part.header, rest.header), (header, header_bytes(&rest.entries)));
        let holds = |batch: &Prepared, expected: &[u32]| {
            let numbers: Vec<_> = batch.entries.iter().flat_map(Entry::payloads).map(|(_, _, f)| f.checksum).collect();
            assert_eq!(numbers, expected);
            let mut at = batch.header;
            for (_, _, fragment) in batch.entries.iter().flat_map(Entry::payloads) {
                let end = at + fragment.stored as usize;
                assert!(batch.buf[at..end].iter().all(|byte| u32::from(*byte) == fragment.checksum));
                at = end;
            }
            assert_eq!(at, batch.header + batch.payload_bytes());
        };
        holds(&part, &[1, 2, 4]);
        holds(&rest, &[3, 5]);
        // The batch as a reader of the log decodes it.
        let head = BatchHeader {
            pool: 1,
            seq: Seq(1),
            incarnation: 1,
            incarnation_first_seq: Seq(1),
            durable_before: Seq(1),
            extent: ExtentIndex(1),
            stream: Stream::Hot,
        };
        let mut encoded = encode_batch(&head, &part.entries, part.header_bytes(), part.batch_bytes());
        encoded.resize(part.batch_bytes(), 0);
        let decoded = format::decode_batch(&encoded).unwrap();
        assert_eq!((decoded.header_bytes, &decoded.entries), (header, &part.entries));
    }

    #[test]
    fn pieces_and_holes_of_a_unit_stay_together() {
        let buffers = BufferPool::default();
        let fragment = |(first, stored)| FragmentEntry {
            first: BlockIndex(first),
            count: 1,
            codec: 0,
            stored,
            checksum: first as u32,
        };
        // A unit with a hole between two pieces, a unit of one piece, and a hole alone.
        let fragments: Vec<_> = [(0, 4096), (2, 4096), (4, 2000)].into_iter().map(fragment).collect();
        let holes = [(BlockIndex(1), 1), (BlockIndex(100), 1)];
        let batch = || {
            let entries = vec![
                Entry::Holes { object: ObjectId(1), epoch: Epoch(0), ranges: holes.to_vec() },
                Entry::Fragments { object: ObjectId(1), epoch: Epoch(0), fragments: fragments.clone() },
            ];
            let buf = buffers.get(header_bytes(&entries) + 10_192);
            let mut batch = Prepared::new(entries, 10_192, buf, Vec::new());
            batch.whole = 4;
            batch
        };
        let found = |batch: &Prepared| {
            let fragments = batch.entries.iter().flat_map(Entry::payloads).map(|(_, _, fragment)| fragment.first.0);
            let holes = batch.entries.iter().map(|entry| match entry {
                Entry::Holes { ranges, .. } => ranges.iter().map(|(first, _)| first.0).collect(),
                _ => Vec::new(),
            });
            (fragments.collect::<Vec<_>>(), holes.flatten().collect::<Vec<_>>())
        };
        let mut rest = batch();
        let part = rest.split(8 << 10, &buffers).unwrap();
        assert_eq!((found(&part), found(&rest)), ((vec![4], vec![]), (vec![0, 2], vec![1, 100])));
        let mut rest = batch();
        let part = rest.divide(|_, unit| unit.len() == 2, &buffers).unwrap();
        assert_eq!((found(&part), found(&rest)), ((vec![0, 2], vec![1]), (vec![4], vec![100])));
        assert_eq!(batch().units().map(|(_, unit)| unit.len()).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn a_flood_of_holes_is_divided_among_small_extents() {
        let buffers = BufferPool::default();
        let ranges: Vec<_> = (0..9000).map(|i| (BlockIndex(2 * i), 1)).collect();
        let fragment = FragmentEntry { first: BlockIndex(1), count: 1, codec: 0, stored: 4096, checksum: 7 };
        let entries = vec![
            Entry::Holes { object: ObjectId(1), epoch: Epoch(0), ranges: ranges[..4096].to_vec() },
            Entry::Holes { object: ObjectId(1), epoch: Epoch(0), ranges: ranges[4096..].to_vec() },
            Entry::Fragments { object: ObjectId(1), epoch: Epoch(0), fragments: vec![fragment] },
        ];
        let header = header_bytes(&entries);
        let mut buf = buffers.get(header + 4096);
        buf[header..header + 4096].fill(9);
        let drained = vec![crate::buffer::write_buffer::tests::taken()];
        let mut rest = Prepared::new(entries.clone(), 4096, buf, drained);
        let mut seen = Vec::new();
        while rest.batch_bytes() > 32 << 10 {
            let part = rest.split(32 << 10, &buffers).unwrap();
            assert!(part.batch_bytes() <= 32 << 10);
            for entry in &part.entries {
                let Entry::Holes { ranges, .. } = entry else { panic!("the fragment fits in no part of these") };
                seen.extend(ranges.iter().copied());
            }
        }
        for entry in &rest.entries {
            if let Entry::Holes { ranges, .. } = entry {
                seen.extend(ranges.iter().copied());
            }
        }
        assert_eq!(seen, ranges);
        assert!(rest.buf[rest.header..rest.header + 4096].iter().all(|b| *b == 9));
        let buf = buffers.get(header + 4096);
        let mut atomic = Prepared::new(entries, 4096, buf, Vec::new());
        assert!(atomic.split(8 << 10, &buffers).is_none(), "entries that hold together are not divided");
    }
}
