//! Copies of a pool whose program died, on the same machine, and standby memory that is gone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use engine::{Pool, PoolOptions};

use crate::common::machine_env::env;
use crate::common::{Campaign, Failure, Shape, Tally, World};

/// The program dies; the machine lives on.
fn kill(world: &mut World) {
    world.machine.power.cut();
    world.abandon();
    world.machine.power.clear_plan();
    world.machine.restart();
}

/// A copy is opened, for a moment or to be served, and closed.
fn use_copy(world: &mut World) -> Result<(), Failure> {
    let copy = world.machine.copy(world.rng.next_u64());
    let standby_bytes_max = *world.rng.pick(&[0, usize::MAX]);
    let options = PoolOptions { standby_bytes_max, ..world.pool_options() };
    let pool = Pool::open(env(&copy), options).map_err(|e| world.fail(format!("open of a copy: {e}")))?;
    let notes = pool.status().standby.notes.join("; ");
    if !notes.contains("this is a copy") || !pool.losses().is_empty() {
        return Err(world.fail(format!("a copy says: {notes:?}, and lost {:?}", pool.losses())));
    }
    if standby_bytes_max > 0 && world.rng.coin() {
        // Its program dies as well, and is restarted.
        copy.power.cut();
        drop(pool);
        let mut copy = copy;
        copy.restart();
        let again = Pool::open(env(&copy), world.pool_options());
        return again.and_then(Pool::close).map_err(|e| world.fail(format!("a copy that was killed: {e}")));
    }
    pool.close().map_err(|e| world.fail(format!("close of a copy: {e}")))
}

fn run(seed: u64) -> Result<Tally, Failure> {
    let mut world = World::new(seed, Shape::with_standby)?;
    for _ in 0..3 {
        world.run_until_dark(20, World::step)?;
        kill(&mut world);
        for _ in 0..world.rng.between(1, 2) {
            use_copy(&mut world)?;
        }
        // All that was acknowledged is there, and nothing else is said.
        world.die()?;
    }
    world.verify_check()?;
    Ok(world.tally())
}

#[test]
fn copies_take_nothing_from_the_original() {
    let campaign = Campaign { file: "copies", test: "copies_take_nothing_from_the_original", seeds: 100, soaks: false };
    campaign.run(run);
}

/// A pool whose program died and whose standby memory is gone: flushed data is there, and the pool
/// remembers that more may be missing.
#[test]
fn a_ring_that_is_gone_is_told() {
    let campaign = Campaign { file: "copies", test: "a_ring_that_is_gone_is_told", seeds: 60, soaks: false };
    campaign.run(|seed| {
        let mut world = World::new(seed, Shape::with_standby)?;
        world.run_until_dark(20, World::step)?;
        kill(&mut world);
        world.machine.standby.empty();
        world.model.crashed();
        world.open()?;
        world.verify()?;
        if world.pool().losses().len() != 1 {
            return Err(world.fail(format!("standby memory is gone, and the losses are {:?}", world.pool().losses())));
        }
        // After an orderly end, and after a death with its memory there, nothing more is missing.
        world.reopen()?;
        world.die()?;
        if world.pool().losses().len() != 1 {
            return Err(world.fail(format!("nothing else was lost, but {:?}", world.pool().losses())));
        }
        Ok(world.tally())
    });
}
