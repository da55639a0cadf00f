//! Saving and cost of each codec, by kind and unit size.

use codec::{Codec, CodecId, Workspace};
use env::{Clock, SystemClock};
use policy::{Settings, dst_limit};
use serde::Serialize;

use super::kinds::Kind;

/// Sizes of units.
pub const UNIT_BYTES: [usize; 3] = [4 << 10, 32 << 10, 128 << 10];
/// Rounds of each timing; the fastest is reported, because disturbances only slow it down.
const ROUNDS: usize = 2;
/// Timings longer than this are done once: they are long enough to be steady.
const LONG_NS: u64 = 50_000_000;
/// bzip2's levels above 2 store the same bytes in the same time; the last is measured for all.
const REDUNDANT: std::ops::RangeInclusive<u8> = 3..=8;

/// One codec on one kind.
#[derive(Debug, Clone, Serialize)]
pub struct Cost {
    pub kind: String,
    pub codec: String,
    pub unit_bytes: usize,
    pub units: usize,
    pub raw_bytes: u64,
    /// As a pool stores it: raw if it saves less than the default minimum.
    pub stored_bytes: u64,
    /// CPU nanoseconds of compressing all units, those included that are stored raw.
    pub compress_ns: u64,
    /// CPU nanoseconds of decompressing those that are stored compressed, and their raw bytes.
    pub decompress_ns: u64,
    pub decompressed_bytes: u64,
}

impl Cost {
    /// The saving in percent.
    pub fn saving(&self) -> f64 {
        100.0 * (1.0 - self.stored_bytes as f64 / self.raw_bytes.max(1) as f64)
    }
}

/// CPU nanoseconds of the fastest of some rounds.
fn timed(mut work: impl FnMut()) -> u64 {
    let clock = SystemClock::default();
    let mut fastest = u64::MAX;
    for _ in 0..ROUNDS {
        let began = clock.thread_cpu_ns();
        work();
        fastest = fastest.min(clock.thread_cpu_ns() - began);
        if fastest > LONG_NS {
            break;
        }
    }
    fastest
}

/// All kinds, sizes and codecs.
pub fn measure(kinds: &[Kind], budget: usize) -> Vec<Cost> {
    let mut costs = Vec::new();
    for kind in kinds {
        eprintln!("{}: {} files", kind.name, kind.count);
        for unit_bytes in UNIT_BYTES {
            let units = kind.sample(unit_bytes, budget);
            costs.extend(Codec::all().filter(|c| is_measured(*c)).map(|codec| one(kind, unit_bytes, &units, codec)));
        }
    }
    costs
}

fn is_measured(codec: Codec) -> bool {
    match codec {
        Codec::Off => false,
        Codec::Bzip2(level) => !REDUNDANT.contains(&level.get()),
        _ => true,
    }
}

fn one(kind: &Kind, unit_bytes: usize, units: &[&[u8]], codec: Codec) -> Cost {
    let mut workspace = Workspace::new();
    let settings = Settings::default();
    let mut dst = vec![0u8; unit_bytes];
    let mut stored: Vec<(CodecId, Vec<u8>, usize)> = Vec::new();
    let mut cost = Cost {
        kind: kind.name.clone(),
        codec: codec.to_string(),
        unit_bytes,
        units: units.len(),
        raw_bytes: units.iter().map(|u| u.len() as u64).sum(),
        stored_bytes: 0,
        compress_ns: 0,
        decompress_ns: 0,
        decompressed_bytes: 0,
    };
    let clock = SystemClock::default();
    let began = clock.thread_cpu_ns();
    for unit in units {
        // Warms the contexts up too.
        match workspace.compress(codec, unit, &mut dst[..dst_limit(unit.len(), &settings)]) {
            Some(len) => {
                stored.push((codec.id(), dst[..len].to_vec(), unit.len()));
                cost.stored_bytes += len as u64;
                cost.decompressed_bytes += unit.len() as u64;
            }
            None => cost.stored_bytes += unit.len() as u64,
        }
    }
    let first = clock.thread_cpu_ns() - began;
    cost.compress_ns = if first > LONG_NS {
        first
    } else {
        timed(|| {
            for unit in units {
                std::hint::black_box(workspace.compress(codec, unit, &mut dst[..dst_limit(unit.len(), &settings)]));
            }
        })
    };
    cost.decompress_ns = timed(|| {
        for (id, bytes, raw) in &stored {
            let _ = std::hint::black_box(workspace.decompress(*id, bytes, &mut dst[..*raw]));
        }
    });
    cost
}
