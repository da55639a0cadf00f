//! Data written in order: write, sequential read, random read, space.
//!
//! Kinds of data are mixed, as files are in a file system. Results for one kind after the other are
//! reported separately.

use std::sync::Arc;

use codec::Codec;
use engine::Volume;

use super::{
    BLOCK, DEPTH, REQUEST_BYTES, UNIT_BYTES, group_of, how, mb, read_blocks, read_sequentially, write_sequentially,
};
use crate::bench_pool::{self, BenchPool};
use crate::corpus::Corpus;
use crate::load::scattered;
use crate::report::{Report, median, ratio_percent};
use crate::{Context, Outcome, baseline, fio};

/// Share of the bare codec that writing must reach, in percent.
const WRITE_PERCENT: f64 = 85.0;
/// Share of the limit of disk and codec that reading must reach, in percent.
const READ_PERCENT: f64 = 85.0;

pub fn run(context: &Context, report: &mut Report, codec: Codec) -> Outcome<()> {
    let group = group_of(codec);
    let corpus = context.corpus.mixed();
    let Some((written, bench)) = write_in_order(context, &corpus, codec)? else { return Ok(()) };
    let what =
        "requests of 128 KiB by one writer until flushed, units of 32 KiB; the codec on the same units on all cores";
    let name = format!("sequential write, {codec}, of the bare codec");
    let note = how(context, &group, &format!("{what}: {}", written.speeds()));
    report.at_least(&name, written.percent(), "%", WRITE_PERCENT, &note)?;
    space(context, report, codec, &bench, written.stored_bytes)?;
    report.at_most(
        &format!("bytes written per compressed byte, sequential, {codec}"),
        median(&written.amplification),
        "",
        1.05,
        &how(context, &group, "write_bytes of /proc/self/io, the map's checkpoint included, over bytes of fragments"),
    )?;
    let volume = bench.pool.volume("v")?;
    let read = read_in_order(context, &corpus, codec, &bench, &volume)?;
    let name = format!("sequential read, cold, {codec}, of the smaller of disk x ratio and bare codec");
    let note = how(context, &group, &read.what);
    report.at_least(&name, read.percent(), "%", READ_PERCENT, &note)?;
    read_at_random(context, report, codec, &bench, &volume)?;
    drop(volume);
    bench.close()?;
    kind_by_kind(context, report, codec)
}

/// The same with one kind of data after the other, for comparison.
fn kind_by_kind(context: &Context, report: &mut Report, codec: Codec) -> Outcome<()> {
    let group = group_of(codec);
    let Some((written, bench)) = write_in_order(context, &context.corpus, codec)? else { return Ok(()) };
    report.info(
        &format!("sequential write, one kind after the other, {codec}, of the bare codec"),
        written.percent(),
        "%",
        &how(context, &group, &format!("16 MiB of each kind at a time: {}", written.speeds())),
    )?;
    let volume = bench.pool.volume("v")?;
    let read = read_in_order(context, &context.corpus, codec, &bench, &volume)?;
    drop(volume);
    bench.close()?;
    report.info(
        &format!(
            "sequential read, cold, one kind after the other, {codec}, of the smaller of disk x ratio and bare codec"
        ),
        read.percent(),
        "%",
        &how(context, &group, &format!("16 MiB of each kind at a time; {}", read.what)),
    )
}

/// Speeds of writing, by rounds, and those of the codec alone.
struct Written {
    ours: Vec<f64>,
    bare: Vec<f64>,
    amplification: Vec<f64>,
    stored_bytes: u64,
}

impl Written {
    /// Of the bare codec.
    fn percent(&self) -> f64 {
        ratio_percent(&self.ours, &self.bare)
    }

    fn speeds(&self) -> String {
        format!("engine {:.0} MB/s, bare codec {:.0} MB/s", mb(median(&self.ours)), mb(median(&self.bare)))
    }
}

/// Writes; the last round's pool stays.
fn write_in_order(context: &Context, corpus: &Corpus, codec: Codec) -> Outcome<Option<(Written, BenchPool)>> {
    let bytes = context.scale.sequential_bytes;
    let dir = context.dir.join("pool");
    let (mut ours, mut bare, mut amplification, mut stored_bytes) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let mut last = None;
    for round in 0..context.scale.rounds {
        drop(last.take());
        let base = baseline::compress(corpus, codec, UNIT_BYTES, bytes)?;
        let bench = BenchPool::create(&dir, &codec.to_string(), "32K")?;
        bench.pool.create_volume("v", bytes, &engine::Properties::new())?;
        let volume = bench.pool.volume("v")?;
        let before = bench_pool::written_bytes()?;
        let done = write_sequentially(&volume, corpus, bytes)?;
        bench.pool.checkpoint()?;
        amplification.push((bench_pool::written_bytes()? - before) as f64 / bench.pool.status().fragment_bytes as f64);
        ours.push(bytes as f64 / done.seconds);
        bare.push(base.bytes_per_second);
        stored_bytes = base.stored_bytes;
        println!("round {round}: engine {:.0} MB/s, bare {:.0} MB/s", mb(ours[round]), mb(bare[round]));
        last = Some(bench);
    }
    Ok(last.map(|bench| (Written { ours, bare, amplification, stored_bytes }, bench)))
}

fn space(context: &Context, report: &mut Report, codec: Codec, bench: &BenchPool, bare_bytes: u64) -> Outcome<()> {
    let status = bench.pool.status();
    let group = group_of(codec);
    report.at_most(
        &format!("bytes stored over the sum of the compressed units, sequential, {codec}"),
        100.0 * (status.log_bytes as f64 / bare_bytes as f64 - 1.0),
        "%",
        2.0,
        &how(
            context,
            &group,
            "bytes of the log, headers and padding included, over the size of the units when only compressed",
        ),
    )?;
    report.at_most(
        &format!("metadata over stored bytes, sequential, {codec}"),
        100.0 * status.map_bytes as f64 / status.log_bytes as f64,
        "%",
        0.5,
        &how(context, &group, "blocks of all files of the map store, its journal included, over bytes of the log"),
    )?;
    report.info(
        &format!("ratio, sequential, {codec}"),
        context.scale.sequential_bytes as f64 / (status.log_bytes + status.map_bytes) as f64,
        "",
        &how(context, &group, "logical bytes over bytes of log and map"),
    )
}

/// Speeds of reading, and the limits of disk and codec, by rounds.
struct ReadBack {
    ours: Vec<f64>,
    limit: Vec<f64>,
    what: String,
}

impl ReadBack {
    /// Of the smaller of disk x ratio and bare codec.
    fn percent(&self) -> f64 {
        ratio_percent(&self.ours, &self.limit)
    }
}

fn read_in_order(
    context: &Context,
    corpus: &Corpus,
    codec: Codec,
    bench: &BenchPool,
    volume: &Arc<Volume>,
) -> Outcome<ReadBack> {
    let bytes = context.scale.sequential_bytes;
    let log_bytes = bench.pool.status().log_bytes;
    let ratio = bytes as f64 / log_bytes as f64;
    let (mut ours, mut limit, mut raw, mut bare) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..context.scale.rounds {
        bench.drop_caches()?;
        let options = fio::raw_read_options(&bench.data, log_bytes, "read", "128k", DEPTH, context.scale.seconds);
        raw.push(fio::job(&options)?.bytes_per_second);
        bare.push(baseline::decompress(corpus, codec, UNIT_BYTES, 4)?);
        limit.push((raw[round] * ratio).min(bare[round]));
        bench.drop_caches()?;
        ours.push(read_sequentially(volume, bytes, 60.0)?);
        let [ours, raw, bare] = [&ours, &raw, &bare].map(|v| mb(v[round]));
        println!(
            "round {round}: engine {ours:.0} MB/s, raw file {raw:.0} MB/s x {ratio:.2}, bare codec {bare:.0} MB/s"
        );
    }
    let [o, r, b] = [&ours, &raw, &bare].map(|v| mb(median(v)));
    let what = format!(
        "{DEPTH} requests of {} KiB in flight, caches dropped: {o:.0} MB/s; raw file {r:.0} MB/s x ratio {ratio:.2}; bare {b:.0} MB/s",
        REQUEST_BYTES >> 10
    );
    Ok(ReadBack { ours, limit, what })
}

fn read_at_random(
    context: &Context,
    report: &mut Report,
    codec: Codec,
    bench: &BenchPool,
    volume: &Arc<Volume>,
) -> Outcome<()> {
    let blocks = context.scale.sequential_bytes / BLOCK;
    let log_bytes = bench.pool.status().log_bytes;
    let (mut ours, mut raw, mut per_read, mut io_us) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut thread_us = Vec::new();
    for round in 0..context.scale.rounds {
        let options = fio::raw_read_options(&bench.data, log_bytes, "randread", "4k", DEPTH, context.scale.seconds);
        raw.push(fio::job(&options)?.iops);
        bench.drop_caches()?;
        let (read_before, timed_before) = (bench.pool.status().read_disk_bytes, bench.disk.reads().1);
        let seed = 100 + round as u64;
        let done = read_blocks(volume, u64::MAX, context.scale.seconds, |i| scattered(i, seed, blocks) * BLOCK)?;
        let reads = done.count as f64;
        ours.push(done.per_second());
        per_read.push((bench.pool.status().read_disk_bytes - read_before) as f64 / BLOCK as f64 / reads);
        io_us.push((bench.disk.reads().1 - timed_before) as f64 / reads / 1000.0);
        thread_us.push(done.seconds * DEPTH as f64 / reads * 1e6);
        println!("round {round}: engine {:.0}/s, raw file {:.0}/s", ours[round], raw[round]);
    }
    let bound = if codec == Codec::Lz4 { 50.0 } else { 35.0 };
    let group = group_of(codec);
    let what = format!(
        "written in order in units of 32 KiB, read at random, {DEPTH} reads in flight, of a few threads, caches dropped: {:.0}/s; fio on the data file {:.0}/s",
        median(&ours),
        median(&raw)
    );
    let name = format!("4 KiB random read of sequential data, {codec}");
    report.at_least(
        &format!("{name}, of the raw file"),
        ratio_percent(&ours, &raw),
        "%",
        bound,
        &how(context, &group, &what),
    )?;
    report.info(
        &format!("{name}, bytes from the disk per byte read"),
        median(&per_read),
        "",
        &how(context, &group, "the pool's count of bytes read from the data file over 4 KiB a read"),
    )?;
    let (checksum, decode) = baseline::unit_costs_ns(&context.corpus, codec, UNIT_BYTES)?;
    let (total, io) = (median(&thread_us), median(&io_us));
    let what = format!("of {total:.0} us that a read takes with {DEPTH} at a time");
    let parts = [
        ("I/O", io, "until the data read from the file is processed, including the wait for a turn"),
        ("checksum", checksum / 1000.0, "crc32c of a stored unit, alone on one core"),
        ("decode", decode / 1000.0, "one unit, alone on one core"),
        ("rest", total - io - (checksum + decode) / 1000.0, "map, copies, and waiting for a core"),
    ];
    for (part, value, why) in parts {
        report.info(&format!("{name}, time: {part}"), value, "us", &how(context, &group, &format!("{what}: {why}")))?;
    }
    Ok(())
}
