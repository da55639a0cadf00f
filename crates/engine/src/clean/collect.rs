//! Collects the live data of an extent that is cleaned: verified, and cut down to the parts that
//! are still read. Owns no state; called by the thread of a round.
//!
//! 1. *Collect*: an extent is read whole (`victim_reads`), and its live fragments are determined
//!    (`clean::extent_liveness`).
//! 2. *Verify*: each payload against its checksum. Instead of a damaged one another copy moves
//!    (`repair`). Without one it stays in place, and its extent with it: then no recoverable data is
//!    lost, and its readers get an error.
//! 3. *Recompress* cold data, where that is wanted (`cold`). *Cut* the rest: a unit with
//!    overwritten blocks is decoded, and the remaining runs become units of their own, if that
//!    saves space. Whole units move unchanged: their checksum covers their identity, not their
//!    location.
//! 4. *Pack*, in the order and division of `survivors`.

use std::collections::VecDeque;

use codec::{Codec, CodecId, DictionaryNumber, ZstdLevel};
use format::{BATCH_ALIGN, Entry, FragmentRef, Move, Stream, header_bytes, move_entry_bytes};
use policy::dst_limit;
use store::base::scratch;
use store::log::extent_scan::Stored;
use store::log::prepared::Prepared;
use store::objects::Object;
use store::space::extents::Victim;
use units::{BLOCK_BYTES, BlockIndex, BlockMask};

use crate::clean::Cleaning;
use crate::clean::cold::ColdRecoder;
use crate::clean::extent_liveness::{Resident, is_same};
use crate::clean::survivors::{BATCH_BYTES_MAX, Survivor, Survivors};
use crate::read::damage_owners::{Concerned, Place};
use crate::read::dictionaries::Readers;

/// Cutting a unit means decoding and compressing it: not for less than this share of its blocks.
const CUT_DIVISOR: u32 = 8;
/// Level for compressing the rest of a unit with a dictionary: the codec number of such a unit does
/// not include its level.
const CUT_LEVEL: ZstdLevel = match ZstdLevel::new(3) {
    Some(level) => level,
    None => ZstdLevel::MIN,
};

/// How collecting from an extent ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Collected {
    /// All live data of the extent is among the survivors.
    All,
    /// A part of it cannot move, so nothing moves; with a description of the damage, if that is
    /// why. If the rule allows it, readable data next to damage is among the survivors.
    Left(Option<String>),
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
            if self.survive_by_copy(resident, live, survivors) {
                self.vitals.counters.repaired_fragments.add(1);
                return Collected::All;
            }
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

    /// Step 4; each batch is made on demand.
    pub(crate) fn pack<'a>(&'a self, survivors: &'a Survivors) -> impl Iterator<Item = Prepared> + 'a {
        let mut rest = VecDeque::from(survivors.ordered());
        let max = (self.geometry.extent_bytes as usize).min(BATCH_BYTES_MAX);
        std::iter::from_fn(move || {
            let room = self.log.room_in(rest.front()?.stream());
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
        prepared.stream = survivors.first().map_or_else(Stream::default, |survivor| survivor.stream());
        prepared
    }
}
