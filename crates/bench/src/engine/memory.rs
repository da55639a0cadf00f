//! Resident memory under random writes and reads, each in a separate process: on a large, nearly
//! empty volume, and on one that fills its pool, block by block, so that cleaning never ends and
//! each record of the map has its maximum length.

use std::sync::Arc;

use bytes::Bytes;
use engine::Volume;
use surface::{BlockDevice, WriteOptions};

use super::{BLOCK, DEPTH, how, place, read_blocks};
use crate::bench_pool::{self, BenchPool};
use crate::load::{drive, scattered};
use crate::report::Report;
use crate::space::overwrite::{self, Aged, FULL};
use crate::{Context, Outcome, command};

const GROUP: &str = "engine memory";
const VOLUME_BYTES: u64 = 100 << 30;
/// The budget: half of the default, so that allocations outside of it are visible.
const BUDGET_BYTES: u64 = 256 << 20;
const MIB: f64 = 1048576.0;
/// How many times the volume of the full pool is overwritten.
const OVERWRITTEN: u64 = 2;

fn full_pool_bytes(context: &Context) -> u64 {
    context.pool_bytes.unwrap_or(if context.quick { 4 << 30 } else { 12 << 30 })
}

pub fn run(context: &Context, report: &mut Report) -> Outcome<()> {
    let random = units::format_size(context.scale.random_bytes);
    let what = format!("{random} written at random on 100 GiB, then read at random");
    resident(context, report, "child-memory", "resident memory, at most", &what)?;
    let pool = units::format_size(full_pool_bytes(context));
    let what = format!(
        "a pool of {pool} that is {:.0} % full, its volume overwritten {OVERWRITTEN} times at random in blocks of 4 KiB",
        100.0 * FULL
    );
    resident(context, report, "child-memory-full", "resident memory with a full log, at most", &what)
}

fn resident(context: &Context, report: &mut Report, child: &str, name: &str, what: &str) -> Outcome<()> {
    let (program, arguments) = child_process(context, child)?;
    let printed = command::run(&program, &arguments)?;
    let resident: f64 = printed.lines().last().unwrap_or_default().trim().parse()?;
    let bound = (1.3 * BUDGET_BYTES as f64 + 64.0 * MIB) / MIB;
    let what = format!("VmHWM, budget 256 MiB (x 1.3 + 64 MiB), {what}");
    report.at_most(name, resident / MIB, "MiB", bound.round(), &how(context, GROUP, &what))
}

/// This program and the arguments that make it a child of the same options.
pub fn child_process(context: &Context, what: &str) -> Outcome<(String, Vec<String>)> {
    let program = std::env::current_exe()?.to_string_lossy().into_owned();
    let mut arguments = vec![what.to_owned(), "--dir".into(), context.dir.to_string_lossy().into_owned()];
    arguments.extend(["--corpus".into(), context.corpus_dir.to_string_lossy().into_owned()]);
    if context.quick {
        arguments.push("--quick".into());
    }
    if let Some(bytes) = context.pool_bytes {
        arguments.extend(["--pool-bytes".into(), bytes.to_string()]);
    }
    Ok((program, arguments))
}

/// Body of the first child.
pub fn child(context: &Context) -> Outcome<()> {
    let dir = context.dir.join("pool");
    let bench = BenchPool::create(&dir, "lz4", "32K")?;
    bench.pool.create_volume("v", VOLUME_BYTES, &engine::Properties::new())?;
    bench.close()?;
    let base = bench_pool::resident_bytes_max()?;
    let bench = BenchPool::open(&dir, BUDGET_BYTES)?;
    let volume = bench.pool.volume("v")?;
    let count = context.scale.random_bytes / BLOCK;
    write_blocks(context, &volume, VOLUME_BYTES, count)?;
    read_blocks(&volume, count / 4, context.scale.seconds * 2.0, |i| place(i, VOLUME_BYTES))?;
    print_growth(context, bench, volume, base)
}

/// Body of the second child.
pub fn child_full(context: &Context) -> Outcome<()> {
    let bytes = full_pool_bytes(context);
    let Aged { bench, volume, blocks } = overwrite::fill(context, bytes, FULL)?;
    drop(volume);
    bench.close()?;
    let bench = BenchPool::open(&context.dir.join("pool"), BUDGET_BYTES)?;
    let volume = bench.pool.volume("v")?;
    let base = bench_pool::reset_resident_bytes_max()?;
    write_blocks(context, &volume, blocks * BLOCK, OVERWRITTEN * blocks)?;
    print_growth(context, bench, volume, base)
}

/// Writes `count` blocks at random.
fn write_blocks(context: &Context, volume: &Volume, volume_bytes: u64, count: u64) -> Outcome<()> {
    // Each request has a buffer of its own, as in the front ends, which is included.
    let write = |(): &mut (), index: u64| {
        let data = context.corpus.slice(scattered(index, 2, 1 << 40) * BLOCK, BLOCK as usize);
        Ok(volume.write(place(index, volume_bytes), Bytes::copy_from_slice(&data), WriteOptions::default())?)
    };
    drive(DEPTH, count, f64::INFINITY, || (), write)?;
    Ok(())
}

/// Prints the growth of the process since `base`, and closes the pool.
fn print_growth(context: &Context, bench: BenchPool, volume: Arc<Volume>, base: u64) -> Outcome<()> {
    let resident = bench_pool::resident_bytes_max()?;
    drop(volume);
    bench.close()?;
    // The corpus is this program's, not the pool's.
    let corpus = context.corpus.data.len() as u64;
    eprintln!("resident {resident}, before {base}, data {corpus}");
    println!("{}", resident.saturating_sub(corpus));
    Ok(())
}
