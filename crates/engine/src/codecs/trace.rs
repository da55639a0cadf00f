//! A record of each unit that `auto` decided about, kept while a reader asks for it: a ring of
//! bounded size, so that a slow reader loses the oldest and no writer waits.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use store::base::ranked::Mutex;
use store::base::ranks;

/// Records kept: 64 Ki units are 2 GiB of data at the default size, and some 10 MiB of memory.
const RECORDS_MAX: usize = 1 << 16;

/// The decision about one unit, with its inputs.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceRecord {
    /// Number of the record: consecutive, unless the ring was full.
    pub number: u64,
    /// Wall-clock second.
    pub unix_s: u64,
    /// Number of the object in the pool.
    pub object: u64,
    /// Where the unit begins in it, in bytes.
    pub offset: u64,
    /// Bytes before.
    pub raw_bytes: u32,
    /// Bytes stored.
    pub stored_bytes: u32,
    /// Codec; `raw` when stored uncompressed.
    pub codec: String,
    /// Class of data, 0 (nearly constant) to 7 (looks random).
    pub class: u8,
    /// Short name of the reason.
    pub why: String,
    /// CPU nanoseconds of all attempts.
    pub cpu_ns: u64,
    /// The part of them that tests cost.
    pub test_ns: u64,
    /// CPUs that compression can get.
    pub cpus: f64,
    /// Nanoseconds that the device takes for a KiB; 0: not known.
    pub device_ns_per_kib: f64,
    /// Whether writers wait, or nearly.
    pub pressed: bool,
    /// The power of a busy CPU, and the source of that figure.
    pub power: policy::Power,
}

/// Seconds without a reader after which the trace ends: the reader may have been killed.
const LEASE_S: u64 = 10;

#[derive(Default)]
struct Ring {
    records: VecDeque<TraceRecord>,
    next: u64,
    /// When the trace was read last.
    read_unix_s: u64,
}

#[derive(Default)]
pub(crate) struct Trace {
    on: AtomicBool,
    ring: Mutex<Ring, ranks::Trace>,
}

impl Trace {
    /// Whether records are wanted.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Starts the trace, or ends it and drops its records.
    pub(crate) fn set(&self, on: bool, unix_s: u64) {
        let mut ring = self.ring.lock();
        self.on.store(on, Ordering::Relaxed);
        ring.read_unix_s = unix_s;
        if !on {
            ring.records = VecDeque::new();
        }
    }

    /// Adds a record, and numbers it.
    pub(crate) fn add(&self, record: TraceRecord) {
        let mut ring = self.ring.lock();
        if record.unix_s > ring.read_unix_s + LEASE_S {
            self.on.store(false, Ordering::Relaxed);
            ring.records = VecDeque::new();
            return;
        }
        if ring.records.len() == RECORDS_MAX {
            ring.records.pop_front();
        }
        let number = ring.next;
        ring.next += 1;
        ring.records.push_back(TraceRecord { number, ..record });
    }

    /// Takes up to `count` records, the oldest first. A reader that asks wants more: the trace
    /// continues, or starts.
    pub(crate) fn take(&self, count: usize, unix_s: u64) -> Vec<TraceRecord> {
        let mut ring = self.ring.lock();
        self.on.store(true, Ordering::Relaxed);
        ring.read_unix_s = unix_s;
        let count = count.min(ring.records.len());
        ring.records.drain(..count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> TraceRecord {
        TraceRecord {
            number: 0,
            unix_s: 1,
            object: 1,
            offset: 0,
            raw_bytes: 4096,
            stored_bytes: 100,
            codec: "lz4".to_owned(),
            class: 2,
            why: "class-winner".to_owned(),
            cpu_ns: 5,
            test_ns: 0,
            cpus: 2.0,
            device_ns_per_kib: 0.0,
            pressed: false,
            power: policy::Power::NOMINAL,
        }
    }

    #[test]
    fn a_full_ring_loses_the_oldest_and_says_so_by_their_numbers() {
        let trace = Trace::default();
        assert!(!trace.is_on());
        trace.set(true, 1);
        for _ in 0..RECORDS_MAX + 10 {
            trace.add(record());
        }
        let first = trace.take(5, 1);
        assert_eq!(first.iter().map(|r| r.number).collect::<Vec<_>>(), [10, 11, 12, 13, 14]);
        assert_eq!(trace.take(usize::MAX, 1).len(), RECORDS_MAX - 5);
        trace.add(record());
        trace.add(TraceRecord { unix_s: 2 + LEASE_S, ..record() });
        assert!(!trace.is_on(), "nobody has read for so long");
        trace.set(true, 1);
        trace.add(record());
        trace.set(false, 1);
        assert!(trace.take(1, 1).is_empty());
        assert!(trace.is_on(), "who asks wants more");
    }
}
