//! The read path. Owns no state; any thread may call it that may wait for the disk.
//!
//! 1. Dirty blocks come from the write buffer.
//! 2. The map has the locations of the others; unknown blocks read as zeroes.
//! 3. Decoded units in the cache are copied; those that were read ahead are dropped once the
//!    request has had their end. The other fragments are read exactly, neighbours in one read;
//!    while the cache has plenty of room, unrequested neighbours too.
//! 4. Each checksum is verified before the bytes are used; then the unit is decoded, straight into
//!    the caller's buffer if all of it was requested. A unit that fails is read from another copy
//!    (`copies`); its extent is suspected, and repaired later (`repair::damages`).

use std::time::Duration;

use codec::{CodecId, Workspace};
use format::{FragmentIdentity, fragment_checksum};
use store::base::canary::Canary;
use store::base::group::GroupKey;
use store::base::scratch::{self, Scratch};
use store::map::Piece;
use store::map::group_pages::image_below;
use store::objects::Object;
use surface::{Error, ErrorKind, Result};
use units::{BLOCK_BYTES, BlockIndex, BlockMask, GROUP_BLOCKS, GroupIndex};

use crate::codecs::regions::RegionKey;
use crate::read::Reads;
use crate::read::dictionaries::Readers;
use crate::read::lacking::MissingGroups;
use crate::read::spans::{neighbours, payload_of};
use crate::read::unit_cache::UnitKey;

/// A read of at most this fraction of a unit is counted as partial, for the choice of unit sizes.
const PIECE_SHARE: u32 = 4;
/// How long a reader of a stream waits for a unit that is being read ahead, before it reads the
/// unit itself.
const AHEAD_PATIENCE: Duration = Duration::from_millis(100);
/// Requests up to this size leave their units in the cache; larger ones are streams, which would
/// only flush it.
const CACHED_REQUEST_MAX: usize = 64 << 10;

/// A request: bytes of an object and their target.
pub(crate) struct Request<'a> {
    offset: u64,
    buf: &'a mut [u8],
    /// Units read ahead that it reads to their end.
    passed: Vec<UnitKey>,
    /// Units that were found in memory.
    hits: u64,
}

impl<'a> Request<'a> {
    pub(crate) fn new(offset: u64, buf: &'a mut [u8]) -> Self {
        Self { offset, buf, passed: Vec::new(), hits: 0 }
    }

    /// Whether its units may stay in the cache.
    pub(crate) fn is_kept(&self) -> bool {
        self.buf.len() <= CACHED_REQUEST_MAX
    }

    fn end(&self) -> u64 {
        self.offset + self.buf.len() as u64
    }

    /// Returns the part of the caller's buffer for bytes `from..from + len` of the object, and its
    /// offset in that range.
    fn target(&mut self, from: u64, len: usize) -> Option<(usize, &mut [u8])> {
        let end = (from + len as u64).min(self.end());
        let start = from.max(self.offset);
        if start >= end {
            return None;
        }
        let target = &mut self.buf[(start - self.offset) as usize..(end - self.offset) as usize];
        Some(((start - from) as usize, target))
    }

    /// Copies `bytes`, the content from byte `from` of the object on, as far as it was requested.
    fn copy(&mut self, from: u64, bytes: &[u8]) {
        if let Some((skip, target)) = self.target(from, bytes.len()) {
            target.copy_from_slice(&bytes[skip..skip + target.len()]);
        }
    }

    fn zero(&mut self, from: u64, len: usize) {
        if let Some((_, target)) = self.target(from, len) {
            target.fill(0);
        }
    }

    /// Returns the groups that it touches, and which blocks of each.
    fn groups(&self) -> impl Iterator<Item = (GroupIndex, BlockMask)> + use<> {
        groups_of(self.offset, self.buf.len() as u64)
    }
}

/// Returns the groups that a range of at least one byte touches, and which blocks of each.
pub(crate) fn groups_of(offset: u64, length: u64) -> impl Iterator<Item = (GroupIndex, BlockMask)> {
    let first = BlockIndex::containing(offset);
    let last = BlockIndex::containing(offset + length - 1);
    (first.group().0..=last.group().0).map(move |group| {
        let start = GroupIndex(group).first_block().0;
        let low = first.0.max(start) - start;
        let high = (last.0 + 1).min(start + GROUP_BLOCKS as u64) - start;
        (GroupIndex(group), BlockMask::run(low as u32, (high - low) as u32))
    })
}

/// A fragment that must be read.
pub(crate) struct Wanted {
    pub group: GroupIndex,
    pub piece: Piece,
}

/// Consumer of a verified payload: the index of its fragment in the span, codec contexts, and room
/// for a unit.
pub(crate) type Use<'a> = &'a mut dyn FnMut(usize, &[u8], &mut Workspace, &mut [u8]) -> Result<()>;

impl Reads {
    /// Fills `buf` from byte `offset` of an object. The range was checked.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the storage fails, [`ErrorKind::Corrupt`] if a checksum does.
    pub(crate) fn read(&self, object: &Object, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_with(object, offset, buf, false)
    }

    /// Like [`read`](Self::read), for a range that may be in the process of being read ahead: then
    /// a unit that is on its way is waited for, instead of being read twice.
    pub(crate) fn read_with(&self, object: &Object, offset: u64, buf: &mut [u8], ahead: bool) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        self.vitals.counters.read_bytes.add(buf.len() as u64);
        // Held until the last location has been used: see `Reads::readers`.
        let _in_extents = self.readers.read();
        self.read_guarded(object, offset, buf, ahead)
    }

    /// Like [`read_with`](Self::read_with), for a caller that holds [`Reads::readers`].
    pub(crate) fn read_guarded(&self, object: &Object, offset: u64, buf: &mut [u8], ahead: bool) -> Result<()> {
        let mut request = Request::new(offset, buf);
        let mut wanted = self.missing(object, &mut request, ahead)?;
        if wanted.is_empty() {
            return Ok(());
        }
        if request.is_kept() && self.units.has_plenty_of_room() {
            self.read_around(object, &mut wanted, |w, unit| {
                self.note_piece(object, w);
                copy_live(w.group, &w.piece, &unit.bytes, &mut request);
            });
        }
        wanted.sort_unstable_by_key(|w| w.piece.fragment.location);
        scratch::with(|scratch| {
            neighbours(&wanted).map(|span| &wanted[span]).try_for_each(|span| {
                self.with_payloads_or_copies(object, span, scratch, &mut |wanted, payload, codecs, unit| {
                    self.deliver(object, wanted, payload, (codecs, unit), &mut request)
                })
            })
        })
    }

    /// Fills in the blocks in memory, and returns the fragments to read. The caller holds
    /// [`Reads::readers`].
    ///
    /// # Errors
    /// Those of the map.
    pub(crate) fn missing(&self, object: &Object, request: &mut Request<'_>, ahead: bool) -> Result<Vec<Wanted>> {
        let mut wanted = Vec::new();
        let mut absent = Vec::new();
        for (group, mask) in request.groups() {
            let mut missing = mask.minus(self.read_dirty(object, group, mask, request));
            if missing.is_empty() {
                continue;
            }
            let levels = object.levels();
            let (mut pieces, unknown) = self.map.lookup_partly(&levels, group, missing).map_err(|error| {
                let (first, _) = missing.first_run().unwrap_or_default();
                let offset = group.first_block().offset_bytes() + u64::from(first) * BLOCK_BYTES as u64;
                self.suspects.note_record(object.title(), offset, &error);
                at(error, object, group, missing)
            })?;
            if let Some(image) = image_below(&levels) {
                let key = GroupKey { object: image.object, group };
                let answered =
                    self.images.answer(key, &mut pieces, unknown, &mut |from, bytes| request.copy(from, bytes));
                missing = missing.minus(answered);
                if !unknown.minus(answered).is_empty() && !Canary::UnfetchedIsZeroes.is_planted() {
                    absent.push(key);
                }
            }
            self.place(group, missing, &pieces, ahead, request, &mut wanted);
        }
        if let Some(first) = absent.first().copied() {
            let error =
                Error::with_source(ErrorKind::Io, "a part of an image has not been fetched", MissingGroups(absent));
            return Err(at(error, object, first.group, BlockMask::FULL));
        }
        self.drop_passed(request);
        object.effort.looked_up(std::mem::take(&mut request.hits), wanted.len() as u64);
        Ok(wanted)
    }

    /// Like [`read`](Self::read), if everything is in memory; never waits for storage.
    pub(crate) fn read_cached(&self, object: &Object, offset: u64, buf: &mut [u8]) -> bool {
        if buf.is_empty() {
            return true;
        }
        let mut request = Request::new(offset, buf);
        let mut wanted = Vec::new();
        for (group, mask) in request.groups() {
            let missing = mask.minus(self.read_dirty(object, group, mask, &mut request));
            if missing.is_empty() {
                continue;
            }
            let Some(pieces) = self.map.lookup_cached(&object.levels(), group, missing) else { return false };
            self.place(group, missing, &pieces, false, &mut request, &mut wanted);
            if !wanted.is_empty() {
                return false;
            }
        }
        self.drop_passed(&mut request);
        object.effort.looked_up(request.hits, 0);
        self.vitals.counters.read_bytes.add(request.buf.len() as u64);
        true
    }

    /// Ends the read-ahead of the units that a request has read to their end, and counts them.
    fn drop_passed(&self, request: &mut Request<'_>) {
        if request.passed.is_empty() {
            return;
        }
        let used: u64 = request.passed.drain(..).map(|key| self.units.passed(key)).sum();
        self.vitals.counters.ahead_used_bytes.add(used);
    }

    /// Step 1.
    fn read_dirty(&self, object: &Object, group: GroupIndex, mask: BlockMask, request: &mut Request<'_>) -> BlockMask {
        let start = group.first_block().offset_bytes();
        self.buffer.read(GroupKey { object: object.id, group }, mask, &mut |run| {
            let from = start + u64::from(run.first) * BLOCK_BYTES as u64;
            match &run.data {
                Some(data) => request.copy(from, data),
                None => request.zero(from, usize::from(run.count) * BLOCK_BYTES),
            }
        })
    }

    /// Steps 2 and 3, as far as memory can answer.
    fn place(
        &self,
        group: GroupIndex,
        missing: BlockMask,
        pieces: &[Piece],
        ahead: bool,
        request: &mut Request<'_>,
        wanted: &mut Vec<Wanted>,
    ) {
        let mut zeroes = missing;
        for piece in pieces {
            zeroes = zeroes.minus(piece.fragment.live);
            let key = UnitKey::new(piece, group);
            let cached = if ahead { self.units.wait_for(&key, AHEAD_PATIENCE) } else { self.units.get(&key) };
            match cached {
                Some(unit) => {
                    request.hits += 1;
                    copy_live(group, piece, &unit.bytes, request);
                    let end = group.first_block().0 + u64::from(piece.fragment.first) + u64::from(piece.fragment.count);
                    if unit.purpose.is_passed(request.end(), end * BLOCK_BYTES as u64) {
                        request.passed.push(key);
                    }
                }
                None => wanted.push(Wanted { group, piece: *piece }),
            }
        }
        let start = group.first_block().offset_bytes();
        for (first, count) in zeroes.runs() {
            request.zero(start + u64::from(first) * BLOCK_BYTES as u64, count as usize * BLOCK_BYTES);
        }
    }

    /// Decodes a verified payload into the request's buffer, and for the cache if it may be kept.
    /// The caller holds [`Reads::readers`].
    pub(crate) fn deliver(
        &self,
        object: &Object,
        wanted: &Wanted,
        payload: &[u8],
        (codecs, unit): (&mut Workspace, &mut [u8]),
        request: &mut Request<'_>,
    ) -> Result<()> {
        let Wanted { group, piece } = wanted;
        let fragment = &piece.fragment;
        let raw_len = usize::from(fragment.count) * BLOCK_BYTES;
        let unit_start = group.first_block().offset_bytes() + u64::from(fragment.first) * BLOCK_BYTES as u64;
        let codec = CodecId(fragment.codec);
        let whole = fragment.live == fragment.unit();
        let key = UnitKey::new(piece, *group);
        let kept = request.is_kept() && self.units.is_wanted(&key);
        match request.target(unit_start, raw_len) {
            Some((0, target)) if whole && target.len() == raw_len => {
                self.decode(Readers::Held, object, codecs, (codec, payload), target, raw_len)?;
                if kept {
                    self.units.insert(key, target);
                }
            }
            _ => {
                self.note_piece(object, wanted);
                // Up to the last block that is wanted, unless the rest will be wanted soon.
                let last = (32 - fragment.live.0.leading_zeros()) as usize - usize::from(fragment.first);
                let needed = if kept { raw_len } else { last * BLOCK_BYTES };
                self.decode(Readers::Held, object, codecs, (codec, payload), &mut unit[..raw_len], needed)?;
                copy_live(*group, piece, &unit[..needed], request);
                if kept {
                    self.units.insert(key, &unit[..raw_len]);
                }
            }
        }
        Ok(())
    }

    /// Notes for the choice of unit sizes that only a small part of a unit is read.
    pub(crate) fn note_piece(&self, object: &Object, wanted: &Wanted) {
        let fragment = &wanted.piece.fragment;
        if fragment.live.count() * PIECE_SHARE <= u32::from(fragment.count) {
            self.chooser.regions.read_piece(RegionKey::of(object.id, wanted.group.first_block()));
        }
    }

    /// Reads the fragments of a span in one go, verifies each, and passes its payload to `each`. If
    /// that fails, each is read alone: the unreadable bytes may be between them, where no reader
    /// needs them.
    pub(crate) fn with_payloads(
        &self,
        object: &Object,
        span: &[Wanted],
        scratch: &mut Scratch,
        each: Use<'_>,
    ) -> Result<()> {
        let Some(first) = span.first() else { return Ok(()) };
        let name = |w: &Wanted, kind, text: String| at(Error::new(kind, text), object, w.group, w.piece.fragment.live);
        let (start, len) = self.place_of(object, span.iter())?;
        let mut large = self.buffers.get_large(len);
        if large.is_none() {
            scratch.grow_io(len);
        }
        self.vitals.counters.read_disk_bytes.add(len as u64);
        if let Err(error) = self.vitals.env.disk.read_at(start, large.as_mut().unwrap_or(&mut scratch.io), len) {
            if span.len() == 1 {
                let text = format!("reading {len} bytes at byte {start} of the data file failed: {error}");
                self.suspects.note(start);
                return Err(self.or_fetched(first, name(first, ErrorKind::Io, text)));
            }
            drop(large);
            for (index, wanted) in span.iter().enumerate() {
                let mut alone =
                    |_, payload: &[u8], codecs: &mut Workspace, unit: &mut [u8]| each(index, payload, codecs, unit);
                self.with_payloads(object, std::slice::from_ref(wanted), scratch, &mut alone)?;
            }
            return Ok(());
        }
        let Scratch { codecs, unit, io, .. } = scratch;
        let io = large.as_ref().unwrap_or(io);
        for (index, wanted) in span.iter().enumerate() {
            let payload = payload_of(wanted, io, start);
            verify(wanted.group, &wanted.piece, payload).map_err(|text| {
                self.suspects.note(wanted.piece.fragment.location);
                self.or_fetched(wanted, name(wanted, ErrorKind::Corrupt, text))
            })?;
            each(index, payload, codecs, unit).map_err(|error| {
                self.suspect_undecoded(wanted, &error);
                name(wanted, error.kind(), error.to_string())
            })?;
        }
        Ok(())
    }

    /// Records suspected damage: a verified payload does not decode.
    pub(crate) fn suspect_undecoded(&self, wanted: &Wanted, error: &Error) {
        if error.kind() == ErrorKind::Corrupt {
            self.suspects.note(wanted.piece.fragment.location);
        }
    }

    /// Returns the error for an unusable fragment: a group of an image can be fetched again.
    fn or_fetched(&self, wanted: &Wanted, error: Error) -> Error {
        if !self.objects.is_image(wanted.piece.object) {
            return error;
        }
        let key = GroupKey { object: wanted.piece.object, group: wanted.group };
        Error::with_source(error.kind(), error.to_string(), MissingGroups(vec![key]))
    }
}

/// Copies the live blocks of a decoded unit.
pub(crate) fn copy_live(group: GroupIndex, piece: &Piece, unit: &[u8], request: &mut Request<'_>) {
    let start = group.first_block().offset_bytes();
    for (first, count) in piece.fragment.live.runs() {
        let skip = (first as usize - usize::from(piece.fragment.first)) * BLOCK_BYTES;
        let bytes = &unit[skip..skip + count as usize * BLOCK_BYTES];
        request.copy(start + u64::from(first) * BLOCK_BYTES as u64, bytes);
    }
}

/// Verifies a payload against its identity.
pub(crate) fn verify(group: GroupIndex, piece: &Piece, payload: &[u8]) -> std::result::Result<(), String> {
    if Canary::SkipChecksum.is_planted() {
        return Ok(());
    }
    let fragment = &piece.fragment;
    let identity = FragmentIdentity {
        object: piece.object,
        epoch: piece.epoch,
        first: BlockIndex(group.first_block().0 + u64::from(fragment.first)),
        count: fragment.count,
        codec: fragment.codec,
    };
    let found = fragment_checksum(&identity, payload);
    if found == fragment.checksum {
        return Ok(());
    }
    Err(format!(
        "fragment of {} bytes at byte {} of the data file has checksum {found:#010x}, expected {:#010x}",
        fragment.stored, fragment.location, fragment.checksum
    ))
}

/// Names the volume and the byte range that an error is about.
pub(crate) fn at(error: Error, object: &Object, group: GroupIndex, blocks: BlockMask) -> Error {
    let start = group.first_block().offset_bytes();
    let first = blocks.first_run().map_or(0, |(first, _)| first);
    let from = start + u64::from(first) * BLOCK_BYTES as u64;
    error.context(format!("volume '{}', byte {from}", object.title()))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use sim::{ContentKind, Machine, Rng, fill_content};
    use surface::{BlockDevice, WriteOptions};

    use super::*;
    use crate::Properties;
    use crate::pool::testing::pool_on;

    #[test]
    fn what_cannot_be_read_between_two_fragments_fails_neither() {
        let machine = Machine::new(16 << 20, 1);
        let pool = pool_on(&machine, machine.disk.handle(), 16 << 20, 0);
        let properties = [("compression", "off"), ("unit", "8K")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        pool.create_volume("v", 1 << 20, &Properties::from(properties)).unwrap();
        let volume = pool.volume("v").unwrap();
        let mut data = vec![0; 6 * BLOCK_BYTES];
        fill_content(&mut Rng::new(1), ContentKind::Random, &mut data);
        volume.write(0, Bytes::from(data.clone()), WriteOptions::default()).unwrap();
        pool.flush().unwrap();
        let middle = BlockMask::run(2, 2);
        let pieces = pool.core.map.lookup_stored(&volume.object.levels(), GroupIndex(0), middle).unwrap();
        assert_eq!((pieces.len(), pieces[0].fragment.live, pieces[0].fragment.count), (1, middle, 2));
        volume.discard(2 * BLOCK_BYTES as u64, 2 * BLOCK_BYTES as u64).unwrap();
        pool.flush().unwrap();
        data[2 * BLOCK_BYTES..4 * BLOCK_BYTES].fill(0);
        let inside = pieces[0].fragment.location.next_multiple_of(BLOCK_BYTES as u64);
        machine.disk.break_reads(inside..inside + BLOCK_BYTES as u64);
        pool.drop_caches();
        let mut buf = vec![1; data.len()];
        volume.read(0, &mut buf).unwrap();
        assert!(buf == data);
        // A requested unreadable range is named alone.
        pool.drop_caches();
        machine.disk.break_reads(inside + 2 * BLOCK_BYTES as u64..inside + 2 * BLOCK_BYTES as u64 + 512);
        let error = volume.read(0, &mut buf).unwrap_err();
        assert!(error.kind() == ErrorKind::Io && error.to_string().contains("byte 16384"), "{error}");
    }
}
