//! Shares under everything that volumes go through: random operations with snapshots, clones,
//! cleaning, sorting, scrubbing, recompression, checking, losses of power and salvage, on files in
//! all places of a share's address space.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use crate::common::machine_env::{env, features};
use crate::common::{Campaign, Failure, Shape, Tally, World};
use bytes::Bytes;
use engine::{Files, FormatOptions, Pool, PoolOptions, Properties};
use sim::{Fault, Machine, Rng};
use surface::{DeviceSet, ErrorKind, ObjectSpace, SEAL};

const BLOCK: usize = 4096;

fn model_run(seed: u64) -> Result<Tally, Failure> {
    let mut world = World::new(seed, Shape::with_shares)?;
    world.run_without_faults(300)?;
    world.verify()?;
    world.verify_check()?;
    world.reopen()?;
    world.verify_no_leak()?;
    Ok(world.tally())
}

fn crash_run(seed: u64) -> Result<Tally, Failure> {
    let mut world = World::new(seed, Shape::with_shares)?;
    for _ in 0..10 {
        let within = *world.rng.pick(&[3, 10, 30, 100]);
        world.plan_crash(within);
        world.run_until_dark(60, World::step)?;
        world.crash()?;
    }
    world.verify_check()?;
    // At last the map is lost: the log alone yields the same.
    if seed.is_multiple_of(4) {
        world.verify_flushed_log()?;
    }
    Ok(world.tally())
}

/// The program dies and is restarted: acknowledged writes are in standby memory.
fn death_run(seed: u64) -> Result<Tally, Failure> {
    let mut world = World::new(seed, |rng| Shape { standby: true, ..Shape::with_shares(rng) })?;
    for _ in 0..6 {
        let within = *world.rng.pick(&[3, 10, 30, 100]);
        world.plan_crash(within);
        world.run_until_dark(60, World::step)?;
        world.die()?;
    }
    world.verify_check()?;
    Ok(world.tally())
}

#[test]
fn random_operations() {
    Campaign { file: "shares", test: "random_operations", seeds: 40, soaks: true }.run(model_run);
}

#[test]
fn random_crashes() {
    let campaign = Campaign { file: "shares", test: "random_crashes", seeds: 250, soaks: true };
    let total = campaign.run(crash_run);
    campaign.demand(total.crashes >= 2500, "at least 2500 crash points");
}

#[test]
fn random_deaths() {
    Campaign { file: "shares", test: "random_deaths", seeds: 40, soaks: true }.run(death_run);
}

fn new_pool(machine: &Machine) -> Pool {
    let format = FormatOptions { capacity_bytes: 64 << 20, extent_bytes: 256 << 10, properties: Properties::new() };
    Pool::format(&env(machine), &format).unwrap();
    open(machine)
}

fn open(machine: &Machine) -> Pool {
    let options = PoolOptions { workers: 0, memory_bytes: 4 << 20, ..PoolOptions::default() };
    Pool::open(env(machine), options).unwrap()
}

fn files(pool: &Pool, name: &str) -> Files {
    let volume = pool.volume(name).unwrap();
    Files::new(volume.clone(), volume).unwrap()
}

fn block(fill: u8) -> Bytes {
    Bytes::from(vec![fill; BLOCK])
}

#[test]
fn what_is_discarded_leaves_nothing_but_a_block() {
    let machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    pool.create_share("s", &Properties::new()).unwrap();
    let share = files(&pool, "s");
    for file in 16..400 {
        share.write(file, (file % 7) << (2 * (file % 20)), block(7)).unwrap();
    }
    share.discard_files(16..200).unwrap();
    (200..400).for_each(|file| share.discard(file, 0..u64::MAX).unwrap());
    // The first makes the discards durable, and then the tables go.
    share.flush().unwrap();
    pool.checkpoint().unwrap();
    assert_eq!(pool.volumes()[0].allocated_bytes, BLOCK as u64, "what has been given out is known for ever");
    assert!(pool.check(false, &mut |_, _| ()).unwrap().problems.is_empty());
    pool.close().unwrap();
}

/// Only memory knows which tables are to go, until that is finished.
#[test]
fn nothing_is_known_of_a_file_whose_discard_was_finished() {
    for power_goes in [false, true] {
        let mut machine = Machine::new(64 << 20, 1);
        let pool = new_pool(&machine);
        pool.create_share("s", &Properties::new()).unwrap();
        pool.close().unwrap();
        let open = |machine: &Machine| {
            let standby_bytes_max = usize::MAX;
            let options =
                PoolOptions { workers: 0, memory_bytes: 4 << 20, standby_bytes_max, ..PoolOptions::default() };
            Pool::open(env(machine), options).unwrap()
        };
        let pool = open(&machine);
        let share = files(&pool, "s");
        for file in [17, 18] {
            [0, 3 << 20, 20 << 20].iter().for_each(|offset| share.write(file, *offset, block(1)).unwrap());
        }
        share.flush().unwrap();
        share.discard(17, 0..u64::MAX).unwrap();
        share.finish_discards().unwrap();
        if power_goes {
            share.flush().unwrap();
        }
        machine.power.cut();
        drop((share, pool));
        if power_goes {
            machine.power_cycle()
        } else {
            machine.restart()
        }
        let pool = open(&machine);
        let mut found = Vec::new();
        let all = files(&pool, "s").each_file(|file| {
            found.push(file);
            Ok(true)
        });
        all.unwrap();
        assert_eq!(found, [18, 18], "power goes: {power_goes}");
        pool.close().unwrap();
    }
}

#[test]
fn discards_of_what_is_empty_cost_nothing() {
    let machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    pool.create_share("s", &Properties::new()).unwrap();
    let share = files(&pool, "s");
    share.write(30, 5 << 40, block(1)).unwrap();
    pool.checkpoint().unwrap();
    let before = pool.status().log_bytes;
    share.discard_files(31..1 << 41).unwrap();
    share.discard(30, 6 << 40..u64::MAX).unwrap();
    share.discard(29, 0..u64::MAX).unwrap();
    pool.flush().unwrap();
    assert_eq!(pool.status().log_bytes, before);
    let mut found = [0; BLOCK];
    share.read(30, 5 << 40, &mut found).unwrap();
    assert_eq!(found, block(1)[..]);
    pool.close().unwrap();
}

/// A block of noise that begins with the number of its round.
fn noise(rng: &mut Rng, round: u8) -> Bytes {
    let mut bytes = vec![0; BLOCK];
    rng.fill(&mut bytes);
    bytes[0] = round;
    Bytes::from(bytes)
}

/// Rounds of writes, each followed by a mark that is ordered behind them, with power lost at any
/// access to the disk.
fn ordered_run(seed: u64) -> surface::Result<()> {
    const MARKS: u64 = 2;
    let (mut machine, mut rng) = (Machine::new(64 << 20, seed), Rng::new(seed));
    let pool = new_pool(&machine);
    pool.create_share("s", &Properties::new())?;
    let share = files(&pool, "s");
    machine.power.plan(machine.power.next_point() + rng.below(80), Fault::Crash);
    // Rounds in which a block was written, in order; and the last one that was flushed.
    let mut written: BTreeMap<(u64, u64), Vec<u8>> = BTreeMap::new();
    let mut flushed = 0;
    let mut run = |round: u8| -> surface::Result<()> {
        // Now and then more than a batch.
        let blocks = if rng.below(8) == 0 { 400 } else { rng.below(20) };
        for _ in 0..blocks {
            let (file, offset) = (16 + rng.below(3), rng.below(400) * BLOCK as u64);
            written.entry((file, offset)).or_default().push(round);
            share.write(file, offset, noise(&mut rng, round))?;
        }
        share.order_writes()?;
        share.write(MARKS, 0, noise(&mut rng, round))?;
        if rng.percent(30) {
            share.flush()?;
            flushed = round;
        }
        Ok(())
    };
    let _until_dark = (1..=30).try_for_each(&mut run);
    machine.power.cut();
    drop((share, pool));
    machine.power.clear_plan();
    machine.power_cycle();
    let pool = open(&machine);
    let share = files(&pool, "s");
    let round_of = |file, offset| {
        let mut first = [0; 1];
        share.read(file, offset, &mut first).map(|()| first[0])
    };
    let mark = round_of(MARKS, 0)?;
    assert!(mark >= flushed, "seed {seed}: round {flushed} was flushed, and only {mark} is left");
    for ((file, offset), rounds) in &written {
        let least = rounds.iter().copied().filter(|round| *round <= mark).max().unwrap_or(0);
        let is = round_of(*file, *offset)?;
        assert!(is >= least, "seed {seed}: the mark of round {mark} is left, of round {least} only {is}");
    }
    Ok(())
}

#[test]
fn ordered_writes_survive_in_their_order() {
    (0..300).for_each(|seed| ordered_run(seed).unwrap());
}

#[test]
fn files_are_found_by_their_data_and_by_addresses() {
    let machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    pool.create_share("s", &Properties::new()).unwrap();
    let share = files(&pool, "s");
    let last = (1 << 42) - (1 << 32) - 1;
    for (file, offset) in [(1, 0), (16, 8192), (16, 900 << 10), (17, 3 << 20), (18, 5 << 40), (last, 4096), (19, 0)] {
        share.write(file, offset, block(1)).unwrap();
    }
    share.discard(19, 0..u64::MAX).unwrap();
    share.flush().unwrap();
    let mut found = Vec::new();
    share
        .each_file(|file| {
            found.push(file);
            Ok(true)
        })
        .unwrap();
    found.sort_unstable();
    assert_eq!(found, [16, 17, 18, last], "without the tree's own");
    // Every address that holds data is some file's, or a table's.
    let volume = pool.volume("s").unwrap();
    let (mut at, mut places) = (1 << 52, Vec::new());
    while at < units::SHARE_BYTES {
        for run in surface::BlockDevice::allocation(&*volume, at, units::SHARE_BYTES - at, 64).unwrap() {
            if run.allocation == surface::Allocation::Data {
                places.extend(share.locate(at).unwrap());
            }
            at += run.length;
        }
    }
    places.sort_unstable();
    // Its own ones are found by their addresses.
    assert_eq!(places, [(1, 0), (16, 8192), (16, 900 << 10), (17, 3 << 20), (18, 5 << 40), (last, 4096)]);
    pool.close().unwrap();
}

/// A place assigned by one session is not assigned again by the next, also after a power failure.
#[test]
fn no_place_is_given_out_twice() {
    let mut machine = Machine::new(64 << 20, 1);
    let mut pool = new_pool(&machine);
    pool.create_share("s", &Properties::new()).unwrap();
    for round in 0..20u64 {
        let share = files(&pool, "s");
        // Not flushed: the tables may be lost, and the bytes stay, or the other way round.
        share.write(100 + round, 2 << 20, block(round as u8 + 1)).unwrap();
        if round % 3 == 0 {
            pool.flush().unwrap();
        }
        drop((share, pool));
        machine.power_cycle();
        pool = open(&machine);
        let share = files(&pool, "s");
        for earlier in 0..=round {
            let mut found = [0; BLOCK];
            share.read(100 + earlier, 2 << 20, &mut found).unwrap();
            let is_lost = earlier % 3 != 0 && found == [0; BLOCK];
            assert!(is_lost || found == block(earlier as u8 + 1)[..], "file {} in round {round}", 100 + earlier);
        }
    }
    pool.close().unwrap();
}

#[test]
fn a_cached_read_returns_the_newest_bytes_or_nothing() {
    const PLACES: [(u64, u64); 4] = [(16, 0), (16, 900 << 10), (17, 3 << 20), (18, 20 << 20)];
    let machine = Machine::new(64 << 20, 1);
    let mut pool = new_pool(&machine);
    pool.create_share("s", &Properties::new()).unwrap();
    let mut share = files(&pool, "s");
    let (mut rng, mut expected, mut found) = (Rng::new(1), [0; PLACES.len()], [[0; 2]; PLACES.len()]);
    for step in 0..400_u64 {
        let index = rng.index(PLACES.len());
        let (file, offset) = PLACES[index];
        match rng.below(8) {
            0..3 => {
                expected[index] = step as u8;
                share.write(file, offset, block(step as u8)).unwrap();
            }
            3 => {
                expected[index] = 0;
                share.discard(file, offset..offset + BLOCK as u64).unwrap();
            }
            4 => share.flush().unwrap(),
            5 => pool.checkpoint().unwrap(),
            6 => share.read(file, offset, &mut [0; BLOCK]).unwrap(),
            _ => {
                drop(share);
                pool.close().unwrap();
                pool = open(&machine);
                share = files(&pool, "s");
            }
        }
        for (index, (file, offset)) in PLACES.into_iter().enumerate() {
            let mut buf = [0xee; BLOCK];
            let is_found = share.read_cached(file, offset, &mut buf).unwrap();
            assert!(!is_found || buf == block(expected[index])[..], "file {file} in step {step}");
            found[index][usize::from(is_found)] += 1;
        }
    }
    assert!(found.as_flattened().iter().all(|count| *count > 10), "not cached and cached: {found:?}");
    pool.close().unwrap();
}

#[test]
fn a_share_is_no_device_and_has_no_size() {
    let machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    pool.create_volume("v", 1 << 20, &Properties::new()).unwrap();
    pool.create_share("s", &Properties::new()).unwrap();
    pool.snapshot("s", "now").unwrap();
    assert_eq!(pool.list().unwrap().len(), 1);
    for name in ["s", "s@now"] {
        assert_eq!(pool.find(name).unwrap_err().kind(), ErrorKind::Unsupported);
        let id = pool.volume(name).unwrap().id();
        assert_eq!(pool.look(id).unwrap_err().kind(), ErrorKind::Unsupported);
    }
    assert_eq!(pool.resize_volume("s", 1 << 20).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(Files::new(pool.volume("v").unwrap(), pool.volume("v").unwrap()).is_err());
    let share = files(&pool, "s");
    for (file, offset) in [(16, 1 << 52), (16, (1 << 52) - 1), (1 << 42, 0), (u64::MAX, 0), (1, u64::MAX)] {
        assert_eq!(share.write(file, offset, block(1)).unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(pool.status().logical_bytes, 1 << 20);
    pool.close().unwrap();
}

/// A program that does not know shares can open a pool without them, and no other.
#[test]
fn the_first_share_sets_a_feature() {
    let machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    let features = || features(&machine)[0];
    pool.create_volume("v", 1 << 20, &Properties::new()).unwrap();
    pool.checkpoint().unwrap();
    assert_eq!(features() & format::INCOMPAT_SHARES, 0);
    pool.create_share("s", &Properties::new()).unwrap();
    assert_ne!(features() & format::INCOMPAT_SHARES, 0);
    pool.destroy("s", false).unwrap();
    pool.close().unwrap();
    let pool = open(&machine);
    assert_ne!(features() & format::INCOMPAT_SHARES, 0);
    assert!(pool.check(false, &mut |_, _| ()).unwrap().problems.is_empty());
    pool.close().unwrap();
}

/// Sends a snapshot of a share, or its changes since another one, and receives it.
fn carry(from: &Pool, snapshot: &str, parent: Option<&str>, to: &Pool, share: &str) {
    let mut sender = from.send(snapshot, parent).unwrap();
    let mut receiver = to.receive(share, &Properties::new());
    while let Some(chunk) = sender.next_chunk().unwrap() {
        let (head, body) = chunk.split_at(format::STREAM_HEAD_BYTES);
        receiver.take(head.try_into().unwrap(), body).unwrap();
    }
}

/// The seal of a share is not sent, and is removed when a difference is received.
#[test]
fn a_seal_is_not_received_and_does_not_outlast_a_difference() {
    let (here, there) = (Machine::new(64 << 20, 1), Machine::new(64 << 20, 2));
    let (from, to) = (new_pool(&here), new_pool(&there));
    let begin = |files: &Files, file| {
        let mut found = [0; BLOCK];
        files.read(file, 0, &mut found).unwrap();
        (found[0], found[BLOCK - 1])
    };
    from.create_share("s", &Properties::new()).unwrap();
    let share = files(&from, "s");
    [1, SEAL, 16].iter().for_each(|file| share.write(*file, 0, block(1)).unwrap());
    from.snapshot("s", "a").unwrap();
    carry(&from, "s@a", None, &to, "copy");
    let copy = files(&to, "copy");
    assert_eq!([1, SEAL, 16].map(|file| begin(&copy, file)), [(1, 1), (0, 0), (1, 1)]);
    // Back again, over one that is sealed: with a seal of its own, without one, with nothing new.
    for (snapshot, sealed) in [("b", Some(2)), ("c", None), ("d", None)] {
        match sealed {
            Some(sealed) => copy.write(SEAL, 0, block(sealed)).unwrap(),
            None => copy.discard(SEAL, 0..u64::MAX).unwrap(),
        }
        copy.write(16, 0, block(snapshot.as_bytes()[0])).unwrap();
        to.snapshot("copy", snapshot).unwrap();
    }
    carry(&to, "copy@b", Some("copy@a"), &from, "s");
    assert_eq!((begin(&share, SEAL), begin(&share, 16)), ((0, 0), (b'b', b'b')));
    assert_eq!(begin(&files(&from, "s@a"), SEAL), (1, 1));
    from.clone_snapshot("s@a", "clone", &Properties::new()).unwrap();
    carry(&to, "copy@d", Some("copy@a"), &from, "clone");
    assert_eq!(begin(&files(&from, "clone"), SEAL), (0, 0));
    carry(&to, "copy@d", Some("copy@b"), &from, "s");
    assert_eq!((begin(&share, SEAL), begin(&share, 16)), ((0, 0), (b'd', b'd')));
    for pool in [from, to] {
        assert!(pool.check(false, &mut |_, _| ()).unwrap().problems.is_empty());
        pool.close().unwrap();
    }
}

/// A share is sent to another pool whole, and then its changes; snapshots have their content.
#[test]
fn a_share_goes_to_another_pool() {
    let (here, there) = (Machine::new(64 << 20, 1), Machine::new(64 << 20, 2));
    let (from, to) = (new_pool(&here), new_pool(&there));
    from.create_share("s", &Properties::new()).unwrap();
    let share = files(&from, "s");
    let places = [(1, 0), (17, 3 << 20), (18, 5 << 40), ((1 << 42) - (1 << 32) - 1, 4096)];
    places.iter().for_each(|(file, offset)| share.write(*file, *offset, block(1)).unwrap());
    from.snapshot("s", "a").unwrap();
    share.write(17, 3 << 20, block(2)).unwrap();
    share.discard(18, 0..u64::MAX).unwrap();
    share.write(19, 9 << 20, block(3)).unwrap();
    from.snapshot("s", "b").unwrap();
    for (snapshot, parent) in [("s@a", None), ("s@b", Some("s@a"))] {
        let mut sender = from.send(snapshot, parent).unwrap();
        let mut receiver = to.receive("copy", &Properties::new());
        while let Some(chunk) = sender.next_chunk().unwrap() {
            let (head, body) = chunk.split_at(format::STREAM_HEAD_BYTES);
            receiver.take(head.try_into().unwrap(), body).unwrap();
        }
    }
    let show = |files: &Files, file, offset| {
        let mut found = [0; BLOCK];
        files.read(file, offset, &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == found[0]));
        found[0]
    };
    let (old, new) = (files(&to, "copy@a"), files(&to, "copy"));
    assert!(places.iter().all(|(file, offset)| show(&old, *file, *offset) == 1));
    let now = places.map(|(file, offset)| show(&new, file, offset));
    assert_eq!((now, show(&new, 19, 9 << 20)), ([1, 2, 0, 1], 3));
    assert!(to.volume("copy").unwrap().is_share());
    assert!(to.check(false, &mut |_, _| ()).unwrap().problems.is_empty());
    // Places assigned by the copy differ from those in the stream.
    new.write(20, 2 << 20, block(9)).unwrap();
    assert_eq!((show(&new, 19, 9 << 20), show(&new, 20, 2 << 20)), (3, 9));
    from.close().unwrap();
    to.close().unwrap();
}
