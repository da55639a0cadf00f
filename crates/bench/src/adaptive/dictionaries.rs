//! The benefit of dictionaries in a volume: each kind of data is written twice, with and without,
//! in small units and at one level. Every other MiB of it comes first and is the training data;
//! only the rest, which is new to the volume, is reported.

use engine::{Pool, Properties};
use surface::{BlockDevice, WriteOptions};
use units::format_size;

use crate::bench_pool::BenchPool;
use crate::corpus::{kind_data, part_data};
use crate::report::Report;
use crate::{Context, Outcome};

/// Most bytes of a kind, and the least that makes sense: half of it must suffice for training.
const KIND_BYTES: usize = 32 << 20;
const KIND_BYTES_MIN: usize = 8 << 20;
const REQUEST_BYTES: usize = 128 << 10;
const STRIPE_BYTES: usize = 1 << 20;
const UNITS: [&str; 2] = ["4K", "16K"];
const CODEC: &str = "zstd-3";
/// Gains that are asked for at 4 KiB, in points of the raw size, by kind; of all others: no loss.
/// The single file of db-pages is SQLite's.
const TARGETS: [(&str, f64); 5] =
    [("db-pages/files", 6.0), ("db-pages/postgresql", 6.0), ("books", 6.0), ("logs", 6.0), ("mail", 3.0)];
/// Differences below this are noise between runs, in points.
const NO_LOSS: f64 = -0.05;

struct Written {
    bytes: u64,
    dictionaries: u64,
    dictionary_bytes: u64,
}

/// Writes both halves; the bytes of fragments of the second one.
fn write(context: &Context, data: &bytes::Bytes, unit: &str, dictionary: &str) -> Outcome<Written> {
    let bench = BenchPool::create_alone(&context.dir.join("pool"), "auto", unit)?;
    let pairs = [("candidates", CODEC), ("dictionary", dictionary)];
    let properties: Properties = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    bench.pool.create_volume("v", data.len() as u64, &properties)?;
    put(&bench.pool, data, 0)?;
    // As happens automatically when a volume is idle for some seconds.
    bench.pool.train()?;
    let before = bench.pool.status();
    put(&bench.pool, data, STRIPE_BYTES)?;
    let after = bench.pool.status();
    bench.close()?;
    Ok(Written {
        bytes: after.fragment_bytes - before.fragment_bytes - (after.dictionary_bytes - before.dictionary_bytes),
        dictionaries: after.dictionaries,
        dictionary_bytes: after.dictionary_bytes,
    })
}

/// Bytes of fragments that a volume in units of 4 KiB makes of data that it has written before and
/// trained its dictionaries with.
pub fn stored_with_dictionaries(context: &Context, data: &bytes::Bytes, candidates: &str) -> Outcome<u64> {
    let bench = BenchPool::create_alone(&context.dir.join("pool"), "auto", "4K")?;
    let properties = Properties::from([("candidates".to_owned(), candidates.to_owned())]);
    bench.pool.create_volume("v", data.len() as u64, &properties)?;
    let write = || put(&bench.pool, data, 0).and_then(|()| put(&bench.pool, data, STRIPE_BYTES));
    write()?;
    bench.pool.train()?;
    let before = bench.pool.status().fragment_bytes;
    write()?;
    let stored = bench.pool.status().fragment_bytes - before;
    bench.close()?;
    Ok(stored)
}

/// Writes every other stripe, from the one at `first` on.
fn put(pool: &Pool, data: &bytes::Bytes, first: usize) -> Outcome<()> {
    let volume = pool.volume("v")?;
    for stripe in (first..data.len()).step_by(2 * STRIPE_BYTES) {
        for at in (stripe..data.len().min(stripe + STRIPE_BYTES)).step_by(REQUEST_BYTES) {
            let end = (at + REQUEST_BYTES).min(data.len());
            volume.write(at as u64, data.slice(at..end), WriteOptions::default())?;
        }
    }
    volume.flush()?;
    Ok(pool.checkpoint()?)
}

/// The rows of all kinds that are large enough.
pub fn run(context: &Context, report: &mut Report) -> Outcome<()> {
    let mut kinds = kind_data(&context.corpus_dir, KIND_BYTES)?;
    kinds.extend(part_data(&context.corpus_dir, "db-pages", KIND_BYTES)?);
    for (name, mut data) in kinds {
        if data.len() < KIND_BYTES_MIN {
            println!("{name}: {} are too little to learn from", format_size(data.len() as u64));
            continue;
        }
        data.truncate(data.len() / (2 * STRIPE_BYTES) * 2 * STRIPE_BYTES);
        let data = bytes::Bytes::from(data);
        let raw = data.len() / 2;
        for unit in UNITS {
            let without = write(context, &data, unit, "off")?;
            let with = write(context, &data, unit, "auto")?;
            let share = |bytes: u64| 100.0 * bytes as f64 / raw as f64;
            let gain = share(without.bytes) - share(with.bytes);
            let how = format!(
                "{CODEC}, units of {unit}, half of {} that the volume had not seen: stored {:.1} % without, {:.1} % with, {} dictionaries of {} in all; \
                 `bench adaptive --only 'adaptive dictionaries'`",
                format_size(data.len() as u64),
                share(without.bytes),
                share(with.bytes),
                with.dictionaries,
                format_size(with.dictionary_bytes)
            );
            let what = format!("dictionaries, {unit}, {name}: gain, points");
            let wanted = TARGETS.iter().find(|(kind, _)| name == *kind && unit == "4K").map_or(NO_LOSS, |(_, p)| *p);
            report.at_least(&what, gain, "", wanted, &how)?;
        }
    }
    Ok(())
}
