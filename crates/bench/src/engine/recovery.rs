//! Time to open a pool after the process was killed in the middle of random writes.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::{BLOCK, how, memory};
use crate::bench_pool::{BenchPool, MEMORY_BYTES};
use crate::report::Report;
use crate::{Context, Outcome};

const GROUP: &str = "engine recovery";
const VOLUME_BYTES: u64 = 64 << 30;
/// Blocks between two lines of the child.
const STEP: u64 = 4096;
/// Crashes in one run, each further into the writes.
const CRASHES: u64 = 3;

pub fn run(context: &Context, report: &mut Report) -> Outcome<()> {
    let dir = context.dir.join("pool");
    let bench = BenchPool::create(&dir, "lz4", "32K")?;
    bench.pool.create_volume("v", VOLUME_BYTES, &engine::Properties::new())?;
    bench.close()?;
    let (program, arguments) = memory::child_process(context, "child-recovery")?;
    let (mut slowest, mut slowest_store, mut replayed) = (0.0, 0.0, 0);
    for crash in 1..=CRASHES {
        let mut child = Command::new(&program).args(&arguments).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or("the child has no output")?;
        // Not at a round number of anything that the engine counts.
        let lines = context.scale.recovery_bytes / (STEP * BLOCK) * crash / CRASHES - crash;
        let seen = BufReader::new(output).lines().map_while(Result::ok).take(lines as usize).count();
        child.kill()?;
        child.wait()?;
        if (seen as u64) < lines {
            return Err("the child stopped by itself".into());
        }
        crate::bench_pool::drop_page_cache()?;
        let began = Instant::now();
        let bench = BenchPool::open(&dir, MEMORY_BYTES)?;
        let seconds = began.elapsed().as_secs_f64();
        let status = bench.pool.status();
        let bytes = units::format_size(status.recovered_bytes);
        println!("crash {crash}: {seconds:.2} s, {bytes} replayed; map store {:.2} s", bench.store_seconds);
        if seconds > slowest {
            (slowest, slowest_store) = (seconds, bench.store_seconds);
        }
        replayed = replayed.max(status.recovered_bytes);
        bench.close()?;
    }
    let what = format!(
        "kill -9 in the middle of {} of random writes on 64 GiB, {CRASHES} times, page cache dropped; at most {} of log replayed; the slowest, {slowest_store:.2} s of it in the map store",
        units::format_size(context.scale.recovery_bytes),
        units::format_size(replayed)
    );
    report.at_most("recovery after a crash", slowest, "s", 2.0, &how(context, GROUP, &what))
}

/// Body of the child: writes until it is killed.
pub fn child(context: &Context) -> Outcome<()> {
    let bench = BenchPool::open(&context.dir.join("pool"), MEMORY_BYTES)?;
    let volume = bench.pool.volume("v")?;
    let mut first = 0;
    loop {
        write_without_flush(&volume, context, first)?;
        first += STEP;
        println!("{first}");
    }
}

fn write_without_flush(volume: &std::sync::Arc<engine::Volume>, context: &Context, first: u64) -> Outcome<()> {
    use surface::{BlockDevice, WriteOptions};
    let each = |(): &mut (), index: u64| {
        let data = context.corpus.slice(crate::load::scattered(first + index, 2, 1 << 40) * BLOCK, BLOCK as usize);
        Ok(volume.write(super::place(first + index, VOLUME_BYTES), data, WriteOptions::default())?)
    };
    crate::load::drive(4, STEP, f64::INFINITY, || (), each)?;
    Ok(())
}
