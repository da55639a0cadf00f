//! Tails of the logs of file systems on a volume, by which `space::claims` recognises a log.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::ranked::Mutex;
use crate::base::ranks;

/// Largest distance of the next transaction from a log's tail: many kernels keep some megabytes of
/// one in memory, of which a full pool sees a few hundred KiB.
const TAIL_BYTES: u64 = 1 << 20;
/// Upper bound of tails remembered for a volume: those of a few file systems' logs on one disk.
const TAILS_MAX: usize = 4;

/// Ends of the logs of the file systems on a volume.
#[derive(Debug, Default)]
pub struct LogTails {
    /// The end of the last write; 0: none since the last flush.
    last_end: AtomicU64,
    /// Ends of writes that were last before a flush, the newest first.
    ends: Mutex<[u64; TAILS_MAX], ranks::LogTails>,
}

impl LogTails {
    /// Notes the end of a write.
    #[inline]
    pub fn wrote(&self, end: u64) {
        self.last_end.store(end, Ordering::Relaxed);
    }

    /// A flush begins.
    pub fn flushed(&self) {
        let end = self.last_end.swap(0, Ordering::Relaxed);
        if end == 0 {
            return;
        }
        let mut ends = self.ends.lock();
        // The tail that has moved, or the oldest.
        let moved = ends.iter().position(|tail| *tail != 0 && end.abs_diff(*tail) <= TAIL_BYTES);
        ends[..=moved.unwrap_or(TAILS_MAX - 1)].rotate_right(1);
        ends[0] = end;
    }

    /// Returns whether a range begins just after a tail.
    #[inline]
    pub fn continues(&self, offset: u64, length: u64) -> bool {
        let near = |tail: &u64| *tail != 0 && offset >= *tail && offset + length <= tail.saturating_add(TAIL_BYTES);
        self.ends.lock().iter().any(near)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_known_by_the_flushes_behind_its_writes() {
        let tails = LogTails::default();
        tails.wrote(8192);
        assert!(!tails.continues(8192, 4096), "nothing was flushed");
        tails.flushed();
        assert!(tails.continues(8192, 4096) && tails.continues(8192 + 65536, 4096));
        assert!(!tails.continues(4096, 4096) && !tails.continues(8192, TAIL_BYTES + 1));
        // A flush without a write moves nothing; a continued log keeps its one tail.
        tails.flushed();
        for end in (3..200).map(|n| n * 4096) {
            tails.wrote(end);
            tails.flushed();
        }
        assert!(tails.continues(199 * 4096, 4096) && !tails.continues(8192, 4096));
        assert_eq!(*tails.ends.lock(), [199 * 4096, 0, 0, 0]);
        // Other tails are added, and the oldest is dropped.
        for number in 1..=TAILS_MAX as u64 {
            assert!(tails.continues(199 * 4096, 4096));
            tails.wrote(number << 30);
            tails.flushed();
        }
        assert!(!tails.continues(199 * 4096, 4096) && tails.continues(1 << 30, 4096));
    }
}
