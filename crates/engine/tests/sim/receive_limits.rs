//! Limits of a stream's content: names that every command can use afterwards, and holes within the
//! volume.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use crate::common::machine_env::env;
use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions, Receiver};
use format::{
    FragmentEntry, STREAM_HEAD_BYTES, SnapshotIdentity, StreamBegin, StreamData, StreamWriter, stream_checksum,
};
use sim::Machine;
use surface::{BlockDevice, Error, ErrorKind, WriteOptions};
use units::{BlockIndex, GroupIndex};

const CAPACITY_BYTES: u64 = 8 << 20;
const VOLUME_BYTES: u64 = 1 << 20;

fn pool(machine: &Machine) -> Pool {
    let format =
        FormatOptions { capacity_bytes: CAPACITY_BYTES, extent_bytes: 64 << 10, properties: Default::default() };
    Pool::format(&env(machine), &format).unwrap();
    Pool::open(env(machine), PoolOptions { workers: 0, ..PoolOptions::default() }).unwrap()
}

fn begin(snapshot: &str, size_bytes: u64) -> StreamBegin {
    StreamBegin {
        to: SnapshotIdentity([7; 16]),
        from: None,
        created_unix_s: 1,
        size_bytes,
        start: GroupIndex(0),
        expected_bytes: 0,
        volume: "v".to_owned(),
        snapshot: snapshot.to_owned(),
        parent: String::new(),
        properties: BTreeMap::new(),
        image: None,
    }
}

fn holes(next: u64, holes: Vec<(BlockIndex, u32)>) -> StreamData {
    StreamData { from: GroupIndex(0), next: GroupIndex(next), holes, fragments: Vec::new() }
}

fn give(receiver: &mut Receiver, chunk: &[u8]) -> Result<bool, Error> {
    let (head, body) = chunk.split_first_chunk::<STREAM_HEAD_BYTES>().unwrap();
    receiver.take(head, body).map(|report| report.is_some())
}

#[test]
fn a_snapshot_whose_full_name_would_be_too_long_is_refused_at_once() {
    let machine = Machine::new(CAPACITY_BYTES, 1);
    let pool = pool(&machine);
    let chunk = StreamWriter::default().begin(&begin(&"s".repeat(100), VOLUME_BYTES));
    let mut receiver = pool.receive(&"v".repeat(155), &BTreeMap::new());
    assert_eq!(give(&mut receiver, &chunk).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(!give(&mut pool.receive(&"v".repeat(154), &BTreeMap::new()), &chunk).unwrap());
    pool.close().unwrap();
}

#[test]
fn a_volume_keeps_room_in_its_name_for_the_snapshot_that_it_is_receiving() {
    let (here, there) = (Machine::new(CAPACITY_BYTES, 1), Machine::new(CAPACITY_BYTES, 2));
    let (source, copy) = (pool(&here), pool(&there));
    source.create_volume("v", VOLUME_BYTES, &BTreeMap::new()).unwrap();
    source.snapshot("v", "a").unwrap();
    let write = |at| {
        let device = source.volume("v").unwrap();
        device.write(at, Bytes::from(vec![1; 4096]), WriteOptions::default()).unwrap();
    };
    write(0);
    let long = "s".repeat(100);
    source.snapshot("v", &long).unwrap();
    let bring = |snapshot: &str, from: Option<&str>, all: bool| {
        let mut sender = source.send(snapshot, from).unwrap();
        let chunks: Vec<_> = std::iter::from_fn(|| sender.next_chunk().unwrap()).collect();
        let mut receiver = copy.receive("v", &BTreeMap::new());
        let count = if all { chunks.len() } else { chunks.len() - 1 };
        for chunk in &chunks[..count] {
            give(&mut receiver, chunk).unwrap();
        }
    };
    bring("v@a", None, true);
    bring(&format!("v@{long}"), Some("a"), false);
    assert_eq!(copy.rename("v", &"w".repeat(155)).unwrap_err().kind(), ErrorKind::Invalid);
    copy.rename("v", &"w".repeat(154)).unwrap();
    source.close().unwrap();
    copy.close().unwrap();
}

#[test]
fn holes_behind_the_end_of_a_volume_are_refused() {
    let machine = Machine::new(CAPACITY_BYTES, 1);
    let pool = pool(&machine);
    let groups = VOLUME_BYTES / units::GROUP_BYTES as u64;
    for (next, hole, is_right) in [
        (groups, (BlockIndex(0), 32 * groups as u32), true),
        (groups + 1, (BlockIndex(0), 32 * groups as u32 + 1), false),
        (1 << 25, (BlockIndex(1 << 29), (1 << 24) - 1), false),
    ] {
        let mut writer = StreamWriter::default();
        let chunks = [
            writer.begin(&begin("s", VOLUME_BYTES)),
            writer.data(&holes(next, vec![hole]), [].into_iter()),
            writer.end(),
        ];
        let mut receiver = pool.receive("v", &BTreeMap::new());
        let result = chunks.iter().try_fold(false, |_, chunk| give(&mut receiver, chunk));
        assert_eq!(result.map_err(|error| error.kind()), if is_right { Ok(true) } else { Err(ErrorKind::Corrupt) });
        pool.destroy(if is_right { "v" } else { "v@s" }, true).unwrap();
    }
    pool.close().unwrap();
}

/// A few hundred bytes of a stream stand for thousands of batches, which are not all made before
/// the first one is written.
#[test]
fn holes_of_any_size_arrive_and_nothing_is_left_of_them() {
    let machine = Machine::new(CAPACITY_BYTES, 1);
    let pool = pool(&machine);
    let (blocks, count) = ((1 << 24) - 1, 32);
    let list: Vec<_> = (0..count).map(|index| (BlockIndex(index * (1 << 24)), blocks)).collect();
    let mut writer = StreamWriter::default();
    let chunks =
        [writer.begin(&begin("s", count << 36)), writer.data(&holes(count << 19, list), [].into_iter()), writer.end()];
    let mut receiver = pool.receive("v", &BTreeMap::new());
    for chunk in &chunks {
        give(&mut receiver, chunk).unwrap();
    }
    assert_eq!(pool.volume("v@s").unwrap().allocated_bytes(), 0);
    let report = pool.check(false, &mut |_, _| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    pool.close().unwrap();
}

/// A fragment whose checksum is right, and which is rubbish all the same, is refused: nothing that
/// only verifies checksums would ever find it.
#[test]
fn what_cannot_be_decoded_is_refused_whatever_its_checksum() {
    let machine = Machine::new(CAPACITY_BYTES, 1);
    let pool = pool(&machine);
    let lz4 = codec::Codec::Lz4;
    let raw = [b"some text ".repeat(900), vec![0; 3 * 4096 - 9000]].concat();
    let mut right = vec![0; raw.len()];
    let stored = codec::Workspace::new().compress(lz4, &raw, &mut right).unwrap();
    right.truncate(stored);
    let (long, short) = ([&right[..], &[0]].concat(), right[..stored - 1].to_vec());
    let rubbish: Vec<u8> = right.iter().map(|byte| byte ^ 0x55).collect();
    let groups = VOLUME_BYTES / units::GROUP_BYTES as u64;
    for (payload, codec, is_right) in [
        (right, lz4.id().0, true),
        (long, lz4.id().0, false),
        (short, lz4.id().0, false),
        (rubbish, lz4.id().0, false),
        (raw.clone(), 0, true),
        (raw[1..].to_vec(), 0, false),
    ] {
        let entry = FragmentEntry { first: BlockIndex(0), count: 3, codec, stored: payload.len() as u32, checksum: 0 };
        let entry = FragmentEntry { checksum: stream_checksum(&entry, &payload), ..entry };
        let mut writer = StreamWriter::default();
        let data =
            StreamData { fragments: vec![entry], ..holes(groups, vec![(BlockIndex(3), 32 * groups as u32 - 3)]) };
        let chunks =
            [writer.begin(&begin("s", VOLUME_BYTES)), writer.data(&data, [&payload[..]].into_iter()), writer.end()];
        let mut receiver = pool.receive("v", &BTreeMap::new());
        let result = chunks.iter().try_fold(false, |_, chunk| give(&mut receiver, chunk));
        assert_eq!(result.map_err(|error| error.kind()), if is_right { Ok(true) } else { Err(ErrorKind::Corrupt) });
        if is_right {
            let mut found = vec![0; raw.len()];
            pool.volume("v@s").unwrap().read(0, &mut found).unwrap();
            assert!(found == raw);
        }
        let report = pool.check(false, &mut |_, _| ()).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        pool.destroy(if is_right { "v" } else { "v@s" }, true).unwrap();
    }
    pool.close().unwrap();
}
