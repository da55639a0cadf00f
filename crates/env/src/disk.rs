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
    /// its file has been deleted, and is there only as long as it stays open.
    fn sync(&self) -> Result<()>;

    /// Sets space aside, so that later writes to the range do not fail for want of space below.
    /// A no-op where the storage cannot do that.
    fn reserve(&self, offset: u64, len: u64) -> Result<()>;

    /// The same, if need be from the room left for the pool's other files: for operations that give
    /// space back.
    fn reserve_last(&self, offset: u64, len: u64) -> Result<()> {
        self.reserve(offset, len)
    }

    /// Bytes that could still be set aside now, beyond what has been. No bound where the storage
    /// has its space anyway.
    fn room_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Whether the whole range has its space below for certain.
    fn has_space(&self, _offset: u64, _len: u64) -> bool {
        false
    }

    /// The first byte at or behind `offset` that may hold data, `None` if there is none.
    /// It is `offset` where the storage cannot tell. The bytes before it are a hole, which costs
    /// next to nothing to read.
    fn data_from(&self, offset: u64) -> Option<u64> {
        Some(offset)
    }

    /// Gives the space of the range back to whatever is below; afterwards its content is undefined.
    /// A no-op where the storage cannot do that.
    fn punch(&self, offset: u64, len: u64) -> Result<()>;

    /// Whether a sync behind the first write to a place costs clearly more than one behind a later
    /// write there: true of files, whose file system records written ranges, false of devices.
    fn first_write_is_dear(&self) -> bool {
        true
    }

    /// Whether there are ways to make it larger: a device has the size that it has.
    fn may_grow(&self) -> bool {
        true
    }

    /// Makes room for `bytes` in all.
    ///
    /// # Errors
    /// When there is none.
    fn grow(&self, bytes: u64) -> Result<()>;

    /// Gives back the range behind the first `bytes`, which is needed no more. A no-op where the
    /// storage cannot do that.
    ///
    /// # Errors
    /// Those of the storage.
    fn shrink(&self, _bytes: u64) -> Result<()> {
        Ok(())
    }

    /// Current size in bytes.
    fn size_bytes(&self) -> Result<u64>;

    /// Bytes that the storage occupies below, if that can be told (a sparse file).
    fn occupied_bytes(&self) -> Result<u64>;
}

/// A disk that adds something to another one. What it does not do itself, the other one does.
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

    /// See [`Disk::read_ring`]: none, because what this disk adds to reads would be passed by. One
    /// that adds nothing hands the other one's on.
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
