//! How fast dirty data is compressed at present: what is dirty must not take long to flush, whatever the codec.

use std::sync::atomic::{AtomicU64, Ordering};

/// How long draining a full write buffer may take.
const DRAIN_NS_MAX: u64 = 4_000_000_000;
/// Weight of a new sample against the average of the old ones: 1 / this.
const WEIGHT: u64 = 4;

/// The time that a worker takes for a MiB.
#[derive(Debug, Default)]
pub(crate) struct DrainPace {
    /// Nanoseconds, averaged; 0 is unknown.
    ns_per_mib: AtomicU64,
}

impl DrainPace {
    /// A worker has compressed so many bytes in so long.
    pub(crate) fn took(&self, bytes: u64, ns: u64) {
        if bytes == 0 || ns == 0 {
            return;
        }
        let sample = u64::try_from(u128::from(ns) * (1 << 20) / u128::from(bytes)).unwrap_or(u64::MAX / WEIGHT);
        let old = self.ns_per_mib.load(Ordering::Relaxed);
        let new = if old == 0 { sample } else { old - old / WEIGHT + sample.min(u64::MAX / WEIGHT) / WEIGHT };
        self.ns_per_mib.store(new, Ordering::Relaxed);
    }

    /// Bytes that so many workers drain in the time that a flush may take.
    pub(crate) fn timely_bytes(&self, workers: usize) -> usize {
        match self.ns_per_mib.load(Ordering::Relaxed) {
            0 => usize::MAX,
            ns => {
                let bytes = u128::from(DRAIN_NS_MAX) * (1 << 20) * workers.max(1) as u128 / u128::from(ns);
                usize::try_from(bytes).unwrap_or(usize::MAX)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_dirty_follows_the_codec() {
        let pace = DrainPace::default();
        assert_eq!(pace.timely_bytes(2), usize::MAX, "nothing is known");
        // 8 MiB a second and worker, then 512.
        pace.took(1 << 20, 125_000_000);
        assert_eq!(pace.timely_bytes(2), 64 << 20);
        (0..40).for_each(|_| pace.took(4 << 20, 4 * 1_953_125));
        let (found, exact) = (pace.timely_bytes(1) as f64, f64::from(1u32 << 31));
        assert!((found / exact - 1.0).abs() < 0.01, "{found}");
        pace.took(0, 5);
        pace.took(1, u64::MAX);
        assert!(pace.timely_bytes(usize::MAX) < usize::MAX);
    }
}
