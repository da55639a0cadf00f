//! Logs refused and failed requests: the caller only gets an errno, so the reason must be found
//! elsewhere. Owns the rate limit. Does not decide which results are errors.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

use fuse::Errno;
use surface::{Error, ErrorKind};

use crate::errno::errno;

/// Counts complaints and writes the 1st, 2nd, 4th, 8th, ... and then every 1024th: a device that
/// fails all requests of a busy file system must not fill the disk with its log.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    failed: AtomicU64,
    full: AtomicU64,
    refused: AtomicU64,
}

/// Above this count, only multiples of it are logged.
const EVERY: u64 = 1024;

/// Whether the complaint of this number (from 1) is written.
const fn is_written(number: u64) -> bool {
    if number < EVERY { number.is_power_of_two() } else { number.is_multiple_of(EVERY) }
}

impl Complaints {
    /// A device answered with an error: logs it, and returns the errno for it.
    pub(crate) fn failed(&self, file: &str, doing: impl Display, error: &Error) -> Errno {
        let (counter, level) = match error.kind() {
            ErrorKind::Full => (&self.full, log::Level::Warn),
            ErrorKind::Corrupt | ErrorKind::Io => (&self.failed, log::Level::Error),
            _ => (&self.refused, log::Level::Warn),
        };
        let number = counter.fetch_add(1, Ordering::Relaxed) + 1;
        if is_written(number) {
            log::log!(level, "{file}: {doing}: {error} (failure {number} of its kind on this mount)");
        }
        errno(error.kind())
    }

    /// Like [`failed`](Self::failed), but a missing device is not a failure.
    pub(crate) fn failed_unless_gone(&self, file: &str, doing: &str, error: &Error) -> Errno {
        if error.kind() == ErrorKind::NotFound { Errno::ENOENT } else { self.failed(file, doing, error) }
    }

    /// Logs why an unsupported request was refused.
    pub(crate) fn refused(&self, file: &str, why: impl Display) {
        let number = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
        if is_written(number) {
            log::warn!("{file}: {why} (refusal {number} on this mount)");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_few_of_many() {
        let written = (1..=100_000).filter(|&n| is_written(n)).count();
        assert_eq!(written, 10 + 100_000 / 1024);
        assert!(is_written(1) && is_written(2) && !is_written(3) && is_written(1024) && !is_written(1025));
    }
}
