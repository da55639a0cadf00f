//! Salvage of pools with shares. The oracle is the undamaged pool: all blocks of every volume,
//! share and snapshot, tables of files included, and each file through the table of its share.
//! Differences are within the bounds of the report. A file that differs lies in a share that has a
//! bound.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::{Completeness, Files, Pool, Volume};
use sim::Rng;
use surface::{Allocation, BlockDevice, Error, ObjectSpace};

use crate::common::salvage::{Salvaged, salvage, salvage_with_map};
use crate::common::{Campaign, Failure, Shape, Tally, World, lens};
use crate::salvage_truth::{batches, damage, work};

const BLOCK: u64 = 4096;
/// Runs of an allocation at a time.
const RUNS_MAX: usize = 256;
/// Damages of each pool.
const ROUNDS: u64 = 6;

/// Salvages that were compared, snapshots of shares and pieces of files in them, and those of the
/// pieces that differed.
static COMPARED: AtomicU64 = AtomicU64::new(0);
static SNAPSHOTS: AtomicU64 = AtomicU64::new(0);
static PIECES: AtomicU64 = AtomicU64::new(0);
static DIFFERENT: AtomicU64 = AtomicU64::new(0);

/// The blocks of a device that hold data.
fn blocks(device: &Volume) -> Result<BTreeSet<u64>, Error> {
    let (mut found, mut at) = (BTreeSet::new(), 0);
    while at < device.size_bytes() {
        for run in device.allocation(at, device.size_bytes() - at, RUNS_MAX)? {
            if run.allocation == Allocation::Data {
                found.extend(at / BLOCK..(at + run.length).div_ceil(BLOCK));
            }
            at += run.length;
        }
    }
    Ok(found)
}

/// A block of a device, which may end in it.
fn block(device: &Volume, number: u64) -> Result<Vec<u8>, Error> {
    let at = number * BLOCK;
    let mut bytes = vec![0; (device.size_bytes() - at).min(BLOCK) as usize];
    device.read(at, &mut bytes).map(|()| bytes)
}

/// The content of each piece of the files of a share; `None` if it cannot be read.
fn pieces(pool: &Pool, name: &str) -> Result<Vec<Option<Vec<u8>>>, Error> {
    let volume = pool.volume(name)?;
    let files = Files::new(volume.clone(), volume)?;
    let piece = |(file, from, length)| {
        let mut bytes = vec![0; length as usize];
        files.read(file, from, &mut bytes).is_ok().then_some(bytes)
    };
    Ok(lens::pieces().map(piece).collect())
}

/// Compares one volume, share or snapshot with the undamaged one. Returns a difference that the
/// report does not cover.
fn differs(whole: &Pool, salvaged: &Salvaged, name: &str) -> Result<Option<String>, Error> {
    let report = &salvaged.report;
    let was = whole.volume(name)?;
    let told = report.volumes.iter().find(|told| told.name == name);
    let Some(told) = told.filter(|told| !told.is_lost && told.size_bytes == was.size_bytes()) else {
        return Ok((!report.is_lossy()).then(|| "it is not there, or has another size".to_owned()));
    };
    let is = salvaged.pool.volume(name)?;
    let (mut wrong, mut reappeared) = (0, 0);
    for number in blocks(&was)?.union(&blocks(&is)?) {
        let at = number * BLOCK;
        if told.damaged.iter().any(|range| (range.offset..range.offset + range.length).contains(&at)) {
            continue;
        }
        let expected = block(&was, *number)?;
        if block(&is, *number)? != expected {
            wrong += 1;
            reappeared += u64::from(expected.iter().all(|byte| *byte == 0));
        }
    }
    let bound = told.uncertain_bytes + told.missing_bytes_max;
    if !report.is_lossy() && wrong > reappeared && report.completeness != Completeness::UpTo {
        return Ok(Some(format!("{} blocks are wrong", wrong - reappeared)));
    }
    if report.has_catalogue && (report.is_lossy() || wrong == reappeared) && wrong * BLOCK > bound {
        return Ok(Some(format!("{wrong} blocks are wrong, and the report allows {bound} bytes")));
    }
    if !was.is_share() {
        return Ok(None);
    }
    SNAPSHOTS.fetch_add(u64::from(name.contains('@')), Ordering::Relaxed);
    let (before, after) = (pieces(whole, name)?, pieces(&salvaged.pool, name)?);
    let different = before.iter().zip(&after).filter(|(before, after)| before != after).count() as u64;
    PIECES.fetch_add(before.len() as u64, Ordering::Relaxed);
    DIFFERENT.fetch_add(different, Ordering::Relaxed);
    let is_told = wrong > 0 || told.damaged_bytes > 0;
    Ok((different > 0 && !is_told).then(|| format!("{different} pieces of files differ, and no block does")))
}

fn compare(world: &World, whole: &Pool, salvaged: &Salvaged, what: &str) -> Result<(), Failure> {
    for name in world.model.all_names() {
        let found = differs(whole, salvaged, &name).map_err(|e| world.fail(format!("{what}: '{name}': {e}")))?;
        if let Some(wrong) = found {
            return Err(world.fail(format!("{what}: '{name}': {wrong}: {:?}", salvaged.report)));
        }
    }
    COMPARED.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

fn campaign(seed: u64) -> Result<Tally, Failure> {
    let mut world = World::new(seed, Shape::with_shares)?;
    work(&mut world, 20 + seed % 60)?;
    let older = world.machine.duplicate(seed);
    work(&mut world, 20 + seed % 40)?;
    if world.pool().flush().is_err() {
        return Ok(world.tally());
    }
    let is_closed = world.rng.coin();
    if let Some(pool) = world.pool.take().filter(|_| is_closed)
        && pool.close().is_err()
    {
        return Ok(world.tally());
    }
    world.abandon();
    world.machine.restart();
    if world.model.is_in_doubt() {
        return Ok(world.tally());
    }
    let mut whole = world.fork(seed);
    whole.open()?;
    let other = World::new(seed ^ (1 << 40), |_| world.shape.clone())?;
    let bytes = world.shape.capacity_bytes.next_multiple_of(BLOCK);
    let extent_bytes = u64::from(world.shape.extent_bytes);
    let extents = world.shape.capacity_bytes / extent_bytes;
    let (before, _) = batches(&world.machine, extent_bytes, extents);
    for round in 0..ROUNDS {
        let copy = world.fork(seed ^ round);
        let mut rng = Rng::new(seed * 31 + round);
        // The first two are of the unchanged pool.
        let what = match round {
            0 | 1 => "undamaged".to_owned(),
            _ => damage(&copy.machine, &older, &other.machine, &world.shape, &mut rng),
        };
        // As in `salvage_truth`: only the newest batches themselves show the end of a log that was
        // not closed.
        let (after, durable_before) = batches(&copy.machine, extent_bytes, extents);
        if !is_closed && before.difference(&after).any(|(number, _)| *number >= durable_before) {
            continue;
        }
        let has_map = round % 2 == 1;
        let salvage = if has_map { salvage_with_map } else { salvage };
        let what = format!("{what}, closed {is_closed}, with the map {has_map}");
        let salvaged = salvage(&copy.machine, bytes, seed).map_err(|e| world.fail(format!("{what}: {e}")))?;
        compare(&world, whole.pool(), &salvaged, &what)?;
    }
    Ok(Tally { ops: world.op_number, crashes: 0, fulls: world.fulls, faults: 0 })
}

#[test]
fn files_and_snapshots_of_shares_are_within_the_bounds() {
    let test = "files_and_snapshots_of_shares_are_within_the_bounds";
    let campaign_of = Campaign { file: "salvage_files", test, seeds: 60, soaks: true };
    campaign_of.run(campaign);
    let [compared, snapshots, pieces, different] =
        [&COMPARED, &SNAPSHOTS, &PIECES, &DIFFERENT].map(|n| n.load(Ordering::Relaxed));
    println!("{compared} salvages, {snapshots} snapshots of shares, {different} of {pieces} pieces of files differ");
    campaign_of.demand(compared >= 200 && snapshots >= 200, "200 salvages, 200 snapshots of shares");
    campaign_of.demand(pieces >= 2000 && different >= 20, "2000 pieces of files, 20 that differ");
}
