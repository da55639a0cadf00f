//! Cost of preserving acknowledged writes when the process dies: the same random writes into a pool
//! with standby memory and into one without, alternating.

use super::{BLOCK, DEPTH, how, write_randomly};
use crate::bench_pool::{BenchPool, MEMORY_BYTES};
use crate::report::{Report, median, ratio_percent};
use crate::{Context, Outcome};

/// The volume that blocks are scattered over: small enough that both pools stay in memory's reach.
const VOLUME_BYTES: u64 = 8 << 30;

pub fn run(context: &Context, report: &mut Report) -> Outcome<()> {
    let dirs = ["without", "with"].map(|name| context.dir.join(name));
    for dir in &dirs {
        let bench = BenchPool::create(dir, "lz4", "32K")?;
        bench.pool.create_volume("v", VOLUME_BYTES, &engine::Properties::new())?;
        bench.close()?;
    }
    let worlds = [BenchPool::open(&dirs[0], MEMORY_BYTES)?, BenchPool::open_with_standby(&dirs[1], MEMORY_BYTES)?];
    if worlds[1].pool.status().standby.place.is_none() {
        return Err(format!("no standby memory: {:?}", worlds[1].pool.status().standby.notes).into());
    }
    let volumes = [worlds[0].pool.volume("v")?, worlds[1].pool.volume("v")?];
    // Twice the usual rounds: the difference is small.
    let rounds = 2 * context.scale.rounds as u64;
    let each = context.scale.random_bytes / BLOCK / rounds;
    let mut speeds: [Vec<f64>; 2] = Default::default();
    for round in 0..=rounds {
        for place in 0..2 {
            let who = (round as usize + place) % 2;
            let done = write_randomly(&volumes[who], &context.corpus, VOLUME_BYTES, round * each, each)?;
            // The first round touches the memory of both for the first time.
            if round > 0 {
                speeds[who].push(done.per_second());
            }
        }
        if let [Some(without), Some(with)] = [speeds[0].last(), speeds[1].last()] {
            println!("round {round}: without {without:.0}/s, with {with:.0}/s");
        }
    }
    drop(volumes);
    for bench in worlds {
        bench.close()?;
    }
    let what = format!(
        "{DEPTH} writers, volume of 8 GiB, until all is on the disk: {:.0}/s with standby memory, {:.0}/s without, in turns, {rounds} rounds each",
        median(&speeds[1]),
        median(&speeds[0])
    );
    report.at_least(
        "4 KiB random write, lz4, with standby memory, of without",
        ratio_percent(&speeds[1], &speeds[0]),
        "%",
        97.0,
        &how(context, "engine standby", &what),
    )
}
