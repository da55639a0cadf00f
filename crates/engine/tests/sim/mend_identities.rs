//! After `check --repair` has rebuilt a record of which blocks may have been discarded, no snapshot
//! that sees it keeps its identity: neither those of the last checkpoint nor those that only the
//! later log has.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use crate::common::machine_env::env;
use crate::common::noise;
use engine::{FormatOptions, Pool, PoolOptions};
use format::{ObjectDescriptor, ObjectState, STREAM_HEAD_BYTES, SnapshotIdentity};
use sim::Machine;
use surface::{BlockDevice, WriteOptions};

const CAPACITY_BYTES: u64 = 8 << 20;
const VOLUME_BYTES: u64 = 1 << 20;

fn options(repair: bool) -> PoolOptions {
    PoolOptions { workers: 0, repair, ..PoolOptions::default() }
}

fn new_pool(seed: u64) -> (Machine, Pool) {
    let machine = Machine::new(CAPACITY_BYTES, seed);
    let format =
        FormatOptions { capacity_bytes: CAPACITY_BYTES, extent_bytes: 64 << 10, properties: Default::default() };
    Pool::format(&env(&machine), &format).unwrap();
    let pool = Pool::open(env(&machine), options(false)).unwrap();
    (machine, pool)
}

fn write(pool: &Pool, volume: &str, seed: u64, bytes: u64) {
    let options = WriteOptions::default();
    pool.volume(volume).unwrap().write(0, noise(seed, bytes as usize), options).unwrap();
    pool.flush().unwrap();
}

/// Fills extents with data that is discarded again, and has them freed: batches between the
/// remaining ones are gone then, and their statements about older data are unknown. All is as of a
/// checkpoint.
fn forget_batches(pool: &Pool) {
    pool.create_volume("w", VOLUME_BYTES, &Default::default()).unwrap();
    for seed in 100..110 {
        write(pool, "w", seed, VOLUME_BYTES);
    }
    pool.volume("w").unwrap().discard(0, VOLUME_BYTES).unwrap();
    pool.checkpoint().unwrap();
}

/// The identities of snapshots, by name, that a closed pool has.
fn identities(machine: &Machine) -> BTreeMap<String, SnapshotIdentity> {
    let values = machine.store.dump().into_iter().filter(|(key, _)| key[0] == b'O');
    let descriptors = values.map(|(_, value)| ObjectDescriptor::decode(&value).unwrap());
    descriptors.filter(|d| d.state == ObjectState::Snapshot).map(|d| (d.name, d.identity.unwrap())).collect()
}

/// Power is lost, and a bit of the oldest map record of `object` flips; then the pool is repaired,
/// and closed.
fn break_and_mend(machine: &mut Machine, object: u64) {
    machine.restart();
    let records = machine.store.dump().into_iter().map(|(key, _)| key);
    let of_object = |key: &Vec<u8>| key[0] == b'R' && key[1..9] == object.to_be_bytes();
    // Newer epochs come first.
    let record = records.rev().find(of_object).expect("no record");
    machine.store.flip_bit(&record, 3, 5);
    let pool = Pool::open(env(machine), options(true)).unwrap();
    let report = pool.check(true, &mut |_, _| ()).unwrap();
    let told: Vec<_> = report.problems.iter().map(|p| (p.kind, p.detail.as_str())).collect();
    assert!(told.iter().any(|(_, detail)| detail.contains("has a new identity")), "{told:?}");
    assert!(told.iter().all(|(kind, _)| ["record", "object"].contains(kind)), "{told:?}");
    pool.close().unwrap();
    let pool = Pool::open(env(machine), options(false)).unwrap();
    let report = pool.check(false, &mut |_, _| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    pool.close().unwrap();
    assert!(machine.store.dump().iter().all(|(key, _)| key[0] != b'Q'), "a note is left");
}

#[test]
fn a_snapshot_that_was_renamed_behind_the_checkpoint_becomes_another_one() {
    let (mut machine, pool) = new_pool(1);
    pool.create_volume("v", VOLUME_BYTES, &Default::default()).unwrap();
    write(&pool, "v", 1, 64 << 10);
    pool.snapshot("v", "s").unwrap();
    forget_batches(&pool);
    let before = identities(&machine)["s"];
    pool.rename("v@s", "v@t").unwrap();
    drop(pool);
    break_and_mend(&mut machine, 1);
    assert_ne!(identities(&machine)["t"], before);
}

#[test]
fn a_snapshot_that_came_behind_the_checkpoint_becomes_another_one() {
    let (source_machine, source) = new_pool(1);
    source.create_volume("v", VOLUME_BYTES, &Default::default()).unwrap();
    let (mut machine, pool) = new_pool(2);
    let send = |snapshot: &str, from: Option<&str>| {
        let mut sender = source.send(snapshot, from).unwrap();
        let mut receiver = pool.receive("v", &Default::default());
        while let Some(chunk) = sender.next_chunk().unwrap() {
            let (head, body) = chunk.split_first_chunk::<STREAM_HEAD_BYTES>().unwrap();
            receiver.take(head, body).unwrap();
        }
    };
    write(&source, "v", 1, 64 << 10);
    source.snapshot("v", "s1").unwrap();
    send("v@s1", None);
    forget_batches(&pool);
    write(&source, "v", 2, 4096);
    source.snapshot("v", "s2").unwrap();
    send("v@s2", Some("v@s1"));
    source.close().unwrap();
    drop(pool);
    assert_eq!(identities(&machine).len(), 1, "the difference is not behind the checkpoint");
    break_and_mend(&mut machine, 1);
    let (there, here) = (identities(&source_machine), identities(&machine));
    assert!(here.len() == 2 && here.iter().all(|(name, identity)| there[name] != *identity), "{there:?} {here:?}");
}
