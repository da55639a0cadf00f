//! The map record: the location of each block of a group that was written in one epoch.
//!
//! The same type represents a change to a record: its blocks replace those of an older record, all
//! others fall through.

use smallvec::SmallVec;
use units::{BlockMask, GROUP_BYTES};

use crate::FormatError;
use crate::cursor::{Cursor, put_uint, seal, unseal};

/// Bytes of a place in the data file.
pub(crate) const LOCATION_BYTES: usize = 6;
/// Bytes of one in the first TiB: of most.
const NEAR_BYTES: usize = LOCATION_BYTES - 1;
/// Bytes of a mask of blocks.
const MASK_BYTES: usize = 4;
const CHECKSUM_BYTES: usize = 4;

/// A reference to a stored fragment, and the blocks of the group for which it is the truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FragmentRef {
    /// Blocks of the group that are read from it: a subset of the unit, never empty.
    pub live: BlockMask,
    /// First block of the unit within the group.
    pub first: u8,
    /// Blocks of the unit.
    pub count: u8,
    /// Codec number.
    pub codec: u8,
    /// Bytes stored.
    pub stored: u32,
    /// See [`fragment_checksum`](crate::fragment_checksum).
    pub checksum: u32,
    /// Byte offset of the payload in the data file.
    pub location: u64,
}

impl FragmentRef {
    /// All blocks of the unit.
    pub const fn unit(&self) -> BlockMask {
        BlockMask::run(self.first as u32, self.count as u32)
    }

    /// The share of the stored bytes attributed to the live blocks: the space that cleaning would
    /// retain of a partly overwritten unit. Shares of disjoint live masks add up, and the share of
    /// all blocks is the stored bytes. No block has a share below one byte: so an extent's sum is
    /// zero if and only if nothing refers to it.
    pub fn live_bytes(&self) -> u32 {
        let count = u32::from(self.count.max(1));
        let stored = self.stored.max(count);
        if self.live == self.unit() {
            return stored;
        }
        // `stored` is at most 2^17 and a block's position at most 32.
        let before = |block: u32| stored * (block - u32::from(self.first)) / count;
        self.live.and(self.unit()).runs().map(|(first, blocks)| before(first + blocks) - before(first)).sum()
    }
}

/// Fragments of a group. Most changes have one, which is stored inline.
pub type Fragments = SmallVec<[FragmentRef; 1]>;

/// The known blocks of one group.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Blocks that read as zeroes, overriding older epochs.
    pub holes: BlockMask,
    /// Fragments; their live masks are disjoint, and disjoint from `holes`.
    pub fragments: Fragments,
}

// Of a record's first byte.
const HOLES: u8 = 0x80;
const COMPACT: u8 = 0x40;
const COUNT_MASK: u8 = 0x3f;

// Of a fragment's first byte.
const FAR: u8 = 0x80;
const SHAPE: u8 = 0x40;
const PARTIAL: u8 = 0x20;
const FIRST_MASK: u8 = 0x1f;
const _: () = assert!(FIRST_MASK as usize + 1 == units::GROUP_BLOCKS);

impl Clone for Record {
    /// In one go, not fragment by fragment: a checkpoint copies each record that it changes.
    fn clone(&self) -> Self {
        self.with_room(0)
    }
}

impl Record {
    /// Copies the record, with capacity for `more` additional fragments.
    pub fn with_room(&self, more: usize) -> Self {
        let mut fragments = Fragments::with_capacity(self.fragments.len() + more);
        fragments.extend_from_slice(&self.fragments);
        Self { holes: self.holes, fragments }
    }

    /// Blocks that the record has an entry for.
    pub fn known(&self) -> BlockMask {
        self.fragments.iter().fold(self.holes, |mask, f| mask.or(f.live))
    }

    /// Blocks that hold data.
    pub fn allocated(&self) -> BlockMask {
        self.fragments.iter().fold(BlockMask::EMPTY, |mask, f| mask.or(f.live))
    }

    /// Whether the record has no entries.
    pub fn is_empty(&self) -> bool {
        self.holes.is_empty() && self.fragments.is_empty()
    }

    /// Removes the entries for `blocks`; `lost` is called with each fragment that loses blocks, its
    /// live mask reduced to those.
    pub fn forget(&mut self, blocks: BlockMask, lost: &mut dyn FnMut(&FragmentRef)) {
        // No block has two fragments: most changes concern one, and the rest can be skipped.
        let mut left = blocks.minus(self.holes);
        self.holes = self.holes.minus(blocks);
        let mut at = 0;
        while !left.is_empty()
            && let Some(fragment) = self.fragments.get_mut(at)
        {
            let gone = fragment.live.and(left);
            if !gone.is_empty() {
                lost(&FragmentRef { live: gone, ..*fragment });
                left = left.minus(gone);
                fragment.live = fragment.live.minus(gone);
            }
            if fragment.live.is_empty() {
                self.fragments.remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// Adds a newer fragment, which replaces the entries of its live blocks.
    pub fn put(&mut self, fragment: FragmentRef, lost: &mut dyn FnMut(&FragmentRef)) {
        self.forget(fragment.live, lost);
        self.fragments.push(fragment);
    }

    /// `blocks` read as zeroes from now on.
    pub fn put_holes(&mut self, blocks: BlockMask, lost: &mut dyn FnMut(&FragmentRef)) {
        self.forget(blocks, lost);
        self.holes = self.holes.or(blocks);
    }

    /// Applies a newer change. `lost` is called with each fragment of this record that loses
    /// blocks, with those blocks as its live mask.
    pub fn absorb(&mut self, newer: &Self, lost: &mut dyn FnMut(&FragmentRef)) {
        self.forget(newer.known(), lost);
        self.holes = self.holes.or(newer.holes);
        self.fragments.extend_from_slice(&newer.fragments);
    }

    /// Encodes: a byte with the number of fragments (bits 0-5), bit 6, which is set, and whether
    /// holes follow (bit 7); holes (4) if so; the fragments, by their first live blocks; crc32c of
    /// all that (4). A fragment: first block | 0x20 if the live mask follows
    /// | 0x40 if number of blocks and codec do, which are those of the fragment before if not | 0x80 if the location has six bytes (1); count - 1 (1)
    /// and codec (1) if so; stored bytes - 1 (2, of more than 16 blocks 3), checksum (4), location
    /// (5 or 6), live mask if so (4).
    pub fn encode(&self) -> Vec<u8> {
        let mut fragments = self.fragments.clone();
        fragments.sort_unstable_by_key(|f| place(f.live));
        let mut out = Vec::with_capacity(self.encoded_bytes(&fragments));
        let flags = COMPACT | if self.holes.is_empty() { 0 } else { HOLES };
        out.push(fragments.len() as u8 | flags);
        if !self.holes.is_empty() {
            put_uint(&mut out, self.holes.0.into(), MASK_BYTES);
        }
        let mut before = None;
        for fragment in &fragments {
            let flags = flags_of(fragment, before);
            out.push(fragment.first | flags);
            if flags & SHAPE != 0 {
                out.extend_from_slice(&[fragment.count - 1, fragment.codec]);
            }
            put_uint(&mut out, u64::from(fragment.stored) - 1, stored_bytes(fragment.count));
            put_uint(&mut out, fragment.checksum.into(), 4);
            put_uint(&mut out, fragment.location, location_bytes(flags));
            if flags & PARTIAL != 0 {
                put_uint(&mut out, fragment.live.0.into(), MASK_BYTES);
            }
            before = Some(fragment);
        }
        seal(&mut out);
        out
    }

    /// Exact: a checkpoint holds many of them in memory, and the store keeps them there until it
    /// has written them.
    fn encoded_bytes(&self, sorted: &[FragmentRef]) -> usize {
        let mut bytes = 1 + CHECKSUM_BYTES + if self.holes.is_empty() { 0 } else { MASK_BYTES };
        let mut before = None;
        for fragment in sorted {
            let flags = flags_of(fragment, before);
            bytes += 1 + if flags & SHAPE == 0 { 0 } else { 2 };
            bytes += stored_bytes(fragment.count) + 4 + location_bytes(flags);
            bytes += if flags & PARTIAL == 0 { 0 } else { MASK_BYTES };
            before = Some(fragment);
        }
        bytes
    }

    /// Decodes and checks: the checksum, that units lie within the group, that lengths are
    /// possible, that no block is claimed twice, and that the form is the one
    /// [`encode`](Self::encode) produces.
    ///
    /// # Errors
    /// When one of these is violated.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new("map record", unseal("map record", bytes)?);
        let head = cursor.u8()?;
        if head & COMPACT == 0 {
            return Err(cursor.fail("unknown form"));
        }
        let mut record = Self::default();
        if head & HOLES != 0 {
            record.holes = BlockMask(cursor.u32()?);
            if record.holes.is_empty() {
                return Err(cursor.fail("holes of no blocks"));
            }
        }
        let mut known = record.holes;
        let count = usize::from(head & COUNT_MASK);
        record.fragments.reserve_exact(count);
        for _ in 0..count {
            let fragment = read_fragment(&mut cursor, record.fragments.last())?;
            let live = fragment.live;
            if live.is_empty() || !live.minus(fragment.unit()).is_empty() || !live.and(known).is_empty() {
                return Err(cursor.fail(format!("live mask {:#010x} is impossible", live.0)));
            }
            known = known.or(live);
            record.fragments.push(fragment);
        }
        cursor.end()?;
        Ok(record)
    }
}

/// By which the fragments of a record are sorted.
const fn place(live: BlockMask) -> u32 {
    live.0.trailing_zeros()
}

/// Flags in a fragment's first byte, apart from its first block, relative to the preceding
/// fragment.
fn flags_of(fragment: &FragmentRef, before: Option<&FragmentRef>) -> u8 {
    let is_alike = before.is_some_and(|b| (b.count, b.codec) == (fragment.count, fragment.codec));
    let partial = if fragment.live == fragment.unit() { 0 } else { PARTIAL };
    let far = if fragment.location >> (8 * NEAR_BYTES) == 0 { 0 } else { FAR };
    partial | far | if is_alike { 0 } else { SHAPE }
}

/// Bytes of the length field for that many blocks, less one: two suffice for 64 KiB.
const fn stored_bytes(count: u8) -> usize {
    if count as usize * units::BLOCK_BYTES <= 1 << 16 { 2 } else { 3 }
}

const fn location_bytes(flags: u8) -> usize {
    if flags & FAR == 0 { NEAR_BYTES } else { LOCATION_BYTES }
}

fn read_fragment(cursor: &mut Cursor<'_>, before: Option<&FragmentRef>) -> Result<FragmentRef, FormatError> {
    let head = cursor.u8()?;
    let (count, codec) = match before {
        _ if head & SHAPE != 0 => (cursor.u8()?.wrapping_add(1), cursor.u8()?),
        Some(before) => (before.count, before.codec),
        None => return Err(cursor.fail("the first fragment refers to a preceding one")),
    };
    let mut fragment = FragmentRef {
        live: BlockMask::EMPTY,
        first: head & FIRST_MASK,
        count,
        codec,
        stored: cursor.uint(stored_bytes(count))? as u32 + 1,
        checksum: cursor.u32()?,
        location: cursor.uint(location_bytes(head))?,
    };
    check_unit(cursor, fragment.first, fragment.count, fragment.stored)?;
    fragment.live = if head & PARTIAL == 0 { fragment.unit() } else { BlockMask(cursor.u32()?) };
    if head & !FIRST_MASK != flags_of(&fragment, before) {
        return Err(cursor.fail(format!("fragment at block {} is not in its shortest form", fragment.first)));
    }
    if before.is_some_and(|before| place(before.live) > place(fragment.live)) {
        return Err(cursor.fail(format!("fragment at block {} is out of order", fragment.first)));
    }
    Ok(fragment)
}

/// A unit lies within one group, and is never stored larger than raw.
pub(crate) fn check_unit(cursor: &Cursor<'_>, first: u8, count: u8, stored: u32) -> Result<(), FormatError> {
    let (first, count, stored) = (usize::from(first), usize::from(count), stored as usize);
    if count == 0 || first + count > units::GROUP_BLOCKS {
        return Err(cursor.fail(format!("unit of {count} blocks at block {first} crosses its group")));
    }
    if stored == 0 || stored > count * units::BLOCK_BYTES || stored > GROUP_BYTES {
        return Err(cursor.fail(format!("{stored} bytes stored for {count} blocks")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(first: u8, count: u8, location: u64) -> FragmentRef {
        FragmentRef {
            live: BlockMask::run(first.into(), count.into()),
            first,
            count,
            codec: 16,
            stored: 1000,
            checksum: 0xdead_beef,
            location,
        }
    }

    #[test]
    fn newer_fragments_replace_blocks_and_free_what_is_covered() {
        let mut record = Record::default();
        let mut lost = Vec::new();
        record.put(fragment(0, 8, 100), &mut |f| lost.push((f.location, f.live.0)));
        record.put(fragment(3, 1, 200), &mut |f| lost.push((f.location, f.live.0)));
        assert_eq!(lost, [(100, 0b1000)]);
        assert_eq!(record.fragments[0].live, BlockMask(0b1111_0111));
        record.put_holes(BlockMask(0b11), &mut |f| lost.push((f.location, f.live.0)));
        record.put(fragment(0, 32, 300), &mut |f| lost.push((f.location, f.live.0)));
        assert_eq!(lost, [(100, 0b1000), (100, 0b11), (100, 0b1111_0100), (200, 0b1000)]);
        assert_eq!(record.known(), BlockMask::FULL);
        assert!(record.holes.is_empty());
    }

    #[test]
    fn absorbing_a_change_equals_applying_its_parts() {
        let mut base = Record::default();
        base.put(fragment(0, 16, 1), &mut |_| ());
        base.put(fragment(16, 16, 2), &mut |_| ());
        let mut change = Record::default();
        change.put(fragment(8, 8, 3), &mut |_| ());
        change.put_holes(BlockMask::run(0, 8), &mut |_| ());
        let mut lost = Vec::new();
        base.absorb(&change, &mut |f| lost.push((f.location, f.live)));
        assert_eq!(lost, [(1, BlockMask::run(0, 16))]);
        assert_eq!(base.holes, BlockMask::run(0, 8));
        assert_eq!(base.fragments.len(), 2);
        // Absorbing the same change again changes nothing but the order.
        let before = base.encode();
        base.absorb(&change, &mut |_| ());
        assert_eq!(base.encode(), before);
    }

    #[test]
    fn shares_of_disjoint_masks_add_up() {
        for (count, stored) in [(32u8, 7u32), (32, 32), (32, 131_072), (8, 3001), (7, 4099), (1, 1), (3, 2)] {
            for first in [0u8, 32 - count] {
                let unit = FragmentRef { stored, ..fragment(first, count, 0) };
                for bits in [1u32, 0x5555_5555, 0xf0f0_f0f0, 0x8000_0001, 0x0003_ffff] {
                    let (one, other) = (unit.unit().and(BlockMask(bits)), unit.unit().minus(BlockMask(bits)));
                    let share = |live: BlockMask| FragmentRef { live, ..unit }.live_bytes();
                    assert_eq!(share(one) + share(other), unit.live_bytes(), "{count} blocks, {stored} bytes");
                    assert_eq!(unit.live_bytes(), stored.max(count.into()));
                    assert!(share(one) >= one.count() && share(other) >= other.count());
                }
            }
        }
    }

    #[test]
    fn encoding_round_trips_and_every_flipped_bit_is_noticed() {
        let mut record = Record::default();
        record.put(fragment(0, 32, (1 << 48) - 1), &mut |_| ());
        record.put(fragment(4, 2, 4096), &mut |_| ());
        record.put_holes(BlockMask(1 << 31), &mut |_| ());
        let bytes = record.encode();
        assert_eq!(bytes.capacity(), bytes.len());
        let mut again = Record::decode(&bytes).unwrap();
        again.fragments.sort_by_key(|f| std::cmp::Reverse(f.location));
        assert_eq!(again, record);
        crate::cursor::expect_every_bit_to_count(&bytes, |bytes| Record::decode(bytes).is_err());
        for len in 0..bytes.len() {
            assert!(Record::decode(&bytes[..len]).is_err());
        }
    }

    /// `body` and its crc32c.
    fn sealed(body: &[u8]) -> Vec<u8> {
        let mut bytes = body.to_vec();
        seal(&mut bytes);
        bytes
    }

    /// Numbers that look random, and are the same each time.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % end
        }

        /// A record that some writes and discards of a group may leave, sorted as it is encoded.
        fn record(&mut self) -> Record {
            let mut record = Record::default();
            for _ in 0..self.below(24) {
                let first = self.below(32);
                let count = [1, 1, 1, 1 + self.below(4), 32][self.below(5) as usize].min(32 - first);
                if self.below(8) == 0 {
                    record.put_holes(BlockMask::run(first as u32, count as u32), &mut |_| ());
                    continue;
                }
                let location = [1 << 30, 1 << 30, 1 << 31][self.below(3) as usize];
                let fragment = FragmentRef {
                    codec: [16, 16, 65, 0][self.below(4) as usize],
                    stored: 1 + self.below(count * 4096) as u32,
                    checksum: self.below(1 << 31) as u32,
                    location: self.below(location) << [0, 10, 17][self.below(3) as usize],
                    ..fragment(first as u8, count as u8, 0)
                };
                record.put(fragment, &mut |_| ());
            }
            record.fragments.sort_by_key(|f| place(f.live));
            record
        }
    }

    #[test]
    fn whatever_is_written_round_trips() {
        let mut dice = Dice(1);
        for _ in 0..3000 {
            let record = dice.record();
            let bytes = record.encode();
            assert_eq!(Record::decode(&bytes).as_ref(), Ok(&record));
            assert_eq!(bytes.capacity(), bytes.len());
        }
    }

    /// Also where the checksum is right: no record has two encodings.
    #[test]
    fn what_decodes_is_what_would_be_encoded() {
        let mut dice = Dice(2);
        let expect = |body: &[u8]| {
            let bytes = sealed(body);
            if let Ok(record) = Record::decode(&bytes) {
                assert_eq!(record.encode(), bytes);
            }
        };
        for _ in 0..300 {
            let bytes = dice.record().encode();
            let mut body = bytes[..bytes.len() - CHECKSUM_BYTES].to_vec();
            for bit in 0..body.len() * 8 {
                body[bit / 8] ^= 1 << (bit % 8);
                expect(&body);
                body[bit / 8] ^= 1 << (bit % 8);
            }
            for len in 0..body.len() {
                assert!(Record::decode(&sealed(&body[..len])).is_err(), "{len} of {}", body.len());
            }
            body.push(0);
            assert!(Record::decode(&sealed(&body)).is_err());
        }
    }

    #[test]
    fn what_says_more_than_it_must_is_refused() {
        let one = [SHAPE, 0, 16, 0xe7, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9];
        let alike = [1, 0xe7, 3, 1, 2, 3, 4, 5, 6, 7, 8, 10];
        let decode = |parts: &[&[u8]]| Record::decode(&sealed(&parts.concat()));
        let (more, crosses) = ("not in its shortest form", "crosses its group");
        assert_eq!(decode(&[&[COMPACT | 2], &one, &alike]).unwrap().fragments.len(), 2);
        let again = [SHAPE | 1, 0, 16, 0xe7, 3, 1, 2, 3, 4, 5, 6, 7, 8, 10];
        let far = [FAR | 1, 0xe7, 3, 1, 2, 3, 4, 5, 6, 7, 8, 10, 0];
        let masked = [PARTIAL | 1, 0xe7, 3, 1, 2, 3, 4, 5, 6, 7, 8, 10, 2, 0, 0, 0];
        let (first, later) = ([&[SHAPE | 1], &one[1..]].concat(), [&[0], &alike[1..]].concat());
        let wrong: [(&str, &str, [&[u8]; 3]); 10] = [
            ("unknown form", "bit 6 is not set", [&[2], &one, &alike]),
            (more, "number of blocks and codec are those of the fragment before", [&[COMPACT | 2], &one, &again]),
            (more, "six bytes for a location of five", [&[COMPACT | 2], &one, &far]),
            (more, "a mask of all of the unit", [&[COMPACT | 2], &one, &masked]),
            ("refers to a preceding one", "nothing is before the first fragment", [&[COMPACT | 2], &alike, &one]),
            ("out of order", "the later one first", [&[COMPACT | 2], &first, &later]),
            ("holes of no blocks", "none are said to be there", [&[COMPACT | HOLES | 1], &[0; 4], &one]),
            ("4097 bytes stored", "more than is raw", [&[COMPACT | 1], &[SHAPE, 0, 16, 0, 16], &one[5..]]),
            (crosses, "no blocks", [&[COMPACT | 1], &[SHAPE, 255, 16, 0, 1], &one[5..]]),
            (crosses, "blocks behind the group", [&[COMPACT | 1], &[SHAPE | 31, 1, 16, 0, 1], &one[5..]]),
        ];
        for (why, what, parts) in wrong {
            let error = decode(&parts).unwrap_err().detail;
            assert!(error.contains(why), "{what}: {error}");
        }
    }

    #[test]
    fn a_block_of_its_own_takes_twelve_bytes() {
        let of = |count: u8, location: u64| {
            let fragments = (0..32 / count).map(|n| fragment(n * count, count, location + u64::from(n)));
            Record { holes: BlockMask::EMPTY, fragments: fragments.collect() }
        };
        let near = (1 << 40) - 32;
        for (what, record, bytes) in [
            ("nothing", Record::default(), 5),
            ("holes", Record { holes: BlockMask(1), ..Record::default() }, 9),
            ("32 units of one block", of(1, near), 5 + 2 + 32 * 12),
            ("the same beyond the first TiB", of(1, 1 << 40), 5 + 2 + 32 * 13),
            ("8 units of four blocks", of(4, near), 5 + 2 + 8 * 12),
            ("2 units of 16 blocks", of(16, near), 5 + 2 + 2 * 12),
            ("one of 32", of(32, near), 5 + 2 + 13),
        ] {
            assert_eq!(Record::decode(&record.encode()), Ok(record.clone()), "{what}");
            assert_eq!(record.encode().len(), bytes, "{what}");
        }
    }

    /// The bytes themselves: two programs must agree on them.
    #[test]
    fn encodings_are_as_they_are_written_down() {
        let mut record = Record { holes: BlockMask(1 << 31), ..Record::default() };
        record.put(FragmentRef { stored: 65_536, ..fragment(2, 17, 0x0102_0304_0506) }, &mut |_| ());
        record.put(FragmentRef { stored: 4096, codec: 0, ..fragment(4, 1, 0x1000) }, &mut |_| ());
        record.put(FragmentRef { stored: 1, codec: 0, ..fragment(20, 1, 0xff_ffff_ffff) }, &mut |_| ());
        #[rustfmt::skip]
        let body = [
            0xc3, 0, 0, 0, 0x80,
            0xe2, 16, 16, 0xff, 0xff, 0, 0xef, 0xbe, 0xad, 0xde, 6, 5, 4, 3, 2, 1, 0xec, 0xff, 7, 0,
            0x44, 0, 0, 0xff, 0x0f, 0xef, 0xbe, 0xad, 0xde, 0, 0x10, 0, 0, 0,
            0x14, 0, 0, 0xef, 0xbe, 0xad, 0xde, 0xff, 0xff, 0xff, 0xff, 0xff,
        ];
        assert_eq!(record.encode(), sealed(&body));
        assert_eq!(Record::decode(&sealed(&body)), Ok(record));
        crate::cursor::expect_every_bit_to_count(&sealed(&body), |bytes| Record::decode(bytes).is_err());
    }
}
