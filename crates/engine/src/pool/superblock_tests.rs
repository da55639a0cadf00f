//! Tests of the features in the superblock, and of copies that differ.
#![allow(clippy::unwrap_used)]

use format::{
    INCOMPAT_BOOKMARKS, INCOMPAT_COMPACT_RECORDS, INCOMPAT_KNOWN, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock,
};
use sim::{Fault, Machine};
use store::base::options::PoolOptions;
use store::log::superblock_io::{Copies, choose};
use surface::{ErrorKind, Result};

use crate::pool::Pool;
use crate::pool::testing::{env_on, pool_on};

const CAPACITY_BYTES: u64 = 8 << 20;

fn new_pool() -> Machine {
    let machine = Machine::new(CAPACITY_BYTES, 1);
    drop(pool_on(&machine, machine.disk.handle(), CAPACITY_BYTES, 0));
    machine.duplicate(2)
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

#[test]
fn a_new_pool_has_compact_records_and_no_other_feature() {
    for copy in copies(&new_pool()).map(std::result::Result::unwrap) {
        assert_eq!((copy.features_incompat, copy.generation), (INCOMPAT_COMPACT_RECORDS, 1));
    }
}

/// At any point at which the power is lost meanwhile, the newer copy stays in force.
#[test]
fn an_opening_brings_the_older_of_two_copies_up_to_date() {
    let mut crashes = 0;
    for (newer, offset) in SUPERBLOCK_OFFSETS.into_iter().enumerate() {
        let base = new_pool();
        let mut wanted = copies(&base)[newer].clone().unwrap();
        wanted.generation += 1;
        wanted.features_incompat |= INCOMPAT_BOOKMARKS;
        base.disk.poke(offset, &wanted.encode());
        for point in 0.. {
            let mut machine = base.duplicate(point);
            machine.power.plan(point, Fault::Crash);
            drop(open(&machine, false));
            machine.power.clear_plan();
            let is_whole = machine.power.take_fired().is_empty();
            machine.power_cycle();
            let left = copies(&machine);
            assert_eq!(choose(&left).unwrap(), wanted, "copy {newer}, crash at {point}");
            if is_whole {
                assert_eq!(left, [Ok(wanted.clone()), Ok(wanted)]);
                break;
            }
            crashes += 1;
            drop(open(&machine, false).unwrap());
            // One that the crash has damaged is left to `check`.
            assert!(copies(&machine).iter().flatten().all(|copy| *copy == wanted), "after a crash at {point}");
        }
    }
    assert!(crashes > 10, "{crashes} openings have ended early");
}

#[test]
fn a_pool_with_a_feature_that_is_not_known_is_left_as_it_is() {
    for features in [INCOMPAT_KNOWN + 1, 1 << 63] {
        let machine = new_pool();
        for (copy, offset) in copies(&machine).into_iter().zip(SUPERBLOCK_OFFSETS) {
            let copy = Superblock { features_incompat: features, ..copy.unwrap() };
            machine.disk.poke(offset, &copy.encode());
        }
        let before = (machine.store.dump(), machine.power.next_point());
        for repair in [false, true] {
            assert_eq!(open(&machine, repair).unwrap_err().kind(), ErrorKind::Unsupported);
        }
        assert!((machine.store.dump(), machine.power.next_point()) == before, "something was written");
    }
}
