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
pub const SMALL_BATCH_BYTES: usize = 16 << 10;
/// This many of them in a row, each followed by a sync before many more, form the pattern.
const STREAK_MIN: u32 = 4;
/// Batches that a sync of such a writer may make durable: `fsync` of a share's file that has grown
/// writes two, first the data and then the record that shows it.
const BATCHES_OF_SYNC_MAX: u32 = 2;
/// Zeroes that a large batch takes along.
pub const TAIL_BYTES: usize = 8 << 10;
/// Bytes filled at a time: 64 of the smallest batches share the journal's cost; more would delay
/// the one that fills.
const STRETCH_BYTES: u32 = 256 << 10;

/// How the position of a batch, or the one after it, is prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ahead {
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
    pub fn before(&mut self, extent_bytes: u32, offset: u32, len: usize, syncs: u64) -> Ahead {
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
    pub fn filled(&mut self, until: u32) {
        self.until = until;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
