//! Threads discard, take snapshots and clones, roll back to them, promote and destroy them, each
//! with volumes of its own, while checkpoints are taken constantly and everything is cleaned,
//! sorted and recompressed: discarded data never reappears.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions};
use sim::{Machine, Rng};
use surface::{BlockDevice, ErrorKind, WriteOptions};

use super::{BLOCK, tagged_block};
use crate::common::machine_env::env;
use crate::common::{Campaign, Tally};

const THREADS: u64 = 3;
const BLOCKS: u64 = 512;
const OPS: u64 = 400;
const SNAPSHOTS_MAX: usize = 3;
const CAPACITY_BYTES: u64 = 64 << 20;

/// Tags of the blocks of a volume; 0: zeroes.
type Blocks = Vec<u64>;

/// A volume, and its expected content.
struct Client {
    number: u64,
    rng: Rng,
    pool: Pool,
    now: Blocks,
    snapshots: Vec<(String, Blocks)>,
    /// A clone, and of which of the snapshots.
    copy: Option<(usize, Blocks)>,
}

impl Client {
    fn name(&self) -> String {
        format!("v{}", self.number)
    }

    fn copy_name(&self) -> String {
        format!("c{}", self.number)
    }

    fn run(mut self) -> Self {
        for op in 1..=OPS {
            match self.rng.below(100) {
                0..50 => self.write(op),
                50..70 => self.discard(),
                70..77 if self.snapshots.len() < SNAPSHOTS_MAX => self.snapshot(op),
                77..83 => self.destroy(),
                83..87 => self.roll_back(),
                87..90 => self.copy(),
                90..92 => self.let_copy_take_over(),
                92..94 => self.end_copy(),
                94..96 => self.pool.flush().unwrap(),
                _ => self.verify(&self.name(), &self.now, "while others go on"),
            }
        }
        self
    }

    fn range(&mut self) -> std::ops::Range<u64> {
        let first = self.rng.below(BLOCKS);
        first..(first + self.rng.between(1, 96)).min(BLOCKS)
    }

    /// The volume, or now and then its clone, with its content.
    fn one(&mut self) -> (String, &mut Blocks) {
        let (name, copy_name) = (self.name(), self.copy_name());
        match &mut self.copy {
            Some((_, blocks)) if self.rng.percent(30) => (copy_name, blocks),
            _ => (name, &mut self.now),
        }
    }

    fn write(&mut self, op: u64) {
        let tag = (self.number + 1) << 32 | op;
        let range = self.range();
        let mut data = vec![0; ((range.end - range.start) * BLOCK) as usize];
        data.chunks_mut(BLOCK as usize).for_each(|block| tagged_block(tag, block));
        let pool = self.pool.clone();
        let (name, blocks) = self.one();
        let volume = pool.volume(&name).unwrap();
        volume.write(range.start * BLOCK, Bytes::from(data), WriteOptions::default()).unwrap();
        range.for_each(|block| blocks[block as usize] = tag);
    }

    fn discard(&mut self) {
        let range = self.range();
        let pool = self.pool.clone();
        let (name, blocks) = self.one();
        let volume = pool.volume(&name).unwrap();
        volume.discard(range.start * BLOCK, (range.end - range.start) * BLOCK).unwrap();
        range.for_each(|block| blocks[block as usize] = 0);
    }

    fn snapshot(&mut self, op: u64) {
        let own = format!("s{op}");
        self.pool.snapshot(&self.name(), &own).unwrap();
        self.snapshots.push((format!("{}@{own}", self.name()), self.now.clone()));
    }

    fn destroy(&mut self) {
        if self.copy.is_none() && !self.snapshots.is_empty() {
            let index = self.rng.index(self.snapshots.len());
            let (name, _) = self.snapshots.remove(index);
            self.pool.destroy(&name, false).unwrap();
        }
    }

    fn roll_back(&mut self) {
        if let Some((name, blocks)) = self.snapshots.last() {
            match self.pool.rollback(name, false) {
                Ok(()) => self.now.clone_from(blocks),
                // The volume was a clone when it was taken.
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "HARNESS: {error}"),
            }
        }
    }

    fn copy(&mut self) {
        if self.copy.is_none() && !self.snapshots.is_empty() {
            let index = self.rng.index(self.snapshots.len());
            let (snapshot, blocks) = &self.snapshots[index];
            self.pool.clone_snapshot(snapshot, &self.copy_name(), &Default::default()).unwrap();
            self.copy = Some((index, blocks.clone()));
        }
    }

    fn end_copy(&mut self) {
        if self.copy.take().is_some() {
            self.pool.destroy(&self.copy_name(), false).unwrap();
        }
    }

    /// The clone replaces the volume, which is destroyed with everything after their common
    /// snapshot.
    fn let_copy_take_over(&mut self) {
        if let Some((index, blocks)) = self.copy.take() {
            let (name, copy_name) = (self.name(), self.copy_name());
            self.pool.promote(&copy_name).unwrap();
            self.pool.destroy(&name, true).unwrap();
            self.pool.rename(&copy_name, &name).unwrap();
            self.now = blocks;
            self.snapshots.truncate(index + 1);
        }
    }

    /// All that was before is destroyed or written over.
    fn start_anew(mut self) {
        self.end_copy();
        self.snapshots.iter().for_each(|(name, _)| self.pool.destroy(name, false).unwrap());
        let mut data = vec![0; (BLOCKS * BLOCK) as usize];
        data.chunks_mut(BLOCK as usize).for_each(|block| tagged_block(1, block));
        self.pool.volume(&self.name()).unwrap().write(0, Bytes::from(data), WriteOptions::default()).unwrap();
    }

    fn verify(&self, name: &str, blocks: &Blocks, when: &str) {
        let mut data = vec![0; (BLOCKS * BLOCK) as usize];
        self.pool.volume(name).unwrap().read(0, &mut data).unwrap();
        let mut expected = vec![0; BLOCK as usize];
        for (index, (block, tag)) in data.chunks(BLOCK as usize).zip(blocks).enumerate() {
            tagged_block(*tag, &mut expected);
            assert!(block == expected, "HARNESS: block {index} of {name} is not what {tag:#x} wrote, {when}");
        }
    }

    fn verify_all(&self, when: &str) {
        self.verify(&self.name(), &self.now, when);
        self.copy.iter().for_each(|(_, blocks)| self.verify(&self.copy_name(), blocks, when));
        self.snapshots.iter().for_each(|(name, blocks)| self.verify(name, blocks, when));
    }
}

/// A clone is taking the volume's place at that moment.
fn is_gone(error: surface::Error) {
    assert_eq!(error.kind(), ErrorKind::NotFound, "HARNESS: {error}");
}

fn run(seed: u64) -> Tally {
    let machine = Machine::new(CAPACITY_BYTES, seed);
    let properties = [("compression".to_owned(), "lz4".to_owned())].into();
    let format = FormatOptions { capacity_bytes: CAPACITY_BYTES, extent_bytes: 64 << 10, properties };
    Pool::format(&env(&machine), &format).unwrap();
    let options = PoolOptions { memory_bytes: 16 << 20, checkpoint_log_bytes: 1 << 20, ..PoolOptions::default() };
    let pool = Pool::open(env(&machine), options.clone()).unwrap();
    let clients: Vec<_> = (0..THREADS)
        .map(|number| {
            pool.create_volume(&format!("v{number}"), BLOCKS * BLOCK, &Default::default()).unwrap();
            let rng = Rng::new(seed << 8 | number);
            Client { number, rng, pool: pool.clone(), now: vec![0; BLOCKS as usize], snapshots: Vec::new(), copy: None }
        })
        .collect();
    let is_over = AtomicBool::new(false);
    let clients: Vec<Client> = std::thread::scope(|scope| {
        let (pool, is_over) = (&pool, &is_over);
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                pool.checkpoint().unwrap();
            }
        });
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                pool.clean(true, 4).unwrap();
            }
        });
        scope.spawn(move || {
            for number in (0..THREADS).cycle().take_while(|_| !is_over.load(Ordering::Relaxed)) {
                pool.sort(1 << 20, true).unwrap();
                pool.recompress(&format!("v{number}"), Some("archive"), 1 << 20, true).map_or_else(is_gone, |_| ());
                pool.tick().unwrap();
            }
        });
        let threads: Vec<_> = clients.into_iter().map(|client| scope.spawn(|| client.run())).collect();
        let clients = threads.into_iter().map(|thread| thread.join());
        let clients: Result<Vec<_>, _> = clients.collect();
        is_over.store(true, Ordering::Relaxed);
        clients.unwrap()
    });
    clients.iter().for_each(|client| client.verify_all("at the end"));
    pool.checkpoint().unwrap();
    pool.checkpoint().unwrap();
    pool.drop_caches();
    clients.iter().for_each(|client| client.verify_all("after checkpoints"));
    let report = pool.check(false, &mut |_, _| ()).unwrap();
    assert!(report.problems.is_empty(), "HARNESS: {:?}", report.problems);
    let known: Vec<_> = clients.into_iter().map(|client| (client.now, client.snapshots, client.copy)).collect();
    pool.close().unwrap();
    let pool = Pool::open(env(&machine), options).unwrap();
    for (number, (now, snapshots, copy)) in (0..).zip(known) {
        let client = Client { number, rng: Rng::new(0), pool: pool.clone(), now, snapshots, copy };
        client.verify_all("when the pool was opened again");
        client.start_anew();
    }
    pool.checkpoint().unwrap();
    while pool.status().reaping > 0 {
        pool.checkpoint().unwrap();
    }
    assert_eq!(pool.status().unlisted_bytes, 0, "HARNESS: something is kept of what was written over");
    pool.close().unwrap();
    Tally { ops: THREADS * OPS, ..Tally::default() }
}

#[test]
fn threads_and_the_past() {
    let test = "threads::past::threads_and_the_past";
    Campaign { file: "model", test, seeds: 4, soaks: true }.run(|seed| Ok(run(seed)));
}
