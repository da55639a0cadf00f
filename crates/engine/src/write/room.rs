//! Flushes, and writers that wait for room in the write buffer or in the standby memory: both wait
//! until it is drained, or drain it. Owns no state; `space` has the limits. Threads of clients call
//! it, and wait for drains and syncs here.

use std::time::Duration;

use store::base::canary::Canary;
use store::base::group::GroupKey;
use store::buffer::write_buffer::DirtyRun;
use store::space::admission::Admitted;
use surface::Result;
use units::BlockMask;

use crate::write::Writes;
use crate::write::drain::BATCH_RAW_BYTES;

/// How long a flush waits for drains of other threads before it looks again.
const DRAIN_WAIT: Duration = Duration::from_millis(100);

/// Bytes in a buffer of `limit` bytes at which waiting writers continue: if they were woken for
/// every batch, they would spend more time waking than writing.
pub(crate) const fn room_mark(limit: usize) -> usize {
    limit / 8 * 7
}

impl Writes {
    /// Makes everything acknowledged before the call durable.
    ///
    /// 1. Everything dirty by now is drained, by this thread and by the workers.
    /// 2. The log is synced; flushes that wait at the same time share a sync.
    /// 3. The flush is acknowledged.
    pub(crate) fn flush(&self) -> Result<()> {
        self.vitals.counters.flushes.add(1);
        self.drain_all()?;
        self.log.sync()?;
        if let Some(ring) = self.buffer.standby() {
            ring.log_is_durable(self.log.durable_before());
        }
        self.ahead.flushed(self.buffer.groups());
        Ok(())
    }

    /// Step 1 of a flush.
    pub(crate) fn drain_all(&self) -> Result<()> {
        self.vitals.check_failed()?;
        let _flushing = self.ahead.flush(self.buffer.bytes());
        let generation = self.buffer.begin_flush();
        if self.buffer.bytes() > 2 * BATCH_RAW_BYTES {
            self.signals.wake();
        }
        loop {
            if self.drain(generation)? {
                continue;
            }
            // Other threads are draining the remaining groups. If one of them fails, its groups are
            // queued again, and this thread takes them and sees the error itself.
            if self.buffer.wait_drained(generation, DRAIN_WAIT) {
                return Ok(());
            }
            self.vitals.check_failed()?;
        }
    }

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
    pub(crate) fn put(&self, key: GroupKey, run: DirtyRun) -> Result<()> {
        self.put_by(run, |run| self.buffer.insert(key, run))
    }

    /// The same for a run of which only the blocks `kept` stay data; the others become holes in the
    /// same moment.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn put_with_holes(&self, key: GroupKey, run: DirtyRun, kept: BlockMask) -> Result<()> {
        if Canary::HolesApart.is_planted() {
            return run.with_holes(kept).try_for_each(|part| self.put(key, part));
        }
        self.put_by(run, |run| self.buffer.insert_with_holes(key, run, kept))
    }

    /// Waits for room as often as `insert` returns the run.
    fn put_by(&self, mut run: DirtyRun, insert: impl Fn(DirtyRun) -> std::result::Result<(), DirtyRun>) -> Result<()> {
        while let Err(back) = insert(run) {
            self.make_standby_room()?;
            run = back;
        }
        Ok(())
    }

    /// Puts runs of records of standby memory into the write buffer, in their order and at once.
    /// They are not kept a second time.
    pub(crate) fn put_replayed(&self, key: GroupKey, runs: impl Iterator<Item = DirtyRun>) {
        self.buffer.insert_all(key, runs);
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
        self.signals.wake();
        let mark = room_mark(self.space.buffer_limit());
        self.signals.wait_for_room(|| self.buffer.held() > mark)
    }

    /// Waits until the write buffer has room for data that has its room in the log.
    ///
    /// # Errors
    /// Those of draining.
    pub(crate) fn enter_buffer<'a>(&self, room: Admitted<'a>) -> Result<Admitted<'a>> {
        if self.buffer.held() > room.buffer_limit() { self.wait_for_buffer(room) } else { Ok(room) }
    }

    /// The same when the write buffer is full.
    ///
    /// # Errors
    /// Those of draining.
    pub(crate) fn wait_for_buffer<'a>(&self, mut room: Admitted<'a>) -> Result<Admitted<'a>> {
        room.set_buffer_limit(self.drain_to(room.buffer_limit())?);
        Ok(room)
    }

    /// Waits until the write buffer has room for the next part of a write, and wakes the workers.
    ///
    /// # Errors
    /// Those of draining.
    pub(crate) fn throttle(&self, room: &mut Admitted<'_>) -> Result<()> {
        room.set_buffer_limit(self.drain_to(room.buffer_limit())?);
        self.wake_workers(room.buffer_limit())
    }

    /// The same for data that was not admitted: it was once, or takes no room.
    ///
    /// # Errors
    /// Those of draining.
    pub(crate) fn throttle_unadmitted(&self) -> Result<()> {
        let limit = self.drain_to(self.space.buffer_limit())?;
        self.wake_workers(limit)
    }

    /// Waits until the write buffer holds no more than `limit`, or drains it if no other thread
    /// does. Returns the limit by then.
    fn drain_to(&self, mut limit: usize) -> Result<usize> {
        let mut mark = limit;
        while self.buffer.held() > mark {
            self.vitals.check_failed()?;
            if self.vitals.is_inline() {
                self.drain(u64::MAX)?;
                continue;
            }
            // Each time: a worker that was about to rest has missed the signal, and a resting one
            // uses the present limit.
            self.signals.wake();
            self.signals.wait_for_room(|| self.buffer.held() > room_mark(limit))?;
            limit = self.space.buffer_limit();
            mark = room_mark(limit);
        }
        Ok(limit)
    }

    /// Wakes workers for the data in the write buffer, if there is much, or to compress some ahead.
    ///
    /// # Errors
    /// Without threads, those of compressing.
    pub(crate) fn wake_workers(&self, limit: usize) -> Result<()> {
        if self.buffer.held() > limit / 2 {
            self.signals.wake();
            return Ok(());
        }
        self.ask_to_compress_ahead()
    }
}
