//! Records: the entries of a blob's log, each a complete description of the blob as of its number.
//! Owns their encoding, which docs/internals/BLOBS.md defines, and the rule by which a record
//! decides which versions are live. Plain values; no I/O.

use std::collections::BTreeSet;

use codec::{Codec, DecodeError, Workspace};
use format::{Cursor, FormatError, crc32c, put_text, put_uint};

use crate::data::extent::PackRef;
use crate::data::layout::Layout;
use crate::names::{Inc, Nonce, OpId};
use crate::sealed::{put_wide, wide};

/// Bytes of a record's fields before compression: one unit of the codec. A layout of eight times
/// the soft limit and every list at its own limit fit.
pub const RECORD_BYTES_MAX: usize = codec::UNIT_BYTES_MAX;
/// Operations in a record: as many as a process that appends from a thousand threads has waiting.
pub const OPS_MAX: usize = 1024;
/// Tags of a blob, all of which every record carries.
pub const TAGS_MAX: usize = 256;
/// Ranges of expired versions, all of which every record carries. Neighbours are joined, so only
/// versions that expire one by one make many ranges.
pub const EXPIRED_MAX: usize = 1024;
/// Blobs whose packs a clone uses: each level of cloning adds those of its source.
pub const ORIGINS_MAX: usize = 64;
/// Bytes of a message, a tag's name, or a holder.
pub const TEXT_BYTES_MAX: usize = 1024;

const MAGIC: &[u8; 8] = b"SHLBREC1";
const HEADER_BYTES: usize = 8 + 2 + 1 + 1 + 4;
const FORMAT: u64 = 1;
const STRUCTURE: &str = "record of a blob";

/// The effect of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OpKind {
    /// Bytes added at the end.
    Append = 1,
    /// Bytes written over a range.
    Write = 2,
    /// All content replaced.
    Put = 3,
    /// Size changed: truncated, or a hole added at the end.
    Resize = 4,
    /// Same content, stored elsewhere.
    Rewrite = 5,
    /// Content of an older version, or of another blob.
    Restore = 6,
    /// Tag added.
    Tag = 7,
    /// Tag removed.
    Untag = 8,
    /// Versions expired.
    Expire = 9,
    /// Old sessions fenced.
    Fence = 10,
    /// Blob closed before its removal.
    Close = 11,
}

impl OpKind {
    const ALL: [Self; 11] = [
        Self::Append,
        Self::Write,
        Self::Put,
        Self::Resize,
        Self::Rewrite,
        Self::Restore,
        Self::Tag,
        Self::Untag,
        Self::Expire,
        Self::Fence,
        Self::Close,
    ];

    /// Returns whether it makes a version, which may have other content than the record before.
    pub const fn makes_version(self) -> bool {
        matches!(self, Self::Append | Self::Write | Self::Put | Self::Resize | Self::Restore)
    }
}

/// An operation that a record carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Its name.
    pub op: OpId,
    /// Its kind.
    pub kind: OpKind,
    /// Offset at which it wrote, or the version that it is about.
    pub at: u64,
    /// Bytes that it wrote.
    pub len: u64,
}

/// A blob whose packs this one names: the source of a clone, direct or indirect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Its URL, or its key if it is in the same store.
    pub location: String,
    /// Its incarnation.
    pub inc: Inc,
    /// The version that is pinned there for this blob.
    pub version: u64,
    /// The numbers of its own origins in this record: entry `i` is for its origin `i + 1`.
    pub numbers: Vec<u16>,
}

/// The entry of a blob's log at one number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The incarnation.
    pub inc: Inc,
    /// Its number, from 1; 0 only for the state of a blob that has no record yet.
    pub seq: u64,
    /// The nonce of the previous record; 0 in the first.
    pub previous: Nonce,
    /// The name of this body.
    pub nonce: Nonce,
    /// Sessions born before the record of this number are fenced. Never decreases.
    pub fence: u64,
    /// Whether the blob is closed and will be removed: its last operation expires the versions that
    /// are not pinned.
    pub closed: bool,
    /// Whether the description has been dropped and only the operations remain.
    pub tombstone: bool,
    /// Time in seconds by its writer's clock, but not before the time of the previous record.
    /// Advice only.
    pub unix_s: u64,
    /// Bytes of data.
    pub size: u64,
    /// Bytes of data added by the operations of this record.
    pub raw: u64,
    /// Bytes that the data takes in packs.
    pub stored: u64,
    /// Number of the newest record that made a version, possibly this one; 0 if none did.
    pub version: u64,
    /// Number of records that made a version, possibly including this one.
    pub versions: u64,
    /// Message of its writer.
    pub message: String,
    /// The operations in this record.
    pub ops: Vec<Done>,
    /// Expired versions: ranges from first to last, sorted, with a gap between each two.
    pub expired: Vec<(u64, u64)>,
    /// Tags, sorted by name, and the versions that they name.
    pub tags: Vec<(String, u64)>,
    /// The blobs that own packs in the layout: the origin n of a pack is entry n - 1. Entries are
    /// only ever added.
    pub origins: Vec<Origin>,
    /// Where the bytes are.
    pub layout: Layout,
}

impl Record {
    /// Returns the state before the first record.
    pub fn genesis(inc: Inc) -> Self {
        Self {
            inc,
            seq: 0,
            previous: Nonce(0),
            nonce: Nonce(0),
            fence: 0,
            closed: false,
            tombstone: false,
            unix_s: 0,
            size: 0,
            raw: 0,
            stored: 0,
            version: 0,
            versions: 0,
            message: String::new(),
            ops: Vec::new(),
            expired: Vec::new(),
            tags: Vec::new(),
            origins: Vec::new(),
            layout: Layout::default(),
        }
    }

    /// Returns the remainder of a record after its version is gone: enough to decide whether an
    /// operation was applied.
    #[must_use]
    pub fn into_tombstone(self) -> Self {
        let genesis = Self::genesis(self.inc);
        Self {
            seq: self.seq,
            previous: self.previous,
            nonce: self.nonce,
            ops: self.ops,
            unix_s: self.unix_s,
            version: self.version,
            versions: self.versions,
            tombstone: true,
            ..genesis
        }
    }

    /// Returns whether one of its operations makes a version.
    pub fn is_version(&self) -> bool {
        self.ops.iter().any(|done| done.kind.makes_version())
    }

    /// Returns the number by which users know its content, as of record `head`: the number of the
    /// version that it made, or that it left unchanged as a tag does. Its own number if that
    /// version has expired.
    pub fn number(&self, head: &Self) -> u64 {
        if head.is_live(self.version) { self.version } else { self.seq }
    }

    /// Returns whether its content is a version as of record `head`: it made one, or it is the
    /// newest record and the version before it has expired.
    pub fn is_version_as_of(&self, head: &Self) -> bool {
        self.is_version() || self.seq == head.seq && self.number(head) == self.seq
    }

    /// Returns the operation of this name, if the record carries it.
    pub fn find(&self, op: OpId) -> Option<&Done> {
        self.ops.iter().find(|done| done.op == op)
    }

    /// Returns whether version `seq` is live as of this record: the newest, or not expired, or
    /// tagged. In a closed blob the versions that have not expired are live; tags and the newest
    /// record retain nothing there. Pins are not part of the log.
    pub fn is_live(&self, seq: u64) -> bool {
        if self.closed {
            return seq < self.seq && !self.is_expired(seq);
        }
        seq == self.seq || (seq < self.seq && (!self.is_expired(seq) || self.is_tagged(seq)))
    }

    fn is_tagged(&self, seq: u64) -> bool {
        self.tags.iter().any(|(_, version)| *version == seq)
    }

    /// Returns the versions that have expired but are retained by a tag, oldest first.
    pub fn expired_but_tagged(&self) -> Vec<u64> {
        let named = self.tags.iter().map(|(_, version)| *version);
        let kept = named.filter(|version| *version < self.seq && self.is_expired(*version));
        kept.collect::<BTreeSet<u64>>().into_iter().collect()
    }

    fn is_expired(&self, seq: u64) -> bool {
        let after = self.expired.partition_point(|(first, _)| *first <= seq);
        after.checked_sub(1).is_some_and(|range| self.expired[range].1 >= seq)
    }

    /// Returns the versions that are live as of this record, oldest first. This includes the
    /// numbers of records that changed no content.
    pub fn live(&self) -> Vec<u64> {
        let mut live = Vec::new();
        let mut next = 1;
        for (first, last) in &self.expired {
            live.extend(next..*first);
            live.extend((*first..=*last).filter(|seq| self.is_live(*seq)));
            next = last + 1;
        }
        live.extend((next..=self.seq).filter(|seq| self.is_live(*seq)));
        live
    }

    /// Adds a range to the expired ones, merging adjacent ranges.
    pub(crate) fn expire(&mut self, first: u64, last: u64) {
        self.expired.push((first, last));
        self.expired = joined(std::mem::take(&mut self.expired));
    }

    /// Translates the origin of a pack that a node names to an origin of this record: `node` is the
    /// origin of the node's own pack, `inner` the origin in the node. `None` if the record does not
    /// know it.
    pub fn resolve(&self, node: u16, inner: u16) -> Option<u16> {
        match (node, inner) {
            (_, 0) => Some(node),
            (0, _) => Some(inner),
            _ => self.origins.get(usize::from(node) - 1)?.numbers.get(usize::from(inner) - 1).copied(),
        }
    }

    /// Returns the blob's own packs that the layout names directly, not through nodes.
    pub fn own_packs(&self) -> impl Iterator<Item = PackRef> {
        self.layout.packs().into_iter().filter(|pack| pack.origin == 0)
    }

    /// Returns its bytes.
    ///
    /// # Errors
    /// When it is larger than a record may be.
    pub fn encode(&self, workspace: &mut Workspace) -> Result<Vec<u8>, FormatError> {
        let mut fields = Vec::with_capacity(512);
        self.encode_fields(&mut fields);
        if fields.len() > RECORD_BYTES_MAX {
            return Err(FormatError::new(STRUCTURE, format!("{} bytes, at most {RECORD_BYTES_MAX}", fields.len())));
        }
        let mut packed = vec![0; fields.len()];
        let codec = codec::ZstdLevel::new(3).map_or(Codec::Off, Codec::Zstd);
        let packed = workspace.compress(codec, &fields, &mut packed).map(|len| &packed[..len]);
        let (codec, payload) = match packed {
            Some(packed) if packed.len() < fields.len() => (codec.id().0, packed),
            _ => (0, &fields[..]),
        };
        let mut out = Vec::with_capacity(HEADER_BYTES + payload.len() + 4);
        out.extend_from_slice(MAGIC);
        put_uint(&mut out, FORMAT, 2);
        put_uint(&mut out, codec.into(), 1);
        put_uint(&mut out, 0, 1);
        put_uint(&mut out, fields.len() as u64, 4);
        out.extend_from_slice(payload);
        let crc = crc32c(&out);
        put_uint(&mut out, crc.into(), 4);
        Ok(out)
    }

    fn encode_fields(&self, out: &mut Vec<u8>) {
        put_wide(out, self.inc.0);
        put_uint(out, self.seq, 8);
        put_wide(out, self.previous.0);
        put_wide(out, self.nonce.0);
        put_uint(out, self.fence, 8);
        put_uint(out, u64::from(self.closed) | u64::from(self.tombstone) << 1, 1);
        for field in [self.unix_s, self.size, self.raw, self.stored, self.version, self.versions] {
            put_uint(out, field, 8);
        }
        put_text(out, &self.message);
        put_uint(out, self.ops.len() as u64, 2);
        for done in &self.ops {
            put_wide(out, done.op.0);
            put_uint(out, done.kind as u64, 1);
            put_uint(out, done.at, 8);
            put_uint(out, done.len, 8);
        }
        put_uint(out, self.expired.len() as u64, 2);
        for (first, last) in &self.expired {
            put_uint(out, *first, 8);
            put_uint(out, *last, 8);
        }
        put_uint(out, self.tags.len() as u64, 2);
        for (name, version) in &self.tags {
            put_text(out, name);
            put_uint(out, *version, 8);
        }
        put_uint(out, self.origins.len() as u64, 2);
        for origin in &self.origins {
            put_text(out, &origin.location);
            put_wide(out, origin.inc.0);
            put_uint(out, origin.version, 8);
            put_uint(out, origin.numbers.len() as u64, 2);
            for number in &origin.numbers {
                put_uint(out, (*number).into(), 2);
            }
        }
        self.layout.encode(out);
    }

    /// Decodes the output of [`encode`](Self::encode).
    ///
    /// # Errors
    /// When the bytes are not a valid record.
    pub fn decode(bytes: &[u8], workspace: &mut Workspace) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(STRUCTURE, bytes);
        let wrong = |detail: String| FormatError::new(STRUCTURE, detail);
        if bytes.len() < HEADER_BYTES + 4 {
            return Err(wrong(format!("{} bytes are too few", bytes.len())));
        }
        let (body, crc) = bytes.split_at(bytes.len() - 4);
        if crc != crc32c(body).to_le_bytes() {
            return Err(wrong(format!("checksum {crc:02x?}, expected {:#010x}", crc32c(body))));
        }
        if cursor.bytes(8)? != MAGIC {
            return Err(wrong("does not begin with the magic bytes".into()));
        }
        let format = u64::from(cursor.u16()?);
        if format != FORMAT {
            return Err(FormatError::newer(STRUCTURE, format!("format {format}, but this program reads {FORMAT}")));
        }
        let codec = cursor.u8()?;
        if cursor.u8()? != 0 {
            return Err(wrong("a reserved byte is not 0".into()));
        }
        let raw = cursor.u32()? as usize;
        if raw > RECORD_BYTES_MAX {
            return Err(wrong(format!("{raw} bytes of fields, at most {RECORD_BYTES_MAX}")));
        }
        let mut fields = vec![0; raw];
        workspace.decompress(codec::CodecId(codec), &body[HEADER_BYTES..], &mut fields).map_err(
            |error| match error {
                DecodeError::UnknownCodec(_) => FormatError::newer(STRUCTURE, error.to_string()),
                error => wrong(error.to_string()),
            },
        )?;
        Self::decode_fields(&fields)
    }

    fn decode_fields(fields: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(STRUCTURE, fields);
        let c = &mut cursor;
        let mut record = Self::genesis(Inc(wide(c)?));
        record.seq = c.u64()?;
        record.previous = Nonce(wide(c)?);
        record.nonce = Nonce(wide(c)?);
        record.fence = c.u64()?;
        let flags = c.u8()?;
        if flags > 3 {
            return Err(c.fail(format!("flags {flags:#x}, at most 0x3")));
        }
        (record.closed, record.tombstone) = (flags & 1 != 0, flags & 2 != 0);
        record.unix_s = c.u64()?;
        record.size = c.u64()?;
        record.raw = c.u64()?;
        record.stored = c.u64()?;
        record.version = c.u64()?;
        record.versions = c.u64()?;
        record.message = text(c)?;
        for _ in 0..count(c, "operations", OPS_MAX)? {
            let op = OpId(wide(c)?);
            let kind = c.u8()?;
            let Some(kind) = OpKind::ALL.into_iter().find(|known| *known as u8 == kind) else {
                return Err(c.fail(format!("an operation of kind {kind}")));
            };
            record.ops.push(Done { op, kind, at: c.u64()?, len: c.u64()? });
        }
        for _ in 0..count(c, "expired ranges", EXPIRED_MAX)? {
            let (first, last) = (c.u64()?, c.u64()?);
            let low = record.expired.last().map_or(1, |(_, last)| last.saturating_add(2));
            if first < low || last < first || last >= record.seq {
                return Err(c.fail(format!("versions {first} to {last} are not an expired range")));
            }
            record.expired.push((first, last));
        }
        for _ in 0..count(c, "tags", TAGS_MAX)? {
            let tag = (text(c)?, c.u64()?);
            if record.tags.last().is_some_and(|before| before.0 >= tag.0) || tag.1 == 0 || tag.1 > record.seq {
                return Err(c.fail("the tags are not in order, or one names a later version"));
            }
            record.tags.push(tag);
        }
        for _ in 0..count(c, "origins", ORIGINS_MAX)? {
            let (location, inc, version) = (text(c)?, Inc(wide(c)?), c.u64()?);
            let numbers = (0..count(c, "origins of an origin", ORIGINS_MAX)?).map(|_| c.u16());
            record.origins.push(Origin { location, inc, version, numbers: numbers.collect::<Result<_, _>>()? });
        }
        record.layout = Layout::decode(cursor.rest())?;
        record.check()
    }

    /// Checks constraints between fields.
    fn check(self) -> Result<Self, FormatError> {
        let wrong = |detail: String| Err(FormatError::new(STRUCTURE, detail));
        if self.seq == 0 || self.nonce.0 == 0 || self.fence > self.seq {
            return wrong(format!("number {}, nonce {:x}, fence {}", self.seq, self.nonce.0, self.fence));
        }
        if self.ops.is_empty() {
            return wrong("no operation".into());
        }
        if self.version > self.seq || self.versions > self.version || self.is_version() && self.version < self.seq {
            return wrong(format!("number {}: version {} of {}", self.seq, self.version, self.versions));
        }
        if self.layout.pieces().last().is_some_and(|piece| piece.end() > self.size) {
            return wrong(format!("a piece ends beyond the blob's {} bytes", self.size));
        }
        let origins = self.origins.len();
        let known = |number: &u16| usize::from(*number) <= origins;
        if !self.layout.packs().iter().all(|pack| known(&pack.origin))
            || !self.origins.iter().flat_map(|origin| &origin.numbers).all(known)
        {
            return wrong(format!("a pack has an origin that is not among the {origins}"));
        }
        Ok(self)
    }
}

/// Sorts ranges from first to last, and merges adjacent ones.
pub(crate) fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match joined.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => joined.push((first, last)),
        }
    }
    joined
}

fn count(cursor: &mut Cursor<'_>, what: &str, max: usize) -> Result<usize, FormatError> {
    let count = usize::from(cursor.u16()?);
    if count > max { Err(cursor.fail(format!("{count} {what}, at most {max}"))) } else { Ok(count) }
}

fn text(cursor: &mut Cursor<'_>) -> Result<String, FormatError> {
    let text = cursor.text()?;
    if text.len() > TEXT_BYTES_MAX {
        return Err(cursor.fail(format!("{} bytes of text, at most {TEXT_BYTES_MAX}", text.len())));
    }
    Ok(text)
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
