//! The power fails at every kind of moment, again and again; flushed data is there, nothing is
//! mixed up, `check` is clean, and the pool continues.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::limits::{EXTENTS_WITH_ROOM_TO_OVERWRITE, refusals, room_bytes};
use crate::common::machine_env::env;
use crate::common::{Campaign, Ended, Failure, Op, Shape, Tally, World};
use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions, Properties};
use sim::{ContentKind, Fault, Machine, Model, Rng, TableOp};
use surface::{BlockDevice, WriteOptions, ZeroOptions};

/// Generations of one seed: enough that later ones work on extents that earlier ones have filled
/// and freed.
const GENERATIONS: u64 = 10;
/// Operations of one generation at most; then the power fails between two operations.
const OPS_MAX: u64 = 60;

fn random_run(seed: u64) -> Result<Tally, Failure> {
    let mut world = World::new(seed, Shape::small)?;
    for _ in 0..GENERATIONS {
        let within = *world.rng.pick(&[3, 10, 30, 100]);
        world.plan_crash(within);
        world.run_until_dark(OPS_MAX, World::step)?;
        world.crash()?;
        match world.rng.below(12) {
            0 => world.restart()?,
            1 => world.reopen()?,
            2 => same_figures_again(&mut world)?,
            _ => {}
        }
    }
    world.verify_check()?;
    if seed % 4 == 1 {
        world.verify_no_leak()?;
    }
    // At last the map is lost: the log alone yields the same.
    if seed.is_multiple_of(4) {
        world.verify_flushed_log()?;
    }
    Ok(world.tally())
}

/// Recovering the same log again gives the same figures: nothing is applied twice, nothing is
/// forgotten.
fn same_figures_again(world: &mut World) -> Result<(), Failure> {
    let figures = |world: &World| {
        let status = world.pool().status();
        let volumes: Vec<_> =
            world.pool().volumes().into_iter().map(|v| (v.name, v.allocated_bytes, v.stored_bytes)).collect();
        (status.live_bytes, status.allocated_bytes, volumes)
    };
    world.crash()?;
    // Destroyed data is freed bit by bit, in each recovery too.
    if world.pool().status().reaping > 0 {
        return Ok(());
    }
    let once = figures(world);
    world.crash()?;
    let twice = figures(world);
    if once != twice {
        return Err(world.fail(format!("recovery of the same log: first {once:?}, then {twice:?}")));
    }
    Ok(())
}

#[test]
fn random_crashes() {
    let campaign = Campaign { file: "crash", test: "random_crashes", seeds: 1500, soaks: true };
    let total = campaign.run(random_run);
    campaign.demand(total.crashes >= 15_000, "at least 15000 crash points");
    let (quotas, reservations) = refusals();
    println!("{quotas} times refused by a quota, {reservations} times by reservations");
    campaign.demand(quotas >= 200 && reservations >= 200, "200 refusals by quotas and by reservations");
}

/// The program dies at every kind of moment, also in the middle of a record, and the machine stays
/// up: acknowledged data is there, flushed or not. Now and then the power fails instead, and
/// flushed data is there.
fn random_deaths_of(seed: u64) -> Result<(Tally, u64), Failure> {
    let mut world = World::new(seed, Shape::with_standby)?;
    world.machine.power.number_standby(true);
    for _ in 0..GENERATIONS {
        let within = *world.rng.pick(&[10, 60, 300]);
        world.plan_crash(within);
        world.run_until_dark(OPS_MAX, World::step)?;
        if world.rng.percent(15) {
            world.crash()?
        } else {
            world.die()?
        }
        match world.rng.below(12) {
            0 => world.restart()?,
            1 => world.reopen()?,
            _ => {}
        }
    }
    world.verify_check()?;
    Ok((world.tally(), world.replayed))
}

#[test]
fn random_deaths() {
    let campaign = Campaign { file: "crash", test: "random_deaths", seeds: 600, soaks: true };
    let replayed = AtomicU64::new(0);
    let total = campaign.run(|seed| {
        let (tally, records) = random_deaths_of(seed)?;
        replayed.fetch_add(records, Ordering::Relaxed);
        Ok(tally)
    });
    println!("{} records replayed", replayed.load(Ordering::Relaxed));
    campaign.demand(total.crashes >= 6_000, "at least 6000 deaths");
    campaign.demand(replayed.into_inner() >= 6_000, "at least 6000 records replayed");
}

/// A replayed record is never replayed again: later flushed writes stay.
#[test]
fn what_was_replayed_stays_replayed() {
    let campaign = Campaign { file: "crash", test: "what_was_replayed_stays_replayed", seeds: 200, soaks: false };
    campaign.run(|seed| {
        let mut world = World::new(seed, Shape::with_standby)?;
        for _ in 0..3 {
            world.run_until_dark(20, World::step)?;
            world.die()?;
            // Few writes, so that the old records are not overwritten.
            world.run_until_dark(6, World::step)?;
            for volume in world.model.names() {
                world.apply(&Op::Flush { volume })?;
            }
            world.die()?;
        }
        Ok(world.tally())
    });
}

/// A discard is as good as a write: its former data does not reappear.
#[test]
fn discards_outlive_the_program() {
    let campaign = Campaign { file: "crash", test: "discards_outlive_the_program", seeds: 200, soaks: false };
    campaign.run(|seed| {
        let mut world = World::new(seed, Shape::with_standby)?;
        for _ in 0..4 {
            world.run_until_dark(10, World::step)?;
            let Some(volume) = world.model.names().first().cloned() else { continue };
            world.apply(&Op::Flush { volume: volume.clone() })?;
            let size = world.model.size_bytes(&volume);
            let offset = world.rng.below(size / 4096) * 4096;
            let len = (size - offset).min(world.rng.between(1, 40) * 4096);
            world.apply(&Op::Discard { volume, offset, len })?;
            world.die()?;
        }
        Ok(world.tally())
    });
}

/// The operations of a short workload, the same for every point at which it is interrupted.
fn short_workload(seed: u64, crash_at: Option<u64>, outcome: u64) -> Result<World, Failure> {
    let mut world = World::new(seed, Shape::small)?;
    if let Some(point) = crash_at {
        world.machine.power.plan(point, Fault::Crash);
    }
    // Enough work that a checkpoint, a trim of everything and a reuse of extents are among it.
    world.run_until_dark(40, World::step)?;
    if let Some(point) = crash_at
        && !world.machine.power.is_lost()
    {
        return Err(world.fail(format!("point {point} was never come to")));
    }
    world.machine.reseed(outcome);
    Ok(world)
}

fn every_point(seed: u64) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    // Those of making and opening the pool are another test's.
    let first = World::new(seed, Shape::small)?.machine.power.next_point();
    let points = short_workload(seed, None, 0)?.machine.power.next_point();
    for point in first..points {
        for outcome in 0..2 {
            let mut world = short_workload(seed, Some(point), outcome)?;
            let told = |Failure(what): Failure| Failure(format!("crash at point {point}, outcome {outcome}: {what}"));
            world.crash().map_err(told)?;
            // It goes on working, and can crash again.
            world.run_until_dark(5, World::step).map_err(told)?;
            world.crash().map_err(told)?;
            tally.ops += world.op_number;
            tally.crashes += world.crashes;
            tally.fulls += world.fulls;
        }
    }
    Ok(tally)
}

#[test]
fn crash_at_every_point() {
    let campaign = Campaign { file: "crash", test: "crash_at_every_point", seeds: 60, soaks: false };
    let total = campaign.run(every_point);
    campaign.demand(total.crashes >= 5_000, "at least 5000 crash points");
}

/// Making a pool is interrupted: afterwards there is a pool that opens, or one can be made.
#[test]
fn crash_while_a_pool_is_made() {
    let campaign = Campaign { file: "crash", test: "crash_while_a_pool_is_made", seeds: 100, soaks: false };
    campaign.run(|seed| {
        let mut tally = Tally::default();
        for point in 0.. {
            let mut world = World::unformatted(seed, Shape::small);
            let options = world.format_options();
            world.machine.power.plan(point, Fault::Crash);
            let made = Pool::format(&world.env(), &options);
            let interrupted = world.machine.power.is_lost();
            world.machine.reseed(seed ^ point);
            world.machine.power_cycle();
            world.machine.power.clear_plan();
            tally.crashes += 1;
            match Pool::open(world.env(), world.pool_options()) {
                Ok(pool) => world.pool = Some(pool),
                Err(e) if made.is_ok() => return Err(world.fail(format!("a new pool does not open: {e}"))),
                Err(opening) => {
                    world.machine.restart();
                    Pool::format(&world.env(), &options).map_err(|making| {
                        world.fail(format!("point {point}: neither opens ({opening}) nor can be made again ({making})"))
                    })?;
                    world.open()?;
                }
            }
            world.model = Model::new(options.properties);
            // One copy of the superblock may be missing, which `check` reports and repairs.
            let repaired = world.pool().check(true, &mut |_, _| ()).map_err(|e| world.fail(e))?;
            if let Some(problem) = repaired.problems.iter().find(|p| p.kind != "superblock" || !p.repaired) {
                return Err(world.fail(format!("point {point}: {problem:?}")));
            }
            world.verify()?;
            world.run_until_dark(10, World::step)?;
            world.crash()?;
            if !interrupted {
                break;
            }
        }
        Ok(tally)
    });
}

/// The program dies with the power on, and the power fails later: data that the second program
/// acknowledged as flushed is there, although the first one wrote it.
#[test]
fn restarts_between_crashes() {
    let campaign = Campaign { file: "crash", test: "restarts_between_crashes", seeds: 120, soaks: false };
    campaign.run(|seed| {
        let mut world = World::new(seed, Shape::small)?;
        for _ in 0..6 {
            for _ in 0..world.rng.between(1, 3) {
                world.run_until_dark(12, World::step)?;
                world.restart()?;
                if world.rng.coin() {
                    for volume in world.model.names() {
                        world.apply(&Op::Flush { volume })?;
                    }
                }
            }
            world.crash()?;
        }
        Ok(world.tally())
    });
}

/// A pool is filled by one volume, in every way, with crashes between; the reservation of another
/// one is still available.
#[test]
fn what_is_reserved_is_there_in_a_full_pool() {
    let campaign = Campaign { file: "crash", test: "what_is_reserved_is_there_in_a_full_pool", seeds: 60, soaks: true };
    let total = campaign.run(|seed| {
        let world = World::new(seed, |rng| Shape { history: false, ..Shape::small(rng) })?;
        fill_beside_a_reservation(world)
    });
    campaign.demand(total.fulls >= 150, "150 full pools");
}

/// The same in pools with an overwriting share: it cannot use reserved space either, if new data
/// compresses less well than the old; and data that compresses alike is never refused.
#[test]
fn overwriting_leaves_what_is_reserved() {
    let campaign = Campaign { file: "crash", test: "overwriting_leaves_what_is_reserved", seeds: 4, soaks: true };
    let total = campaign.run(|seed| {
        let shape = |rng: &mut Rng| {
            let capacity_bytes = rng.between(460, 520) * (128 << 10);
            let memory_bytes = *rng.pick(&[1 << 20, 4 << 20]);
            Shape { history: false, capacity_bytes, extent_bytes: 128 << 10, memory_bytes, ..Shape::small(rng) }
        };
        fill_beside_a_reservation(World::new(seed, shape)?)
    });
    campaign.demand(total.fulls >= 12, "12 full pools");
}

fn fill_beside_a_reservation(mut world: World) -> Result<Tally, Failure> {
    let size_bytes = world.shape.capacity_bytes / 4096 * 4096;
    let reserved =
        room_bytes(&world.pool().status(), None, world.streams_of_copies()) * world.rng.between(20, 80) / 100 / 4096
            * 4096;
    for (name, reservation) in [("greedy", 0), ("sure", reserved)] {
        let properties = [("compression", "lz4".to_owned()), ("reservation", reservation.to_string())];
        let properties = properties.map(|(key, value)| (key.to_owned(), value)).into();
        world.apply(&Op::Table(TableOp::Create { name: name.to_owned(), size_bytes, properties }))?;
    }
    for _ in 0..3 {
        fill_greedily(&mut world)?;
        match world.rng.below(4) {
            0 => world.crash()?,
            1 => world.reopen()?,
            2 => world.restart()?,
            _ => {}
        }
        world.claim_reservations()?;
        // The same again, from a pool in which nothing of it is used.
        for volume in world.model.names() {
            let len = world.model.size_bytes(&volume);
            world.apply(&Op::Discard { volume, offset: 0, len })?;
        }
        world.apply(&Op::Checkpoint)?;
    }
    Ok(world.tally())
}

/// New data until there is no room; then, in most pools, as much in its place, which compresses
/// less well only where overwriting has room of its own.
fn fill_greedily(world: &mut World) -> Result<(), Failure> {
    use ContentKind::{Random, Text};
    let size = world.model.size_bytes("greedy");
    let is_large = size / u64::from(world.shape.extent_bytes) >= EXTENTS_WITH_ROOM_TO_OVERWRITE;
    let kinds: &[_] = match world.rng.below(if is_large { 4 } else { 2 }) {
        0 => &[Text],
        1 => &[Random, Random],
        2 => &[Text, Random],
        _ => &[Text, Text, Random],
    };
    // Each request has a batch of its own in a pool that is nearly full, and a batch larger than half
    // an extent leaves the rest of it unused: that is no matter of overwriting.
    let len = *world.rng.pick(&[4096, 16 << 10, 32 << 10]);
    let mut filled = 0;
    for (pass, kind) in kinds.iter().copied().enumerate() {
        for offset in (0..size).step_by(len as usize) {
            let (len, seed) = (len.min(size - offset), world.rng.next_u64());
            if world.apply(&Op::Write { volume: "greedy".into(), offset, len, kind, seed, fua: false })? == Ended::Full
            {
                if is_large && pass > 0 && kinds[pass - 1] == Random && offset + len <= filled {
                    let status = world.pool().status();
                    return Err(world.fail(format!("overwriting {len} bytes at {offset} was refused: {status:?}")));
                }
                break;
            }
            filled = filled.max(offset + len);
        }
    }
    Ok(())
}

/// One seed is one run: else nothing of this could be repeated.
#[test]
fn runs_repeat_exactly() {
    for seed in 0..4 {
        let story = |seed| -> Result<_, Failure> {
            let mut world = World::new(seed, |rng: &mut Rng| Shape::small(rng))?;
            world.run_until_dark(50, World::step)?;
            world.crash()?;
            world.run_until_dark(50, World::step)?;
            let mut disk = vec![0; (world.shape.capacity_bytes.next_multiple_of(4096)) as usize];
            world.machine.disk.peek(0, &mut disk);
            Ok((world.machine.power.next_point(), sim::digest(&disk), world.machine.store.dump()))
        };
        let (one, two) = (story(seed), story(seed));
        match (one, two) {
            (Ok(one), Ok(two)) => assert!(one == two, "seed {seed} ran in two ways"),
            (Err(Failure(what)), _) | (_, Err(Failure(what))) => panic!("HARNESS: seed {seed}: {what}"),
        }
    }
}

/// Zeroes that are written as data are cut into pieces. A block in which two of them met was left
/// with one half of it zeroed.
#[test]
fn zeroes_written_over_many_blocks_leave_each_whole() {
    const VOLUME: usize = 4 << 20;
    const ZEROES: std::ops::Range<usize> = 2048..3 << 20;
    let mut expected = vec![0xab; VOLUME];
    expected[ZEROES].fill(0);
    for point in 0.. {
        let mut machine = Machine::new(32 << 20, point);
        let format = FormatOptions { capacity_bytes: 32 << 20, extent_bytes: 256 << 10, properties: Properties::new() };
        Pool::format(&env(&machine), &format).unwrap();
        let options = PoolOptions { memory_bytes: 1 << 20, workers: 0, ..PoolOptions::default() };
        let pool = Pool::open(env(&machine), options.clone()).unwrap();
        pool.create_volume("v", VOLUME as u64, &Properties::new()).unwrap();
        let device = pool.volume("v").unwrap();
        device.write(0, Bytes::from(vec![0xab; VOLUME]), WriteOptions { fua: true }).unwrap();
        machine.power.plan(machine.power.next_point() + point, Fault::Crash);
        let no_hole = ZeroOptions { no_hole: true, fua: true };
        let written = device.write_zeroes(ZEROES.start as u64, ZEROES.len() as u64, no_hole);
        drop((device, pool));
        machine.power.clear_plan();
        machine.power_cycle();
        let pool = Pool::open(env(&machine), options).unwrap();
        let mut data = vec![0xee; VOLUME];
        pool.volume("v").unwrap().read(0, &mut data).unwrap();
        for (index, (got, new)) in data.chunks(4096).zip(expected.chunks(4096)).enumerate() {
            let is_old = got.iter().all(|byte| *byte == 0xab);
            assert!(got == new || is_old && written.is_err(), "HARNESS: point {point}: block {index} is a mix");
        }
        if written.is_ok() {
            assert!(point > 4, "the power never failed between two pieces");
            break;
        }
    }
}
