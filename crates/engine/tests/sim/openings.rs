//! Deaths inside openings: the program dies, the next one dies while it opens the pool, at each
//! step that it takes there, and so do those after it. All acknowledged data is there all the same,
//! and so are the files next to the standby memory, which have names of shares.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use engine::{Pool, PoolOptions};
use format::{
    KEY_LOSSES, STANDBY_DURABLE_OFFSET, STANDBY_HEADER_BYTES, StandbyHeader, decode_losses, parse_journal_key,
    word_stores,
};
use sim::{Fault, Rng};
use surface::DeviceId;

use crate::common::{Campaign, Failure, Shape, Tally, World};

/// Openings that die one after the other, at most.
const DEATHS_MAX: u64 = 4;

/// The share whose journal is next to the memory.
const SHARE: DeviceId = DeviceId(77);

/// A pool whose program died with acknowledged requests, and with a file next to its memory.
fn died(seed: u64) -> Result<(World, [u8; 16]), Failure> {
    let mut world = World::new(seed, Shape::with_standby)?;
    world.machine.power.number_standby(true);
    world.pool().note_journal(SHARE).map_err(|e| world.fail(format!("the note of a journal: {e}")))?;
    world.run_until_dark(12, World::step)?;
    let pool = world.pool().id();
    world.machine.standby.put_beside(&pool, 1);
    dead(&mut world);
    Ok((world, pool))
}

/// The program has died, and is started again.
fn dead(world: &mut World) {
    world.machine.power.cut();
    world.abandon();
    world.machine.power.clear_plan();
    world.machine.restart();
    world.crashes += 1;
}

/// An opening that dies after so many steps. `None`: it has come to its end before.
fn open_and_die(world: &mut World, steps: u64) -> Result<Option<()>, Failure> {
    world.machine.power.plan(world.machine.power.next_point() + steps, Fault::Crash);
    let opened = Pool::open(world.env(), world.pool_options());
    if world.machine.power.is_lost() {
        drop(opened);
        dead(world);
        return Ok(Some(()));
    }
    world.machine.power.clear_plan();
    world.pool = Some(opened.map_err(|e| world.fail(format!("an opening after deaths: {e}")))?);
    Ok(None)
}

/// Nothing is missing, and nothing is said.
fn expect_all(world: &mut World, pool: &[u8; 16]) -> Result<(), Failure> {
    world.verify()?;
    let (notes, losses) = (world.pool().status().standby.notes, world.pool().losses());
    let beside = world.machine.standby.beside(pool);
    if !notes.is_empty() || !losses.is_empty() || beside != 1 {
        return Err(world.fail(format!("{beside} files beside standby memory, notes {notes:?}, losses {losses:?}")));
    }
    match world.pool().noted_journals() {
        Ok(noted) if noted == [SHARE] => Ok(()),
        noted => Err(world.fail(format!("one share had a journal, and the map says {noted:?}"))),
    }
}

fn every_step(seed: u64) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    for step in 0.. {
        let (mut world, pool) = died(seed)?;
        let mut rng = Rng::new(seed ^ step << 20);
        let mut is_open = open_and_die(&mut world, step)?.is_none();
        let has_ended = is_open;
        for _ in 1..rng.between(1, DEATHS_MAX) {
            // Those that come soon die where the memory was just taken over or made.
            let steps = if rng.coin() { rng.below(12) } else { rng.below(step + 12) };
            is_open = is_open || open_and_die(&mut world, steps)?.is_none();
        }
        if !is_open {
            let opened = Pool::open(world.env(), world.pool_options());
            world.pool = Some(opened.map_err(|e| world.fail(format!("step {step}: the last opening: {e}")))?);
        }
        expect_all(&mut world, &pool).map_err(|Failure(what)| Failure(format!("step {step}: {what}")))?;
        // It goes on, and dies once more.
        world.run_until_dark(5, World::step)?;
        world.die()?;
        expect_all(&mut world, &pool).map_err(|Failure(what)| Failure(format!("after step {step}: {what}")))?;
        tally.ops += world.op_number;
        tally.crashes += world.crashes;
        if has_ended {
            break;
        }
    }
    Ok(tally)
}

#[test]
fn deaths_at_every_step_of_openings() {
    let campaign = Campaign { file: "openings", test: "deaths_at_every_step_of_openings", seeds: 12, soaks: true };
    let total = campaign.run(every_step);
    campaign.demand(total.crashes >= 2_000, "at least 2000 deaths in openings");
}

/// Bits of standby memory turn over between a death and the next opening: a loss is reported, and
/// remembered.
#[test]
fn damaged_memory_loses_nothing_in_silence() {
    let campaign =
        Campaign { file: "openings", test: "damaged_memory_loses_nothing_in_silence", seeds: 300, soaks: true };
    campaign.run(|seed| {
        let (mut world, pool) = died(seed)?;
        let Some(mut bytes) = world.machine.standby.peek(&pool) else { return Ok(world.tally()) };
        // Where something is: the beginning of the ring, or its header.
        let written = bytes.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 1);
        for _ in 0..world.rng.between(1, 3) {
            let within = if world.rng.percent(20) { 544 } else { written };
            let at = world.rng.index(within);
            bytes[at] ^= 1 << world.rng.below(8);
        }
        world.machine.standby.poke(&pool, bytes);
        let opened = Pool::open(world.env(), world.pool_options());
        world.pool = Some(opened.map_err(|e| world.fail(format!("open with damaged standby memory: {e}")))?);
        let losses = world.pool().losses();
        if !losses.is_empty() {
            // Any acknowledged request may be the one that is missing; all flushed data is there.
            world.model.crashed();
        }
        world.verify()?;
        Ok(world.tally())
    });
}

/// The standby memory claims that the log had more flushed batches than it has.
fn claim_more(world: &World, pool: &[u8; 16]) {
    let mut bytes = world.machine.standby.peek(pool).unwrap();
    let session = StandbyHeader::decode(&bytes[..STANDBY_HEADER_BYTES]).unwrap().session;
    for (at, word) in word_stores(session, STANDBY_DURABLE_OFFSET, 1 << 32) {
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    world.machine.standby.poke(pool, bytes);
}

/// Whether the map remembers that names of shares are lost.
fn remembers_names(world: &World) -> bool {
    let notes = world.machine.store.dump().into_iter().find(|(key, _)| key == KEY_LOSSES);
    let notes = notes.map_or_else(Vec::new, |(_, value)| decode_losses(&value).unwrap());
    notes.iter().any(|note| note.text.contains("names of shares are missing"))
}

/// Whether the map records that a share has a journal.
fn notes_a_journal(world: &World) -> bool {
    world.machine.store.dump().iter().any(|(key, _)| parse_journal_key(key).is_some())
}

/// After a loss of power, names that were not synced are no loss that anyone reports.
#[test]
fn journals_of_an_earlier_boot_are_forgotten() {
    let test = "journals_of_an_earlier_boot_are_forgotten";
    Campaign { file: "openings", test, seeds: 20, soaks: false }.run(|seed| {
        let mut world = World::new(seed, Shape::with_standby)?;
        world.pool().note_journal(SHARE).map_err(|e| world.fail(format!("the note of a journal: {e}")))?;
        world.die()?;
        if !notes_a_journal(&world) {
            return Err(world.fail("the death of the program makes the map forget a journal"));
        }
        world.crash()?;
        if notes_a_journal(&world) || !world.pool().losses().is_empty() {
            return Err(world.fail("the map still notes a journal of an earlier boot, or a loss"));
        }
        Ok(world.tally())
    });
}

/// A repair sets journals aside which do not go with the standby memory. It dies at each of its
/// steps. Either the journals are still there, or the map remembers the loss.
#[test]
fn names_that_are_lost_are_noted_whatever_step_is_the_last() {
    let test = "names_that_are_lost_are_noted_whatever_step_is_the_last";
    let campaign = Campaign { file: "openings", test, seeds: 12, soaks: false };
    let total = campaign.run(|seed| {
        let mut tally = Tally::default();
        for step in 0.. {
            let (mut world, pool) = died(seed)?;
            claim_more(&world, &pool);
            let accepting = PoolOptions { repair: true, accept_loss: true, ..world.pool_options() };
            world.machine.power.plan(world.machine.power.next_point() + step, Fault::Crash);
            let opened = Pool::open(world.env(), accepting);
            let has_died = world.machine.power.is_lost();
            if !has_died && let Err(error) = &opened {
                return Err(world.fail(format!("a repair that accepts the loss: {error}")));
            }
            drop(opened);
            // Whether the last change of the map was made differs between the seeds.
            world.machine.reseed(seed ^ step << 20);
            dead(&mut world);
            let beside = world.machine.standby.beside(&pool);
            if beside == 0 && !remembers_names(&world) {
                return Err(world.fail(format!("step {step}: the journals are set aside, and the loss is not noted")));
            }
            tally.crashes += 1;
            if !has_died {
                if beside > 0 || notes_a_journal(&world) {
                    return Err(world.fail("a repair leaves journals that do not go with the standby memory"));
                }
                break;
            }
        }
        Ok(tally)
    });
    campaign.demand(total.crashes >= 400, "at least 400 deaths in repairs");
}
