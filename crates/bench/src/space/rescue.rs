//! `check` and `salvage` of a pool of gigabytes: speed, compared with reading its data file
//! sequentially, and memory of salvage.

use std::time::Instant;

use engine::PoolOptions;
use surface::{BlockDevice, WriteOptions};
use units::format_size;

use super::how;
use super::scrub::{RAW_READ, raw_read};
use crate::bench_pool::{BenchPool, reset_resident_bytes_max, resident_bytes_max, salvage_environment};
use crate::load::{drive, scattered};
use crate::report::Report;
use crate::{Context, Outcome};

const BLOCK: u64 = units::BLOCK_BYTES as u64;
const REQUEST_BYTES: u64 = 128 << 10;
/// As `shale salvage` divides its budget of 512 MiB: for the new pool, for the temporary store, and
/// for reading the old pool.
const NEW_POOL_BYTES: u64 = 256 << 20;
const TEMPORARY_BYTES: u64 = 128 << 20;
const READING_BYTES: u64 = 128 << 20;
/// Least speed of both, in percent of sequential reading: as for a scrub.
const CHECK_PERCENT: f64 = 80.0;

/// Checks, then salvages, a pool with a volume that was written sequentially, and optionally the
/// same number of blocks again at random.
pub fn measure(context: &Context, report: &mut Report, is_random: bool) -> Outcome<()> {
    let how_written = if is_random { "at random" } else { "in order" };
    let group = format!("space check and salvage, written {how_written}");
    let bytes = context.pool_bytes.unwrap_or(if context.quick { 2 << 30 } else { 12 << 30 });
    let dir = context.dir.join("pool");
    let bench = BenchPool::create_sized(&dir, "lz4", "32K", 4 * bytes)?;
    bench.pool.create_volume("v", bytes, &engine::Properties::new())?;
    let volume = bench.pool.volume("v")?;
    let state = || ();
    drive(2, bytes / REQUEST_BYTES, f64::INFINITY, state, |(), index| {
        let at = index * REQUEST_BYTES;
        Ok(volume.write(at, context.corpus.slice(at, REQUEST_BYTES as usize), WriteOptions::default())?)
    })?;
    if is_random {
        drive(2, bytes / BLOCK, f64::INFINITY, state, |(), index| {
            let at = scattered(index, 1, bytes / BLOCK) * BLOCK;
            Ok(volume.write(at, context.corpus.slice(at, BLOCK as usize), WriteOptions::default())?)
        })?;
    }
    drop(volume);
    bench.pool.checkpoint()?;
    let raw = raw_read(context, &bench)?;
    let status = bench.pool.status();
    let used = (status.extents_total - status.extents_free) * status.extent_bytes;
    bench.drop_caches()?;
    let began = Instant::now();
    let checked = bench.pool.check(false, &mut |_, _| ())?;
    let seconds = began.elapsed().as_secs_f64();
    if !checked.problems.is_empty() {
        return Err(format!("the check found {:?}", checked.problems).into());
    }
    let what = format!(
        "{} written {how_written}, {} in use, {} of it live in {} fragments: {seconds:.1} s; {RAW_READ}: {:.0} MB/s",
        format_size(bytes),
        format_size(used),
        format_size(status.live_bytes),
        checked.fragments,
        raw / 1e6
    );
    report.at_least(
        &format!("check, written {how_written}, of raw sequential read"),
        100.0 * used as f64 / seconds / raw,
        "%",
        CHECK_PERCENT,
        &how(context, &group, &what),
    )?;
    bench.close()?;
    salvage(context, report, (&group, how_written), bytes, raw)
}

fn salvage(
    context: &Context,
    report: &mut Report,
    (group, how_written): (&str, &str),
    bytes: u64,
    raw: f64,
) -> Outcome<()> {
    let (old, temporary) = (context.dir.join("pool"), context.dir.join("salvage.tmp"));
    let new = BenchPool::create_for(&context.dir.join("new"), 4 * bytes, NEW_POOL_BYTES)?;
    let before = reset_resident_bytes_max()?;
    let env = salvage_environment(&old, &temporary, TEMPORARY_BYTES)?;
    let options = PoolOptions { memory_bytes: READING_BYTES, workers: 0, ..PoolOptions::default() };
    let (began, mut steps) = (Instant::now(), Vec::new());
    let salvaged = new.pool.salvage(&env, &options, &mut |step, _, _| {
        if steps.last().is_none_or(|(last, _)| *last != step) {
            steps.push((step, began.elapsed().as_secs_f64()));
        }
        Ok(())
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let memory = resident_bytes_max()?.saturating_sub(before);
    if salvaged.is_lossy() || salvaged.volumes.len() != 1 {
        return Err(format!("salvage lost something: {salvaged:?}").into());
    }
    drop(env);
    let written = new.pool.status().live_bytes;
    let what = format!(
        "{} written {how_written}, {} extents, {} live, {} batches: {seconds:.1} s, steps began at {steps:.1?} s; {RAW_READ}: {:.0} MB/s",
        format_size(bytes),
        salvaged.extents,
        format_size(written),
        salvaged.batches,
        raw / 1e6
    );
    let budget = NEW_POOL_BYTES + TEMPORARY_BYTES + READING_BYTES;
    new.close()?;
    std::fs::remove_dir_all(&temporary)?;
    std::fs::remove_dir_all(context.dir.join("new"))?;
    // It reads the data file, and rewrites all live data, recompressed.
    report.info(
        &format!("salvage, written {how_written}, live data, of raw sequential read"),
        100.0 * written as f64 / seconds / raw,
        "%",
        &how(context, group, &what),
    )?;
    report.at_most(
        &format!("memory of salvage, written {how_written}, of its budget"),
        100.0 * memory as f64 / budget as f64,
        "%",
        100.0,
        &how(context, group, &format!("{what}; {} more resident, of {}", format_size(memory), format_size(budget))),
    )
}
