//! Data written at random in blocks of 4 KiB over a large volume: write speed, read speed, bytes
//! written.

use super::{BLOCK, DEPTH, how, mb, place, read_blocks, write_randomly};
use crate::bench_pool::{self, BenchPool};
use crate::report::{Report, median, ratio_percent};
use crate::{Context, Outcome, baseline, fio};

const GROUP: &str = "engine random";
/// The volume that the target for bytes written names.
const VOLUME_BYTES: u64 = 64 << 30;

pub fn run(context: &Context, report: &mut Report) -> Outcome<()> {
    let codec = codec::Codec::Lz4;
    let bench = BenchPool::create(&context.dir.join("pool"), &codec.to_string(), "32K")?;
    bench.pool.create_volume("v", VOLUME_BYTES, &engine::Properties::new())?;
    let volume = bench.pool.volume("v")?;
    let before = bench_pool::written_bytes()?;
    let total = context.scale.random_bytes / BLOCK;
    let each = total / context.scale.rounds as u64;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..context.scale.rounds {
        bare.push(baseline::compress(&context.corpus, codec, BLOCK as usize, each * BLOCK)?.bytes_per_second);
        let done = write_randomly(&volume, &context.corpus, VOLUME_BYTES, round as u64 * each, each)?;
        ours.push(done.per_second() * BLOCK as f64);
        println!("round {round}: engine {:.0} MB/s, bare {:.0} MB/s", mb(ours[round]), mb(bare[round]));
    }
    let written = each * context.scale.rounds as u64;
    let what = format!(
        "{DEPTH} writers, volume of 64 GiB, until all is on the disk: {:.0} MB/s; lz4 alone on 4 KiB blocks on all cores: {:.0} MB/s",
        mb(median(&ours)),
        mb(median(&bare))
    );
    report.at_least(
        "4 KiB random write, lz4, of the bare codec",
        ratio_percent(&ours, &bare),
        "%",
        60.0,
        &how(context, GROUP, &what),
    )?;
    bench.pool.checkpoint()?;
    let status = bench.pool.status();
    let what = format!(
        "write_bytes of /proc/self/io over bytes of fragments, {} at random on 64 GiB, last checkpoint included",
        units::format_size(written * BLOCK)
    );
    report.at_most(
        "bytes written per compressed byte, 4 KiB random, lz4",
        (bench_pool::written_bytes()? - before) as f64 / status.fragment_bytes as f64,
        "",
        1.5,
        &how(context, GROUP, &what),
    )?;
    report.at_most(
        "metadata over stored bytes, 4 KiB random, lz4",
        100.0 * status.map_bytes as f64 / status.log_bytes as f64,
        "%",
        2.0,
        &how(context, GROUP, "blocks of all files of the map store, its journal included, over bytes of the log"),
    )?;
    reads(context, report, &bench, written)?;
    drop(volume);
    bench.close()?;
    Ok(())
}

fn reads(context: &Context, report: &mut Report, bench: &BenchPool, written: u64) -> Outcome<()> {
    let volume = bench.pool.volume("v")?;
    let log_bytes = bench.pool.status().log_bytes;
    let (mut ours, mut raw, mut per_read) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..context.scale.rounds {
        let options = fio::raw_read_options(&bench.data, log_bytes, "randread", "4k", DEPTH, context.scale.seconds);
        raw.push(fio::job(&options)?.iops);
        bench.drop_caches()?;
        let before = bench.pool.status().read_disk_bytes;
        // Every block is read once at most, in another order than it was written in.
        let seed = 50 + round as u64;
        let done = read_blocks(&volume, written, context.scale.seconds, |i| {
            place(crate::load::scattered(i, seed, written), VOLUME_BYTES)
        })?;
        ours.push(done.per_second());
        let bytes = bench.pool.status().read_disk_bytes - before;
        per_read.push(bytes as f64 / BLOCK as f64 / done.count as f64);
        println!("round {round}: engine {:.0}/s, raw file {:.0}/s", ours[round], raw[round]);
    }
    let what = format!(
        "data written at random, {DEPTH} reads in flight, of a few threads, caches dropped: {:.0}/s; fio on the data file, same depth: {:.0}/s",
        median(&ours),
        median(&raw)
    );
    report.at_least(
        "4 KiB random read of random data, lz4, of the raw file",
        ratio_percent(&ours, &raw),
        "%",
        75.0,
        &how(context, GROUP, &what),
    )?;
    report.at_most(
        "4 KiB random read of random data, lz4, bytes from the disk per byte read",
        median(&per_read),
        "",
        1.5,
        &how(context, GROUP, "the pool's count of bytes read from the data file over 4 KiB a read"),
    )
}
