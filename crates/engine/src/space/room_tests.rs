//! Room is judged by the state at that moment, not by an earlier one.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use env::{Disk, DiskLayer};
use format::Entry;
use sim::{ContentKind, Machine, Rng, fill_content};
use surface::{BlockDevice, ErrorKind, WriteOptions};
use units::BlockIndex;

use crate::base::testing::pool_on;
use crate::log::Purpose;
use crate::pool::Pool;
use crate::pool::core::Core;
use crate::space::admission::{Asks, cost_of};
use crate::space::claims::Claim;

/// Runs an action while a checkpoint syncs the log, or when it has put extents on the list.
struct MeddlingDisk {
    below: Arc<dyn Disk>,
    core: OnceLock<Weak<Core>>,
    at_sync: AtomicBool,
    at_end: AtomicBool,
    meddled: AtomicBool,
    meddle: fn(&Core),
}

impl MeddlingDisk {
    fn meddle(&self) {
        if let Some(core) = self.core.get().and_then(Weak::upgrade) {
            self.meddled.store(true, Ordering::Relaxed);
            // On another thread: this one holds the checkpoint's locks.
            std::thread::scope(|scope| scope.spawn(|| (self.meddle)(&core)).join().unwrap());
        }
    }
}

impl DiskLayer for MeddlingDisk {
    fn below(&self) -> &dyn Disk {
        &*self.below
    }

    fn sync(&self) -> std::io::Result<()> {
        if self.at_sync.swap(false, Ordering::Relaxed) {
            self.meddle();
        }
        self.below.sync()
    }

    fn room_bytes(&self) -> u64 {
        if self.at_end.load(Ordering::Relaxed) {
            self.meddle();
        }
        self.below.room_bytes()
    }
}

fn pool_with(machine: &Machine, meddle: fn(&Core)) -> (Arc<MeddlingDisk>, Pool) {
    pool_of(machine, 8 << 20, meddle)
}

fn pool_of(machine: &Machine, capacity_bytes: u64, meddle: fn(&Core)) -> (Arc<MeddlingDisk>, Pool) {
    let [at_sync, at_end, meddled] = [false; 3].map(AtomicBool::new);
    let disk = Arc::new(MeddlingDisk {
        below: machine.disk.handle(),
        core: OnceLock::new(),
        at_sync,
        at_end,
        meddled,
        meddle,
    });
    let pool = pool_on(machine, Arc::clone(&disk) as _, capacity_bytes, 0);
    pool.create_volume("v", capacity_bytes / 2, &Default::default()).unwrap();
    disk.core.set(Arc::downgrade(&pool.core)).unwrap();
    (disk, pool)
}

/// Uses up the listed extents, as far as data may.
fn use_up(core: &Core) {
    let object = core.objects.named("v").unwrap();
    while core.log.ahead() > core.geometry.kept_back(Purpose::Data) {
        let ranges = vec![(BlockIndex(0), 1)];
        core.append_applied(vec![Entry::Holes { object: object.id, epoch: object.epoch(), ranges }]).unwrap();
    }
}

#[test]
fn room_that_others_used_up_at_once_is_no_full_pool() {
    let machine = Machine::new(8 << 20, 5);
    let (disk, pool) = pool_with(&machine, use_up);
    use_up(&pool.core);
    disk.at_end.store(true, Ordering::Relaxed);
    pool.core.make_room(Purpose::Data).unwrap();
    disk.at_end.store(false, Ordering::Relaxed);
    assert!(disk.meddled.load(Ordering::Relaxed), "nothing came between");
    assert!(pool.core.log.ahead() <= pool.core.geometry.kept_back(Purpose::Data));
    pool.core.make_room(Purpose::Data).unwrap();
    assert!(pool.core.log.ahead() > pool.core.geometry.kept_back(Purpose::Data));
}

/// Takes all that new data may have, as other writers do.
fn take_what_new_data_may_have(core: &Core) {
    let object = core.objects.named("v").unwrap();
    while core.extents_kept(&object, 0, Claim::New) < core.extents_promised(&object, Claim::New) {
        core.reserve(u64::from(core.geometry.extent_bytes)).keep();
    }
}

/// A write asked for room while dead data left enough for all, and waited for it; meanwhile others
/// took what new data may have. It was then refused as new data, although it overwrote some.
#[test]
fn a_write_that_waited_is_still_an_overwrite() {
    const CAPACITY: u64 = 40 << 20;
    const BLOCK: u64 = 32 << 10;
    let machine = Machine::new(CAPACITY, 7);
    let (disk, pool) = pool_of(&machine, CAPACITY, take_what_new_data_may_have);
    let (core, volume) = (&pool.core, pool.volume("v").unwrap());
    let mut rng = Rng::new(8);
    let mut data = vec![0; BLOCK as usize];
    let mut write = |offset: u64| {
        rng.fill(&mut data);
        volume.write(offset, Bytes::copy_from_slice(&data), WriteOptions::default())
    };
    // All of the volume, and then parts of it again until no extent is free.
    let mut offsets = (0..CAPACITY / 2).step_by(BLOCK as usize).cycle();
    while core.has_room_for(cost_of(BLOCK), core.soft_wall()) {
        write(offsets.next().unwrap()).unwrap();
    }
    assert_eq!(core.extents_kept(&volume.object, BLOCK, Claim::New), 0, "the pool is full for new data");
    disk.at_sync.store(true, Ordering::Relaxed);
    let written = write(0);
    assert!(disk.meddled.load(Ordering::Relaxed), "nobody else took room");
    assert!(core.extents_kept(&volume.object, BLOCK, Claim::New) > 0, "there is room for new data");
    assert!(written.is_ok(), "{written:?}");
}

/// As a change of the property does.
fn lower_quota(core: &Core) {
    let object = core.objects.named("v").unwrap();
    object.settings.write().quota_bytes = Some(64 << 10);
    object.quota.forget();
}

#[test]
fn a_quota_that_is_lowered_while_a_write_looks_holds() {
    let machine = Machine::new(8 << 20, 6);
    let (disk, pool) = pool_with(&machine, lower_quota);
    pool.set_properties(Some("v"), &[("quota".to_owned(), Some("3M".to_owned()))]).unwrap();
    let volume = pool.volume("v").unwrap();
    let mut data = vec![0; 32 << 10];
    fill_content(&mut Rng::new(7), ContentKind::Random, &mut data);
    let data = Bytes::from(data);
    volume.write(0, data.clone(), WriteOptions::default()).unwrap();
    // Dirty data becomes durable when a write checks its quota.
    volume.object.quota.forget();
    disk.at_sync.store(true, Ordering::Relaxed);
    let results: Vec<_> = (1..64).map(|i| volume.write(i << 15, data.clone(), WriteOptions::default())).collect();
    assert!(disk.meddled.load(Ordering::Relaxed), "the quota was not lowered");
    let written = results.iter().filter(|result| result.is_ok()).count();
    assert!(written <= 1, "{written} writes of 32 KiB into a quota of 64 KiB");
    assert!(results.iter().flat_map(|result| result.as_ref().err()).all(|error| error.kind() == ErrorKind::Full));
}

/// Data was refused, and the tree of a share asked for room that data may not have, while a round
/// of the cleaner had reserved all room: a removal failed with "no space left".
#[test]
fn room_that_a_round_of_the_cleaner_has_set_aside_is_waited_for() {
    let machine = Machine::new(8 << 20, 1);
    let pool = pool_on(&machine, machine.disk.handle(), 8 << 20, 0);
    pool.create_share("s", &Default::default()).unwrap();
    pool.create_volume("v", 16 << 20, &Default::default()).unwrap();
    let volume = pool.volume("v").unwrap();
    let mut rng = Rng::new(1);
    let refused = (0..16 << 20).step_by(32 << 10).find_map(|offset| {
        let mut block = vec![0; 32 << 10];
        rng.fill(&mut block);
        volume.write(offset, Bytes::from(block), WriteOptions::default()).err()
    });
    assert_eq!(refused.unwrap().kind(), ErrorKind::Full);
    let core = &pool.core;
    let object = core.objects.named("s").unwrap();
    drop(core.admit_new(&object, 4096, Asks::Tree).unwrap());
    let all = core.room_before(core.geometry.reserve_extents()) - core.committed_bytes();
    let asked = std::thread::scope(|scope| {
        let round = core.cleaning.read();
        let aside = core.reserve_for_cleaning(all);
        let asks = scope.spawn(|| core.admit_new(&object, 4096, Asks::Tree).map(drop));
        // It is refused at once, or waits for the end of the round: then no other round begins.
        while !asks.is_finished() && core.cleaning.try_read().is_some() {
            std::thread::yield_now();
        }
        drop((aside, round));
        asks.join().unwrap()
    });
    assert!(asked.is_ok(), "{asked:?}");
}
