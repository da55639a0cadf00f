//! The map record: where each block of one group lies that was written in one epoch.
//!
//! The same type serves as a change to a record: what it names replaces what an older record says, what it does not
//! name falls through to it.

use units::{BlockMask, GROUP_BYTES};

use crate::FormatError;
use crate::cursor::{Cursor, put_uint, seal, unseal};

/// Bytes of a place in the data file.
pub(crate) const LOCATION_BYTES: usize = 6;
/// Bytes of a mask of blocks.
const MASK_BYTES: usize = 4;
/// Bytes of a fragment without a mask of its own: place in the group and length, codec, stored bytes, checksum, location.
const FRAGMENT_BYTES: usize = 3 + 3 + 4 + LOCATION_BYTES;
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

    /// The share of the stored bytes that the live blocks stand for: what cleaning would keep of a unit of which some blocks
    /// were overwritten. Shares of disjoint live masks add up, those of all blocks to the stored bytes, and no block
    /// counts less than one byte: so an extent's sum is zero if and only if nothing refers to it.
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

/// What is known of the blocks of one group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// Blocks that read as zeroes whatever older epochs say.
    pub holes: BlockMask,
    /// Fragments; their live masks are disjoint, and disjoint from `holes`.
    pub fragments: Vec<FragmentRef>,
}

const FLAG_HOLES: u8 = 0x80;
const COUNT_MASK: u8 = 0x3f;
const PARTIAL: u8 = 0x80;

impl Record {
    /// Blocks of which the record says something.
    pub fn known(&self) -> BlockMask {
        self.fragments.iter().fold(self.holes, |mask, f| mask.or(f.live))
    }

    /// Blocks that hold data.
    pub fn allocated(&self) -> BlockMask {
        self.fragments.iter().fold(BlockMask::EMPTY, |mask, f| mask.or(f.live))
    }

    /// Whether the record says nothing.
    pub fn is_empty(&self) -> bool {
        self.holes.is_empty() && self.fragments.is_empty()
    }

    /// Forgets what it says of `blocks`; `lost` gets each fragment that loses blocks, its live mask cut down to those.
    pub fn forget(&mut self, blocks: BlockMask, lost: &mut dyn FnMut(&FragmentRef)) {
        // No block has two fragments: most changes concern one, and the others need not be looked at.
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

    /// A newer fragment replaces whatever its live blocks were.
    pub fn put(&mut self, fragment: FragmentRef, lost: &mut dyn FnMut(&FragmentRef)) {
        self.forget(fragment.live, lost);
        self.fragments.push(fragment);
    }

    /// `blocks` read as zeroes from now on.
    pub fn put_holes(&mut self, blocks: BlockMask, lost: &mut dyn FnMut(&FragmentRef)) {
        self.forget(blocks, lost);
        self.holes = self.holes.or(blocks);
    }

    /// Applies a newer change. `lost` gets what this record's fragments lose by it, each with those blocks as its live mask.
    pub fn absorb(&mut self, newer: &Self, lost: &mut dyn FnMut(&FragmentRef)) {
        self.forget(newer.known(), lost);
        self.holes = self.holes.or(newer.holes);
        self.fragments.extend_from_slice(&newer.fragments);
    }

    /// Encodes: a byte with the number of fragments (bits 0-5) and whether holes follow (bit 7); holes (4) if so; per
    /// fragment: first block | 0x80 if the live mask follows (1), count - 1 (1), codec (1), stored bytes (3),
    /// checksum (4), location (6), live mask if so (4); crc32c of all that (4).
    pub fn encode(&self) -> Vec<u8> {
        let mut fragments = self.fragments.clone();
        fragments.sort_unstable_by_key(|f| f.live.0.trailing_zeros());
        let mut out = Vec::with_capacity(self.encoded_bytes());
        let flags = if self.holes.is_empty() { 0 } else { FLAG_HOLES };
        out.push(fragments.len() as u8 | flags);
        if !self.holes.is_empty() {
            put_uint(&mut out, self.holes.0.into(), MASK_BYTES);
        }
        for fragment in &fragments {
            let partial = fragment.live != fragment.unit();
            out.push(fragment.first | if partial { PARTIAL } else { 0 });
            out.push(fragment.count - 1);
            out.push(fragment.codec);
            put_uint(&mut out, fragment.stored.into(), 3);
            put_uint(&mut out, fragment.checksum.into(), 4);
            put_uint(&mut out, fragment.location, LOCATION_BYTES);
            if partial {
                put_uint(&mut out, fragment.live.0.into(), MASK_BYTES);
            }
        }
        seal(&mut out);
        out
    }

    /// Exactly: a checkpoint has many of them in memory, and the store keeps them there until it has written them.
    fn encoded_bytes(&self) -> usize {
        let partial = self.fragments.iter().filter(|f| f.live != f.unit()).count();
        let masks = partial + usize::from(!self.holes.is_empty());
        1 + FRAGMENT_BYTES * self.fragments.len() + MASK_BYTES * masks + CHECKSUM_BYTES
    }

    /// Decodes and checks: the checksum, that units lie within the group, that lengths are possible, and that no block
    /// is claimed twice.
    ///
    /// # Errors
    /// When any of that does not hold.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new("map record", unseal("map record", bytes)?);
        let head = cursor.u8()?;
        let mut record = Self::default();
        if head & FLAG_HOLES != 0 {
            record.holes = BlockMask(cursor.u32()?);
        }
        let mut known = record.holes;
        let count = usize::from(head & COUNT_MASK);
        record.fragments.reserve_exact(count);
        for _ in 0..count {
            let first = cursor.u8()?;
            let mut fragment = FragmentRef {
                live: BlockMask::EMPTY,
                first: first & !PARTIAL,
                count: cursor.u8()?.wrapping_add(1),
                codec: cursor.u8()?,
                stored: cursor.uint(3)? as u32,
                checksum: cursor.u32()?,
                location: cursor.uint(LOCATION_BYTES)?,
            };
            check_unit(&cursor, fragment.first, fragment.count, fragment.stored)?;
            fragment.live = if first & PARTIAL == 0 { fragment.unit() } else { BlockMask(cursor.u32()?) };
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
        // Absorbing the same change again alters nothing but the order.
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
        let full = Record { holes: BlockMask::EMPTY, fragments: (0..32).map(|b| fragment(b, 1, b.into())).collect() };
        assert_eq!(Record::decode(&full.encode()).unwrap(), full);
        let encoded = full.encode();
        assert_eq!([encoded.len(), encoded.capacity()], [1 + 32 * 16 + 4; 2]);
    }
}
