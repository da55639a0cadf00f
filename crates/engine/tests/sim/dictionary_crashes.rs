//! The power fails while dictionaries are trained, adopted, used, replaced and dropped, among all
//! other operations: flushed data reads back, however it was compressed, and nothing leaks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Campaign, Ended, Failure, Op, Shape, Tally, World};
use sim::{ContentKind, Fault};

/// Generations of one seed, and operations of one generation at most.
const GENERATIONS: u64 = 8;
const OPS_MAX: u64 = 60;

/// Dictionaries seen after a recovery, and units that were stored with one, over all runs.
static FOUND: AtomicU64 = AtomicU64::new(0);
static HELPED: AtomicU64 = AtomicU64::new(0);

/// A step that is more likely than others to lead to dictionaries: text is written, time passes,
/// data is recompressed.
fn step(world: &mut World) -> Result<Ended, Failure> {
    let names = world.model.names();
    if names.is_empty() || world.model.is_in_doubt() {
        return world.step();
    }
    let volume = world.rng.pick(&names).clone();
    let size = world.model.size_bytes(&volume);
    let op = match world.rng.below(10) {
        0..3 => {
            let offset = world.rng.below(size / 4096) * 4096;
            let len = (world.rng.between(1, 24) * 4096).min(size - offset);
            let seed = world.rng.next_u64();
            Op::Write { volume, offset, len, kind: ContentKind::Text, seed, fua: world.rng.percent(5) }
        }
        3 => Op::Tick { ms: *world.rng.pick(&[10, 6000]) },
        4 if world.rng.percent(30) => Op::Recompress { volume, mode: None, bytes: 16 << 20, restart: true },
        _ => return world.step(),
    };
    world.apply(&op)
}

fn count(world: &World) {
    FOUND.fetch_add(world.pool().status().dictionaries, Ordering::Relaxed);
    for name in world.model.names() {
        if let Ok((regions, _)) = world.pool().explain(&name, 0, 100) {
            let helped = regions.iter().flat_map(|r| &r.codecs).filter(|c| c.codec == "zstd-dictionary");
            HELPED.fetch_add(helped.map(|c| c.units).sum(), Ordering::Relaxed);
        }
    }
}

fn random_run(seed: u64) -> Result<Tally, Failure> {
    let mut world = World::new(seed, Shape::with_dictionaries)?;
    for _ in 0..GENERATIONS {
        let within = *world.rng.pick(&[10, 30, 100, 200]);
        world.plan_crash(within);
        world.run_until_dark(OPS_MAX, step)?;
        world.crash()?;
        count(&world);
        match world.rng.below(12) {
            0 => world.restart()?,
            1 => world.reopen()?,
            _ => {}
        }
    }
    world.verify_check()?;
    // At last the map is lost: the log alone yields the same, dictionaries included.
    if seed.is_multiple_of(3) {
        world.verify_flushed_log()?;
    }
    Ok(world.tally())
}

#[test]
fn random_crashes_with_dictionaries() {
    let campaign =
        Campaign { file: "dictionary_crashes", test: "random_crashes_with_dictionaries", seeds: 300, soaks: true };
    let total = campaign.run(random_run);
    let (found, helped) = (FOUND.load(Ordering::Relaxed), HELPED.load(Ordering::Relaxed));
    println!("  {found} dictionaries and {helped} units stored with them were there after crashes");
    campaign.demand(total.crashes >= 2000, "at least 2000 crash points");
    campaign.demand(found >= 1000 && helped >= 10_000, "1000 dictionaries and 10000 units stored with them");
}

/// The same workload, interrupted at every point; the first that adopts a dictionary, uses it and
/// recompresses.
#[test]
fn crash_at_every_point_of_a_life_with_dictionaries() {
    let campaign = Campaign {
        file: "dictionary_crashes",
        test: "crash_at_every_point_of_a_life_with_dictionaries",
        seeds: 15,
        soaks: false,
    };
    let total = campaign.run(|seed| {
        let life = |crash_at: Option<u64>, outcome: u64| -> Result<World, Failure> {
            let mut world = World::new(seed, Shape::with_dictionaries)?;
            let start = world.machine.power.next_point();
            if let Some(point) = crash_at {
                world.machine.power.plan(start + point, Fault::Crash);
            }
            world.run_until_dark(50, step)?;
            if crash_at.is_some() {
                world.machine.reseed(outcome);
            }
            Ok(world)
        };
        let points = life(None, 0)?.machine.power.next_point();
        let mut tally = Tally::default();
        for point in 0..points {
            let mut world = life(Some(point), seed ^ point)?;
            let told = |Failure(what): Failure| Failure(format!("crash at point {point}: {what}"));
            world.crash().map_err(told)?;
            world.verify_check().map_err(told)?;
            world.run_until_dark(5, step).map_err(told)?;
            world.crash().map_err(told)?;
            tally.ops += world.op_number;
            tally.crashes += world.crashes;
            tally.fulls += world.fulls;
        }
        Ok(tally)
    });
    campaign.demand(total.crashes >= 1000, "at least 1000 crash points");
}
