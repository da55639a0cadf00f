//! Measurements to replay: cost and saving of each unit of each kind of data with each codec. They
//! can be stored in a file, so that two versions of the policy are compared on the same ones: runs
//! on a busy machine differ by more than versions do.

use std::path::Path;

use codec::{Codec, Workspace};
use env::{Clock, SystemClock};
use policy::{Attempt, Attempts, dst_limit_permille};
use serde::{Deserialize, Serialize};

use crate::Outcome;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UnitRow {
    /// Which kind of data.
    pub kind: usize,
    /// Where it begins in its kind's data.
    pub at: usize,
    /// Bytes stored and CPU nanoseconds with each codec, in the matrix's order; raw length: it
    /// saved too little.
    pub attempts: Vec<(usize, u64)>,
}

/// All units of one size.
pub struct Matrix {
    pub unit_bytes: usize,
    pub codecs: Vec<Codec>,
    /// The units, kind after kind.
    pub units: Vec<UnitRow>,
}

/// Units compressed with each codec in turn, so that disturbances of the machine affect all codecs
/// alike.
const UNITS_IN_TURN: usize = 16;
/// Rounds over all units; the least time of each counts.
const ROUNDS: usize = 3;
/// Codecs that take longer than this for the first unit of a turn are measured in one round only:
/// their own work is all that matters.
const SLOW_NS: u64 = 2_000_000;

impl UnitRow {
    fn unit<'a>(&self, kinds: &'a [Vec<u8>], unit_bytes: usize) -> &'a [u8] {
        &kinds[self.kind][self.at..self.at + unit_bytes]
    }
}

/// A matrix in a file.
#[derive(Serialize, Deserialize)]
struct SavedMatrix {
    unit_bytes: usize,
    min_saving_permille: u32,
    /// Checksum of each kind's data.
    kinds: Vec<u32>,
    codecs: Vec<String>,
    units: Vec<UnitRow>,
}

impl Matrix {
    /// Reads the measurements of the same data and codecs from a file in the directory; otherwise
    /// measures, and stores them there.
    pub fn load_or_measure(
        directory: Option<&Path>,
        kinds: &[Vec<u8>],
        unit_bytes: usize,
        codecs: &[Codec],
        min_saving_permille: u32,
    ) -> Outcome<Self> {
        let Some(directory) = directory else {
            return Ok(Self::measure(kinds, unit_bytes, codecs, min_saving_permille));
        };
        let path = directory.join(format!("units-{}k.json", unit_bytes >> 10));
        let sums: Vec<u32> = kinds.iter().map(|data| crc32c::crc32c(data)).collect();
        let names: Vec<String> = codecs.iter().map(Codec::to_string).collect();
        if let Ok(text) = std::fs::read(&path) {
            let kept: SavedMatrix = serde_json::from_slice(&text)?;
            let is_same = (kept.unit_bytes, kept.min_saving_permille) == (unit_bytes, min_saving_permille)
                && kept.kinds == sums
                && kept.codecs == names;
            if !is_same {
                return Err(format!("{} has measurements of other data or codecs: remove it", path.display()).into());
            }
            println!("measurements of {}", path.display());
            return Ok(Self { unit_bytes, codecs: codecs.to_vec(), units: kept.units });
        }
        let matrix = Self::measure(kinds, unit_bytes, codecs, min_saving_permille);
        let kept =
            SavedMatrix { unit_bytes, min_saving_permille, kinds: sums, codecs: names, units: matrix.units.clone() };
        std::fs::create_dir_all(directory)?;
        std::fs::write(&path, serde_json::to_vec(&kept)?)?;
        Ok(matrix)
    }

    /// Measures. `kinds`: the data of each kind. Times are the least of three runs for all but the
    /// slowest codecs.
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
        for row in &mut units {
            row.attempts = vec![(unit_bytes, u64::MAX); codecs.len()];
        }
        for round in 0..ROUNDS {
            for rows in units.chunks_mut(UNITS_IN_TURN) {
                for (index, codec) in codecs.iter().enumerate() {
                    // The first unit fills the caches with the codec's tables, and does not count.
                    let first = rows.first().map(|row| row.unit(kinds, unit_bytes));
                    if rows[0].attempts[index].1 > SLOW_NS && round > 0 {
                        continue;
                    }
                    workspace.compress(*codec, first.unwrap_or_default(), &mut dst);
                    for row in &mut *rows {
                        let unit = row.unit(kinds, unit_bytes);
                        let began = clock.thread_cpu_ns();
                        let result = workspace.compress(*codec, unit, &mut dst[..limit]);
                        let ns = clock.thread_cpu_ns() - began;
                        row.attempts[index] = (result.unwrap_or(unit_bytes), row.attempts[index].1.min(ns));
                    }
                }
            }
        }
        Self { unit_bytes, codecs: codecs.to_vec(), units }
    }

    /// Result of a codec on a unit.
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
