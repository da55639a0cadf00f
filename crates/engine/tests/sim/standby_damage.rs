//! Standby memory that is damaged while a program uses it. Each page in turn reads as zeroes, with
//! its space gone or allocated again, or everything from it on is cut off. The program notices the
//! damage or not, and dies. All acknowledged data is there, or its loss is remembered.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::atomic::{AtomicU64, Ordering};

use sim::MissingSpace;

use crate::common::{Campaign, Failure, Shape, Tally, World};

const PAGE: usize = 4096;
/// Longer than the pause between two attempts to replace memory.
const LATER_MS: u64 = 3000;

/// Worlds whose program noticed the damage and replaced the memory; and those in which a loss is
/// remembered.
static REPLACED: AtomicU64 = AtomicU64::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);

/// Damages the memory from `page` on. `None`: nothing was ever written there.
fn damage(world: &World, page: usize, missing: MissingSpace) -> Option<()> {
    let (pool, standby) = (world.pool().id(), &world.machine.standby);
    let bytes = standby.peek(&pool)?;
    let written = bytes.iter().rposition(|byte| *byte != 0)? + 1;
    let from = page * PAGE;
    let end = if missing == MissingSpace::End { bytes.len() } else { from + PAGE };
    standby.zero(&pool, from..end, missing);
    (from < written).then_some(())
}

/// The program dies, and the next one opens the pool, which may remember losses.
fn reopen(world: &mut World) -> Result<bool, Failure> {
    world.machine.power.cut();
    world.abandon();
    world.machine.restart();
    world.crashes += 1;
    world.open()?;
    let is_lost = !world.pool().losses().is_empty();
    if is_lost {
        // Any acknowledged request may be the one that is missing; all flushed data is there.
        world.model.crashed();
    }
    world.verify()?;
    Ok(is_lost)
}

fn with_damage(seed: u64, page: usize, missing: MissingSpace, is_noticed: bool) -> Result<Option<Tally>, Failure> {
    let mut world = World::new(seed, Shape::with_standby)?;
    world.run_until_dark(12, World::step)?;
    if damage(&world, page, missing).is_none() {
        return Ok(None);
    }
    let is_visible = page == 0 || missing != MissingSpace::Nothing;
    if is_visible && world.pool().keeps_acknowledged() {
        return Err(world.fail("status promises what is acknowledged, and the memory is damaged"));
    }
    if is_noticed {
        world.machine.clock.advance_ms(LATER_MS);
        world.pool().tick().map_err(|e| world.fail(format!("tick: {e}")))?;
    }
    let status = world.pool().status();
    if is_visible && is_noticed && status.standby.place.is_none() && !status.is_full {
        return Err(world.fail(format!("damaged memory is not replaced: {:?}", status.standby)));
    }
    if is_visible && world.pool().keeps_acknowledged() {
        REPLACED.fetch_add(1, Ordering::Relaxed);
        world.run_until_dark(4, World::step)?;
        // Nothing is missing, and nothing is said.
        world.die()?;
        if !world.pool().losses().is_empty() {
            return Err(world.fail(format!("all was promised, and lost: {:?}", world.pool().losses())));
        }
    } else if reopen(&mut world)? {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
    Ok(Some(world.tally()))
}

fn every_page(seed: u64) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    for missing in [MissingSpace::Part, MissingSpace::Nothing, MissingSpace::End] {
        for is_noticed in [true, false] {
            for page in 0.. {
                let Some(done) = with_damage(seed, page, missing, is_noticed)
                    .map_err(|Failure(what)| Failure(format!("{missing:?}, page {page}: {what}")))?
                else {
                    break;
                };
                tally.ops += done.ops;
                tally.crashes += done.crashes;
            }
        }
    }
    Ok(tally)
}

#[test]
fn memory_that_is_damaged_in_use_loses_nothing_in_silence() {
    let test = "memory_that_is_damaged_in_use_loses_nothing_in_silence";
    let campaign = Campaign { file: "standby_damage", test, seeds: 5, soaks: true };
    campaign.run(every_page);
    let [replaced, lost] = [&REPLACED, &LOST].map(|n| n.load(Ordering::Relaxed));
    println!("memory was replaced {replaced} times, {lost} losses were remembered");
    campaign.demand(replaced >= 100 && lost >= 100, "100 replacements and 100 losses");
}
