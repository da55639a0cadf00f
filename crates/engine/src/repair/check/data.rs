//! The part of `check` that reads data: each extent once and whole, however its fragments are
//! scattered over the map.
//!
//! 1. One pass over all records has counted the fragments of each extent.
//! 2. Extents are taken until their fragments fill a share of the memory budget. Another pass over
//!    the records collects those fragments and sorts them by location. Two records that claim the
//!    same byte are found here.
//! 3. Each extent is read whole, a few ahead (`victim_reads`), and all fragments in it are verified
//!    and decoded. An extent that cannot be read whole is read fragment by fragment.
//!
//! So the data file is read in order, and the map as often as its fragments fill that share: twice
//! for most pools.

use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;

use codec::CodecId;
use env::AlignedBuf;
use format::{Record, RecordKey, parse_record_key};
use store::base::scratch;
use store::base::store_error::store_error;
use store::log::extent_scan;
use store::map::Piece;
use store::objects::Object;
use store::space::extents::Victim;
use surface::Result;
use units::{BLOCK_BYTES, BlockIndex, Epoch, ExtentIndex, ObjectId};

use crate::clean::victim_reads::VictimReads;
use crate::read::damage_owners::{Concerned, Place};
use crate::read::dictionaries::Readers;
use crate::read::reader::verify;
use crate::repair::Repairs;
use crate::repair::check::{Checker, DamagedHeaders, Entry};

/// Share of the memory budget for collected fragments, and their minimum number.
const MEMORY_DIVISOR: u64 = 4;
const ENTRIES_MIN: u64 = 4096;

impl Checker<'_> {
    /// Steps 2 and 3. `progress` gets bytes of fragments done and to do.
    pub(crate) fn data(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let total = self.parts.space.extents.lock().live_bytes();
        let max =
            (self.parts.vitals.options.memory_bytes / MEMORY_DIVISOR / size_of::<Entry>() as u64).max(ENTRIES_MIN);
        let counts: Vec<(ExtentIndex, u64)> = self.counted.iter().map(|(e, counted)| (*e, counted.fragments)).collect();
        let mut rest = &counts[..];
        progress(0, total);
        while let Some((first, _)) = rest.first() {
            let mut sum = 0;
            let within = |(_, fragments): &&(ExtentIndex, u64)| {
                sum += fragments;
                sum <= max
            };
            // An extent with more than that is taken alone.
            let count = rest.iter().take_while(within).count().max(1);
            let last = rest[count - 1].0;
            rest = &rest[count..];
            let entries = self.collect(*first, last)?;
            self.overlaps(&entries);
            let geometry = self.parts.geometry.clone();
            let extent_of = |entry: &Entry| geometry.extent_at(entry.piece.fragment.location);
            let of_extents: Vec<_> = entries.chunk_by(|a, b| extent_of(a) == extent_of(b)).collect();
            let victim = |entries: &&[Entry]| Victim { extent: extent_of(&entries[0]), live: 0 };
            let victims = of_extents.iter().map(victim).collect();
            let mut reads = VictimReads::while_alone(&self.parts.clean, victims, None);
            for of_extent in of_extents {
                let Some((victim, read)) = reads.next() else { break };
                self.extent(victim.extent, of_extent, read);
                progress(self.done_bytes, total.max(self.done_bytes));
            }
        }
        Ok(())
    }

    /// Step 2: the fragments in a range of extents, in the order of the data file.
    fn collect(&self, first: ExtentIndex, last: ExtentIndex) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let mut visit = |key: &[u8], value: &[u8]| {
            // Records that do not decode were reported by the walk through the records before.
            let (Some(key), Ok(record)) = (parse_record_key(key), Record::decode(value)) else {
                return ControlFlow::Continue(());
            };
            if self.parts.objects.get(key.object).is_none() {
                return ControlFlow::Continue(());
            }
            for fragment in record.fragments {
                let extent = self.parts.geometry.extent_at(fragment.location);
                if extent >= first && extent <= last {
                    entries.push(Entry { key, piece: Piece { object: key.object, epoch: key.epoch, fragment } });
                }
            }
            ControlFlow::Continue(())
        };
        self.parts.vitals.env.store.scan(b"R", b"S", &mut visit).map_err(store_error)?;
        entries.sort_unstable_by_key(|entry| entry.piece.fragment.location);
        Ok(entries)
    }

    fn overlaps(&mut self, entries: &[Entry]) {
        for pair in entries.windows(2) {
            let (before, behind) = (&pair[0].piece.fragment, &pair[1].piece.fragment);
            if before.location + u64::from(before.stored) > behind.location {
                let text = format!("two fragments claim byte {} of the data file", behind.location);
                self.problem("overlap", None, text, false);
            }
        }
    }

    /// Step 3.
    fn extent(&mut self, extent: ExtentIndex, entries: &[Entry], read: io::Result<AlignedBuf>) {
        let geometry = &self.parts.geometry;
        let start = geometry.start(extent);
        let (mut readable, mut damaged_bytes) = (Vec::with_capacity(entries.len()), 0);
        for entry in entries {
            let fragment = &entry.piece.fragment;
            let found = match (geometry.holds(fragment.location, fragment.stored), &read) {
                (false, _) => Err(format!(
                    "the record points at byte {} of the data file, where no data can be",
                    fragment.location
                )),
                (true, Ok(buf)) => {
                    let from = (fragment.location - start) as usize;
                    decode(self.parts, entry, &buf[from..from + fragment.stored as usize])
                }
                (true, Err(_)) => self.read_alone(entry),
            };
            match found {
                Ok(()) => readable.push(entry),
                Err(_) => damaged_bytes += u64::from(fragment.live_bytes()),
            }
            self.verified(entry, found);
        }
        if let Ok(buf) = read {
            self.headers(extent, (&readable, damaged_bytes), &buf[..geometry.extent_bytes as usize]);
            self.parts.buffers.put(buf);
        }
    }

    /// Verifies that the extent's own batches name all of its readable live data, as `scrub`
    /// requires.
    fn headers(&mut self, extent: ExtentIndex, (readable, damaged_bytes): (&[&Entry], u64), bytes: &[u8]) {
        let start = self.parts.geometry.start(extent);
        let mut named: BTreeSet<(usize, ObjectId, Epoch, u32)> = BTreeSet::new();
        for (at, batch) in extent_scan::batches(self.parts.log.pool(), extent, bytes) {
            let fragments = extent_scan::fragments(at, &batch);
            named.extend(fragments.map(|f| (f.offset, f.object, f.epoch, f.fragment.checksum)));
        }
        let unnamed = readable.iter().filter(|entry| {
            let fragment = &entry.piece.fragment;
            let offset = fragment.location.wrapping_sub(start) as usize;
            !named.contains(&(offset, entry.key.object, entry.key.epoch, fragment.checksum))
        });
        let unnamed = unnamed.count();
        if unnamed > 0 {
            self.headers.push(DamagedHeaders { extent, unnamed, damaged_bytes });
        }
    }

    /// Reads, verifies and decodes one fragment.
    fn read_alone(&self, entry: &Entry) -> std::result::Result<(), String> {
        let fragment = &entry.piece.fragment;
        let align = self.parts.vitals.env.disk.read_alignment() as u64;
        let start = fragment.location / align * align;
        let len = ((fragment.location + u64::from(fragment.stored)).next_multiple_of(align) - start) as usize;
        let mut buf = AlignedBuf::new(len);
        self.parts.vitals.env.disk.read_at(start, &mut buf, len).map_err(|e| format!("reading it failed: {e}"))?;
        let from = (fragment.location - start) as usize;
        decode(self.parts, entry, &buf[from..from + fragment.stored as usize])
    }

    /// Returns whether the live blocks of a damaged fragment can be read from another copy.
    fn has_intact_copy(&self, object: &Object, entry: &Entry) -> bool {
        let Piece { object: owner, epoch, fragment } = entry.piece;
        let _in_extents = self.parts.reads.readers.read();
        let mut others = self.parts.reads.other_copies((owner, epoch), entry.key.group, fragment.live);
        others.any(|copy| copy.iter().all(|wanted| self.parts.reads.payload_alone(object, wanted).is_some()))
    }

    fn verified(&mut self, entry: &Entry, found: std::result::Result<(), String>) {
        let fragment = &entry.piece.fragment;
        self.report.fragments += 1;
        self.report.fragment_bytes += u64::from(fragment.stored);
        self.done_bytes += u64::from(fragment.stored);
        let Err(mut detail) = found else { return };
        self.parts.reads.suspects.note(fragment.location);
        let RecordKey { object, group, epoch } = entry.key;
        if let Some(object) = self.parts.objects.get(object) {
            let has_copy = self.has_intact_copy(&object, entry);
            let position = self.report.problems.len();
            if has_copy {
                self.copied.count += 1;
                detail.push_str("; another copy replaces it");
            }
            let place = Place { group, epoch, fragment: Some((fragment.location, fragment.live)) };
            let seen = Concerned::of(&self.parts.objects, &self.parts.map, &object, place);
            let block = group.first_block().0 + u64::from(seen.blocks.0.trailing_zeros());
            let text = format!("{} blocks from here cannot be read: {detail}", seen.blocks.count());
            self.problem_seen("fragment", seen, BlockIndex(block).offset_bytes(), text, has_copy);
            if has_copy && self.report.problems.len() > position {
                self.copied.listed.push((position, Entry { key: entry.key, piece: entry.piece }));
            }
        }
    }
}

fn decode(parts: &Repairs, entry: &Entry, payload: &[u8]) -> std::result::Result<(), String> {
    let fragment = &entry.piece.fragment;
    verify(entry.key.group, &entry.piece, payload)?;
    let Some(object) = parts.objects.get(entry.key.object) else { return Ok(()) };
    scratch::with(|scratch| {
        let raw = &mut scratch.unit[..usize::from(fragment.count) * BLOCK_BYTES];
        let (codec, raw_len) = (CodecId(fragment.codec), raw.len());
        parts
            .reads
            .decode(Readers::Free, &object, &mut scratch.codecs, (codec, payload), raw, raw_len)
            .map_err(|e| e.to_string())
    })
}
