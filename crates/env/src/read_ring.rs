//! Reads of one thread that are under way together, so that a thread is not needed for each.

use crate::AlignedBuf;

/// Reads that one thread has begun and waits for. Dropping it waits for all of them.
pub trait ReadRing {
    /// Begins to read `len` bytes at `offset` into the start of `buf`, which comes back with the
    /// end of the read; offset and length are aligned as for
    /// [`Disk::read_at`](crate::Disk::read_at). It may reach the disk only with
    /// [`wait`](Self::wait). `tag` is the caller's name for it.
    fn begin(&mut self, tag: usize, offset: u64, buf: AlignedBuf, len: usize);

    /// Waits until one of the reads ends, in whatever order they do: `None` if none is under way.
    fn wait(&mut self) -> Option<EndedRead>;
}

/// A read that has ended.
#[derive(Debug)]
pub struct EndedRead {
    /// The caller's name for it.
    pub tag: usize,
    /// Its buffer.
    pub buf: AlignedBuf,
    /// Whether all of it was read. If not, [`Disk::read_at`](crate::Disk::read_at) of the same
    /// range does it, or says why it cannot be done.
    pub whole: bool,
}
