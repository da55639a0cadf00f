//! The engine in this process, on the real disk and map store.

pub mod memory;
mod random;
pub mod recovery;
mod sequential;
mod standby;
mod unit_sizes;

use std::sync::Arc;

use codec::Codec;
use engine::Volume;
use surface::{BlockDevice, WriteOptions};

use crate::corpus::Corpus;
use crate::load::{Done, cores, drive, scattered};
use crate::reads::drive_reads;
use crate::report::Report;
use crate::{Context, Outcome};

/// Requests in flight at a time, as in the jobs of fio that it is compared with.
const DEPTH: usize = 32;
/// Bytes of a sequential request.
const REQUEST_BYTES: u64 = 128 << 10;
/// The default unit.
const UNIT_BYTES: usize = 32 << 10;
/// Bytes of a block.
const BLOCK: u64 = units::BLOCK_BYTES as u64;

/// All figures of the engine.
pub fn run(context: &Context, report: &mut Report) -> Outcome<()> {
    for codec in ["lz4", "zstd-1"] {
        if report.begin(context, &format!("engine sequential {codec}")) {
            sequential::run(context, report, codec.parse()?)?;
        }
    }
    if report.begin(context, "engine random") {
        random::run(context, report)?;
    }
    if report.begin(context, "engine standby") {
        standby::run(context, report)?;
    }
    if report.begin(context, "engine units") {
        unit_sizes::run(context, report)?;
    }
    if report.begin(context, "engine memory") {
        memory::run(context, report)?;
    }
    if report.begin(context, "engine recovery") {
        recovery::run(context, report)?;
    }
    Ok(())
}

/// Writes `bytes` of the corpus sequentially in requests of 128 KiB, and flushes.
fn write_sequentially(volume: &Volume, corpus: &Corpus, bytes: u64) -> Outcome<Done> {
    let began = std::time::Instant::now();
    let done = drive(
        1,
        bytes / REQUEST_BYTES,
        f64::INFINITY,
        || (),
        |(), index| {
            let at = index * REQUEST_BYTES;
            Ok(volume.write(at, corpus.slice(at, REQUEST_BYTES as usize), WriteOptions::default())?)
        },
    )?;
    volume.flush()?;
    Ok(Done { count: done.count, seconds: began.elapsed().as_secs_f64() })
}

/// Where random write number `index` goes, in bytes.
fn place(index: u64, volume_bytes: u64) -> u64 {
    scattered(index, 1, volume_bytes / BLOCK) * BLOCK
}

/// Writes `count` blocks of the corpus at random, 32 at a time, and waits until they are on the
/// disk.
fn write_randomly(volume: &Arc<Volume>, corpus: &Corpus, volume_bytes: u64, first: u64, count: u64) -> Outcome<Done> {
    let began = std::time::Instant::now();
    let done = drive(
        DEPTH,
        count,
        f64::INFINITY,
        || (),
        |(), index| {
            let data = corpus.slice(scattered(first + index, 2, 1 << 40) * BLOCK, BLOCK as usize);
            Ok(volume.write(place(first + index, volume_bytes), data, WriteOptions::default())?)
        },
    )?;
    // Not for durability: the bytes in the write buffer would otherwise count as written.
    volume.flush()?;
    Ok(Done { count: done.count, seconds: began.elapsed().as_secs_f64() })
}

/// Reads blocks, 32 at a time, at the places returned by `place` for numbers from 0, for some
/// seconds.
fn read_blocks(volume: &Arc<Volume>, count: u64, seconds: f64, place: impl Fn(u64) -> u64 + Sync) -> Outcome<Done> {
    drive_reads(&**volume, DEPTH, BLOCK as usize, count, seconds, place)
}

/// Reads `bytes` from the start in requests of 128 KiB, 16 at a time, for some seconds at most;
/// bytes per second.
fn read_sequentially(volume: &Arc<Volume>, bytes: u64, seconds: f64) -> Outcome<f64> {
    let requests = bytes / REQUEST_BYTES;
    let place = |index| index * REQUEST_BYTES;
    let done = drive_reads(&**volume, DEPTH, REQUEST_BYTES as usize, requests, seconds, place)?;
    Ok(done.per_second() * REQUEST_BYTES as f64)
}

/// Describes how a figure was measured.
fn how(context: &Context, group: &str, what: &str) -> String {
    format!("{what}; `bench engine --only '{group}'`, {} cores, {} rounds, median", cores(), context.scale.rounds)
}

/// Megabytes per second.
fn mb(bytes_per_second: f64) -> f64 {
    bytes_per_second / 1e6
}

/// Name of the codec's group.
fn group_of(codec: Codec) -> String {
    format!("engine sequential {codec}")
}
