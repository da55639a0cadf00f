//! Zeroes that a batch takes along (`log::zero_ahead`) next to batches of other threads.
#![allow(clippy::unwrap_used)]

use std::io::Result;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use env::{AlignedBuf, Disk, DiskLayer};
use parking_lot::{Condvar, Mutex};
use sim::Machine;
use store::base::options::{FormatOptions, PoolOptions};
use store::log::zero_ahead::{SMALL_BATCH_BYTES, TAIL_BYTES};
use surface::{BlockDevice, WriteOptions};
use units::BLOCK_BYTES;

use crate::pool::Pool;
use crate::pool::testing::{env_on, reopen_on};
use crate::volume::Volume;

const EXTENT: u32 = 1 << 20;

/// Asserts that no write meets another one in flight, and counts those that take zeroes along.
struct Watched {
    below: Arc<dyn Disk>,
    under_way: Mutex<Vec<(u64, u64)>>,
    begins: Condvar,
    met: AtomicUsize,
    zeroes_begin: Mutex<Option<mpsc::Sender<()>>>,
}

impl DiskLayer for Watched {
    fn below(&self) -> &dyn Disk {
        &*self.below
    }
    fn write_at(&self, offset: u64, buf: &AlignedBuf, len: usize) -> Result<()> {
        let range = (offset, offset + len as u64);
        {
            let mut under_way = self.under_way.lock();
            let meets = |other: &&(u64, u64)| other.0 < range.1 && range.0 < other.1;
            self.met.fetch_add(under_way.iter().filter(meets).count(), Ordering::Relaxed);
            under_way.push(range);
            self.begins.notify_all();
        }
        let is_zero = |part: &[u8]| part.iter().all(|byte| *byte == 0);
        if len > SMALL_BATCH_BYTES && !is_zero(&buf[..BLOCK_BYTES]) && is_zero(&buf[len - TAIL_BYTES..len]) {
            if let Some(sender) = &*self.zeroes_begin.lock() {
                sender.send(()).unwrap();
            }
            // A writer that has been waiting for this writes now, or waits for the end of this
            // one.
            self.begins.wait_for(&mut self.under_way.lock(), Duration::from_millis(20));
        }
        let done = self.below.write_at(offset, buf, len);
        self.under_way.lock().retain(|other| *other != range);
        done
    }
}

/// Zeroes that a batch takes along must not overlap the next batch, on whichever thread that is
/// written.
#[test]
fn no_batch_is_written_where_zeroes_are_on_their_way_to() {
    let mut machine = Machine::new(64 << 20, 1);
    let (begin, begins) = mpsc::channel();
    let watched = Arc::new(Watched {
        below: machine.disk.handle(),
        under_way: Mutex::default(),
        begins: Condvar::new(),
        met: AtomicUsize::new(0),
        zeroes_begin: Mutex::new(Some(begin)),
    });
    // Extents with room for many turns.
    let options = FormatOptions { capacity_bytes: 48 << 20, extent_bytes: EXTENT, properties: Default::default() };
    Pool::format(&env_on(&machine, watched.clone()), &options).unwrap();
    let options = PoolOptions { workers: 2, ..PoolOptions::default() };
    let pool = Pool::open(env_on(&machine, watched.clone()), options).unwrap();
    let properties = [("compression".to_owned(), "off".to_owned())].into_iter().collect();
    pool.create_volume("v", 4 << 20, &properties).unwrap();
    let write = |volume: &Volume, offset: u64, blocks: usize, value: u8| {
        let data = Bytes::from(vec![value; blocks * BLOCK_BYTES]);
        volume.write(offset, data, WriteOptions::default()).unwrap();
        volume.flush().unwrap();
    };
    let other = 1 << 20;
    let met = std::thread::scope(|scope| {
        let volume = pool.volume("v").unwrap();
        let meets = scope.spawn(move || begins.iter().map(|()| write(&volume, other, 1, 200)).count());
        let volume = pool.volume("v").unwrap();
        for round in 0..30 {
            write(&volume, 0, 5, round + 1);
            write(&volume, 0, 1, round + 101);
        }
        watched.zeroes_begin.lock().take();
        meets.join().unwrap()
    });
    assert!(met > 2, "batches took zeroes along {met} times");
    assert_eq!(watched.met.load(Ordering::Relaxed), 0, "writes met");
    drop(pool);
    machine.power_cycle();
    let pool = reopen_on(&machine, machine.disk.handle());
    let volume = pool.volume("v").unwrap();
    let mut data = vec![0; 5 * BLOCK_BYTES];
    volume.read(0, &mut data).unwrap();
    let (first, rest) = data.split_at_mut(BLOCK_BYTES);
    assert!(first.iter().all(|byte| *byte == 130) && rest.iter().all(|byte| *byte == 30));
    volume.read(other, first).unwrap();
    assert!(first.iter().all(|byte| *byte == 200));
}
