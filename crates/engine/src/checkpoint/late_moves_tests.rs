//! Moves between a checkpoint's capture and its end: they must not restore data that the checkpoint
//! removes.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use env::{Disk, DiskLayer};
use sim::{ContentKind, Machine, Rng, fill_content};
use surface::{BlockDevice, WriteOptions};
use units::BLOCK_BYTES;

use crate::clean::round::Round;
use crate::pool::Pool;
use crate::pool::core::Core;
use crate::pool::testing::{pool_on, reopen_on};

const BLOCKS: u64 = 64;

/// Cleans while a checkpoint syncs the log, which is after its capture.
struct CleaningDisk {
    below: Arc<dyn Disk>,
    core: OnceLock<Weak<Core>>,
    is_armed: AtomicBool,
    moved: AtomicU64,
}

impl DiskLayer for CleaningDisk {
    fn below(&self) -> &dyn Disk {
        &*self.below
    }

    fn sync(&self) -> std::io::Result<()> {
        self.below.sync()?;
        let Some(core) = self.core.get().and_then(Weak::upgrade).filter(|core| core.map.is_frozen()) else {
            return Ok(());
        };
        if self.is_armed.swap(false, Ordering::Relaxed) {
            let clean = || {
                while let Round::Cleaned { moved, .. } = core.clean.clean_round(core.clean.rule(1, true)).unwrap() {
                    self.moved.fetch_add(moved, Ordering::Relaxed);
                }
            };
            // The checkpoint's thread holds locks that the cleaner's thread does not have.
            std::thread::scope(|scope| scope.spawn(clean).join().unwrap());
        }
        Ok(())
    }
}

struct World {
    machine: Machine,
    disk: Arc<CleaningDisk>,
    pool: Pool,
}

impl World {
    /// A volume whose blocks lie in extents that are partly dead.
    fn new() -> Self {
        let machine = Machine::new(8 << 20, 3);
        let below = machine.disk.handle();
        let (core, is_armed, moved) = (OnceLock::new(), AtomicBool::new(false), AtomicU64::new(0));
        let disk = Arc::new(CleaningDisk { below, core, is_armed, moved });
        let pool = pool_on(&machine, Arc::clone(&disk) as _, 8 << 20, 0);
        disk.core.set(Arc::downgrade(&pool.core)).unwrap();
        let world = Self { machine, disk, pool };
        world.pool.create_volume("v", (BLOCKS + 1) * BLOCK_BYTES as u64, &Default::default()).unwrap();
        (0..BLOCKS).for_each(|block| world.write(block, block));
        world.pool.checkpoint().unwrap();
        world
    }

    fn content(seed: u64) -> Vec<u8> {
        let mut data = vec![0; BLOCK_BYTES];
        fill_content(&mut Rng::new(seed), ContentKind::Random, &mut data);
        data
    }

    fn write(&self, block: u64, seed: u64) {
        let volume = self.pool.volume("v").unwrap();
        let data = Bytes::from(Self::content(seed));
        volume.write(block * BLOCK_BYTES as u64, data, WriteOptions::default()).unwrap();
    }

    fn read(&self, block: u64) -> Vec<u8> {
        let mut data = vec![0; BLOCK_BYTES];
        self.pool.volume("v").unwrap().read(block * BLOCK_BYTES as u64, &mut data).unwrap();
        data
    }

    /// Takes a checkpoint, and in parallel moves all data that it does not know to be dead.
    fn checkpoint_beside_moves(&self) {
        // So that there is something to sync.
        self.write(BLOCKS, 0);
        while self.pool.core.writes.drain(u64::MAX).unwrap() {}
        self.disk.is_armed.store(true, Ordering::Relaxed);
        self.pool.core.checkpoints.take().unwrap();
        assert!(self.disk.moved.load(Ordering::Relaxed) > 0, "nothing was moved");
    }

    /// Asserts that all blocks match `expected` (`None`: zeroes): now, after checkpoints, and when
    /// the pool was opened again.
    fn verify(self, expected: impl Fn(u64) -> Option<u64>) {
        let verify = |world: &Self, when: &str| {
            world.pool.drop_caches();
            for block in 0..BLOCKS {
                let expected = expected(block).map_or(vec![0; BLOCK_BYTES], Self::content);
                assert!(world.read(block) == expected, "block {block}, {when}");
            }
            let report = world.pool.check(false, &mut |_, _| ()).unwrap();
            assert!(report.problems.is_empty(), "{when}: {:?}", report.problems);
        };
        verify(&self, "at once");
        // The same after a new descriptor and more checkpoints.
        self.pool.snapshot("v", "later").unwrap();
        verify(&self, "after a snapshot");
        self.pool.checkpoint().unwrap();
        self.pool.destroy("v@later", false).unwrap();
        self.pool.checkpoint().unwrap();
        self.pool.checkpoint().unwrap();
        verify(&self, "after checkpoints");
        let Self { machine, disk, pool } = self;
        pool.close().unwrap();
        let pool = reopen_on(&machine, Arc::clone(&disk.below));
        verify(&Self { machine, disk, pool }, "after reopening");
    }
}

#[test]
fn what_a_discard_hid_does_not_come_back_with_a_move() {
    let world = World::new();
    // Every third block is dead in its old location, and all belong to an older epoch that no point
    // sees any more.
    (0..BLOCKS).step_by(3).for_each(|block| world.write(block, 100 + block));
    world.pool.snapshot("v", "s").unwrap();
    world.pool.checkpoint().unwrap();
    world.pool.destroy("v@s", false).unwrap();
    world.pool.checkpoint().unwrap();
    let volume = world.pool.volume("v").unwrap();
    volume.discard(0, BLOCKS / 2 * BLOCK_BYTES as u64).unwrap();
    drop(volume);
    world.checkpoint_beside_moves();
    world.verify(|block| match block {
        block if block < BLOCKS / 2 => None,
        block if block % 3 == 0 => Some(100 + block),
        block => Some(block),
    });
}

#[test]
fn what_a_rollback_took_back_does_not_come_back_with_a_move() {
    let world = World::new();
    world.pool.snapshot("v", "s").unwrap();
    (0..BLOCKS).for_each(|block| world.write(block, 200 + block));
    world.pool.checkpoint().unwrap();
    (0..BLOCKS).step_by(3).for_each(|block| world.write(block, 300 + block));
    world.pool.checkpoint().unwrap();
    world.pool.rollback("v@s", false).unwrap();
    world.checkpoint_beside_moves();
    world.verify(Some);
}

#[test]
fn what_a_clone_hides_of_its_origin_does_not_come_back_with_a_move() {
    let world = World::new();
    (0..BLOCKS).step_by(3).for_each(|block| world.write(block, 100 + block));
    world.pool.snapshot("v", "s").unwrap();
    world.pool.clone_snapshot("v@s", "w", &Default::default()).unwrap();
    world.pool.destroy("v", true).unwrap();
    world.pool.rename("w", "v").unwrap();
    world.pool.checkpoint().unwrap();
    // Of the other volume's blocks that the clone sees, half are discarded and a quarter written
    // over.
    let volume = world.pool.volume("v").unwrap();
    volume.discard(0, BLOCKS / 2 * BLOCK_BYTES as u64).unwrap();
    drop(volume);
    (BLOCKS / 2..BLOCKS / 4 * 3).for_each(|block| world.write(block, 200 + block));
    world.checkpoint_beside_moves();
    let pool = world.pool.clone();
    world.pool.checkpoint().unwrap();
    world.pool.checkpoint().unwrap();
    // The blocks hold the data written last, and the data that was not overwritten.
    assert_eq!(
        pool.status().allocated_bytes + pool.status().unlisted_allocated_bytes,
        (BLOCKS / 2 + 1) * BLOCK_BYTES as u64
    );
    drop(pool);
    world.verify(|block| match block {
        block if block < BLOCKS / 2 => None,
        block if block < BLOCKS / 4 * 3 => Some(200 + block),
        block if block % 3 == 0 => Some(100 + block),
        block => Some(block),
    });
}

#[test]
fn an_object_of_which_something_comes_back_is_not_passed_over() {
    let world = World::new();
    (0..BLOCKS).step_by(3).for_each(|block| world.write(block, 100 + block));
    world.pool.snapshot("v", "s").unwrap();
    world.pool.clone_snapshot("v@s", "w", &Default::default()).unwrap();
    world.pool.destroy("v", true).unwrap();
    world.pool.rename("w", "v").unwrap();
    world.pool.checkpoint().unwrap();
    world.pool.volume("v").unwrap().discard(0, (BLOCKS + 1) * BLOCK_BYTES as u64).unwrap();
    world.checkpoint_beside_moves();
    // All of it was removed by that checkpoint, and all of it was moved after its capture.
    let clone = world.pool.core.objects.named("v").unwrap();
    world.pool.core.history.pass_on();
    assert_eq!(clone.levels().len(), 2);
    world.pool.checkpoint().unwrap();
    assert_eq!(clone.levels().len(), 1);
    world.pool.checkpoint().unwrap();
    assert_eq!(world.pool.core.objects.all().len(), 1);
    world.verify(|_| None);
}
