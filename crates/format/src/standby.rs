//! The standby file: acknowledged writes and discards that the log does not have yet, in memory
//! that survives the process but not the machine. Owns its layout; `standby` in the engine owns the
//! order of stores and the argument for it.
//!
//! A header, five mutable words, and from [`STANDBY_RING_OFFSET`] on a ring of records. A record's
//! *position* counts bytes of the ring since the file was created and never repeats: its place is
//! the position modulo the ring's length.
//!
//! A mutable word only grows. It is stored twice, each copy with a checksum, and its four parts are
//! stored in order ([`word_stores`]). A process that dies between two stores thus leaves the new
//! value or the previous one, and a single damaged copy does no harm ([`load_word`]).

use units::{BLOCK_BYTES, BlockIndex, ObjectId};

use crate::FormatError;
use crate::crc::{crc32c, crc32c_append};
use crate::cursor::{Cursor, put_uint, seal, unseal};

const WHAT: &str = "header of a standby file";
/// The first eight bytes of a standby file.
const MAGIC: &[u8; 8] = b"ShaleSb\x02";
/// Bytes of the header: magic 8, pool 16, boot 16, copy 32, session 8, incarnation 8, ring 8,
/// crc32c 4.
pub const STANDBY_HEADER_BYTES: usize = 8 + 16 + 16 + 32 + 8 + 8 + 8 + 4;
/// Offset of the word with the tail: records from this position on are still needed.
pub const STANDBY_TAIL_OFFSET: usize = 256;
/// Offset of the word with the log's progress: the number of the first batch that was not applied.
pub const STANDBY_SEQ_OFFSET: usize = 320;
/// Offset of the word with the newest incarnation of the log that the file belongs to.
pub const STANDBY_INCARNATION_OFFSET: usize = 384;
/// Offset of the word with the log's durable progress: the number of the first batch not known to
/// be durable.
pub const STANDBY_DURABLE_OFFSET: usize = 448;
/// Offset of the word with the head: the position after the last record whose head is complete.
pub const STANDBY_HEAD_OFFSET: usize = 512;
/// Offset of the path of the pool's directory, for humans: up to the first zero byte, or to the
/// ring.
pub const STANDBY_PATH_OFFSET: usize = 576;
/// Key in the map store that records that a ring is in use; may be missing.
pub const KEY_STANDBY: &[u8] = b"Y";
/// Table in the map store of the shares that have a journal next to that file.
const TABLE_JOURNAL: u8 = b'J';
/// Where the ring begins.
pub const STANDBY_RING_OFFSET: usize = 4096;
/// Records begin at multiples of this: a cache line, and the length of a record without blocks.
pub const STANDBY_ALIGN: usize = 64;
/// Offset within a record of its commit word, and the number of bytes before it.
pub const STANDBY_COMMIT_OFFSET: usize = 48;
/// Blocks of one record at most: a group.
const BLOCKS_MAX: u32 = units::GROUP_BLOCKS as u32;

/// Identity of a standby file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandbyHeader {
    /// Identifier of the pool.
    pub pool: [u8; 16],
    /// Identifier of the machine's boot.
    pub boot: [u8; 16],
    /// Identifies one copy of the pool: device and inode of its data, device and inode of its
    /// directory.
    pub copy: [u8; 32],
    /// A number unique to this file.
    pub session: u64,
    /// The incarnation of the log under which the file was begun.
    pub incarnation: u64,
    /// Bytes of the ring, a multiple of [`STANDBY_ALIGN`].
    pub ring_bytes: u64,
}

impl StandbyHeader {
    /// Encodes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.pool);
        out.extend_from_slice(&self.boot);
        out.extend_from_slice(&self.copy);
        for field in [self.session, self.incarnation, self.ring_bytes] {
            put_uint(&mut out, field, 8);
        }
        seal(&mut out);
        out
    }

    /// Decodes and checks.
    ///
    /// # Errors
    /// When magic, checksum, length or the ring's length do not hold.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(WHAT, unseal(WHAT, bytes)?);
        if cursor.bytes(MAGIC.len())? != MAGIC {
            return Err(cursor.fail("the magic number is missing".to_owned()));
        }
        let mut header =
            Self { pool: [0; 16], boot: [0; 16], copy: [0; 32], session: 0, incarnation: 0, ring_bytes: 0 };
        header.pool.copy_from_slice(cursor.bytes(16)?);
        header.boot.copy_from_slice(cursor.bytes(16)?);
        header.copy.copy_from_slice(cursor.bytes(32)?);
        header.session = cursor.u64()?;
        header.incarnation = cursor.u64()?;
        header.ring_bytes = cursor.u64()?;
        if header.ring_bytes == 0 || !header.ring_bytes.is_multiple_of(STANDBY_ALIGN as u64) {
            return Err(cursor.fail(format!("a ring of {} bytes", header.ring_bytes)));
        }
        cursor.end()?;
        Ok(header)
    }
}

/// Returns the stores that change a word of a standby file, in their order: place and value.
pub fn word_stores(session: u64, offset: usize, value: u64) -> [(usize, u64); 4] {
    let sum = word_sum(session, offset, value);
    [(offset, value), (offset + 8, sum), (offset + 16, value), (offset + 24, sum)]
}

/// Reads a word of a standby file. `load` returns eight bytes of the file. `None`: both copies of
/// the word are damaged.
pub fn load_word(load: impl Fn(usize) -> u64, session: u64, offset: usize) -> Option<u64> {
    let copies = [offset, offset + 16].map(|at| (load(at), load(at + 8)));
    copies.into_iter().find(|(value, sum)| *sum == word_sum(session, offset, *value)).map(|(value, _)| value)
}

/// Never 0.
fn word_sum(session: u64, offset: usize, value: u64) -> u64 {
    let sum = crc32c(&session.to_le_bytes());
    let sum = crc32c_append(sum, &(offset as u64).to_le_bytes());
    1 << 32 | u64::from(crc32c_append(sum, &value.to_le_bytes()))
}

/// `J`, share: its journal may hold acknowledged names.
pub fn journal_key(share: ObjectId) -> [u8; 9] {
    let mut bytes = [TABLE_JOURNAL; 9];
    bytes[1..].copy_from_slice(&share.0.to_be_bytes());
    bytes
}

/// Inverse of [`journal_key`].
pub fn parse_journal_key(bytes: &[u8]) -> Option<ObjectId> {
    let share: [u8; 8] = bytes.strip_prefix(&[TABLE_JOURNAL])?.try_into().ok()?;
    Some(ObjectId(u64::from_be_bytes(share)))
}

/// The range of all journal keys.
pub const fn journal_key_range() -> (&'static [u8], &'static [u8]) {
    (b"J", b"K")
}

/// Records that a server keeps acknowledged writes in a ring, from before its first request until
/// everything is in the log: without that ring data may be missing. The same for the journal of a
/// share and its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandbyNeed {
    /// Identifier of the machine's boot.
    pub boot: [u8; 16],
    /// Which copy of the pool, as in the ring's header.
    pub copy: [u8; 32],
}

impl StandbyNeed {
    /// Encodes: boot 16, copy 32, crc32c 4.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = [self.boot.as_slice(), &self.copy].concat();
        seal(&mut out);
        out
    }

    /// Decodes and checks.
    ///
    /// # Errors
    /// When checksum or length do not hold.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        const WHAT: &str = "note of standby memory";
        let mut cursor = Cursor::new(WHAT, unseal(WHAT, bytes)?);
        let mut need = Self { boot: [0; 16], copy: [0; 32] };
        need.boot.copy_from_slice(cursor.bytes(16)?);
        need.copy.copy_from_slice(cursor.bytes(32)?);
        cursor.end()?;
        Ok(need)
    }
}

/// Kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandbyKind {
    /// Blocks that were written; their bytes follow the record.
    Data,
    /// Blocks that became holes.
    Hole,
    /// Filler: the next record starts at the beginning of the ring.
    Pad,
}

/// A record, without its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandbyRecord {
    /// Its position.
    pub position: u64,
    /// Its kind.
    pub kind: StandbyKind,
    /// The volume.
    pub object: ObjectId,
    /// First block.
    pub first: BlockIndex,
    /// Blocks: 1 to a group's; of a pad, its length in units of [`STANDBY_ALIGN`].
    pub count: u32,
}

impl StandbyRecord {
    /// Bytes of payload that follow it.
    pub fn payload_bytes(&self) -> usize {
        match self.kind {
            StandbyKind::Data => self.count as usize * BLOCK_BYTES,
            StandbyKind::Hole | StandbyKind::Pad => 0,
        }
    }

    /// Bytes that it takes in the ring.
    pub fn bytes(&self) -> usize {
        match self.kind {
            StandbyKind::Pad => self.count as usize * STANDBY_ALIGN,
            StandbyKind::Data | StandbyKind::Hole => STANDBY_ALIGN + self.payload_bytes(),
        }
    }

    /// Encodes the part before the commit word: position 8, session 8, object 8, block 8, count 4,
    /// kind 4, crc32c 4, zeroes 4; then an invalid commit word.
    pub fn encode(&self, session: u64) -> [u8; STANDBY_COMMIT_OFFSET + 8] {
        let mut out = [0; STANDBY_COMMIT_OFFSET + 8];
        for (index, field) in [self.position, session, self.object.0, self.first.0].into_iter().enumerate() {
            out[index * 8..index * 8 + 8].copy_from_slice(&field.to_le_bytes());
        }
        let kind: u32 = match self.kind {
            StandbyKind::Data => 1,
            StandbyKind::Hole => 2,
            StandbyKind::Pad => 3,
        };
        out[32..36].copy_from_slice(&self.count.to_le_bytes());
        out[36..40].copy_from_slice(&kind.to_le_bytes());
        let sum = crc32c(&out[..40]);
        out[40..44].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Decodes the bytes at a place of the ring: yields a record only if it has that position and
    /// session.
    pub fn decode(bytes: &[u8; STANDBY_COMMIT_OFFSET], position: u64, session: u64) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        if word(0) != position || word(8) != session || half(40) != crc32c(&bytes[..40]) {
            return None;
        }
        let kind = match half(36) {
            1 => StandbyKind::Data,
            2 => StandbyKind::Hole,
            3 => StandbyKind::Pad,
            _ => return None,
        };
        let (object, first, count) = (ObjectId(word(16)), BlockIndex(word(24)), half(32));
        let is_whole = kind == StandbyKind::Pad || count <= BLOCKS_MAX;
        (count > 0 && is_whole).then_some(Self { position, kind, object, first, count })
    }

    /// The commit word for this payload. Never 0.
    pub fn commit(&self, session: u64, payload: &[u8]) -> u64 {
        // Without the record's own checksum: with it, the sum would be the same for all records.
        let head = crc32c(&self.encode(session)[..40]);
        1 << 32 | u64::from(crc32c_append(head, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_round_trips_and_notices_damage() {
        let (pool, boot, copy) = ([7; 16], [9; 16], [3; 32]);
        let header = StandbyHeader { pool, boot, copy, session: 1 << 60, incarnation: 12, ring_bytes: 1 << 20 };
        let bytes = header.encode();
        assert_eq!(bytes.len(), STANDBY_HEADER_BYTES);
        assert_eq!(StandbyHeader::decode(&bytes).unwrap(), header);
        crate::cursor::expect_every_bit_to_count(&bytes, |bytes| StandbyHeader::decode(bytes).is_err());
        assert!(StandbyHeader::decode(&StandbyHeader { ring_bytes: 100, ..header }.encode()).is_err());
        const { assert!(STANDBY_HEADER_BYTES <= STANDBY_TAIL_OFFSET) };
        let need = StandbyNeed { boot, copy };
        assert_eq!(StandbyNeed::decode(&need.encode()).unwrap(), need);
        crate::cursor::expect_every_bit_to_count(&need.encode(), |bytes| StandbyNeed::decode(bytes).is_err());
        let (from, to) = journal_key_range();
        for share in [ObjectId(0), ObjectId(7 << 40), ObjectId(u64::MAX)] {
            let key = journal_key(share);
            assert_eq!(parse_journal_key(&key), Some(share));
            assert!((from..to).contains(&key.as_slice()));
        }
    }

    #[test]
    fn a_word_is_the_new_one_or_the_one_before_and_a_damaged_copy_does_no_harm() {
        let mut bytes = [0u64; 80];
        let load = |bytes: &[u64; 80], session| load_word(|at| bytes[at / 8], session, STANDBY_TAIL_OFFSET);
        assert_eq!(load(&bytes, 7), None);
        word_stores(7, STANDBY_TAIL_OFFSET, 64).into_iter().for_each(|(at, value)| bytes[at / 8] = value);
        assert_eq!((load(&bytes, 7), load(&bytes, 8)), (Some(64), None));
        for dies_after in 0..4 {
            let mut bytes = bytes;
            let stores = word_stores(7, STANDBY_TAIL_OFFSET, 1 << 40);
            stores[..dies_after].iter().for_each(|&(at, value)| bytes[at / 8] = value);
            assert_eq!(load(&bytes, 7), Some(if dies_after < 2 { 64 } else { 1 << 40 }));
        }
        for bit in 0..256 {
            let mut bytes = bytes;
            bytes[STANDBY_TAIL_OFFSET / 8 + bit / 64] ^= 1 << (bit % 64);
            assert_eq!(load(&bytes, 7), Some(64), "bit {bit}");
        }
        bytes[STANDBY_TAIL_OFFSET / 8..][..4].fill(0);
        assert_eq!(load(&bytes, 7), None);
    }

    #[test]
    fn a_record_round_trips_and_notices_damage_and_other_places() {
        for (kind, count, bytes) in [(StandbyKind::Data, 3, 64 + 3 * 4096), (StandbyKind::Hole, 32, 64)] {
            let (object, first) = (ObjectId(5), BlockIndex(77));
            let record = StandbyRecord { position: 640, kind, object, first, count };
            assert_eq!(record.bytes(), bytes);
            let encoded = record.encode(11);
            let head: [u8; STANDBY_COMMIT_OFFSET] = std::array::from_fn(|i| encoded[i]);
            assert_eq!(StandbyRecord::decode(&head, 640, 11), Some(record));
            assert_eq!(StandbyRecord::decode(&head, 704, 11), None);
            assert_eq!(StandbyRecord::decode(&head, 640, 12), None);
            crate::cursor::expect_every_bit_to_count(&head[..44], |changed| {
                let mut whole = head;
                whole[..44].copy_from_slice(changed);
                StandbyRecord::decode(&whole, 640, 11).is_none()
            });
            let payload = vec![1; record.payload_bytes()];
            let mut other = payload.clone();
            if let Some(last) = other.last_mut() {
                *last = 2;
                assert_ne!(record.commit(11, &payload), record.commit(11, &other));
            }
            assert_ne!(record.commit(11, &payload), record.commit(12, &payload));
            assert_ne!(record.commit(11, &payload), 0);
        }
    }

    #[test]
    fn a_record_of_more_than_a_group_is_none() {
        let record = StandbyRecord {
            position: 0,
            kind: StandbyKind::Data,
            object: ObjectId(1),
            first: BlockIndex(0),
            count: BLOCKS_MAX + 1,
        };
        let encoded = record.encode(1);
        assert_eq!(StandbyRecord::decode(&std::array::from_fn(|i| encoded[i]), 0, 1), None);
    }
}
