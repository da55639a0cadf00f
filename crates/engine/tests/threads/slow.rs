//! Storage that is slow on command: one call is held until the test releases it. Unrelated
//! operations continue.
//!
//! A flush makes all earlier acknowledged data durable, of any volume. So it continues only during
//! a call on which no such write depends.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolEnv, PoolOptions};
use env::{AlignedBuf, Disk, DiskLayer, MapError, MapStore, ScanStep, StoreLayer};
use sim::{ContentKind, Machine, Rng, fill_content};
use surface::{BlockDevice, DeviceId, WriteOptions};
use units::{GroupIndex, ObjectId};

use crate::common::machine_env::env;

const CAPACITY_BYTES: u64 = 64 << 20;
const BLOCK: u64 = 4096;
const GROUP: u64 = 128 << 10;
/// The storage gives up on a test that would never end: then the test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// Marks a batch of the volume `early`.
const EARLY: u8 = 0xe5;

/// A call of the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    /// A write of zeroes ahead of the log.
    Zeroes,
    /// A write of the batch of `early`.
    EarlyBatch,
    /// Space that is set aside below.
    Space,
    /// A look in the store for a record of this object.
    Record(ObjectId),
}

#[derive(Debug, Default)]
struct State {
    /// The next such calls are kept.
    armed: Vec<Call>,
    kept: Vec<Call>,
    has_given_up: bool,
}

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn pass(&self, call: Call) {
        let mut state = self.state();
        let Some(at) = state.armed.iter().position(|armed| *armed == call) else { return };
        state.armed.remove(at);
        state.kept.push(call);
        self.changed.notify_all();
        let is_kept = |state: &mut State| state.kept.contains(&call);
        let (mut state, waited) = self.changed.wait_timeout_while(state, PATIENCE, is_kept).unwrap();
        if waited.timed_out() {
            state.kept.retain(|kept| *kept != call);
            state.has_given_up = true;
        }
    }

    fn arm(&self, call: Call) {
        self.state().armed.push(call);
    }

    fn wait_until_kept(&self, call: Call) {
        let is_awaited = |state: &mut State| !state.kept.contains(&call);
        let (state, waited) = self.changed.wait_timeout_while(self.state(), PATIENCE, is_awaited).unwrap();
        drop(state);
        assert!(!waited.timed_out(), "HARNESS: {call:?} did not come");
    }

    /// Operations that have ended by now did not wait for the call.
    fn assert_kept(&self, call: Call, what: &str) {
        let state = self.state();
        assert!(state.kept.contains(&call) && !state.has_given_up, "HARNESS: {what} waited for {call:?}");
    }

    fn release(&self, call: Call) {
        self.state().kept.retain(|kept| *kept != call);
        self.changed.notify_all();
    }
}

struct SlowDisk {
    below: Arc<dyn Disk>,
    gate: Arc<Gate>,
}

impl DiskLayer for SlowDisk {
    fn below(&self) -> &dyn Disk {
        &*self.below
    }
    fn write_at(&self, offset: u64, buf: &AlignedBuf, len: usize) -> io::Result<()> {
        let is_all = |bytes: &[u8], value: u8| bytes.iter().all(|byte| *byte == value);
        if is_all(&buf[..len], 0) {
            self.gate.pass(Call::Zeroes);
        } else if buf[..len].chunks_exact(64).any(|bytes| is_all(bytes, EARLY)) {
            self.gate.pass(Call::EarlyBatch);
        }
        self.below.write_at(offset, buf, len)
    }
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.gate.pass(Call::Space);
        self.below.reserve(offset, len)
    }
}

struct SlowStore {
    below: Arc<dyn MapStore>,
    gate: Arc<Gate>,
}

impl SlowStore {
    fn pass(&self, key: &[u8]) {
        let armed = self.gate.state().armed.clone();
        for call in armed {
            let Call::Record(object) = call else { continue };
            let (from, to) = format::record_key_range(object, GroupIndex(0), GroupIndex(u64::MAX));
            if key >= &from[..] && key < &to[..] {
                self.gate.pass(call);
            }
        }
    }
}

impl StoreLayer for SlowStore {
    fn below(&self) -> &dyn MapStore {
        &*self.below
    }
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MapError> {
        self.pass(key);
        self.below.get(key)
    }
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> ScanStep) -> Result<(), MapError> {
        self.pass(from);
        self.below.scan(from, to, visit)
    }
}

struct World {
    machine: Machine,
    gate: Arc<Gate>,
    pool: Pool,
}

fn block(seed: u64) -> Bytes {
    content(seed, BLOCK as usize)
}

fn content(seed: u64, len: usize) -> Bytes {
    let mut data = vec![0; len];
    fill_content(&mut Rng::new(seed), ContentKind::Random, &mut data);
    data.into()
}

fn write(device: &dyn BlockDevice, offset: u64, data: Bytes) {
    device.write(offset, data, WriteOptions::default()).unwrap();
}

fn assert_reads(device: &dyn BlockDevice, offset: u64, expected: &[u8], what: &str) {
    let mut data = vec![0xee; expected.len()];
    device.read(offset, &mut data).unwrap();
    assert!(data == expected, "HARNESS: {what} is not what was written");
}

impl World {
    /// The volumes `slow`, `early` and `other`. They hold some blocks, of which nothing is in
    /// memory.
    fn new(workers: usize, extent_bytes: u32) -> Self {
        let machine = Machine::new(CAPACITY_BYTES, 1);
        let gate = Arc::new(Gate::default());
        let whole = env(&machine);
        let env = PoolEnv {
            disk: Arc::new(SlowDisk { below: Arc::clone(&whole.disk), gate: Arc::clone(&gate) }),
            store: Arc::new(SlowStore { below: Arc::clone(&whole.store), gate: Arc::clone(&gate) }),
            ..whole
        };
        let options = FormatOptions { capacity_bytes: CAPACITY_BYTES, extent_bytes, properties: Default::default() };
        Pool::format(&env, &options).unwrap();
        let options = PoolOptions { workers, memory_bytes: 64 << 20, ..PoolOptions::default() };
        let pool = Pool::open(env, options).unwrap();
        let raw = [("compression".to_owned(), "off".to_owned())].into_iter().collect();
        for name in ["slow", "early", "other"] {
            pool.create_volume(name, 16 << 20, &raw).unwrap();
            for group in 0..20 {
                write(&*pool.volume(name).unwrap(), group * GROUP, block(group));
            }
        }
        pool.checkpoint().unwrap();
        pool.drop_caches();
        Self { machine, gate, pool }
    }

    fn volume(&self, name: &str) -> Arc<dyn BlockDevice> {
        self.pool.volume(name).unwrap()
    }

    fn id(&self, name: &str) -> ObjectId {
        let DeviceId(id) = self.pool.volume(name).unwrap().id();
        ObjectId(id)
    }

    /// Reads and writes of another volume, and questions about the pool, while a call is kept.
    fn look_around(&self, call: Call, round: u64) {
        let other = self.volume("other");
        assert_reads(&*other, round * GROUP, &block(round), "a block from the device");
        self.gate.assert_kept(call, "a read that asks the device");
        assert_reads(&*other, round * GROUP, &block(round), "a block in memory");
        self.gate.assert_kept(call, "a read of what is in memory");
        write(&*other, (100 + round) * BLOCK, block(100 + round));
        self.gate.assert_kept(call, "a write");
        assert_reads(&*other, (100 + round) * BLOCK, &block(100 + round), "a block in the write buffer");
        assert!(self.pool.status().failed.is_none());
        self.gate.assert_kept(call, "the status");
    }

    /// All written data is there, also after the pool has been reopened.
    fn end(mut self, rounds: std::ops::Range<u64>, more: &[(&str, u64, Bytes)]) {
        let verify = |pool: &Pool| {
            let check = |name: &str, offset: u64, data: &[u8]| {
                assert_reads(&*pool.volume(name).unwrap(), offset, data, &format!("byte {offset} of '{name}'"));
            };
            for round in rounds.clone() {
                check("other", round * GROUP, &block(round));
                check("other", (100 + round) * BLOCK, &block(100 + round));
            }
            more.iter().for_each(|(name, offset, data)| check(name, *offset, data));
        };
        verify(&self.pool);
        self.pool.close().unwrap();
        self.machine.restart();
        let pool = Pool::open(env(&self.machine), PoolOptions { workers: 0, ..PoolOptions::default() }).unwrap();
        verify(&pool);
        assert!(pool.check(false, &mut |_, _| ()).unwrap().problems.is_empty(), "HARNESS: check");
    }
}

/// A client syncs each block; when that is recognised, a stretch of zeroes is written ahead.
#[test]
fn zeroes_on_their_way_keep_no_reader_and_no_writer_waiting() {
    for workers in [0, 2] {
        let world = World::new(workers, 1 << 20);
        world.gate.arm(Call::Zeroes);
        let slow = world.volume("slow");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 0..12 {
                    write(&*slow, turn * BLOCK, block(turn));
                    slow.flush().unwrap();
                }
            });
            world.gate.wait_until_kept(Call::Zeroes);
            world.look_around(Call::Zeroes, 1);
            world.gate.release(Call::Zeroes);
        });
        world.end(1..2, &[("slow", 11 * BLOCK, block(11))]);
    }
}

/// Space for the log is set aside; a flush whose batch was on its way to the device before that
/// ends all the same.
#[test]
fn space_that_is_set_aside_keeps_no_earlier_flush_waiting() {
    for workers in [0, 2] {
        let world = World::new(workers, 64 << 10);
        let (slow, early) = (world.volume("slow"), world.volume("early"));
        let (early_data, late_data) = (Bytes::from(vec![EARLY; BLOCK as usize]), content(7, 2 << 20));
        std::thread::scope(|scope| {
            world.gate.arm(Call::EarlyBatch);
            let flushes = scope.spawn(|| {
                write(&*early, 0, early_data.clone());
                early.flush().unwrap();
            });
            world.gate.wait_until_kept(Call::EarlyBatch);
            world.gate.arm(Call::Space);
            let writes = scope.spawn(|| {
                write(&*slow, 0, late_data.clone());
                slow.flush().unwrap();
            });
            world.gate.wait_until_kept(Call::Space);
            world.look_around(Call::Space, 1);
            world.gate.release(Call::EarlyBatch);
            flushes.join().unwrap();
            world.gate.assert_kept(Call::Space, "a flush that began before");
            world.gate.release(Call::Space);
            writes.join().unwrap();
        });
        world.end(1..2, &[("early", 0, early_data), ("slow", 0, late_data)]);
    }
}

/// A reader waits for the map store; a checkpoint is taken at that time, and only its end waits for
/// the reader.
#[test]
fn a_reader_that_waits_for_the_store_keeps_no_other_client_and_no_capture_waiting() {
    for workers in [0, 2] {
        let world = World::new(workers, 1 << 20);
        let call = Call::Record(world.id("slow"));
        let (slow, other) = (world.volume("slow"), world.volume("other"));
        let flush = |what: &str| {
            other.flush().unwrap();
            world.gate.assert_kept(call, what);
        };
        world.gate.arm(call);
        std::thread::scope(|scope| {
            let reads = scope.spawn(|| assert_reads(&*slow, 3 * GROUP, &block(3), "what the reader waited for"));
            world.gate.wait_until_kept(call);
            world.look_around(call, 1);
            flush("a flush");
            let before = world.pool.status().checkpoints;
            let checkpoints = scope.spawn(|| world.pool.checkpoint().unwrap());
            // From its capture to its commit.
            while world.pool.status().checkpoints == before {
                world.look_around(call, 1);
            }
            for round in 2..10 {
                world.look_around(call, round);
                flush("a flush beside a checkpoint that waits for readers");
            }
            world.gate.release(call);
            reads.join().unwrap();
            checkpoints.join().unwrap();
        });
        world.end(1..10, &[("slow", 3 * GROUP, block(3))]);
    }
}

/// A slice of recompression waits for the map store; the progress of the last one is still
/// reported.
#[test]
fn a_slice_of_recompression_keeps_no_report_waiting() {
    for workers in [0, 2] {
        // Small extents: the volume fills more than one.
        let world = World::new(workers, 64 << 10);
        let pool = &world.pool;
        let ended = pool.recompress("slow", Some("archive"), 1, false).unwrap();
        assert!(ended.bytes_done > 0 && !ended.is_finished, "HARNESS: {ended:?}");
        pool.drop_caches();
        let call = Call::Record(world.id("slow"));
        world.gate.arm(call);
        std::thread::scope(|scope| {
            let slices = scope.spawn(|| pool.recompress("slow", Some("archive"), 64 << 20, false).unwrap());
            world.gate.wait_until_kept(call);
            for mode in [None, Some("archive")] {
                let told = pool.recompress("slow", mode, 0, false).unwrap();
                world.gate.assert_kept(call, "a report");
                assert_eq!((told.bytes_done, told.fragments), (ended.bytes_done, ended.fragments));
            }
            world.look_around(call, 1);
            world.gate.release(call);
            assert!(slices.join().unwrap().is_finished);
        });
        world.end(1..2, &[("slow", 3 * GROUP, block(3))]);
    }
}

/// A wide hole is made in a volume; the map store is asked which of its groups hold something.
#[test]
fn a_wide_hole_that_waits_for_the_store_keeps_no_other_client_waiting() {
    for workers in [0, 2] {
        let world = World::new(workers, 1 << 20);
        let call = Call::Record(world.id("slow"));
        let (slow, other) = (world.volume("slow"), world.volume("other"));
        world.gate.arm(call);
        std::thread::scope(|scope| {
            let punches = scope.spawn(|| slow.discard(0, 16 << 20).unwrap());
            world.gate.wait_until_kept(call);
            world.look_around(call, 1);
            other.flush().unwrap();
            world.gate.assert_kept(call, "a flush");
            world.pool.checkpoint().unwrap();
            world.gate.assert_kept(call, "a checkpoint");
            world.look_around(call, 2);
            world.gate.release(call);
            punches.join().unwrap();
        });
        let zeroes = Bytes::from(vec![0; BLOCK as usize]);
        let holes: Vec<_> = (0..20).map(|group| ("slow", group * GROUP, zeroes.clone())).collect();
        world.end(1..3, &holes);
    }
}
