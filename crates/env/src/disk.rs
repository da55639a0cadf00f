//! The data file or block device below the log.

use std::io::Result;

use crate::{AlignedBuf, ReadRing};

/// Random-access storage with explicit durability.
///
/// Assumptions: a write that was followed by a successful [`sync`](Self::sync) survives a crash
/// whole; one that was not may survive whole, not at all, or in any subset of its 512-byte sectors,
/// in any order with other writes. Reads see all earlier writes that returned, synced or not.
pub trait Disk: Send + Sync {
    /// Offsets, lengths and memory addresses of reads are multiples of this (512 or 4096).
    fn read_alignment(&self) -> usize;

    /// Fills the first `len` bytes of `buf` from `offset`. A range never written reads as zeroes.
    fn read_at(&self, offset: u64, buf: &mut AlignedBuf, len: usize) -> Result<()>;

    /// Reads of the calling thread that are under way together, where the storage has that.
    fn read_ring(&self) -> Option<Box<dyn ReadRing + '_>> {
        None
    }

    /// Writes the first `len` bytes of `buf` at `offset`; both are multiples of 4096.
    fn write_at(&self, offset: u64, buf: &AlignedBuf, len: usize) -> Result<()>;

    /// Makes every write that returned before this call durable. [`std::io::ErrorKind::NotFound`]:
    /// its file was deleted, and exists only as long as it stays open.
    fn sync(&self) -> Result<()>;

    /// Sets space aside, so that later writes to the range do not fail for want of space below.
    /// A no-op where the storage cannot do that.
    fn reserve(&self, offset: u64, len: u64) -> Result<()>;

    /// The same, if need be from the room left for the pool's other files: for operations that give
    /// space back.
    fn reserve_last(&self, offset: u64, len: u64) -> Result<()> {
        self.reserve(offset, len)
    }

    /// Bytes that could still be allocated, beyond the current allocation. Unbounded where the
    /// storage has its space in advance.
    fn room_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Whether the whole range has its space below for certain.
    fn has_space(&self, _offset: u64, _len: u64) -> bool {
        false
    }

    /// Returns the first byte at or after `offset` that may hold data, `None` if there are no more;
    /// `offset` itself if the storage cannot report holes. The bytes before it are a hole, which is
    /// cheap to read.
    fn data_from(&self, offset: u64) -> Option<u64> {
        Some(offset)
    }

    /// Returns the space of the range to the storage; its content is undefined afterwards. A no-op
    /// where unsupported.
    fn punch(&self, offset: u64, len: u64) -> Result<()>;

    /// Whether a sync after the first write to a location costs clearly more than one after a
    /// rewrite: true for files, whose file system records written ranges, false for devices.
    fn first_write_is_dear(&self) -> bool {
        true
    }

    /// Whether it can be enlarged: a device has a fixed size.
    fn may_grow(&self) -> bool {
        true
    }

    /// Enlarges it to `bytes`.
    ///
    /// # Errors
    /// When there is no space.
    fn grow(&self, bytes: u64) -> Result<()>;

    /// Truncates it to the first `bytes`; the rest is no longer needed. A no-op where unsupported.
    ///
    /// # Errors
    /// Those of the storage.
    fn shrink(&self, _bytes: u64) -> Result<()> {
        Ok(())
    }

    /// Current size in bytes.
    fn size_bytes(&self) -> Result<u64>;

    /// Bytes occupied below, if known (a sparse file).
    fn occupied_bytes(&self) -> Result<u64>;
}

/// A disk that wraps another one. By default, each call is forwarded.
pub trait DiskLayer: Send + Sync {
    /// The other one.
    fn below(&self) -> &dyn Disk;

    /// See [`Disk::read_at`].
    ///
    /// # Errors
    /// Those of the other one.
    fn read_at(&self, offset: u64, buf: &mut AlignedBuf, len: usize) -> Result<()> {
        self.below().read_at(offset, buf, len)
    }

    /// See [`Disk::read_ring`]: none by default, because it would bypass this layer's reads. A
    /// layer that does not change reads forwards the ring.
    fn read_ring(&self) -> Option<Box<dyn ReadRing + '_>> {
        None
    }

    /// See [`Disk::write_at`].
    ///
    /// # Errors
    /// Those of the other one.
    fn write_at(&self, offset: u64, buf: &AlignedBuf, len: usize) -> Result<()> {
        self.below().write_at(offset, buf, len)
    }

    /// See [`Disk::sync`].
    ///
    /// # Errors
    /// Those of the other one.
    fn sync(&self) -> Result<()> {
        self.below().sync()
    }

    /// See [`Disk::reserve`].
    ///
    /// # Errors
    /// Those of the other one.
    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        self.below().reserve(offset, len)
    }

    /// See [`Disk::room_bytes`].
    fn room_bytes(&self) -> u64 {
        self.below().room_bytes()
    }

    /// See [`Disk::punch`].
    ///
    /// # Errors
    /// Those of the other one.
    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.below().punch(offset, len)
    }
}

impl<T: DiskLayer> Disk for T {
    fn read_alignment(&self) -> usize {
        self.below().read_alignment()
    }
    fn read_at(&self, offset: u64, buf: &mut AlignedBuf, len: usize) -> Result<()> {
        DiskLayer::read_at(self, offset, buf, len)
    }
    fn read_ring(&self) -> Option<Box<dyn ReadRing + '_>> {
        DiskLayer::read_ring(self)
    }
    fn write_at(&self, offset: u64, buf: &AlignedBuf, len: usize) -> Result<()> {
        DiskLayer::write_at(self, offset, buf, len)
    }
    fn sync(&self) -> Result<()> {
        DiskLayer::sync(self)
    }
    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        DiskLayer::reserve(self, offset, len)
    }
    fn reserve_last(&self, offset: u64, len: u64) -> Result<()> {
        self.below().reserve_last(offset, len)
    }
    fn room_bytes(&self) -> u64 {
        DiskLayer::room_bytes(self)
    }
    fn has_space(&self, offset: u64, len: u64) -> bool {
        self.below().has_space(offset, len)
    }
    fn data_from(&self, offset: u64) -> Option<u64> {
        self.below().data_from(offset)
    }
    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        DiskLayer::punch(self, offset, len)
    }
    fn first_write_is_dear(&self) -> bool {
        self.below().first_write_is_dear()
    }
    fn may_grow(&self) -> bool {
        self.below().may_grow()
    }
    fn grow(&self, bytes: u64) -> Result<()> {
        self.below().grow(bytes)
    }
    fn shrink(&self, bytes: u64) -> Result<()> {
        self.below().shrink(bytes)
    }
    fn size_bytes(&self) -> Result<u64> {
        self.below().size_bytes()
    }
    fn occupied_bytes(&self) -> Result<u64> {
        self.below().occupied_bytes()
    }
}
