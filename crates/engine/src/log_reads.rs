//! Reads the extents of the log for recovery, in the order in which they were filled, a few ahead of whoever applies them, so that the device
//! works meanwhile. Without threads they are read when they are wanted.

use std::io;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::Scope;

use env::{AlignedBuf, Disk};
use units::ExtentIndex;

use crate::buffers::BufferPool;
use crate::geometry::Geometry;

/// Extents read ahead.
const AHEAD: usize = 3;

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

/// A list of extents, read in order.
pub(crate) struct LogReads<'a> {
    source: Source<'a>,
    ahead: Option<Receiver<(ExtentIndex, io::Result<AlignedBuf>)>>,
}

impl<'a> LogReads<'a> {
    /// Begins to read `extents`, on a thread of `scope` if there is one.
    pub(crate) fn begin<'scope>(
        source: Source<'a>,
        extents: &'a [ExtentIndex],
        scope: Option<&'scope Scope<'scope, '_>>,
    ) -> Self
    where
        'a: 'scope,
    {
        let ahead = scope.map(|scope| {
            let (send, receive) = sync_channel(AHEAD);
            scope.spawn(move || {
                // Whoever reads stops by dropping the other end.
                extents.iter().all(|extent| send.send((*extent, source.read(*extent))).is_ok())
            });
            receive
        });
        Self { source, ahead }
    }

    /// The bytes of the next extent of the list, which is `extent`.
    pub(crate) fn next(&self, extent: ExtentIndex) -> io::Result<AlignedBuf> {
        match self.ahead.as_ref().and_then(|ahead| ahead.recv().ok()) {
            Some((read, bytes)) if read == extent => bytes,
            _ => self.source.read(extent),
        }
    }
}
