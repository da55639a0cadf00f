//! Concurrent reads by a single thread, without a thread for each.

use crate::AlignedBuf;

/// Reads started by one thread, which waits for them. Dropping it waits for all of them.
pub trait ReadRing {
    /// Starts reading `len` bytes at `offset` into the start of `buf`, which is returned when the
    /// read ends; offset and length are aligned as for [`Disk::read_at`](crate::Disk::read_at). It
    /// may not reach the disk before [`wait`](Self::wait). `tag` identifies the read to the caller.
    fn begin(&mut self, tag: usize, offset: u64, buf: AlignedBuf, len: usize);

    /// Waits until any one of the reads ends: `None` if none is in progress.
    fn wait(&mut self) -> Option<EndedRead>;
}

/// A read that has ended.
#[derive(Debug)]
pub struct EndedRead {
    /// The caller's name for it.
    pub tag: usize,
    /// Its buffer.
    pub buf: AlignedBuf,
    /// Whether it was read completely. If not, [`Disk::read_at`](crate::Disk::read_at) of the same
    /// range succeeds or returns the error.
    pub whole: bool,
}
