//! Measurements to replay: what each unit of each kind of data costs and saves with each codec.

use codec::{Codec, Workspace};
use env::{Clock, SystemClock};
use policy::{Attempt, Attempts, dst_limit_permille};

/// A unit.
#[derive(Debug, Clone)]
pub struct UnitRow {
    /// Which kind of data.
    pub kind: usize,
    /// Where it begins in its kind's data.
    pub at: usize,
    /// Bytes stored and CPU nanoseconds with each codec, in the matrix's order; raw length: it saved too little.
    pub attempts: Vec<(usize, u64)>,
}

/// All units of one size.
pub struct Matrix {
    /// Bytes of a unit.
    pub unit_bytes: usize,
    /// The codecs.
    pub codecs: Vec<Codec>,
    /// The units, kind after kind.
    pub units: Vec<UnitRow>,
}

/// Bytes compressed before anything counts: contexts are made and caches warmed by them.
const WARM_UNITS: usize = 4;

impl Matrix {
    /// Measures. `kinds`: the data of each kind. Times are the lesser of two runs for all but the slowest codecs.
    pub fn measure(kinds: &[Vec<u8>], unit_bytes: usize, codecs: &[Codec], min_saving_permille: u32) -> Self {
        let clock = SystemClock::default();
        let mut workspace = Workspace::new();
        let mut dst = vec![0; unit_bytes];
        let limit = dst_limit_permille(unit_bytes, min_saving_permille);
        let mut units = Vec::new();
        for (kind, data) in kinds.iter().enumerate() {
            for index in 0..data.len() / unit_bytes {
                let row = UnitRow { kind, at: index * unit_bytes, attempts: Vec::new() };
                units.push(row);
            }
        }
        for codec in codecs {
            for data in kinds {
                for unit in data.chunks_exact(unit_bytes).take(WARM_UNITS) {
                    workspace.compress(*codec, unit, &mut dst);
                }
            }
            for row in &mut units {
                let unit = &kinds[row.kind][row.at..row.at + unit_bytes];
                let mut best = u64::MAX;
                let mut stored = unit_bytes;
                for round in 0..2 {
                    let began = clock.thread_cpu_ns();
                    let result = workspace.compress(*codec, unit, &mut dst[..limit]);
                    best = best.min(clock.thread_cpu_ns() - began);
                    stored = result.unwrap_or(unit_bytes);
                    if round == 0 && best > 2_000_000 {
                        break;
                    }
                }
                row.attempts.push((stored, best));
            }
        }
        Self { unit_bytes, codecs: codecs.to_vec(), units }
    }

    /// What the codec of that name did to a unit.
    pub fn of(&self, row: &UnitRow, codec: Codec) -> Option<(usize, u64)> {
        let index = self.codecs.iter().position(|c| *c == codec)?;
        row.attempts.get(index).copied()
    }
}

/// Attempts that were made before.
pub struct Replayed<'a> {
    /// The measurements.
    pub matrix: &'a Matrix,
    /// The unit.
    pub row: &'a UnitRow,
}

impl Attempts for Replayed<'_> {
    fn attempt(&mut self, codec: Codec, _timed: bool) -> Attempt {
        let Some((stored, ns)) = self.matrix.of(self.row, codec) else { return Attempt { stored: None, cpu_ns: None } };
        Attempt { stored: (stored < self.matrix.unit_bytes).then_some(stored), cpu_ns: Some(ns) }
    }
    fn keep(&mut self) {}
}
