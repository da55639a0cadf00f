//! What becomes of a pool that an older program has made: no feature is in its superblock.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use format::INCOMPAT_KNOWN;
use sim::{ContentKind, Fault, Machine, Rng, fill_content};
use surface::{BlockDevice, WriteOptions};
use units::BLOCK_BYTES;

use super::*;
use crate::options::PoolOptions;
use crate::pool::Pool;
use crate::testing::{env_on, pool_on};

const CAPACITY_BYTES: u64 = 8 << 20;
const BLOCKS: u64 = 100;

fn write(pool: &Pool, blocks: impl Iterator<Item = u64>) {
    for block in blocks {
        pool.volume("v").unwrap().write(block * BLOCK_BYTES as u64, content(block), WriteOptions::default()).unwrap();
    }
    pool.flush().unwrap();
}

fn content(block: u64) -> Bytes {
    let mut data = vec![0; BLOCK_BYTES];
    fill_content(&mut Rng::new(block), ContentKind::Random, &mut data);
    data.into()
}

fn expect_all_there(pool: &Pool) {
    let volume = pool.volume("v").unwrap();
    for block in 0..BLOCKS {
        let mut data = vec![0; BLOCK_BYTES];
        volume.read(block * BLOCK_BYTES as u64, &mut data).unwrap();
        assert!(data == content(block), "block {block}");
    }
}

/// A pool as an older program would have left it in a crash: with records, with deltas beside them, and with a log behind both.
/// No record is compact: nobody writes that yet.
fn older_pool() -> Machine {
    let machine = Machine::new(CAPACITY_BYTES, 1);
    let pool = pool_on(&machine, machine.disk.handle(), CAPACITY_BYTES, 0);
    let properties = [("unit".to_owned(), "4K".to_owned())].into();
    pool.create_volume("v", BLOCKS * BLOCK_BYTES as u64, &properties).unwrap();
    write(&pool, 0..50);
    pool.checkpoint().unwrap();
    write(&pool, 40..80);
    pool.light_checkpoint().unwrap();
    write(&pool, 70..BLOCKS);
    drop(pool);
    poke(&machine, |superblock| superblock.features_incompat = 0);
    machine.duplicate(2)
}

/// Changes both copies, past all faults.
fn poke(machine: &Machine, change: impl Fn(&mut Superblock)) {
    for (copy, offset) in copies(machine).into_iter().zip(SUPERBLOCK_OFFSETS) {
        let mut superblock = copy.unwrap();
        change(&mut superblock);
        machine.disk.poke(offset, &superblock.encode());
    }
}

fn copies(machine: &Machine) -> Copies {
    SUPERBLOCK_OFFSETS.map(|offset| {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        machine.disk.peek(offset, &mut bytes);
        Superblock::decode(&bytes)
    })
}

fn open(machine: &Machine, repair: bool) -> Result<Pool> {
    let options = PoolOptions { workers: 0, repair, ..PoolOptions::default() };
    Pool::open(env_on(machine, machine.disk.handle()), options)
}

/// At whatever point the opening ends that changes it.
#[test]
fn both_copies_get_the_mark_whatever_comes_between() {
    let is_marked = |copy: &_| matches!(copy, Ok(Superblock { features_incompat: INCOMPAT_COMPACT_RECORDS, .. }));
    let (mut ended, mut between) = (0, 0);
    for (repair, fault) in [(false, Fault::Crash), (false, Fault::Io), (true, Fault::Crash), (true, Fault::Io)] {
        let base = older_pool();
        for point in 0.. {
            let mut machine = base.duplicate(point);
            machine.power.plan(point, fault);
            drop(open(&machine, repair));
            machine.power.clear_plan();
            let is_whole = machine.power.take_fired().is_empty();
            if fault == Fault::Crash {
                machine.power_cycle()
            } else {
                machine.restart()
            }
            let left = copies(&machine);
            assert!(left.iter().any(std::result::Result::is_ok), "{fault:?} at {point}: no copy is whole");
            between += usize::from(left.iter().any(is_marked) && !left.iter().all(is_marked));
            let pool = open(&machine, repair).unwrap();
            expect_all_there(&pool);
            drop(pool);
            assert!(copies(&machine).iter().filter(|copy| copy.is_ok()).all(is_marked));
            if is_whole {
                assert_eq!(left.each_ref().map(|copy| copy.as_ref().unwrap().generation), [2; 2]);
                assert!(left.iter().all(is_marked));
                break;
            }
            ended += 1;
        }
    }
    assert!(ended > 40 && between > 4, "{ended} openings have ended early, {between} of them between the copies");
}

#[test]
fn a_new_pool_says_at_once_that_records_are_compact() {
    let machine = Machine::new(CAPACITY_BYTES, 3);
    drop(pool_on(&machine, machine.disk.handle(), CAPACITY_BYTES, 0));
    for copy in copies(&machine).map(std::result::Result::unwrap) {
        assert_eq!((copy.features_incompat, copy.generation), (INCOMPAT_COMPACT_RECORDS, 1));
    }
}

#[test]
fn a_pool_that_is_only_read_does_not_get_the_mark() {
    let (older, new) = (older_pool(), Machine::new(CAPACITY_BYTES, 4));
    let scratch = Machine::new(CAPACITY_BYTES, 5);
    let pool = pool_on(&new, new.disk.handle(), CAPACITY_BYTES, 0);
    let before = copies(&older);
    let from = crate::options::PoolEnv { store: scratch.store.handle(), ..env_on(&older, older.disk.handle()) };
    pool.salvage(&from, &PoolOptions::default(), &mut |_, _, _| Ok(())).unwrap();
    expect_all_there(&pool);
    assert_eq!(copies(&older), before);
}

#[test]
fn a_pool_with_a_feature_that_is_not_known_is_left_as_it_is() {
    for features in [INCOMPAT_KNOWN + 1, 1 << 63] {
        let machine = older_pool();
        poke(&machine, |superblock| superblock.features_incompat = features);
        let before = (machine.store.dump(), machine.power.next_point());
        for repair in [false, true] {
            assert_eq!(open(&machine, repair).unwrap_err().kind(), ErrorKind::Unsupported);
        }
        assert!((machine.store.dump(), machine.power.next_point()) == before, "something was written");
    }
}
