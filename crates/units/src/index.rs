//! Indexes and identifiers. Each is a newtype, so that a block is never mistaken for a byte.

use crate::{BLOCK_BYTES, COPY_SHIFT, GROUP_BLOCKS};

/// Index of a 4 KiB block within an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockIndex(pub u64);

/// Index of a 32-block group within an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupIndex(pub u64);

/// Identifier of an object; never reused within a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u64);

/// Counter of an object's snapshots. Each write belongs to the epoch that was current when it was
/// made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u32);

/// Index of an extent in the data file. Extent 0 holds the superblock and is never allocated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentIndex(pub u32);

/// Sequence number of a batch: increases by exactly one along the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

/// A set of blocks of one group: bit `i` is block `i` of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BlockMask(pub u32);

impl BlockIndex {
    /// The block that holds byte `offset` of an object.
    pub const fn containing(offset_bytes: u64) -> Self {
        Self(offset_bytes / BLOCK_BYTES as u64)
    }
    /// First byte of the block; of a copy, that of its original.
    pub const fn offset_bytes(self) -> u64 {
        self.original().0 * BLOCK_BYTES as u64
    }
    /// Which copy of a block it is: 0 for the original.
    pub const fn copy(self) -> u8 {
        (self.0 >> COPY_SHIFT) as u8
    }
    /// The block that it is a copy of, or itself.
    pub const fn original(self) -> Self {
        Self(self.0 & ((1 << COPY_SHIFT) - 1))
    }
    /// The copy of that number of its original.
    pub const fn nth_copy(self, number: u8) -> Self {
        Self(self.original().0 | (number as u64) << COPY_SHIFT)
    }
    /// The group that the block belongs to.
    pub const fn group(self) -> GroupIndex {
        GroupIndex(self.0 / GROUP_BLOCKS as u64)
    }
    /// Position of the block within its group, 0 to 31.
    pub const fn in_group(self) -> u32 {
        (self.0 % GROUP_BLOCKS as u64) as u32
    }
}

impl GroupIndex {
    /// First block of the group.
    pub const fn first_block(self) -> BlockIndex {
        BlockIndex(self.0 * GROUP_BLOCKS as u64)
    }
    /// Which copy of a group it is: 0 for the original.
    pub const fn copy(self) -> u8 {
        self.first_block().copy()
    }
    /// The copy of that number of its original; number 0 is the original.
    pub const fn nth_copy(self, number: u8) -> Self {
        self.first_block().nth_copy(number).group()
    }
}

impl BlockMask {
    /// No block.
    pub const EMPTY: Self = Self(0);
    /// All blocks of a group.
    pub const FULL: Self = Self(u32::MAX);

    /// Blocks `first` to `first + count - 1`, cut off at the end of the group.
    pub const fn run(first: u32, count: u32) -> Self {
        if count == 0 || first >= 32 {
            return Self(0);
        }
        let ones = if count >= 32 { u32::MAX } else { (1 << count) - 1 };
        Self(ones << first)
    }
    /// Whether block `index` is in the set.
    pub const fn has(self, index: u32) -> bool {
        index < 32 && self.0 >> index & 1 == 1
    }
    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// Number of blocks in the set.
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }
    /// Blocks in both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    /// Blocks in either set.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// Blocks of this set that are not in `other`.
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
    /// The first run of consecutive blocks: (first, count).
    pub const fn first_run(self) -> Option<(u32, u32)> {
        if self.0 == 0 {
            return None;
        }
        let first = self.0.trailing_zeros();
        let count = (!(self.0 >> first)).trailing_zeros();
        // `count` is at most 32 - first, because the shift brings in zeros.
        Some((first, count))
    }
    /// All blocks of the windows that hold a block of the set. A window has `window` blocks, a power
    /// of two, and begins at a multiple of that.
    pub fn widened(self, window: u32) -> Self {
        let windows = (0..32).step_by(window.clamp(1, 32) as usize).map(|first| Self::run(first, window));
        windows.filter(|blocks| !blocks.and(self).is_empty()).fold(Self::EMPTY, Self::or)
    }
    /// All runs of consecutive blocks, in order.
    pub fn runs(self) -> impl Iterator<Item = (u32, u32)> {
        let mut rest = self;
        std::iter::from_fn(move || {
            let (first, count) = rest.first_run()?;
            rest = rest.minus(Self::run(first, count));
            Some((first, count))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_exactly_the_set() {
        for bits in [0, 1, u32::MAX, 0x8000_0001, 0x0ff0_1234, 0xffff_0000, 0x7fff_ffff] {
            let mask = BlockMask(bits);
            let mut again = BlockMask::EMPTY;
            for (first, count) in mask.runs() {
                let run = BlockMask::run(first, count);
                assert!(again.and(run).is_empty());
                again = again.or(run);
            }
            assert_eq!(again, mask);
        }
    }

    #[test]
    fn a_copy_has_the_offset_of_its_original_and_a_group_of_its_own() {
        let block = BlockIndex((1 << 51) - 7);
        assert_eq!((block.copy(), block.group().copy()), (0, 0));
        for number in 1..=crate::COPIES_MAX {
            let copy = block.nth_copy(number);
            assert_eq!((copy.copy(), copy.original(), copy.offset_bytes()), (number, block, block.offset_bytes()));
            assert_eq!((copy.group(), copy.in_group()), (block.group().nth_copy(number), block.in_group()));
            assert_eq!((copy.group().copy(), copy.group().nth_copy(0)), (number, block.group()));
            assert!(copy.group() > block.group().nth_copy(number - 1));
        }
    }

    #[test]
    fn widened_sets_have_whole_windows() {
        for (bits, window, expected) in [
            (0, 4, 0),
            (0b10_0000, 1, 0b10_0000),
            (0b10_0000, 4, 0xf0),
            (0x8000_0001, 8, 0xff00_00ff),
            (0x0002_0000, 16, 0xffff_0000),
            (1, 32, u32::MAX),
        ] {
            assert_eq!(BlockMask(bits).widened(window), BlockMask(expected), "{bits:#x} by {window}");
        }
    }

    #[test]
    fn run_is_cut_at_the_end_of_the_group() {
        assert_eq!(BlockMask::run(30, 5), BlockMask(0xc000_0000));
        assert_eq!(BlockMask::run(0, 32), BlockMask::FULL);
        assert_eq!(BlockMask::run(32, 1), BlockMask::EMPTY);
        assert_eq!(BlockMask::run(3, 0), BlockMask::EMPTY);
    }
}
