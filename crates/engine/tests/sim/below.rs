//! A file system with less room than the pool: acknowledged data can be flushed, space can be
//! freed, and freed space can be written again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::machine_env::env;
use bytes::Bytes;
use engine::{Files, FormatOptions, Pool, PoolOptions, Properties};
use sim::{ContentKind, Machine, Rng, fill_content};
use surface::{BlockDevice, ErrorKind, ObjectSpace, WriteOptions};

const EXTENT: u64 = 128 << 10;
const CAPACITY: u64 = 512 * EXTENT;
/// Room in the file system.
const ROOM: u64 = 100 * EXTENT;
const REQUEST: u64 = 32 << 10;

fn open(machine: &Machine) -> Pool {
    let options =
        PoolOptions { memory_bytes: 8 << 20, workers: 0, checkpoint_log_bytes: 64 << 20, ..PoolOptions::default() };
    Pool::open(env(machine), options).unwrap()
}

fn pool(machine: &Machine) -> Pool {
    let format = FormatOptions { capacity_bytes: CAPACITY, extent_bytes: EXTENT as u32, properties: Properties::new() };
    Pool::format(&env(machine), &format).unwrap();
    machine.disk.limit_space(Some(ROOM));
    open(machine)
}

/// Writes until it is refused, and flushes; bytes taken.
fn fill(pool: &Pool, name: &str, seed: u64) -> u64 {
    let volume = pool.volume(name).unwrap();
    let mut data = vec![0; REQUEST as usize];
    for offset in (0..CAPACITY).step_by(REQUEST as usize) {
        fill_content(&mut Rng::new(seed + offset), ContentKind::Random, &mut data);
        if let Err(error) = volume.write(offset, Bytes::from(data.clone()), WriteOptions::default()) {
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            volume.flush().expect("what was acknowledged finds its place");
            return offset;
        }
    }
    panic!("more was taken than there is room for");
}

fn assert_content(pool: &Pool, name: &str, seed: u64, from: u64, to: u64) {
    let volume = pool.volume(name).unwrap();
    let (mut data, mut read) = (vec![0; REQUEST as usize], vec![0; REQUEST as usize]);
    for offset in (from..to).step_by(REQUEST as usize) {
        fill_content(&mut Rng::new(seed + offset), ContentKind::Random, &mut data);
        volume.read(offset, &mut read).unwrap();
        assert!(read == data, "byte {offset} of {name}");
    }
}

/// Nothing could be discarded, and destroyed space was not freed, not even after a restart: the
/// log's list was as long as the pool, and began with extents without space.
#[test]
fn a_full_file_system_below_is_no_dead_end() {
    for restart in [false, true] {
        let machine = Machine::new(CAPACITY, 1);
        let mut pool = pool(&machine);
        for round in 0..12 {
            let seed = round << 32;
            pool.create_volume("v", CAPACITY, &Properties::new()).unwrap();
            let taken = fill(&pool, "v", seed);
            assert!(taken > ROOM / 2, "round {round}: {taken} of {ROOM}");
            assert!(pool.status().free_bytes < ROOM / 4, "{:?}", pool.status());
            assert_content(&pool, "v", seed, 0, taken);
            let volume = pool.volume("v").unwrap();
            // A small discard, a large one, and writes to the freed space.
            volume.discard(0, 1 << 20).unwrap();
            volume.discard(1 << 20, taken / 2 - (1 << 20)).unwrap();
            volume.flush().unwrap();
            pool.checkpoint().unwrap();
            drop(volume);
            if restart {
                pool.close().unwrap();
                pool = open(&machine);
            }
            pool.create_volume("w", CAPACITY, &Properties::new()).unwrap();
            let more = fill(&pool, "w", seed + 7);
            assert!(more > taken / 4, "round {round}: {more} after {taken}");
            assert_content(&pool, "v", seed, taken / 2 / REQUEST * REQUEST + REQUEST, taken);
            assert_content(&pool, "w", seed + 7, 0, more);
            pool.destroy("v", true).unwrap();
            pool.destroy("w", true).unwrap();
            pool.checkpoint().unwrap();
            pool.checkpoint().unwrap();
            let occupied = ::env::Disk::occupied_bytes(&*machine.disk.handle()).unwrap();
            assert!(occupied < ROOM / 2, "round {round}: {occupied} bytes are occupied by an empty pool");
        }
        assert_eq!(pool.check(false, &mut |_, _| ()).unwrap().problems, []);
        pool.close().unwrap();
    }
}

/// The space of destroyed data was counted neither as free nor given back, if an earlier opening
/// had written it: the pool stayed full until it was opened again.
#[test]
fn what_an_earlier_opening_has_written_is_room_once_it_is_destroyed() {
    // More than the last room of the pool, and so much that it is not tight when it is full.
    let (large, room) = (8 * CAPACITY, 340 * EXTENT);
    let machine = Machine::new(large, 1);
    let format = FormatOptions { capacity_bytes: large, extent_bytes: EXTENT as u32, properties: Properties::new() };
    Pool::format(&env(&machine), &format).unwrap();
    machine.disk.limit_space(Some(room));
    let mut pool = open(&machine);
    pool.create_volume("v", CAPACITY, &Properties::new()).unwrap();
    let taken = fill(&pool, "v", 0);
    for round in 1..4 {
        pool.close().unwrap();
        pool = open(&machine);
        pool.destroy("v", true).unwrap();
        pool.checkpoint().unwrap();
        pool.checkpoint().unwrap();
        pool.create_volume("v", CAPACITY, &Properties::new()).unwrap();
        let again = fill(&pool, "v", round << 32);
        assert!(again > taken / 4 * 3, "round {round}: {again} of {taken}");
        assert_content(&pool, "v", round << 32, 0, again);
    }
    assert_eq!(pool.check(false, &mut |_, _| ()).unwrap().problems, []);
    pool.close().unwrap();
}

/// With a gibibyte of room and more, `free` was as if the file system below had no end.
#[test]
fn what_is_free_is_no_more_than_there_is_below() {
    const LARGE: u64 = 4 << 30;
    let machine = Machine::new(LARGE, 1);
    let format = FormatOptions { capacity_bytes: LARGE, extent_bytes: 1 << 20, properties: Properties::new() };
    Pool::format(&env(&machine), &format).unwrap();
    machine.disk.limit_space(Some(LARGE / 2));
    let pool = open(&machine);
    let free = pool.status().free_bytes;
    assert!(free <= LARGE / 2 && free > LARGE / 2 - (64 << 20), "{free}");
    // Space already allocated to a free extent is free as well.
    pool.create_volume("v", 64 << 20, &Properties::new()).unwrap();
    write_noise(&pool, 64 << 20);
    pool.checkpoint().unwrap();
    let less = pool.status().free_bytes;
    assert!(less <= free - (60 << 20) && less > free - (80 << 20), "{less} of {free}");
    pool.close().unwrap();
}

/// Writes so much to `v`, and flushes.
fn write_noise(pool: &Pool, bytes: u64) {
    let volume = pool.volume("v").unwrap();
    let mut data = vec![0; REQUEST as usize];
    for offset in (0..bytes).step_by(REQUEST as usize) {
        fill_content(&mut Rng::new(offset), ContentKind::Random, &mut data);
        volume.write(offset, Bytes::from(data.clone()), WriteOptions::default()).unwrap();
    }
    volume.flush().unwrap();
}

fn occupied(machine: &Machine) -> u64 {
    ::env::Disk::occupied_bytes(&*machine.disk.handle()).unwrap()
}

/// Extents that became free while the pool was short of space, and extents in a list as long as the
/// pool, stayed occupied.
#[test]
fn a_closed_pool_occupies_no_more_than_it_holds() {
    for crash in [false, true] {
        let mut machine = Machine::new(CAPACITY, 1);
        let mut pool = pool(&machine);
        machine.disk.limit_space(Some(4 * CAPACITY));
        pool.create_volume("v", CAPACITY, &Properties::new()).unwrap();
        fill(&pool, "v", 1);
        let full = occupied(&machine);
        assert!(full > CAPACITY / 4 * 3, "{full}");
        pool.destroy("v", true).unwrap();
        if crash {
            pool.checkpoint().unwrap();
            drop(pool);
            machine.restart();
        } else {
            pool.close().unwrap();
        }
        // Destroyed data is freed over several checkpoints.
        pool = open(&machine);
        for _ in 0..4 {
            pool.checkpoint().unwrap();
        }
        pool.close().unwrap();
        let left = occupied(&machine);
        assert!(left < CAPACITY / 8, "{left} of {full} bytes are occupied by an empty pool");
        let pool = open(&machine);
        assert_eq!(pool.check(false, &mut |_, _| ()).unwrap().problems, []);
        pool.create_volume("v", CAPACITY, &Properties::new()).unwrap();
        fill(&pool, "v", 2);
        pool.close().unwrap();
    }
}

/// Data that repair has accepted as lost may still be in free extents: a repair gives nothing back,
/// and the next opening does.
#[test]
fn repair_leaves_what_is_free() {
    let mut machine = Machine::new(CAPACITY, 1);
    let pool = pool(&machine);
    machine.disk.limit_space(Some(4 * CAPACITY));
    pool.create_volume("v", CAPACITY, &Properties::new()).unwrap();
    fill(&pool, "v", 1);
    pool.destroy("v", true).unwrap();
    drop(pool);
    machine.restart();
    let full = occupied(&machine);
    assert!(full > CAPACITY / 4 * 3, "{full}");
    let options = PoolOptions { repair: true, workers: 0, ..PoolOptions::default() };
    let pool = Pool::open(env(&machine), options).unwrap();
    for _ in 0..4 {
        pool.checkpoint().unwrap();
        pool.tick().unwrap();
    }
    let status = pool.status();
    assert_eq!((status.live_bytes, status.reaping), (0, 0), "it is free");
    pool.close().unwrap();
    assert!(occupied(&machine) >= full, "{} of {full} bytes are occupied", occupied(&machine));
    open(&machine).close().unwrap();
    assert!(occupied(&machine) < CAPACITY / 8, "{} of {full} bytes are occupied", occupied(&machine));
}

/// Extents owed since space was short are punched while the pool is open.
#[test]
fn what_is_owed_is_paid_when_the_pool_rests() {
    let machine = Machine::new(CAPACITY, 1);
    Pool::format(
        &env(&machine),
        &FormatOptions { capacity_bytes: CAPACITY, extent_bytes: EXTENT as u32, properties: Properties::new() },
    )
    .unwrap();
    // The log lists few extents.
    let options =
        PoolOptions { memory_bytes: 8 << 20, workers: 0, checkpoint_log_bytes: 1 << 20, ..PoolOptions::default() };
    let pool = Pool::open(env(&machine), options).unwrap();
    pool.create_volume("v", CAPACITY, &Properties::new()).unwrap();
    let taken = fill(&pool, "v", 1);
    pool.tick().unwrap();
    let full = occupied(&machine);
    pool.volume("v").unwrap().discard(taken / 8, taken / 8 * 7 / 4096 * 4096).unwrap();
    pool.flush().unwrap();
    for _ in 0..50 {
        machine.clock.advance_ms(1000);
        pool.tick().unwrap();
    }
    let left = occupied(&machine);
    assert!(left < full / 2, "{left} of {full} bytes are occupied by an eighth of it");
    pool.close().unwrap();
}

/// Data took the room that is reserved for metadata of shares: what cleaning could gain was computed
/// for the whole pool, and files that were removed could not be committed.
#[test]
fn metadata_of_shares_finds_room_where_data_finds_none() {
    let machine = Machine::new(CAPACITY, 1);
    let pool = pool(&machine);
    pool.create_share("s", &Properties::from([("compression".to_owned(), "off".to_owned())])).unwrap();
    let volume = pool.volume("s").unwrap();
    let share = Files::new(volume.clone(), volume).unwrap();
    for round in 0..6u64 {
        let mut data = vec![0; REQUEST as usize];
        let mut taken = 0;
        loop {
            fill_content(&mut Rng::new(round << 32 | taken), ContentKind::Random, &mut data);
            match share.write(16 + round, taken, Bytes::from(data.clone())) {
                Ok(()) => taken += REQUEST,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                    break;
                }
            }
            assert!(taken < CAPACITY, "more was taken than there is room for");
        }
        assert!(taken > ROOM / 2, "round {round}: {taken} of {ROOM}");
        share.flush().unwrap();
        // As a removal does: some pages of names, then the discard.
        for page in 0..16 {
            let page_bytes = Bytes::from(vec![round as u8; 4096]);
            share
                .write(1, (round * 16 + page) * 4096, page_bytes)
                .unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        share.flush().unwrap();
        share.discard(16 + round, 0..u64::MAX).unwrap();
        share.flush().unwrap();
        pool.checkpoint().unwrap();
        pool.checkpoint().unwrap();
    }
    assert_eq!(pool.check(false, &mut |_, _| ()).unwrap().problems, []);
    pool.close().unwrap();
}
