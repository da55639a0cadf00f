//! Scrubbing: its speed, and its cost for users of the pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine::Volume;
use surface::{BlockDevice, WriteOptions};

use super::how;
use crate::bench_pool::{BenchPool, drop_page_cache};
use crate::load::{drive, scattered};
use crate::report::{Report, median};
use crate::{Context, Outcome, fio};

const BLOCK: u64 = units::BLOCK_BYTES as u64;
const REQUEST_BYTES: u64 = 128 << 10;
/// Bytes that `shale scrub` asks for at a time without clients at work, and with them; and how many
/// times as long as that takes it rests then.
const IDLE_SLICE_BYTES: u64 = 128 << 20;
const SLICE_BYTES: u64 = 8 << 20;
const REST_FACTOR: u32 = 9;
/// How [`raw_read`] reads.
pub const RAW_READ: &str = "fio on the data file, in order, 16 direct requests of 1 MiB in flight";
const RAW_DEPTH: usize = 16;
/// Readers and writers at a time.
const WORKERS: usize = 8;

fn volume_bytes(context: &Context) -> u64 {
    if context.quick { 1 << 30 } else { 8 << 30 }
}

fn filled(context: &Context) -> Outcome<(BenchPool, Arc<Volume>)> {
    let bench = BenchPool::create(&context.dir.join("pool"), "lz4", "32K")?;
    let bytes = volume_bytes(context);
    bench.pool.create_volume("v", bytes, &engine::Properties::new())?;
    let volume = bench.pool.volume("v")?;
    for at in (0..bytes).step_by(REQUEST_BYTES as usize) {
        volume.write(at, context.corpus.slice(at, REQUEST_BYTES as usize), WriteOptions::default())?;
    }
    bench.pool.checkpoint()?;
    Ok((bench, volume))
}

/// Bytes of extents verified a second, over the whole pool.
fn scrub(bench: &BenchPool) -> Outcome<f64> {
    bench.drop_caches()?;
    let (began, before) = (Instant::now(), bench.pool.status().read_disk_bytes);
    let mut slice = bench.pool.scrub(IDLE_SLICE_BYTES, true)?;
    while !slice.is_finished {
        slice = bench.pool.scrub(IDLE_SLICE_BYTES, false)?;
    }
    if slice.found > 0 {
        return Err(format!("the scrub found damage: {:?}", slice.damages).into());
    }
    let read = bench.pool.status().read_disk_bytes - before;
    Ok(read as f64 / began.elapsed().as_secs_f64())
}

/// Speed of fio reading the used part of the data file.
pub fn raw_read(context: &Context, bench: &BenchPool) -> Outcome<f64> {
    drop_page_cache()?;
    let status = bench.pool.status();
    let used = (status.extents_total - status.extents_free) * status.extent_bytes;
    let options = fio::raw_read_options(&bench.data, used, "read", "1m", RAW_DEPTH, context.scale.seconds);
    Ok(fio::job(&options)?.bytes_per_second)
}

/// Speed of the checksum alone, in bytes a second, over pieces of a unit's size.
fn checksum(context: &Context) -> f64 {
    let data = &context.corpus.data;
    let (mut sum, mut bytes) = (0, 0);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(500) {
        for piece in data[..data.len().min(64 << 20)].chunks(20 << 10) {
            sum ^= crc32c::crc32c(piece);
            bytes += piece.len();
        }
    }
    std::hint::black_box(sum);
    bytes as f64 / began.elapsed().as_secs_f64()
}

/// Scrub speed, against reading and against checksumming alone.
pub fn speed(context: &Context, report: &mut Report) -> Outcome<()> {
    let group = "space scrub speed";
    let (bench, volume) = filled(context)?;
    let (mut ratios, mut scrubs, mut raws, mut sums) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..context.scale.rounds {
        let (raw, sum, scrubbed) = (raw_read(context, &bench)?, checksum(context), scrub(&bench)?);
        ratios.push(100.0 * scrubbed / raw.min(sum));
        raws.push(raw);
        sums.push(sum);
        scrubs.push(scrubbed);
    }
    let what = format!(
        "scrub {:.0} MB/s, {RAW_READ} {:.0}, crc32c on one core {:.0}",
        median(&scrubs) / 1e6,
        median(&raws) / 1e6,
        median(&sums) / 1e6
    );
    report.at_least(
        "scrub, of the lesser of sequential read and checksum",
        median(&ratios),
        "%",
        80.0,
        &how(context, group, &what),
    )?;
    drop(volume);
    bench.close()
}

/// Operations a second of users who read and write at random; with `scrubbing`, while the pool is
/// scrubbed as by `shale scrub`.
fn foreground(context: &Context, bench: &BenchPool, volume: &Arc<Volume>, seed: u64, scrubbing: bool) -> Outcome<f64> {
    bench.drop_caches()?;
    let stop = AtomicBool::new(false);
    let blocks = volume_bytes(context) / BLOCK;
    std::thread::scope(|scope| {
        let scrubber = scope.spawn(|| -> surface::Result<()> {
            let mut restart = true;
            while scrubbing && !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                restart = bench.pool.scrub(SLICE_BYTES, restart)?.is_finished;
                std::thread::sleep(began.elapsed() * REST_FACTOR);
            }
            Ok(())
        });
        let state = || vec![0u8; BLOCK as usize];
        let done = drive(WORKERS, u64::MAX, context.scale.seconds, state, |buf, index| {
            let at = scattered(index, seed, blocks) * BLOCK;
            if index.is_multiple_of(4) {
                volume.write(at, context.corpus.slice(at, BLOCK as usize), WriteOptions::default())?;
            } else {
                volume.read(at, buf)?;
            }
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        scrubber.join().map_err(|_| "the scrubber panicked")??;
        Ok(done?.per_second())
    })
}

/// Cost of a scrub at the default throttle for other users.
pub fn cost(context: &Context, report: &mut Report) -> Outcome<()> {
    let group = "space scrub cost";
    let (bench, volume) = filled(context)?;
    let (mut losses, mut alone, mut together) = (Vec::new(), Vec::new(), Vec::new());
    // Both in turns, and in both orders, because the volume ages under it.
    for round in 0..context.scale.rounds as u64 + 1 {
        let seed = 100 + round;
        let order = [round.is_multiple_of(2), !round.is_multiple_of(2)];
        let [first, second] = order.map(|scrubbing| foreground(context, &bench, &volume, seed, scrubbing));
        let (first, second) = (first?, second?);
        let (with, without) = if order[0] { (first, second) } else { (second, first) };
        losses.push(100.0 * (1.0 - with / without));
        alone.push(without);
        together.push(with);
    }
    let what = format!(
        "{WORKERS} users, 4 KiB at random, three reads to a write: {:.0}/s alone, {:.0}/s while scrubbing",
        median(&alone),
        median(&together)
    );
    report.at_most(
        "throughput that a scrub at its default throttle takes",
        median(&losses),
        "%",
        10.0,
        &how(context, group, &what),
    )?;
    drop(volume);
    bench.close()
}
