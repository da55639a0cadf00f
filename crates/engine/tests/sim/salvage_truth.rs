//! Salvage without its map, and with it, of a data file that was cut off, or of which parts are
//! zeroed, swapped, older, foreign or noise: the wrong part of the result is never larger than the
//! report says, and nothing is skipped. Whole data is reported as whole. With the map less is
//! reported as missing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::machine_env::env;
use crate::common::salvage::{Salvaged, salvage, salvage_with_map};
use crate::common::{Campaign, Ended, Failure, Shape, Tally, World};
use bytes::Bytes;
use engine::{Completeness, FormatOptions, Pool, PoolOptions, Properties};
use sim::{Machine, Rng};
use surface::{BlockDevice, WriteOptions};

/// Damages that were compared, those that took something, and those that the report had to name.
static COMPARED: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);
static SPARED: AtomicU64 = AtomicU64::new(0);
static EXCUSED: AtomicU64 = AtomicU64::new(0);

/// Damages with the map; those with wrong data in the result; and the sum of the reported bounds
/// for the same damages with and without the map.
static WITH_MAP: AtomicU64 = AtomicU64::new(0);
static WRONG_WITH_MAP: AtomicU64 = AtomicU64::new(0);
static BOUND_WITH_MAP: AtomicU64 = AtomicU64::new(0);
static BOUND_WITHOUT: AtomicU64 = AtomicU64::new(0);
/// Damages of the catalogue for which the map had names, sizes and snapshots.
static NAMED_BY_MAP: AtomicU64 = AtomicU64::new(0);

/// Damages of each pool without the map.
const ROUNDS: u64 = 10;
/// Damages of each pool with the map as well.
const ROUNDS_WITH_MAP: u64 = 8;

pub fn work(world: &mut World, ops: u64) -> Result<(), Failure> {
    for _ in 0..ops {
        if world.step()? == Ended::Full {
            world.relieve()?;
        }
    }
    Ok(())
}

/// The numbers of the batches on a disk, each with its opening (batches that a crash has left have
/// the numbers of others), and before which of them some batch knows all to be durable.
pub fn batches(machine: &Machine, extent_bytes: u64, extents: u64) -> (BTreeSet<(u64, u64)>, u64) {
    let mut bytes = vec![0; extent_bytes as usize];
    let (mut numbers, mut durable_before) = (BTreeSet::new(), 0);
    for extent in 1..extents {
        machine.disk.peek(extent * extent_bytes, &mut bytes);
        for at in (0..bytes.len()).step_by(4096) {
            let header = format::decode_batch(&bytes[at..]).map(|batch| batch.header);
            if let Ok(header) = header.as_ref().map_err(drop)
                && u64::from(header.extent.0) == extent
            {
                numbers.insert((header.seq.0, header.incarnation));
                durable_before = durable_before.max(header.durable_before.0);
            }
        }
    }
    (numbers, durable_before)
}

/// Damages a disk; returns how. `older` has the disk in an earlier state, `other` that of another
/// pool.
pub fn damage(machine: &Machine, older: &Machine, other: &Machine, shape: &Shape, rng: &mut Rng) -> String {
    let extent = u64::from(shape.extent_bytes);
    let extents = shape.capacity_bytes / extent;
    let mut bytes = vec![0; extent as usize];
    let (at, second) = ((1 + rng.below(extents - 1)) * extent, (1 + rng.below(extents - 1)) * extent);
    match rng.below(10) {
        9 => {
            for (place, _) in format::inventory_places(shape.extent_bytes) {
                machine.disk.poke(place, &[0; 4096]);
            }
            "the inventory zeroed".to_owned()
        }
        0 => {
            let end = (extent + rng.below(shape.capacity_bytes - extent)) / 4096 * 4096;
            let rest = vec![0; (shape.capacity_bytes / 4096 * 4096 - end) as usize];
            machine.disk.poke(end, &rest);
            machine.disk.become_file(end);
            format!("cut off at {end}")
        }
        1 | 2 => {
            let count = (1 + rng.below(3)).min(extents - at / extent);
            machine.disk.poke(at, &vec![0; (count * extent) as usize]);
            format!("{count} extents zeroed at {at}")
        }
        3 => {
            let from = rng.below(extent / 4096) * 4096;
            machine.disk.poke(at + from, &vec![0; (extent - from) as usize]);
            format!("zeroed from {} to the end of the extent", at + from)
        }
        4 => {
            let from = rng.below(extent / 4096) * 4096;
            machine.disk.poke(at + from, &[0; 4096]);
            format!("a block zeroed at {}", at + from)
        }
        5 => {
            let mut others = bytes.clone();
            machine.disk.peek(at, &mut bytes);
            machine.disk.peek(second, &mut others);
            machine.disk.poke(at, &others);
            machine.disk.poke(second, &bytes);
            format!("extents at {at} and {second} swapped")
        }
        6 => {
            older.disk.peek(at, &mut bytes);
            machine.disk.poke(at, &bytes);
            format!("an older extent at {at}")
        }
        7 => {
            other.disk.peek(at, &mut bytes);
            machine.disk.poke(at, &bytes);
            format!("the extent of another pool at {at}")
        }
        _ => {
            rng.fill(&mut bytes);
            machine.disk.poke(at, &bytes);
            format!("noise at {at}")
        }
    }
}

/// Returns the wrong bytes of each volume and snapshot, in whole blocks: those that show discarded
/// data, and all.
fn wrong_bytes(world: &World, salvaged: &Salvaged) -> Result<BTreeMap<String, Option<(u64, u64)>>, Failure> {
    let mut model = world.model.clone();
    let mut wrong = BTreeMap::new();
    for name in model.all_names() {
        let told = salvaged.report.volumes.iter().find(|told| told.name == name);
        let size = model.size_bytes(&name);
        let Some(told) = told.filter(|told| told.size_bytes == size) else {
            wrong.insert(name, None);
            continue;
        };
        let device = salvaged.pool.volume(&name).map_err(|e| world.fail(e))?;
        let (mut discarded, mut all) = (0, 0);
        let mut at = 0;
        while at < size {
            let runs = device.allocation(at, size - at, 64).map_err(|e| world.fail(e))?;
            for run in runs {
                if run.allocation == surface::Allocation::Hole && model.check_zeroes(&name, at, run.length).is_ok() {
                    at += run.length;
                    continue;
                }
                for offset in (at..at + run.length).step_by(4096) {
                    let mut buf = vec![0xee; (size - offset).min(4096) as usize];
                    device.read(offset, &mut buf).map_err(|e| world.fail(e))?;
                    let is_told = told.damaged.iter().any(|d| (d.offset..d.offset + d.length).contains(&offset));
                    if is_told || model.check_read(&name, offset, &buf).is_ok() {
                        continue;
                    }
                    let was_discarded = model.check_zeroes(&name, offset, buf.len() as u64).is_ok();
                    discarded += if was_discarded { buf.len() as u64 } else { 0 };
                    all += buf.len() as u64;
                    // Of a block at an odd end only a part shows, which the model does not know.
                    let is_whole = buf.len() == 4096;
                    if is_whole && buf.iter().any(|byte| *byte != 0) && !model.is_known(offset / 4096, &buf) {
                        return Err(world.fail(format!("'{name}' at {offset} holds what was never written there")));
                    }
                }
                at += run.length;
            }
        }
        wrong.insert(name, Some((discarded, all)));
    }
    Ok(wrong)
}

fn compare(world: &World, salvaged: &Salvaged, what: &str) -> Result<bool, Failure> {
    let report = &salvaged.report;
    let wrong = wrong_bytes(world, salvaged)?;
    let fail = |text: String| Err(world.fail(format!("{what}: {text}: {report:?}")));
    for (name, found) in &wrong {
        let Some((discarded, all)) = found else {
            if !report.is_lossy() {
                return fail(format!("'{name}' is not there, or has another size, and nothing is said"));
            }
            continue;
        };
        let of = |name: &str| report.volumes.iter().find(|told| told.name == *name);
        let uncertain = of(name).map_or(0, |told| told.uncertain_bytes);
        let missing = of(name).map_or(0, |told| told.missing_bytes_max);
        // The newest batches of a pool that was not closed have no other evidence than themselves.
        let end_is_unknown = report.completeness == Completeness::UpTo;
        if !report.is_lossy() && all > discarded && end_is_unknown {
            continue;
        }
        if !report.is_lossy() && all > discarded {
            return fail(format!("{} bytes of '{name}' are wrong, and nothing is said", all - discarded));
        }
        // Of an unknown volume, nothing else is reported.
        if report.has_catalogue && *all > uncertain + missing {
            return fail(format!("{all} bytes of '{name}' are wrong, more than {uncertain} and {missing} bytes"));
        }
    }
    Ok(wrong.values().any(|found| found.is_none_or(|(_, all)| all > 0)))
}

/// Bytes that a report says may be wrong, of all volumes and snapshots.
fn bound(salvaged: &Salvaged) -> u64 {
    let told = &salvaged.report.volumes;
    told.iter().map(|told| told.missing_bytes_max.min(told.size_bytes) + told.uncertain_bytes).sum()
}

/// Salvages a damaged disk with its map, and without it.
fn compare_with_map(world: &World, copy: &World, bytes: u64, seed: u64, what: &str) -> Result<(), Failure> {
    let with_map = salvage_with_map(&copy.machine, bytes, seed).map_err(|e| world.fail(format!("{what}: {e}")))?;
    let is_wrong = compare(world, &with_map, &format!("{what}, with the map"))?;
    if !with_map.report.by_map {
        return Ok(());
    }
    let without = salvage(&copy.machine, bytes, seed).map_err(|e| world.fail(format!("{what}: {e}")))?;
    WITH_MAP.fetch_add(1, Ordering::Relaxed);
    WRONG_WITH_MAP.fetch_add(u64::from(is_wrong), Ordering::Relaxed);
    BOUND_WITH_MAP.fetch_add(bound(&with_map), Ordering::Relaxed);
    BOUND_WITHOUT.fetch_add(bound(&without), Ordering::Relaxed);
    let is_named = with_map.report.has_catalogue && !without.report.has_catalogue;
    NAMED_BY_MAP.fetch_add(u64::from(is_named), Ordering::Relaxed);
    Ok(())
}

fn campaign(seed: u64) -> Result<Tally, Failure> {
    let mut world = World::new(seed, Shape::small)?;
    work(&mut world, 20 + seed % 60)?;
    let older = world.machine.duplicate(seed);
    work(&mut world, 20 + seed % 40)?;
    if world.pool().flush().is_err() {
        return Ok(world.tally());
    }
    world.model.flushed_all();
    let is_closed = world.rng.coin();
    if is_closed {
        let Some(pool) = world.pool.take() else { return Ok(world.tally()) };
        if pool.close().is_err() {
            return Ok(world.tally());
        }
    }
    world.abandon();
    world.machine.restart();
    if world.model.is_in_doubt() {
        return Ok(world.tally());
    }
    let other = World::new(seed ^ (1 << 40), |_| world.shape.clone())?;
    let bytes = world.shape.capacity_bytes.next_multiple_of(4096);
    let extent_bytes = u64::from(world.shape.extent_bytes);
    let extents = world.shape.capacity_bytes / extent_bytes;
    let (before, _) = batches(&world.machine, extent_bytes, extents);
    let catalogue = salvage(&world.machine.duplicate(1), bytes, seed).map_err(|e| world.fail(e))?;
    if catalogue.report.has_catalogue {
        let whole = if is_closed { Completeness::Complete } else { Completeness::UpTo };
        if catalogue.report.completeness != whole || catalogue.report.is_lossy() {
            return Err(world.fail(format!("a pool that is whole: {:?}", catalogue.report)));
        }
        compare(&world, &catalogue, "undamaged")?;
        let by_map = salvage_with_map(&world.machine.duplicate(1), bytes, seed).map_err(|e| world.fail(e))?;
        let is_missed = by_map.report.volumes.iter().any(|told| told.missing_bytes_max > 0);
        if !by_map.report.by_map || by_map.report.is_lossy() || is_missed {
            return Err(world.fail(format!("a pool that is whole, by its map: {:?}", by_map.report)));
        }
        compare(&world, &by_map, "undamaged, with the map")?;
    }
    for round in 0..ROUNDS + ROUNDS_WITH_MAP {
        let copy = world.fork(seed ^ round);
        let mut rng = Rng::new(seed * 31 + round);
        let mut what = Vec::new();
        for _ in 0..1 + rng.below(2) {
            what.push(damage(&copy.machine, &older, &other.machine, &world.shape, &mut rng));
            if what[what.len() - 1].starts_with("cut off") {
                break;
            }
        }
        // The last writes, which no later batch records as durable, look as if the process had died
        // before them.
        let (after, durable_before) = batches(&copy.machine, extent_bytes, extents);
        if !is_closed && before.difference(&after).any(|(number, _)| *number >= durable_before) {
            EXCUSED.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let what = format!("{what:?}, closed {is_closed}");
        if round >= ROUNDS {
            compare_with_map(&world, &copy, bytes, seed, &what)?;
            continue;
        }
        let salvaged = salvage(&copy.machine, bytes, seed).map_err(|e| world.fail(format!("{what}: {e}")))?;
        let is_wrong = compare(&world, &salvaged, &what)?;
        COMPARED.fetch_add(1, Ordering::Relaxed);
        WRONG.fetch_add(u64::from(is_wrong), Ordering::Relaxed);
        SPARED.fetch_add(u64::from(!salvaged.report.is_lossy()), Ordering::Relaxed);
    }
    Ok(Tally { ops: world.op_number, crashes: 0, fulls: world.fulls, faults: 0 })
}

#[test]
fn no_damage_is_passed_over_and_no_bound_is_exceeded() {
    let campaign_of = Campaign {
        file: "salvage_truth",
        test: "no_damage_is_passed_over_and_no_bound_is_exceeded",
        seeds: 300,
        soaks: true,
    };
    campaign_of.run(campaign);
    let [compared, wrong, spared, excused] = [&COMPARED, &WRONG, &SPARED, &EXCUSED].map(|n| n.load(Ordering::Relaxed));
    println!("{compared} damages compared: {wrong} took something, {spared} nothing; {excused} took the end of a log");
    campaign_of.demand(compared >= 2000 && wrong >= 300 && spared >= 200, "2000 damages, 300 with losses, 200 without");
    let [with_map, wrong, bound, without, named] =
        [&WITH_MAP, &WRONG_WITH_MAP, &BOUND_WITH_MAP, &BOUND_WITHOUT, &NAMED_BY_MAP].map(|n| n.load(Ordering::Relaxed));
    println!(
        "{with_map} with the map: {wrong} took something; bounds of {bound} bytes, without the map {without}; {named} named by the map"
    );
    campaign_of.demand(with_map >= 1000 && wrong >= 200, "1000 damages with the map, 200 with losses");
    campaign_of.demand(named >= 20, "20 catalogues that only the map has");
    campaign_of.demand(bound < without / 2, "bounds half as wide with the map");
}

/// A pool with too many extents for an inventory of how far each is filled: it lists which have
/// content, and so shows when one is gone as a whole.
#[test]
fn an_extent_that_is_gone_is_missed_in_a_pool_of_many_extents() {
    const EXTENT: u64 = 32 << 10;
    const POOL: u64 = 64 << 20;
    let mut machine = Machine::new(POOL, 1);
    let format = FormatOptions { capacity_bytes: POOL, extent_bytes: EXTENT as u32, properties: Properties::new() };
    Pool::format(&env(&machine), &format).unwrap();
    let options = PoolOptions { memory_bytes: 1 << 20, workers: 0, ..PoolOptions::default() };
    let mut rng = Rng::new(3);
    let mut data = vec![0; 4 << 20];
    rng.fill(&mut data);
    let pool = Pool::open(env(&machine), options.clone()).unwrap();
    pool.create_volume("v", data.len() as u64, &Properties::new()).unwrap();
    pool.volume("v").unwrap().write(0, Bytes::from(data.clone()), WriteOptions::default()).unwrap();
    pool.close().unwrap();
    // Another opening has only the first one's inventory.
    machine.restart();
    Pool::open(env(&machine), options).unwrap().close().unwrap();
    machine.restart();
    let whole = salvage(&machine.duplicate(1), POOL, 1).unwrap().report;
    assert!(whole.completeness == Completeness::NotKept && !whole.is_lossy(), "{whole:?}");
    assert!(whole.notes.iter().any(|note| note.contains("too many extents")), "{whole:?}");
    let mut bytes = vec![0; EXTENT as usize];
    let holds_data = |extent: &u64| {
        machine.disk.peek(extent * EXTENT, &mut bytes);
        format::decode_batch(&bytes).is_ok_and(|batch| batch.header.extent.0 as u64 == *extent)
    };
    let used: Vec<u64> = (1..POOL / EXTENT).filter(holds_data).collect();
    assert!(used.len() > 100, "{} extents hold something", used.len());
    for extent in used.iter().step_by(17) {
        let copy = machine.duplicate(*extent);
        copy.disk.poke(extent * EXTENT, &vec![0; EXTENT as usize]);
        let salvaged = salvage(&copy, POOL, *extent).unwrap();
        let report = &salvaged.report;
        let mut back = vec![0; data.len()];
        let read = salvaged.pool.volume("v").and_then(|v| v.read(0, &mut back));
        let wrong = back.chunks(4096).zip(data.chunks(4096)).filter(|(a, b)| a != b).count() as u64 * 4096;
        assert!(
            read.is_err() || wrong == 0 || report.is_lossy(),
            "HARNESS: extent {extent}: {wrong} bytes: {report:?}"
        );
        let told = report.volumes.iter().find(|told| told.name == "v");
        let bound = told.map_or(0, |told| told.missing_bytes_max + told.uncertain_bytes);
        assert!(
            read.is_err() || wrong <= bound,
            "HARNESS: extent {extent}: {wrong} bytes, more than {bound}: {report:?}"
        );
    }
}
