//! The policy on measurements: `auto`, each candidate alone, and the oracle, over the same units in
//! the same order.

use std::collections::HashMap;

use codec::Codec;
use env::{Clock, SystemClock};
use policy::{Auto, PlainTable, Planner, Pressure, Region, Stored, TEST_CREDIT_NS, ln_cost, test_credit_earned};

use super::Kinds;
use super::matrix::{Matrix, Replayed, UnitRow};

/// Bytes of a region, as the engine has them.
const REGION_BYTES: usize = 4 << 20;
/// Of how many units the engine measures the time of one.
const TIMED_EVERY: usize = 16;
/// Units that the engine puts into a batch, for which plans hold.
const BATCH_BYTES: usize = 1 << 20;

/// Result of a way of choosing.
#[derive(Debug, Clone, Default)]
pub struct Done {
    /// Raw bytes.
    pub raw: u64,
    /// Bytes stored.
    pub stored: u64,
    /// CPU nanoseconds of compressing.
    pub cpu_ns: u64,
    /// The part of it for tests.
    pub test_ns: u64,
    /// CPU nanoseconds of everything else: probes, plans, regions, statistics.
    pub bookkeeping_ns: u64,
    /// Units by codec, as stored.
    pub codecs: HashMap<String, u64>,
}

impl Done {
    /// Raw over stored bytes.
    pub fn ratio(&self) -> f64 {
        self.raw as f64 / self.stored.max(1) as f64
    }
    /// Bytes saved.
    pub fn saved(&self) -> u64 {
        self.raw - self.stored.min(self.raw)
    }
    /// Share of the CPU time that tests took.
    pub fn test_percent(&self) -> f64 {
        100.0 * self.test_ns as f64 / self.cpu_ns.max(1) as f64
    }
    /// Share of the CPU time that tests, probes and bookkeeping took.
    pub fn deciding_percent(&self) -> f64 {
        100.0 * (self.test_ns + self.bookkeeping_ns) as f64 / (self.cpu_ns + self.bookkeeping_ns).max(1) as f64
    }
    /// Megabytes a second on one core, deciding included.
    pub fn megabytes_per_second(&self) -> f64 {
        self.raw as f64 * 1e3 / (self.cpu_ns + self.bookkeeping_ns).max(1) as f64
    }
    /// Adds the result of another run.
    pub fn include(&mut self, other: &Self) {
        self.raw += other.raw;
        self.stored += other.stored;
        self.cpu_ns += other.cpu_ns;
        self.test_ns += other.test_ns;
        self.bookkeeping_ns += other.bookkeeping_ns;
        for (codec, units) in &other.codecs {
            *self.codecs.entry(codec.clone()).or_default() += units;
        }
    }
    fn add(&mut self, raw: usize, stored: usize, cpu_ns: u64, codec: &str) {
        self.raw += raw as u64;
        self.stored += stored as u64;
        self.cpu_ns += cpu_ns;
        *self.codecs.entry(codec.to_owned()).or_default() += 1;
    }
}

/// `auto` on measurements; its memory persists from run to run.
pub struct Replay<'a> {
    matrix: &'a Matrix,
    kinds: &'a Kinds,
    auto: Auto,
    table: &'a PlainTable,
    pressure: Pressure,
    credit_ns: i64,
}

impl<'a> Replay<'a> {
    /// A new pool with the statistics in `table`.
    pub fn new(matrix: &'a Matrix, kinds: &'a Kinds, auto: Auto, table: &'a PlainTable) -> Self {
        Self { matrix, kinds, auto, table, pressure: Pressure::default(), credit_ns: TEST_CREDIT_NS }
    }

    /// Sets the pressure on writers from now on.
    pub fn under(&mut self, pressure: Pressure) {
        self.pressure = pressure;
    }

    /// Stores units in this order, in unknown regions. `each` is called for every unit.
    pub fn run(&mut self, order: &[usize], mut each: impl FnMut(&UnitRow, &Stored)) -> Done {
        let matrix = self.matrix;
        let clock = SystemClock::default();
        let mut done = Done::default();
        let mut batch_stored = Vec::new();
        let mut regions: HashMap<usize, Region> = HashMap::new();
        for (batch, units) in order.chunks((BATCH_BYTES / matrix.unit_bytes).max(1)).enumerate() {
            let mut planner = Planner::new(self.auto, 1.0, self.pressure, self.table);
            let (mut cpu_ns, mut test_ns) = (0, 0);
            // Compressing takes no time here: the elapsed time is the policy's own.
            let began = clock.thread_cpu_ns();
            for (index, unit) in units.iter().enumerate() {
                let row = &matrix.units[*unit];
                let raw = &self.kinds.data[row.kind][row.at..row.at + matrix.unit_bytes];
                let region =
                    regions.entry((batch * BATCH_BYTES + index * matrix.unit_bytes) / REGION_BYTES).or_default();
                let number = batch * (BATCH_BYTES / matrix.unit_bytes).max(1) + index;
                let stored = planner.store(
                    raw,
                    *region,
                    self.credit_ns,
                    number.is_multiple_of(TIMED_EVERY),
                    &mut Replayed { matrix, row },
                );
                *region = stored.region;
                self.credit_ns -= stored.test_ns as i64;
                cpu_ns += stored.cpu_ns;
                test_ns += stored.test_ns;
                batch_stored.push((row, stored));
            }
            done.bookkeeping_ns += clock.thread_cpu_ns() - began;
            for (row, stored) in batch_stored.drain(..) {
                done.add(matrix.unit_bytes, stored.bytes, stored.cpu_ns, &stored.codec.to_string());
                each(row, &stored);
            }
            done.test_ns += test_ns;
            self.credit_ns += test_credit_earned(self.credit_ns, cpu_ns - test_ns);
        }
        done
    }
}

/// One codec for everything.
pub fn fixed(matrix: &Matrix, order: &[usize], codec: Codec) -> Done {
    let mut done = Done::default();
    for unit in order {
        let (stored, ns) = matrix.of(&matrix.units[*unit], codec).unwrap_or((matrix.unit_bytes, 0));
        done.add(matrix.unit_bytes, stored, ns, &codec.to_string());
    }
    done
}

/// The candidate of least cost for each unit, known in advance and found at no cost.
pub fn oracle(matrix: &Matrix, order: &[usize], auto: Auto) -> Done {
    let mut done = Done::default();
    let kib = matrix.unit_bytes as f64 / 1024.0;
    for unit in order {
        let row = &matrix.units[*unit];
        let mut best: Option<(f64, Codec, usize, u64)> = None;
        for codec in auto.candidates.as_slice() {
            let Some((stored, ns)) = matrix.of(row, *codec) else { continue };
            let saving = 1.0 - stored as f64 / matrix.unit_bytes as f64;
            let cost = ln_cost(auto.mode.weights(), ns as f64 / kib, 1.0, saving);
            if cost.is_finite() && best.is_none_or(|(least, ..)| cost < least) {
                best = Some((cost, *codec, stored, ns));
            }
        }
        match best {
            Some((_, codec, stored, ns)) => done.add(matrix.unit_bytes, stored, ns, &codec.to_string()),
            None => done.add(matrix.unit_bytes, matrix.unit_bytes, 0, "raw"),
        }
    }
    done
}
