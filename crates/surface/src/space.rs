//! The capability trait of an object space: many numbered files of bytes in one object of a pool. A
//! share's tree is stored in one. All calls may be made from many threads at once, and are
//! synchronous.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

use crate::{Hint, Result, Run};

/// Files below this number belong to the tree itself: its namespace and auxiliary data. They can
/// still grow when other files get no more space, so that files can be removed from a full space.
pub const OWN_FILES_END: u64 = 16;

/// The tree's file with changes that its namespace does not have yet. Only an opening after a crash
/// reads it, and each `fsync` writes it: it is stored in as many copies as files of users.
pub const LOG_FILE: u64 = 2;

/// The file that certifies that everything else in a space was written by programs of this pool:
/// the *seal*, in its first 4 KiB. Operations that import a space, or changes to one, omit these
/// bytes, which then read as zeroes.
pub const SEAL: u64 = 6;

/// Numbered files of bytes. Every file exists, is 4 PiB long, and reads as zeroes where nothing was
/// written: the tree manages sizes.
///
/// Consistency: a read that begins after a write returned sees that write. For writes that overlap
/// in time and in range, each 4 KiB block ends with the content of one of them.
///
/// Durability: writes acknowledged before a [`flush`](Self::flush) was called are durable when it
/// returns. After a power loss, each 4 KiB block written later holds its content as of that flush
/// or any later one; the order between blocks is not preserved.
pub trait ObjectSpace: Send + Sync {
    /// Fills `buf` from `offset` of a file.
    fn read(&self, file: u64, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Like [`read`](Self::read), but only from memory: see
    /// [`BlockDevice::read_cached`](crate::BlockDevice::read_cached).
    fn read_cached(&self, file: u64, offset: u64, buf: &mut [u8]) -> Result<bool> {
        let _ = (file, offset, buf);
        Ok(false)
    }

    /// Loads the beginnings of files, each with its length, into memory; a hint. Returns the bytes
    /// that were not in memory; may wait for a disk.
    fn read_ahead(&self, files: &[(u64, u64)]) -> u64 {
        let _ = files;
        0
    }

    /// Bytes that [`read_ahead`](Self::read_ahead) may have in memory before they are read. 0: none,
    /// it is not to be called.
    fn read_ahead_max(&self) -> u64 {
        0
    }

    /// Writes `data` at `offset` of a file.
    fn write(&self, file: u64, offset: u64, data: Bytes) -> Result<()>;

    /// Like [`write`](Self::write), with a hint about the data. A space without compression ignores
    /// the hint.
    fn write_hinted(&self, file: u64, offset: u64, data: Bytes, hint: Hint) -> Result<()> {
        let _ = hint;
        self.write(file, offset, data)
    }

    /// Whether a write would have to wait now: see
    /// [`BlockDevice::write_would_wait`](crate::BlockDevice::write_would_wait).
    fn write_would_wait(&self) -> bool {
        false
    }

    /// Makes the bytes of a range read as zeroes and gives their space back. A range may end at
    /// `u64::MAX`.
    fn discard(&self, file: u64, range: Range<u64>) -> Result<()>;

    /// As [`discard`](Self::discard), of all bytes of all files of these numbers.
    fn discard_files(&self, files: Range<u64>) -> Result<()>;

    /// Completes the discards that have returned. A space may still track the location of a file's
    /// data after all of it was discarded, until that is durable; and only the program's memory
    /// records that this is pending. So this must be called before anything is stored that relies
    /// on a completed discard. Durable with the next [`flush`](Self::flush).
    fn finish_discards(&self) -> Result<()>;

    /// Makes all that was acknowledged before the call durable.
    fn flush(&self) -> Result<()>;

    /// Orders writes and discards: a loss of power leaves none that is made after the call, unless
    /// it leaves all that were acknowledged before the call. Cheaper than a flush where the space
    /// keeps an order; makes nothing durable.
    fn order_writes(&self) -> Result<()> {
        self.flush()
    }

    /// Returns the allocation of `length` bytes from `offset`, as
    /// [`BlockDevice::allocation`](crate::BlockDevice::allocation).
    fn allocation(&self, file: u64, offset: u64, length: u64, runs_max: usize) -> Result<Vec<Run>>;

    /// Moves acknowledged writes to where [`stored`](Self::stored) counts them.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// Space taken by a file's data, as far as it has been written out; `None`: unknown.
    fn stored(&self, file: u64) -> Result<Option<Taken>> {
        let _ = file;
        Ok(None)
    }

    /// Total and free capacity, in bytes of content.
    fn capacity(&self) -> Result<Capacity>;

    /// Fails if a write of `bytes` to a file that does not belong to the tree would fail for lack
    /// of space. Reserves nothing.
    fn admit(&self, bytes: u64) -> Result<()>;

    /// As [`BlockDevice::full_wait`](crate::BlockDevice::full_wait).
    fn full_wait(&self) -> Option<Duration> {
        None
    }

    /// Reserves space for `bytes` that are about to be written to the tree's own files, replacing
    /// the rest of an earlier reservation. Writes to these files consume it, and may exceed it if
    /// there is more space.
    fn set_aside(&self, bytes: u64) -> Result<()>;

    /// Bytes that [`set_aside`](Self::set_aside) would find room for, about.
    fn own_room(&self) -> u64;

    /// Facts about the space that survive rollbacks; `None` for a space that is never rolled back.
    fn lineage(&self) -> Option<Lineage> {
        None
    }

    /// Records durably that file numbers below `end` may be assigned from now on:
    /// [`Lineage::numbers`] is at least `end` when the call has returned, whatever happens to the
    /// content.
    fn reserve_numbers(&self, end: u64) -> Result<()> {
        let _ = end;
        Ok(())
    }
}

/// Facts about an object space that outlive its states: a rollback restores an older state, and a
/// stream brings one made in another pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lineage {
    /// Differs between spaces, and changes whenever a state of the space is replaced by another
    /// one. No two states that follow each other in one space have the same.
    pub generation: u32,
    /// Differs between spaces, and never changes.
    pub space: u32,
    /// File numbers below this one may have been handed out in any state of the space.
    pub numbers: u64,
}

/// Space taken by data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// Bytes of data, in whole blocks.
    pub raw_bytes: u64,
    /// Their stored size.
    pub stored_bytes: u64,
}

/// How much an object space holds, in bytes of content before compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// In all.
    pub total_bytes: u64,
    /// Not used.
    pub free_bytes: u64,
}
