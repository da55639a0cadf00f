//! Many threads on one volume, with the engine's own threads running: reads and writes of a block
//! are those of a register that changes at one moment of each write, blocks are never mixed, and
//! nothing is lost when the pool is reopened.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../sim/common/mod.rs"]
mod common;
mod folders;
mod freed;
mod full;
mod halves;
mod images;
mod many;
mod past;
mod power;
mod slow;
mod sorted;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions};
use sim::{ContentKind, Machine, Rng, fill_content};
use surface::{BlockDevice, WriteOptions, ZeroOptions};

use crate::common::machine_env::env;
use crate::common::together::read_in_pieces;

const BLOCK: u64 = 4096;
const THREADS: u64 = 4;
/// Blocks that all threads write.
const SHARED_BLOCKS: u64 = 96;
/// Bytes that only one thread writes, per thread.
const PRIVATE_BYTES: u64 = 768 << 10;
const OPS: u64 = 300;

/// A write or read of one shared block: when it began and ended, and the tag written or seen (0:
/// zeroes).
#[derive(Debug, Clone, Copy)]
struct Event {
    began: u64,
    ended: u64,
    tag: u64,
}

#[derive(Debug, Default)]
struct Register {
    writes: Vec<Event>,
    reads: Vec<Event>,
}

/// A block that says in its first bytes who wrote it, and follows from that entirely.
fn tagged_block(tag: u64, out: &mut [u8]) {
    if tag == 0 {
        out.fill(0);
        return;
    }
    fill_content(&mut Rng::new(tag), if tag & 1 == 0 { ContentKind::Text } else { ContentKind::Random }, out);
    out[..8].copy_from_slice(&tag.to_le_bytes());
}

/// The tag of a block that must be whole.
fn tag_of(block: &[u8], place: u64) -> u64 {
    let tag = u64::from_le_bytes(block[..8].try_into().unwrap());
    let mut whole = vec![0; BLOCK as usize];
    tagged_block(tag, &mut whole);
    assert!(whole == block, "HARNESS: shared block {place} is a mix: it says tag {tag:#x}, but is not what that wrote");
    tag
}

struct Client {
    number: u64,
    rng: Rng,
    device: Arc<dyn BlockDevice>,
    pool: Pool,
    stamp: Arc<AtomicU64>,
    registers: Arc<Mutex<HashMap<u64, Register>>>,
    private: Vec<u8>,
    /// Also cleans on demand.
    cleans: bool,
}

impl Client {
    fn private_start(&self) -> u64 {
        SHARED_BLOCKS * BLOCK + self.number * PRIVATE_BYTES
    }

    fn run(mut self) -> Vec<u8> {
        for op in 0..OPS {
            match self.rng.below(100) {
                0..30 => self.write_shared(op),
                30..45 => self.read_shared(),
                45..70 => self.write_private(),
                70..85 => self.read_private(),
                85..90 => self.zero_private(),
                90..95 => self.device.flush().unwrap(),
                95..97 => self.pool.tick().unwrap(),
                97..98 => self.pool.checkpoint().unwrap(),
                98..99 if self.rng.coin() => self.pool.drop_caches(),
                98..99 => {
                    let report = self.pool.scrub(4 << 20, true).unwrap();
                    assert!(report.found == 0, "HARNESS: scrub: {report:?}");
                }
                _ if self.cleans && self.rng.percent(80) => drop(self.pool.clean(true, 20).unwrap()),
                _ => drop(self.device.allocation(0, self.device.size_bytes(), 1000).unwrap()),
            }
        }
        self.private
    }

    fn now(&self) -> u64 {
        self.stamp.fetch_add(1, Ordering::SeqCst)
    }

    fn shared_range(&mut self) -> (u64, u64) {
        let first = self.rng.below(SHARED_BLOCKS);
        (first, self.rng.between(1, 40).min(SHARED_BLOCKS - first))
    }

    fn write_shared(&mut self, op: u64) {
        let (first, count) = self.shared_range();
        let zero = self.rng.percent(10);
        let tag = if zero { 0 } else { (self.number + 1) << 32 | (op + 1) };
        let mut data = vec![0; (count * BLOCK) as usize];
        for block in data.chunks_mut(BLOCK as usize) {
            tagged_block(tag, block);
        }
        let began = self.now();
        if zero && self.rng.coin() {
            self.device.discard(first * BLOCK, count * BLOCK).unwrap();
        } else {
            let options = WriteOptions { fua: self.rng.percent(10) };
            self.device.write(first * BLOCK, Bytes::from(data), options).unwrap();
        }
        let ended = self.now();
        let mut registers = self.registers.lock().unwrap();
        for block in first..first + count {
            registers.entry(block).or_default().writes.push(Event { began, ended, tag });
        }
    }

    fn read_shared(&mut self) {
        let (first, count) = self.shared_range();
        let mut data = vec![0xee; (count * BLOCK) as usize];
        let began = self.now();
        self.read(first * BLOCK, &mut data);
        let ended = self.now();
        let tags: Vec<u64> =
            data.chunks(BLOCK as usize).enumerate().map(|(i, block)| tag_of(block, first + i as u64)).collect();
        let mut registers = self.registers.lock().unwrap();
        for (i, tag) in tags.into_iter().enumerate() {
            registers.entry(first + i as u64).or_default().reads.push(Event { began, ended, tag });
        }
    }

    /// In one request, or in some that are under way together.
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        match self.rng.index(8) {
            0..4 => self.device.read(offset, data).unwrap(),
            pieces => read_in_pieces(&*self.device, offset, data, pieces).unwrap(),
        }
    }

    fn private_range(&mut self) -> (u64, usize) {
        let at = self.rng.below(PRIVATE_BYTES);
        (at, self.rng.between(1, 100 << 10).min(PRIVATE_BYTES - at) as usize)
    }

    fn write_private(&mut self) {
        let (at, len) = self.private_range();
        let mut data = vec![0; len];
        let kind = ContentKind::choose(&mut self.rng);
        fill_content(&mut self.rng, kind, &mut data);
        self.private[at as usize..at as usize + len].copy_from_slice(&data);
        self.device.write(self.private_start() + at, Bytes::from(data), WriteOptions::default()).unwrap();
    }

    fn zero_private(&mut self) {
        let (at, len) = self.private_range();
        self.private[at as usize..at as usize + len].fill(0);
        let options = ZeroOptions { fua: false, no_hole: self.rng.coin() };
        self.device.write_zeroes(self.private_start() + at, len as u64, options).unwrap();
    }

    fn read_private(&mut self) {
        let (at, len) = self.private_range();
        let mut data = vec![0xee; len];
        self.read(self.private_start() + at, &mut data);
        let expected = &self.private[at as usize..at as usize + len];
        if let Some(i) = data.iter().zip(expected).position(|(got, want)| got != want) {
            panic!(
                "HARNESS: thread {}: private byte {} reads {:#04x}, wrote {:#04x}",
                self.number,
                at + i as u64,
                data[i],
                expected[i]
            );
        }
    }
}

/// Whether a read could see a write: the write did not begin after the read, and no other write
/// lies wholly between them.
fn could_see(register: &Register, read: &Event) -> bool {
    let candidates = register.writes.iter().filter(|w| w.tag == read.tag && w.began < read.ended);
    let overwritten = |ended: u64| register.writes.iter().any(|w| w.began > ended && w.ended < read.began);
    (read.tag == 0 && !register.writes.iter().any(|w| w.ended < read.began))
        || candidates.into_iter().any(|w| !overwritten(w.ended))
}

fn check_registers(registers: &HashMap<u64, Register>, when: &str) {
    for (block, register) in registers {
        for read in &register.reads {
            assert!(
                could_see(register, read),
                "HARNESS: {when}: shared block {block}: {read:?} is impossible after {:?}",
                register.writes
            );
        }
    }
}

fn read_all_shared(device: &dyn BlockDevice, registers: &mut HashMap<u64, Register>, now: u64) {
    let mut data = vec![0xee; (SHARED_BLOCKS * BLOCK) as usize];
    device.read(0, &mut data).unwrap();
    for (i, block) in data.chunks(BLOCK as usize).enumerate() {
        let read = Event { began: now, ended: now, tag: tag_of(block, i as u64) };
        registers.entry(i as u64).or_default().reads.push(read);
    }
}

fn check_private(device: &dyn BlockDevice, number: u64, expected: &[u8]) {
    let mut data = vec![0xee; PRIVATE_BYTES as usize];
    device.read(SHARED_BLOCKS * BLOCK + number * PRIVATE_BYTES, &mut data).unwrap();
    assert!(data == expected, "HARNESS: what thread {number} wrote is not what is there");
}

fn run(seed: u64) {
    println!("threads: seed {seed}");
    let mut rng = Rng::new(seed);
    // Large enough for all that is written, or so small that cleaning never ends.
    let cleans = seed % 2 == 1;
    let capacity_bytes = if cleans { 16 << 20 } else { 256 << 20 };
    let mut machine = Machine::new(capacity_bytes, rng.next_u64());
    let options = FormatOptions { capacity_bytes, extent_bytes: 256 << 10, properties: Default::default() };
    Pool::format(&env(&machine), &options).unwrap();
    let options = PoolOptions {
        memory_bytes: 2 << 20,
        workers: 2,
        checkpoint_log_bytes: 4 << 20,
        age_limit_ms: 5,
        ..PoolOptions::default()
    };
    let pool = Pool::open(env(&machine), options.clone()).unwrap();
    pool.create_volume("v", SHARED_BLOCKS * BLOCK + THREADS * PRIVATE_BYTES, &Default::default()).unwrap();
    let stamp = Arc::new(AtomicU64::new(1));
    let registers = Arc::new(Mutex::new(HashMap::new()));
    let privates: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let client = Client {
                    number,
                    rng: rng.fork(),
                    device: pool.volume("v").unwrap(),
                    pool: pool.clone(),
                    stamp: Arc::clone(&stamp),
                    registers: Arc::clone(&registers),
                    private: vec![0; PRIVATE_BYTES as usize],
                    cleans,
                };
                scope.spawn(move || client.run())
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut registers = std::mem::take(&mut *registers.lock().unwrap());
    let verify = |pool: &Pool, registers: &mut HashMap<u64, Register>, when: &str| {
        let device = pool.volume("v").unwrap();
        read_all_shared(device.as_ref(), registers, stamp.fetch_add(1, Ordering::SeqCst));
        check_registers(registers, when);
        for (number, expected) in privates.iter().enumerate() {
            check_private(device.as_ref(), number as u64, expected);
        }
    };
    verify(&pool, &mut registers, "at the end");
    pool.close().unwrap();
    machine.restart();
    let pool = Pool::open(env(&machine), options).unwrap();
    verify(&pool, &mut registers, "after reopening");
    let report = pool.check(false, &mut |_, _| ()).unwrap();
    assert!(report.problems.is_empty(), "HARNESS: check: {:?}", report.problems);
}

#[test]
fn threads_see_registers() {
    let runs = crate::common::campaign::variable("SHALE_RUNS").unwrap_or(1);
    match crate::common::campaign::variable("SHALE_SEED") {
        Some(seed) => run(seed),
        None => (0..6 * runs).for_each(run),
    }
}
