//! Room is judged by the state at that moment, not by an earlier one.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use env::{Disk, DiskLayer};
use format::Entry;
use sim::{ContentKind, Machine, Rng, fill_content};
use store::log::Purpose;
use store::space::admission::{Ask, BUFFER_TIMELY_MIN, Decision};
use surface::{BlockDevice, ErrorKind, WriteOptions};
use units::{BlockIndex, GROUP_BYTES};

use crate::make_room::Asks;
use crate::pool::Pool;
use crate::pool::core::Core;
use crate::pool::testing::pool_on;

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
    let [at_sync, at_end, meddled] = [false; 3].map(AtomicBool::new);
    let disk = Arc::new(MeddlingDisk {
        below: machine.disk.handle(),
        core: OnceLock::new(),
        at_sync,
        at_end,
        meddled,
        meddle,
    });
    let pool = pool_on(machine, Arc::clone(&disk) as _, 8 << 20, 0);
    pool.create_volume("v", 4 << 20, &Default::default()).unwrap();
    disk.core.set(Arc::downgrade(&pool.core)).unwrap();
    (disk, pool)
}

/// Uses up the listed extents, as far as data may.
fn use_up(core: &Core) {
    let object = core.objects.named("v").unwrap();
    while core.log.ahead() > core.geometry.kept_back(Purpose::Data) {
        let ranges = vec![(BlockIndex(0), 1)];
        core.writes.append_applied(vec![Entry::Holes { object: object.id, epoch: object.epoch(), ranges }]).unwrap();
    }
}

#[test]
fn room_that_others_used_up_at_once_is_no_full_pool() {
    let machine = Machine::new(8 << 20, 5);
    let (disk, pool) = pool_with(&machine, use_up);
    use_up(&pool.core);
    disk.at_end.store(true, Ordering::Relaxed);
    pool.core.checkpoints.refill_list(Purpose::Data).unwrap();
    disk.at_end.store(false, Ordering::Relaxed);
    assert!(disk.meddled.load(Ordering::Relaxed), "nothing came between");
    assert!(pool.core.log.ahead() <= pool.core.geometry.kept_back(Purpose::Data));
    pool.core.checkpoints.refill_list(Purpose::Data).unwrap();
    assert!(pool.core.log.ahead() > pool.core.geometry.kept_back(Purpose::Data));
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
    drop(core.make_room.admit_new(&object, 4096, 0, Asks::Tree).unwrap());
    let all = core.space.room_before(core.geometry.reserve_extents()) - core.space.committed_bytes();
    let asked = std::thread::scope(|scope| {
        let round = core.clean.rounds.read();
        let aside = core.space.reserve_for_cleaning(all);
        let asks = scope.spawn(|| core.make_room.admit_new(&object, 4096, 0, Asks::Tree).map(drop));
        // It is refused at once, or waits for the end of the round: then no other round begins.
        while !asks.is_finished() && core.clean.rounds.try_read().is_some() {
            std::thread::yield_now();
        }
        drop((aside, round));
        asks.join().unwrap()
    });
    assert!(asked.is_ok(), "{asked:?}");
}

/// Also one that has waited for room while others took what new data may have.
#[test]
fn an_overwrite_finds_room_while_new_data_fills_the_pool() {
    const ROUNDS: u64 = 6;
    const FILLERS: usize = 3;
    const CAPACITY: u64 = 40 << 20;
    const NEW_BYTES: u64 = 256 << 10;
    const OLD_BYTES: u64 = 4 << 10;
    for seed in 0..ROUNDS {
        let machine = Machine::new(CAPACITY, seed);
        let pool = pool_on(&machine, machine.disk.handle(), CAPACITY, 2);
        let write = |name: &str, offset: u64, rng: &mut Rng, bytes: u64| {
            let mut data = vec![0; bytes as usize];
            rng.fill(&mut data);
            pool.volume(name).unwrap().write(offset, Bytes::from(data), WriteOptions::default())
        };
        pool.create_volume("old", CAPACITY, &Default::default()).unwrap();
        for offset in (0..CAPACITY / 4).step_by(NEW_BYTES as usize) {
            write("old", offset, &mut Rng::new(offset), NEW_BYTES).unwrap();
        }
        let full = AtomicUsize::new(0);
        let fill = |number: u64| {
            let (name, mut rng) = (format!("new-{number}"), Rng::new(seed + number));
            pool.create_volume(&name, CAPACITY, &Default::default()).unwrap();
            let refused = (0..CAPACITY).step_by(NEW_BYTES as usize);
            let refused = refused.filter_map(|offset| write(&name, offset, &mut rng, NEW_BYTES).err()).next();
            full.fetch_add(1, Ordering::Relaxed);
            assert_eq!(refused.unwrap().kind(), ErrorKind::Full);
        };
        std::thread::scope(|scope| {
            (1..=FILLERS as u64).for_each(|number| {
                drop({
                    let fill = &fill;
                    scope.spawn(move || fill(number))
                })
            });
            let mut rng = Rng::new(seed);
            while full.load(Ordering::Relaxed) < FILLERS {
                let offset = rng.below(CAPACITY / 4 / OLD_BYTES) * OLD_BYTES;
                let written = write("old", offset, &mut rng, OLD_BYTES);
                assert!(written.is_ok(), "seed {seed}: {written:?}");
            }
        });
        pool.close().unwrap();
    }
}

/// Data in the write buffer above its limit makes the next write wait, and no longer.
#[test]
fn a_full_write_buffer_is_waited_for() {
    let machine = Machine::new(256 << 20, 1);
    let pool = pool_on(&machine, machine.disk.handle(), 256 << 20, 0);
    pool.create_volume("v", 32 << 20, &Default::default()).unwrap();
    let space = &pool.core.space;
    let ask = Ask { bytes: 4096, promised: 0, asking: 4096, paced_bytes: 0 };
    let data = Bytes::from(vec![7; BUFFER_TIMELY_MIN + GROUP_BYTES]);
    pool.volume("v").unwrap().write(0, data, WriteOptions::default()).unwrap();
    assert!(matches!(space.decide(ask), Decision::Admit(_)) && !space.would_wait());
    // As with a codec that drains next to nothing.
    space.set_buffer_timely(1);
    assert!(matches!(space.decide(ask), Decision::WaitForBuffer(_)) && space.would_wait());
    pool.flush().unwrap();
    assert!(matches!(space.decide(ask), Decision::Admit(_)) && !space.would_wait());
}
