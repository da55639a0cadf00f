//! The inventory: lists the extents in use as of a checkpoint, and how far each is filled. With it
//! the data file alone shows whether something is missing. Two copies in extent 0, written
//! alternately, each before its checkpoint is durable.
//!
//! The header is one sector, so a crash leaves the old one or the new one. A body that does not
//! match its header is torn or damaged.

use units::{ExtentIndex, ObjectId, Seq};

use crate::batch::STREAMS;
use crate::cursor::{Cursor, put_uint, seal, unseal};
use crate::{BATCH_ALIGN, FormatError};

const WHAT: &str = "inventory";
/// The first eight bytes of a header.
const MAGIC: &[u8; 8] = b"ShaleIv\x01";
/// Bytes of a header with its checksum, fewer than a sector.
pub const INVENTORY_HEADER_BYTES: usize = 8 + 16 + 3 * 8 + 5 * 4 + STREAMS * 16 + 4;
/// Bytes from a header to its body.
pub const INVENTORY_HEAD_BYTES: usize = BATCH_ALIGN;
/// Bytes for each extent.
const EXTENT_BYTES: usize = 4;
/// Bytes for each object.
const OBJECT_BYTES: usize = 16;
/// Bit of `flags`: the pool was closed with this checkpoint, and the log ends there.
const CLOSED: u32 = 1 << 0;
/// Bit of `flags`: the body did not fit.
const TOO_LARGE: u32 = 1 << 1;
/// Bit of `flags`: the objects did not fit.
const NO_OBJECTS: u32 = 1 << 2;
/// Bit of `flags`: the entries did not fit; one bit for each extent shows whether it is in use.
const COARSE: u32 = 1 << 3;
/// Bits of an extent's entry that hold how far it is filled, in blocks of 4 KiB.
const FILL_BITS: u32 = 13;
/// Stored instead of the fill if it is unknown, because the extent's content predates the
/// inventory.
const FILL_UNKNOWN: u32 = (1 << FILL_BITS) - 1;
/// Modulus of stored batch numbers; 0 stands for none.
const SEQ_MODULUS: u64 = (1 << (32 - FILL_BITS)) - 1;

/// Location and size limit of both copies in extent 0: in the gaps between the copies of the
/// superblock, or after them.
pub const fn inventory_places(extent_bytes: u32) -> [(u64, usize); 2] {
    const BEHIND: u64 = 32 << 10;
    if (extent_bytes as u64) <= BEHIND {
        return [(8 << 10, 8 << 10), (24 << 10, 8 << 10)];
    }
    let bytes = (extent_bytes as u64 - BEHIND) / 2 / BATCH_ALIGN as u64 * BATCH_ALIGN as u64;
    [(BEHIND, bytes as usize), (BEHIND + bytes, bytes as usize)]
}

/// How far an extent is filled, and the number of the last batch in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filled {
    /// Bytes.
    pub end: u32,
    /// The last batch before it.
    pub last: Seq,
}

/// The facts about an extent, in four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExtentEntry(pub u32);

impl ExtentEntry {
    /// It holds nothing that is needed, or the log has it open.
    pub const UNUSED: Self = Self(0);
    /// It holds something, and how much is not known.
    pub const UNKNOWN: Self = Self(FILL_UNKNOWN);

    /// Filled like that.
    pub fn of(filled: Filled) -> Self {
        let seq = (filled.last.0 % SEQ_MODULUS + 1) as u32;
        Self((filled.end / BATCH_ALIGN as u32) | (seq << FILL_BITS))
    }

    /// Bytes filled; `None`: unknown.
    pub fn end(self) -> Option<u32> {
        let fill = self.0 & FILL_UNKNOWN;
        (fill != FILL_UNKNOWN).then_some(fill * BATCH_ALIGN as u32)
    }
}

/// The inventory of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    /// Identifier of the pool.
    pub pool: [u8; 16],
    /// Number of the checkpoint.
    pub number: u64,
    /// Its incarnation.
    pub incarnation: u64,
    /// All earlier batches are included, and were durable.
    pub next_seq: Seq,
    /// The log ends there.
    pub is_closed: bool,
    /// The extents that the log has open, by stream. A last batch of 0 is unknown.
    pub open: [Option<(ExtentIndex, Filled)>; STREAMS],
    /// By extent number; `None`: they did not fit.
    pub extents: Option<Vec<ExtentEntry>>,
    /// Only one bit per extent fitted, which shows whether it is in use: the fill of `extents` is
    /// unknown.
    pub is_coarse: bool,
    /// Those among the used and open extents that hold the catalogue, or entries written since.
    pub pinned: Vec<ExtentIndex>,
    /// Objects with data, and the number of data blocks in all their epochs; `None`: they did not
    /// fit.
    pub objects: Option<Vec<(ObjectId, u64)>>,
}

/// The header of an inventory, which describes the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InventoryHeader {
    /// All but the body.
    pub inventory: Inventory,
    extents: u32,
    pinned: u32,
    objects: u32,
    body_crc: u32,
}

impl InventoryHeader {
    /// Bytes of the body.
    pub const fn body_bytes(&self) -> usize {
        let entries = entries_bytes(self.extents as usize, self.inventory.is_coarse);
        entries + self.pinned as usize * EXTENT_BYTES + self.objects as usize * OBJECT_BYTES
    }

    /// Decodes and checks.
    ///
    /// # Errors
    /// When magic, checksum or lengths do not hold.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let bytes = bytes.get(..INVENTORY_HEADER_BYTES).unwrap_or_default();
        let mut cursor = Cursor::new(WHAT, unseal(WHAT, bytes)?);
        if cursor.bytes(MAGIC.len())? != MAGIC {
            return Err(cursor.fail("the magic number is missing"));
        }
        let mut pool = [0; 16];
        pool.copy_from_slice(cursor.bytes(16)?);
        let (number, incarnation, next_seq) = (cursor.u64()?, cursor.u64()?, Seq(cursor.u64()?));
        let (flags, extents, pinned) = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
        let (objects, body_crc) = (cursor.u32()?, cursor.u32()?);
        let mut open = [None; STREAMS];
        for slot in &mut open {
            let (extent, end, last) = (ExtentIndex(cursor.u32()?), cursor.u32()?, Seq(cursor.u64()?));
            *slot = (extent.0 != 0).then_some((extent, Filled { end, last }));
        }
        cursor.end()?;
        if flags & !(CLOSED | TOO_LARGE | NO_OBJECTS | COARSE) != 0 {
            return Err(cursor.fail(format!("flags {flags:#x}")));
        }
        let inventory = Inventory {
            pool,
            number,
            incarnation,
            next_seq,
            is_closed: flags & CLOSED != 0,
            open,
            extents: (flags & TOO_LARGE == 0).then(Vec::new),
            is_coarse: flags & COARSE != 0,
            pinned: Vec::new(),
            objects: (flags & NO_OBJECTS == 0).then(Vec::new),
        };
        Ok(Self { inventory, extents, pinned, objects, body_crc })
    }

    /// The inventory with its body.
    ///
    /// # Errors
    /// When that is not the one that belongs to the header.
    pub fn with_body(mut self, body: &[u8]) -> Result<Inventory, FormatError> {
        let body = body.get(..self.body_bytes()).unwrap_or_default();
        if body.len() != self.body_bytes() || crate::crc::crc32c(body) != self.body_crc {
            return Err(FormatError::new(WHAT, "checksum of the body does not match"));
        }
        let mut cursor = Cursor::new(WHAT, body);
        if let Some(entries) = &mut self.inventory.extents {
            if self.inventory.is_coarse {
                for first in (0..self.extents).step_by(32) {
                    let word = cursor.u32()?;
                    for bit in 0..(self.extents - first).min(32) {
                        let holds = word & (1 << bit) != 0;
                        entries.push(if holds { ExtentEntry::UNKNOWN } else { ExtentEntry::UNUSED });
                    }
                }
            } else {
                for _ in 0..self.extents {
                    entries.push(ExtentEntry(cursor.u32()?));
                }
            }
        }
        for _ in 0..self.pinned {
            self.inventory.pinned.push(ExtentIndex(cursor.u32()?));
        }
        if let Some(known) = &mut self.inventory.objects {
            for _ in 0..self.objects {
                known.push((ObjectId(cursor.u64()?), cursor.u64()?));
            }
        }
        Ok(self.inventory)
    }
}

impl Inventory {
    /// Encodes the header, zeroes up to [`INVENTORY_HEAD_BYTES`], and the body: entries of extents
    /// 4 each, pinned extents 4 each, objects 16 each. Entries that do not fit into `room` bytes
    /// are replaced by one bit per extent. If that does not fit either, it is omitted; the flags
    /// record this.
    pub fn encode(&self, room: usize) -> Vec<u8> {
        let room = room.saturating_sub(INVENTORY_HEAD_BYTES);
        let bytes = |extents: usize, is_coarse| entries_bytes(extents, is_coarse) + self.pinned.len() * EXTENT_BYTES;
        let count = self.extents.as_ref().map_or(0, Vec::len);
        let is_coarse = self.is_coarse || bytes(count, false) > room;
        let extents = self.extents.as_deref().filter(|_| bytes(count, is_coarse) <= room);
        let is_coarse = is_coarse && extents.is_some();
        let left = room - extents.map_or(0, |_| bytes(count, is_coarse));
        let pinned = if extents.is_some() { self.pinned.as_slice() } else { &[] };
        let fits = |objects: &&[(ObjectId, u64)]| objects.len() * OBJECT_BYTES <= left;
        let objects = self.objects.as_deref().filter(fits).filter(|_| extents.is_some());
        let mut body = Vec::new();
        if is_coarse {
            for some in extents.unwrap_or_default().chunks(32) {
                let bits = some.iter().enumerate().filter(|(_, entry)| **entry != ExtentEntry::UNUSED);
                put_uint(&mut body, bits.fold(0, |word, (bit, _)| word | 1 << bit), 4);
            }
        } else {
            extents.unwrap_or_default().iter().for_each(|entry| put_uint(&mut body, entry.0.into(), 4));
        }
        pinned.iter().for_each(|extent| put_uint(&mut body, extent.0.into(), 4));
        for (object, blocks) in objects.unwrap_or_default() {
            put_uint(&mut body, object.0, 8);
            put_uint(&mut body, *blocks, 8);
        }
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let flags = flag(self.is_closed, CLOSED)
            | flag(extents.is_none(), TOO_LARGE)
            | flag(objects.is_none(), NO_OBJECTS)
            | flag(is_coarse, COARSE);
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.pool);
        for number in [self.number, self.incarnation, self.next_seq.0] {
            put_uint(&mut out, number, 8);
        }
        let counts = (extents.unwrap_or_default().len() as u64, objects.unwrap_or_default().len() as u64);
        for number in [flags.into(), counts.0, pinned.len() as u64, counts.1, crate::crc::crc32c(&body).into()] {
            put_uint(&mut out, number, 4);
        }
        for slot in self.open {
            let (extent, filled) = slot.unwrap_or((ExtentIndex(0), Filled { end: 0, last: Seq(0) }));
            put_uint(&mut out, extent.0.into(), 4);
            put_uint(&mut out, filled.end.into(), 4);
            put_uint(&mut out, filled.last.0, 8);
        }
        seal(&mut out);
        out.resize(INVENTORY_HEAD_BYTES, 0);
        out.append(&mut body);
        out
    }
}

/// Bytes of the entries for that many extents.
const fn entries_bytes(extents: usize, is_coarse: bool) -> usize {
    if is_coarse { extents.div_ceil(32) * 4 } else { extents * EXTENT_BYTES }
}

#[cfg(test)]
mod tests {
    use super::*;

    const _: () = assert!(INVENTORY_HEADER_BYTES <= 512);

    fn sample() -> Inventory {
        let filled = Filled { end: 8192, last: Seq(77) };
        Inventory {
            pool: [3; 16],
            number: 9,
            incarnation: 4,
            next_seq: Seq(80),
            is_closed: true,
            open: [None, Some((ExtentIndex(2), filled)), None, None, None],
            extents: Some(vec![ExtentEntry::UNUSED, ExtentEntry::of(filled), ExtentEntry::UNKNOWN]),
            is_coarse: false,
            pinned: vec![ExtentIndex(2), ExtentIndex(700)],
            objects: Some(vec![(ObjectId(5), 1 << 40)]),
        }
    }

    fn decode(bytes: &[u8]) -> Result<Inventory, FormatError> {
        InventoryHeader::decode(bytes)?.with_body(&bytes[INVENTORY_HEAD_BYTES..])
    }

    #[test]
    fn an_inventory_round_trips_and_says_what_had_no_room() {
        let all = sample();
        let bytes = all.encode(1 << 20);
        assert_eq!(decode(&bytes).unwrap(), all);
        let objects = bytes.len() - 1;
        assert_eq!(decode(&all.encode(objects)).unwrap(), Inventory { objects: None, ..all.clone() });
        let none = Inventory { objects: None, extents: None, pinned: Vec::new(), ..all.clone() };
        assert_eq!(decode(&all.encode(4096)).unwrap(), none);
        let header = &bytes[..INVENTORY_HEADER_BYTES];
        crate::cursor::expect_every_bit_to_count(header, |bytes| InventoryHeader::decode(bytes).is_err());
        let body = &bytes[INVENTORY_HEAD_BYTES..];
        let header = InventoryHeader::decode(header).unwrap();
        crate::cursor::expect_every_bit_to_count(body, |body| header.clone().with_body(body).is_err());
    }

    /// A pool whose entries do not fit, but whose bits do.
    #[test]
    fn where_entries_have_no_room_a_bit_says_whether_an_extent_holds_something() {
        let filled = Filled { end: 8192, last: Seq(77) };
        for count in [1000, 1024, 1025] {
            let entries: Vec<_> =
                (0..count).map(|n| if n % 3 == 0 { ExtentEntry::of(filled) } else { ExtentEntry::UNUSED }).collect();
            let all = Inventory { extents: Some(entries.clone()), ..sample() };
            let bytes = all.encode(INVENTORY_HEAD_BYTES + 1000);
            let coarse = entries.iter().map(|e| if *e == ExtentEntry::UNUSED { *e } else { ExtentEntry::UNKNOWN });
            let expected = Inventory { extents: Some(coarse.collect()), is_coarse: true, ..all.clone() };
            assert_eq!(decode(&bytes).unwrap(), expected);
            // An inventory decoded on opening is encoded identically, as far as it fits.
            assert_eq!(decode(&expected.encode(INVENTORY_HEAD_BYTES + 1000)).unwrap(), expected);
            let none = decode(&all.encode(INVENTORY_HEAD_BYTES + 100)).unwrap();
            assert_eq!((none.extents, none.is_coarse), (None, false));
            let body = &bytes[INVENTORY_HEAD_BYTES..];
            let header = InventoryHeader::decode(&bytes[..INVENTORY_HEADER_BYTES]).unwrap();
            crate::cursor::expect_every_bit_to_count(body, |body| header.clone().with_body(body).is_err());
        }
    }

    #[test]
    fn entries_say_how_far_and_tell_uses_of_an_extent_apart() {
        let of = |end, last| ExtentEntry::of(Filled { end, last: Seq(last) });
        assert_eq!(of(16 << 20, u64::MAX).end(), Some(16 << 20));
        assert_eq!((ExtentEntry::UNKNOWN.end(), ExtentEntry::UNUSED.end()), (None, Some(0)));
        assert_ne!(of(8192, 5), of(8192, 6));
        assert_ne!(of(4096, SEQ_MODULUS - 1), ExtentEntry::UNKNOWN);
    }

    #[test]
    fn the_places_lie_in_extent_0_beside_the_superblock_and_the_note() {
        for log in units::EXTENT_BYTES_MIN.ilog2()..=units::EXTENT_BYTES_MAX.ilog2() {
            let extent = 1 << log;
            let taken = crate::SUPERBLOCK_OFFSETS.into_iter().chain(crate::OPENING_NOTE_OFFSETS);
            let mut ranges: Vec<_> = taken.map(|at| (at, at + 4096)).collect();
            ranges.extend(inventory_places(extent).map(|(at, bytes)| (at, at + bytes as u64)));
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?}");
            assert!(ranges.last().unwrap().1 <= u64::from(extent));
        }
    }
}
