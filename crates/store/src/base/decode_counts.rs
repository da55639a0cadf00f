//! Cost of decompression since the pool was opened, by codec. Owns the counts; any thread adds to
//! them, and nothing depends on them.
//!
//! A unit costs two additions; the CPU time of one unit in eight is measured, as for compression.
#![warn(missing_docs, reason = "`engine` exports these types")]

use std::sync::atomic::{AtomicU64, Ordering};

use codec::CodecId;
use env::Clock;
use units::BLOCK_BYTES;

/// One unit in this many has its CPU time measured: reading that clock is a system call.
pub const TIMED_EVERY: u64 = 8;
/// Codec numbers are below it; others are counted as the last one.
const CODECS: usize = 128;

/// Estimates the CPU time of all bytes from that of the bytes that were timed; none if none were.
pub(crate) fn cpu_ns_of_all(timed_ns: u64, timed_bytes: u64, all_bytes: u64) -> Option<u64> {
    let all = u128::from(timed_ns) * u128::from(all_bytes);
    (timed_bytes > 0).then(|| u64::try_from(all / u128::from(timed_bytes)).unwrap_or(u64::MAX))
}

/// Bytes that reads decompressed with one codec since the pool was opened, and their CPU time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DecodeEffort {
    /// Bytes of the units.
    pub raw_bytes: u64,
    /// Their stored size.
    pub stored_bytes: u64,
    /// Approximate CPU time in nanoseconds; one unit in eight is timed.
    pub cpu_ns: u64,
}

#[derive(Debug, Default)]
struct Count {
    raw: AtomicU64,
    stored: AtomicU64,
    timed_raw: AtomicU64,
    timed_ns: AtomicU64,
}

/// See the module's text.
#[derive(Debug)]
pub struct DecodeCounts([Count; CODECS]);

impl Default for DecodeCounts {
    fn default() -> Self {
        Self(
            [const {
                Count {
                    raw: AtomicU64::new(0),
                    stored: AtomicU64::new(0),
                    timed_raw: AtomicU64::new(0),
                    timed_ns: AtomicU64::new(0),
                }
            }; CODECS],
        )
    }
}

impl DecodeCounts {
    /// Decodes a unit of `raw` bytes, stored as `stored`, by `decode`.
    pub fn count<T>(
        &self,
        codec: CodecId,
        (raw, stored): (usize, usize),
        clock: &dyn Clock,
        decode: impl FnOnce() -> T,
    ) -> T {
        let count = &self.0[usize::from(codec.0).min(CODECS - 1)];
        let before = count.raw.fetch_add(raw as u64, Ordering::Relaxed);
        count.stored.fetch_add(stored as u64, Ordering::Relaxed);
        // Where units have different sizes it is about one in eight.
        let number = before / (raw as u64).max(BLOCK_BYTES as u64);
        let began = number.is_multiple_of(TIMED_EVERY).then(|| clock.thread_cpu_ns());
        let done = decode();
        if let Some(began) = began {
            count.timed_ns.fetch_add(clock.thread_cpu_ns().saturating_sub(began), Ordering::Relaxed);
            count.timed_raw.fetch_add(raw as u64, Ordering::Relaxed);
        }
        done
    }

    /// Returns the counts by codec.
    pub fn report(&self) -> Vec<(CodecId, DecodeEffort)> {
        let used = self.0.iter().enumerate().filter(|(_, count)| count.raw.load(Ordering::Relaxed) > 0);
        used.map(|(number, count)| {
            let raw_bytes = count.raw.load(Ordering::Relaxed);
            let (timed, ns) = (count.timed_raw.load(Ordering::Relaxed), count.timed_ns.load(Ordering::Relaxed));
            let cpu_ns = cpu_ns_of_all(ns, timed, raw_bytes).unwrap_or_default();
            (
                CodecId(number as u8),
                DecodeEffort { raw_bytes, stored_bytes: count.stored.load(Ordering::Relaxed), cpu_ns },
            )
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::testing::CountingClock;

    #[test]
    fn one_unit_in_eight_is_timed_and_all_bytes_count() {
        let (counts, clock) = (DecodeCounts::default(), CountingClock::default());
        for _ in 0..16 {
            assert_eq!(counts.count(CodecId::LZ4, (32 << 10, 1000), &clock, || 7), 7);
        }
        counts.count(CodecId(255), (4096, 4096), &clock, || ());
        assert_eq!(clock.looks(), 6, "two looks for each unit that was timed");
        let report = counts.report();
        let lz4 = DecodeEffort { raw_bytes: 16 * (32 << 10), stored_bytes: 16_000, cpu_ns: 1600 };
        assert_eq!((report.len(), report[0]), (2, (CodecId::LZ4, lz4)));
    }
}
