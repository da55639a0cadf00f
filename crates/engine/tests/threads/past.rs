//! Threads discard, take snapshots, go back to them and destroy them, each on a volume of its own, while checkpoints are taken and everything is
//! cleaned without a pause: nothing of what is over comes back.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions};
use sim::{Machine, Rng};
use surface::{BlockDevice, WriteOptions};

use super::{BLOCK, tagged_block};
use crate::common::machine_env::env;

const THREADS: u64 = 3;
const BLOCKS: u64 = 512;
const OPS: u64 = 400;
const SNAPSHOTS_MAX: usize = 3;
const CAPACITY_BYTES: u64 = 64 << 20;

/// Tags of the blocks of a volume; 0: zeroes.
type Blocks = Vec<u64>;

/// A volume, and what it must hold.
struct Client {
    number: u64,
    rng: Rng,
    pool: Pool,
    now: Blocks,
    snapshots: Vec<(String, Blocks)>,
}

impl Client {
    fn name(&self) -> String {
        format!("v{}", self.number)
    }

    fn run(mut self) -> Self {
        for op in 1..=OPS {
            match self.rng.below(100) {
                0..55 => self.write(op),
                55..75 => self.discard(),
                75..82 if self.snapshots.len() < SNAPSHOTS_MAX => self.snapshot(op),
                82..89 => self.destroy(),
                89..93 => self.roll_back(),
                93..96 => self.pool.flush().unwrap(),
                _ => self.verify(&self.name(), &self.now, "while others go on"),
            }
        }
        self
    }

    fn range(&mut self) -> std::ops::Range<u64> {
        let first = self.rng.below(BLOCKS);
        first..(first + self.rng.between(1, 96)).min(BLOCKS)
    }

    fn write(&mut self, op: u64) {
        let tag = (self.number + 1) << 32 | op;
        let range = self.range();
        let mut data = vec![0; ((range.end - range.start) * BLOCK) as usize];
        data.chunks_mut(BLOCK as usize).for_each(|block| tagged_block(tag, block));
        let volume = self.pool.volume(&self.name()).unwrap();
        volume.write(range.start * BLOCK, Bytes::from(data), WriteOptions::default()).unwrap();
        range.for_each(|block| self.now[block as usize] = tag);
    }

    fn discard(&mut self) {
        let range = self.range();
        let volume = self.pool.volume(&self.name()).unwrap();
        volume.discard(range.start * BLOCK, (range.end - range.start) * BLOCK).unwrap();
        range.for_each(|block| self.now[block as usize] = 0);
    }

    fn snapshot(&mut self, op: u64) {
        let own = format!("s{op}");
        self.pool.snapshot(&self.name(), &own).unwrap();
        self.snapshots.push((format!("{}@{own}", self.name()), self.now.clone()));
    }

    fn destroy(&mut self) {
        if !self.snapshots.is_empty() {
            let index = self.rng.index(self.snapshots.len());
            let (name, _) = self.snapshots.remove(index);
            self.pool.destroy(&name, false).unwrap();
        }
    }

    fn roll_back(&mut self) {
        if let Some((name, blocks)) = self.snapshots.last() {
            self.pool.rollback(name, false).unwrap();
            self.now.clone_from(blocks);
        }
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
        self.snapshots.iter().for_each(|(name, blocks)| self.verify(name, blocks, when));
    }
}

fn run(seed: u64) {
    println!("threads and the past: seed {seed}");
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
            Client { number, rng, pool: pool.clone(), now: vec![0; BLOCKS as usize], snapshots: Vec::new() }
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
    let known: Vec<_> = clients.into_iter().map(|client| (client.now, client.snapshots)).collect();
    pool.close().unwrap();
    let pool = Pool::open(env(&machine), options).unwrap();
    for (number, (now, snapshots)) in (0..).zip(known) {
        let client = Client { number, rng: Rng::new(0), pool: pool.clone(), now, snapshots };
        client.verify_all("when the pool was opened again");
    }
    pool.close().unwrap();
}

#[test]
fn threads_and_the_past() {
    let runs = crate::common::campaign::variable("SHALE_RUNS").unwrap_or(1);
    match crate::common::campaign::variable("SHALE_SEED") {
        Some(seed) => run(seed),
        None => (0..4 * runs).for_each(run),
    }
}
