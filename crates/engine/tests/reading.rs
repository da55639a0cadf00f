//! What a small read brings into memory: its neighbourhood while the cache has plenty of room and it lies beside what is read anyway.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/machine_env.rs"]
mod machine_env;

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions, Properties, Volume};
use sim::{ContentKind, Machine, Rng, fill_content};
use std::sync::Arc;
use surface::{BlockDevice, WriteOptions};

const BLOCK: usize = 4096;
const GROUP: usize = 128 << 10;
const VOLUME: usize = 16 << 20;

struct World {
    pool: Pool,
    volume: Arc<Volume>,
    data: Vec<u8>,
}

impl World {
    /// A volume that was written in order, or block by block in an order in which no two neighbours follow each other.
    fn new(memory_bytes: u64, in_order: bool) -> Self {
        let machine = Machine::new(64 << 20, 3);
        let env = machine_env::env(&machine);
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
            // A stride that has no divisor in common with the number of blocks visits each once; flushed before its neighbours come.
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

    /// Bytes that reading takes from the disk; what is read is compared.
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
    // Half of the cache, an eighth of the memory at least, is taken after a few groups; then a unit is read, not a group.
    let world = World::new(8 << 20, true);
    let unit = 32 << 10;
    let costs: Vec<u64> = (0..VOLUME / GROUP).map(|group| world.read(group * GROUP, BLOCK)).collect();
    let (first, last) = (costs[0], costs[costs.len() - 1]);
    assert!(last <= unit && first > 2 * last, "{costs:?}");
}
