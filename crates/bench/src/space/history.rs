//! Cost of snapshots and clones.

use std::sync::Arc;
use std::time::Instant;

use engine::{Properties, Volume};
use surface::{BlockDevice, WriteOptions};
use units::format_size;

use super::how;
use crate::bench_pool::BenchPool;
use crate::load::{drive, scattered};
use crate::report::{Report, median};
use crate::{Context, Outcome};

const BLOCK: u64 = units::BLOCK_BYTES as u64;
const REQUEST_BYTES: u64 = 128 << 10;
/// Snapshots of one volume, and blocks written between two of them.
const SNAPSHOTS: u64 = 1000;
const BLOCKS_BETWEEN: u64 = 100;
const READERS: usize = 32;

fn image_bytes(context: &Context) -> u64 {
    if context.quick { 256 << 20 } else { 2 << 30 }
}

fn volume_with_image(context: &Context) -> Outcome<(BenchPool, Arc<Volume>)> {
    let bench = BenchPool::create(&context.dir.join("pool"), "lz4", "32K")?;
    let bytes = image_bytes(context);
    bench.pool.create_volume("v", bytes, &Properties::new())?;
    let volume = bench.pool.volume("v")?;
    for at in (0..bytes).step_by(REQUEST_BYTES as usize) {
        volume.write(at, context.corpus.slice(at, REQUEST_BYTES as usize), WriteOptions::default())?;
    }
    bench.pool.checkpoint()?;
    Ok((bench, volume))
}

fn change(context: &Context, volume: &Arc<Volume>, first: u64, count: u64) -> Outcome<()> {
    let blocks = image_bytes(context) / BLOCK;
    for index in first..first + count {
        let data = context.corpus.slice(scattered(index, 2, 1 << 40) * BLOCK, BLOCK as usize);
        volume.write(scattered(index, 1, blocks) * BLOCK, data, WriteOptions::default())?;
    }
    Ok(())
}

fn random_reads(context: &Context, bench: &BenchPool, volume: &Arc<Volume>, seed: u64) -> Outcome<f64> {
    bench.drop_caches()?;
    let blocks = image_bytes(context) / BLOCK;
    let state = || vec![0u8; BLOCK as usize];
    let done = drive(READERS, u64::MAX, context.scale.seconds, state, |buf, index| {
        Ok(volume.read(scattered(index, seed, blocks) * BLOCK, buf)?)
    })?;
    Ok(done.per_second())
}

/// A thousand snapshots of one volume: creating them, reading the head, and the space left after
/// destroying them.
pub fn snapshots(context: &Context, report: &mut Report) -> Outcome<()> {
    let group = "space snapshots";
    // The head is compared with the same writes without snapshots.
    let (bench, volume) = volume_with_image(context)?;
    change(context, &volume, 0, SNAPSHOTS * BLOCKS_BETWEEN)?;
    bench.pool.checkpoint()?;
    let plain_bytes = bench.pool.status().live_bytes;
    let plain = random_reads(context, &bench, &volume, 9)?;
    drop(volume);
    bench.close()?;

    let (bench, volume) = volume_with_image(context)?;
    let mut milliseconds = Vec::new();
    for index in 0..SNAPSHOTS {
        change(context, &volume, index * BLOCKS_BETWEEN, BLOCKS_BETWEEN)?;
        let began = Instant::now();
        bench.pool.snapshot("v", &format!("s{index}"))?;
        milliseconds.push(began.elapsed().as_secs_f64() * 1e3);
    }
    milliseconds.sort_by(f64::total_cmp);
    let p99 = milliseconds[milliseconds.len() * 99 / 100];
    let longest = milliseconds.last().copied().unwrap_or_default();
    let what = format!(
        "{SNAPSHOTS} snapshots, {BLOCKS_BETWEEN} blocks written at random before each: median {:.2} ms, longest {longest:.2} ms",
        median(&milliseconds)
    );
    report.at_most("taking a snapshot, p99", p99, "ms", 10.0, &how(context, group, &what))?;
    bench.pool.checkpoint()?;
    let kept_bytes = bench.pool.status().live_bytes;
    let head = random_reads(context, &bench, &volume, 9)?;
    let what = format!(
        "{head:.0}/s with {SNAPSHOTS} snapshots, {plain:.0}/s without, 4 KiB, {READERS} readers, caches dropped"
    );
    report.at_least(
        "4 KiB random read of the head with 1,000 snapshots, of none",
        100.0 * head / plain,
        "%",
        85.0,
        &how(context, group, &what),
    )?;
    let began = Instant::now();
    for index in 0..SNAPSHOTS {
        bench.pool.destroy(&format!("v@s{index}"), false)?;
    }
    let destroyed = began.elapsed().as_secs_f64();
    let mut left_bytes = bench.pool.status().live_bytes;
    while began.elapsed().as_secs_f64() < 120.0 && left_bytes as f64 > plain_bytes as f64 * 1.001 {
        bench.pool.checkpoint()?;
        left_bytes = bench.pool.status().live_bytes;
    }
    let what = format!(
        "{} live with the snapshots, {} after destroying them ({destroyed:.1} s, all back after {:.1} s), {} had there been none",
        format_size(kept_bytes),
        format_size(left_bytes),
        began.elapsed().as_secs_f64(),
        format_size(plain_bytes)
    );
    report.at_most(
        "space left by 1,000 destroyed snapshots",
        100.0 * (left_bytes as f64 / plain_bytes as f64 - 1.0),
        "%",
        1.0,
        &how(context, group, &what),
    )?;
    drop(volume);
    bench.close()
}

/// Many clones of one image, each with a hundredth changed.
pub fn clones(context: &Context, report: &mut Report) -> Outcome<()> {
    let group = "space clones";
    let count: u64 = if context.quick { 100 } else { 1000 };
    let (bench, volume) = volume_with_image(context)?;
    bench.pool.snapshot("v", "base")?;
    let image = bench.pool.status().fragment_bytes;
    let began = Instant::now();
    for index in 0..count {
        bench.pool.clone_snapshot("v@base", &format!("c{index}"), &Properties::new())?;
    }
    let seconds = began.elapsed().as_secs_f64();
    let what = format!("{count} clones of an image of {}", format_size(image_bytes(context)));
    report.at_most(
        "creating clones, for 1,000",
        seconds * 1000.0 / count as f64,
        "s",
        10.0,
        &how(context, group, &what),
    )?;
    let changed = image_bytes(context) / BLOCK / 100;
    for index in 0..count {
        let clone = bench.pool.volume(&format!("c{index}"))?;
        change(context, &clone, index * changed, changed)?;
    }
    bench.pool.checkpoint()?;
    let status = bench.pool.status();
    // Without headers, padding and map: the compressed size alone.
    let compressed = status.fragment_bytes;
    let stored = status.log_bytes + status.map_bytes;
    let what = format!(
        "{count} clones, 1 % of the blocks of each changed: {} compressed, {} of it the image and {} the changes; stored: {} of log, headers and \
         padding included, and a map of {}",
        format_size(compressed),
        format_size(image),
        format_size(compressed - image),
        format_size(status.log_bytes),
        format_size(status.map_bytes)
    );
    report.at_most(
        "stored bytes of clones over image and changes",
        100.0 * (stored as f64 / compressed as f64 - 1.0),
        "%",
        5.0,
        &how(context, group, &what),
    )?;
    drop(volume);
    bench.close()
}
