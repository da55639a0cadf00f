#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use bytes::Bytes;
use sim::Machine;
use surface::{BlockDevice, WriteOptions};

use crate::pool::Pool;
use crate::pool::testing::pool_on;
use units::BLOCK_BYTES;

const BLOCKS: u64 = 8;

fn write(pool: &Pool, blocks: std::ops::Range<u64>, byte: u8) {
    let volume = pool.volume("v").unwrap();
    for block in blocks {
        let data = Bytes::from(vec![byte; BLOCK_BYTES]);
        volume.write(block * BLOCK_BYTES as u64, data, WriteOptions::default()).unwrap();
    }
}

/// The volume is replaced by a clone of itself, and the old one is destroyed.
fn next_generation(pool: &Pool) {
    pool.snapshot("v", "s").unwrap();
    pool.clone_snapshot("v@s", "next", &BTreeMap::new()).unwrap();
    pool.destroy("v", true).unwrap();
    pool.rename("next", "v").unwrap();
}

/// An object that had lost its origin was never processed again: it kept its holes, and stayed a
/// level in the chain.
#[test]
fn an_object_of_which_only_holes_are_left_goes_with_what_they_hid() {
    let machine = Machine::new(8 << 20, 5);
    let pool = pool_on(&machine, machine.disk.handle(), 8 << 20, 0);
    pool.create_volume("v", BLOCKS * BLOCK_BYTES as u64, &BTreeMap::new()).unwrap();
    write(&pool, 0..BLOCKS, 1);
    next_generation(&pool);
    pool.volume("v").unwrap().discard(0, BLOCK_BYTES as u64).unwrap();
    write(&pool, 1..3, 2);
    next_generation(&pool);
    let levels = || pool.core.objects.named("v").unwrap().levels().len();
    assert_eq!(levels(), 3);
    // The first one is no longer seen; of the second, the hole is.
    write(&pool, 1..BLOCKS, 3);
    for _ in 0..8 {
        pool.checkpoint().unwrap();
    }
    assert_eq!(levels(), 1);
    assert_eq!(pool.core.objects.all().len(), 1);
    for block in 0..BLOCKS {
        let mut data = vec![0xee; BLOCK_BYTES];
        pool.volume("v").unwrap().read(block * BLOCK_BYTES as u64, &mut data).unwrap();
        assert_eq!(data, vec![if block == 0 { 0 } else { 3 }; BLOCK_BYTES], "block {block}");
    }
    assert!(pool.check(false, &mut |_, _| ()).unwrap().problems.is_empty());
}
