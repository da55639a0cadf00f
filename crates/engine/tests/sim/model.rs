//! Long runs without crashes: every read returns the written data, whatever else is running.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::leaks::judged;
use crate::common::{Campaign, Ended, Failure, Shape, Tally, World};

/// Operations of one seed.
const OPS: u64 = 500;

fn random_run(seed: u64) -> Result<Tally, Failure> {
    let mut world = World::new(seed, Shape::large)?;
    while world.op_number < OPS {
        match world.step()? {
            Ended::Well | Ended::Limited => {}
            Ended::Full => {
                world.relieve()?;
            }
            ended @ (Ended::Dark | Ended::Disturbed) => return Err(world.fail(format!("{ended:?} without a fault"))),
        }
        match world.rng.below(200) {
            0..3 => world.reopen()?,
            3..5 => world.restart()?,
            5 => world.verify()?,
            _ => {}
        }
    }
    world.verify()?;
    audit_allocation(&mut world)?;
    world.reopen()?;
    world.verify_no_leak()?;
    Ok(Tally { ops: world.op_number, crashes: 0, fulls: world.fulls, faults: 0 })
}

/// Figures after a checkpoint agree with each other.
fn audit_allocation(world: &mut World) -> Result<(), Failure> {
    if world.pool().checkpoint().is_err() {
        return Ok(());
    }
    world.model.flushed_all();
    let (status, volumes) = (world.pool().status(), world.pool().volumes());
    let stored: u64 = volumes.iter().map(|v| v.stored_bytes).sum();
    let allocated: u64 = volumes.iter().map(|v| v.allocated_bytes).sum();
    let logical: u64 = volumes.iter().map(engine::VolumeStatus::logical_bytes).sum();
    let owned = (
        status.live_bytes - status.unlisted_bytes - status.dictionary_bytes,
        status.allocated_bytes,
        status.logical_bytes,
    );
    if owned != (stored, allocated, logical) {
        return Err(world.fail(format!("figures do not agree: {status:?} and {volumes:?}")));
    }
    let used = status.live_bytes + status.dead_bytes + status.free_bytes;
    if used > status.capacity_bytes || status.extents_free * status.extent_bytes != status.free_bytes {
        return Err(world.fail(format!("more than there is: {status:?}")));
    }
    let nonzero: u64 = world.model.names().iter().map(|name| world.model.nonzero_bytes(name)).sum();
    // A clone owns only its difference from its origin.
    let has_clones = world.model.names().iter().any(|name| world.model.is_clone(name));
    if allocated < nonzero && !has_clones {
        return Err(world.fail(format!("{allocated} bytes allocated, but {nonzero} hold data: {volumes:?}")));
    }
    Ok(())
}

#[test]
fn random_operations() {
    let campaign = Campaign { file: "model", test: "random_operations", seeds: 60, soaks: true };
    campaign.run(random_run);
    let (judged, clones) = judged();
    println!("{judged} times nothing was left of all but one volume, {clones} times of what a clone came from");
    campaign.demand(judged >= 30 && clones >= 10, "30 looks for what is left, 10 of them at clones");
}
