//! Divides dirty blocks into units, and sets the saving below which a unit is stored raw.

use units::{BlockMask, GROUP_BLOCKS};

use crate::Settings;

/// Consecutive blocks of one group that are compressed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// Position of the first block within the group, 0 to 31.
    pub first: u32,
    /// Number of blocks, at least 1.
    pub count: u32,
}

impl Unit {
    /// Its blocks.
    pub const fn mask(self) -> BlockMask {
        BlockMask::run(self.first, self.count)
    }
}

/// Divides the dirty blocks of a group into units, in order.
///
/// Units never cross a multiple of `unit_blocks` within the group: so a sequential rewrite replaces
/// whole units, wherever it begins, and leaves no unit partly dead.
pub fn plan_units(mask: BlockMask, unit_blocks: u32) -> impl Iterator<Item = Unit> {
    let window = unit_blocks.clamp(1, GROUP_BLOCKS as u32);
    let mut rest = mask;
    std::iter::from_fn(move || {
        let (first, run) = rest.first_run()?;
        let count = run.min(window - first % window);
        rest = rest.minus(BlockMask::run(first, count));
        Some(Unit { first, count })
    })
}

/// Blocks of a unit for the dirty data of a group, within the limits of the settings.
///
/// - Data that is read in small pieces gets the smallest units: a piece costs the decoding of all
///   before it.
/// - A group that was written as a whole is part of a stream and gets the largest.
/// - Everything else, rewrites in the middle of something for example, gets a size in between.
pub fn unit_blocks(settings: &Settings, dirty: BlockMask, read_in_pieces: bool) -> u32 {
    let (low, high) = (settings.unit_blocks_min.max(1), settings.unit_blocks.max(1));
    if low >= high || dirty == BlockMask::FULL && !read_in_pieces {
        return high;
    }
    if read_in_pieces { low } else { 1 << u32::midpoint(low.ilog2(), high.ilog2()) }
}

/// The largest stored length that still saves enough of `raw_len` bytes; a unit that does not fit
/// is stored raw. Always less than `raw_len`, because a unit without savings is not worth decoding.
pub fn dst_limit(raw_len: usize, settings: &Settings) -> usize {
    dst_limit_permille(raw_len, settings.min_saving_permille)
}

/// The same, given the least saving in thousandths.
pub fn dst_limit_permille(raw_len: usize, min_saving_permille: u32) -> usize {
    let saving = (raw_len * min_saving_permille as usize).div_ceil(1000);
    raw_len.saturating_sub(saving.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(mask: u32, unit_blocks: u32) -> Vec<(u32, u32)> {
        plan_units(BlockMask(mask), unit_blocks).map(|u| (u.first, u.count)).collect()
    }

    #[test]
    fn units_by_table() {
        for (mask, unit_blocks, expected) in [
            (0, 8, vec![]),
            (1, 8, vec![(0, 1)]),
            (u32::MAX, 8, vec![(0, 8), (8, 8), (16, 8), (24, 8)]),
            (u32::MAX, 32, vec![(0, 32)]),
            // A run that begins in the middle is cut at the next multiple.
            (0x0000_fff8, 8, vec![(3, 5), (8, 8)]),
            (0x0000_0fc0, 4, vec![(6, 2), (8, 4)]),
            // Gaps end a unit.
            (0b1011_0110, 8, vec![(1, 2), (4, 2), (7, 1)]),
            (0x8000_0001, 32, vec![(0, 1), (31, 1)]),
            (0b111, 1, vec![(0, 1), (1, 1), (2, 1)]),
            // Sizes that no property allows are brought into range.
            (0b11, 0, vec![(0, 1), (1, 1)]),
            (u32::MAX, 99, vec![(0, 32)]),
        ] {
            assert_eq!(plan(mask, unit_blocks), expected, "mask {mask:#x}, unit {unit_blocks}");
        }
    }

    #[test]
    fn sizes_by_use() {
        let of = |low, high, mask: u32, pieces| {
            let settings = Settings { unit_blocks_min: low, unit_blocks: high, ..Settings::default() };
            unit_blocks(&settings, BlockMask(mask), pieces)
        };
        for (low, high, mask, pieces, expected) in [
            (8, 8, 1, false, 8),
            (8, 8, u32::MAX, true, 8),
            (2, 32, u32::MAX, false, 32),
            (2, 32, u32::MAX, true, 2),
            (2, 32, 0xff, false, 8),
            (4, 32, 0xff, false, 8),
            (2, 32, 0xff, true, 2),
            (0, 0, 0xff, false, 1),
        ] {
            assert_eq!(of(low, high, mask, pieces), expected, "{low} to {high}, {mask:#x}, {pieces}");
        }
    }

    proptest::proptest! {
        #[test]
        fn units_cover_the_mask_once_and_are_maximal(mask: u32, shift in 0u32..6) {
            let unit_blocks = 1 << shift;
            let mut covered = BlockMask::EMPTY;
            for unit in plan_units(BlockMask(mask), unit_blocks) {
                assert!(covered.and(unit.mask()).is_empty());
                covered = covered.or(unit.mask());
                assert_eq!(unit.first / unit_blocks, (unit.first + unit.count - 1) / unit_blocks);
                let next = unit.first + unit.count;
                assert!(next % unit_blocks == 0 || !BlockMask(mask).has(next));
            }
            assert_eq!(covered, BlockMask(mask));
        }
    }

    #[test]
    fn limits_by_table() {
        for (raw_len, permille, expected) in [
            (4096, 125, 3584),
            (32768, 125, 28672),
            (131_072, 125, 114_688),
            (4096, 0, 4095),
            (4096, 900, 409),
            (4096, 1, 4091),
            (1, 125, 0),
            (0, 125, 0),
        ] {
            let settings = Settings { min_saving_permille: permille, ..Settings::default() };
            assert_eq!(dst_limit(raw_len, &settings), expected, "{raw_len} bytes, {permille} permille");
        }
    }
}
