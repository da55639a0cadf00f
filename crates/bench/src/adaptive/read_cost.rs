//! What a random read of 4 KiB costs of CPU time where `balanced` chose the codec, at the default unit: the unit is read, verified and decoded, and one
//! block of it used.

use bytes::Bytes;
use env::{Clock, SystemClock};
use surface::{BlockDevice, WriteOptions};

use super::Kinds;
use crate::load::scattered;
use crate::report::Report;
use crate::world::World;
use crate::{Context, Outcome};

const UNIT: &str = "32K";
const UNIT_BYTES: usize = 32 << 10;
const BLOCK_BYTES: usize = 4 << 10;
const REQUEST: usize = 128 << 10;
/// Reads of each unit; what is cached is dropped in between.
const ROUNDS: usize = 3;
/// Most CPU time of a read, in microseconds.
const LIMIT_US: f64 = 40.0;
/// Order of the reads; any number.
const SEED: u64 = 4;

/// CPU microseconds of a read, and what the data is stored as.
fn cost(context: &Context, name: &str, data: &[u8], compression: &str) -> Outcome<(f64, String)> {
    let world = World::create(&context.dir.join(format!("read-{name}-{compression}")), compression, UNIT)?;
    world.pool.create_volume("v", data.len() as u64, &engine::Properties::new())?;
    let volume = world.pool.volume("v")?;
    let data = Bytes::copy_from_slice(data);
    for at in (0..data.len()).step_by(REQUEST) {
        volume.write(at as u64, data.slice(at..(at + REQUEST).min(data.len())), WriteOptions::default())?;
    }
    volume.flush()?;
    world.pool.checkpoint()?;
    let (regions, _) = world.pool.explain("v", 0, usize::MAX)?;
    let mut stored = std::collections::BTreeMap::<String, u64>::new();
    for used in regions.iter().flat_map(|region| &region.codecs) {
        *stored.entry(used.codec.clone()).or_default() += used.units;
    }
    let stored = stored.iter().map(|(codec, units)| format!("{codec} {units}")).collect::<Vec<_>>().join(", ");
    let clock = SystemClock::default();
    let units = (data.len() / UNIT_BYTES) as u64;
    let mut order: Vec<u64> = (0..units).collect();
    for index in (1..order.len()).rev() {
        order.swap(index, scattered(index as u64, SEED, index as u64 + 1) as usize);
    }
    let mut least = f64::INFINITY;
    let mut block = vec![0; BLOCK_BYTES];
    for round in 0..ROUNDS as u64 {
        world.pool.drop_caches();
        // The map's records are found again: looking them up is no matter of codecs.
        let began = clock.thread_cpu_ns();
        for unit in &order {
            let block_of = scattered(*unit, SEED + round, (UNIT_BYTES / BLOCK_BYTES) as u64);
            volume.read(unit * UNIT_BYTES as u64 + block_of * BLOCK_BYTES as u64, &mut block)?;
        }
        least = least.min((clock.thread_cpu_ns() - began) as f64 / 1e3 / units as f64);
    }
    drop(volume);
    world.close()?;
    Ok((least, stored))
}

/// The rows.
pub fn run(context: &Context, kinds: &Kinds, report: &mut Report) -> Outcome<()> {
    let mut worst = (0.0, String::new());
    println!("{:<12} {:>10} {:>10}", "kind", "raw", "balanced");
    for (name, data) in kinds.names.iter().zip(&kinds.data) {
        let data = &data[..data.len() / UNIT_BYTES * UNIT_BYTES];
        let (raw, _) = cost(context, name, data, "off")?;
        let (us, stored) = cost(context, name, data, "auto")?;
        println!("{name:<12} {raw:>7.1} us {us:>7.1} us   {stored}");
        if us > worst.0 {
            worst = (us, format!("{name} ({stored}; {raw:.1} us if stored raw)"));
        }
    }
    let how = format!(
        "a read of 4 KiB of each unit of 32 KiB in random order through the engine, from the disk, CPU time of the thread, mean over a kind, least of {ROUNDS} \
         rounds; the kind with the largest: {}; `bench adaptive --only 'adaptive read'`",
        worst.1
    );
    report.at_most(
        "balanced, 4 KiB random read at the default unit: CPU time, worst kind",
        worst.0,
        "us",
        LIMIT_US,
        &how,
    )
}
