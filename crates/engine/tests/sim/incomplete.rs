//! Incomplete imports are marked wherever their data goes: the mark belongs to a volume's content
//! at a moment.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use crate::common::machine_env::env;
use crate::common::salvage::salvage;
use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions, Properties};
use format::STREAM_HEAD_BYTES;
use sim::Machine;
use surface::{BlockDevice, WriteOptions};

const CAPACITY_BYTES: u64 = 8 << 20;
const VOLUME_BYTES: u64 = 1 << 20;

fn options() -> PoolOptions {
    PoolOptions { workers: 0, memory_bytes: 1 << 20, ..PoolOptions::default() }
}

fn new_pool(machine: &Machine) -> Pool {
    let format =
        FormatOptions { capacity_bytes: CAPACITY_BYTES, extent_bytes: 64 << 10, properties: Default::default() };
    Pool::format(&env(machine), &format).unwrap();
    Pool::open(env(machine), options()).unwrap()
}

fn yes() -> Properties {
    [("incomplete".to_owned(), "yes".to_owned())].into()
}

fn mark(pool: &Pool, volume: &str, value: Option<&str>) {
    pool.set_properties(Some(volume), &[("incomplete".to_owned(), value.map(str::to_owned))]).unwrap();
}

fn write(pool: &Pool, volume: &str, byte: u8) {
    let data = Bytes::from(vec![byte; 4096]);
    pool.volume(volume).unwrap().write(u64::from(byte) * 4096, data, WriteOptions::default()).unwrap();
}

/// Brings a snapshot to another pool.
fn bring(from: &Pool, snapshot: &str, since: Option<&str>, to: &Pool) {
    let mut sender = from.send(snapshot, since).unwrap();
    let mut receiver = to.receive("v", &BTreeMap::new());
    while let Some(chunk) = sender.next_chunk().unwrap() {
        let (head, body) = chunk.split_first_chunk::<STREAM_HEAD_BYTES>().unwrap();
        receiver.take(head, body).unwrap();
    }
}

/// `v` with a snapshot before an import, one in the middle of it and one after it; it is over.
fn imported(pool: &Pool) {
    pool.create_volume("v", VOLUME_BYTES, &Properties::new()).unwrap();
    write(pool, "v", 1);
    pool.snapshot("v", "before").unwrap();
    mark(pool, "v", Some("yes"));
    write(pool, "v", 2);
    pool.snapshot("v", "half").unwrap();
    write(pool, "v", 3);
    mark(pool, "v", None);
    pool.snapshot("v", "whole").unwrap();
}

#[test]
fn the_mark_is_there_when_the_power_fails_behind_it() {
    let mut machine = Machine::new(CAPACITY_BYTES, 1);
    let pool = new_pool(&machine);
    pool.create_volume("new", VOLUME_BYTES, &yes()).unwrap();
    pool.create_volume("old", VOLUME_BYTES, &Properties::new()).unwrap();
    mark(&pool, "old", Some("yes"));
    write(&pool, "new", 1);
    drop(pool);
    machine.power_cycle();
    let pool = Pool::open(env(&machine), options()).unwrap();
    assert_eq!(pool.incomplete(), ["new", "old"]);
    mark(&pool, "new", None);
    pool.rename("old", "renamed").unwrap();
    drop(pool);
    machine.power_cycle();
    let pool = Pool::open(env(&machine), options()).unwrap();
    assert_eq!(pool.incomplete(), ["renamed"]);
    pool.close().unwrap();
}

#[test]
fn the_mark_goes_with_the_data_through_history() {
    let machine = Machine::new(CAPACITY_BYTES, 1);
    let pool = new_pool(&machine);
    imported(&pool);
    assert_eq!(pool.incomplete(), ["v@half"]);
    let told: Vec<_> = pool.snapshots(None).unwrap().into_iter().map(|s| (s.name, s.incomplete)).collect();
    assert_eq!(told, [("before", false), ("half", true), ("whole", false)].map(|(n, i)| (n.to_owned(), i)));
    // Independent of the volume's present mark.
    pool.clone_snapshot("v@half", "c", &Properties::new()).unwrap();
    mark(&pool, "v", Some("yes"));
    pool.clone_snapshot("v@before", "d", &Properties::new()).unwrap();
    let no = [("incomplete".to_owned(), "no".to_owned())].into();
    pool.clone_snapshot("v@half", "e", &no).unwrap();
    assert_eq!(pool.incomplete(), ["c", "v", "v@half"]);
    pool.rollback("v@whole", false).unwrap();
    assert_eq!(pool.incomplete(), ["c", "v@half"]);
    pool.rollback("v@half", true).unwrap();
    assert_eq!(pool.incomplete(), ["c", "v", "v@half"]);
    pool.promote("c").unwrap();
    assert_eq!(pool.incomplete(), ["c", "c@half", "v"]);
    mark(&pool, "v", None);
    let report = pool.check(false, &mut |_, _| ()).unwrap();
    assert_eq!(report.problems_left, 0, "{:?}", report.problems);
    pool.close().unwrap();
    let pool = Pool::open(env(&machine), options()).unwrap();
    assert_eq!(pool.incomplete(), ["c", "c@half"]);
    pool.close().unwrap();
}

#[test]
fn the_mark_goes_with_a_stream() {
    let (here, there) = (Machine::new(CAPACITY_BYTES, 1), Machine::new(CAPACITY_BYTES, 2));
    let (source, copy) = (new_pool(&here), new_pool(&there));
    imported(&source);
    // The volume is marked again; the sent data was whole.
    mark(&source, "v", Some("yes"));
    bring(&source, "v@before", None, &copy);
    assert!(copy.incomplete().is_empty());
    bring(&source, "v@half", Some("before"), &copy);
    assert_eq!(copy.incomplete(), ["v", "v@half"]);
    bring(&source, "v@whole", Some("half"), &copy);
    assert_eq!(copy.incomplete(), ["v@half"]);
    copy.rename("v", "older").unwrap();
    bring(&source, "v@half", None, &copy);
    assert_eq!(copy.incomplete(), ["older@half", "v", "v@half"]);
    source.close().unwrap();
    copy.close().unwrap();
}

#[test]
fn salvage_brings_the_mark_back() {
    let machine = Machine::new(CAPACITY_BYTES, 1);
    let pool = new_pool(&machine);
    imported(&pool);
    pool.clone_snapshot("v@half", "c", &Properties::new()).unwrap();
    pool.clone_snapshot("v@half", "d", &Properties::new()).unwrap();
    mark(&pool, "d", None);
    pool.create_volume("w", VOLUME_BYTES, &Properties::new()).unwrap();
    pool.snapshot("w", "before").unwrap();
    mark(&pool, "w", Some("yes"));
    write(&pool, "w", 1);
    let expected = ["c", "v@half", "w"];
    assert_eq!(pool.incomplete(), expected);
    pool.close().unwrap();
    let salvaged = salvage(&machine, CAPACITY_BYTES, 1).unwrap();
    assert_eq!(salvaged.pool.incomplete(), expected, "{:?}", salvaged.report.notes);
}
