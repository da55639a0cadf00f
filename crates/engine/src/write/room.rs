//! Room in the write buffer and in the standby memory: its limits, and the writers that wait for
//! it.

use surface::Result;

use crate::base::group::GroupKey;
use crate::base::shares::BUFFER_BYTES_MIN;
use crate::buffer::write_buffer::DirtyRun;
use crate::pool::core::Core;

/// The write buffer takes this part of the remaining room: dirty data may cost twice its bytes in
/// the log (`space::admission`). With a quarter, writers would wait for the workers more often than
/// for room.
const ROOM_DIVISOR: u64 = 3;
/// Lower bound of the limit that a slow codec can set for the write buffer: some batches for each
/// worker.
const BUFFER_TIMELY_MIN: usize = 8 << 20;

/// Bytes in a buffer of `limit` bytes at which waiting writers continue: if they were woken for
/// every batch, they would spend more time waking than writing.
pub(crate) const fn room_mark(limit: usize) -> usize {
    limit / 8 * 7
}

impl Core {
    /// Drains all data that is dirty now, and returns when none of its records would be replayed
    /// any more.
    ///
    /// # Errors
    /// Those of draining.
    pub(crate) fn drain_past_current(&self) -> Result<()> {
        let Some(ring) = self.buffer.standby() else { return self.drain_all() };
        let position = ring.head();
        loop {
            // A record may have had its position without being in the buffer yet.
            self.drain_all()?;
            if ring.is_behind(position) {
                return Ok(());
            }
        }
    }

    /// Puts a run into the write buffer.
    ///
    /// # Errors
    /// Those of draining, when there is no room for its record.
    pub(crate) fn put(&self, key: GroupKey, mut run: DirtyRun) -> Result<()> {
        loop {
            match self.buffer.insert(key, run) {
                Ok(()) => return Ok(()),
                Err(back) => run = back,
            }
            self.make_standby_room()?;
        }
    }

    /// Waits for a drain, or drains: the ring is full.
    ///
    /// # Errors
    /// Those of draining.
    pub(crate) fn make_standby_room(&self) -> Result<()> {
        self.vitals.check_failed()?;
        if self.vitals.is_inline() {
            return self.drain_all();
        }
        self.workers.wake();
        self.workers.wait_for_room(&self.buffer, room_mark(self.buffer_limit()))
    }

    /// Bytes that the write buffer may hold now: the least of these.
    /// - Its share of memory.
    /// - In a nearly full pool, a part of the log's room, because dirty data may take more than its
    ///   size there. So writers wait for the workers and not for the last extent.
    /// - With a slow codec, the bytes that are drained in a few seconds. So writers wait a little
    ///   each, and no flush waits for minutes.
    /// - The limit of the standby ring, if there is one.
    pub(crate) fn buffer_limit(&self) -> usize {
        let room = self.room_before(self.geometry.reserve_extents());
        let limit = usize::try_from(room / ROOM_DIVISOR).unwrap_or(usize::MAX).max(BUFFER_BYTES_MIN);
        let timely = self.chooser.meter.timely_bytes(self.vitals.options.workers).max(BUFFER_TIMELY_MIN);
        let standby = self.buffer.standby().map_or(usize::MAX, |ring| ring.limit());
        limit.min(timely).min(self.shares.write_buffer).min(standby)
    }

    /// Waits until the write buffer has room, or drains it if no other thread does.
    pub(crate) fn throttle(&self) -> Result<()> {
        let mut limit = self.buffer_limit();
        let mut mark = limit;
        while self.buffer.held() > mark {
            self.vitals.check_failed()?;
            if self.vitals.is_inline() {
                self.drain(u64::MAX)?;
                continue;
            }
            // Each time: a worker that was about to rest has missed the signal, and a resting one
            // uses the present limit.
            self.workers.wake();
            self.workers.wait_for_room(&self.buffer, room_mark(limit))?;
            limit = self.buffer_limit();
            mark = room_mark(limit);
        }
        if self.buffer.held() > limit / 2 {
            self.workers.wake();
            return Ok(());
        }
        self.ask_to_compress_ahead()
    }
}
