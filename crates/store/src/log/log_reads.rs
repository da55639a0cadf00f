//! Reads the extents of the log for recovery, in the order in which they were filled. Several are
//! read at a time, ahead of the thread that applies them, because a single reader reaches no more
//! than half of a device's throughput. Without threads they are read on demand.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{Builder, Scope};

use env::{AlignedBuf, Disk};
use units::ExtentIndex;

use crate::base::buffers::BufferPool;
use crate::base::pieces;
use crate::log::geometry::Geometry;

/// Upper bound of threads that read. Each reads every n-th extent of the list.
const READERS_MAX: usize = 4;
/// Upper bound of extents in memory that were not taken yet: for each reader one that it reads, and
/// one that waits.
const AHEAD_MAX: u64 = 2 * READERS_MAX as u64;
/// The part of the memory budget that they may take, if that is at least one extent: while a pool
/// is opened, most of it is free.
const MEMORY_DIVISOR: u64 = 16;

/// The place from which extents are read.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    pub disk: &'a dyn Disk,
    pub geometry: &'a Geometry,
    pub buffers: &'a BufferPool,
}

/// The bytes of an extent that recovery could read: all, except unreadable areas.
pub struct ExtentBytes {
    /// May be longer.
    pub buf: AlignedBuf,
    /// Unreadable ranges, in multiples of [`format::BATCH_ALIGN`], where it holds zeroes.
    pub unreadable: Vec<Range<usize>>,
}

impl Source<'_> {
    /// All bytes of an extent, in a buffer that may be longer.
    pub fn read(&self, extent: ExtentIndex) -> io::Result<AlignedBuf> {
        let len = self.geometry.extent_bytes as usize;
        let mut buf = self.buffers.get_for_reading(len);
        self.disk.read_at(self.geometry.start(extent), &mut buf, len)?;
        Ok(buf)
    }

    /// Reads all readable parts of an extent.
    pub fn read_around(&self, extent: ExtentIndex) -> ExtentBytes {
        let len = self.geometry.extent_bytes as usize;
        let mut buf = self.buffers.get_for_reading(len);
        let unreadable = pieces::read(self.disk, self.geometry.start(extent), &mut buf, len);
        ExtentBytes { buf, unreadable }
    }
}

/// Returns how many extents of so many bytes may be read ahead.
pub fn extents_ahead(memory_bytes: u64, extent_bytes: u32) -> usize {
    (memory_bytes / MEMORY_DIVISOR / u64::from(extent_bytes)).clamp(1, AHEAD_MAX) as usize
}

type Reads = Receiver<(ExtentIndex, ExtentBytes)>;

/// A list of extents, read in order.
pub struct LogReads<'a> {
    source: Source<'a>,
    /// Extents read ahead, one list for each reader.
    ahead: Vec<Reads>,
    /// Extents that have been asked for.
    asked: Cell<usize>,
}

impl<'a> LogReads<'a> {
    /// Starts reading `extents`, as many ahead as allowed, on threads of `scope`.
    pub fn begin<'scope>(
        source: Source<'a>,
        extents: &'a [ExtentIndex],
        ahead: usize,
        scope: &'scope Scope<'scope, '_>,
    ) -> Self
    where
        'a: 'scope,
    {
        let readers = ahead.min(READERS_MAX);
        let reader = |first: usize| {
            // For each there is one that it reads, or that was not taken yet.
            let (send, receive) = sync_channel(ahead / readers - 1);
            let read = move || {
                let mut own = extents.iter().skip(first).step_by(readers);
                // The consumer stops by dropping the other end.
                own.all(|extent| send.send((*extent, source.read_around(*extent))).is_ok())
            };
            // Without the thread they are read on demand.
            let _ = Builder::new().name(format!("shale-recovery-{first}")).spawn_scoped(scope, read);
            receive
        };
        Self { source, ahead: (0..readers).map(reader).collect(), asked: Cell::new(0) }
    }

    /// Returns the bytes of the next extent of the list, which is `extent`.
    pub fn next(&self, extent: ExtentIndex) -> ExtentBytes {
        let reader = self.ahead.get(self.asked.replace(self.asked.get() + 1) % self.ahead.len().max(1));
        match reader.and_then(|reads| reads.recv().ok()) {
            Some((read, bytes)) if read == extent => bytes,
            _ => self.source.read_around(extent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_extents_are_read_ahead_as_memory_allows() {
        let ahead = |memory_mib: u64, extent_mib: u32| extents_ahead(memory_mib << 20, extent_mib << 20);
        assert_eq!([ahead(512, 1), ahead(128, 1), ahead(64, 1)], [8, 8, 4]);
        assert_eq!([ahead(512, 8), ahead(512, 16), ahead(64, 16)], [4, 2, 1]);
    }
}
