//! The memory of regions of objects, for the policy: a table of a fixed number of words. Two
//! regions that share a slot evict each other, which costs a test and nothing else; so there are no
//! locks and no lists.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use policy::{REGION_BITS, Region};
use store::base::hash::MULTIPLIER;
use units::{BlockIndex, ObjectId};

/// Blocks of a region (4 MiB): 128 units of the default size.
pub(crate) const REGION_BLOCKS: u64 = 1024;
/// Minimum and maximum number of regions remembered (8 bytes each): the maximum is 1 TiB of
/// regions, for 2 MiB.
const SLOTS_MIN: usize = 1 << 10;
const SLOTS_MAX: usize = 1 << 18;
/// Bytes of the memory budget for each region.
const BUDGET_PER_SLOT: u64 = 8 << 10;
/// Partial reads after which a region is treated as read in pieces, and the maximum that is
/// counted; each group written subtracts one.
const PIECES_MANY: u8 = 16;
const PIECES_MAX: u8 = 64;

/// The region of its object to which data belongs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(u64);

impl Place {
    /// The region of a block.
    pub(crate) const fn of(block: BlockIndex) -> Self {
        Self(block.0 / REGION_BLOCKS)
    }
    /// The region for small pieces of one kind of data in an object, at any address.
    pub(crate) const fn of_kind(kind: u16) -> Self {
        // No block has a number this high.
        Self((1 << 53) | kind as u64)
    }
    /// Its number.
    pub(crate) const fn number(self) -> u64 {
        self.0
    }
}

/// A region of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegionKey(u64);

impl RegionKey {
    /// A region by its place.
    pub(crate) const fn at(object: ObjectId, place: Place) -> Self {
        let word = place.0 ^ object.0.rotate_left(40);
        Self((word ^ (word >> 29)).wrapping_mul(MULTIPLIER))
    }
    /// The region in which a block lies.
    pub(crate) const fn of(object: ObjectId, block: BlockIndex) -> Self {
        Self::at(object, Place::of(block))
    }
    /// The region of a kind of data.
    pub(crate) const fn of_kind(object: ObjectId, kind: u16) -> Self {
        Self::at(object, Place::of_kind(kind))
    }
    const fn tag(self) -> u64 {
        self.0 & ((1 << (u64::BITS - REGION_BITS)) - 1)
    }
}

pub(crate) struct Regions {
    slots: Box<[AtomicU64]>,
    /// Partial reads, in the same slots.
    pieces: Box<[AtomicU8]>,
}

impl Regions {
    /// Makes as many slots as a budget allows.
    pub(crate) fn new(memory_bytes: u64) -> Self {
        let count = ((memory_bytes / BUDGET_PER_SLOT) as usize).clamp(SLOTS_MIN, SLOTS_MAX).next_power_of_two();
        Self {
            slots: (0..count).map(|_| AtomicU64::new(0)).collect(),
            pieces: (0..count).map(|_| AtomicU8::new(0)).collect(),
        }
    }

    fn place(&self, key: RegionKey) -> usize {
        (key.0 >> (u64::BITS - self.slots.len().ilog2())) as usize
    }

    /// Returns the memory of a region; nothing if another region has evicted it.
    pub(crate) fn get(&self, key: RegionKey) -> Region {
        let word = self.slots[self.place(key)].load(Ordering::Relaxed);
        if word >> REGION_BITS == key.tag() { Region::from_bits(word) } else { Region::default() }
    }

    /// Remembers.
    pub(crate) fn put(&self, key: RegionKey, region: Region) {
        self.slots[self.place(key)].store(region.bits() | key.tag() << REGION_BITS, Ordering::Relaxed);
    }

    /// Records that a small piece of a unit was read.
    pub(crate) fn read_piece(&self, key: RegionKey) {
        let count = &self.pieces[self.place(key)];
        let now = count.load(Ordering::Relaxed);
        if now < PIECES_MAX {
            count.store(now + 1, Ordering::Relaxed);
        }
    }

    /// Whether the region is read in pieces, for callers that write nothing there.
    pub(crate) fn seems_read_in_pieces(&self, key: RegionKey) -> bool {
        self.pieces[self.place(key)].load(Ordering::Relaxed) >= PIECES_MANY
    }

    /// Returns whether the region is read in pieces. Called once for each group written, which
    /// subtracts one from the count.
    pub(crate) fn is_read_in_pieces(&self, key: RegionKey) -> bool {
        let count = &self.pieces[self.place(key)];
        let now = count.load(Ordering::Relaxed);
        count.store(now.saturating_sub(1), Ordering::Relaxed);
        now >= PIECES_MANY
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::CodecId;
    use policy::Class;

    #[test]
    fn regions_are_remembered_apart_and_forgotten_when_there_are_too_many() {
        let regions = Regions::new(0);
        let key = |object, region: u64| RegionKey::of(ObjectId(object), BlockIndex(region * REGION_BLOCKS + 7));
        let memory = |n: usize| Region::default().after_test(Class::DENSE, CodecId(n as u8), 1000, n);
        for n in 0..100 {
            regions.put(key(1 + n % 3, n), memory(n as usize));
        }
        let known = (0..100).filter(|n| regions.get(key(1 + n % 3, *n)) == memory(*n as usize)).count();
        assert!(known > 85, "{known} of 100 among {} places", regions.slots.len());
        assert_eq!(RegionKey::of(ObjectId(5), BlockIndex(1023)), RegionKey::of(ObjectId(5), BlockIndex(0)));
        for n in 1000..100_000 {
            regions.put(key(9, n), memory(3));
        }
        assert!((0..100).all(|n| regions.get(key(1 + n % 3, n)) == Region::default()));
    }

    #[test]
    fn reads_in_pieces_are_counted_and_forgotten() {
        let regions = Regions::new(0);
        let key = RegionKey::of(ObjectId(1), BlockIndex(0));
        assert!(!regions.is_read_in_pieces(key));
        for _ in 0..200 {
            regions.read_piece(key);
        }
        assert_eq!(
            (0..100).filter(|_| regions.is_read_in_pieces(key)).count(),
            usize::from(PIECES_MAX - PIECES_MANY) + 1
        );
    }
}
