//! Savings and costs of larger units: the evidence for the default.

use codec::Codec;

use super::{BLOCK, how, mb, read_blocks, read_sequentially, write_sequentially};
use crate::bench_pool::BenchPool;
use crate::load::scattered;
use crate::report::Report;
use crate::{Context, Outcome};

const GROUP: &str = "engine units";
/// Shares of the full amounts: this is a table of nine rows.
const BYTES_SHARE: u64 = 2;

pub fn run(context: &Context, report: &mut Report) -> Outcome<()> {
    for codec in ["lz4", "zstd-1"] {
        let codec: Codec = codec.parse()?;
        for unit in ["16K", "32K", "64K"] {
            row(context, report, codec, unit)?;
        }
    }
    Ok(())
}

fn row(context: &Context, report: &mut Report, codec: Codec, unit: &str) -> Outcome<()> {
    let bytes = context.scale.sequential_bytes / BYTES_SHARE;
    let bench = BenchPool::create(&context.dir.join("pool"), &codec.to_string(), unit)?;
    bench.pool.create_volume("v", bytes, &engine::Properties::new())?;
    let volume = bench.pool.volume("v")?;
    let written = write_sequentially(&volume, &context.corpus, bytes)?;
    bench.pool.checkpoint()?;
    let status = bench.pool.status();
    bench.drop_caches()?;
    let read = read_sequentially(&volume, bytes, context.scale.seconds)?;
    bench.drop_caches()?;
    let random = read_blocks(&volume, u64::MAX, context.scale.seconds, |i| scattered(i, 7, bytes / BLOCK) * BLOCK)?;
    drop(volume);
    bench.close()?;
    let note =
        how(context, GROUP, "one run: written in order in requests of 128 KiB; read cold, in order and at random");
    let name = |what: &str| format!("unit {unit}, {codec}: {what}");
    report.info(&name("ratio"), bytes as f64 / (status.log_bytes + status.map_bytes) as f64, "", &note)?;
    report.info(&name("sequential write"), mb(bytes as f64 / written.seconds), "MB/s", &note)?;
    report.info(&name("sequential read"), mb(read), "MB/s", &note)?;
    report.info(&name("4 KiB random read"), random.per_second(), "/s", &note)
}
