//! The capability trait of an object space: many files of bytes under numbers, in one object of a
//! pool. A share's tree lies in one. All calls may be made from many threads at once, and are
//! synchronous.

use std::ops::Range;

use bytes::Bytes;

use crate::{Hint, Result, Run};

/// Files below this number are the tree's own: its namespace, and what it keeps beside. They find
/// room where other files find the space full, so that files can be removed from a full space.
pub const OWN_FILES_END: u64 = 16;

/// The file that says that all else in a space was written by programs of this pool: the *seal*, in
/// its first 4 KiB. What brings a space, or changes of one, from elsewhere leaves these bytes out,
/// and has them read as zeroes.
pub const SEAL: u64 = 6;

/// Files of bytes, by number. Every file exists, is 4 PiB long, and reads as zeroes where nothing
/// was written: sizes are the tree's business.
///
/// Consistency: a read that begins after a write returned sees that write. Of writes that overlap
/// in time and in range, each 4 KiB block ends with the content of one of them.
///
/// Durability: writes acknowledged before a [`flush`](Self::flush) was called are durable when it
/// returns. After a loss of power, each 4 KiB block written later holds its content as of that
/// flush or any later one; the order between blocks is not kept.
pub trait ObjectSpace: Send + Sync {
    /// Fills `buf` from `offset` of a file.
    fn read(&self, file: u64, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Writes `data` at `offset` of a file.
    fn write(&self, file: u64, offset: u64, data: Bytes) -> Result<()>;

    /// As [`write`](Self::write), of data of which something is known. A space that does not
    /// compress has no use for that.
    fn write_hinted(&self, file: u64, offset: u64, data: Bytes, hint: Hint) -> Result<()> {
        let _ = hint;
        self.write(file, offset, data)
    }

    /// Makes the bytes of a range read as zeroes and gives their space back. A range may end at
    /// `u64::MAX`.
    fn discard(&self, file: u64, range: Range<u64>) -> Result<()>;

    /// As [`discard`](Self::discard), of all bytes of all files of these numbers.
    fn discard_files(&self, files: Range<u64>) -> Result<()>;

    /// Completes the discards that have returned. Of a file of which all was discarded a space may
    /// still know where its data was, until that is durable; and only the memory of the program
    /// says that this is to go. So it is to be called before anything is kept that says that a
    /// discard is done. What it does is durable with the next [`flush`](Self::flush).
    fn finish_discards(&self) -> Result<()>;

    /// Makes all that was acknowledged before the call durable.
    fn flush(&self) -> Result<()>;

    /// Returns the allocation of `length` bytes from `offset`, as
    /// [`BlockDevice::allocation`](crate::BlockDevice::allocation).
    fn allocation(&self, file: u64, offset: u64, length: u64, runs_max: usize) -> Result<Vec<Run>>;

    /// Brings writes that were acknowledged to where [`stored`](Self::stored) counts them.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// What the data of a file takes where it is stored, as far as that is settled; `None`: it
    /// cannot be told.
    fn stored(&self, file: u64) -> Result<Option<Taken>> {
        let _ = file;
        Ok(None)
    }

    /// How much fits in all, in bytes of content, and how much of that is free.
    fn capacity(&self) -> Result<Capacity>;

    /// Fails as a write of `bytes` to a file that is not the tree's own would for want of room.
    /// Nothing is kept for the caller.
    fn admit(&self, bytes: u64) -> Result<()>;

    /// Sets room aside for `bytes` that are about to be written to the tree's own files, in place
    /// of what is left of the room that was set aside before. Writes to these files use it up, and
    /// find more behind it if there is any.
    fn set_aside(&self, bytes: u64) -> Result<()>;

    /// Bytes that [`set_aside`](Self::set_aside) would find room for, about.
    fn own_room(&self) -> u64;

    /// Facts about the space that no rollback reverts; `None` for a space that is never rolled
    /// back.
    fn lineage(&self) -> Option<Lineage> {
        None
    }

    /// Notes durably that file numbers below `end` may be handed out from now on:
    /// [`Lineage::numbers`] is at least `end` when the call has returned, whatever becomes of the
    /// content.
    fn reserve_numbers(&self, end: u64) -> Result<()> {
        let _ = end;
        Ok(())
    }
}

/// Facts about an object space that outlive its states: a rollback brings an older state, and a
/// stream one that was made in another pool.
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

/// What data takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// Bytes of data, in whole blocks.
    pub raw_bytes: u64,
    /// What they take.
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
