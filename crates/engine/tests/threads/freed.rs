//! A reader that is held up between learning its location and reading: its extent is freed at that
//! time, and would be written again, if nothing prevented that.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolEnv, PoolOptions};
use env::{AlignedBuf, Disk, DiskLayer, ReadRing};
use sim::{ContentKind, Machine, Rng, SimRing, fill_content};
use surface::{BlockDevice, WriteOptions};

use crate::common::machine_env::env;
use crate::common::together::read_together;

/// How long the reader waits after the last write for another one, in the hope of one to its
/// location. No writer may write there, and one that would has to wait for the reader, so the test
/// takes that long; on a slow machine, as long as its writes take in addition. With a bug planted
/// the hope is justified, also where the writer is held up for longer.
fn patience() -> Duration {
    if std::env::var_os("SHALE_CANARY").is_some() { Duration::from_secs(60) } else { Duration::from_millis(500) }
}

const EXTENT: u64 = 32 << 10;
/// Location of block `index`: 0 alone in its group, because a small read also loads adjacent blocks
/// of its group, and would be held up there.
fn place(index: u64) -> u64 {
    if index == 0 { 0 } else { (128 << 10) + index * 4096 }
}
/// Writes after which the log has come round many times: a log that has not overwritten the
/// reader's place by then will not.
const WRITES_MAX: u64 = 4000;

#[derive(Debug, Default)]
struct Gate {
    /// The next read is held up.
    armed: bool,
    /// Where the reader that is held up is going to read.
    held: Option<u64>,
    /// Writes since then.
    writes: u64,
    overwritten: bool,
}

/// A disk that holds one read up until its place is written, or no write came for as long as
/// [`patience`] says.
struct HoldingDisk {
    below: Arc<dyn Disk>,
    gate: Arc<(Mutex<Gate>, Condvar)>,
}

impl DiskLayer for HoldingDisk {
    fn below(&self) -> &dyn Disk {
        &*self.below
    }
    fn read_at(&self, offset: u64, buf: &mut AlignedBuf, len: usize) -> io::Result<()> {
        let (gate, changed) = &*self.gate;
        let mut state = gate.lock().unwrap();
        if std::mem::take(&mut state.armed) {
            state.held = Some(offset);
            changed.notify_all();
            loop {
                let seen = state.writes;
                let is_quiet = |gate: &mut Gate| !gate.overwritten && gate.writes == seen;
                let (next, waited) = changed.wait_timeout_while(state, patience(), is_quiet).unwrap();
                state = next;
                if state.overwritten || waited.timed_out() {
                    break;
                }
            }
            drop(state);
        } else {
            drop(state);
        }
        self.below.read_at(offset, buf, len)
    }
    fn read_ring(&self) -> Option<Box<dyn ReadRing + '_>> {
        Some(Box::new(SimRing::new(self, 1)))
    }
    fn write_at(&self, offset: u64, buf: &AlignedBuf, len: usize) -> io::Result<()> {
        self.below.write_at(offset, buf, len)?;
        let (gate, changed) = &*self.gate;
        let mut state = gate.lock().unwrap();
        if let Some(held) = state.held {
            state.writes += 1;
            state.overwritten |= offset <= held && held < offset + len as u64;
            changed.notify_all();
        }
        Ok(())
    }
}

fn block(seed: u64) -> Bytes {
    let mut data = vec![0; 4096];
    fill_content(&mut Rng::new(seed), ContentKind::Random, &mut data);
    Bytes::from(data)
}

#[test]
fn a_reader_keeps_its_extent() {
    hold_up(|device| {
        let mut data = vec![0; 4096];
        device.read(0, &mut data).map(|()| data)
    });
}

#[test]
fn a_read_under_way_with_others_keeps_its_extent() {
    // The others are of nothing, so that this one is held up.
    hold_up(|device| read_together(device, &[(8192, 4096), (0, 4096), (12288, 4096)]).remove(1));
}

fn hold_up(read: impl FnOnce(&dyn BlockDevice) -> surface::Result<Vec<u8>> + Send) {
    let capacity_bytes = 24 * EXTENT;
    let machine = Machine::new(capacity_bytes, 1);
    let gate = Arc::new((Mutex::new(Gate::default()), Condvar::new()));
    let env = PoolEnv {
        disk: Arc::new(HoldingDisk { below: machine.disk.handle(), gate: Arc::clone(&gate) }),
        ..env(&machine)
    };
    let options = FormatOptions { capacity_bytes, extent_bytes: EXTENT as u32, properties: Default::default() };
    Pool::format(&env, &options).unwrap();
    let options = PoolOptions { memory_bytes: 256 << 10, workers: 0, ..PoolOptions::default() };
    let pool = Pool::open(env, options).unwrap();
    pool.create_volume("v", 64 * 4096, &Default::default()).unwrap();
    let device = pool.volume("v").unwrap();
    pool.checkpoint().unwrap();
    // The block is in an extent of its own kind: extents kept for salvage come before it.
    for other in 0..12 {
        device.write(place(1 + other % 3), block(other), WriteOptions { fua: true }).unwrap();
    }
    device.write(0, block(1), WriteOptions { fua: true }).unwrap();
    pool.checkpoint().unwrap();
    pool.drop_caches();
    gate.0.lock().unwrap().armed = true;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let read = read(&*device);
            done.store(true, Ordering::Release);
            match read {
                Ok(data) => assert!(data == block(1), "HARNESS: a reader got what it did not ask for"),
                Err(error) => panic!("HARNESS: a reader lost its extent: {error}"),
            }
        });
        let held = gate.1.wait_while(gate.0.lock().unwrap(), |gate| gate.held.is_none()).unwrap();
        drop(held);
        // The block dies, its extent with it, and the log comes round.
        for seed in 2..WRITES_MAX {
            if done.load(Ordering::Acquire) || gate.0.lock().unwrap().overwritten {
                break;
            }
            device.write(place(seed % 4), block(seed), WriteOptions { fua: true }).unwrap();
            if seed % 4 == 0 {
                pool.checkpoint().unwrap();
            }
        }
    });
    assert!(done.into_inner());
}
