//! Error rate and cost of the probe: by kind of data and unit size.

use codec::{Codec, Workspace};
use env::{Clock, SystemClock};
use policy::{Settings, dst_limit, probe};

use super::{Kinds, UNITS};
use crate::Outcome;
use crate::report::Report;

/// Repetitions, so that a probe takes longer than looking at the clock.
const PROBES: usize = 20;

#[derive(Default, Clone, Copy)]
struct Cell {
    units: u64,
    compressible: u64,
    missed: u64,
    in_vain: u64,
    lost_bytes: u64,
}

pub fn run(kinds: &Kinds, report: &mut Report) -> Outcome<()> {
    for unit_bytes in UNITS {
        println!("\nunits of {} KiB; compressible: zstd-1 saves 12.5 %", unit_bytes >> 10);
        println!(
            "{:<12} {:>7} {:>13} {:>18} {:>18} {:>12}",
            "kind", "units", "compressible", "taken for random", "random, not seen", "saving lost"
        );
        let mut total = Cell::default();
        let (mut lz4_ns, mut probe_ns, mut worst) = (0, 0, 0.0f64);
        for (name, data) in kinds.names.iter().zip(&kinds.data) {
            let (cell, lz4, probing) = kind(data, unit_bytes)?;
            print(name, cell);
            total.units += cell.units;
            total.compressible += cell.compressible;
            total.missed += cell.missed;
            total.in_vain += cell.in_vain;
            lz4_ns += lz4;
            probe_ns += probing;
            worst = worst.max(100.0 * probing as f64 / lz4 as f64);
        }
        print("all", total);
        let size = unit_bytes >> 10;
        let how = "over the corpus; `bench adaptive --only 'adaptive probe'`";
        let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        report.at_most(
            &format!("probe, {size} KiB: CPU time against lz4"),
            percent(probe_ns, lz4_ns),
            "%",
            3.0,
            how,
        )?;
        report.info(&format!("probe, {size} KiB: CPU time against lz4, the kind with the largest"), worst, "%", how)?;
        report.info(
            &format!("probe, {size} KiB: compressible units taken for random"),
            percent(total.missed, total.compressible),
            "%",
            how,
        )?;
        report.info(
            &format!("probe, {size} KiB: incompressible units not seen"),
            percent(total.in_vain, total.units - total.compressible),
            "%",
            how,
        )?;
    }
    Ok(())
}

fn kind(data: &[u8], unit_bytes: usize) -> Outcome<(Cell, u64, u64)> {
    let clock = SystemClock::default();
    let mut codecs = Workspace::new();
    let mut dst = vec![0; unit_bytes];
    let zstd: Codec = "zstd-1".parse()?;
    let limit = dst_limit(unit_bytes, &Settings::default());
    let mut cell = Cell::default();
    for unit in data.chunks_exact(unit_bytes) {
        let stored = codecs.compress(zstd, unit, &mut dst[..limit]);
        let random = probe(unit).class.is_random();
        cell.units += 1;
        cell.compressible += u64::from(stored.is_some());
        match stored {
            Some(stored) if random => {
                cell.missed += 1;
                cell.lost_bytes += (unit_bytes - stored) as u64;
            }
            None if !random => cell.in_vain += 1,
            _ => {}
        }
    }
    let began = clock.thread_cpu_ns();
    for unit in data.chunks_exact(unit_bytes) {
        std::hint::black_box(codecs.compress(Codec::Lz4, unit, &mut dst[..limit]));
    }
    let lz4 = clock.thread_cpu_ns() - began;
    let began = clock.thread_cpu_ns();
    for _ in 0..PROBES {
        for unit in data.chunks_exact(unit_bytes) {
            std::hint::black_box(probe(std::hint::black_box(unit)));
        }
    }
    Ok((cell, lz4, (clock.thread_cpu_ns() - began) / PROBES as u64))
}

fn print(name: &str, cell: Cell) {
    println!(
        "{name:<12} {:>7} {:>13} {:>18} {:>18} {:>9} KiB",
        cell.units,
        cell.compressible,
        cell.missed,
        cell.in_vain,
        cell.lost_bytes >> 10
    );
}
