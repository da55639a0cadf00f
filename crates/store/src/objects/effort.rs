//! Cost of one object's data since the pool was opened: bytes before and after compression and CPU
//! time by codec, and units found in memory. Owns these counts; nothing depends on them.
//!
//! 1. A drain compresses the units of an object one after the other, and keeps their sums in a
//!    local [`Compressing`].
//! 2. The CPU time of the first unit, and of each eighth one from there on, is measured: reading
//!    that clock is a system call.
//! 3. With the last unit the sums are added to the object's. This is the only lock, and no client
//!    waits for it.
#![warn(missing_docs, reason = "`engine` exports these types")]

use std::collections::BTreeMap;

use codec::CodecId;
use env::Clock;

use crate::base::counters::Counter;
use crate::base::decode_counts::{TIMED_EVERY, cpu_ns_of_all};
use crate::base::ranked::Mutex;
use crate::base::ranks;

/// Cost of the data that is stored with one codec.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CodecEffort {
    /// Units.
    pub units: u64,
    /// Their bytes.
    pub raw_bytes: u64,
    /// Their stored size.
    pub stored_bytes: u64,
    /// Bytes, before compression, of the units with measured CPU time.
    pub timed_bytes: u64,
    /// That CPU time, including the choice of the codec and failed attempts.
    pub timed_ns: u64,
}

impl CodecEffort {
    /// Returns the approximate CPU time of all units in nanoseconds, if any was measured.
    pub fn cpu_ns(&self) -> Option<u64> {
        cpu_ns_of_all(self.timed_ns, self.timed_bytes, self.raw_bytes)
    }

    fn add(&mut self, more: &Self) {
        self.units += more.units;
        self.raw_bytes += more.raw_bytes;
        self.stored_bytes += more.stored_bytes;
        self.timed_bytes += more.timed_bytes;
        self.timed_ns += more.timed_ns;
    }
}

/// Cost of an object's data since the pool was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeEffort {
    /// The data written to it, by the codec that it is stored with.
    pub codecs: Vec<(CodecId, CodecEffort)>,
    /// Units that reads found decoded in memory.
    pub cache_hits: u64,
    /// Units that reads had to read and decode.
    pub cache_misses: u64,
}

/// See the module's text.
#[derive(Default)]
pub struct Effort {
    codecs: Mutex<BTreeMap<CodecId, CodecEffort>, ranks::ObjectPart>,
    hits: Counter,
    misses: Counter,
}

impl Effort {
    /// Counts units that a read found in memory, and others.
    pub fn looked_up(&self, hits: u64, misses: u64) {
        if hits > 0 {
            self.hits.add(hits);
        }
        if misses > 0 {
            self.misses.add(misses);
        }
    }

    /// Returns the costs so far.
    pub fn report(&self) -> VolumeEffort {
        let codecs = self.codecs.lock().iter().map(|(codec, effort)| (*codec, *effort)).collect();
        VolumeEffort { codecs, cache_hits: self.hits.get(), cache_misses: self.misses.get() }
    }
}

/// Steps 1 and 2, for the units of one object.
pub struct Compressing<'a> {
    clock: &'a dyn Clock,
    units: u64,
    began: Option<u64>,
    codecs: Vec<(CodecId, CodecEffort)>,
}

impl<'a> Compressing<'a> {
    /// Measures by that clock.
    pub fn new(clock: &'a dyn Clock) -> Self {
        Self { clock, units: 0, began: None, codecs: Vec::new() }
    }

    /// The next unit begins.
    #[inline]
    pub fn begin(&mut self) {
        self.began = self.units.is_multiple_of(TIMED_EVERY).then(|| self.clock.thread_cpu_ns());
        self.units += 1;
    }

    /// It has been compressed.
    pub fn end(&mut self, codec: CodecId, raw: usize, stored: usize) {
        let raw_bytes = raw as u64;
        let mut unit = CodecEffort { units: 1, raw_bytes, stored_bytes: stored as u64, ..CodecEffort::default() };
        if let Some(began) = self.began.take() {
            unit.timed_bytes = raw_bytes;
            unit.timed_ns = self.clock.thread_cpu_ns().saturating_sub(began);
        }
        match self.codecs.iter_mut().find(|(known, _)| *known == codec) {
            Some((_, effort)) => effort.add(&unit),
            None => self.codecs.push((codec, unit)),
        }
    }

    /// Step 3.
    pub fn finish(self, effort: &Effort) {
        let mut codecs = effort.codecs.lock();
        for (codec, more) in &self.codecs {
            codecs.entry(*codec).or_default().add(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::testing::CountingClock;

    #[test]
    fn one_unit_in_eight_is_timed_and_stands_for_the_others_of_its_codec() {
        let (clock, effort) = (CountingClock::default(), Effort::default());
        for _ in 0..2 {
            let mut compressing = Compressing::new(&clock);
            for unit in 0..16 {
                let codec = if unit < 15 { CodecId::LZ4 } else { CodecId::RAW };
                compressing.begin();
                compressing.end(codec, 4096, if unit < 15 { 1000 } else { 4096 });
            }
            compressing.finish(&effort);
        }
        effort.looked_up(3, 0);
        effort.looked_up(0, 2);
        let report = effort.report();
        assert_eq!((report.cache_hits, report.cache_misses), (3, 2));
        let [(CodecId::RAW, raw), (CodecId::LZ4, lz4)] = report.codecs[..] else { panic!("{report:?}") };
        assert_eq!((raw.units, raw.raw_bytes, raw.stored_bytes, raw.cpu_ns()), (2, 8192, 8192, None));
        assert_eq!((lz4.units, lz4.raw_bytes, lz4.stored_bytes), (30, 30 * 4096, 30_000));
        assert_eq!((lz4.timed_bytes, lz4.timed_ns), (4 * 4096, 400));
        assert_eq!(lz4.cpu_ns(), Some(3000), "100 ns for each of 30 units");
        assert_eq!(clock.looks(), 8, "two looks for each unit that was timed");
    }
}
