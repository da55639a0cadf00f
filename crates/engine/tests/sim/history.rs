//! Snapshots, clones, rollbacks and promotions where random operations would hardly come: with
//! writers running, a thousand times, through long chains, and with every owner gone but the last
//! one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::machine_env::env;
use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions};
use sim::Machine;
use surface::{BlockDevice, DeviceSet as _, ErrorKind, WriteOptions};
use testkit::until;

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;

fn new_pool(machine: &Machine, bytes: u64, options: PoolOptions) -> Pool {
    let properties = [("compression".to_owned(), "off".to_owned())].into();
    let format = FormatOptions { capacity_bytes: bytes, extent_bytes: 256 << 10, properties };
    Pool::format(&env(machine), &format).unwrap();
    Pool::open(env(machine), options).unwrap()
}

fn pool_without_threads(machine: &Machine, bytes: u64) -> Pool {
    new_pool(machine, bytes, PoolOptions { workers: 0, memory_bytes: 4 << 20, ..PoolOptions::default() })
}

fn block(tag: u64) -> Bytes {
    let mut bytes = vec![0; BLOCK];
    for (index, word) in bytes.chunks_mut(8).enumerate() {
        word.copy_from_slice(&(tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index as u64).to_le_bytes());
    }
    bytes[..8].copy_from_slice(&tag.to_le_bytes());
    bytes.into()
}

fn put(device: &dyn BlockDevice, index: u64, tag: u64) {
    device.write(index * BLOCK as u64, block(tag), WriteOptions::default()).unwrap();
}

/// The tag of a block, which is whole; 0 for zeroes.
fn tag(device: &dyn BlockDevice, index: u64) -> u64 {
    let mut bytes = vec![0xee; BLOCK];
    device.read(index * BLOCK as u64, &mut bytes).unwrap();
    let tag = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(tag == 0 && bytes.iter().all(|b| *b == 0) || bytes == block(tag), "block {index} is a mix");
    tag
}

fn settle(pool: &Pool) {
    pool.checkpoint().unwrap();
    while pool.status().reaping > 0 {
        pool.checkpoint().unwrap();
    }
}

fn check(pool: &Pool) {
    let report = pool.check(false, &mut |_, _| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

/// A writer that writes n to one block, and then n to another far away: in a snapshot the second
/// one is never ahead of the first, and at most one step late.
#[test]
fn snapshots_are_moments_while_writers_go_on() {
    let machine = Machine::new(64 << 20, 1);
    let options = PoolOptions { workers: 2, memory_bytes: 16 << 20, ..PoolOptions::default() };
    let pool = new_pool(&machine, 64 * MIB, options);
    pool.create_volume("v", 32 * MIB, &BTreeMap::new()).unwrap();
    let stop = AtomicBool::new(false);
    let writers: u64 = 3;
    let progress: Vec<_> = (0..writers).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let device = pool.volume("v").unwrap();
            let (stop, progress) = (&stop, &progress[writer as usize]);
            scope.spawn(move || {
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    progress.store(n, Ordering::Relaxed);
                    put(&*device, writer, n);
                    put(&*device, 4096 + writer, n);
                }
            });
        }
        for number in 0..60 {
            // Between two snapshots everybody comes on a bit.
            let before: Vec<_> = progress.iter().map(|n| n.load(Ordering::Relaxed)).collect();
            let have_come_on =
                || progress.iter().zip(&before).all(|(n, before)| n.load(Ordering::Relaxed) >= before + 2);
            until("all writers have come on", have_come_on);
            pool.snapshot("v", &format!("s{number}")).unwrap();
            if number % 7 == 6 {
                pool.destroy(&format!("v@s{}", number - 3), false).unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let mut last = vec![0; writers as usize];
    let mut seen = 0;
    for snapshot in pool.snapshots(Some("v")).unwrap() {
        let device = pool.volume(&format!("v@{}", snapshot.name)).unwrap();
        for writer in 0..writers {
            let (first, second) = (tag(&*device, writer), tag(&*device, 4096 + writer));
            assert!(first == second || first == second + 1, "{}: {first} and {second}", snapshot.name);
            assert!(first >= last[writer as usize], "{} is older than the one before", snapshot.name);
            last[writer as usize] = first;
        }
        seen += 1;
    }
    assert!(seen >= 50 && last.iter().all(|n| *n > 0));
    check(&pool);
    pool.destroy("v", true).unwrap();
    settle(&pool);
    assert_eq!(pool.status().live_bytes, 0);
    pool.close().unwrap();
}

/// The space of a thousand snapshots of a small volume, each with one write between, comes back to
/// the byte.
#[test]
fn a_thousand_snapshots_come_and_go() {
    const COUNT: u64 = 1000;
    const BLOCKS: u64 = 48;
    let machine = Machine::new(32 << 20, 2);
    let pool = pool_without_threads(&machine, 32 * MIB);
    pool.create_volume("v", MIB, &BTreeMap::new()).unwrap();
    let device = pool.volume("v").unwrap();
    (0..BLOCKS).for_each(|index| put(&*device, index, 1));
    settle(&pool);
    let before = pool.status().live_bytes;
    for number in 0..COUNT {
        pool.snapshot("v", &format!("s{number}")).unwrap();
        put(&*device, number % BLOCKS, 2 + number);
    }
    settle(&pool);
    assert_eq!(pool.status().live_bytes, before + COUNT * BLOCK as u64);
    // Content of block 5 when snapshot `number` was taken.
    let held = |number: u64| if number <= 5 { 1 } else { 2 + (number - 6) / BLOCKS * BLOCKS + 5 };
    for number in [0, 5, 6, 53, 54, 500, 999] {
        let snapshot = pool.volume(&format!("v@s{number}")).unwrap();
        assert_eq!(tag(&*snapshot, 5), held(number), "snapshot {number}");
    }
    pool.drop_caches();
    assert_eq!(tag(&*device, 5), held(COUNT));
    // Every second one is destroyed: the others are unchanged.
    for number in (0..COUNT).step_by(2) {
        pool.destroy(&format!("v@s{number}"), false).unwrap();
    }
    settle(&pool);
    check(&pool);
    for number in [5, 53, 501, 999] {
        let snapshot = pool.volume(&format!("v@s{number}")).unwrap();
        assert_eq!(tag(&*snapshot, 5), held(number), "snapshot {number}");
    }
    for snapshot in pool.snapshots(Some("v")).unwrap() {
        pool.destroy(&format!("v@{}", snapshot.name), false).unwrap();
    }
    settle(&pool);
    check(&pool);
    assert_eq!(pool.status().live_bytes, before);
    assert_eq!(tag(&*device, 5), held(COUNT));
    pool.close().unwrap();
}

/// A clone of a clone of a clone, each with a block of its own, until the chain is too long; then
/// all but the last one goes.
#[test]
fn chains_of_clones_outlive_their_owners() {
    let machine = Machine::new(32 << 20, 3);
    let pool = pool_without_threads(&machine, 32 * MIB);
    pool.create_volume("c0", MIB, &BTreeMap::new()).unwrap();
    put(&*pool.volume("c0").unwrap(), 0, 100);
    let mut last = 0;
    loop {
        let (from, to) = (format!("c{last}"), format!("c{}", last + 1));
        match pool.snapshot(&from, "s").and_then(|()| pool.clone_snapshot(&format!("{from}@s"), &to, &BTreeMap::new()))
        {
            Ok(()) => last += 1,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
                break;
            }
        }
        put(&*pool.volume(&to).unwrap(), last, 100 + last);
    }
    assert!((25..40).contains(&last), "{last} clones");
    let tip = format!("c{last}");
    let whole = |pool: &Pool| {
        let device = pool.volume(&tip).unwrap();
        for index in 0..=last {
            assert_eq!(tag(&*device, index), 100 + index, "block {index}");
        }
    };
    whole(&pool);
    for number in 0..last {
        pool.destroy(&format!("c{number}"), true).unwrap();
        if number % 5 == 0 {
            settle(&pool);
        }
    }
    settle(&pool);
    check(&pool);
    whole(&pool);
    assert!(pool.status().unlisted_bytes >= last * BLOCK as u64);
    // Unchanged, after being reopened.
    pool.close().unwrap();
    let options = PoolOptions { workers: 0, memory_bytes: 4 << 20, ..PoolOptions::default() };
    let pool = Pool::open(env(&machine), options).unwrap();
    whole(&pool);
    pool.destroy(&tip, true).unwrap();
    settle(&pool);
    check(&pool);
    assert_eq!((pool.status().live_bytes, pool.status().unlisted_bytes), (0, 0));
    pool.close().unwrap();
}

/// A discard of a large part of a clone hides its origin's data there, though the clone itself has
/// nothing yet.
#[test]
fn a_large_discard_hides_the_origin() {
    let machine = Machine::new(64 << 20, 4);
    let pool = pool_without_threads(&machine, 64 * MIB);
    pool.create_volume("v", 32 * MIB, &BTreeMap::new()).unwrap();
    let device = pool.volume("v").unwrap();
    let places = [0, 1000, 4000, 8191];
    places.iter().for_each(|index| put(&*device, *index, 7));
    pool.snapshot("v", "s").unwrap();
    pool.clone_snapshot("v@s", "c", &BTreeMap::new()).unwrap();
    let clone = pool.volume("c").unwrap();
    clone.discard(0, 32 * MIB).unwrap();
    assert!(places.iter().all(|index| tag(&*clone, *index) == 0));
    // The same when it is cut off and grown again.
    pool.clone_snapshot("v@s", "d", &BTreeMap::new()).unwrap();
    pool.resize_volume("d", 4096).unwrap();
    pool.resize_volume("d", 32 * MIB).unwrap();
    settle(&pool);
    pool.drop_caches();
    let cut = pool.volume("d").unwrap();
    assert_eq!((tag(&*cut, 0), tag(&*cut, 1000), tag(&*cut, 8191)), (7, 0, 0));
    assert!(places.iter().all(|index| tag(&*clone, *index) == 0 && tag(&*device, *index) == 7));
    check(&pool);
    pool.close().unwrap();
}

/// A clone is not exported because its origin is, and has no reservation.
#[test]
fn a_clone_has_neither_doors_nor_reservation_of_its_origin() {
    let machine = Machine::new(32 << 20, 6);
    let pool = pool_without_threads(&machine, 32 * MIB);
    let set = |values: &[(&str, &str)]| values.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let doors = [("nfs", "on"), ("smb", "rw"), ("http", "ro"), ("ftp", "on")];
    let own: BTreeMap<_, _> = set(&[&doors[..], &[("compression", "zstd-3"), ("reservation", "1M")]].concat());
    pool.create_volume("v", MIB, &own).unwrap();
    pool.snapshot("v", "s").unwrap();
    pool.clone_snapshot("v@s", "c", &BTreeMap::new()).unwrap();
    let value = |name: &str, key: &str| {
        let all = pool.properties(Some(name)).unwrap();
        all.into_iter().find(|property| property.key == key).map(|property| property.value).unwrap()
    };
    assert_eq!((value("c", "compression"), value("c", "reservation")), ("zstd-3".to_owned(), "none".to_owned()));
    for (door, _) in doors {
        assert_eq!(value("c", door), "off", "{door}");
    }
    pool.clone_snapshot("v@s", "d", &set(&[("nfs", "ro")])).unwrap();
    assert_eq!((value("d", "nfs"), value("d", "smb")), ("ro".to_owned(), "off".to_owned()));
    pool.close().unwrap();
}

/// Promoting a clone lets the volume that it came from be destroyed, and the history goes with the
/// clone.
#[test]
fn promotion_turns_origin_and_clone_round() {
    let machine = Machine::new(32 << 20, 5);
    let pool = pool_without_threads(&machine, 32 * MIB);
    pool.create_volume("v", MIB, &BTreeMap::new()).unwrap();
    let device = pool.volume("v").unwrap();
    for (name, n) in [("a", 1), ("b", 2), ("c", 3)] {
        put(&*device, 0, n);
        pool.snapshot("v", name).unwrap();
    }
    pool.clone_snapshot("v@b", "w", &BTreeMap::new()).unwrap();
    let origin = |pool: &Pool, name: &str| pool.volumes().into_iter().find(|v| v.name == name).and_then(|v| v.origin);
    assert_eq!((origin(&pool, "w").as_deref(), origin(&pool, "v")), (Some("v@b"), None));
    let names = |pool: &Pool| -> Vec<String> { pool.list().unwrap().into_iter().map(|d| d.name).collect() };
    pool.promote("w").unwrap();
    assert_eq!(names(&pool), ["v", "v@c", "w", "w@a", "w@b"]);
    assert_eq!((origin(&pool, "w"), origin(&pool, "v").as_deref()), (None, Some("w@b")));
    assert_eq!(pool.promote("w").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(pool.rollback("w@a", true).unwrap_err().kind(), ErrorKind::Unsupported);
    pool.destroy("v", true).unwrap();
    settle(&pool);
    check(&pool);
    for (name, n) in [("w@a", 1), ("w@b", 2), ("w", 2)] {
        assert_eq!(tag(&*pool.volume(name).unwrap(), 0), n, "{name}");
    }
    pool.close().unwrap();
}

/// The records that hide the discarded past are removed in time, also if there are only rollbacks.
#[test]
fn rollbacks_in_a_row_need_no_pause() {
    let machine = Machine::new(16 * MIB, 7);
    let pool = pool_without_threads(&machine, 16 * MIB);
    pool.create_volume("v", MIB, &Default::default()).unwrap();
    for round in 1..=40 {
        let volume = pool.volume("v").unwrap();
        put(&*volume, 1, round);
        pool.snapshot("v", &format!("s{round}")).unwrap();
        put(&*volume, 1, 1000 + round);
        volume.flush().unwrap();
        pool.rollback(&format!("v@s{round}"), false).unwrap();
        assert_eq!(tag(&*pool.volume("v").unwrap(), 1), round);
    }
    check(&pool);
}

/// A rollback that is refused has destroyed nothing.
#[test]
fn a_rollback_that_is_refused_costs_no_snapshot() {
    let machine = Machine::new(16 * MIB, 7);
    let pool = pool_without_threads(&machine, 16 * MIB);
    pool.create_volume("v", MIB, &Default::default()).unwrap();
    let volume = pool.volume("v").unwrap();
    // Each is rolled back from data that a clone keeps.
    let mut refused = None;
    for round in 1..=40 {
        put(&*volume, 1, round);
        pool.snapshot("v", &format!("a{round}")).unwrap();
        put(&*volume, 1, 1000 + round);
        pool.snapshot("v", &format!("b{round}")).unwrap();
        pool.clone_snapshot(&format!("v@b{round}"), &format!("c{round}"), &Default::default()).unwrap();
        let before = pool.snapshots(None).unwrap().len();
        if let Err(error) = pool.rollback(&format!("v@a{round}"), true) {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert_eq!(pool.snapshots(None).unwrap().len(), before);
            refused = Some(round);
            break;
        }
    }
    assert!(refused.is_some(), "clones keep what hides from them what was given up");
    check(&pool);
}

/// A clone of a snapshot that a rollback destroys still does not see data that an earlier rollback
/// had discarded.
#[test]
fn what_was_given_up_first_stays_hidden_from_clones_of_what_is_given_up_next() {
    let machine = Machine::new(16 * MIB, 8);
    let pool = pool_without_threads(&machine, 16 * MIB);
    pool.create_volume("v", MIB, &Default::default()).unwrap();
    let volume = pool.volume("v").unwrap();
    put(&*volume, 1, 1);
    pool.snapshot("v", "a").unwrap();
    put(&*volume, 1, 2);
    put(&*volume, 5, 2);
    volume.flush().unwrap();
    pool.rollback("v@a", false).unwrap();
    put(&*volume, 3, 3);
    pool.snapshot("v", "b").unwrap();
    pool.clone_snapshot("v@b", "w", &Default::default()).unwrap();
    pool.rollback("v@a", true).unwrap();
    let clone = pool.volume("w").unwrap();
    let seen = || [1, 3, 5].map(|block| tag(&*clone, block));
    assert_eq!(seen(), [1, 3, 0]);
    settle(&pool);
    pool.drop_caches();
    assert_eq!(seen(), [1, 3, 0]);
    check(&pool);
}

/// A clone of a snapshot that a rollback gives up keeps the data it sees; unseen data goes, and so
/// do the traces.
#[test]
fn rollbacks_spare_clones_of_what_they_give_up() {
    let machine = Machine::new(32 << 20, 6);
    let pool = pool_without_threads(&machine, 32 * MIB);
    pool.create_volume("v", MIB, &BTreeMap::new()).unwrap();
    let device = pool.volume("v").unwrap();
    put(&*device, 0, 1);
    pool.snapshot("v", "a").unwrap();
    put(&*device, 0, 2);
    put(&*device, 1, 2);
    pool.snapshot("v", "b").unwrap();
    pool.clone_snapshot("v@b", "w", &BTreeMap::new()).unwrap();
    put(&*device, 0, 3);
    pool.resize_volume("v", 2 * MIB).unwrap();
    assert_eq!(pool.rollback("v@a", false).unwrap_err().kind(), ErrorKind::InUse);
    pool.rollback("v@a", true).unwrap();
    assert_eq!((tag(&*device, 0), tag(&*device, 1), device.size_bytes()), (1, 0, MIB));
    put(&*device, 1, 4);
    settle(&pool);
    check(&pool);
    pool.drop_caches();
    let clone = pool.volume("w").unwrap();
    assert_eq!((tag(&*clone, 0), tag(&*clone, 1)), (2, 2));
    assert_eq!((tag(&*device, 0), tag(&*device, 1)), (1, 4));
    // 1 and 4 of the volume, both 2s of the clone; 3 is gone.
    assert_eq!(pool.status().live_bytes, 4 * BLOCK as u64);
    // Many consecutive rollbacks leave nothing over.
    for n in 10..60 {
        put(&*device, 2, n);
        pool.rollback("v@a", true).unwrap();
        if n % 3 == 0 {
            settle(&pool);
        }
    }
    pool.destroy("w", false).unwrap();
    settle(&pool);
    check(&pool);
    assert_eq!((tag(&*device, 0), tag(&*device, 1), tag(&*device, 2)), (1, 0, 0));
    assert_eq!(pool.status().live_bytes, BLOCK as u64);
    pool.close().unwrap();
}

/// The `unique` figure is the space freed when a snapshot alone is destroyed; unique and shared add
/// up to its visible data.
#[test]
fn usage_tells_what_destroying_brings() {
    let machine = Machine::new(32 << 20, 7);
    let pool = pool_without_threads(&machine, 32 * MIB);
    pool.create_volume("v", 2 * MIB, &BTreeMap::new()).unwrap();
    let device = pool.volume("v").unwrap();
    let mut n = 0;
    let mut rng = sim::Rng::new(7);
    for number in 0..12 {
        for _ in 0..rng.between(0, 40) {
            n += 1;
            put(&*device, rng.below(300), n);
        }
        device.discard(rng.below(300) * BLOCK as u64, 3 * BLOCK as u64).unwrap();
        pool.snapshot("v", &format!("s{number}")).unwrap();
    }
    pool.clone_snapshot("v@s4", "w", &BTreeMap::new()).unwrap();
    let clone = pool.volume("w").unwrap();
    (0..20).for_each(|index| put(&*clone, 7 * index, 10_000 + index));
    pool.snapshot("w", "x").unwrap();
    (0..9).for_each(|index| put(&*clone, 11 * index, 20_000 + index));
    settle(&pool);
    let nonzero = |name: &str| {
        let device = pool.volume(name).unwrap();
        (0..device.size_bytes() / BLOCK as u64).filter(|index| tag(&*device, *index) != 0).count() as u64 * BLOCK as u64
    };
    for volume in ["v", "w"] {
        for usage in pool.snapshot_usage(volume).unwrap() {
            let name = format!("{volume}@{}", usage.name);
            assert_eq!(usage.unique_bytes + usage.shared_bytes, nonzero(&name), "{name}: {usage:?}");
        }
    }
    // All but the clone's own is of `v`: what it sees itself, and what only others see.
    let only_snapshots = pool.snapshot_only_bytes("v").unwrap();
    let stored = pool.volumes().into_iter().find(|volume| volume.name == "v").unwrap().stored_bytes;
    assert_eq!(only_snapshots + nonzero("v"), stored);
    assert!(only_snapshots > 0 && pool.snapshot_only_bytes("w").unwrap() > 0);
    let usage = pool.snapshot_usage("v").unwrap();
    // The clone sees the data of its origin snapshot.
    assert_eq!(usage[4].unique_bytes, 0);
    assert!(usage.iter().any(|u| u.unique_bytes > 0));
    for number in [4, 7, 0, 11, 3] {
        let name = format!("s{number}");
        let usage = pool.snapshot_usage("v").unwrap().into_iter().find(|u| u.name == name).unwrap();
        let before = pool.status().live_bytes;
        pool.destroy(&format!("v@{name}"), false).unwrap();
        settle(&pool);
        let came_back = before - pool.status().live_bytes;
        // Blocks of the origin that the clone has overwritten are freed, too, and then those that
        // only an older snapshot still had.
        let is_shared = [3, 4].contains(&number);
        assert!(came_back == usage.unique_bytes || is_shared && came_back > usage.unique_bytes, "{name}: {came_back}");
    }
    pool.close().unwrap();
}

/// Bytes of live payload, when no work is pending any more.
fn live(pool: &Pool) -> u64 {
    settle(pool);
    check(pool);
    pool.status().live_bytes
}

/// A pool with a volume of 64 blocks and a clone of it, of which only the clone is left.
fn orphan(machine: &Machine) -> Pool {
    let pool = pool_without_threads(machine, 32 * MIB);
    pool.create_volume("o", MIB, &BTreeMap::new()).unwrap();
    (0..64).for_each(|index| put(&*pool.volume("o").unwrap(), index, 100 + index));
    pool.snapshot("o", "1").unwrap();
    pool.clone_snapshot("o@1", "c", &BTreeMap::new()).unwrap();
    pool.destroy("o", true).unwrap();
    pool
}

fn reopened(machine: &Machine, pool: Pool) -> Pool {
    pool.close().unwrap();
    let options = PoolOptions { workers: 0, memory_bytes: 4 << 20, ..PoolOptions::default() };
    Pool::open(env(machine), options).unwrap()
}

/// Blocks that a clone overwrites, or discards, are not kept for it: block by block, with any kind
/// of checkpoint between.
#[test]
fn what_only_a_clone_needed_goes_when_it_is_written_over() {
    const BYTES: u64 = BLOCK as u64;
    let machine = Machine::new(32 << 20, 20);
    let pool = orphan(&machine);
    assert_eq!(live(&pool), 64 * BYTES);
    let clone = pool.volume("c").unwrap();
    (0..10).for_each(|index| put(&*clone, index, 200 + index));
    assert_eq!(live(&pool), 64 * BYTES);
    clone.discard(10 * BYTES, 6 * BYTES).unwrap();
    pool.light_checkpoint().unwrap();
    assert_eq!(live(&pool), 58 * BYTES);
    // A snapshot of the clone sees data that the clone no longer does.
    pool.snapshot("c", "s").unwrap();
    (0..32).for_each(|index| put(&*clone, index, 300 + index));
    assert_eq!(live(&pool), (58 + 32) * BYTES);
    drop(clone);
    let pool = reopened(&machine, pool);
    let expected = |index: u64| match index {
        0..10 => 200 + index,
        10..16 => 0,
        _ => 100 + index,
    };
    let verify = |name: &str, newer: u64| {
        pool.drop_caches();
        let device = pool.volume(name).unwrap();
        for index in 0..64 {
            assert_eq!(tag(&*device, index), if index < newer { 300 + index } else { expected(index) }, "{index}");
        }
    };
    verify("c@s", 0);
    verify("c", 32);
    // A clone of that snapshot needs the snapshot's blocks of the first one, and gradually fewer.
    pool.clone_snapshot("c@s", "d", &BTreeMap::new()).unwrap();
    pool.destroy("c@s", false).unwrap();
    let second = pool.volume("d").unwrap();
    verify("d", 0);
    assert_eq!(live(&pool), (58 + 32) * BYTES);
    pool.destroy("c", true).unwrap();
    assert_eq!(live(&pool), 58 * BYTES);
    (0..20).for_each(|index| put(&*second, index, 100 + index));
    assert_eq!(live(&pool), 64 * BYTES);
    (20..64).for_each(|index| put(&*second, index, 100 + index));
    assert_eq!(live(&pool), 64 * BYTES);
    assert_eq!((pool.status().unlisted_bytes, pool.volumes()[0].stored_bytes), (0, 64 * BYTES));
    (0..64).for_each(|index| assert_eq!(tag(&*second, index), 100 + index));
    pool.close().unwrap();
}

/// When a point of a clone goes, the blocks of the origin that only that point needed go with it.
#[test]
fn what_a_snapshot_of_a_clone_needed_goes_with_it() {
    let machine = Machine::new(32 << 20, 21);
    let pool = orphan(&machine);
    pool.snapshot("c", "s").unwrap();
    (0..40).for_each(|index| put(&*pool.volume("c").unwrap(), index, 200 + index));
    assert_eq!(live(&pool), (64 + 40) * BLOCK as u64);
    pool.destroy("c@s", false).unwrap();
    assert_eq!(live(&pool), 64 * BLOCK as u64);
    // A rollback discards later writes, and only those.
    pool.snapshot("c", "t").unwrap();
    (0..64).for_each(|index| put(&*pool.volume("c").unwrap(), index, 300 + index));
    assert_eq!(live(&pool), 128 * BLOCK as u64);
    pool.rollback("c@t", false).unwrap();
    assert_eq!(live(&pool), 64 * BLOCK as u64);
    let pool = reopened(&machine, pool);
    let device = pool.volume("c").unwrap();
    (0..64).for_each(|index| assert_eq!(tag(&*device, index), if index < 40 { 200 } else { 100 } + index));
    pool.close().unwrap();
}

/// Cloning a good state, continuing with the clone, and destroying the original costs nothing
/// permanent, however often it is done.
#[test]
fn rounds_of_promoting_and_destroying_leave_nothing_behind() {
    let machine = Machine::new(32 << 20, 22);
    let mut pool = pool_without_threads(&machine, 32 * MIB);
    pool.create_volume("vm", MIB, &BTreeMap::new()).unwrap();
    (0..64).for_each(|index| put(&*pool.volume("vm").unwrap(), index, 1));
    for round in 2..80 {
        pool.snapshot("vm", "good").unwrap();
        pool.clone_snapshot("vm@good", "new", &BTreeMap::new()).unwrap();
        pool.promote("new").unwrap();
        pool.destroy("vm", true).unwrap();
        pool.rename("new", "vm").unwrap();
        let device = pool.volume("vm").unwrap();
        (0..64).for_each(|index| put(&*device, index, round));
        drop(device);
        // In another order now and then, with the snapshot for longer.
        if round % 3 == 0 {
            pool.checkpoint().unwrap();
        }
        pool.destroy("vm@good", false).unwrap();
        if round % 10 == 0 {
            assert_eq!(live(&pool), 64 * BLOCK as u64, "round {round}");
            pool = reopened(&machine, pool);
        }
        (0..64).for_each(|index| assert_eq!(tag(&*pool.volume("vm").unwrap(), index), round));
    }
    assert_eq!(live(&pool), 64 * BLOCK as u64);
    assert_eq!(pool.status().unlisted_bytes, 0);
    pool.close().unwrap();
}

/// The pool's own threads do all of it, unasked.
#[test]
fn the_space_of_an_origin_comes_back_unasked() {
    let machine = Machine::new(32 << 20, 23);
    let options = PoolOptions { workers: 2, memory_bytes: 16 << 20, ..PoolOptions::default() };
    let pool = new_pool(&machine, 32 * MIB, options);
    pool.create_volume("o", MIB, &BTreeMap::new()).unwrap();
    (0..64).for_each(|index| put(&*pool.volume("o").unwrap(), index, 1));
    pool.snapshot("o", "1").unwrap();
    pool.clone_snapshot("o@1", "c", &BTreeMap::new()).unwrap();
    (0..64).for_each(|index| put(&*pool.volume("c").unwrap(), index, 2));
    pool.flush().unwrap();
    pool.destroy("o", true).unwrap();
    until("all is reaped", || pool.status().unlisted_bytes == 0 && pool.status().reaping == 0);
    (0..64).for_each(|index| assert_eq!(tag(&*pool.volume("c").unwrap(), index), 2));
    assert_eq!(live(&pool), 64 * BLOCK as u64);
    pool.close().unwrap();
}

/// A difference names every block that is not the same, and none that was not touched.
#[test]
fn differences_are_what_was_written_between() {
    let machine = Machine::new(64 << 20, 8);
    let pool = pool_without_threads(&machine, 64 * MIB);
    pool.create_volume("v", 32 * MIB, &BTreeMap::new()).unwrap();
    let device = pool.volume("v").unwrap();
    let blocks = 32 * MIB / BLOCK as u64;
    (0..400).for_each(|index| put(&*device, index * 20, 1 + index));
    pool.snapshot("v", "a").unwrap();
    let touched = [0u64, 20, 21, 22, 5000, 8191];
    touched.iter().for_each(|index| put(&*device, *index, 9000 + index));
    device.discard(40 * BLOCK as u64, 30 * BLOCK as u64).unwrap();
    pool.snapshot("v", "b").unwrap();
    put(&*device, 100, 77);
    let all = |from: &str, to: &str| {
        let (mut changes, mut start) = (Vec::new(), Some(0));
        while let Some(at) = start {
            let page = pool.diff(from, to, at).unwrap();
            changes.extend(page.changes);
            start = page.next;
        }
        changes
    };
    let flat = |changes: &[engine::Changed]| -> Vec<(u64, bool)> {
        let each = |c: &engine::Changed| {
            let first = c.offset / BLOCK as u64;
            (first..first + c.length / BLOCK as u64)
                .map(|b| (b, c.now == surface::Allocation::Data))
                .collect::<Vec<_>>()
        };
        changes.iter().flat_map(each).collect()
    };
    let found = flat(&all("v@a", "v@b"));
    let expected =
        [(0, true), (20, true), (21, true), (22, true), (40, false), (60, false), (5000, true), (8191, true)];
    assert_eq!(found, expected);
    assert_eq!(flat(&all("v@b", "v")), [(100, true)]);
    // And backwards, across a clone, it is the difference in content.
    pool.clone_snapshot("v@a", "w", &BTreeMap::new()).unwrap();
    put(&*pool.volume("w").unwrap(), 3, 5);
    let found = flat(&all("v@b", "w"));
    let (old, new) = (pool.volume("v@b").unwrap(), pool.volume("w").unwrap());
    let differ: Vec<_> = (0..blocks).filter(|index| tag(&*old, *index) != tag(&*new, *index)).collect();
    assert_eq!(found.iter().map(|(block, _)| *block).collect::<Vec<_>>(), differ);
    assert_eq!(pool.diff("v@nothing", "v", 0).unwrap_err().kind(), ErrorKind::NotFound);
    pool.close().unwrap();
}

/// It took a checkpoint, at the wish of everyone who could read figures.
#[test]
fn a_difference_has_what_is_still_in_memory_and_writes_nothing() {
    let machine = Machine::new(64 << 20, 8);
    let pool = pool_without_threads(&machine, 64 * MIB);
    pool.create_volume("v", 32 * MIB, &BTreeMap::new()).unwrap();
    let device = pool.volume("v").unwrap();
    (0..400).for_each(|index| put(&*device, index * 20, 1 + index));
    pool.snapshot("v", "a").unwrap();
    let hole = |index: u64| device.discard(index * BLOCK as u64, BLOCK as u64).unwrap();
    // As of the last checkpoint; then in the map only; then in the write buffer only.
    put(&*device, 20, 77);
    pool.checkpoint().unwrap();
    put(&*device, 21, 77);
    (40..=80).step_by(20).for_each(hole);
    pool.flush().unwrap();
    [20, 22, 80].into_iter().for_each(|index| put(&*device, index, 78));
    // The last one was a hole before.
    [100, 101].into_iter().for_each(hole);
    let expected = [(20, 3, true), (40, 1, false), (60, 1, false), (80, 1, true), (100, 1, false)];
    let before = pool.status();
    let found = |from: &str, to: &str| -> Vec<(u64, u64, bool)> {
        let page = pool.diff(from, to, 0).unwrap();
        assert_eq!(page.next, None);
        let flat = |c: &engine::Changed| {
            (c.offset / BLOCK as u64, c.length / BLOCK as u64, c.now == surface::Allocation::Data)
        };
        page.changes.iter().map(flat).collect()
    };
    assert_eq!(found("v@a", "v"), expected);
    let after = pool.status();
    let written = |status: &engine::PoolStatus| (status.log_bytes, status.checkpoints, status.light_checkpoints);
    assert_eq!(written(&after), written(&before));
    assert_eq!(pool.diff("v@a", "v", 40 * BLOCK as u64).unwrap().changes[0].offset, 40 * BLOCK as u64);
    // A snapshot drains its volume, and is not at a checkpoint either.
    pool.snapshot("v", "b").unwrap();
    put(&*device, 7, 79);
    assert_eq!(found("v@a", "v@b"), expected);
    assert_eq!(found("v@b", "v"), [(7, 1, true)]);
    pool.checkpoint().unwrap();
    assert_eq!((found("v@a", "v@b"), found("v@b", "v")), (expected.to_vec(), vec![(7, 1, true)]));
    pool.close().unwrap();
}

/// A clone was made with properties that `create` refuses.
#[test]
fn clones_are_made_with_properties_that_hold_together() {
    let machine = Machine::new(40 << 20, 9);
    let pool = pool_without_threads(&machine, 40 * MIB);
    let own = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    pool.create_volume("v", MIB, &own(&[("snapshots", "hourly"), ("quota", "2M")])).unwrap();
    pool.snapshot("v", "s").unwrap();
    for (name, properties) in [("c".to_owned(), own(&[("reservation", "3M")])), ("c".repeat(250), BTreeMap::new())] {
        assert_eq!(pool.clone_snapshot("v@s", &name, &properties).unwrap_err().kind(), ErrorKind::Invalid);
    }
    pool.clone_snapshot("v@s", &"c".repeat(250), &own(&[("snapshots", "off")])).unwrap();
    pool.close().unwrap();
}

/// A reservation of a volume is not repeated for each of its clones.
#[test]
fn clones_do_not_inherit_reservations() {
    let machine = Machine::new(40 << 20, 9);
    let pool = pool_without_threads(&machine, 40 * MIB);
    let properties = [("reservation".to_owned(), "16M".to_owned()), ("unit".to_owned(), "8K".to_owned())].into();
    pool.create_volume("v", MIB, &properties).unwrap();
    pool.snapshot("v", "s").unwrap();
    for name in ["a", "b", "c"] {
        pool.clone_snapshot("v@s", name, &BTreeMap::new()).unwrap();
    }
    let own = pool.volumes().into_iter().find(|v| v.name == "a").unwrap().properties;
    assert_eq!(own, [("unit".to_owned(), "8K".to_owned())].into());
    let more = [("reservation".to_owned(), "16M".to_owned())].into();
    assert_eq!(pool.clone_snapshot("v@s", "d", &more).unwrap_err().kind(), ErrorKind::Full);
    pool.close().unwrap();
}

/// SMB clients took its name for the time of its content.
#[test]
fn names_of_scheduled_snapshots_cannot_be_taken_by_users() {
    let machine = Machine::new(8 * MIB, 1);
    let pool = pool_without_threads(&machine, 8 * MIB);
    pool.create_folder("f", &BTreeMap::new()).unwrap();
    pool.create_volume("f/v", MIB, &BTreeMap::new()).unwrap();
    let name = policy::scheduled_name(0);
    pool.snapshot("f/v", "mine").unwrap();
    let refused = [
        pool.snapshot("f/v", &name),
        pool.snapshot_folder("f", &name).map(drop),
        pool.rename("f/v@mine", &format!("f/v@{name}")),
    ];
    for error in refused.map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("reserved for scheduled snapshots"), "{error}");
    }
    // The schedule takes them, and a user may give such a snapshot another name.
    pool.take_snapshot("f/v", &name, true).unwrap();
    pool.rename(&format!("f/v@{name}"), &format!("f/v@{name}")).unwrap();
    pool.rename(&format!("f/v@{name}"), "f/v@kept").unwrap();
    pool.close().unwrap();
}

/// It was, and the schedule then failed to take a snapshot, every ten seconds.
#[test]
fn a_volume_gets_no_name_that_is_too_long_for_its_schedule() {
    let machine = Machine::new(8 * MIB, 1);
    let pool = pool_without_threads(&machine, 8 * MIB);
    let set = |volume: Option<&str>, value: Option<&str>| {
        pool.set_properties(volume, &[("snapshots".to_owned(), value.map(str::to_owned))]).unwrap();
    };
    pool.create_volume("v", MIB, &BTreeMap::new()).unwrap();
    pool.snapshot("v", "s").unwrap();
    // Its own schedule, and that of the pool.
    for (volume, value) in [(Some("v"), "hourly"), (None, "daily")] {
        set(volume, Some(value));
        let error = pool.rename("v", &"w".repeat(250)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let text = error.to_string();
        assert!(text.starts_with("volume 'v' keeps its name") && text.contains("snapshots=off"), "{text}");
        let (_, most) = text.split_once("at most ").unwrap();
        let most: usize = most.split_once(' ').unwrap().0.parse().unwrap();
        pool.rename("v", &"w".repeat(most + 1)).unwrap_err();
        pool.rename("v", &"w".repeat(most)).unwrap();
        pool.take_snapshot(&"w".repeat(most), &policy::scheduled_name(0), true).unwrap();
        pool.destroy(format!("{}@{}", "w".repeat(most), policy::scheduled_name(0)).as_str(), false).unwrap();
        pool.rename(&"w".repeat(most), "v").unwrap();
        set(volume, None);
    }
    set(None, Some("daily"));
    set(Some("v"), Some("off"));
    pool.rename("v", &"w".repeat(250)).unwrap();
    pool.close().unwrap();
}
