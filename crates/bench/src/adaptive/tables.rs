//! The policy replayed on measurements of every unit with every candidate: by kind, and on mixes of
//! all kinds. Each replay goes over its data twice and reports the second pass: the first one is
//! the calibration of a new pool.

use codec::Codec;
use policy::{Auto, Candidates, Mode, PlainTable, Power, Pressure, Settings};

use super::live::Load;
use super::matrix::Matrix;
use super::plot;
use super::replay::{self, Done, Replay};
use super::{Kinds, UNITS};
use crate::report::Report;
use crate::{Context, Outcome};

/// Bytes of a stream above which the share of tests reflects steady use: the credit saved up for
/// tests is worth half a second of compressing.
const SHARE_BYTES_MIN: u64 = 32 << 20;

/// Fixed codecs that are measured though they may be no candidates.
const OTHERS: [&str; 2] = ["zstd-12", "zstd-15"];

/// The modes that are replayed. `performance` without a waiting client: it takes codecs that keep
/// up with the writer.
const MODES: [Mode; 4] = Mode::ALL;

/// Replays over which the cost of deciding is averaged: the credit saved up for tests is worth one
/// of them.
const STEADY_RUNS: usize = 5;

/// Pressure on writers under full load: other processes use one of two CPUs, and the device takes
/// 200 MB/s. On a device that accepts everything immediately, `performance` compresses nothing
/// then, so there is no reference for the cost of deciding; its cost there is measured on
/// incompressible data, against `compression=off`.
const FULL_LOAD: Pressure =
    Pressure { cpus: 1.0, device_ns_per_kib: 5120.0, raw_ns_per_kib: 100.0, demand_ns_per_kib: 0.0, pressed: true };

/// The data of a replay, and its order.
struct Stream {
    name: String,
    order: Vec<usize>,
    is_mix: bool,
}

/// Results for one stream.
struct Found {
    name: String,
    /// Joules for a gigabyte of data, by way.
    joules: Vec<(String, f64)>,
    archive_share: f64,
    archive_cpu: f64,
    balanced_ratio: f64,
    tests: f64,
    /// Tests, probes and bookkeeping.
    deciding: f64,
    /// The same while others want all CPUs and writers wait.
    deciding_loaded: f64,
    /// Megabytes a second on one core, by mode.
    speeds: Vec<(Mode, f64)>,
    raw_bytes: u64,
}

pub fn run(context: &Context, kinds: &Kinds, report: &mut Report) -> Outcome<()> {
    let candidates = Candidates::default();
    let min_saving_permille = Settings::default().min_saving_permille;
    let power = crate::energy::power();
    println!("joules: {power}");
    let units: &[usize] = if context.quick { &UNITS[1..2] } else { &UNITS };
    for unit_bytes in units.iter().copied() {
        let codecs = measured(candidates);
        let directory = context.measurements.as_deref();
        let matrix = Matrix::load_or_measure(directory, &kinds.data, unit_bytes, &codecs, min_saving_permille)?;
        println!("\n=== units of {} KiB", unit_bytes >> 10);
        let mut mixes = Vec::new();
        let mut singles = Vec::new();
        for stream in streams(&matrix, kinds) {
            println!("\n{}", stream.name);
            let mut found = table(&matrix, kinds, &stream.order, candidates, min_saving_permille, power)?;
            found.name.clone_from(&stream.name);
            if stream.is_mix { mixes.push(found) } else { singles.push((stream.name, found)) }
        }
        figures(report, unit_bytes >> 10, &mixes, &singles)?;
        energy(report, unit_bytes >> 10, &mixes, power)?;
        let mix = interleaved(&matrix, kinds, 128 << 10);
        let auto = Auto { mode: Mode::Balanced, candidates, min_saving_permille };
        plot::scatter(context, &matrix, kinds, &mix, auto)?;
    }
    Ok(())
}

/// The candidates, and the codecs that they are compared with, in order of strength.
fn measured(candidates: Candidates) -> Vec<Codec> {
    let mut codecs = candidates.as_slice().to_vec();
    for name in OTHERS {
        if let Ok(codec) = name.parse::<Codec>()
            && !codecs.contains(&codec)
        {
            codecs.push(codec);
        }
    }
    // By the numbers that the format has for them; lz4's are below zstd's.
    codecs.sort_by_key(|codec| codec.id().0);
    codecs
}

fn streams(matrix: &Matrix, kinds: &Kinds) -> Vec<Stream> {
    let mut streams = Vec::new();
    for (index, name) in kinds.names.iter().enumerate() {
        let order = (0..matrix.units.len()).filter(|u| matrix.units[*u].kind == index).collect();
        streams.push(Stream { name: name.clone(), order, is_mix: false });
    }
    for grain in [128 << 10, 4 << 20] {
        let name = format!("all kinds, interleaved at {} KiB", grain >> 10);
        streams.push(Stream { name, order: interleaved(matrix, kinds, grain), is_mix: true });
    }
    // As in the thesis: a kernel tree and random bytes.
    let of = |name: &str| kinds.names.iter().position(|kind| kind == name);
    if let (Some(source), Some(random)) = (of("source-tar"), of("random")) {
        let order = (0..matrix.units.len()).filter(|u| [source, random].contains(&matrix.units[*u].kind)).collect();
        streams.push(Stream { name: "kernel source, then random bytes".to_owned(), order, is_mix: true });
    }
    streams
}

fn figures(report: &mut Report, kib: usize, mixes: &[Found], singles: &[(String, Found)]) -> Outcome<()> {
    let how = "every unit measured with every candidate, the policy replayed on it, twice over the same units, of which the second pass counts; \
               `bench adaptive --only 'adaptive replay'`";
    let least = |of: fn(&Found) -> f64| mixes.iter().map(of).fold(f64::INFINITY, f64::min);
    let most = |of: fn(&Found) -> f64| mixes.iter().map(of).fold(0.0, f64::max);
    let name = |what: &str| format!("auto, {kib} KiB: {what}");
    let share = least(|f| f.archive_share);
    report.at_least(&name("archive, share of the oracle's saving, worst mix"), share, "%", 98.0, how)?;
    let cpu = most(|f| f.archive_cpu);
    report.at_most(&name("archive, CPU time against zstd-19, worst mix"), cpu, "%", 60.0, how)?;
    let ratio = least(|f| f.balanced_ratio);
    report.at_least(
        &name("balanced, ratio against the best codec of equal CPU time, worst mix"),
        ratio,
        "%",
        100.0,
        how,
    )?;
    let worst = singles.iter().min_by(|a, b| a.1.balanced_ratio.total_cmp(&b.1.balanced_ratio));
    if let Some((kind, found)) = worst {
        let how = format!("the worst kind: {kind}; {how}");
        report.at_least(&name("balanced, the same, worst kind"), found.balanced_ratio, "%", 99.5, &how)?;
    }
    let worst =
        |of: fn(&Found) -> f64| mixes.iter().filter(|f| f.raw_bytes >= SHARE_BYTES_MIN).map(of).fold(0.0, f64::max);
    let what = name("deciding (probes, tests, bookkeeping), share of the CPU time of compressing, worst mix and mode");
    report.at_most(&what, worst(|f| f.deciding), "%", 3.0, how)?;
    let what = name("deciding under full load, share of the CPU time of compressing, worst mix and mode");
    let loaded = format!(
        "further passes while other processes want all CPUs, the writer waits, and the device takes 200 MB/s, which makes performance choose fast \
         codecs; compressing is taken to cost as much as when measured alone; {how}"
    );
    report.at_most(&what, worst(|f| f.deciding_loaded), "%", 5.0, &loaded)?;
    for mode in MODES {
        let speeds = mixes.iter().flat_map(|mix| &mix.speeds).filter(|(of, _)| *of == mode).map(|(_, speed)| *speed);
        let what = name(&format!("{mode}, speed of one core, slowest mix"));
        report.info(&what, speeds.fold(f64::INFINITY, f64::min), "MB/s", how)?;
    }
    report.info(
        &name("tests alone, share of the CPU time of compressing, worst mix and mode"),
        worst(|f| f.tests),
        "%",
        how,
    )
}

/// Joules on the first mix.
fn energy(report: &mut Report, kib: usize, mixes: &[Found], power: Power) -> Outcome<()> {
    let Some(mix) = mixes.first() else { return Ok(()) };
    for (way, joules) in &mix.joules {
        let how = format!("{}; {power}; `bench adaptive --only 'adaptive replay'`", mix.name);
        report.info(&format!("energy, {kib} KiB, {way}: joules to compress a GB"), *joules, "J", &how)?;
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

fn line(name: &str, done: &Done, power: Power) {
    let mut codecs: Vec<_> = done.codecs.iter().map(|(codec, units)| format!("{codec} {units}")).collect();
    codecs.sort();
    println!(
        "  {name:<20} ratio {:>7.3}  saved {:>6.2} %  {:>8.2} ns/B {:>8.1} MB/s {:>8.1} J/GB  tests {:>5.2} %, deciding {:>5.2} %   {}",
        done.ratio(),
        100.0 * done.saved() as f64 / done.raw as f64,
        done.cpu_ns as f64 / done.raw as f64,
        done.megabytes_per_second(),
        joules(done, power),
        done.test_percent(),
        done.deciding_percent(),
        codecs.join(", "),
    );
}

/// For a gigabyte of data.
fn joules(done: &Done, power: Power) -> f64 {
    power.joules(done.cpu_ns) * 1e9 / done.raw.max(1) as f64
}

fn table(
    matrix: &Matrix,
    kinds: &Kinds,
    order: &[usize],
    candidates: Candidates,
    permille: u32,
    power: Power,
) -> Outcome<Found> {
    let fixed: Vec<(Codec, Done)> =
        matrix.codecs.iter().map(|codec| (*codec, replay::fixed(matrix, order, *codec))).collect();
    for (codec, done) in &fixed {
        line(&codec.to_string(), done, power);
    }
    let mut found = Found {
        name: String::new(),
        joules: fixed.iter().map(|(codec, done)| (codec.to_string(), joules(done, power))).collect(),
        archive_share: 100.0,
        archive_cpu: 0.0,
        balanced_ratio: 100.0,
        tests: 0.0,
        deciding: 0.0,
        deciding_loaded: 0.0,
        speeds: Vec::new(),
        raw_bytes: 0,
    };
    for mode in MODES {
        let auto = Auto { mode, candidates, min_saving_permille: permille };
        let oracle = replay::oracle(matrix, order, auto);
        line(&format!("oracle {mode}"), &oracle, power);
        let table = PlainTable::default();
        let mut replay = Replay::new(matrix, kinds, auto, &table);
        replay.run(order, |_, _| ());
        let done = replay.run(order, |_, _| ());
        line(&format!("auto {mode}"), &done, power);
        found.joules.push((format!("auto {mode}"), joules(&done, power)));
        found.raw_bytes = done.raw;
        let mut steady = done.clone();
        for _ in 1..STEADY_RUNS {
            steady.include(&replay.run(order, |_, _| ()));
        }
        let mut loaded = Done::default();
        let load = Load::start()?;
        replay.under(FULL_LOAD);
        for _ in 0..STEADY_RUNS {
            loaded.include(&replay.run(order, |_, _| ()));
        }
        drop(load);
        println!(
            "  {:<20} tests {:>5.2} %, deciding {:>5.2} % in the long run, {:>5.2} % under load",
            "",
            steady.test_percent(),
            steady.deciding_percent(),
            loaded.deciding_percent()
        );
        found.deciding_loaded = loaded.deciding_percent().max(found.deciding_loaded);
        found.speeds.push((mode, done.megabytes_per_second()));
        found.tests = steady.test_percent().max(found.tests);
        found.deciding = steady.deciding_percent().max(found.deciding);
        if mode == Mode::Archive {
            if oracle.saved() > 0 {
                found.archive_share = 100.0 * done.saved() as f64 / oracle.saved() as f64;
            }
            let strongest = fixed.last().map_or(1, |(_, done)| done.cpu_ns.max(1));
            found.archive_cpu = 100.0 * done.cpu_ns as f64 / strongest as f64;
        }
        if mode == Mode::Balanced {
            // The best fixed codec that takes no more CPU time; storing raw takes none.
            let rivals = fixed.iter().filter(|(_, fixed)| fixed.cpu_ns <= done.cpu_ns).map(|(_, fixed)| fixed.ratio());
            found.balanced_ratio = 100.0 * done.ratio() / rivals.fold(1.0, f64::max);
        }
    }
    Ok(found)
}
