//! Tests of a pool whose beginning is overwritten: its other copies, in every state that a crash
//! can leave.
#![allow(clippy::unwrap_used, clippy::panic)]

use bytes::Bytes;
use format::{KEY_SUPERBLOCK, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use sim::{Fault, Machine};
use store::base::options::{FormatOptions, PoolEnv, PoolOptions};
use store::log::superblock_copies::{EndCopy, read_end, read_stored};
use store::log::superblock_io::{choose, read_copies};
use surface::{BlockDevice, ErrorKind, Result, WriteOptions};

use crate::pool::Pool;
use crate::pool::testing::{env_on, pool_on};

const CAPACITY: u64 = 8 << 20;
const EXTENT: u64 = 64 << 10;
/// Bytes that a partitioning tool writes.
const TABLE_BYTES: usize = 34 * 512;

/// A file that may grow to twice the size of the pool, with a volume that holds some data.
fn machine(seed: u64) -> Machine {
    let machine = Machine::new(4 * CAPACITY, seed);
    machine.disk.become_file(CAPACITY);
    let properties = Default::default();
    let options = FormatOptions { capacity_bytes: CAPACITY, extent_bytes: EXTENT as u32, properties };
    Pool::format(&env(&machine), &options).unwrap();
    let pool = open(&machine, false).unwrap();
    pool.create_volume("v", 1 << 20, &[("compression".to_owned(), "off".to_owned())].into()).unwrap();
    pool.volume("v").unwrap().write(0, Bytes::from(vec![7; 256 << 10]), WriteOptions::default()).unwrap();
    pool.close().unwrap();
    machine
}

fn env(machine: &Machine) -> PoolEnv {
    env_on(machine, machine.disk.handle())
}

fn open(machine: &Machine, repair: bool) -> Result<Pool> {
    Pool::open(env(machine), PoolOptions { workers: 0, repair, ..PoolOptions::default() })
}

fn expect_all_there(pool: &Pool) {
    let mut data = vec![0; 256 << 10];
    pool.volume("v").unwrap().read(0, &mut data).unwrap();
    assert!(data.iter().all(|byte| *byte == 7));
}

fn overwrite_beginning(machine: &Machine) {
    let mut table = vec![0; TABLE_BYTES];
    table[510..512].copy_from_slice(b"\x55\xaa");
    table[512..520].copy_from_slice(b"EFI PART");
    machine.disk.poke(0, &table);
    machine.disk.poke(SUPERBLOCK_OFFSETS[1], &[0; SUPERBLOCK_BYTES]);
}

/// Salvages into a pool of its own.
fn salvage(machine: &Machine, id: Option<[u8; 8]>) -> Result<(Pool, crate::SalvageReport, Machine)> {
    salvage_of(machine, &crate::SalvageSource { id, map: None })
}

fn salvage_of(machine: &Machine, source: &crate::SalvageSource) -> Result<(Pool, crate::SalvageReport, Machine)> {
    let into = Machine::new(16 << 20, 5);
    let pool = pool_on(&into, into.disk.handle(), 16 << 20, 0);
    let scratch = Machine::new(4096, 5);
    let from = PoolEnv { store: scratch.store.handle(), ..env(machine) };
    let report = pool.salvage_of(source, &from, &PoolOptions::default(), &mut |_, _, _| Ok(()))?;
    Ok((pool, report, into))
}

#[test]
fn a_partition_table_on_the_beginning_is_named_and_overwritten_only_on_demand() {
    for lost in ["nothing else", "the copy at the end", "the copy in the map"] {
        let mut machine = machine(1);
        overwrite_beginning(&machine);
        match lost {
            "the copy at the end" => machine.disk.poke(CAPACITY, &[0; SUPERBLOCK_BYTES]),
            "the copy in the map" => machine.store.poke(KEY_SUPERBLOCK, None),
            _ => {}
        }
        machine.restart();
        let before = (machine.store.dump(), machine.power.next_point());
        let error = open(&machine, false).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("GPT partition table"), "{error}");
        assert!(error.to_string().contains("check --repair"), "{error}");
        expect_all_there(&salvage(&machine, None).unwrap().0);
        assert!((machine.store.dump(), machine.power.next_point()) == before, "something was written");
        let pool = open(&machine, true).unwrap();
        assert_eq!(pool.mended()[0].kind, "superblock");
        expect_all_there(&pool);
        pool.close().unwrap();
        machine.restart();
        let pool = open(&machine, false).unwrap();
        expect_all_there(&pool);
        let check = pool.check(false, &mut |_, _| ()).unwrap();
        assert!(check.problems.is_empty(), "{:?}", check.problems);
        let copies = read_copies(&*env(&machine).disk).unwrap();
        let wanted = choose(&copies).unwrap();
        assert_eq!(read_end(&*env(&machine).disk), Some((CAPACITY, Ok(wanted))), "{lost}");
    }
}

#[test]
fn without_any_copy_the_log_tells_what_it_is_of() {
    let machine = machine(2);
    machine.disk.poke(0, &[0xaa; EXTENT as usize]);
    machine.disk.poke(CAPACITY, &[0; SUPERBLOCK_BYTES]);
    let (pool, report, _into) = salvage(&machine, None).unwrap();
    expect_all_there(&pool);
    assert!(report.notes.iter().any(|note| note.contains("batches of the log identify")), "{:?}", report.notes);
}

#[test]
fn without_any_copy_the_map_of_the_pool_that_the_log_names_is_asked() {
    let machine = machine(2);
    machine.disk.poke(0, &[0xaa; EXTENT as usize]);
    machine.disk.poke(CAPACITY, &[0; SUPERBLOCK_BYTES]);
    let source = crate::SalvageSource { id: None, map: Some(machine.store.handle()) };
    let (pool, report, _into) = salvage_of(&machine, &source).unwrap();
    expect_all_there(&pool);
    assert!(report.by_map && !report.is_lossy(), "{report:?}");
    assert!(report.volumes.iter().all(|told| told.missing_bytes_max == 0), "{report:?}");
}

/// A device that held another pool before: its copy at the end and its batches are still there.
#[test]
fn the_copy_of_another_pool_is_never_taken() {
    let (old, machine) = (machine(3), machine(4));
    let mut tail = vec![0; SUPERBLOCK_BYTES];
    old.disk.peek(CAPACITY, &mut tail);
    machine.disk.poke(CAPACITY, &tail);
    machine.store.poke(KEY_SUPERBLOCK, None);
    overwrite_beginning(&machine);
    for repair in [false, true] {
        let error = open(&machine, repair).unwrap_err();
        assert!(error.to_string().contains("GPT partition table"), "{error}");
    }
    // The log has only batches of the pool itself.
    expect_all_there(&salvage(&machine, None).unwrap().0);
    // Now it has batches of both.
    let mut extent = vec![0; EXTENT as usize];
    old.disk.peek(EXTENT, &mut extent);
    machine.disk.poke(100 * EXTENT, &extent);
    let mut head = vec![0; 4096];
    machine.disk.peek(EXTENT, &mut head);
    let own = head[16..24].try_into().unwrap();
    // A copied extent is ignored, because it names another place; one in its own place is not.
    expect_all_there(&salvage(&machine, None).unwrap().0);
    let mut there = vec![0; EXTENT as usize];
    let used = |machine: &Machine, extent: &u64, there: &mut [u8]| {
        machine.disk.peek(extent * EXTENT, there);
        format::decode_batch(there).is_ok()
    };
    let places: Vec<u64> = (1..20).filter(|e| used(&old, e, &mut there) && used(&machine, e, &mut there)).collect();
    assert!(places.len() > 2, "{places:?}");
    old.disk.peek(places[1] * EXTENT, &mut there);
    machine.disk.poke(places[1] * EXTENT, &there);
    let error = salvage(&machine, None).map(drop).unwrap_err();
    assert!(error.kind() == ErrorKind::Conflict && error.to_string().contains("several pools"), "{error}");
    salvage(&machine, Some(own)).unwrap();
}

#[test]
fn data_that_holds_nothing_of_the_pool_is_not_written_to() {
    let machine = machine(5);
    machine.disk.poke(0, &vec![0; CAPACITY as usize]);
    let before = machine.power.next_point();
    for repair in [false, true] {
        assert_eq!(open(&machine, repair).unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert_eq!(machine.power.next_point(), before);
}

/// After a power failure at any point, the pool opens, and the next opening has all copies right.
/// The same holds for a pool without any copies.
#[test]
fn crashes_between_copies_leave_a_pool_that_opens() {
    type Change = fn(&Pool) -> Result<()>;
    let changes: [(&str, Change); 3] = [
        ("open", |_| Ok(())),
        ("grow", |pool| pool.grow(CAPACITY + 8 * EXTENT)),
        ("shrink", |pool| {
            while !pool.shrink(CAPACITY - 16 * EXTENT, 8)?.is_finished {}
            Ok(())
        }),
    ];
    let (mut crashes, mut behind) = (0, 0);
    for (name, change) in changes {
        let base = machine(6);
        if name == "open" {
            base.store.poke(KEY_SUPERBLOCK, None);
            base.disk.poke(CAPACITY, &[0; SUPERBLOCK_BYTES]);
        }
        for point in 0.. {
            let mut machine = base.duplicate(point);
            machine.power.plan(point, Fault::Crash);
            let _ = open(&machine, false).and_then(|pool| change(&pool).map(|()| pool));
            machine.power.clear_plan();
            if machine.power.take_fired().is_empty() {
                break;
            }
            machine.power_cycle();
            crashes += 1;
            let first = choose(&read_copies(&*env(&machine).disk).unwrap()).unwrap();
            let is_right = |copy: Option<EndCopy>| copy.is_some_and(|(_, copy)| copy == Ok(first.clone()));
            behind += u64::from(!is_right(read_end(&*env(&machine).disk)));
            // An older copy, if it is the only one, must not lose anything either.
            let copy = machine.duplicate(point);
            overwrite_beginning(&copy);
            expect_all_there(&salvage(&copy, None).unwrap().0);
            let pool = open(&machine, false).unwrap();
            expect_all_there(&pool);
            drop(pool);
            let wanted = choose(&read_copies(&*env(&machine).disk).unwrap()).unwrap();
            assert_eq!(read_end(&*env(&machine).disk).unwrap().1, Ok(wanted.clone()), "{name} at {point}");
            assert_eq!(read_stored(&*env(&machine).store), Some(wanted), "{name} at {point}");
        }
    }
    assert!(crashes > 40 && behind > 3, "{crashes} crashes, {behind} with an older copy at the end");
}

/// Opening the pool rewrites it silently.
#[test]
fn a_damaged_copy_far_from_the_beginning_is_named_by_check() {
    let mut machine = machine(6);
    machine.disk.poke(CAPACITY + 100, &[0xff; 8]);
    let mut stored = env(&machine).store.get(KEY_SUPERBLOCK).unwrap().unwrap();
    stored[100] ^= 1;
    machine.store.poke(KEY_SUPERBLOCK, Some(&stored));
    machine.restart();
    let pool = open(&machine, false).unwrap();
    let check = pool.check(false, &mut |_, _| ()).unwrap();
    assert!(check.problems.is_empty(), "{:?}", check.problems);
    let places = ["near the end of the data", "in the map"];
    assert_eq!(check.notes.len(), places.len(), "{:?}", check.notes);
    for (note, place) in check.notes.iter().zip(places) {
        assert!(note.contains(place) && note.contains("rewritten it"), "{note}");
    }
    // It is reported once; when the copies are whole, there is no further note.
    assert!(pool.check(false, &mut |_, _| ()).unwrap().notes.is_empty());
    // New damage is a problem, and can be repaired.
    machine.disk.poke(CAPACITY + 100, &[0xff; 8]);
    let check = pool.check(false, &mut |_, _| ()).unwrap();
    assert!(check.problems.len() == 1 && check.problems[0].detail.contains(places[0]), "{:?}", check.problems);
    assert_eq!(pool.check(true, &mut |_, _| ()).unwrap().problems_left, 0);
    assert!(pool.check(false, &mut |_, _| ()).unwrap().problems.is_empty());
    pool.close().unwrap();
}
