//! Remaining write allowance of a volume, or of all volumes in a folder, under a quota.
//! `write::quota` charges it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::ranked::Mutex;
use crate::base::ranks;
use crate::objects::log_tails::LogTails;

/// Bytes that one volume, or all in a folder, may write before the quota is checked again.
#[derive(Debug, Default)]
pub struct Allowance {
    pub bytes: AtomicU64,
    /// Bytes of the last write that it had no room for; 0: none since the quota was set.
    pub refused: AtomicU64,
    /// Held by the thread that recomputes it.
    pub looking: Mutex<(), ranks::QuotaLook>,
    /// Bytes of the reservation that are not used, as of the last checkpoint.
    pub unmet: AtomicU64,
    /// Tails of the logs of the file system above.
    pub tails: LogTails,
}

impl Allowance {
    /// Forgets the allowance after a change of the quota: the next write computes it again.
    pub fn forget(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.refused.store(0, Ordering::Relaxed);
    }

    /// Subtracts so many bytes, if it has them.
    pub fn take(&self, bytes: u64) -> bool {
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }
}
