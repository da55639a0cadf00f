//! Two concurrent operations that each look at a block in two steps, one of them paused between its
//! steps: the other one's change there must not be lost.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolEnv, PoolOptions};
use env::{AlignedBuf, Disk, DiskLayer, MapError, MapStore, ScanStep, StoreLayer};
use sim::Machine;
use surface::{Allocation, BlockDevice, WriteOptions, ZeroOptions};

use crate::common::machine_env::env;

const CAPACITY_BYTES: u64 = 32 << 20;
/// A hole of so many bytes goes past the write buffer.
const VOLUME_BYTES: u64 = 16 << 20;
/// How long a read is held up for a hole that must wait for it, and so never comes while it is.
const PATIENCE: Duration = Duration::from_millis(500);

fn pool(env: PoolEnv, workers: usize) -> Pool {
    let options =
        FormatOptions { capacity_bytes: CAPACITY_BYTES, extent_bytes: 256 << 10, properties: Default::default() };
    Pool::format(&env, &options).unwrap();
    let pool = Pool::open(env, PoolOptions { memory_bytes: 8 << 20, workers, ..PoolOptions::default() }).unwrap();
    pool.create_volume("v", VOLUME_BYTES, &Default::default()).unwrap();
    pool
}

#[derive(Debug, Default)]
struct Gate {
    /// The next read is held up.
    armed: bool,
    /// One is.
    held: bool,
    /// The hole is there.
    punched: bool,
}

/// A disk that holds one read up until there is a hole, or until there will be none.
struct HoldingDisk {
    below: Arc<dyn Disk>,
    gate: Arc<(Mutex<Gate>, Condvar)>,
}

impl DiskLayer for HoldingDisk {
    fn below(&self) -> &dyn Disk {
        &*self.below
    }
    fn read_at(&self, offset: u64, buf: &mut AlignedBuf, len: usize) -> io::Result<()> {
        self.below.read_at(offset, buf, len)?;
        let (gate, changed) = &*self.gate;
        let mut state = gate.lock().unwrap();
        if std::mem::take(&mut state.armed) {
            state.held = true;
            changed.notify_all();
            drop(changed.wait_timeout_while(state, PATIENCE, |gate| !gate.punched).unwrap());
        }
        Ok(())
    }
}

/// A writer of a part of a block reads the rest of it; a hole made in between must not be filled
/// with that again.
#[test]
fn a_part_of_a_block_does_not_bring_back_what_a_hole_has_taken() {
    let machine = Machine::new(CAPACITY_BYTES, 1);
    let gate = Arc::new((Mutex::new(Gate::default()), Condvar::new()));
    let disk = Arc::new(HoldingDisk { below: machine.disk.handle(), gate: Arc::clone(&gate) });
    let pool = pool(PoolEnv { disk, ..env(&machine) }, 1);
    let device = pool.volume("v").unwrap();
    device.write(0, Bytes::from(vec![0xaa; 4096]), WriteOptions { fua: true }).unwrap();
    pool.drop_caches();
    gate.0.lock().unwrap().armed = true;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(gate.1.wait_while(gate.0.lock().unwrap(), |gate| !gate.held).unwrap());
            device.write_zeroes(0, VOLUME_BYTES, ZeroOptions { fua: false, no_hole: false }).unwrap();
            gate.0.lock().unwrap().punched = true;
            gate.1.notify_all();
        });
        device.write(512, Bytes::from(vec![0x55; 512]), WriteOptions::default()).unwrap();
    });
    let mut data = vec![0xee; 4096];
    device.read(0, &mut data).unwrap();
    let is_rest_zero = data[..512].iter().chain(&data[1024..]).all(|byte| *byte == 0);
    assert!(is_rest_zero, "HARNESS: bytes that only a hole was made of are {:#x} and {:#x}", data[0], data[1024]);
    assert!(data[512..1024].iter().all(|byte| *byte == data[512]), "HARNESS: a write is torn");
    pool.close().unwrap();
}

/// A map store that flushes a pool in the middle of a look at the map.
struct FlushingStore {
    below: Arc<dyn MapStore>,
    pool: Mutex<Option<Pool>>,
    /// Scans until then; 0: none.
    left: AtomicU32,
}

impl StoreLayer for FlushingStore {
    fn below(&self) -> &dyn MapStore {
        &*self.below
    }
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> ScanStep) -> Result<(), MapError> {
        if self.left.load(Ordering::Relaxed) > 0 && self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            // Another thread does: this one has the map's locks.
            let pool = self.pool.lock().unwrap().take().unwrap();
            std::thread::spawn(move || pool.flush()).join().unwrap().unwrap();
        }
        self.below.scan(from, to, visit)
    }
}

/// Data that goes from the write buffer to the map while a client asks for the allocation is
/// allocated: a program that copies a volume passes over holes.
#[test]
fn what_is_drained_during_a_look_at_what_is_allocated_is_no_hole() {
    let machine = Machine::new(CAPACITY_BYTES, 1);
    let whole = env(&machine);
    let below = Arc::clone(&whole.store);
    let store = Arc::new(FlushingStore { below, pool: Mutex::new(None), left: AtomicU32::new(0) });
    let pool = pool(PoolEnv { store: Arc::clone(&store) as _, ..whole }, 0);
    pool.snapshot("v", "s").unwrap();
    pool.clone_snapshot("v@s", "c", &Default::default()).unwrap();
    let device = pool.volume("c").unwrap();
    for scans in 1..=2 {
        // A group at a time, which has never been written.
        let offset = u64::from(scans) << 20;
        device.write(offset, Bytes::from(vec![0xaa; 4096]), WriteOptions::default()).unwrap();
        *store.pool.lock().unwrap() = Some(pool.clone());
        // The map is asked for the clone, then for its origin.
        store.left.store(scans, Ordering::Relaxed);
        let runs = device.allocation(offset, 4096, 8).unwrap();
        assert_eq!(store.left.load(Ordering::Relaxed), 0, "HARNESS: the map was not asked that often");
        let kinds: Vec<_> = runs.iter().map(|run| (run.length, run.allocation)).collect();
        assert_eq!(kinds, [(4096, Allocation::Data)], "HARNESS: flushed at scan {scans}");
    }
    pool.close().unwrap();
}
