//! Reads the extents of the log for recovery, in the order in which they were filled, some ahead of whoever applies them and several at a time,
//! because one reader alone has no more than half of what a device can give. Without threads they are read when they are wanted.

use std::cell::Cell;
use std::io;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{Builder, Scope};

use env::{AlignedBuf, Disk};
use units::ExtentIndex;

use crate::buffers::BufferPool;
use crate::geometry::Geometry;

/// Threads that read. Each reads every so manieth extent of the list.
const READERS: usize = 4;
/// Extents that each of them has read and nobody has taken.
const AHEAD: usize = 1;

/// Where extents are read from.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub disk: &'a dyn Disk,
    pub geometry: &'a Geometry,
    pub buffers: &'a BufferPool,
}

impl Source<'_> {
    /// All bytes of an extent, in a buffer that may be longer.
    pub(crate) fn read(&self, extent: ExtentIndex) -> io::Result<AlignedBuf> {
        let len = self.geometry.extent_bytes as usize;
        let mut buf = self.buffers.get(len);
        self.disk.read_at(self.geometry.start(extent), &mut buf, len)?;
        Ok(buf)
    }
}

type Reads = Receiver<(ExtentIndex, io::Result<AlignedBuf>)>;

/// A list of extents, read in order.
pub(crate) struct LogReads<'a> {
    source: Source<'a>,
    /// What each reader reads.
    ahead: Vec<Reads>,
    /// Extents that have been asked for.
    asked: Cell<usize>,
}

impl<'a> LogReads<'a> {
    /// Begins to read `extents`, on threads of `scope` if there is one.
    pub(crate) fn begin<'scope>(
        source: Source<'a>,
        extents: &'a [ExtentIndex],
        scope: Option<&'scope Scope<'scope, '_>>,
    ) -> Self
    where
        'a: 'scope,
    {
        let reader = |scope: &'scope Scope<'scope, '_>, first: usize| {
            let (send, receive) = sync_channel(AHEAD);
            let read = move || {
                let mut own = extents.iter().skip(first).step_by(READERS);
                // Whoever reads stops by dropping the other end.
                own.all(|extent| send.send((*extent, source.read(*extent))).is_ok())
            };
            // Without it they are read when they are wanted.
            let _ = Builder::new().name(format!("shale-recovery-{first}")).spawn_scoped(scope, read);
            receive
        };
        let ahead = scope.map(|scope| (0..READERS).map(|first| reader(scope, first)).collect());
        Self { source, ahead: ahead.unwrap_or_default(), asked: Cell::new(0) }
    }

    /// The bytes of the next extent of the list, which is `extent`.
    pub(crate) fn next(&self, extent: ExtentIndex) -> io::Result<AlignedBuf> {
        let reader = self.ahead.get(self.asked.replace(self.asked.get() + 1) % READERS);
        match reader.and_then(|reads| reads.recv().ok()) {
            Some((read, bytes)) if read == extent => bytes,
            _ => self.source.read(extent),
        }
    }
}
