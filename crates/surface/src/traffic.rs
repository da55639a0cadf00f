//! Counts the operations of clients on one device through one door, and their durations. Owns the
//! counts.
//!
//! 1. The door, or the device passed to it, [begins](Traffic::begin) an operation: it reads the
//!    clock.
//! 2. The operation runs.
//! 3. It is [counted](Traffic::end): another reading of the clock, and three additions. No lock is
//!    taken and nothing is allocated.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::ErrorKind;

/// Buckets of a histogram of durations.
pub const BUCKETS: usize = 26;
/// The first bucket holds durations below two to this many nanoseconds, a microsecond.
const FIRST_BUCKET_BITS: u32 = 10;

/// A kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKind {
    /// Data is read.
    Read,
    /// Data is written, including zeroes that must be stored.
    Write,
    /// Earlier writes are made durable.
    Flush,
    /// A range is made to read as zeroes, and its space is freed.
    Discard,
    /// Metadata is read: names, attributes, positions of holes.
    Look,
    /// Names or attributes are changed.
    Change,
}

impl OpKind {
    /// All kinds, in the order of their counts.
    pub const ALL: [Self; 6] = [Self::Read, Self::Write, Self::Flush, Self::Discard, Self::Look, Self::Change];

    /// Its name in documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::Look => "look",
            Self::Change => "change",
        }
    }
}

/// Start of an operation, in nanoseconds of the counting clock.
#[derive(Debug, Clone, Copy)]
pub struct Began(u64);

/// The counts of one kind of operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpCounts {
    /// Bytes read, written or discarded. Failed operations add none.
    pub bytes: u64,
    /// Nanoseconds that the operations took, together.
    pub ns: u64,
    /// Operations by how long they took: see [`bucket_end_ns`].
    pub buckets: [u64; BUCKETS],
}

impl OpCounts {
    /// Operations that were answered, those that failed among them.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// Upper bound of the durations in a bucket; the lower bound is that of the previous one: 1,024 ns,
/// doubled for each further bucket. `None`: the last one is unbounded.
pub const fn bucket_end_ns(bucket: usize) -> Option<u64> {
    if bucket + 1 < BUCKETS { Some(1 << (FIRST_BUCKET_BITS as usize + bucket)) } else { None }
}

fn bucket_of(ns: u64) -> usize {
    let bits = u64::BITS - (ns >> FIRST_BUCKET_BITS).leading_zeros();
    (bits as usize).min(BUCKETS - 1)
}

#[derive(Debug, Default)]
struct Cell {
    bytes: AtomicU64,
    ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// See the module's text.
#[derive(Debug)]
pub struct Traffic {
    clock: fn() -> u64,
    cells: [Cell; OpKind::ALL.len()],
    failures: [AtomicU64; ErrorKind::ALL.len()],
}

impl Traffic {
    /// Zero counts. `clock`: monotonic nanoseconds from an arbitrary start.
    pub fn new(clock: fn() -> u64) -> Self {
        Self { clock, cells: Default::default(), failures: Default::default() }
    }

    /// An operation begins.
    pub fn begin(&self) -> Began {
        Began((self.clock)())
    }

    /// Ends an operation that read, wrote or discarded `bytes`.
    pub fn end(&self, kind: OpKind, began: Began, bytes: u64) {
        let ns = (self.clock)().saturating_sub(began.0);
        let cell = &self.cells[kind as usize];
        cell.buckets[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
        cell.ns.fetch_add(ns, Ordering::Relaxed);
        if bytes > 0 {
            cell.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Counts the failure of an operation, which [ends](Self::end) as well.
    pub fn fail(&self, kind: ErrorKind) {
        self.failures[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Operations that failed so far, by kind in the order of [`ErrorKind::ALL`].
    pub fn failures(&self) -> [u64; ErrorKind::ALL.len()] {
        std::array::from_fn(|kind| self.failures[kind].load(Ordering::Relaxed))
    }

    /// A number that changes with each operation that ends: cheaper than the counts.
    pub fn touched(&self) -> u64 {
        let of = |cell: &Cell| cell.ns.load(Ordering::Relaxed).wrapping_add(cell.bytes.load(Ordering::Relaxed));
        self.cells.iter().fold(0, |sum, cell| sum.wrapping_add(of(cell)))
    }

    /// The counts so far. Operations that end concurrently may be included in some of the figures
    /// only.
    pub fn counts(&self, kind: OpKind) -> OpCounts {
        let cell = &self.cells[kind as usize];
        OpCounts {
            bytes: cell.bytes.load(Ordering::Relaxed),
            ns: cell.ns.load(Ordering::Relaxed),
            buckets: std::array::from_fn(|bucket| cell.buckets[bucket].load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(0) };
    }

    fn took(traffic: &Traffic, kind: OpKind, ns: u64, bytes: u64) {
        let began = traffic.begin();
        NOW.set(NOW.get() + ns);
        traffic.end(kind, began, bytes);
    }

    #[test]
    fn failures_are_counted_by_kind() {
        for (place, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place, "{}", kind.name());
        }
        let traffic = Traffic::new(|| NOW.get());
        [ErrorKind::Full, ErrorKind::Corrupt, ErrorKind::Full].into_iter().for_each(|kind| traffic.fail(kind));
        let failures = traffic.failures();
        assert_eq!((failures[ErrorKind::Full as usize], failures.iter().sum::<u64>()), (2, 3));
    }

    #[test]
    fn each_operation_is_in_one_bucket_that_holds_its_duration() {
        let traffic = Traffic::new(|| NOW.get());
        let durations = [0, 1023, 1024, 2047, 2048, 1_000_000, (1 << 34) - 1, 1 << 34, 1 << 50];
        durations.iter().for_each(|ns| took(&traffic, OpKind::Read, *ns, 4096));
        let counts = traffic.counts(OpKind::Read);
        assert_eq!((counts.count(), counts.bytes), (9, 9 * 4096));
        assert_eq!(counts.ns, durations.iter().sum::<u64>());
        let filled: Vec<_> = (0..BUCKETS).filter(|bucket| counts.buckets[*bucket] > 0).collect();
        assert_eq!(filled, [0, 1, 2, 10, 24, 25]);
        assert_eq!(counts.buckets[..3], [2, 2, 1]);
        assert_eq!((counts.buckets[24], counts.buckets[25]), (1, 2));
        assert_eq!(bucket_end_ns(10), Some(1 << 20), "which 1 ms is below");
        assert_eq!((bucket_end_ns(0), bucket_end_ns(24), bucket_end_ns(25)), (Some(1024), Some(1 << 34), None));
    }

    #[test]
    fn kinds_are_counted_apart_and_an_operation_without_bytes_counts() {
        let traffic = Traffic::new(|| NOW.get());
        for (times, kind) in (1..).zip(OpKind::ALL) {
            (0..times).for_each(|_| took(&traffic, kind, 5, if kind == OpKind::Flush { 0 } else { 7 }));
        }
        for (times, kind) in (1..).zip(OpKind::ALL) {
            let counts = traffic.counts(kind);
            let bytes = if kind == OpKind::Flush { 0 } else { 7 * times };
            assert_eq!((counts.count(), counts.ns, counts.bytes), (times, 5 * times, bytes), "{}", kind.name());
        }
    }
}
