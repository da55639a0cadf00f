//! Read-only accessors of the log's position.

use std::sync::atomic::Ordering;

use format::Stream;
use units::Seq;

use super::Log;

impl Log {
    /// First 8 bytes of the pool's identifier, as in the headers of its batches.
    #[inline]
    pub fn pool(&self) -> u64 {
        self.pool
    }

    /// Extents on the list that no stream has opened.
    #[inline]
    pub fn ahead(&self) -> usize {
        self.ahead.load(Ordering::Relaxed)
    }

    /// Extents that were put on the list since the pool was opened.
    #[inline]
    pub fn listed_ever(&self) -> u64 {
        self.listed.load(Ordering::Relaxed)
    }

    /// Bytes left in the extent that a stream has open now, or in the one that it opens next.
    #[inline]
    pub fn room_in(&self, stream: Stream) -> usize {
        let extent_bytes = self.geometry.extent_bytes;
        let open = self.state.lock().streams.open_of(stream).map_or(0, |open| open.offset);
        (if open < extent_bytes { extent_bytes - open } else { extent_bytes }) as usize
    }

    /// Bytes appended since the last position was taken.
    #[inline]
    pub fn bytes_since_checkpoint(&self) -> u64 {
        self.state.lock().bytes_since_checkpoint
    }

    /// The incarnation under which the log continues.
    pub fn incarnation(&self) -> u64 {
        self.state.lock().incarnation
    }

    /// Number that changes whenever a batch is applied.
    #[inline]
    pub fn applied_seq(&self) -> Seq {
        self.state.lock().applied_seq
    }

    /// All batches before this one are durable.
    #[inline]
    pub fn durable_before(&self) -> Seq {
        self.syncs.durable_before()
    }
}
