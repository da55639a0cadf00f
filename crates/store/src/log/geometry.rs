//! Positions of extents in the data file, and values that follow from the extent size.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use units::{BLOCK_BYTES, ExtentIndex, GROUP_BLOCKS};

use crate::log::Purpose;

/// Fewest extents of a pool: the superblock's, the reserve, and some to work with.
pub const EXTENTS_MIN: u32 = 16;
/// Extents reserved from data and cleaning, so that discards, deletions and checkpoints work in a
/// full pool. An extent with only such entries has no live bytes, so the next checkpoint frees it
/// again: a handful always suffices.
const METADATA_EXTENTS: u64 = 4;
/// Further extents that only cleaning may take: the live data of one extent, with the larger
/// entries of moves, fits in two for certain. A checkpoint later there is one more than before, and
/// the won space.
pub const CLEAN_EXTENTS: u64 = 2;

/// Of the metadata's extents, those withheld even from a cleaner whose own were lost in a crash.
const RESCUE_EXTENTS: usize = 1;

/// See [`Geometry::held_below`]: for the survivors of one extent, and for entries.
const HELD_BELOW_EXTENTS: usize = 3;

/// The geometry of a pool. Clones share the number of extents, which grows while the pool is open.
#[derive(Debug, Clone)]
pub struct Geometry {
    pub extent_bytes: u32,
    extents: Arc<AtomicU32>,
    /// Extents from this one on take no new data: the pool is being shrunk.
    mark: Arc<AtomicU32>,
    /// Most copies of a block that were written, in addition to the block itself.
    copies: Arc<AtomicU32>,
}

impl Geometry {
    pub fn new(extent_bytes: u32, capacity_bytes: u64) -> Self {
        let extents = u32::try_from(capacity_bytes / u64::from(extent_bytes)).unwrap_or(u32::MAX);
        Self {
            extent_bytes,
            extents: Arc::new(AtomicU32::new(extents)),
            mark: Arc::new(AtomicU32::new(u32::MAX)),
            copies: Arc::default(),
        }
    }

    /// Extents in the data file, the superblock's included.
    #[inline]
    pub fn extents(&self) -> u32 {
        self.extents.load(Ordering::Acquire)
    }

    /// Sets a larger number of extents.
    pub fn grow(&self, extents: u32) {
        self.extents.fetch_max(extents, Ordering::AcqRel);
    }

    /// Sets a smaller number of extents; the others are empty.
    pub fn shrink(&self, extents: u32) {
        self.extents.fetch_min(extents, Ordering::AcqRel);
        self.set_mark(None);
    }

    /// Returns the extents that take new data: those before the mark, if there is one.
    #[inline]
    pub fn extents_usable(&self) -> u32 {
        self.extents().min(self.mark.load(Ordering::Acquire))
    }

    /// Sets the mark, or removes it.
    pub fn set_mark(&self, mark: Option<u32>) {
        self.mark.store(mark.unwrap_or(u32::MAX), Ordering::Release);
    }

    /// First byte of an extent.
    #[inline]
    pub fn start(&self, extent: ExtentIndex) -> u64 {
        u64::from(extent.0) * u64::from(self.extent_bytes)
    }

    /// The extent that holds a byte.
    #[inline]
    pub fn extent_at(&self, location: u64) -> ExtentIndex {
        ExtentIndex((location / u64::from(self.extent_bytes)) as u32)
    }

    /// Whether `len` bytes at `location` lie within one extent that may hold data.
    #[inline]
    pub fn holds(&self, location: u64, len: u32) -> bool {
        let extent = location / u64::from(self.extent_bytes);
        extent >= 1
            && extent < u64::from(self.extents())
            && location % u64::from(self.extent_bytes) + u64::from(len) <= u64::from(self.extent_bytes)
    }

    /// Returns the number of extents that the log withholds from a batch of this purpose. Data and
    /// moves have the same limit: their admission (`space::admission`, `clean::round`) ensures that
    /// each has room, since both fill the extent that is open.
    pub fn kept_back(&self, purpose: Purpose) -> usize {
        match purpose {
            Purpose::Data | Purpose::Clean => METADATA_EXTENTS as usize,
            Purpose::Rescue => RESCUE_EXTENTS,
            Purpose::Metadata => 0,
        }
    }

    /// Returns the number of extents ahead with allocated space that the log withholds from a batch
    /// of this purpose. The file system may run out of space even if the pool has some: moves, and
    /// entries that free space, must still find room.
    pub(crate) fn held_below(&self, purpose: Purpose) -> usize {
        match purpose {
            Purpose::Data => HELD_BELOW_EXTENTS,
            Purpose::Clean | Purpose::Rescue => 1,
            Purpose::Metadata => 0,
        }
    }

    /// Extents withheld from data. Each stream of copies may open one for the last bytes of what was
    /// admitted.
    #[inline]
    pub fn reserve_extents(&self) -> u64 {
        METADATA_EXTENTS + CLEAN_EXTENTS + self.copies()
    }

    /// Most copies of a block that data has been admitted with, in addition to the block itself.
    #[inline]
    pub fn copies(&self) -> u64 {
        self.copies.load(Ordering::Relaxed).into()
    }

    /// Notes that data comes with so many copies.
    #[inline]
    pub fn note_copies(&self, copies: u8) {
        if u64::from(copies) > self.copies() {
            self.copies.fetch_max(copies.into(), Ordering::Relaxed);
        }
    }

    /// Largest unit in blocks: a raw unit and its header must fit in half an extent, so that tails
    /// stay small.
    #[inline]
    pub fn unit_blocks_max(&self) -> u32 {
        let blocks = (self.extent_bytes as usize / 2 / BLOCK_BYTES).min(GROUP_BLOCKS) as u32;
        // The largest power of two: 1 << floor(log2).
        1 << blocks.max(1).ilog2()
    }

    /// Lower bound of incompressible bytes that an extent takes, for any unit size: its tail may be
    /// one byte too small for the largest unit, and headers and padding take up to two blocks.
    #[inline]
    pub fn usable_bytes_min(&self) -> u64 {
        let unit = u64::from(self.unit_blocks_max()) * BLOCK_BYTES as u64;
        u64::from(self.extent_bytes) - unit - 2 * BLOCK_BYTES as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_extents_get_small_units() {
        for (extent, unit) in [(32 << 10, 4), (64 << 10, 8), (256 << 10, 32), (1 << 20, 32), (16 << 20, 32)] {
            let geometry = Geometry::new(extent, 1 << 30);
            assert_eq!(geometry.unit_blocks_max(), unit);
            assert!(geometry.usable_bytes_min() >= 8 << 10);
        }
    }

    #[test]
    fn locations_outside_data_extents_are_refused() {
        let geometry = Geometry::new(1 << 20, 10 << 20);
        assert!(geometry.holds(1 << 20, 1));
        assert!(!geometry.holds(4096, 10));
        assert!(geometry.holds((10 << 20) - 10, 10));
        assert!(!geometry.holds((10 << 20) - 10, 11));
        assert!(!geometry.holds((2 << 20) - 10, 11));
        assert!(!geometry.holds(u64::MAX, 11));
    }
}
