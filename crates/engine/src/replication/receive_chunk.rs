//! One chunk of a stream on its way into the log.
//!
//! 1. Each payload is verified against the checksum that it has in the stream; its codec must be
//!    known, and it must decode: the sender may have computed correct checksums of garbage, and
//!    scrub, which does not decode, would never notice.
//! 2. The fragments get their identity in this pool. Their checksums are converted, not recomputed:
//!    damage after step 1 is still detected. A unit that is too large for this pool's extents is
//!    decoded and divided.
//! 3. Room is made for them as for a write: quotas, reservations and the cleaner's reserve hold.
//! 4. They are appended in batches. The last one carries the descriptor that records the snapshot's
//!    progress: in the log, it follows everything that it covers, so a crash leaves at least as
//!    much of the stream as the descriptor says, or a little more.

use codec::{CodecId, Workspace};
use format::{Entry, FragmentEntry, ObjectDescriptor, STREAM_HEAD_BYTES, StreamData, header_bytes, stream_checksum};
use store::base::canary::Canary;
use store::base::scratch;
use store::log::prepared::Prepared;
use store::log::{Purpose, Ticket};
use store::objects::Object;
use surface::{Error, ErrorKind, Result};
use units::{BLOCK_BYTES, BlockIndex, Epoch};

use crate::codecs::compress::with_unit;
use crate::replication::parts::Intake;
use crate::volume::punch::PIECE_BLOCKS_MIN;

/// Upper bound of fragments and hole ranges of one batch: their entries, and the descriptor, fit
/// into the rest of an extent of any size when a batch is begun there.
const FRAGMENTS_MAX: usize = 192;
const HOLES_MAX: usize = 192;
/// Upper bound of payload of one batch.
const BATCH_BYTES: usize = 1 << 20;
/// Blocks of the holes of one batch: never more groups than a piece of a discard makes holes of. A
/// discard asks the map, and takes more where it is mostly empty; holes of a stream had data in
/// their source, and usually have some here.
const RANGE_BLOCKS_MAX: u32 = PIECE_BLOCKS_MIN as u32;

/// Fragments in their stored form, and their payloads.
#[derive(Default)]
struct Resealed {
    fragments: Vec<FragmentEntry>,
    bytes: Vec<u8>,
}

/// The place of a stream's data: the volume, and the epoch in which it is written.
pub(crate) struct Place<'a> {
    pub volume: &'a Object,
    pub epoch: Epoch,
}

impl Place<'_> {
    /// Entries for a chunk's holes.
    fn holes(&self, data: &StreamData) -> impl Iterator<Item = Entry> {
        let mut divided = data.holes.iter().flat_map(|(first, blocks)| divide(*first, *blocks)).peekable();
        std::iter::from_fn(move || {
            // A large range is looked up in the map when it is applied: one at a time.
            let (mut ranges, mut blocks) = (Vec::new(), 0);
            while let Some(range) =
                divided.next_if(|(_, count)| ranges.len() < HOLES_MAX && blocks + count <= RANGE_BLOCKS_MAX)
            {
                blocks += range.1;
                ranges.push(range);
            }
            let (object, epoch) = (self.volume.id, self.epoch);
            (!ranges.is_empty()).then_some(Entry::Holes { object, epoch, ranges })
        })
    }

    /// Entries for a chunk's fragments.
    fn fragments(&self, fragments: &[FragmentEntry]) -> impl Iterator<Item = Entry> {
        let mut rest = fragments;
        std::iter::from_fn(move || {
            let mut bytes = 0;
            let fits = |fragment: &&FragmentEntry| {
                bytes += fragment.stored as usize;
                bytes <= BATCH_BYTES
            };
            let count = rest.iter().take(FRAGMENTS_MAX).take_while(fits).count().max(1);
            let (mine, others) = rest.split_at_checked(count)?;
            rest = others;
            let (object, epoch) = (self.volume.id, self.epoch);
            Some(Entry::Fragments { object, epoch, fragments: mine.to_vec() })
        })
    }
}

fn at_block(kind: ErrorKind, first: BlockIndex, text: &str) -> Error {
    Error::new(kind, format!("byte {} of the volume: {text}", first.offset_bytes()))
}

impl Intake {
    /// Adds a chunk's data; `done` is the descriptor that records it. Durable with the next sync.
    /// The caller holds the gate of the object that `done` describes.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for a payload that does not match, [`ErrorKind::Unsupported`] for an
    /// unknown codec, [`ErrorKind::Full`], and those of the storage.
    pub(crate) fn take_in(
        &self,
        place: &Place<'_>,
        data: &StreamData,
        payloads: &[u8],
        done: ObjectDescriptor,
    ) -> Result<()> {
        self.vitals.counters.streamed_bytes.add((STREAM_HEAD_BYTES + payloads.len()) as u64);
        let resealed = self.reseal(place, data, payloads)?;
        let mut payloads = &resealed.bytes[..];
        let mut last: Option<Ticket> = None;
        let mut append = |entries: Vec<Entry>| {
            let payload = entries.iter().flat_map(Entry::payloads).map(|(_, _, f)| f.stored as usize).sum();
            let (mine, others) = payloads.split_at(payload);
            payloads = others;
            let begun = last.map(|ticket| ticket.incarnation);
            last = Some(self.append_received(place.volume, entries, mine, begun)?);
            Ok::<_, Error>(())
        };
        // One at a time: a few bytes of a stream can describe a great many of them. The last one
        // waits for the descriptor.
        let mut held: Vec<Entry> = Vec::new();
        for entry in place.holes(data).chain(place.fragments(&resealed.fragments)) {
            if !held.is_empty() {
                append(std::mem::take(&mut held))?;
            }
            held.push(entry);
        }
        held.push(Entry::Object(done));
        append(held)?;
        last.map_or(Ok(()), |ticket| self.log.wait_applied(ticket))
    }

    /// Steps 3 and 4 for one batch. `begun`: see [`Prepared`].
    fn append_received(
        &self,
        volume: &Object,
        entries: Vec<Entry>,
        payload: &[u8],
        begun: Option<u64>,
    ) -> Result<Ticket> {
        self.vitals.check_failed()?;
        self.checkpoints.heal()?;
        self.checkpoints.bound_changes()?;
        let header = header_bytes(&entries);
        let fragments = entries.iter().flat_map(Entry::payloads).map(|(_, _, fragment)| fragment.first);
        let first = fragments.max_by_key(|first| volume.copies_of(first.group()));
        let _room = match first {
            Some(first) => {
                Some(self.make_room.admit_to_log(volume, first.offset_bytes(), (header + payload.len()) as u64)?)
            }
            None => None,
        };
        let mut buf = self.buffers.get((header + payload.len()).next_multiple_of(format::BATCH_ALIGN));
        buf[header..header + payload.len()].copy_from_slice(payload);
        let prepared = Prepared::new(entries, payload.len(), buf, Vec::new());
        let (before, mut last) = self.writes.before_received(volume, prepared);
        let mut begun = begun;
        for mut part in before {
            part.begun = begun;
            begun = Some(self.append_part(part)?.incarnation);
        }
        last.begun = begun;
        self.append_part(last)
    }

    fn append_part(&self, part: Prepared) -> Result<Ticket> {
        let purpose = if part.payload_bytes() == 0 { Purpose::Metadata } else { Purpose::Data };
        self.vitals.counters.fragment_bytes.add(part.payload_bytes() as u64);
        self.writes.append(part, purpose)
    }

    /// Steps 1 and 2.
    fn reseal(&self, place: &Place<'_>, data: &StreamData, payloads: &[u8]) -> Result<Resealed> {
        let mut resealed = Resealed::default();
        let units_max = self.geometry.unit_blocks_max() as usize;
        let mut rest = payloads;
        for fragment in &data.fragments {
            let Some((payload, others)) = rest.split_at_checked(fragment.stored as usize) else {
                return Err(at_block(ErrorKind::Corrupt, fragment.first, "its payload is cut off"));
            };
            rest = others;
            let codec = CodecId(fragment.codec);
            if !codec.is_known() || codec == CodecId::ZSTD_DICTIONARY {
                let text = format!("codec {} is not known to this version", fragment.codec);
                return Err(at_block(ErrorKind::Unsupported, fragment.first, &text));
            }
            if !Canary::SkipChecksum.is_planted() && stream_checksum(fragment, payload) != fragment.checksum {
                return Err(at_block(ErrorKind::Corrupt, fragment.first, "the fragment does not match its checksum"));
            }
            scratch::with(|scratch| {
                let scratch::Scratch { codecs, unit, .. } = scratch;
                let raw = &mut unit[..usize::from(fragment.count) * BLOCK_BYTES];
                codecs.decompress(codec, payload, raw).map_err(|error| {
                    let text = format!("the stream contains data that cannot be decoded: {error}");
                    at_block(ErrorKind::Corrupt, fragment.first, &text)
                })?;
                if usize::from(fragment.count) > units_max {
                    self.divide_unit(place, fragment, raw, units_max, codecs, &mut resealed);
                    return Ok(());
                }
                resealed.fragments.push(fragment.from_stream(place.volume.id, place.epoch));
                resealed.bytes.extend_from_slice(payload);
                Ok::<_, Error>(())
            })?;
        }
        Ok(resealed)
    }

    fn divide_unit(
        &self,
        place: &Place<'_>,
        fragment: &FragmentEntry,
        raw: &[u8],
        units_max: usize,
        codecs: &mut Workspace,
        resealed: &mut Resealed,
    ) {
        let settings = *place.volume.settings.read();
        for (index, part) in raw.chunks(units_max * BLOCK_BYTES).enumerate() {
            let first = BlockIndex(fragment.first.0 + (index * units_max) as u64);
            with_unit(first, part, CodecId(fragment.codec), codecs, &settings, &mut |piece, payload| {
                resealed.fragments.push(piece.from_stream(place.volume.id, place.epoch));
                resealed.bytes.extend_from_slice(payload);
            });
        }
    }
}

/// A hole in pieces of at most [`RANGE_BLOCKS_MAX`].
fn divide(first: BlockIndex, blocks: u32) -> impl Iterator<Item = (BlockIndex, u32)> {
    (0..blocks.div_ceil(RANGE_BLOCKS_MAX)).map(move |index| {
        let skip = index * RANGE_BLOCKS_MAX;
        (BlockIndex(first.0 + u64::from(skip)), (blocks - skip).min(RANGE_BLOCKS_MAX))
    })
}
