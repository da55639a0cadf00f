//! Readers that never stop, each with many reads in flight, and a thread that needs all of them to
//! be gone for a moment.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions};
use sim::{ContentKind, Machine, Rng, fill_content};
use surface::{BlockDevice, PendingRead, Result, WriteOptions};
use testkit::until;

use crate::common::machine_env::env;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 2048;
/// Requests that each reader has, and readers.
const DEPTH: usize = 16;
const READERS: u64 = 2;

/// A block that says where it lies.
fn block(index: u64) -> Vec<u8> {
    let mut data = vec![0; BLOCK];
    fill_content(&mut Rng::new(index), ContentKind::Text, &mut data);
    data[..8].copy_from_slice(&index.to_le_bytes());
    data
}

struct Read {
    index: u64,
    data: Vec<u8>,
    spare: Rc<RefCell<Vec<Vec<u8>>>>,
    whole: Rc<[u8]>,
}

impl PendingRead for Read {
    fn offset(&self) -> u64 {
        self.index * BLOCK as u64
    }
    fn buf(&mut self) -> &mut [u8] {
        &mut self.data
    }
    fn finish(self: Box<Self>, result: Result<()>) {
        assert!(result.is_ok(), "HARNESS: block {}: {result:?}", self.index);
        let place = self.index as usize * BLOCK;
        assert!(self.data == self.whole[place..place + BLOCK], "HARNESS: block {} is not what was written", self.index);
        self.spare.borrow_mut().push(self.data);
    }
}

/// Reads until it is stopped; counts.
fn read_on(device: &dyn BlockDevice, seed: u64, stop: &AtomicBool, reads: &AtomicU64) {
    let mut rng = Rng::new(seed);
    let spare = Rc::new(RefCell::new(vec![vec![0; BLOCK]; DEPTH]));
    let whole: Rc<[u8]> = (0..BLOCKS).flat_map(block).collect();
    device.read_many(&mut || {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        let data = spare.borrow_mut().pop()?;
        reads.fetch_add(1, Ordering::Relaxed);
        Some(Box::new(Read { index: rng.below(BLOCKS), data, spare: spare.clone(), whole: whole.clone() }))
    });
}

/// Snapshots, resizes and checkpoints get their moment, though at no time are all readers without a
/// read. If they did not, this would not end.
#[test]
fn readers_with_many_reads_let_others_through() {
    let capacity_bytes = 64 << 20;
    let machine = Machine::new(capacity_bytes, 5);
    let options = FormatOptions { capacity_bytes, extent_bytes: 256 << 10, properties: Default::default() };
    Pool::format(&env(&machine), &options).unwrap();
    let options = PoolOptions { memory_bytes: 1 << 20, workers: 2, ..PoolOptions::default() };
    let pool = Pool::open(env(&machine), options).unwrap();
    pool.create_volume("v", BLOCKS * BLOCK as u64, &Default::default()).unwrap();
    let device = pool.volume("v").unwrap();
    for index in 0..BLOCKS {
        device.write(index * BLOCK as u64, Bytes::from(block(index)), WriteOptions::default()).unwrap();
    }
    pool.checkpoint().unwrap();
    pool.drop_caches();
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 0..READERS {
            let (device, stop, reads) = (&device, &stop, &reads);
            scope.spawn(move || read_on(&**device, seed, stop, reads));
        }
        for round in 0..40u64 {
            let seen = reads.load(Ordering::Relaxed);
            until("the readers have come on", || reads.load(Ordering::Relaxed) >= seen + 100);
            pool.snapshot("v", "s").unwrap();
            pool.resize_volume("v", (BLOCKS + round) * BLOCK as u64).unwrap();
            // Freeing its extents must wait for the readers.
            device.write(BLOCKS / 2 * BLOCK as u64, Bytes::from(block(BLOCKS / 2)), WriteOptions::default()).unwrap();
            pool.checkpoint().unwrap();
            pool.destroy("v@s", false).unwrap();
            pool.drop_caches();
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(device);
    pool.close().unwrap();
}
