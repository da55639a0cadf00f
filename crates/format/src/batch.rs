//! Batches: the unit of an append to the log. A header with its entries, then the payloads of the
//! fragments in the order of their entries, packed without gaps, then padding to 4 KiB.

use units::{
    BLOCK_BYTES, BlockIndex, BlockMask, COPIES_MAX, Epoch, ExtentIndex, ObjectId, SHARE_BYTES, SHARE_FIRST_BLOCK, Seq,
};

use crate::cursor::{Cursor, put_uint};
use crate::descriptor::{put_properties, read_properties};
use crate::record::{LOCATION_BYTES, check_unit};
use crate::{CataloguePart, FormatError, FragmentRef, ObjectDescriptor};

/// First four bytes of a batch.
pub const BATCH_MAGIC: u32 = u32::from_le_bytes(*b"SHBT");
/// Batches begin and end at multiples of this.
pub const BATCH_ALIGN: usize = 4096;
/// Bytes of the fixed part of a header.
pub const BATCH_FIXED_BYTES: usize = 64;
/// Bytes of an entry for one fragment.
pub const FRAGMENT_ENTRY_BYTES: usize = 14;
/// Bytes of an entry for one moved fragment.
pub const MOVE_ENTRY_BYTES: usize = FRAGMENT_ENTRY_BYTES + 4 + 6 + 8;
/// Most blocks of one hole range: its count has three bytes.
pub const HOLE_BLOCKS_MAX: u32 = (1 << 24) - 1;
/// Bytes of a hole range.
pub const HOLE_BYTES: usize = 8;
/// Bytes of a block's index in an entry of a volume.
const FIRST_BYTES: usize = 5;
/// Bytes of a block's index in an entry of a share.
const WIDE_FIRST_BYTES: usize = 8;
/// Bytes by which an item of a share's entry is longer than one of a volume's.
pub(crate) const WIDE_MORE_BYTES: usize = WIDE_FIRST_BYTES - FIRST_BYTES;
/// Bytes of the head of a run of fragments or holes: tag 1, object 8, epoch 4, count 2.
const RUN_HEAD_BYTES: usize = 15;
/// Past the last block of any share, and so past that of any volume.
const BLOCKS_END: u64 = SHARE_BYTES / BLOCK_BYTES as u64;
const TAG_FRAGMENTS: u8 = 1;
const TAG_HOLES: u8 = 2;
const TAG_OBJECT: u8 = 3;
const TAG_POOL_PROPERTIES: u8 = 4;
const TAG_MOVES: u8 = 5;
const TAG_CATALOGUE: u8 = 6;
/// Added to the tag of a run whose blocks belong to a share.
const TAG_WIDE: u8 = 16;
const TAG_WIDE_FRAGMENTS: u8 = TAG_WIDE + TAG_FRAGMENTS;
const TAG_WIDE_HOLES: u8 = TAG_WIDE + TAG_HOLES;
const TAG_WIDE_MOVES: u8 = TAG_WIDE + TAG_MOVES;

/// Whether a block is one of a share, or a copy: then its index takes eight bytes in an entry.
pub const fn is_wide(block: BlockIndex) -> bool {
    block.0 >= SHARE_FIRST_BLOCK
}

/// Bytes of an entry for one fragment that begins at that block.
pub const fn fragment_entry_bytes(first: BlockIndex) -> usize {
    if is_wide(first) { FRAGMENT_ENTRY_BYTES + WIDE_MORE_BYTES } else { FRAGMENT_ENTRY_BYTES }
}

/// Bytes of an entry for one moved fragment that begins at that block.
pub const fn move_entry_bytes(first: BlockIndex) -> usize {
    fragment_entry_bytes(first) + MOVE_ENTRY_BYTES - FRAGMENT_ENTRY_BYTES
}

/// Bytes of a hole range that begins at that block.
pub const fn hole_bytes(first: BlockIndex) -> usize {
    if is_wide(first) { HOLE_BYTES + WIDE_MORE_BYTES } else { HOLE_BYTES }
}

/// Number of streams. Each fills its own extent, which separates short-lived from long-lived data.
pub const STREAMS: usize = 2 + COPIES_MAX as usize;

/// The open extent that a batch goes to. Does not affect the meaning of the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Stream {
    /// Fresh data, and entries without payload.
    #[default]
    Hot = 0,
    /// Data that has outlived its extent, or is expected to.
    Cold = 1,
    /// First copies.
    Copy1 = 2,
    /// Second copies.
    Copy2 = 3,
    /// Third copies.
    Copy3 = 4,
}

impl Stream {
    /// All streams, in the order of their numbers.
    pub const ALL: [Self; STREAMS] = [Self::Hot, Self::Cold, Self::Copy1, Self::Copy2, Self::Copy3];

    /// Returns the stream of copies of that number. Fragments of different numbers never share an
    /// extent, because no two streams do.
    pub const fn of_copies(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Copy1),
            2 => Some(Self::Copy2),
            3 => Some(Self::Copy3),
            _ => None,
        }
    }

    /// Returns the stream with that number, if there is one.
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// The fixed part of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchHeader {
    /// First eight bytes of the pool's identifier.
    pub pool: u64,
    /// Position in the order of all batches.
    pub seq: Seq,
    /// Number of the opening of the pool that wrote it.
    pub incarnation: u64,
    /// Sequence number of the first batch of that opening: batches of earlier openings from this
    /// number on are void.
    pub incarnation_first_seq: Seq,
    /// All batches before this one were durable when this batch was written.
    pub durable_before: Seq,
    /// The extent that the batch was written to.
    pub extent: ExtentIndex,
    /// The stream that had this extent open.
    pub stream: Stream,
}

/// A fragment's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FragmentEntry {
    /// First block of the unit.
    pub first: BlockIndex,
    /// Blocks of the unit, 1 to 32.
    pub count: u8,
    /// Codec number.
    pub codec: u8,
    /// Bytes of payload.
    pub stored: u32,
    /// See [`fragment_checksum`](crate::fragment_checksum).
    pub checksum: u32,
}

impl FragmentEntry {
    /// All blocks of the unit, within its group.
    pub fn unit(&self) -> BlockMask {
        BlockMask::run(self.first.in_group(), self.count.into())
    }

    /// Returns the record's reference to this fragment if its payload is at `location`: all its
    /// blocks are read from there.
    pub fn at(&self, location: u64) -> FragmentRef {
        let Self { first, count, codec, stored, checksum } = *self;
        FragmentRef { live: self.unit(), first: first.in_group() as u8, count, codec, stored, checksum, location }
    }
}

/// A fragment that takes over blocks from an older one elsewhere in the log: the same payload at
/// another location, or a part of its content, recompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// The new fragment.
    pub fragment: FragmentEntry,
    /// Blocks of the group, all within the unit, that the old fragment provided when this was
    /// written. On replay, the move applies to those whose record still points at `from`.
    pub live: BlockMask,
    /// Where the old fragment's payload begins in the data file, in bytes; below 2^48.
    pub from: u64,
    /// Sequence number of the batch that first wrote the data, preserved across moves: the age of
    /// the data.
    pub made: Seq,
}

/// An entry of a batch. Entries apply in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// Fragments of one object, their payloads in this order.
    Fragments {
        /// Object.
        object: ObjectId,
        /// Epoch in which they were written.
        epoch: Epoch,
        /// At most 65535 of them.
        fragments: Vec<FragmentEntry>,
    },
    /// Fragments of one object that were moved, their payloads in this order.
    Moves {
        /// Object.
        object: ObjectId,
        /// Epoch in which the data was written, which need not be the newest.
        epoch: Epoch,
        /// At most 65535 of them.
        moves: Vec<Move>,
    },
    /// Ranges of one object that read as zeroes.
    Holes {
        /// Object.
        object: ObjectId,
        /// Epoch in which they were made.
        epoch: Epoch,
        /// First block and number of blocks (at most [`HOLE_BLOCKS_MAX`]); at most 65535 of them.
        ranges: Vec<(BlockIndex, u32)>,
    },
    /// An object's new descriptor. Its figures (allocated, stored) are meaningless here.
    Object(ObjectDescriptor),
    /// The pool's new properties.
    PoolProperties(std::collections::BTreeMap<String, String>),
    /// A part of the catalogue. Has no effect on replay.
    Catalogue(CataloguePart),
}

impl Entry {
    /// Whether its blocks belong to a share, or are copies. Either all blocks of an entry are, or none.
    fn is_wide(&self) -> bool {
        match self {
            Self::Fragments { fragments, .. } => fragments.first().is_some_and(|fragment| is_wide(fragment.first)),
            Self::Moves { moves, .. } => moves.first().is_some_and(|moved| is_wide(moved.fragment.first)),
            Self::Holes { ranges, .. } => ranges.first().is_some_and(|(first, _)| is_wide(*first)),
            Self::Object(_) | Self::PoolProperties(_) | Self::Catalogue(_) => false,
        }
    }

    /// Bytes of its fragments, moves or ranges in a header, without the run's head.
    pub fn item_bytes(&self) -> usize {
        match self {
            Self::Fragments { fragments, .. } => fragments.iter().map(|f| fragment_entry_bytes(f.first)).sum(),
            Self::Moves { moves, .. } => moves.iter().map(|moved| move_entry_bytes(moved.fragment.first)).sum(),
            Self::Holes { ranges, .. } => ranges.iter().map(|(first, _)| hole_bytes(*first)).sum(),
            Self::Object(_) | Self::PoolProperties(_) | Self::Catalogue(_) => 0,
        }
    }

    /// The fragments whose payloads this entry adds to the batch, in order.
    pub fn payloads(&self) -> impl Iterator<Item = (ObjectId, Epoch, &FragmentEntry)> {
        let (who, written, moved): (_, &[FragmentEntry], &[Move]) = match self {
            Self::Fragments { object, epoch, fragments } => ((*object, *epoch), fragments, &[]),
            Self::Moves { object, epoch, moves } => ((*object, *epoch), &[], moves),
            _ => ((ObjectId(0), Epoch(0)), &[], &[]),
        };
        written.iter().chain(moved.iter().map(|m| &m.fragment)).map(move |fragment| (who.0, who.1, fragment))
    }
}

/// A decoded batch: the header, the entries, and where the payloads begin and the batch ends,
/// relative to its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Fixed part.
    pub header: BatchHeader,
    /// The entries.
    pub entries: Vec<Entry>,
    /// Offset of the first payload.
    pub header_bytes: usize,
    /// Bytes of the batch, a multiple of 4096.
    pub batch_bytes: usize,
}

/// Bytes of the header of a batch with these entries.
pub fn header_bytes(entries: &[Entry]) -> usize {
    let entries: usize = entries
        .iter()
        .map(|entry| match entry {
            Entry::Fragments { .. } | Entry::Moves { .. } | Entry::Holes { .. } => RUN_HEAD_BYTES + entry.item_bytes(),
            Entry::Object(descriptor) => 5 + descriptor.encode().len(),
            Entry::PoolProperties(properties) => {
                5 + 2 + properties.iter().map(|(k, v)| 4 + k.len() + v.len()).sum::<usize>()
            }
            Entry::Catalogue(part) => 5 + part.encode().len(),
        })
        .sum();
    BATCH_FIXED_BYTES + entries
}

/// Encodes a header of `header_bytes` bytes, at least as many as the entries need; the rest is
/// zeroes. Layout of the fixed part: magic 4, crc32c of the header after this field 4, header bytes
/// 4, batch bytes 4, pool 8, sequence number 8, incarnation 8, its first sequence number 8,
/// durable-before 8, extent 4, number of entries 3, stream 1. Then the entries, each preceded by
/// its tag.
pub fn encode_batch(header: &BatchHeader, entries: &[Entry], header_bytes: usize, batch_bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(header_bytes);
    put_uint(&mut out, BATCH_MAGIC.into(), 4);
    out.resize(12, 0);
    put_uint(&mut out, batch_bytes as u64, 4);
    put_uint(&mut out, header.pool, 8);
    put_uint(&mut out, header.seq.0, 8);
    put_uint(&mut out, header.incarnation, 8);
    put_uint(&mut out, header.incarnation_first_seq.0, 8);
    put_uint(&mut out, header.durable_before.0, 8);
    put_uint(&mut out, header.extent.0.into(), 4);
    put_uint(&mut out, entries.len() as u64, 3);
    put_uint(&mut out, header.stream as u64, 1);
    debug_assert_eq!(out.len(), BATCH_FIXED_BYTES);
    for entry in entries {
        put_entry(&mut out, entry);
    }
    debug_assert!(out.len() <= header_bytes);
    out.resize(header_bytes, 0);
    out[8..12].copy_from_slice(&(header_bytes as u32).to_le_bytes());
    let crc = crate::crc::crc32c(&out[8..]);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    out
}

fn put_run_head(out: &mut Vec<u8>, tag: u8, object: ObjectId, epoch: Epoch, count: usize) {
    out.push(tag);
    put_uint(out, object.0, 8);
    put_uint(out, epoch.0.into(), 4);
    put_uint(out, count as u64, 2);
}

/// Appends a fragment's entry; `wide`: of a share.
pub(crate) fn put_fragment(out: &mut Vec<u8>, fragment: &FragmentEntry, wide: bool) {
    put_first(out, fragment.first, wide);
    out.push(fragment.count - 1);
    out.push(fragment.codec);
    put_uint(out, fragment.stored.into(), 3);
    put_uint(out, fragment.checksum.into(), 4);
}

/// Appends the index of a block: 5 bytes, of a share 8.
pub(crate) fn put_first(out: &mut Vec<u8>, first: BlockIndex, wide: bool) {
    debug_assert_eq!(wide, is_wide(first), "entries of volumes and shares are never mixed");
    put_uint(out, first.0, if wide { WIDE_FIRST_BYTES } else { FIRST_BYTES });
}

fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    let wide = entry.is_wide();
    let tag_of = |tag: u8| if wide { TAG_WIDE + tag } else { tag };
    match entry {
        Entry::Fragments { object, epoch, fragments } => {
            put_run_head(out, tag_of(TAG_FRAGMENTS), *object, *epoch, fragments.len());
            for fragment in fragments {
                put_fragment(out, fragment, wide);
            }
        }
        Entry::Moves { object, epoch, moves } => {
            put_run_head(out, tag_of(TAG_MOVES), *object, *epoch, moves.len());
            for moved in moves {
                put_fragment(out, &moved.fragment, wide);
                put_uint(out, moved.live.0.into(), 4);
                put_uint(out, moved.from, LOCATION_BYTES);
                put_uint(out, moved.made.0, 8);
            }
        }
        Entry::Holes { object, epoch, ranges } => {
            put_run_head(out, tag_of(TAG_HOLES), *object, *epoch, ranges.len());
            for (first, count) in ranges {
                put_first(out, *first, wide);
                put_uint(out, u64::from(*count), 3);
            }
        }
        Entry::Object(descriptor) => {
            let bytes = descriptor.encode();
            out.push(TAG_OBJECT);
            put_uint(out, bytes.len() as u64, 4);
            out.extend_from_slice(&bytes);
        }
        Entry::PoolProperties(properties) => {
            let mut bytes = Vec::new();
            put_properties(&mut bytes, properties);
            out.push(TAG_POOL_PROPERTIES);
            put_uint(out, bytes.len() as u64, 4);
            out.extend_from_slice(&bytes);
        }
        Entry::Catalogue(part) => {
            let bytes = part.encode();
            out.push(TAG_CATALOGUE);
            put_uint(out, bytes.len() as u64, 4);
            out.extend_from_slice(&bytes);
        }
    }
}

/// Decodes the header of a batch at the start of `bytes`, which must not extend past the end of its
/// extent. Payloads are not examined: each has its own checksum.
///
/// # Errors
/// When there is no batch, its header is damaged, or a length in it is impossible.
pub fn decode_batch(bytes: &[u8]) -> Result<Batch, FormatError> {
    let mut cursor = Cursor::new("batch header", bytes);
    if cursor.u32()? != BATCH_MAGIC {
        return Err(cursor.fail("no magic number"));
    }
    let crc = cursor.u32()?;
    let header_bytes = cursor.u32()? as usize;
    if header_bytes < BATCH_FIXED_BYTES || header_bytes > bytes.len() {
        return Err(cursor.fail(format!("header of {header_bytes} bytes, {} available", bytes.len())));
    }
    if crate::crc::crc32c(&bytes[8..header_bytes]) != crc {
        return Err(cursor.fail("checksum does not match"));
    }
    let mut cursor = Cursor::new("batch header", &bytes[12..header_bytes]);
    let batch_bytes = cursor.u32()? as usize;
    let (pool, seq, incarnation) = (cursor.u64()?, Seq(cursor.u64()?), cursor.u64()?);
    let (incarnation_first_seq, durable_before) = (Seq(cursor.u64()?), Seq(cursor.u64()?));
    let extent = ExtentIndex(cursor.u32()?);
    let count = cursor.uint(3)?;
    let number = cursor.uint(1)?;
    let Some(stream) = Stream::from_number(number) else {
        return Err(cursor.fail(format!("unknown stream {number}")));
    };
    let header = BatchHeader { pool, seq, incarnation, incarnation_first_seq, durable_before, extent, stream };
    let mut entries = Vec::new();
    let mut payload_bytes = 0usize;
    for _ in 0..count {
        let entry = read_entry(&mut cursor)?;
        payload_bytes += entry.payloads().map(|(_, _, f)| f.stored as usize).sum::<usize>();
        entries.push(entry);
    }
    if cursor.rest().iter().any(|byte| *byte != 0) {
        return Err(cursor.fail("nonzero bytes after the last entry"));
    }
    let expected = (header_bytes + payload_bytes).next_multiple_of(BATCH_ALIGN);
    if batch_bytes != expected || batch_bytes > bytes.len() {
        return Err(cursor.fail(format!("batch of {batch_bytes} bytes, its entries need {expected}")));
    }
    Ok(Batch { header, entries, header_bytes, batch_bytes })
}

fn read_entry(cursor: &mut Cursor<'_>) -> Result<Entry, FormatError> {
    let tag = cursor.u8()?;
    let wide = tag >= TAG_WIDE;
    let more = if wide { WIDE_MORE_BYTES } else { 0 };
    match tag {
        TAG_FRAGMENTS | TAG_WIDE_FRAGMENTS => {
            let (object, epoch, count) = read_run_head(cursor, FRAGMENT_ENTRY_BYTES + more)?;
            let mut fragments = Vec::with_capacity(count);
            for _ in 0..count {
                fragments.push(read_fragment(cursor, wide)?);
            }
            Ok(Entry::Fragments { object, epoch, fragments })
        }
        TAG_MOVES | TAG_WIDE_MOVES => {
            let (object, epoch, count) = read_run_head(cursor, MOVE_ENTRY_BYTES + more)?;
            let mut moves = Vec::with_capacity(count);
            for _ in 0..count {
                let fragment = read_fragment(cursor, wide)?;
                let live = BlockMask(cursor.u32()?);
                let unit = fragment.unit();
                if live.is_empty() || !live.minus(unit).is_empty() {
                    return Err(cursor.fail(format!("live mask {:#010x} of a move is impossible", live.0)));
                }
                moves.push(Move { fragment, live, from: cursor.uint(LOCATION_BYTES)?, made: Seq(cursor.u64()?) });
            }
            Ok(Entry::Moves { object, epoch, moves })
        }
        TAG_HOLES | TAG_WIDE_HOLES => {
            let (object, epoch, count) = read_run_head(cursor, HOLE_BYTES + more)?;
            let mut ranges = Vec::with_capacity(count);
            for _ in 0..count {
                let range = (read_first(cursor, wide)?, cursor.uint(3)? as u32);
                if range.0.original().0.checked_add(range.1.into()).is_none_or(|end| end > BLOCKS_END) {
                    return Err(cursor
                        .fail(format!("{} blocks from block {} extend past the address space", range.1, range.0.0)));
                }
                ranges.push(range);
            }
            Ok(Entry::Holes { object, epoch, ranges })
        }
        TAG_OBJECT => {
            let len = cursor.u32()? as usize;
            Ok(Entry::Object(ObjectDescriptor::decode(cursor.bytes(len)?)?))
        }
        TAG_POOL_PROPERTIES => {
            let len = cursor.u32()? as usize;
            let mut inner = Cursor::new("pool properties", cursor.bytes(len)?);
            let properties = read_properties(&mut inner)?;
            inner.end()?;
            Ok(Entry::PoolProperties(properties))
        }
        TAG_CATALOGUE => {
            let len = cursor.u32()? as usize;
            Ok(Entry::Catalogue(CataloguePart::decode(cursor.bytes(len)?)?))
        }
        other => Err(cursor.fail(format!("unknown entry tag {other}"))),
    }
}

/// Inverse of [`put_first`]. A block of a share lies past all blocks of volumes and within the
/// address space of shares.
pub(crate) fn read_first(cursor: &mut Cursor<'_>, wide: bool) -> Result<BlockIndex, FormatError> {
    let first = BlockIndex(cursor.uint(if wide { WIDE_FIRST_BYTES } else { FIRST_BYTES })?);
    if wide != is_wide(first) || first.original().0 >= BLOCKS_END || first.copy() > COPIES_MAX {
        return Err(cursor.fail(format!("block {} is not a block of a share, or a copy", first.0)));
    }
    Ok(first)
}

/// Inverse of [`put_fragment`].
pub(crate) fn read_fragment(cursor: &mut Cursor<'_>, wide: bool) -> Result<FragmentEntry, FormatError> {
    let fragment = FragmentEntry {
        first: read_first(cursor, wide)?,
        count: cursor.u8()?.wrapping_add(1),
        codec: cursor.u8()?,
        stored: cursor.uint(3)? as u32,
        checksum: cursor.u32()?,
    };
    check_unit(cursor, fragment.first.in_group() as u8, fragment.count, fragment.stored)?;
    Ok(fragment)
}

/// Reads the head of a run, and checks that the remaining bytes can hold its items before memory is
/// allocated for them.
fn read_run_head(cursor: &mut Cursor<'_>, item_bytes: usize) -> Result<(ObjectId, Epoch, usize), FormatError> {
    let object = ObjectId(cursor.u64()?);
    let epoch = Epoch(cursor.u32()?);
    let count = usize::from(cursor.u16()?);
    if count * item_bytes > cursor.remaining() {
        return Err(cursor.fail(format!("{count} entries in {} bytes", cursor.remaining())));
    }
    Ok((object, epoch, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (BatchHeader, Vec<Entry>) {
        let header = BatchHeader {
            pool: 1,
            seq: Seq(7),
            incarnation: 2,
            incarnation_first_seq: Seq(5),
            durable_before: Seq(6),
            extent: ExtentIndex(3),
            stream: Stream::Cold,
        };
        let fragment = |first, count, stored| FragmentEntry {
            first: BlockIndex(first),
            count,
            codec: 65,
            stored,
            checksum: 0x1234_5678,
        };
        let descriptor = ObjectDescriptor {
            properties: [("unit".to_owned(), "16K".to_owned())].into(),
            ..ObjectDescriptor::volume(ObjectId(1), "v", 4096)
        };
        let entries = vec![
            Entry::Object(descriptor),
            Entry::Fragments {
                object: ObjectId(1),
                epoch: Epoch(0),
                fragments: vec![fragment((1 << 38) - 1, 1, 4096), fragment(32, 32, 5000)],
            },
            Entry::Moves {
                object: ObjectId(1),
                epoch: Epoch(3),
                moves: vec![Move {
                    fragment: fragment(64, 8, 700),
                    live: BlockMask(0b1010_0001),
                    from: (1 << 48) - 1,
                    made: Seq(u64::MAX),
                }],
            },
            Entry::Holes { object: ObjectId(1), epoch: Epoch(0), ranges: vec![(BlockIndex(64), HOLE_BLOCKS_MAX)] },
            Entry::Fragments {
                object: ObjectId(2),
                epoch: Epoch(0),
                fragments: vec![fragment(SHARE_FIRST_BLOCK, 1, 70), fragment(BLOCKS_END - 32, 32, 30)],
            },
            Entry::Moves {
                object: ObjectId(2),
                epoch: Epoch(1),
                moves: vec![Move {
                    fragment: fragment(BLOCKS_END - 8, 8, 100),
                    live: BlockMask(0xff00_0000),
                    from: 1,
                    made: Seq(9),
                }],
            },
            Entry::Holes {
                object: ObjectId(2),
                epoch: Epoch(0),
                ranges: vec![(BlockIndex(BLOCKS_END - 7), 7), (BlockIndex(SHARE_FIRST_BLOCK), HOLE_BLOCKS_MAX)],
            },
            Entry::PoolProperties([("compression".to_owned(), "lz4".to_owned())].into()),
            Entry::Catalogue(CataloguePart {
                as_of: Seq(7),
                part: 0,
                parts: 1,
                next_object: 2,
                incarnations: crate::Incarnations {
                    known: vec![crate::Incarnation { number: 2, first_seq: Seq(5) }],
                    forgotten: None,
                },
                properties: std::collections::BTreeMap::new(),
                descriptors: vec![ObjectDescriptor::volume(ObjectId(1), "v", 4096)],
            }),
        ];
        (header, entries)
    }

    fn sample_bytes() -> Vec<u8> {
        let (header, entries) = sample();
        let total = (header_bytes(&entries) + 9996).next_multiple_of(BATCH_ALIGN);
        let mut bytes = encode_batch(&header, &entries, header_bytes(&entries), total);
        assert_eq!(bytes.len(), header_bytes(&entries));
        bytes.resize(total, 0);
        bytes
    }

    #[test]
    fn round_trips() {
        let (header, entries) = sample();
        let bytes = sample_bytes();
        let batch = decode_batch(&bytes).unwrap();
        assert_eq!((batch.header, batch.entries), (header, entries));
        assert_eq!(batch.batch_bytes, bytes.len());
    }

    #[test]
    fn a_header_may_end_in_zeroes_and_in_nothing_else() {
        let (header, entries) = sample();
        let longer = header_bytes(&entries) + 100;
        let total = (longer + 9996).next_multiple_of(BATCH_ALIGN);
        let mut bytes = encode_batch(&header, &entries, longer, total);
        bytes.resize(total, 0);
        let batch = decode_batch(&bytes).unwrap();
        assert_eq!((batch.header_bytes, batch.entries), (longer, entries));
        bytes[longer - 1] = 1;
        let crc = crate::crc::crc32c(&bytes[8..longer]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        assert!(decode_batch(&bytes).unwrap_err().detail.contains("after the last entry"));
    }

    #[test]
    fn every_flipped_bit_of_the_header_and_every_cut_is_noticed() {
        let mut bytes = sample_bytes();
        let header = decode_batch(&bytes).unwrap().header_bytes;
        for bit in 0..header * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_batch(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 0..bytes.len() {
            assert!(decode_batch(&bytes[..len]).is_err());
        }
    }

    #[test]
    fn a_block_of_a_share_is_none_of_a_volume_and_the_other_way_round() {
        let (header, _) = sample();
        let at = BATCH_FIXED_BYTES + RUN_HEAD_BYTES;
        let copy = |number| BlockIndex(7).nth_copy(number).0;
        let firsts = [(SHARE_FIRST_BLOCK, true), (SHARE_FIRST_BLOCK - 1, false), (BLOCKS_END, false)];
        let copies = [(copy(1), true), (copy(COPIES_MAX), true), (copy(COPIES_MAX + 1), false)];
        for (first, fits) in firsts.into_iter().chain(copies) {
            let ranges = vec![(BlockIndex(SHARE_FIRST_BLOCK), 1)];
            let entries = [Entry::Holes { object: ObjectId(1), epoch: Epoch(0), ranges }];
            let mut bytes = encode_batch(&header, &entries, header_bytes(&entries), BATCH_ALIGN);
            bytes[at..at + 8].copy_from_slice(&first.to_le_bytes());
            let crc = crate::crc::crc32c(&bytes[8..]);
            bytes[4..8].copy_from_slice(&crc.to_le_bytes());
            bytes.resize(BATCH_ALIGN, 0);
            assert_eq!(decode_batch(&bytes).is_ok(), fits, "block {first}");
        }
    }

    #[test]
    fn streams_that_do_not_exist_are_refused() {
        let mut bytes = sample_bytes();
        let header = decode_batch(&bytes).unwrap().header_bytes;
        bytes[BATCH_FIXED_BYTES - 1] = STREAMS as u8;
        let crc = crate::crc::crc32c(&bytes[8..header]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        assert!(decode_batch(&bytes).unwrap_err().detail.contains("unknown stream"));
    }

    #[test]
    fn payloads_come_in_the_order_of_the_entries() {
        let (_, entries) = sample();
        let stored: Vec<_> = entries.iter().flat_map(Entry::payloads).map(|(o, e, f)| (o.0, e.0, f.stored)).collect();
        assert_eq!(stored, [(1, 0, 4096), (1, 0, 5000), (1, 3, 700), (2, 0, 70), (2, 0, 30), (2, 1, 100)]);
    }

    #[test]
    fn moves_of_blocks_outside_of_their_unit_are_refused() {
        let (header, mut entries) = sample();
        for live in [0, 1 << 8, 0b1_0000_0001] {
            for entry in &mut entries {
                if let Entry::Moves { moves, .. } = entry {
                    moves[0].live = BlockMask(live);
                }
            }
            let total = (header_bytes(&entries) + 9996).next_multiple_of(BATCH_ALIGN);
            let mut bytes = encode_batch(&header, &entries, header_bytes(&entries), total);
            bytes.resize(total, 0);
            assert!(decode_batch(&bytes).unwrap_err().detail.contains("live mask"));
        }
    }

    #[test]
    fn units_across_groups_are_refused() {
        let (header, _) = sample();
        let bad = FragmentEntry { first: BlockIndex(31), count: 2, codec: 0, stored: 10, checksum: 0 };
        let entries = [Entry::Fragments { object: ObjectId(1), epoch: Epoch(0), fragments: vec![bad] }];
        let mut bytes = encode_batch(&header, &entries, header_bytes(&entries), BATCH_ALIGN);
        bytes.resize(BATCH_ALIGN, 0);
        assert!(decode_batch(&bytes).unwrap_err().detail.contains("crosses"));
    }
}
