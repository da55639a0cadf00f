//! The policy replayed on measurements of every unit with every codec: by kind, and on mixes of all kinds.

use codec::Codec;
use policy::{Auto, Candidates, Mode, PlainTable, Settings};

use super::matrix::Matrix;
use super::replay::{self, Done};
use super::{Kinds, UNITS};
use crate::Outcome;
use crate::report::Report;

/// The codecs that are measured.
const CODECS: [&str; 6] = ["lz4", "zstd-1", "zstd-3", "zstd-6", "zstd-9", "zstd-19"];
const CANDIDATES: &str = "lz4,zstd-1,zstd-3,zstd-6,zstd-9,zstd-19";

pub fn run(kinds: &Kinds, _report: &mut Report) -> Outcome<()> {
    let codecs: Vec<Codec> = CODECS.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
    let settings = Settings::default();
    for unit_bytes in UNITS {
        let matrix = Matrix::measure(&kinds.data, unit_bytes, &codecs, settings.min_saving_permille);
        println!("\n=== units of {} KiB", unit_bytes >> 10);
        for (index, name) in kinds.names.iter().enumerate() {
            let order: Vec<usize> = (0..matrix.units.len()).filter(|u| matrix.units[*u].kind == index).collect();
            println!("\n{name}");
            table(&matrix, kinds, &order)?;
        }
        for grain in [128 << 10, 4 << 20] {
            println!("\nall kinds, interleaved at {} KiB", grain >> 10);
            table(&matrix, kinds, &interleaved(&matrix, kinds, grain))?;
        }
    }
    Ok(())
}

/// All units, `grain` bytes of each kind in turn.
fn interleaved(matrix: &Matrix, kinds: &Kinds, grain: usize) -> Vec<usize> {
    let mut order = Vec::new();
    let mut round = 0;
    while order.len() < matrix.units.len() {
        for kind in 0..kinds.names.len() {
            let range = round * grain..(round + 1) * grain;
            order.extend((0..matrix.units.len()).filter(|u| {
                let row = &matrix.units[*u];
                row.kind == kind && range.contains(&row.at)
            }));
        }
        round += 1;
    }
    order
}

fn table(matrix: &Matrix, kinds: &Kinds, order: &[usize]) -> Outcome<()> {
    let candidates: Candidates = CANDIDATES.parse()?;
    let line = |name: &str, done: &Done| {
        let mut codecs: Vec<_> = done.codecs.iter().collect();
        codecs.sort();
        let mb = done.raw as f64 / 1e6;
        println!(
            "  {name:<20} ratio {:>7.3} saved {:>6.2} %  {:>8.2} ns/B  tests {:>5.2} %  {codecs:?}",
            done.ratio(),
            100.0 * done.saved() as f64 / done.raw as f64,
            done.cpu_ns as f64 / mb / 1e6,
            100.0 * done.test_ns as f64 / (done.cpu_ns.max(1)) as f64,
        );
    };
    for codec in &matrix.codecs {
        line(&codec.to_string(), &replay::fixed(matrix, order, *codec));
    }
    for mode in [Mode::Energy, Mode::Balanced, Mode::Archive] {
        let auto = Auto { mode, candidates, min_saving_permille: 125 };
        line(&format!("oracle {mode}"), &replay::oracle(matrix, order, auto));
        line(
            &format!("auto {mode}"),
            &replay::auto(matrix, &kinds.data, order, auto, &PlainTable::default(), |_, _| ()),
        );
    }
    Ok(())
}
