//! Progress of the pool while a thread waits for the device and has nothing placed yet: it writes
//! zeroes ahead, or preallocates space. The device holds that call until the test releases it.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io;
use std::sync::Arc;
use std::time::Duration;

use env::{AlignedBuf, Disk, DiskLayer};
use format::Stream;
use parking_lot::{Condvar as PlainCondvar, Mutex as PlainMutex};
use sim::Machine;
use store::base::options::{FormatOptions, PoolOptions};
use store::log::prepared::Prepared;
use store::log::{Position, Purpose};
use units::ExtentIndex;

use crate::pool::Pool;
use crate::pool::core::Core;
use crate::pool::testing::{env_on, reopen_on};

const CAPACITY_BYTES: u64 = 64 << 20;
/// The device gives up on a test that would never end: then the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Zeroes,
    Space,
}

#[derive(Debug, Default)]
struct Gate {
    /// The next call of the kind is held.
    is_armed: bool,
    is_kept: bool,
    has_given_up: bool,
}

struct SlowDisk {
    below: Arc<dyn Disk>,
    kind: Kept,
    gate: PlainMutex<Gate>,
    changed: PlainCondvar,
}

impl SlowDisk {
    fn keep(&self, kind: Kept) {
        let mut gate = self.gate.lock();
        if kind != self.kind || !std::mem::take(&mut gate.is_armed) {
            return;
        }
        gate.is_kept = true;
        self.changed.notify_all();
        let waited = self.changed.wait_while_for(&mut gate, |gate| gate.is_kept, PATIENCE);
        if waited.timed_out() {
            gate.is_kept = false;
            gate.has_given_up = true;
        }
    }

    fn arm(&self) {
        self.gate.lock().is_armed = true;
    }

    fn wait_until_kept(&self) {
        let waited = self.changed.wait_while_for(&mut self.gate.lock(), |gate| !gate.is_kept, PATIENCE);
        assert!(!waited.timed_out(), "no such call came");
    }

    fn assert_kept(&self, what: &str) {
        let gate = self.gate.lock();
        assert!(gate.is_kept && !gate.has_given_up, "{what} waited for the device");
    }

    fn release(&self) {
        self.gate.lock().is_kept = false;
        self.changed.notify_all();
    }
}

impl DiskLayer for SlowDisk {
    fn below(&self) -> &dyn Disk {
        &*self.below
    }
    fn write_at(&self, offset: u64, buf: &AlignedBuf, len: usize) -> io::Result<()> {
        if buf[..len].iter().all(|byte| *byte == 0) {
            self.keep(Kept::Zeroes);
        }
        self.below.write_at(offset, buf, len)
    }
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.keep(Kept::Space);
        self.below.reserve(offset, len)
    }
}

fn batch(core: &Core) -> Prepared {
    Prepared::metadata(Vec::new(), &core.buffers)
}

fn cold_batch(core: &Core) -> Prepared {
    let mut batch = batch(core);
    batch.stream = Stream::Cold;
    batch
}

/// Appends a batch and makes it durable, like those of a client that syncs each block.
fn append(core: &Core, batch: Prepared) {
    let Ok(ticket) = core.log.append(batch, Purpose::Metadata) else { panic!("it was refused") };
    core.log.wait_applied(ticket).unwrap();
    core.log.sync().unwrap();
}

struct World {
    machine: Machine,
    disk: Arc<SlowDisk>,
    pool: Pool,
}

impl World {
    /// A pool without threads, with an open extent in both streams.
    fn new(kind: Kept, extent_bytes: u32) -> Self {
        let machine = Machine::new(CAPACITY_BYTES, 1);
        let below = machine.disk.handle();
        let disk = SlowDisk { below, kind, gate: PlainMutex::default(), changed: PlainCondvar::new() };
        let disk = Arc::new(disk);
        let env = || env_on(&machine, Arc::clone(&disk) as _);
        let options = FormatOptions { capacity_bytes: CAPACITY_BYTES, extent_bytes, properties: Default::default() };
        Pool::format(&env(), &options).unwrap();
        let pool = Pool::open(env(), PoolOptions { workers: 0, ..PoolOptions::default() }).unwrap();
        append(&pool.core, batch(&pool.core));
        append(&pool.core, cold_batch(&pool.core));
        Self { machine, disk, pool }
    }

    /// Holds the appending thread's next call of this kind, and passes the pool to `look` in that
    /// state. Afterwards the log continues, and recovery finds all of it.
    fn while_kept(mut self, look: impl FnOnce(&Core, &SlowDisk)) {
        let core = &*self.pool.core;
        self.disk.arm();
        std::thread::scope(|scope| {
            let appends = scope.spawn(|| (0..60).for_each(|_| append(core, batch(core))));
            self.disk.wait_until_kept();
            look(core, &self.disk);
            self.disk.release();
            appends.join().unwrap();
        });
        append(core, batch(core));
        let end = core.log.applied_seq();
        drop(self.pool);
        self.machine.power_cycle();
        let pool = reopen_on(&self.machine, self.machine.disk.handle());
        assert!(pool.core.log.applied_seq() >= end, "recovery has not found all");
        assert!(pool.check(false, &mut |_, _| ()).unwrap().problems.is_empty());
    }
}

/// Runs the operations that need no position in the log.
fn look_around(core: &Core, disk: &SlowDisk) {
    core.log.sync().unwrap();
    disk.assert_kept("a sync of what is applied");
    assert!(!core.log.is_broken() && core.log.bytes_since_checkpoint() > 0);
    disk.assert_kept("a look at the log");
    core.checkpoints.take_light().unwrap();
    disk.assert_kept("a light checkpoint");
    core.checkpoints.take().unwrap();
    disk.assert_kept("a full checkpoint");
}

#[test]
fn a_write_of_zeroes_ahead_keeps_nothing_up_but_its_stream() {
    World::new(Kept::Zeroes, 1 << 20).while_kept(|core, disk| {
        look_around(core, disk);
        append(core, cold_batch(core));
        disk.assert_kept("a batch of the other stream");
        // Not even a pool that is being shrunk abandons the extent that they are being written to.
        let hot = |position: &Position| position.open[Stream::Hot as usize];
        let before = core.log.position(ExtentIndex(u32::MAX), false, || ());
        let mut position = core.log.position(ExtentIndex(1), false, || ());
        assert!(position.extents.is_empty() && hot(&position).is_some());
        assert_eq!(hot(&position), hot(&before));
        position.passed.clear();
        core.log.extend(&position, &position.dropped);
    });
}

#[test]
fn setting_space_aside_keeps_nothing_up_but_what_needs_it() {
    World::new(Kept::Space, 64 << 10).while_kept(look_around);
}

/// All later batches wait for this one: preallocation for others must not delay its write.
#[test]
fn a_writer_sets_space_aside_when_it_has_written_its_batch() {
    let World { disk, pool, .. } = World::new(Kept::Space, 64 << 10);
    let core = &*pool.core;
    let Ok(ticket) = core.log.enqueue(batch(core), Purpose::Metadata) else { panic!("it was refused") };
    disk.arm();
    std::thread::scope(|scope| {
        scope.spawn(|| core.log.write_queued());
        disk.wait_until_kept();
        assert!(core.log.applied_seq() > ticket.seq, "it waits for space that it does not need");
        disk.release();
    });
}
