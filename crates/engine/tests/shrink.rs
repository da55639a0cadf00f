//! Pools that become smaller and larger at random while they are used, with crashes: nothing is lost, nothing lies beyond the end, and what
//! does not fit is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use common::machine_env::env;
use common::{Campaign, Ended, Failure, Shape, Tally, World};
use engine::{FormatOptions, Pool, PoolOptions, Properties};
use sim::{ContentKind, Machine, Model, Rng, fill_content};
use surface::{BlockDevice, ErrorKind, WriteOptions};

static SHRUNK: AtomicU64 = AtomicU64::new(0);
static GROWN: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Goes on until it is done or refused, with work in between; whether the power failed.
fn resize(world: &mut World, extents: u64) -> Result<bool, Failure> {
    let extent = u64::from(world.shape.extent_bytes);
    let now = world.pool().status().capacity_bytes / extent;
    if extents >= now {
        match world.pool().grow(extents * extent) {
            _ if world.machine.power.is_lost() => return Ok(true),
            Ok(()) => drop(GROWN.fetch_add(1, Ordering::Relaxed)),
            Err(error) if matches!(error.kind(), ErrorKind::Full | ErrorKind::Invalid) => {}
            Err(error) => return Err(world.fail(format!("grow: {error}"))),
        }
        return Ok(false);
    }
    for _ in 0..200 {
        let rounds = world.rng.between(1, 4) as u32;
        let shrunk = world.pool().shrink(extents * extent, rounds);
        if world.machine.power.is_lost() {
            // It may be done: giving space back is not waited for.
            return Ok(true);
        }
        match shrunk {
            Ok(report) if report.is_finished => {
                SHRUNK.fetch_add(1, Ordering::Relaxed);
                if world.pool().status().capacity_bytes != extents * extent {
                    return Err(world.fail(format!("shrunk to {extents} extents: {:?}", world.pool().status())));
                }
                return Ok(false);
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Full => {
                REFUSED.fetch_add(1, Ordering::Relaxed);
                return Ok(false);
            }
            Err(error) => return Err(world.fail(format!("shrink to {extents} extents: {error}"))),
        }
        if world.rng.percent(5) {
            world.pool().give_up_shrinking();
            return Ok(false);
        }
        if world.rng.percent(40) {
            match world.step()? {
                Ended::Dark => return Ok(true),
                Ended::Full if world.relieve()? == Ended::Dark => return Ok(true),
                _ => {}
            }
        }
    }
    Err(world.fail(format!("shrinking to {extents} extents comes to no end")))
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
    let options = world.format_options();
    Pool::format(&world.env(), &options).map_err(|e| Failure(format!("format: {e}")))?;
    world.model = Model::new(options.properties);
    world.open()?;
    world.resized = true;
    for _ in 0..12 {
        if world.rng.percent(60) {
            world.plan_crash(120);
        }
        let mut is_dark = false;
        for _ in 0..world.rng.between(3, 25) {
            match world.step()? {
                Ended::Dark => is_dark = true,
                Ended::Full => is_dark = world.relieve()? == Ended::Dark,
                _ => {}
            }
            if is_dark {
                break;
            }
        }
        if !is_dark {
            let now = world.pool().status().capacity_bytes / extent;
            let extents = match world.rng.below(10) {
                0..4 => world.rng.between(least, now),
                4..7 => world.rng.between(now, most.max(now)),
                _ => world.rng.between(least, most),
            };
            world.note(format!("   to {extents} extents, from {now}"));
            is_dark = resize(&mut world, extents)?;
        }
        if is_dark || world.rng.percent(30) {
            world.crash()?;
        } else {
            world.machine.power.clear_plan();
            world.verify()?;
        }
    }
    world.verify_check()?;
    Ok(world.tally())
}

#[test]
fn pools_of_changing_size() {
    let campaign = Campaign { binary: "shrink", test: "pools_of_changing_size", seeds: 250, soaks: true };
    let total = campaign.run(random_run);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (shrunk, grown, refused) = (count(&SHRUNK), count(&GROWN), count(&REFUSED));
    println!("{shrunk} times smaller, {grown} times larger, {refused} times refused");
    let enough = shrunk >= 300 && grown >= 300 && refused >= 20 && total.crashes >= 1000;
    campaign.demand(enough, "300 pools made smaller and larger, 20 refused, 1000 crashes");
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

fn noise(seed: u64, bytes: usize) -> Bytes {
    let mut data = vec![0; bytes];
    fill_content(&mut Rng::new(seed), ContentKind::Random, &mut data);
    data.into()
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
    refused(12 << 20, ErrorKind::Full, "does not fit");
    let told = pool.shrink(12 << 20, 1).unwrap_err().to_string();
    let least: u64 =
        told.split("make it ").nth(1).unwrap().split(" MiB").next().unwrap().parse::<f64>().unwrap() as u64;
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
    // And larger again: what was beyond is taken for nothing that it is not.
    pool.grow(60 << 20).unwrap();
    for mib in 0..12u64 {
        write(&pool, mib << 20, mib + 1000, 1 << 20);
    }
    pool.flush().unwrap();
    all_there(&pool);
    check(&pool);
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
    // Given up by the one who asked.
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
