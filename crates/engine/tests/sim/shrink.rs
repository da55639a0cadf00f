//! Pools that shrink and grow at random while they are used, with crashes: nothing is lost, nothing
//! is beyond the end, and a size that does not fit is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::machine_env::env;
use crate::common::{Campaign, Ended, Failure, Op, Shape, Tally, World, noise};
use engine::{FormatOptions, Pool, PoolOptions, Properties};
use sim::{Fault, Machine, Model, PointKind, Rng};
use surface::{BlockDevice, ErrorKind, WriteOptions};

static SHRUNK: AtomicU64 = AtomicU64::new(0);
static GROWN: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static FAILED: AtomicU64 = AtomicU64::new(0);

/// Grows the pool. If the storage refuses, the pool is unchanged.
fn grow(world: &mut World, extents: u64) -> Result<Ended, Failure> {
    let extent = u64::from(world.shape.extent_bytes);
    let before = world.pool().status().capacity_bytes;
    let grown = world.pool().grow(extents * extent);
    if world.machine.power.is_lost() {
        return Ok(Ended::Dark);
    }
    let fired = world.machine.power.take_fired();
    let status = world.pool().status();
    match (&grown, fired.as_slice()) {
        (Ok(()), _) => drop(GROWN.fetch_add(1, Ordering::Relaxed)),
        (Err(error), []) if matches!(error.kind(), ErrorKind::Full | ErrorKind::Invalid) => {}
        (Err(_), [(point, fault), ..]) => {
            FAILED.fetch_add(1, Ordering::Relaxed);
            if point.kind != PointKind::Grow {
                world.disturbed = Some(format!("{fault:?} at {point}"));
                return Ok(Ended::Disturbed);
            }
            if status.capacity_bytes != before || status.failed.is_some() {
                return Err(world.fail(format!("the storage did not grow, and the pool is not as it was: {status:?}")));
            }
        }
        (Err(error), []) => return Err(world.fail(format!("grow: {error}"))),
    }
    Ok(Ended::Well)
}

/// Goes on until it is done or refused, with work in between.
fn resize(world: &mut World, extents: u64) -> Result<Ended, Failure> {
    let extent = u64::from(world.shape.extent_bytes);
    let now = world.pool().status().capacity_bytes / extent;
    if extents >= now {
        return grow(world, extents);
    }
    for _ in 0..200 {
        let rounds = world.rng.between(1, 4) as u32;
        let shrunk = world.pool().shrink(extents * extent, rounds);
        if world.machine.power.is_lost() {
            // It may be done: giving space back is not waited for.
            return Ok(Ended::Dark);
        }
        world.notice_faults();
        world.mark = matches!(&shrunk, Ok(report) if !report.is_finished).then_some(extents);
        match shrunk {
            Ok(report) if report.is_finished => {
                SHRUNK.fetch_add(1, Ordering::Relaxed);
                if world.pool().status().capacity_bytes != extents * extent {
                    return Err(world.fail(format!("shrunk to {extents} extents: {:?}", world.pool().status())));
                }
                return Ok(Ended::Well);
            }
            Ok(_) => {}
            Err(_) if world.disturbed.is_some() => {
                FAILED.fetch_add(1, Ordering::Relaxed);
                return Ok(Ended::Disturbed);
            }
            Err(error) if error.kind() == ErrorKind::Full => {
                REFUSED.fetch_add(1, Ordering::Relaxed);
                return Ok(Ended::Well);
            }
            Err(error) => return Err(world.fail(format!("shrink to {extents} extents: {error}"))),
        }
        if world.rng.percent(5) {
            world.pool().give_up_shrinking();
            world.mark = None;
            return Ok(Ended::Well);
        }
        if world.rng.percent(40) {
            let ended = match world.step()? {
                Ended::Full => world.relieve()?,
                ended => ended,
            };
            if matches!(ended, Ended::Dark | Ended::Disturbed) {
                return Ok(ended);
            }
        }
    }
    Err(world.fail(format!("shrinking to {extents} extents comes to no end")))
}

/// Something goes wrong while the size changes: the power fails, or the storage, most often in the
/// first steps of growing.
fn plan_fault(world: &mut World, grows: bool) {
    let within = if grows { *world.rng.pick(&[1, 8]) } else { 60 };
    match world.rng.below(10) {
        0..3 => world.plan_crash(within),
        3..6 => {
            let fault = *world.rng.pick(&[Fault::Io, Fault::NoSpace]);
            let point = world.machine.power.next_point() + world.rng.below(within);
            world.machine.power.plan(point, fault);
        }
        _ => {}
    }
}

fn random_run(seed: u64) -> Result<Tally, Failure> {
    let mut world = World::unformatted(seed, |rng| {
        let shape = Shape::small(rng);
        Shape { volume_bytes_max: shape.volume_bytes_max.min(1200 << 10), ..shape }
    });
    let extent = u64::from(world.shape.extent_bytes);
    let (least, first) = (16, world.shape.capacity_bytes / extent);
    let most = first * 3;
    world.machine = Machine::new(most * extent + (64 << 10), world.rng.next_u64());
    // A device that is larger than the pool from the beginning, or a file.
    if world.rng.coin() {
        world.machine.disk.become_file(world.shape.capacity_bytes);
    }
    let options = world.format_options();
    Pool::format(&world.env(), &options).map_err(|e| Failure(format!("format: {e}")))?;
    world.model = Model::new(options.properties);
    world.open()?;
    world.resized = true;
    for _ in 0..12 {
        let crashes = world.rng.percent(50);
        if crashes {
            world.plan_crash(120);
        }
        let mut ended = Ended::Well;
        for _ in 0..world.rng.between(3, 25) {
            ended = match world.step()? {
                Ended::Full => world.relieve()?,
                ended => ended,
            };
            if ended == Ended::Dark {
                break;
            }
        }
        if ended != Ended::Dark {
            let now = world.pool().status().capacity_bytes / extent;
            let extents = match world.rng.below(10) {
                0..4 => world.rng.between(least, now),
                4..7 => world.rng.between(now, most.max(now)),
                _ => world.rng.between(least, most),
            };
            if !crashes {
                plan_fault(&mut world, extents > now);
            }
            world.note(format!("   to {extents} extents, from {now}"));
            ended = resize(&mut world, extents)?;
        }
        if ended == Ended::Disturbed {
            // Acknowledgements of a pool that has met a failure must hold, too.
            world.apply(&Op::FlushPool)?;
            world.run_until_dark(8, World::step)?;
        }
        match ended {
            Ended::Disturbed if world.rng.coin() => world.restart()?,
            Ended::Dark | Ended::Disturbed => world.crash()?,
            _ if world.rng.percent(30) => world.crash()?,
            _ => {
                world.machine.power.clear_plan();
                world.verify()?;
            }
        }
    }
    world.verify_check()?;
    Ok(world.tally())
}

#[test]
fn pools_of_changing_size() {
    let campaign = Campaign { file: "shrink", test: "pools_of_changing_size", seeds: 250, soaks: true };
    let total = campaign.run(random_run);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (shrunk, grown, refused, failed) = (count(&SHRUNK), count(&GROWN), count(&REFUSED), count(&FAILED));
    println!("{shrunk} times smaller, {grown} times larger, {refused} times refused, {failed} times failed");
    let enough = shrunk >= 300 && grown >= 300 && refused >= 20 && failed >= 50 && total.crashes >= 1000;
    campaign.demand(enough, "300 pools made smaller and larger, 20 refused, 50 failed, 1000 crashes");
}

const EXTENT: u64 = 256 << 10;

fn options(workers: usize) -> PoolOptions {
    PoolOptions { memory_bytes: 4 << 20, workers, checkpoint_log_bytes: 1 << 20, ..PoolOptions::default() }
}

fn pool(machine: &Machine, workers: usize) -> Pool {
    let format = FormatOptions {
        capacity_bytes: 64 << 20,
        extent_bytes: EXTENT as u32,
        properties: [("compression".to_owned(), "off".to_owned())].into(),
    };
    Pool::format(&env(machine), &format).unwrap();
    Pool::open(env(machine), options(workers)).unwrap()
}

fn write(pool: &Pool, offset: u64, seed: u64, bytes: usize) {
    pool.volume("v").unwrap().write(offset, noise(seed, bytes), WriteOptions::default()).unwrap();
}

fn shrink(pool: &Pool, bytes: u64) -> surface::Result<u64> {
    let mut moved = 0;
    for _ in 0..1000 {
        let report = pool.shrink(bytes, 2)?;
        moved += report.bytes_moved;
        if report.is_finished {
            return Ok(moved);
        }
    }
    panic!("it comes to no end");
}

fn check(pool: &Pool) {
    let report = pool.check(false, &mut |_, _| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn what_lies_beyond_is_moved_and_what_does_not_fit_is_refused() {
    let machine = Machine::new(64 << 20, 3);
    let pool = pool(&machine, 0);
    pool.create_volume("v", 64 << 20, &Properties::new()).unwrap();
    // The log goes once through nearly all of the file; every fourth megabyte stays.
    for mib in 0..48u64 {
        write(&pool, mib << 20, mib, 1 << 20);
        pool.flush().unwrap();
        if mib % 4 != 3 {
            pool.volume("v").unwrap().discard(mib << 20, 1 << 20).unwrap();
        }
    }
    pool.snapshot("v", "s").unwrap();
    let refused = |bytes: u64, kind: ErrorKind, says: &str| {
        let error = pool.shrink(bytes, 1).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    };
    refused(65 << 20, ErrorKind::Invalid, "has 64 MiB");
    refused(15 * EXTENT, ErrorKind::Invalid, "at least 4 MiB");
    refused(12 << 20, ErrorKind::Full, "may not fit");
    let told = pool.shrink(12 << 20, 1).unwrap_err().to_string();
    let least: u64 =
        told.split("shrink it to ").nth(1).unwrap().split(" MiB").next().unwrap().parse::<f64>().unwrap() as u64;
    assert!((13..30).contains(&least), "{told}");
    // The size that the refusal names will do.
    let moved = shrink(&pool, (least + 1) << 20).unwrap();
    assert!(moved > 3 << 20, "{moved} bytes moved");
    assert_eq!(pool.status().capacity_bytes, (least + 1) << 20);
    let all_there = |pool: &Pool| {
        let mut read = vec![0; 1 << 20];
        for mib in 0..48u64 {
            pool.volume("v@s").unwrap().read(mib << 20, &mut read).unwrap();
            let expected = if mib % 4 == 3 { noise(mib, 1 << 20) } else { vec![0; 1 << 20].into() };
            assert!(read == expected, "MiB {mib}");
        }
    };
    all_there(&pool);
    check(&pool);
    drop(pool);
    let pool = Pool::open(env(&machine), options(0)).unwrap();
    assert_eq!(pool.status().capacity_bytes, (least + 1) << 20);
    all_there(&pool);
    // And larger again: old data beyond the end is not used.
    pool.grow(60 << 20).unwrap();
    for mib in 0..12u64 {
        write(&pool, mib << 20, mib + 1000, 1 << 20);
    }
    pool.flush().unwrap();
    all_there(&pool);
    check(&pool);
}

/// The superblock had survived a crash that reverted the length of the file, and the pool did not
/// open.
#[test]
fn a_file_is_as_long_as_the_superblock_says_whatever_a_crash_leaves() {
    for seed in 0..40 {
        let mut machine = Machine::new(128 << 20, seed);
        machine.disk.become_file(64 << 20);
        let pool = pool(&machine, 0);
        let first = machine.power.next_point();
        machine.power.plan(first + seed % 5, Fault::Crash);
        assert!(pool.grow(128 << 20).is_err());
        drop(pool);
        machine.power_cycle();
        let pool = Pool::open(env(&machine), options(0)).unwrap();
        let size = pool.status().capacity_bytes;
        assert!(size == 64 << 20 || size == 128 << 20, "{size}");
    }
}

/// Writes before a failed sync may be lost, even if later syncs succeed: nothing may be
/// acknowledged after it.
#[test]
fn a_sync_that_fails_while_growing_ends_all_writing() {
    for point in [1, 3, 5] {
        let mut machine = Machine::new(128 << 20, point);
        machine.disk.become_file(64 << 20);
        let pool = pool(&machine, 0);
        pool.create_volume("v", 8 << 20, &Properties::new()).unwrap();
        write(&pool, 0, 1, 4 << 20);
        machine.power.plan(machine.power.next_point() + point, Fault::Io);
        assert_eq!(pool.grow(128 << 20).unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(machine.power.take_fired()[0].0.kind, PointKind::Sync);
        assert!(pool.status().failed.is_some());
        assert!(pool.flush().is_err(), "flushed behind a sync that failed");
        drop(pool);
        machine.restart();
        Pool::open(env(&machine), options(0)).unwrap().flush().unwrap();
    }
}

#[test]
fn a_mark_that_nobody_goes_on_with_is_lifted() {
    let machine = Machine::new(64 << 20, 4);
    let pool = pool(&machine, 0);
    pool.create_volume("v", 64 << 20, &Properties::new()).unwrap();
    for mib in 0..40u64 {
        write(&pool, mib << 20, mib, 1 << 20);
        pool.flush().unwrap();
        if mib < 30 {
            pool.volume("v").unwrap().discard(mib << 20, 1 << 20).unwrap();
        }
    }
    pool.checkpoint().unwrap();
    let free = pool.status().extents_free;
    let report = pool.shrink(24 << 20, 1).unwrap();
    assert!(!report.is_finished && report.extents_todo > 0 && report.bytes_todo > 0, "{report:?}");
    let fill = |from: u64| {
        (from..from + 30).try_for_each(|mib| {
            pool.volume("v").unwrap().write(mib << 20, noise(mib, 1 << 20), WriteOptions::default())
        })
    };
    assert_eq!(fill(0).unwrap_err().kind(), ErrorKind::Full, "nothing new goes beyond the mark");
    pool.volume("v").unwrap().discard(0, 30 << 20).unwrap();
    machine.clock.advance_ms(61_000);
    pool.tick().unwrap();
    pool.checkpoint().unwrap();
    assert!(pool.status().extents_free + 4 >= free, "{} of {free}", pool.status().extents_free);
    fill(0).unwrap();
    // Cancelled by the caller.
    pool.volume("v").unwrap().discard(0, 30 << 20).unwrap();
    pool.checkpoint().unwrap();
    assert!(!pool.shrink(24 << 20, 1).unwrap().is_finished);
    pool.give_up_shrinking();
    fill(0).unwrap();
    check(&pool);
}

#[test]
fn writers_go_on_while_the_pool_becomes_smaller_and_larger() {
    let machine = Machine::new(64 << 20, 5);
    let pool = pool(&machine, 2);
    pool.create_volume("v", 8 << 20, &Properties::new()).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut written: BTreeMap<u64, u64> = BTreeMap::new();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut rng, mut written) = (Rng::new(9), BTreeMap::new());
            while !stop.load(Ordering::Relaxed) {
                let (block, seed) = (rng.below(1500), rng.next_u64());
                write(&pool, block * 4096, seed, 4096);
                written.insert(block, seed);
            }
            written
        });
        for _ in 0..4 {
            shrink(&pool, 32 << 20).unwrap();
            pool.grow(64 << 20).unwrap();
        }
        shrink(&pool, 24 << 20).unwrap();
        stop.store(true, Ordering::Relaxed);
        written.extend(writer.join().unwrap());
    });
    pool.flush().unwrap();
    let device = pool.volume("v").unwrap();
    for (block, seed) in written {
        let mut read = vec![0; 4096];
        device.read(block * 4096, &mut read).unwrap();
        assert!(read == noise(seed, 4096), "block {block}");
    }
    check(&pool);
}
