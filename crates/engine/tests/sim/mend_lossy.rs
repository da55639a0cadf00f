//! `check --repair` with several kinds of damage: lost records together with damaged records, usage
//! pages and log headers. Either everything is restored, or repair refuses before it changes
//! anything, and names salvage; data is never forgotten.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::machine_env::env;
use bytes::Bytes;
use engine::{CheckReport, FormatOptions, Pool, PoolOptions};
use env::Disk as _;
use format::Record;
use sim::Machine;
use surface::{BlockDevice, Error, ErrorKind, WriteOptions};

const CAPACITY_BYTES: u64 = 8 << 20;
const EXTENT_BYTES: u32 = 64 << 10;
const VOLUME_BYTES: u64 = 64 << 10;
const VOLUMES: [&str; 3] = ["a", "b", "c"];

fn options(repair: bool) -> PoolOptions {
    PoolOptions { workers: 0, repair, ..PoolOptions::default() }
}

/// Bytes that do not compress, and are those of a volume.
fn content(volume: usize) -> Vec<u8> {
    let mut rng = sim::Rng::new(volume as u64 + 1);
    (0..VOLUME_BYTES).map(|_| rng.next_u64() as u8).collect()
}

/// A closed pool with some volumes of one record each, of which each was written by a batch of its
/// own.
fn pool() -> Machine {
    let machine = Machine::new(CAPACITY_BYTES, 7);
    let format =
        FormatOptions { capacity_bytes: CAPACITY_BYTES, extent_bytes: EXTENT_BYTES, properties: Default::default() };
    Pool::format(&env(&machine), &format).unwrap();
    let pool = Pool::open(env(&machine), options(false)).unwrap();
    for (index, name) in VOLUMES.into_iter().enumerate() {
        pool.create_volume(name, VOLUME_BYTES, &Default::default()).unwrap();
        let volume = pool.volume(name).unwrap();
        volume.write(0, Bytes::from(content(index)), WriteOptions::default()).unwrap();
        pool.flush().unwrap();
    }
    pool.close().unwrap();
    assert_eq!(keys(&machine, b'R').len(), VOLUMES.len());
    machine
}

fn keys(machine: &Machine, table: u8) -> Vec<Vec<u8>> {
    machine.store.dump().into_iter().map(|(key, _)| key).filter(|key| key[0] == table).collect()
}

fn flip(machine: &Machine, key: &[u8]) {
    machine.store.flip_bit(key, 3, 5);
}

/// Makes the headers of all batches that hold data of a record unreadable.
fn behead(machine: &Machine, record: &[u8]) {
    let dump = machine.store.dump();
    let value = &dump.iter().find(|(key, _)| key == record).unwrap().1;
    for fragment in Record::decode(value).unwrap().fragments {
        let headers = (0..=fragment.location / 4096).rev().map(|page| page * 4096);
        let mut bytes = vec![0; EXTENT_BYTES as usize];
        let at = headers.into_iter().find(|at| {
            machine.disk.peek(*at, &mut bytes);
            format::decode_batch(&bytes).is_ok()
        });
        machine.disk.flip_bit(at.unwrap_or(fragment.location / 4096 * 4096), 0);
    }
}

fn mend(machine: &Machine) -> Result<CheckReport, Error> {
    let pool = Pool::open(env(machine), options(true))?;
    let report = pool.check(true, &mut |_, _| ())?;
    pool.close()?;
    Ok(report)
}

/// Either repair refuses, and has changed nothing, or everything is there.
fn refused_or_whole(machine: &Machine) -> bool {
    let before = machine.store.dump();
    match mend(machine) {
        Err(error) => {
            assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("salvage"), "{error}");
            assert!(before == machine.store.dump(), "repair has refused and changed the map store");
            true
        }
        Ok(report) => {
            let pool = Pool::open(env(machine), options(false)).unwrap();
            for (index, name) in VOLUMES.into_iter().enumerate() {
                let mut data = vec![0; VOLUME_BYTES as usize];
                pool.volume(name).unwrap().read(0, &mut data).unwrap();
                assert!(data == content(index), "'{name}' lost data; {:?}", report.problems);
            }
            false
        }
    }
}

#[test]
fn a_record_that_is_gone_is_missed_beside_a_damaged_one() {
    let machine = pool();
    let records = keys(&machine, b'R');
    flip(&machine, &records[0]);
    machine.store.poke(&records[1], None);
    assert!(!refused_or_whole(&machine), "the log tells both for certain");
}

#[test]
fn a_record_that_is_gone_is_missed_beside_a_damaged_usage_page() {
    for is_gone in [false, true] {
        let machine = pool();
        let page = keys(&machine, b'U')[0].clone();
        if is_gone {
            machine.store.poke(&page, None);
        } else {
            flip(&machine, &page);
        }
        machine.store.poke(&keys(&machine, b'R')[1], None);
        assert!(!refused_or_whole(&machine), "the log tells the record for certain");
    }
}

/// The data was extended to its former length first, and the evidence of its lost end was gone when
/// repair refused.
#[test]
fn a_repair_that_is_refused_leaves_the_data_as_short_as_it_is() {
    let machine = pool();
    let record = keys(&machine, b'R')[1].clone();
    behead(&machine, &record);
    flip(&machine, &record);
    machine.disk.become_file(CAPACITY_BYTES);
    let disk = machine.disk.handle();
    disk.shrink(CAPACITY_BYTES / 2 + 100).unwrap();
    for _ in 0..2 {
        assert!(refused_or_whole(&machine), "nothing knows where the data lies");
        assert_eq!(disk.size_bytes().unwrap(), CAPACITY_BYTES / 2 + 100);
    }
    let error = Pool::open(env(&machine), options(false)).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("its end has been cut off"), "{error}");
    // Everything repairable is repaired, and reported immediately.
    let machine = pool();
    flip(&machine, &keys(&machine, b'R')[1]);
    machine.disk.become_file(CAPACITY_BYTES);
    machine.disk.handle().shrink(CAPACITY_BYTES / 2).unwrap();
    let pool = Pool::open(env(&machine), PoolOptions { accept_loss: true, ..options(true) }).unwrap();
    let kinds: Vec<_> = pool.mended().into_iter().map(|problem| problem.kind).collect();
    assert_eq!(kinds, ["record", "data"]);
    assert_eq!(machine.disk.handle().size_bytes().unwrap(), CAPACITY_BYTES);
    pool.close().unwrap();
}

#[test]
fn a_damaged_record_whose_batch_is_damaged_is_not_rebuilt_without_its_data() {
    for with_page in [false, true] {
        let machine = pool();
        let record = keys(&machine, b'R')[1].clone();
        behead(&machine, &record);
        flip(&machine, &record);
        if with_page {
            flip(&machine, &keys(&machine, b'U')[0]);
        }
        assert!(refused_or_whole(&machine), "nothing knows where the data lies");
    }
}

#[test]
fn a_record_that_is_gone_with_its_batch_is_missed_beside_a_damaged_one() {
    for with_page in [false, true] {
        let machine = pool();
        let records = keys(&machine, b'R');
        behead(&machine, &records[2]);
        machine.store.poke(&records[2], None);
        flip(&machine, &records[0]);
        if with_page {
            flip(&machine, &keys(&machine, b'U')[0]);
        }
        assert!(refused_or_whole(&machine), "nothing knows the record");
    }
}
