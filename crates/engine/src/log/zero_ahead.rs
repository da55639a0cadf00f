//! Zeroes written ahead of a log that is synced after every few kilobytes.
//!
//! The first write to a place of a sparse file makes the file system record that the place is
//! written now, and the next sync waits for its journal. That takes two to three times as long as
//! for a place that was written before. Writers that sync after every block would pay that each
//! time. So once such a writer is recognised, a stretch ahead of the log is filled with zeroes, and
//! the journal is waited for once a stretch. Zeroes are no batch, so recovery does not care.
//!
//! The stretch is written by the thread whose batch needs it, without the log's lock (`reserve`).
//! Until it is there, no other batch gets a place in that stream.
//!
//! A file system's journal syncs twice: after the data, and after its commit block. There a large
//! batch takes zeroes along for the small one that will follow it, in the same write. The file
//! system's journal saves as many bytes.

/// Batches up to this size come from a writer that syncs often.
const SMALL_BATCH_BYTES: usize = 16 << 10;
/// This many of them in a row, each followed by a sync before many more, form the pattern.
const STREAK_MIN: u32 = 4;
/// Batches that a sync of such a writer may make durable: `fsync` of a share's file that has grown
/// writes two, first the data and then the record that shows it.
const BATCHES_OF_SYNC_MAX: u32 = 2;
/// Zeroes that a large batch takes along.
pub(crate) const TAIL_BYTES: usize = 8 << 10;
/// Bytes filled at a time: 64 of the smallest batches share the journal's cost; more would delay
/// the one that fills.
const STRETCH_BYTES: u32 = 256 << 10;

/// How the position of a batch, or the one after it, is prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ahead {
    Nothing,
    /// Write zeroes from the batch's position up to this offset, before it.
    Stretch(u32),
    /// The batch takes so many zeroes along.
    Tail(usize),
}

/// The state of a stream and of its open extent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Prefill {
    streak: u32,
    /// Consecutive batches, of any size, that shared their syncs with few others.
    synced: u32,
    /// Batches since the last sync.
    since_sync: u32,
    /// Bytes of the last batch.
    last_bytes: usize,
    /// Number of syncs when the last batch was placed.
    syncs: u64,
    /// The extent is written at least up to here.
    until: u32,
}

impl Prefill {
    /// The part of the state that stays valid in another extent.
    pub(crate) fn in_another_extent(self) -> Self {
        Self { until: 0, ..self }
    }

    /// Decides the preparation for a batch of `len` bytes that is about to be placed at `offset` of
    /// the extent. One that needs a stretch first is not counted: it comes again when the stretch
    /// is written.
    pub(crate) fn before(&mut self, extent_bytes: u32, offset: u32, len: usize, syncs: u64) -> Ahead {
        let since_sync = if syncs == self.syncs { self.since_sync.saturating_add(1) } else { 1 };
        let is_synced = since_sync <= BATCHES_OF_SYNC_MAX;
        let is_small = len <= SMALL_BATCH_BYTES;
        let streak = if is_small && is_synced { self.streak.saturating_add(1) } else { 0 };
        let after = offset + len as u32;
        let is_written = self.until >= after;
        if !is_written && streak >= STREAK_MIN {
            return Ahead::Stretch((offset + STRETCH_BYTES).min(extent_bytes));
        }
        let last_bytes = std::mem::replace(&mut self.last_bytes, len);
        (self.syncs, self.since_sync) = (syncs, since_sync);
        self.synced = if is_synced { self.synced.saturating_add(1) } else { 0 };
        self.streak = streak;
        if !is_written && self.synced >= STREAK_MIN && !is_small && last_bytes <= TAIL_BYTES {
            let tail = TAIL_BYTES.min((extent_bytes - after) as usize);
            self.until = after + tail as u32;
            return Ahead::Tail(tail);
        }
        Ahead::Nothing
    }

    /// Notes that the stretch has been written.
    pub(crate) fn filled(&mut self, until: u32) {
        self.until = until;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Result;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use bytes::Bytes;
    use env::{AlignedBuf, Disk, DiskLayer};
    use parking_lot::{Condvar, Mutex};
    use sim::Machine;
    use surface::{BlockDevice, WriteOptions};
    use units::BLOCK_BYTES;

    use super::*;
    use crate::base::options::{FormatOptions, PoolOptions};
    use crate::base::testing::{env_on, reopen_on};
    use crate::pool::Pool;
    use crate::volume::Volume;

    const EXTENT: u32 = 1 << 20;

    #[test]
    fn what_is_filled_depends_on_what_was_synced() {
        let before = |prefill: &mut Prefill, offset: u32, len: usize, syncs: u64| loop {
            match prefill.before(EXTENT, offset, len, syncs) {
                Ahead::Nothing => break 0,
                Ahead::Tail(bytes) => break bytes,
                Ahead::Stretch(end) => prefill.filled(end),
            }
        };
        // Small ones, each after a sync: a stretch ahead, and no more until it is used up.
        let mut prefill = Prefill::default();
        for sync in 1..=u64::from(STREAK_MIN) {
            assert_eq!(before(&mut prefill, sync as u32 * 4096, 4096, sync), 0);
        }
        assert_eq!(prefill.until, STREAK_MIN * 4096 + STRETCH_BYTES);
        // Alternating large and small ones: the large one takes along enough zeroes for the small
        // one.
        let mut prefill = Prefill::default();
        let mut offset = 4096;
        for turn in 1..8 {
            let tail = before(&mut prefill, offset, 48 << 10, 2 * turn);
            assert_eq!(tail, if turn > 2 { TAIL_BYTES } else { 0 });
            offset += 48 << 10;
            assert_eq!(before(&mut prefill, offset, 4096, 2 * turn + 1), 0);
            assert!(turn <= 2 || prefill.until == offset + TAIL_BYTES as u32);
            offset += 4096;
        }
        // Not beyond the extent.
        assert_eq!(before(&mut prefill, EXTENT - (48 << 10) - 4096, 48 << 10, 100), 4096);
        assert_eq!(before(&mut prefill, 0, 4096, 101), 0);
        // Not for those that share a sync with many.
        let mut many = prefill.in_another_extent();
        assert_eq!(before(&mut many, 4096, 4096, 101), 0);
        assert_eq!(before(&mut many, 8192, 48 << 10, 101), 0);
        // Two small ones for each sync: the data of a file that has grown, and its record.
        let mut prefill = Prefill::default();
        let until = [1, 1, 2, 2, 3, 3].map(|sync| {
            offset += 4096;
            assert_eq!(before(&mut prefill, offset, 4096, sync), 0);
            prefill.until
        });
        assert_eq!(until[..3], [0; 3]);
        assert!(until[3] > offset && until[3..].iter().all(|end| *end == until[3]), "{until:?}");
        // Three of them: none.
        let mut prefill = Prefill::default();
        for sync in [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4] {
            before(&mut prefill, 4096, 4096, sync);
        }
        assert_eq!(prefill.until, 0);
    }

    /// Asserts that no write meets another one in flight, and counts those that take zeroes along.
    struct Watched {
        below: Arc<dyn Disk>,
        under_way: Mutex<Vec<(u64, u64)>>,
        begins: Condvar,
        met: AtomicUsize,
        zeroes_begin: Mutex<Option<mpsc::Sender<()>>>,
    }

    impl DiskLayer for Watched {
        fn below(&self) -> &dyn Disk {
            &*self.below
        }
        fn write_at(&self, offset: u64, buf: &AlignedBuf, len: usize) -> Result<()> {
            let range = (offset, offset + len as u64);
            {
                let mut under_way = self.under_way.lock();
                let meets = |other: &&(u64, u64)| other.0 < range.1 && range.0 < other.1;
                self.met.fetch_add(under_way.iter().filter(meets).count(), Ordering::Relaxed);
                under_way.push(range);
                self.begins.notify_all();
            }
            let is_zero = |part: &[u8]| part.iter().all(|byte| *byte == 0);
            if len > SMALL_BATCH_BYTES && !is_zero(&buf[..BLOCK_BYTES]) && is_zero(&buf[len - TAIL_BYTES..len]) {
                if let Some(sender) = &*self.zeroes_begin.lock() {
                    sender.send(()).unwrap();
                }
                // A writer that has been waiting for this writes now, or waits for the end of this
                // one.
                self.begins.wait_for(&mut self.under_way.lock(), Duration::from_millis(20));
            }
            let done = self.below.write_at(offset, buf, len);
            self.under_way.lock().retain(|other| *other != range);
            done
        }
    }

    /// Zeroes that a batch takes along must not overlap the next batch, on whichever thread that is
    /// written.
    #[test]
    fn no_batch_is_written_where_zeroes_are_on_their_way_to() {
        let mut machine = Machine::new(64 << 20, 1);
        let (begin, begins) = mpsc::channel();
        let watched = Arc::new(Watched {
            below: machine.disk.handle(),
            under_way: Mutex::default(),
            begins: Condvar::new(),
            met: AtomicUsize::new(0),
            zeroes_begin: Mutex::new(Some(begin)),
        });
        // Extents with room for many turns.
        let options = FormatOptions { capacity_bytes: 48 << 20, extent_bytes: EXTENT, properties: Default::default() };
        Pool::format(&env_on(&machine, watched.clone()), &options).unwrap();
        let options = PoolOptions { workers: 2, ..PoolOptions::default() };
        let pool = Pool::open(env_on(&machine, watched.clone()), options).unwrap();
        let properties = [("compression".to_owned(), "off".to_owned())].into_iter().collect();
        pool.create_volume("v", 4 << 20, &properties).unwrap();
        let write = |volume: &Volume, offset: u64, blocks: usize, value: u8| {
            let data = Bytes::from(vec![value; blocks * BLOCK_BYTES]);
            volume.write(offset, data, WriteOptions::default()).unwrap();
            volume.flush().unwrap();
        };
        let other = 1 << 20;
        let met = std::thread::scope(|scope| {
            let volume = pool.volume("v").unwrap();
            let meets = scope.spawn(move || begins.iter().map(|()| write(&volume, other, 1, 200)).count());
            let volume = pool.volume("v").unwrap();
            for round in 0..30 {
                write(&volume, 0, 5, round + 1);
                write(&volume, 0, 1, round + 101);
            }
            watched.zeroes_begin.lock().take();
            meets.join().unwrap()
        });
        assert!(met > 2, "batches took zeroes along {met} times");
        assert_eq!(watched.met.load(Ordering::Relaxed), 0, "writes met");
        drop(pool);
        machine.power_cycle();
        let pool = reopen_on(&machine, machine.disk.handle());
        let volume = pool.volume("v").unwrap();
        let mut data = vec![0; 5 * BLOCK_BYTES];
        volume.read(0, &mut data).unwrap();
        let (first, rest) = data.split_at_mut(BLOCK_BYTES);
        assert!(first.iter().all(|byte| *byte == 130) && rest.iter().all(|byte| *byte == 30));
        volume.read(other, first).unwrap();
        assert!(first.iter().all(|byte| *byte == 200));
    }
}
