//! Allocated blocks are counted by `map::apply` between checkpoints, and by these.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use sim::Machine;
use surface::{BlockDevice, WriteOptions};
use units::BLOCK_BYTES;

use crate::Properties;
use crate::pool::testing::pool_on;

const POOL_BYTES: u64 = 64 << 20;

/// Allocated blocks are counted exactly between checkpoints too, as far as memory knows the
/// groups: whether a block's last change was merged into the records, is settled, is being
/// settled, or is neither.
#[test]
fn blocks_that_are_discarded_and_written_again_are_counted_once() {
    let machine = Machine::new(POOL_BYTES, 1);
    let pool = pool_on(&machine, machine.disk.handle(), POOL_BYTES, 0);
    pool.create_volume("v", 1 << 20, &Properties::new()).unwrap();
    let volume = pool.volume("v").unwrap();
    let block = BLOCK_BYTES as u64;
    let data = Bytes::from(b"what is written ".repeat(8 * BLOCK_BYTES / 16));
    let write = |first: u64, blocks: usize| {
        volume.write(first * block, data.slice(..blocks * BLOCK_BYTES), WriteOptions::default()).unwrap();
        volume.flush().unwrap();
    };
    let discard = |first: u64, blocks: u64| {
        volume.discard(first * block, blocks * block).unwrap();
        volume.flush().unwrap();
    };
    let is_allocated = |blocks: u64| assert_eq!(pool.status().allocated_bytes, blocks * block);
    write(0, 8);
    pool.checkpoint().unwrap();
    // The group is cached from here on.
    volume.read(0, &mut vec![0; BLOCK_BYTES]).unwrap();
    discard(0, 4);
    is_allocated(4);
    pool.core.checkpoints.take_light().unwrap();
    is_allocated(4);
    write(2, 1);
    is_allocated(5);
    write(8, 2);
    is_allocated(7);
    pool.core.checkpoints.take_light().unwrap();
    is_allocated(7);
    write(2, 1);
    write(9, 2);
    is_allocated(8);
    discard(2, 1);
    discard(9, 1);
    is_allocated(6);
    pool.checkpoint().unwrap();
    is_allocated(6);
}
