//! Counters since the pool was opened.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::decode_counts::DecodeCounts;

#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// See `PoolStatus` for the meaning of each.
#[derive(Debug, Default)]
pub struct Counters {
    pub written_bytes: Counter,
    pub refused_writes: Counter,
    pub fragment_bytes: Counter,
    pub log_bytes: Counter,
    /// Extents that the log has begun to fill.
    pub opened_extents: Counter,
    pub read_bytes: Counter,
    pub read_disk_bytes: Counter,
    /// Those of them that the cleaner read.
    pub cleaner_read_bytes: Counter,
    /// Decoded bytes that were read ahead, and those of them that a read has used.
    pub ahead_bytes: Counter,
    pub ahead_used_bytes: Counter,
    pub decoded: DecodeCounts,
    /// Of chunks sent and received: it grows with each of them, even if it has only holes.
    pub streamed_bytes: Counter,
    pub checkpoints: Counter,
    pub light_checkpoints: Counter,
    /// Groups whose records absorbed the changes of light checkpoints.
    pub folded_groups: Counter,
    /// Published checkpoints: raised before any of them frees something.
    pub published: Counter,
    pub flushes: Counter,
    pub syncs: Counter,
    pub recovered_batches: Counter,
    pub recovered_bytes: Counter,
    pub recovery_ns: Counter,
    pub cleaned_extents: Counter,
    pub moved_bytes: Counter,
    pub rewritten_bytes: Counter,
    /// Those of them that sorting wrote.
    pub sorted_bytes: Counter,
    pub cleaning_ns: Counter,
    /// Fragments that were read from another copy, because they could not be read.
    pub reads_of_copies: Counter,
    /// Damaged fragments that were replaced by another copy.
    pub repaired_fragments: Counter,
    pub cold_before_bytes: Counter,
    pub cold_after_bytes: Counter,
}

impl Counters {
    /// Bytes that were read and written, sent and received for users: constant while all of them
    /// are idle.
    pub fn foreground_bytes(&self) -> u64 {
        self.written_bytes.get() + self.read_bytes.get() + self.streamed_bytes.get()
    }
}
