//! Streams: the transfer format of a snapshot, or of the difference between two, from one pool to
//! another. A sequence of chunks, each with a checksum and its position in the stream: one *begin*,
//! any number of *data*, one *end*.
//!
//! [`StreamWriter`] makes chunks; [`StreamReader`] takes them one by one and makes sure of
//! everything that can be known without a pool: that each is intact, in its place, possible in
//! itself, and goes on where the one before it ended; and at the end that none is missing.

use std::collections::BTreeMap;

use units::{BLOCK_BYTES, BlockIndex, Epoch, GROUP_BYTES, GroupIndex, OBJECT_BYTES_MAX, ObjectId, SHARE_BYTES};

use crate::batch::{
    FRAGMENT_ENTRY_BYTES, HOLE_BYTES, WIDE_MORE_BYTES, put_first, put_fragment, read_first, read_fragment,
};
use crate::cursor::{Cursor, put_text, put_uint};
use crate::descriptor::{put_properties, read_properties};
use crate::receive::{put_optional_identity, read_identity, read_optional_identity};
use crate::{FormatError, FragmentEntry, FragmentIdentity, ImagePart, SnapshotIdentity, fragment_checksum, reseal};

/// First four bytes of every chunk.
pub const STREAM_MAGIC: u32 = u32::from_le_bytes(*b"SHSC");
/// Version of streams.
pub const STREAM_VERSION: u16 = 1;
/// Bytes before a chunk's body.
pub const STREAM_HEAD_BYTES: usize = 24;
/// Most bytes of a body: bounds a reader's buffer.
pub const STREAM_BODY_BYTES_MAX: usize = 2 << 20;

const KIND_BEGIN: u8 = 1;
const KIND_DATA: u8 = 2;
const KIND_END: u8 = 3;
/// See `stream_set`.
pub(crate) const KIND_SET_BEGIN: u8 = 4;
pub(crate) const KIND_SET_END: u8 = 5;
/// Bytes of a head that its checksum covers.
const HEAD_SUMMED_BYTES: usize = 20;
/// First group past the end of any object of that size.
const fn groups_max(size_bytes: u64) -> u64 {
    if size_bytes == SHARE_BYTES { SHARE_BYTES / GROUP_BYTES as u64 } else { OBJECT_BYTES_MAX / GROUP_BYTES as u64 }
}

/// A fragment's identity in a stream: that of object 0, epoch 0, so that it depends on no pool.
const fn identity(fragment: &FragmentEntry) -> FragmentIdentity {
    let FragmentEntry { first, count, codec, .. } = *fragment;
    FragmentIdentity { object: ObjectId(0), epoch: Epoch(0), first, count, codec }
}

/// The checksum that a payload has in a stream.
pub fn stream_checksum(fragment: &FragmentEntry, payload: &[u8]) -> u32 {
    fragment_checksum(&identity(fragment), payload)
}

impl FragmentEntry {
    /// The entry for a stream of this object and epoch, with its checksum adapted.
    #[must_use]
    pub fn to_stream(&self, object: ObjectId, epoch: Epoch) -> Self {
        let own = FragmentIdentity { object, epoch, ..identity(self) };
        Self { checksum: reseal(self.checksum, &own, &identity(self), self.stored), ..*self }
    }

    /// A fragment of a stream as a fragment of an object and epoch.
    #[must_use]
    pub fn from_stream(&self, object: ObjectId, epoch: Epoch) -> Self {
        let own = FragmentIdentity { object, epoch, ..identity(self) };
        Self { checksum: reseal(self.checksum, &identity(self), &own, self.stored), ..*self }
    }
}

/// Content and base of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamBegin {
    /// The snapshot that the receiver will have.
    pub to: SnapshotIdentity,
    /// The snapshot that the receiver must have; none for a full stream.
    pub from: Option<SnapshotIdentity>,
    /// When the snapshot was taken, seconds since 1970.
    pub created_unix_s: u64,
    /// Size of the volume then.
    pub size_bytes: u64,
    /// The first group in the stream; the receiver has those before it.
    pub start: GroupIndex,
    /// Bytes of payload that the sender expects to send, groups before `start` included; an
    /// estimate.
    pub expected_bytes: u64,
    /// The volume's name on the sending side, for messages.
    pub volume: String,
    /// The snapshot's name.
    pub snapshot: String,
    /// Full name of the required snapshot on the sending side; may be empty without one.
    pub parent: String,
    /// Properties set on the volume itself.
    pub properties: BTreeMap<String, String>,
    /// The image that the volume falls through to, if the stream only has differences from it;
    /// excludes a required snapshot.
    pub image: Option<ImagePart>,
}

/// Changes to the groups `from..next`; all other blocks are unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamData {
    /// First group.
    pub from: GroupIndex,
    /// The group after the last one.
    pub next: GroupIndex,
    /// Ranges that read as zeroes: first block and number of blocks (at most
    /// [`HOLE_BLOCKS_MAX`](crate::HOLE_BLOCKS_MAX)), rising.
    pub holes: Vec<(BlockIndex, u32)>,
    /// Fragments, rising, disjoint from each other and from the holes. Their checksums are those of
    /// [`stream_checksum`].
    pub fragments: Vec<FragmentEntry>,
}

/// Totals to check at the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamEnd {
    /// Fragments of the stream.
    pub fragments: u64,
    /// Their bytes.
    pub payload_bytes: u64,
    /// Blocks of holes.
    pub hole_blocks: u64,
}

/// A chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamChunk {
    /// The first one.
    Begin(Box<StreamBegin>),
    /// Data; the payloads are in the body from `payloads` on, in the order of the fragments.
    Data {
        /// The changes.
        data: StreamData,
        /// Where the first payload begins in the body.
        payloads: usize,
    },
    /// The last chunk: the stream is complete.
    End(StreamEnd),
}

/// The fixed part before a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamHead {
    kind: u8,
    body_bytes: u32,
    offset: u64,
    crc: u32,
    bytes: [u8; STREAM_HEAD_BYTES],
}

impl StreamHead {
    /// Decodes a head: magic 4, kind 1, zeroes 3, bytes of the body 4, bytes of the stream before
    /// the chunk 8, crc32c of these 20 bytes and the body 4.
    ///
    /// # Errors
    /// When it is not a head, or the body would be too long. The checksum is verified with the
    /// body.
    pub fn decode(bytes: &[u8; STREAM_HEAD_BYTES]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new("stream", bytes);
        if cursor.u32()? != STREAM_MAGIC {
            return Err(cursor.fail("not the start of a chunk of a stream"));
        }
        let kind = cursor.u8()?;
        let zeroes = cursor.uint(3)?;
        let body_bytes = cursor.u32()?;
        if !(KIND_BEGIN..=KIND_SET_END).contains(&kind) || zeroes != 0 {
            return Err(cursor.fail(format!("a chunk of unknown kind {kind}")));
        }
        if body_bytes as usize > STREAM_BODY_BYTES_MAX {
            return Err(
                cursor.fail(format!("a chunk of {body_bytes} bytes, at most {STREAM_BODY_BYTES_MAX} are allowed"))
            );
        }
        Ok(Self { kind, body_bytes, offset: cursor.u64()?, crc: cursor.u32()?, bytes: *bytes })
    }

    /// The version of a stream that begins with this chunk, if this program does not support it.
    pub fn other_version(&self, body: &[u8]) -> Option<u16> {
        let version = u16::from_le_bytes(*body.first_chunk()?);
        (self.kind == KIND_BEGIN && version != STREAM_VERSION).then_some(version)
    }

    /// Whether it is the head of a first chunk.
    pub const fn is_begin(&self) -> bool {
        self.kind == KIND_BEGIN
    }

    /// Whether it is the head of the chunk that begins a set of streams.
    pub const fn is_set_begin(&self) -> bool {
        self.kind == KIND_SET_BEGIN
    }

    /// Whether it is the head of the chunk that ends a set of streams.
    pub const fn is_set_end(&self) -> bool {
        self.kind == KIND_SET_END
    }

    /// Fails if the body does not match, or if the chunk does not follow `before` bytes.
    pub(crate) fn check(&self, cursor: &Cursor<'_>, body: &[u8], before: u64) -> Result<(), FormatError> {
        let crc = crate::crc::crc32c_append(crate::crc::crc32c(&self.bytes[..HEAD_SUMMED_BYTES]), body);
        if crc != self.crc || body.len() != self.body_bytes() {
            return Err(cursor.fail(format!("checksum {crc:#010x}, expected {:#010x}: it is damaged", self.crc)));
        }
        if self.offset != before {
            return Err(cursor.fail(format!("it belongs at byte {}: data is missing or repeated", self.offset)));
        }
        Ok(())
    }

    /// Whether it is the head of a last chunk.
    pub const fn is_end(&self) -> bool {
        self.kind == KIND_END
    }

    /// Bytes that follow it.
    pub const fn body_bytes(&self) -> usize {
        self.body_bytes as usize
    }
}

/// State that writer and reader of a stream share.
#[derive(Debug, Default)]
struct Course {
    /// Bytes so far, and their crc32c.
    offset: u64,
    crc: u32,
    /// The first group not covered yet; none before the beginning.
    next: Option<GroupIndex>,
    /// Whether it is the stream of a share.
    is_wide: bool,
    is_over: bool,
    sums: StreamEnd,
}

impl Course {
    fn pass(&mut self, head: &[u8], body: &[u8]) {
        self.crc = crate::crc::crc32c_append(crate::crc::crc32c_append(self.crc, head), body);
        self.offset += (head.len() + body.len()) as u64;
    }

    fn count(&mut self, data: &StreamData) {
        self.next = Some(data.next);
        self.sums.fragments += data.fragments.len() as u64;
        self.sums.payload_bytes += data.fragments.iter().map(|f| u64::from(f.stored)).sum::<u64>();
        self.sums.hole_blocks += data.holes.iter().map(|(_, blocks)| u64::from(*blocks)).sum::<u64>();
    }
}

/// Creates the head of a chunk with that body, after `before` bytes.
fn make_head(kind: u8, body: &[u8], before: u64) -> Vec<u8> {
    let mut head = Vec::with_capacity(STREAM_HEAD_BYTES);
    put_uint(&mut head, STREAM_MAGIC.into(), 4);
    head.extend_from_slice(&[kind, 0, 0, 0]);
    put_uint(&mut head, body.len() as u64, 4);
    put_uint(&mut head, before, 8);
    let crc = crate::crc::crc32c_append(crate::crc::crc32c(&head), body);
    put_uint(&mut head, crc.into(), 4);
    head
}

/// Creates a chunk of that kind, after `before` bytes.
pub(crate) fn make_chunk(kind: u8, body: &[u8], before: u64) -> Vec<u8> {
    let mut chunk = make_head(kind, body, before);
    chunk.extend_from_slice(body);
    chunk
}

/// Makes the chunks of one stream.
#[derive(Debug, Default)]
pub struct StreamWriter {
    course: Course,
}

impl StreamWriter {
    /// Bytes so far.
    pub const fn offset(&self) -> u64 {
        self.course.offset
    }

    /// Totals of the data sent so far.
    pub const fn sums(&self) -> StreamEnd {
        self.course.sums
    }

    fn chunk(&mut self, kind: u8, mut body: Vec<u8>) -> Vec<u8> {
        debug_assert!(body.len() <= STREAM_HEAD_BYTES + STREAM_BODY_BYTES_MAX);
        // The body is preceded by space for the head.
        let head = make_head(kind, &body[STREAM_HEAD_BYTES..], self.course.offset);
        body[..STREAM_HEAD_BYTES].copy_from_slice(&head);
        self.course.pass(&head, &body[STREAM_HEAD_BYTES..]);
        body
    }

    /// The first chunk. Body: version 2, to 16, whether there is a parent 1, from 16, created 8,
    /// size 8, start 8, expected bytes 8, volume, snapshot and parent (2 + bytes each), properties,
    /// whether there is an image 1, and if so the image, as in a descriptor.
    pub fn begin(&mut self, begin: &StreamBegin) -> Vec<u8> {
        let mut body = vec![0; STREAM_HEAD_BYTES];
        self.course.is_wide = begin.size_bytes == SHARE_BYTES;
        put_uint(&mut body, STREAM_VERSION.into(), 2);
        body.extend_from_slice(&begin.to.0);
        put_optional_identity(&mut body, begin.from.as_ref());
        put_uint(&mut body, begin.created_unix_s, 8);
        put_uint(&mut body, begin.size_bytes, 8);
        put_uint(&mut body, begin.start.0, 8);
        put_uint(&mut body, begin.expected_bytes, 8);
        put_text(&mut body, &begin.volume);
        put_text(&mut body, &begin.snapshot);
        put_text(&mut body, &begin.parent);
        put_properties(&mut body, &begin.properties);
        body.push(begin.image.is_some().into());
        if let Some(image) = &begin.image {
            image.put(&mut body);
        }
        self.course.next = Some(begin.start);
        self.chunk(KIND_BEGIN, body)
    }

    /// A data chunk, with the payloads of its fragments in order. Body: from 8, next 8, number of
    /// holes 2, of fragments 2, per hole its first block 5 and blocks 3, per fragment 14 bytes as
    /// in a batch, payloads.
    pub fn data<'a>(&mut self, data: &StreamData, payloads: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
        let mut body = vec![0; STREAM_HEAD_BYTES];
        put_uint(&mut body, data.from.0, 8);
        put_uint(&mut body, data.next.0, 8);
        put_uint(&mut body, data.holes.len() as u64, 2);
        put_uint(&mut body, data.fragments.len() as u64, 2);
        for (first, blocks) in &data.holes {
            put_first(&mut body, *first, self.course.is_wide);
            put_uint(&mut body, u64::from(*blocks), 3);
        }
        for fragment in &data.fragments {
            put_fragment(&mut body, fragment, self.course.is_wide);
        }
        payloads.for_each(|payload| body.extend_from_slice(payload));
        self.course.count(data);
        self.chunk(KIND_DATA, body)
    }

    /// The last chunk. Body: fragments 8, bytes of payload 8, blocks of holes 8, crc32c of all
    /// bytes of the stream before this chunk 4.
    pub fn end(&mut self) -> Vec<u8> {
        let mut body = vec![0; STREAM_HEAD_BYTES];
        let StreamEnd { fragments, payload_bytes, hole_blocks } = self.course.sums;
        put_uint(&mut body, fragments, 8);
        put_uint(&mut body, payload_bytes, 8);
        put_uint(&mut body, hole_blocks, 8);
        put_uint(&mut body, self.course.crc.into(), 4);
        self.chunk(KIND_END, body)
    }
}

/// Takes the chunks of one stream in their order.
#[derive(Debug, Default)]
pub struct StreamReader {
    course: Course,
    /// Blocks of the volume. Only holes may lie past them: the parent, or the image, may have been
    /// larger.
    blocks: u64,
}

impl StreamReader {
    /// Bytes of the chunks that were taken.
    pub const fn offset(&self) -> u64 {
        self.course.offset
    }

    /// Whether the last chunk was taken.
    pub const fn is_over(&self) -> bool {
        self.course.is_over
    }

    /// Accepts the next chunk.
    ///
    /// # Errors
    /// When it is damaged, out of sequence, impossible, or, as the last one, does not match the
    /// totals. The reader is unusable after an error.
    pub fn take(&mut self, head: &StreamHead, body: &[u8]) -> Result<StreamChunk, FormatError> {
        let at = self.course.offset;
        let result = self.judge(head, body);
        if result.is_err() {
            self.course.is_over = true;
        }
        result.map_err(|error| FormatError::new("stream", format!("chunk at byte {at}: {}", error.detail)))
    }

    fn judge(&mut self, head: &StreamHead, body: &[u8]) -> Result<StreamChunk, FormatError> {
        let mut cursor = Cursor::new("stream", body);
        head.check(&cursor, body, self.course.offset)?;
        if self.course.is_over {
            return Err(cursor.fail("the stream has ended already"));
        }
        let chunk = match (head.kind, self.course.next) {
            (KIND_BEGIN, None) => {
                let begin = read_begin(&mut cursor)?;
                self.course.next = Some(begin.start);
                self.course.is_wide = begin.size_bytes == SHARE_BYTES;
                self.blocks = begin.size_bytes.div_ceil(BLOCK_BYTES as u64);
                StreamChunk::Begin(Box::new(begin))
            }
            (KIND_DATA, Some(next)) => {
                let data = read_data(&mut cursor, self.course.is_wide)?;
                self.check_data(&cursor, &data, next)?;
                self.course.count(&data);
                StreamChunk::Data { payloads: body.len() - cursor.remaining(), data }
            }
            (KIND_END, Some(next)) => {
                if next.first_block().0 < self.blocks {
                    return Err(cursor.fail(format!("the stream ends at group {}, before the volume does", next.0)));
                }
                let end =
                    StreamEnd { fragments: cursor.u64()?, payload_bytes: cursor.u64()?, hole_blocks: cursor.u64()? };
                let crc = cursor.u32()?;
                cursor.end()?;
                if end != self.course.sums || crc != self.course.crc {
                    return Err(cursor.fail(format!("it lists {end:?}, but {:?} were received", self.course.sums)));
                }
                self.course.is_over = true;
                StreamChunk::End(end)
            }
            (kind, _) => return Err(cursor.fail(format!("unexpected chunk of kind {kind}"))),
        };
        self.course.pass(&head.bytes, body);
        Ok(chunk)
    }

    fn groups_max(&self) -> u64 {
        groups_max(if self.course.is_wide { SHARE_BYTES } else { OBJECT_BYTES_MAX })
    }

    fn check_data(&self, cursor: &Cursor<'_>, data: &StreamData, expected: GroupIndex) -> Result<(), FormatError> {
        if data.from != expected || data.next <= data.from || data.next.0 > self.groups_max() {
            let text = format!("groups {} to {}, expected {} next", data.from.0, data.next.0, expected.0);
            return Err(cursor.fail(text));
        }
        let (low, high) = (data.from.first_block().0, data.next.first_block().0);
        let mut holes = data.holes.iter().map(|(first, blocks)| (first.0, first.0 + u64::from(*blocks))).peekable();
        let mut end = low;
        let mut pass = |from: u64, to: u64| {
            let fits = from >= end && to > from && to <= high;
            end = to;
            if fits {
                Ok(())
            } else {
                Err(cursor.fail(format!("blocks {from} to {to} are out of order or out of range")))
            }
        };
        for fragment in &data.fragments {
            let (from, to) = (fragment.first.0, fragment.first.0 + u64::from(fragment.count));
            while let Some((first, last)) = holes.next_if(|(first, _)| *first < from) {
                pass(first, last)?;
            }
            pass(from, to)?;
            if to > self.blocks {
                return Err(cursor.fail(format!("block {to} lies past the end of the volume")));
            }
        }
        holes.try_for_each(|(first, last)| pass(first, last))?;
        let payload: usize = data.fragments.iter().map(|f| f.stored as usize).sum();
        if payload != cursor.remaining() {
            return Err(cursor.fail(format!("{} bytes of payload, {payload} expected", cursor.remaining())));
        }
        Ok(())
    }
}

fn read_begin(cursor: &mut Cursor<'_>) -> Result<StreamBegin, FormatError> {
    let version = cursor.u16()?;
    if version != STREAM_VERSION {
        return Err(cursor.fail(format!("version {version}, this program supports {STREAM_VERSION}")));
    }
    let begin = StreamBegin {
        to: read_identity(cursor)?,
        from: read_optional_identity(cursor)?,
        created_unix_s: cursor.u64()?,
        size_bytes: cursor.u64()?,
        start: GroupIndex(cursor.u64()?),
        expected_bytes: cursor.u64()?,
        volume: cursor.text()?,
        snapshot: cursor.text()?,
        parent: cursor.text()?,
        properties: read_properties(cursor)?,
        image: match cursor.u8()? {
            0 => None,
            1 => Some(ImagePart::read(cursor)?),
            other => return Err(cursor.fail(format!("{other} images"))),
        },
    };
    cursor.end()?;
    let is_share = begin.size_bytes == SHARE_BYTES && begin.image.is_none();
    if begin.size_bytes == 0 || !(is_share || begin.size_bytes <= OBJECT_BYTES_MAX) {
        return Err(cursor.fail(format!("a volume of {} bytes", begin.size_bytes)));
    }
    if let Some(image) = &begin.image {
        // It is shown to users and sent to a store.
        if image.location.chars().any(char::is_control) {
            return Err(cursor.fail("the location of its image has control characters"));
        }
        if begin.from.is_some() || image.len == 0 || image.len > OBJECT_BYTES_MAX {
            let parent = if begin.from.is_some() { ", with a required snapshot" } else { "" };
            return Err(cursor.fail(format!("relative to an image of {} bytes{parent}", image.len)));
        }
    }
    if begin.start.0 > groups_max(begin.size_bytes) {
        return Err(cursor.fail(format!("it begins at group {}", begin.start.0)));
    }
    Ok(begin)
}

fn read_data(cursor: &mut Cursor<'_>, wide: bool) -> Result<StreamData, FormatError> {
    let (from, next) = (GroupIndex(cursor.u64()?), GroupIndex(cursor.u64()?));
    let (holes, fragments) = (usize::from(cursor.u16()?), usize::from(cursor.u16()?));
    let more = if wide { WIDE_MORE_BYTES } else { 0 };
    if holes * (HOLE_BYTES + more) + fragments * (FRAGMENT_ENTRY_BYTES + more) > cursor.remaining() {
        return Err(cursor.fail(format!("{holes} holes and {fragments} fragments in {} bytes", cursor.remaining())));
    }
    let mut data =
        StreamData { from, next, holes: Vec::with_capacity(holes), fragments: Vec::with_capacity(fragments) };
    for _ in 0..holes {
        data.holes.push((read_first(cursor, wide)?, cursor.uint(3)? as u32));
    }
    for _ in 0..fragments {
        data.fragments.push(read_fragment(cursor, wide)?);
    }
    Ok(data)
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
