//! Sending: a snapshot, or its difference from another one, as a stream (see `docs/FORMAT.md`).
//!
//! 1. A checkpoint is taken: all data of the snapshot is in the store.
//! 2. The map yields the data to send, group by group (`send_pages`), a chunk at a time.
//! 3. While no checkpoint can free the locations read from the map, fragments are read, neighbours
//!    together, and verified. A whole one goes into the stream as it is stored; its checksum is
//!    converted for the stream without being recomputed. If only a part of a unit is needed, that
//!    part is recompressed with the same codec: its other blocks were overwritten, or belong to
//!    another moment, and must not be sent. So is a fragment that needs a dictionary, which the
//!    receiver does not have.
//! 4. After the last group, the end chunk has the totals.
//!
//! Nothing is written, no lock is held between chunks. If a snapshot is destroyed in the meantime,
//! the stream ends with an error.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use codec::CodecId;
use format::{FragmentEntry, ImagePart, ResumeToken, StreamBegin, StreamData, StreamWriter};
use policy::Settings;
use store::base::group::GroupKey;
use store::base::scratch;
use store::map::Piece;
use store::map::group_pages::is_absent;
use store::objects::{Object, properties};
use surface::{Error, ErrorKind, Result};
use units::{BLOCK_BYTES, BlockIndex, BlockMask, GROUP_BYTES, GroupIndex};

use crate::codecs::compress::with_unit;
use crate::pool::Pool;
use crate::read::dictionaries::Readers;
use crate::read::lacking::MissingGroups;
use crate::read::reader::Wanted;
use crate::read::spans::neighbours;
use crate::replication::parts::Source;
use crate::replication::send_pages::{Compared, Pages, push_holes};
use crate::volume::Volume;
use crate::write::copies::copied;

/// Target payload of a chunk: a unit of work for the receiver, and the amount lost when the stream
/// breaks.
const CHUNK_BYTES: usize = 1 << 20;
/// Lower bound of a requested payload.
const CHUNK_BYTES_MIN: usize = BLOCK_BYTES;
/// Fragments and holes of a chunk, before a group that exceeds it. A group adds at most 32 of each.
const CHUNK_ITEMS: usize = 1024;
/// Attempts that a checkpoint may interrupt; then checkpoints wait.
const TRIES: u32 = 3;
/// Groups of an image that are fetched together.
const ABSENT_MAX: usize = 8;
/// Codec in the stream for data that is stored with a dictionary: the codec that dictionaries are
/// for.
const WITHOUT_DICTIONARY: CodecId = CodecId(67);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Begin,
    Data(GroupIndex),
    Over,
}

/// A stream that is being sent.
pub struct Sender {
    source: Arc<Source>,
    compared: Compared,
    begin: StreamBegin,
    pages: Pages,
    writer: StreamWriter,
    step: Step,
    chunk_bytes: usize,
    /// Groups that were not completely fetched from an image, with their current content.
    fetched: BTreeMap<GroupIndex, Vec<u8>>,
    /// Fragments that were sent as they are stored.
    as_stored: u64,
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").field("begin", &self.begin).field("step", &self.step).finish_non_exhaustive()
    }
}

impl Pool {
    /// Returns a stream with `snapshot` (`VOLUME@SNAPSHOT`) for a receiver that has nothing, or
    /// that has `from`: any other snapshot of the pool, or a bookmark (`#BOOKMARK`), a name without
    /// a volume being that of the same volume.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Invalid`], [`ErrorKind::Conflict`] for a bookmark if
    /// the volume was rolled back to a point before it, and those of a checkpoint.
    pub fn send(&self, snapshot: &str, from: Option<&str>) -> Result<Sender> {
        let objects = &self.core.objects;
        let to = objects.snapshot_named(snapshot)?;
        let volume = snapshot.split('@').next().unwrap_or_default();
        let from = from.map(|name| match name.trim_start_matches('@') {
            bookmark if bookmark.starts_with('#') => objects.bookmark_named(&format!("{volume}{bookmark}")),
            bookmark if bookmark.contains('#') => objects.bookmark_named(bookmark),
            short if !short.contains('@') => objects.snapshot_named(&format!("{volume}@{short}")),
            full => objects.snapshot_named(full),
        });
        self.sender(to, from.transpose()?, GroupIndex(0), None)
    }

    /// Returns the rest of a stream; the receiver's token says how much of it has arrived.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an invalid token, [`ErrorKind::NotFound`] if the pool no longer
    /// has the snapshots.
    pub fn send_resumed(&self, token: &str) -> Result<Sender> {
        let token: ResumeToken = token
            .parse()
            .map_err(|error| Error::with_source(ErrorKind::Invalid, "the resume token is invalid", error))?;
        let found = |identity| {
            self.core.objects.with_identity(identity).ok_or_else(|| {
                let text = format!(
                    "the pool has no snapshot with the identity {identity} of the resume token: it was \
                     destroyed, or the token belongs to another pool"
                );
                Error::new(ErrorKind::NotFound, text)
            })
        };
        let to = found(token.to)?;
        if !to.is_readable() {
            let text = format!("the snapshot of the resume token is gone, only '{}' is left", to.title());
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        let image = if token.is_thin { Some(self.image_for(&to)?) } else { None };
        self.sender(to, token.from.map(found).transpose()?, token.next, image)
    }

    pub(super) fn sender(
        &self,
        to: Arc<Object>,
        from: Option<Arc<Object>>,
        start: GroupIndex,
        image: Option<ImagePart>,
    ) -> Result<Sender> {
        let core = &self.core;
        let identity_of = |object: &Object| object.descriptor.read().identity;
        if from.as_ref().is_some_and(|from| from.id == to.id || identity_of(from) == identity_of(&to)) {
            let text = format!("there is no difference between '{}' and itself to send", to.title());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if let Some(bookmark) = from.as_ref().filter(|from| !from.is_readable()) {
            core.history.check_bookmark(bookmark, &to)?;
            if to.is_share() {
                let text = format!(
                    "'{}' is a snapshot of a share, of which no difference from a bookmark can be sent: keep the \
                     snapshot, and send from that",
                    to.title()
                );
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
        }
        self.core.history.flush_and_checkpoint()?;
        let identity = |object: &Object| {
            object.descriptor.read().identity.ok_or_else(|| {
                Error::new(ErrorKind::Corrupt, format!("the descriptor of '{}' has no identity", object.title()))
            })
        };
        let descriptor = to.descriptor.read().clone();
        let volume = descriptor.parent.and_then(|id| core.objects.get(id));
        let own = volume.as_ref().map(|volume| volume.descriptor.read().properties.clone()).unwrap_or_default();
        let compared = match &image {
            Some(image) => Compared::with_image(to.clone(), image.len),
            None => Compared::new(to.clone(), from.clone()),
        };
        let begin = StreamBegin {
            to: identity(&to)?,
            from: from.as_deref().map(identity).transpose()?,
            created_unix_s: descriptor.created_unix_s,
            size_bytes: descriptor.size_bytes,
            start,
            expected_bytes: expected_bytes(&core.source, &compared)?,
            volume: volume.map_or_else(String::new, |volume| volume.title()),
            snapshot: descriptor.name.clone(),
            parent: from.as_ref().map_or_else(String::new, |from| from.title()),
            properties: properties::with_moment(own, &descriptor.properties),
            image,
        };
        Ok(Sender {
            source: core.source.clone(),
            compared,
            begin,
            pages: Pages::default(),
            writer: StreamWriter::default(),
            step: Step::Begin,
            chunk_bytes: CHUNK_BYTES,
            fetched: BTreeMap::new(),
            as_stored: 0,
        })
    }
}

/// Bytes of payload of all groups: exact except for recompressed data.
fn expected_bytes(source: &Source, compared: &Compared) -> Result<u64> {
    let (mut pages, mut at, mut sum) = (Pages::default(), GroupIndex(0), 0);
    while let Some(change) = pages.first(source, compared, at)? {
        sum += change.pieces.iter().map(|piece| u64::from(piece.fragment.live_bytes())).sum::<u64>();
        at = GroupIndex(change.group.0 + 1);
    }
    Ok(sum)
}

/// Content of a chunk of data.
struct Gathered {
    wanted: Vec<Wanted>,
    /// Blocks that were fetched for it.
    fetched: Vec<(GroupIndex, BlockMask)>,
    holes: Vec<(BlockIndex, u32)>,
    /// The group after the last one.
    next: GroupIndex,
}

/// Fragments as the stream has them.
#[derive(Default)]
struct Packed {
    fragments: Vec<(FragmentEntry, Range<usize>)>,
    bytes: Vec<u8>,
}

impl Packed {
    fn push(&mut self, fragment: FragmentEntry, payload: &[u8]) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(payload);
        self.fragments.push((fragment, begin..self.bytes.len()));
    }
}

impl Sender {
    /// Makes chunks of about so much payload (4 KiB to 1 MiB, which is the default): when a stream
    /// breaks off, the partial chunk is sent again.
    #[must_use]
    pub fn with_chunk_bytes(mut self, bytes: usize) -> Self {
        self.chunk_bytes = bytes.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES);
        self
    }

    /// The first chunk of the stream.
    pub const fn begin(&self) -> &StreamBegin {
        &self.begin
    }

    /// Bytes of the stream so far.
    pub const fn sent_bytes(&self) -> u64 {
        self.writer.offset()
    }

    /// Bytes of payload so far.
    pub const fn payload_bytes(&self) -> u64 {
        self.writer.sums().payload_bytes
    }

    /// Fragments so far, and how many of them were sent as they are stored.
    pub const fn fragments(&self) -> (u64, u64) {
        (self.writer.sums().fragments, self.as_stored)
    }

    /// The next chunk; none after the last one.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for data that cannot be verified, with volume and offset;
    /// [`ErrorKind::NotFound`] if a snapshot has been destroyed; those of the storage. The stream
    /// cannot continue after an error: a new one can, from the receiver's token.
    pub fn next_chunk(&mut self) -> Result<Option<Vec<u8>>> {
        self.next_chunk_unless(&|| false)
    }

    /// Like `next_chunk`, but stops waiting for an image as soon as `is_over` returns `true`.
    ///
    /// # Errors
    /// As [`next_chunk`](Self::next_chunk).
    pub fn next_chunk_unless(&mut self, is_over: &dyn Fn() -> bool) -> Result<Option<Vec<u8>>> {
        match self.step {
            Step::Begin => {
                self.step = Step::Data(self.begin.start);
                Ok(Some(self.writer.begin(&self.begin)))
            }
            Step::Data(at) if at < self.compared.end() => loop {
                match self.data(at) {
                    Err(error) if MissingGroups::in_chain(&error) => self.fetch(error, is_over)?,
                    done => return done.map(Some),
                }
            },
            Step::Data(_) => {
                self.compared.check()?;
                self.step = Step::Over;
                Ok(Some(self.writer.end()))
            }
            Step::Over => Ok(None),
        }
    }

    /// Fetches the groups of an image that a chunk needs. No lock is held.
    fn fetch(&mut self, error: Error, is_over: &dyn Fn() -> bool) -> Result<()> {
        let Some(MissingGroups(keys)) = MissingGroups::of(&error) else { return Err(error) };
        let to = self.compared.to.clone();
        let (source, volume) = (Arc::clone(&self.source), Volume::new(Arc::clone(&self.source.volumes), to.clone()));
        let keys: Vec<GroupKey> = keys.clone();
        let mut is_fetched = false;
        let patience = source.fetches.patience(&to).unless(is_over);
        source.fetches.fetching_for(&to, &patience, &mut || {
            // All at once, and then each in the state of the snapshot.
            if !std::mem::replace(&mut is_fetched, true) {
                return Err(Error::with_source(
                    ErrorKind::Io,
                    "a part of an image has not been fetched",
                    MissingGroups(keys.clone()),
                ));
            }
            for key in &keys {
                let start = key.group.first_block().offset_bytes();
                let len = to.size_bytes().saturating_sub(start).min(GROUP_BYTES as u64) as usize;
                let mut content = vec![0; len];
                volume.read_expected(start, &mut content, false)?;
                content.resize(GROUP_BYTES, 0);
                self.fetched.insert(key.group, content);
            }
            Ok(())
        })
    }

    /// Steps 2 and 3.
    fn data(&mut self, at: GroupIndex) -> Result<Vec<u8>> {
        let source = Arc::clone(&self.source);
        // The gap between two changes may be long. It is crossed here: while the lock is held,
        // checkpoints wait for it.
        let first = self.pages.first(&source, &self.compared, at)?.map_or(self.compared.end(), |change| change.group);
        let mut tries = 0;
        let (gathered, packed) = loop {
            let held = (tries >= TRIES).then(|| source.reads.readers.read());
            tries += 1;
            let (was_held, moment) = (held.is_some(), Pages::moment(&source));
            let gathered = self.gather(at, first, was_held)?;
            let _in_extents = held.unwrap_or_else(|| source.reads.readers.read());
            if was_held || Pages::moment(&source) == moment {
                let packed = self.pack(&gathered)?;
                break (gathered, packed);
            }
            self.pages = Pages::default();
        };
        let Packed { mut fragments, bytes } = packed;
        fragments.sort_unstable_by_key(|(fragment, _)| fragment.first);
        let next = gathered.next;
        let data = StreamData {
            from: at,
            next,
            holes: gathered.holes,
            fragments: fragments.iter().map(|(fragment, _)| *fragment).collect(),
        };
        self.step = Step::Data(next);
        self.fetched.clear();
        let chunk = self.writer.data(&data, fragments.into_iter().map(|(_, payload)| &bytes[payload]));
        source.vitals.counters.streamed_bytes.add(chunk.len() as u64);
        Ok(chunk)
    }

    /// Step 2: gathers the groups from `done_to` on, of which those before `from` have no records in
    /// the map. `briefly`: read no more than is needed for one group, or comes with it.
    fn gather(&mut self, done_to: GroupIndex, from: GroupIndex, briefly: bool) -> Result<Gathered> {
        let mut gathered =
            Gathered { wanted: Vec::new(), fetched: Vec::new(), holes: Vec::new(), next: self.compared.end() };
        let (mut at, mut bytes, mut done_to) = (from, 0, done_to);
        // Unknown groups hold nothing now, and may have held data before.
        let gaps = self.compared.lists_all_holes();
        loop {
            if briefly && at > from && self.pages.is_used_up(at) {
                gathered.next = self.pages.next().unwrap_or_else(|| self.compared.end());
                break;
            }
            let Some(change) = self.pages.first(&self.source, &self.compared, at)? else { break };
            let lacks = change.pieces.iter().any(is_absent) && !self.fetched.contains_key(&change.group);
            if lacks && at == from {
                let absent = self.pages.absent(ABSENT_MAX).collect();
                return Err(Error::with_source(
                    ErrorKind::Io,
                    "a part of an image has not been fetched",
                    MissingGroups(absent),
                ));
            }
            let is_full =
                lacks || bytes >= self.chunk_bytes || gathered.wanted.len() + gathered.holes.len() >= CHUNK_ITEMS;
            if is_full {
                // The groups up to that one are done.
                gathered.next = change.group;
                break;
            }
            let group = change.group;
            if gaps {
                push_holes(&mut gathered.holes, done_to.first_block().0, group.first_block().0);
            }
            let mut holes = change.holes;
            for piece in &change.pieces {
                if let Some(content) = self.fetched.get(&group).filter(|_| is_absent(piece)) {
                    let zeroes = zero_blocks(content).and(piece.fragment.live);
                    holes = holes.or(zeroes);
                    gathered.fetched.push((group, piece.fragment.live.minus(zeroes)));
                    bytes += piece.fragment.live.count() as usize * BLOCK_BYTES;
                    continue;
                }
                // Recompressed data may turn out not to be compressible.
                let raw = piece.fragment.live.count() as usize * BLOCK_BYTES;
                bytes += if is_sent_as_stored(piece) { piece.fragment.stored as usize } else { raw };
                gathered.wanted.push(Wanted { group, piece: *piece });
            }
            for (first, blocks) in holes.runs() {
                let first = group.first_block().0 + u64::from(first);
                push_holes(&mut gathered.holes, first, first + u64::from(blocks));
            }
            at = GroupIndex(group.0 + 1);
            done_to = at;
        }
        if gaps {
            push_holes(&mut gathered.holes, done_to.first_block().0, gathered.next.first_block().0);
        }
        Ok(gathered)
    }

    /// Step 3.
    fn pack(&mut self, gathered: &Gathered) -> Result<Packed> {
        let mut packed = Packed::default();
        let mut in_place: Vec<&Wanted> = gathered.wanted.iter().collect();
        in_place.sort_unstable_by_key(|w| w.piece.fragment.location);
        let wanted: Vec<Wanted> = in_place.into_iter().map(|w| Wanted { group: w.group, piece: w.piece }).collect();
        let settings = *self.compared.to.settings.read();
        let mut as_stored = 0;
        scratch::with(|scratch| {
            for span in neighbours(&wanted).map(|span| &wanted[span]) {
                self.source.reads.with_payloads_or_copies(
                    &self.compared.to,
                    span,
                    scratch,
                    &mut |Wanted { group, piece }, payload, codecs, unit| {
                        if is_sent_as_stored(piece) {
                            as_stored += 1;
                            packed.push(entry_of(*group, piece).to_stream(piece.object, piece.epoch), payload);
                            return Ok(());
                        }
                        let raw = &mut unit[..usize::from(piece.fragment.count) * BLOCK_BYTES];
                        let (codec, raw_len) = (CodecId(piece.fragment.codec), raw.len());
                        self.source.reads.decode(
                            Readers::Held,
                            &self.compared.to,
                            codecs,
                            (codec, payload),
                            raw,
                            raw_len,
                        )?;
                        recut(group.nth_copy(0), piece, raw, codecs, &settings, &mut packed);
                        Ok(())
                    },
                )?;
            }
            for (group, live) in &gathered.fetched {
                let Some(raw) = self.fetched.get(group) else { continue };
                let codec = settings.plain_codec().id();
                for (first, blocks) in live.runs() {
                    let part = &raw[first as usize * BLOCK_BYTES..(first + blocks) as usize * BLOCK_BYTES];
                    let first = BlockIndex(group.first_block().0 + u64::from(first));
                    let push = &mut |fragment, payload: &[u8]| packed.push(fragment, payload);
                    with_unit(first, part, codec, &mut scratch.codecs, &settings, push);
                }
            }
            Ok::<_, Error>(())
        })?;
        self.as_stored += as_stored;
        Ok(packed)
    }
}

/// The blocks of a group that are zeroes.
fn zero_blocks(content: &[u8]) -> BlockMask {
    let blocks = content.as_chunks::<BLOCK_BYTES>().0.iter().zip(0..);
    let zero = blocks.filter(|(block, _)| policy::is_zero(&block[..]));
    zero.fold(BlockMask::EMPTY, |mask, (_, at)| mask.or(BlockMask::run(at, 1)))
}

fn is_sent_as_stored(piece: &Piece) -> bool {
    piece.fragment.live == piece.fragment.unit() && CodecId(piece.fragment.codec) != CodecId::ZSTD_DICTIONARY
}

fn entry_of(group: GroupIndex, piece: &Piece) -> FragmentEntry {
    let fragment = &piece.fragment;
    let stored = FragmentEntry {
        first: BlockIndex(group.first_block().0 + u64::from(fragment.first)),
        count: fragment.count,
        codec: fragment.codec,
        stored: fragment.stored,
        checksum: fragment.checksum,
    };
    // Of a copy, the stream has the original.
    if group.copy() == 0 { stored } else { copied(&stored, piece.object, piece.epoch, 0) }
}

/// Makes units of the requested blocks of a decoded unit, with the same codec.
fn recut(
    group: GroupIndex,
    piece: &Piece,
    raw: &[u8],
    codecs: &mut codec::Workspace,
    settings: &Settings,
    packed: &mut Packed,
) {
    let id = match CodecId(piece.fragment.codec) {
        CodecId::ZSTD_DICTIONARY => WITHOUT_DICTIONARY,
        id => id,
    };
    for (first, blocks) in piece.fragment.live.runs() {
        let skip = (first as usize - usize::from(piece.fragment.first)) * BLOCK_BYTES;
        let part = &raw[skip..skip + blocks as usize * BLOCK_BYTES];
        let first = BlockIndex(group.first_block().0 + u64::from(first));
        with_unit(first, part, id, codecs, settings, &mut |fragment, payload| packed.push(fragment, payload));
    }
}

#[cfg(test)]
#[path = "send_tests.rs"]
mod tests;
