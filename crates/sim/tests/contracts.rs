//! Tests of the simulated disk and store against the contracts of their traits.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::ops::ControlFlow;

use env::{AlignedBuf, Disk, MapBatch, MapStore};
use sim::{Fault, Machine};

fn buffer(byte: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::new(4096);
    buf.fill(byte);
    buf
}

fn put(key: u8, value: u8) -> MapBatch {
    let mut batch = MapBatch::default();
    batch.put(vec![key], vec![value]);
    batch
}

#[test]
fn synced_writes_survive_whatever_follows() {
    for seed in 0..300 {
        let mut machine = Machine::new(1 << 20, seed);
        let disk = machine.disk.handle();
        disk.write_at(8192, &buffer(1), 4096).unwrap();
        disk.sync().unwrap();
        disk.write_at(16384, &buffer(2), 4096).unwrap();
        machine.power_cycle();
        let mut block = [0; 4096];
        machine.disk.peek(8192, &mut block);
        assert_eq!(block, [1; 4096]);
    }
}

#[test]
fn unsynced_writes_survive_in_every_way() {
    let mut outcomes = HashSet::new();
    let mut torn = false;
    for seed in 0..400 {
        let mut machine = Machine::new(1 << 20, seed);
        let disk = machine.disk.handle();
        disk.write_at(0, &buffer(1), 4096).unwrap();
        disk.write_at(0, &buffer(2), 4096).unwrap();
        disk.write_at(4096, &buffer(3), 4096).unwrap();
        machine.power_cycle();
        let mut blocks = [0; 8192];
        machine.disk.peek(0, &mut blocks);
        for sector in blocks.chunks(512) {
            assert!(sector.iter().all(|b| *b == sector[0]), "seed {seed}: a sector is torn");
        }
        torn |= blocks[..4096].iter().any(|b| *b != blocks[0]);
        outcomes.insert((blocks[0], blocks[4096]));
    }
    assert!(torn);
    // None, the first, or the second write to the same place; with and without the third.
    assert_eq!(outcomes.len(), 6, "{outcomes:?}");
}

#[test]
fn what_a_failed_sync_left_uncertain_stays_uncertain() {
    let mut lost = 0;
    for seed in 0..200 {
        let mut machine = Machine::new(1 << 20, seed);
        let disk = machine.disk.handle();
        disk.write_at(0, &buffer(1), 4096).unwrap();
        disk.write_at(4096, &buffer(1), 4096).unwrap();
        machine.power.plan(machine.power.next_point(), Fault::Io);
        assert!(disk.sync().is_err());
        disk.write_at(4096, &buffer(2), 4096).unwrap();
        disk.sync().unwrap();
        machine.power_cycle();
        let mut blocks = [0; 8192];
        machine.disk.peek(0, &mut blocks);
        assert_eq!(blocks[4096..], [2; 4096], "seed {seed}: written again and synced");
        lost += usize::from(blocks[..4096] != [1; 4096]);
    }
    assert!(lost > 50, "lost in {lost} of 200");
}

#[test]
fn punched_ranges_hold_anything() {
    let mut contents = HashSet::new();
    for seed in 0..100 {
        let machine = Machine::new(1 << 20, seed);
        let disk = machine.disk.handle();
        disk.write_at(0, &buffer(1), 4096).unwrap();
        assert_eq!(disk.occupied_bytes().unwrap(), 4096);
        disk.punch(0, 4096).unwrap();
        assert_eq!(disk.occupied_bytes().unwrap(), 0);
        let mut block = [0; 4096];
        machine.disk.peek(0, &mut block);
        contents.insert(match block[0] {
            0 if block == [0; 4096] => 0,
            1 if block == [1; 4096] => 1,
            _ => 2,
        });
    }
    assert_eq!(contents.len(), 3);
}

#[test]
fn the_store_keeps_a_whole_number_of_batches() {
    let mut kept = HashSet::new();
    for seed in 0..200 {
        let mut machine = Machine::new(1 << 20, seed);
        let store = machine.store.handle();
        for i in 1..=3 {
            store.commit(put(1, i)).unwrap();
        }
        store.persist().unwrap();
        for i in 4..=6 {
            store.commit(put(1, i)).unwrap();
        }
        machine.power_cycle();
        assert!(store.get(&[1]).is_err(), "a handle from before the crash is dead");
        let value = machine.store.handle().get(&[1]).unwrap().unwrap();
        kept.insert(value[0]);
    }
    assert_eq!(kept, HashSet::from([3, 4, 5, 6]));
}

#[test]
fn a_batch_interrupted_by_the_crash_is_there_or_not() {
    let mut kept = HashSet::new();
    for seed in 0..100 {
        let mut machine = Machine::new(1 << 20, seed);
        let store = machine.store.handle();
        store.commit(put(1, 1)).unwrap();
        store.persist().unwrap();
        machine.power.plan(machine.power.next_point(), Fault::Crash);
        assert!(store.commit(put(1, 2)).is_err());
        assert!(machine.power.is_lost());
        assert!(machine.disk.handle().sync().is_err());
        machine.power_cycle();
        kept.insert(machine.store.handle().get(&[1]).unwrap().unwrap()[0]);
    }
    assert_eq!(kept, HashSet::from([1, 2]));
}

#[test]
fn space_below_is_bounded() {
    let machine = Machine::new(1 << 20, 1);
    let disk = machine.disk.handle();
    machine.disk.limit_space(Some(8192));
    disk.reserve(0, 4096).unwrap();
    disk.write_at(0, &buffer(1), 4096).unwrap();
    disk.write_at(4096, &buffer(1), 4096).unwrap();
    let full = disk.write_at(8192, &buffer(1), 4096).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    disk.punch(0, 4096).unwrap();
    disk.write_at(8192, &buffer(1), 4096).unwrap();
}

#[test]
fn scans_are_ordered_and_stop_when_told() {
    let machine = Machine::new(1 << 20, 1);
    let store = machine.store.handle();
    for key in [5, 1, 3, 9] {
        store.commit(put(key, key)).unwrap();
    }
    let mut found = Vec::new();
    store
        .scan(&[1], &[9], &mut |key, _| {
            found.push(key[0]);
            if found.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!(found, [1, 3]);
}

#[test]
fn the_length_of_a_file_is_certain_only_when_it_was_synced() {
    let mut kept = HashSet::new();
    for seed in 0..100 {
        let mut machine = Machine::new(4 << 20, seed);
        machine.disk.become_file(1 << 20);
        let disk = machine.disk.handle();
        disk.grow(2 << 20).unwrap();
        disk.write_at((2 << 20) - 4096, &buffer(1), 4096).unwrap();
        disk.sync().unwrap();
        disk.grow(4 << 20).unwrap();
        disk.shrink(3 << 20).unwrap();
        assert_eq!(disk.size_bytes().unwrap(), 3 << 20);
        machine.power_cycle();
        kept.insert(machine.disk.handle().size_bytes().unwrap() >> 20);
        let mut block = [0; 4096];
        machine.disk.peek((2 << 20) - 4096, &mut block);
        assert_eq!(block, [1; 4096]);
    }
    assert_eq!(kept, HashSet::from([2, 3, 4]));
}

#[test]
fn a_file_that_cannot_be_made_longer_is_as_it_was() {
    let machine = Machine::new(4 << 20, 1);
    let disk = machine.disk.handle();
    assert_eq!(disk.grow(5 << 20).unwrap_err().kind(), std::io::ErrorKind::StorageFull, "a device");
    machine.disk.become_file(1 << 20);
    for (fault, kind) in [(Fault::Io, std::io::ErrorKind::Other), (Fault::NoSpace, std::io::ErrorKind::StorageFull)] {
        machine.power.plan(machine.power.next_point(), fault);
        assert_eq!(disk.grow(2 << 20).unwrap_err().kind(), kind);
        assert_eq!(disk.size_bytes().unwrap(), 1 << 20);
    }
    assert_eq!(disk.grow(5 << 20).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    // A length that is not made certain after a failure stays in doubt.
    let lengths: HashSet<u64> = (0..20)
        .map(|seed| {
            let mut copy = Machine::new(4 << 20, seed);
            copy.disk.become_file(1 << 20);
            let disk = copy.disk.handle();
            disk.grow(4 << 20).unwrap();
            copy.power.plan(copy.power.next_point(), Fault::Io);
            disk.sync().unwrap_err();
            disk.sync().unwrap();
            copy.power_cycle();
            copy.disk.handle().size_bytes().unwrap() >> 20
        })
        .collect();
    assert_eq!(lengths, HashSet::from([1, 4]));
}
