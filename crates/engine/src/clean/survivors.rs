//! Live data of the extents that are cleaned, on its way to a new place: collected, verified, cut
//! down to the parts that are still read, ordered, and packed into batches.
//!
//! 1. *Collect*: an extent is read whole (`victim_reads`), and its live fragments are determined
//!    (`clean::extent_liveness`).
//! 2. *Verify*: each payload against its checksum. A damaged one stays in place, and its extent
//!    with it: then no recoverable data is lost, and its readers get an error.
//! 3. *Recompress* cold data, where that is wanted (`cold`). *Cut* the rest: a unit with
//!    overwritten blocks is decoded, and the remaining runs become units of their own, if that
//!    saves space. Whole units move unchanged: their checksum covers their identity, not their
//!    location.
//! 4. *Order*: by object and block over all extents of a round, so that neighbours come together
//!    again; frequently written data apart (`write::write_heat`).
//! 5. *Pack* into batches of at most an extent, of one stream each.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use codec::{Codec, CodecId, DictionaryNumber, ZstdLevel};
use format::{
    BATCH_ALIGN, BATCH_FIXED_BYTES, Entry, FragmentEntry, FragmentIdentity, FragmentRef, MOVE_ENTRY_BYTES, Move,
    fragment_checksum, header_bytes, move_entry_bytes,
};
use policy::dst_limit;
use units::{BLOCK_BYTES, BlockIndex, BlockMask, Epoch, ExtentIndex, GroupIndex, ObjectId};

use crate::base::group::GroupKey;
use crate::base::scratch;
use crate::clean::Cleaning;
use crate::clean::cold::ColdRecoder;
use crate::clean::extent_liveness::{Resident, is_same};
use crate::log::extent_scan::Stored;
use crate::log::prepared::Prepared;
use crate::map::relocation_notes::MovedFrom;
use crate::objects::Object;
use crate::read::damage_owners::{Concerned, Place};
use crate::read::dictionaries::Readers;
use crate::space::dead_map::Since;
use crate::space::extents::Victim;
use crate::write::drain::stream_of;

/// Largest batch of survivors, as that of a drain: more would only cost memory.
const BATCH_BYTES_MAX: usize = 1 << 20;
// The count of an entry's moves has two bytes.
const _: () = assert!(BATCH_BYTES_MAX / MOVE_ENTRY_BYTES < 1 << 16);
/// Cutting a unit means decoding and compressing it: not for less than this share of its blocks.
const CUT_DIVISOR: u32 = 8;
/// Level for compressing the rest of a unit with a dictionary: the codec number of such a unit does
/// not include its level.
const CUT_LEVEL: ZstdLevel = match ZstdLevel::new(3) {
    Some(level) => level,
    None => ZstdLevel::MIN,
};

/// A fragment that moves.
#[derive(Debug, Clone)]
pub(crate) struct Survivor {
    pub object: ObjectId,
    pub epoch: Epoch,
    pub moved: Move,
    /// The fragment that it was taken from.
    was: FragmentEntry,
    /// Written often: it goes to the hot stream again.
    is_hot: bool,
    /// Its payload in [`Survivors::bytes`].
    payload: Range<usize>,
}

impl Survivor {
    fn key(&self) -> GroupKey {
        GroupKey { object: self.object, group: self.moved.fragment.first.group() }
    }
}

/// A batch that is being filled.
#[derive(Default)]
struct Filling {
    /// Bytes of the survivors added, and of their headers.
    bytes: usize,
    /// The survivor added last.
    last: Option<(ObjectId, Epoch, bool)>,
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
        self.bytes + self.cost(survivor) <= room && self.last.is_none_or(|(.., is_hot)| is_hot == survivor.is_hot)
    }

    fn add(&mut self, survivor: &Survivor) {
        self.bytes += self.cost(survivor);
        self.last = Some((survivor.object, survivor.epoch, survivor.is_hot));
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
    bytes: Vec<u8>,
    /// Extents whose live data was known without asking the map, and when their present use began.
    known: BTreeMap<ExtentIndex, Since>,
}

/// How collecting from an extent ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Collected {
    /// All live data of the extent is among the survivors.
    All,
    /// A part of it cannot move, so nothing moves; with a description of the damage, if that is
    /// why. If the rule allows it, readable data next to damage is among the survivors.
    Left(Option<String>),
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

    fn push(&mut self, was: &Stored, moved: Move, payload: &[u8]) {
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

    /// Step 4.
    fn ordered(&self) -> Vec<&Survivor> {
        let mut ordered: Vec<_> = self.list.iter().collect();
        ordered.sort_unstable_by_key(|s| (s.is_hot, s.object, s.moved.fragment.first, s.epoch));
        ordered
    }

    /// Divides ordered survivors into batches of at most `max` bytes, each either hot or cold;
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
    fn fill<'a>(rest: &mut VecDeque<&'a Survivor>, room: usize, max: usize) -> Vec<&'a Survivor> {
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

impl Cleaning {
    /// Steps 1 to 3 for one extent, whose bytes are `bytes`. `is_current` returns whether the last
    /// checkpoint is still the one from which the victim's live bytes were read. With
    /// `despite_damage`, damage does not end it: readable data is still collected.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub(crate) fn collect(
        &self,
        victim: Victim,
        bytes: &[u8],
        survivors: &mut Survivors,
        mut cold: Option<&mut ColdRecoder<'_>>,
        (is_current, despite_damage): (impl Fn() -> bool, bool),
    ) -> surface::Result<Collected> {
        let mark = survivors.mark();
        let residents = match self.known_residents(victim.extent, bytes) {
            Some((residents, since)) => {
                survivors.known.insert(victim.extent, since);
                residents
            }
            None => self.residents(victim, bytes, is_current)?,
        };
        let mut all = Collected::All;
        for resident in residents {
            match self.survive(&resident, bytes, survivors, cold.as_deref_mut()) {
                Collected::All => {}
                Collected::Left(Some(damage)) if despite_damage => {
                    // The first damage is reported.
                    if all == Collected::All {
                        all = Collected::Left(Some(damage));
                    }
                }
                left => {
                    survivors.cut_back(mark);
                    return Ok(left);
                }
            }
        }
        Ok(all)
    }

    /// Steps 2 and 3 for one fragment.
    fn survive(
        &self,
        resident: &Resident,
        extent: &[u8],
        survivors: &mut Survivors,
        cold: Option<&mut ColdRecoder<'_>>,
    ) -> Collected {
        let Resident { object, stored, location, reference } = resident;
        if !self.objects.is_seen(object.id) {
            // Its records go with the next checkpoints, and the extent with them.
            return Collected::Left(None);
        }
        let live = self.map.unmoved(resident.key(), stored.epoch, *location, reference.live);
        if live.is_empty() {
            return Collected::All;
        }
        let damaged = |what: &str| {
            let place = Place { group: resident.key().group, epoch: stored.epoch, fragment: Some((*location, live)) };
            let name = Concerned::of(&self.objects, &self.map, object, place).name;
            let (from, bytes) = (stored.fragment.first.offset_bytes(), stored.fragment.stored);
            Collected::Left(Some(format!(
                "volume '{name}', byte {from}: the fragment of {bytes} bytes at byte {location} of the data file {what}"
            )))
        };
        let Some(payload) = stored.payload(extent).filter(|payload| stored.is_intact(payload)) else {
            return damaged("does not match its checksum");
        };
        if cold.is_some_and(|cold| cold.recode(resident, live, payload, survivors)) {
            return Collected::All;
        }
        let whole = Move { fragment: stored.fragment, live, from: *location, made: stored.made };
        let dead = reference.unit().minus(live).count();
        if dead * CUT_DIVISOR >= u32::from(stored.fragment.count) && dead > 0 {
            match self.cut(object, stored, &whole, payload, survivors) {
                Ok(true) => return Collected::All,
                Ok(false) => {}
                // Destroyed in the meantime, and perhaps its dictionary with it.
                Err(()) if !self.objects.is_seen(object.id) => return Collected::Left(None),
                Err(()) => return damaged("cannot be decoded"),
            }
        }
        survivors.push(stored, whole, payload);
        Collected::All
    }

    /// Step 3: makes units of the live runs of a unit, with the same codec; if its dictionary is no
    /// longer in force, with the newest one, or without. Returns `false` if that would not save
    /// space.
    fn cut(
        &self,
        object: &Object,
        stored: &Stored,
        whole: &Move,
        payload: &[u8],
        survivors: &mut Survivors,
    ) -> Result<bool, ()> {
        let settings = *object.settings.read();
        let id = CodecId(whole.fragment.codec);
        let mut encoders = if id == CodecId::ZSTD_DICTIONARY { self.reads.encoders(object, &settings) } else { None };
        let helped = encoders.as_mut().and_then(|encoders| {
            let same = DictionaryNumber::split(payload).and_then(|(number, _)| encoders.find(number));
            encoders.at(same.unwrap_or(encoders.count()), CUT_LEVEL).cloned()
        });
        let known = Codec::all().find(|c| c.id() == id);
        let plain = known.or_else(|| (id == CodecId::ZSTD_DICTIONARY).then_some(Codec::Zstd(CUT_LEVEL)));
        let Some(codec) = plain else { return Ok(false) };
        let (mark, before) = (survivors.mark(), payload.len() + move_entry_bytes(whole.fragment.first));
        scratch::with(|scratch| {
            let raw_len = usize::from(whole.fragment.count) * BLOCK_BYTES;
            let scratch::Scratch { codecs, unit, .. } = scratch;
            let raw = &mut unit[..raw_len];
            self.reads.decode(Readers::Free, object, codecs, (id, payload), raw, raw_len).map_err(|_| ())?;
            let mut target = vec![0; raw_len];
            for (first, blocks) in whole.live.runs() {
                let skip = (first - whole.fragment.first.in_group()) as usize * BLOCK_BYTES;
                let piece = &raw[skip..skip + blocks as usize * BLOCK_BYTES];
                let limit = dst_limit(piece.len(), &settings);
                let (id, len) = match &helped {
                    Some(helped) => (id, codecs.compress_with(helped, piece, &mut target[..limit])),
                    None => (codec.id(), codecs.compress(codec, piece, &mut target[..limit])),
                };
                let (id, kept) = match len {
                    Some(len) => (id, &target[..len]),
                    None => (CodecId::RAW, piece),
                };
                let first = BlockIndex(whole.fragment.first.group().first_block().0 + u64::from(first));
                survivors.push_unit(stored, whole.from, (first, blocks as u8), id, kept);
            }
            Ok(())
        })?;
        let wins = survivors.since(mark).1 < before;
        if !wins {
            survivors.cut_back(mark);
        }
        Ok(wins)
    }

    /// Looks survivors up in the map again: a checkpoint came between since they were collected,
    /// and their locations may have been reused.
    pub(crate) fn keep_unmoved(&self, survivors: &mut Survivors) -> surface::Result<()> {
        survivors.keep(|survivor, known| {
            let Some(object) = self.objects.get(survivor.object).filter(|o| self.objects.is_seen(o.id)) else {
                return Ok(BlockMask::EMPTY);
            };
            let (key, from) = (survivor.key(), survivor.moved.from);
            let extent = self.geometry.extent_at(from);
            if let Some(since) = known.get(&extent) {
                // In this order: a checkpoint enters dead fragments before they leave the overlays.
                let live = self.map.unmoved(key, survivor.epoch, from, survivor.moved.live);
                let deaths = self.applier.deaths.lock();
                if let Some(dead) = deaths.of(extent).filter(|dead| dead.since == *since) {
                    return Ok(live.minus(dead.at((from - self.geometry.start(extent)) as usize)));
                }
            }
            let same = |fragment: &FragmentRef| is_same(&survivor.was, fragment);
            self.map.lives_at(key, object.epoch(), survivor.epoch, from, same)
        })
    }

    /// Steps 4 and 5; each batch is made on demand.
    pub(crate) fn pack<'a>(&'a self, survivors: &'a Survivors) -> impl Iterator<Item = Prepared> + 'a {
        let mut rest = VecDeque::from(survivors.ordered());
        let max = (self.geometry.extent_bytes as usize).min(BATCH_BYTES_MAX);
        std::iter::from_fn(move || {
            let room = self.log.room_in(stream_of(rest.front()?.is_hot));
            let mut batch = Survivors::fill(&mut rest, room.min(max), max);
            if batch.is_empty() {
                batch = Survivors::fill(&mut rest, max, max);
            }
            Some(self.batch_of(&batch, &survivors.bytes))
        })
    }

    fn batch_of(&self, survivors: &[&Survivor], bytes: &[u8]) -> Prepared {
        let mut entries: Vec<Entry> = Vec::new();
        for survivor in survivors {
            match entries.last_mut() {
                Some(Entry::Moves { object, epoch, moves })
                    if (*object, *epoch) == (survivor.object, survivor.epoch) =>
                {
                    moves.push(survivor.moved);
                }
                _ => entries.push(Entry::Moves {
                    object: survivor.object,
                    epoch: survivor.epoch,
                    moves: vec![survivor.moved],
                }),
            }
        }
        let header = header_bytes(&entries);
        let payload: usize = survivors.iter().map(|s| s.payload.len()).sum();
        let mut buf = self.buffers.get((header + payload).next_multiple_of(BATCH_ALIGN));
        let mut at = header;
        for survivor in survivors {
            let len = survivor.payload.len();
            buf[at..at + len].copy_from_slice(&bytes[survivor.payload.clone()]);
            at += len;
        }
        let mut prepared = Prepared::new(entries, payload, buf, Vec::new());
        prepared.stream = stream_of(survivors.first().is_some_and(|survivor| survivor.is_hot));
        prepared
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
