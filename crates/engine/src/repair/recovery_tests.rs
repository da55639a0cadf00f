//! A batch next to a large unreadable area of the log is found, and data in such an area is not
//! written over.
#![allow(clippy::unwrap_used)]

use std::ops::Range;

use bytes::Bytes;
use env::{AlignedBuf, Disk};
use format::{Checkpoint, KEY_CHECKPOINT, OpenExtent};
use sim::{ContentKind, Machine, Rng, fill_content};
use store::base::options::FormatOptions;
use surface::{BlockDevice, WriteOptions};

use crate::Properties;
use crate::pool::Pool;
use crate::pool::testing::{env_on, reopen_on};

const EXTENT_BYTES: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// Writes incompressible blocks.
fn write(pool: &Pool, blocks: Range<u64>) {
    let volume = pool.volume("v").unwrap();
    for block in blocks {
        let mut data = vec![0; BLOCK as usize];
        fill_content(&mut Rng::new(block), ContentKind::Random, &mut data);
        volume.write(block * BLOCK, Bytes::from(data), WriteOptions::default()).unwrap();
    }
    pool.flush().unwrap();
}

/// A pool whose last checkpoint left an extent of the log at block 80 or a little more, and that
/// has a durable batch of a few blocks there: the machine, the extent's first byte in the data
/// file, and the volume's block in that batch.
fn with_a_batch_at_block_80() -> (Machine, u64, u64) {
    let mut machine = Machine::new(32 * EXTENT_BYTES, 1);
    let env = env_on(&machine, machine.disk.handle());
    let options = FormatOptions {
        capacity_bytes: 32 * EXTENT_BYTES,
        extent_bytes: EXTENT_BYTES as u32,
        properties: Properties::default(),
    };
    Pool::format(&env, &options).unwrap();
    let pool = reopen_on(&machine, machine.disk.handle());
    pool.create_volume("v", EXTENT_BYTES, &Properties::from([("compression".to_owned(), "off".to_owned())])).unwrap();
    let open = || -> Option<OpenExtent> {
        let dump = machine.store.dump();
        let (_, value) = dump.into_iter().find(|(key, _)| key[..] == *KEY_CHECKPOINT).unwrap();
        Checkpoint::decode(&value).unwrap().open.into_iter().flatten().next()
    };
    let mut blocks = 0;
    let at = loop {
        write(&pool, blocks..blocks + 1);
        blocks += 1;
        pool.checkpoint().unwrap();
        if let Some(open) = open().filter(|open| u64::from(open.offset) >= 80 * BLOCK) {
            break open;
        }
    };
    write(&pool, blocks..blocks + 1);
    drop(pool);
    machine.restart();
    let (extent, first) = (u64::from(at.extent.0) * EXTENT_BYTES, u64::from(at.offset) / BLOCK);
    assert!((80..86).contains(&first), "the log did not stop where it was to: {first}");
    (machine, extent, blocks)
}

/// Makes so many blocks of an extent unreadable, each until it is written over.
fn break_reads(machine: &Machine, extent: u64, blocks: Range<u64>) {
    for at in blocks.map(|block| extent + block * BLOCK) {
        machine.disk.break_reads(at..at + BLOCK);
    }
}

/// Asserts that a block of the volume holds its test pattern.
fn expect(pool: &Pool, block: u64) {
    let (mut data, mut found) = (vec![0; BLOCK as usize], vec![0; BLOCK as usize]);
    fill_content(&mut Rng::new(block), ContentKind::Random, &mut data);
    pool.volume("v").unwrap().read(block * BLOCK, &mut found).unwrap();
    assert!(data == found, "block {block}");
}

/// It was skipped with the area, the pool could not be opened, and `check --repair` wrote zeroes
/// over it.
#[test]
fn a_batch_beside_an_area_that_is_gone_is_replayed() {
    // Before it; on both sides of it, so that neither of the part's ends can be read.
    for behind in [None, Some(92..160)] {
        let (machine, extent, last) = with_a_batch_at_block_80();
        break_reads(&machine, extent, 0..71);
        behind.into_iter().for_each(|area| break_reads(&machine, extent, area));
        let pool = reopen_on(&machine, machine.disk.handle());
        expect(&pool, last);
        drop(pool);
    }
}

/// Zeroes were written over everything that was skipped.
#[test]
fn what_can_be_read_alone_is_not_written_over() {
    let (machine, extent, last) = with_a_batch_at_block_80();
    let alone = extent + 205 * BLOCK;
    machine.disk.poke(alone, &[7; BLOCK as usize]);
    break_reads(&machine, extent, 100..205);
    break_reads(&machine, extent, 206..250);
    let pool = reopen_on(&machine, machine.disk.handle());
    expect(&pool, last);
    let mut buf = AlignedBuf::new(EXTENT_BYTES as usize);
    machine.disk.handle().read_at(extent, &mut buf, EXTENT_BYTES as usize).unwrap();
    let alone = (alone - extent) as usize;
    assert!(buf[alone..alone + BLOCK as usize].iter().all(|byte| *byte == 7));
    drop(pool);
}
