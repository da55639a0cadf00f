//! Concurrent reads, and the data that a small read loads: its neighbourhood while the cache has
//! plenty of room and it is adjacent to the requested data.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::together::read_together;
use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions, Properties, Volume};
use sim::{ContentKind, Machine, Rng, fill_content};
use std::sync::Arc;
use surface::{BlockDevice, ErrorKind, WriteOptions};

const BLOCK: usize = 4096;
const GROUP: usize = 128 << 10;
const VOLUME: usize = 16 << 20;

struct World {
    pool: Pool,
    volume: Arc<Volume>,
    data: Vec<u8>,
}

impl World {
    /// A volume that was written in order, or block by block in an order in which no two neighbours
    /// follow each other.
    fn new(memory_bytes: u64, in_order: bool) -> Self {
        let machine = Machine::new(64 << 20, 3);
        let env = crate::common::machine_env::env(&machine);
        let properties = Properties::from([("compression".into(), "lz4".into()), ("unit".into(), "32K".into())]);
        Pool::format(&env, &FormatOptions { capacity_bytes: 64 << 20, extent_bytes: 256 << 10, properties }).unwrap();
        let pool = Pool::open(env, PoolOptions { memory_bytes, workers: 0, ..PoolOptions::default() }).unwrap();
        let volume = {
            pool.create_volume("v", VOLUME as u64, &Properties::new()).unwrap();
            pool.volume("v").unwrap()
        };
        let mut rng = Rng::new(7);
        let mut data = vec![0; VOLUME];
        data.chunks_mut(BLOCK).for_each(|block| fill_content(&mut rng, ContentKind::Text, block));
        let put = |at: usize, len: usize| {
            let bytes = Bytes::copy_from_slice(&data[at..at + len]);
            volume.write(at as u64, bytes, WriteOptions::default()).unwrap();
        };
        if in_order {
            (0..VOLUME).step_by(GROUP).for_each(|at| put(at, GROUP));
        } else {
            // A stride that has no divisor in common with the number of blocks visits each once;
            // flushed before its neighbours come.
            for index in 0..VOLUME / BLOCK {
                put(index * 1237 % (VOLUME / BLOCK) * BLOCK, BLOCK);
                if index % 64 == 63 {
                    pool.flush().unwrap();
                }
            }
        }
        pool.checkpoint().unwrap();
        pool.drop_caches();
        Self { pool, volume, data }
    }

    /// Returns the bytes that reading takes from the disk; compares the data.
    fn read(&self, at: usize, len: usize) -> u64 {
        let before = self.pool.status().read_disk_bytes;
        let mut buf = vec![0; len];
        self.volume.read(at as u64, &mut buf).unwrap();
        assert!(buf == self.data[at..at + len], "{len} bytes at {at} are not what was written");
        self.pool.status().read_disk_bytes - before
    }
}

#[test]
fn a_group_that_lies_together_is_read_once() {
    let world = World::new(32 << 20, true);
    for group in 0..8 {
        let start = group * GROUP;
        let first = world.read(start + 13 * BLOCK, BLOCK);
        assert!(first > 0, "caches were dropped");
        let rest: u64 = (0..GROUP).step_by(BLOCK).map(|at| world.read(start + at, BLOCK)).sum();
        assert_eq!(rest, 0, "all of group {group} came with its first block");
    }
}

#[test]
fn what_lies_elsewhere_is_not_read() {
    let world = World::new(32 << 20, false);
    let bytes: u64 = (0..64).map(|index| world.read(index * GROUP + 5 * BLOCK, BLOCK)).sum();
    assert!(bytes <= 64 * 2 * BLOCK as u64, "{bytes} bytes for 64 blocks: neighbours in the volume, not in the log");
}

#[test]
fn a_cache_that_fills_up_is_not_used_for_what_nobody_asked_for() {
    // Half of the cache, an eighth of the memory at least, is taken after a few groups; then a unit
    // is read, not a group.
    let world = World::new(8 << 20, true);
    let unit = 32 << 10;
    let costs: Vec<u64> = (0..VOLUME / GROUP).map(|group| world.read(group * GROUP, BLOCK)).collect();
    let (first, last) = (costs[0], costs[costs.len() - 1]);
    assert!(last <= unit && first > 2 * last, "{costs:?}");
}

#[test]
fn reads_of_every_kind_are_done_together() {
    for (memory_bytes, in_order) in [(32 << 20, true), (1 << 20, true), (32 << 20, false)] {
        let world = World::new(memory_bytes, in_order);
        // Of a block and of parts, across units and groups, whole groups, too long to be done with
        // others, and nothing.
        let lengths = [4096, 1, 4096, 33 << 10, 100, GROUP, 0, 3 * GROUP + 5, 1 << 20, (1 << 20) + 1, 3 << 20];
        let ranges: Vec<_> = (0..300usize)
            .map(|index| {
                let len = lengths[index % lengths.len()];
                (((index * 7919 * 512 + index) % (VOLUME - len + 1)) as u64, len)
            })
            .collect();
        let dirty = vec![0xab; 5 * BLOCK];
        world.volume.write(9 * GROUP as u64 + 100, Bytes::from(dirty.clone()), WriteOptions::default()).unwrap();
        let mut expected = world.data.clone();
        expected[9 * GROUP + 100..][..dirty.len()].copy_from_slice(&dirty);
        let before = world.pool.status().read_bytes;
        for ((offset, len), read) in ranges.iter().zip(read_together(&*world.volume, &ranges)) {
            let at = *offset as usize;
            assert!(read.unwrap() == expected[at..at + len], "{len} bytes at {at}");
        }
        let bytes: usize = ranges.iter().map(|(_, len)| len).sum();
        assert_eq!(world.pool.status().read_bytes - before, bytes as u64, "each is counted once");
    }
}

#[test]
fn a_read_past_the_end_fails_alone() {
    let world = World::new(4 << 20, true);
    let end = VOLUME as u64;
    let ranges = [(0, BLOCK), (end - 4096, 8192), (4096, BLOCK), (end, 0), (end + 1, 0), (u64::MAX, 2), (8192, BLOCK)];
    let mut reads = read_together(&*world.volume, &ranges);
    for bad in [5, 4, 1] {
        let error = reads.remove(bad).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("past the end"), "{error}");
    }
    let lengths: Vec<_> = reads.into_iter().map(|read| read.unwrap().len()).collect();
    assert_eq!(lengths, [BLOCK, BLOCK, 0, BLOCK]);
}
