//! Sorting: scattered data is contiguous again, in whole units; data shared by snapshots stays; and
//! sorting continues where it stopped.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolEnv, PoolOptions, Properties, SortReport, Volume};
use env::{AlignedBuf, Disk, DiskLayer};
use sim::{ContentKind, Machine, Rng, fill_content};
use surface::{BlockDevice, ErrorKind, WriteOptions};

const BLOCK: usize = 4096;
const EXTENT: u64 = 256 << 10;
const CAPACITY: u64 = 64 << 20;
const VOLUME: usize = 8 << 20;
const UNIT: usize = 32 << 10;
const GROUP: usize = 128 << 10;
/// More than a discard that goes through the write buffer, which is up to 64 groups.
const LARGE_DISCARD: usize = 80 * GROUP;
/// Bytes of a slice.
const SLICE: u64 = 1 << 20;

/// An action that runs once, in the middle of the next read of the disk.
type Interruption = Box<dyn FnOnce() + Send>;

/// A disk on which something happens between a read and its return.
struct InterruptedDisk {
    below: Arc<dyn Disk>,
    next: Arc<Mutex<Option<Interruption>>>,
}

impl DiskLayer for InterruptedDisk {
    fn below(&self) -> &dyn Disk {
        &*self.below
    }
    fn read_at(&self, offset: u64, buf: &mut AlignedBuf, len: usize) -> io::Result<()> {
        self.below.read_at(offset, buf, len)?;
        let next = self.next.lock().unwrap().take();
        // Another thread does it: this one has the locks of a read.
        next.into_iter().for_each(|interruption| std::thread::spawn(interruption).join().unwrap());
        Ok(())
    }
}

struct World {
    machine: Machine,
    interruption: Arc<Mutex<Option<Interruption>>>,
    pool: Option<Pool>,
    rng: Rng,
    /// Content of the volume `v`.
    data: Vec<u8>,
}

impl World {
    /// A pool with a volume that was written in order and then, if it shall be, block by block at
    /// random.
    fn new(capacity: u64, overwrites: usize) -> Self {
        let machine = Machine::new(capacity, 5);
        let mut world =
            Self { machine, interruption: Arc::default(), pool: None, rng: Rng::new(1), data: vec![0; VOLUME] };
        let properties = Properties::from([("compression".into(), "lz4".into()), ("unit".into(), "32K".into())]);
        let format = FormatOptions { capacity_bytes: capacity, extent_bytes: EXTENT as u32, properties };
        Pool::format(&world.env(), &format).unwrap();
        world.open();
        world.pool().create_volume("v", VOLUME as u64, &Properties::new()).unwrap();
        for block in world.data.chunks_mut(BLOCK) {
            fill_content(&mut world.rng, ContentKind::Text, block);
        }
        for at in (0..VOLUME).step_by(128 << 10) {
            world.put(at, &world.data[at..at + (128 << 10)]);
        }
        world.pool().checkpoint().unwrap();
        world.overwrite(overwrites);
        world
    }

    fn env(&self) -> PoolEnv {
        let disk = InterruptedDisk { below: self.machine.disk.handle(), next: Arc::clone(&self.interruption) };
        PoolEnv { disk: Arc::new(disk), ..crate::common::machine_env::env(&self.machine) }
    }

    /// Sorts; between the first read of the disk for that and its return, `change` changes the
    /// volume, and its expected content.
    fn sort_interrupted(&mut self, change: impl FnOnce(&Volume) + Send + 'static) {
        self.pool().drop_caches();
        let volume = self.pool().volume("v").unwrap();
        *self.interruption.lock().unwrap() = Some(Box::new(move || change(&volume)));
        let report = self.sort();
        assert!(self.interruption.lock().unwrap().is_none(), "HARNESS: nothing was read");
        println!("{report:?}");
        self.read();
        self.reopen();
        self.read();
        self.check();
    }

    fn open(&mut self) {
        let options = PoolOptions { memory_bytes: 8 << 20, workers: 0, ..PoolOptions::default() };
        self.pool = Some(Pool::open(self.env(), options).unwrap());
    }

    fn reopen(&mut self) {
        self.pool.take().unwrap().close().unwrap();
        self.machine.restart();
        self.open();
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }

    fn put(&self, at: usize, data: &[u8]) {
        let volume = self.pool().volume("v").unwrap();
        volume.write(at as u64, Bytes::copy_from_slice(data), WriteOptions::default()).unwrap();
    }

    fn overwrite(&mut self, count: usize) {
        for index in 0..count {
            let at = self.rng.below((VOLUME / BLOCK) as u64) as usize * BLOCK;
            let mut block = vec![0; BLOCK];
            fill_content(&mut self.rng, ContentKind::Text, &mut block);
            self.put(at, &block);
            self.data[at..at + BLOCK].copy_from_slice(&block);
            if index % 64 == 0 {
                self.pool().flush().unwrap();
            }
        }
        self.pool().checkpoint().unwrap();
    }

    fn sort(&self) -> SortReport {
        let mut report = self.pool().sort(SLICE, true).unwrap();
        while !report.is_finished {
            report = self.pool().sort(SLICE, false).unwrap();
        }
        self.pool().checkpoint().unwrap();
        report
    }

    fn stored(&self) -> u64 {
        self.pool().checkpoint().unwrap();
        self.pool().status().live_bytes
    }

    /// Returns the bytes that reading the volume in order takes from the disk, and whether the
    /// content is right.
    fn read(&self) -> u64 {
        self.pool().drop_caches();
        let before = self.pool().status().read_disk_bytes;
        let volume = self.pool().volume("v").unwrap();
        let mut data = vec![0; VOLUME];
        volume.read(0, &mut data).unwrap();
        assert!(data == self.data, "HARNESS: the volume is not what was written");
        self.pool().status().read_disk_bytes - before
    }

    fn check(&self) {
        let report = self.pool().check(false, &mut |_, _| ()).unwrap();
        assert!(report.problems.is_empty(), "HARNESS: {:?}", report.problems);
    }
}

#[test]
fn what_was_scattered_lies_together_again_and_stays_so() {
    let fresh = World::new(CAPACITY, 0);
    let (fresh_stored, fresh_read) = (fresh.stored(), fresh.read());
    assert_eq!(fresh.sort().rewritten_bytes, 0, "what is in order is left alone");
    let world = World::new(CAPACITY, 4 * VOLUME / BLOCK);
    let (worn_stored, worn_read) = (world.stored(), world.read());
    let report = world.sort();
    println!("{report:?}");
    assert!(report.is_finished && report.bytes_done == VOLUME as u64 && report.bytes_total == VOLUME as u64);
    assert!(report.rewritten_bytes > VOLUME as u64 * 9 / 10, "{report:?}");
    let (stored, read) = (world.stored(), world.read());
    println!(
        "stored {fresh_stored} fresh, {worn_stored} worn, {stored} sorted; read {fresh_read}, {worn_read}, {read}"
    );
    // Blocks alone compress worse than units of eight.
    assert!(stored < worn_stored * 97 / 100 && stored < fresh_stored * 103 / 100);
    assert!(read < fresh_read * 105 / 100);
    assert_eq!(world.sort().rewritten_bytes, 0, "a second pass has nothing to do");
    world.check();
}

#[test]
fn what_a_snapshot_shares_stays_where_it_is() {
    let mut world = World::new(CAPACITY, 2 * VOLUME / BLOCK);
    let old = world.data.clone();
    world.pool().snapshot("v", "s").unwrap();
    let shared = world.stored();
    assert_eq!(world.sort().rewritten_bytes, 0, "all of it is shared");
    assert_eq!(world.stored(), shared);
    world.overwrite(VOLUME / BLOCK);
    let before = world.stored();
    let report = world.sort();
    assert!(report.rewritten_bytes > VOLUME as u64 / 2 && report.rewritten_bytes < VOLUME as u64 * 3 / 4, "{report:?}");
    assert!(world.stored() <= before, "HARNESS: sorting made data larger");
    world.read();
    world.pool().clone_snapshot("v@s", "c", &Properties::new()).unwrap();
    let mut seen = vec![0; VOLUME];
    world.pool().volume("c").unwrap().read(0, &mut seen).unwrap();
    assert!(seen == old, "HARNESS: the snapshot changed");
    world.check();
}

#[test]
fn it_goes_on_after_a_restart_and_newer_writes_and_holes_win() {
    let mut world = World::new(CAPACITY, 2 * VOLUME / BLOCK);
    let half = world.pool().sort(VOLUME as u64 / 2, false).unwrap();
    assert!(!half.is_finished && half.bytes_done == VOLUME as u64 / 2 && half.rewritten_bytes > 0, "{half:?}");
    // On its way, not flushed, where it goes on.
    world.put(5 << 20, &[7; 40 << 10]);
    world.data[5 << 20..][..40 << 10].fill(7);
    world.pool().volume("v").unwrap().discard(6 << 20, 256 << 10).unwrap();
    world.data[6 << 20..][..256 << 10].fill(0);
    world.reopen();
    let known = world.pool().sort(0, false).unwrap();
    let (foreground_bytes, bytes_total) = (half.foreground_bytes, half.bytes_total);
    assert_eq!(SortReport { foreground_bytes, bytes_total, ..known.clone() }, half);
    assert_eq!(known.bytes_total, (VOLUME - (256 << 10)) as u64, "a hole is no data");
    let mut report = known;
    while !report.is_finished {
        report = world.pool().sort(SLICE, false).unwrap();
    }
    assert!(report.rewritten_bytes > half.rewritten_bytes);
    world.read();
    let allocated = world.pool().volume("v").unwrap().allocated_bytes();
    assert_eq!(allocated, (VOLUME - (256 << 10)) as u64, "HARNESS: a hole holds data again");
    // Finished sorting does nothing until it is restarted.
    let again = world.pool().sort(SLICE, false).unwrap();
    assert_eq!(again, SortReport { foreground_bytes: again.foreground_bytes, ..report });
    world.read();
    world.check();
}

/// A volume of a terabyte with little in it: the progress of sorting was reported by its size.
#[test]
fn how_far_it_is_counts_data_and_no_holes() {
    let world = World::new(CAPACITY, 2 * VOLUME / BLOCK);
    world.pool().resize_volume("v", 1 << 40).unwrap();
    let begun = world.pool().sort(1, true).unwrap();
    assert_eq!(begun.bytes_total, VOLUME as u64, "{begun:?}");
    let mut before = begun.bytes_done;
    let mut report = begun;
    while !report.is_finished {
        report = world.pool().sort(SLICE, false).unwrap();
        assert!(report.bytes_done >= before && report.bytes_done <= report.bytes_total, "{report:?}");
        before = report.bytes_done;
    }
    assert_eq!(report.bytes_done, report.bytes_total);
}

/// A pool with hardly more room than its live data: windows are rewritten one by one, and their
/// dead blocks are recovered at the same time.
#[test]
fn a_tight_pool_is_sorted_to_the_end() {
    let world = World::new(9 << 20, 2 * VOLUME / BLOCK);
    let report = world.sort();
    assert!(report.rewritten_bytes > VOLUME as u64 * 9 / 10, "{report:?}");
    world.read();
    world.check();
    assert_eq!(world.sort().rewritten_bytes, 0, "a second pass has nothing to do");
}

/// A pool without room for a single window says so and keeps everything; once there is room,
/// sorting goes on where it was.
#[test]
fn a_full_pool_says_so_and_keeps_everything() {
    let mut world = World::new(9 << 20, 2 * VOLUME / BLOCK);
    world.pool().create_volume("filler", 64 << 20, &Properties::new()).unwrap();
    let filler = world.pool().volume("filler").unwrap();
    let mut block = vec![0; BLOCK];
    let refused = (0..(64 << 20) / BLOCK as u64).find_map(|index| {
        fill_content(&mut world.rng, ContentKind::Random, &mut block);
        filler.write(index * BLOCK as u64, Bytes::copy_from_slice(&block), WriteOptions::default()).err()
    });
    assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::Full));
    world.pool().flush().unwrap();
    let error = world.pool().sort(VOLUME as u64, true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    let stopped = world.pool().sort(0, false).unwrap();
    assert!(stopped.bytes_done < VOLUME as u64 && !stopped.is_finished, "{stopped:?}");
    world.read();
    world.check();
    drop(filler);
    world.pool().destroy_volume("filler").unwrap();
    let mut report = stopped.clone();
    while !report.is_finished {
        report = world.pool().sort(SLICE, false).unwrap();
    }
    assert_eq!(report.started_unix_s, stopped.started_unix_s, "it went on");
    assert!(report.rewritten_bytes > VOLUME as u64 * 9 / 10, "{report:?}");
    world.read();
    world.check();
}

/// One damaged fragment: its group is left alone, whole, and is counted; all others are sorted; the
/// damage is neither lost nor spread.
#[test]
fn damage_stays_where_it_is_and_is_counted() {
    let world = World::new(CAPACITY, VOLUME / BLOCK);
    let found = || world.pool().scrub(CAPACITY, true).unwrap().found;
    // A bit that something lives on.
    let hit = (EXTENT..CAPACITY).step_by(EXTENT as usize / 4).find(|at| {
        world.machine.disk.flip_bit(*at, 3);
        let is_hit = found() == 1;
        if !is_hit {
            world.machine.disk.flip_bit(*at, 3);
        }
        is_hit
    });
    assert!(hit.is_some(), "HARNESS: nothing lives where damage was tried");
    let report = world.sort();
    assert!(report.is_finished, "{report:?}");
    assert_eq!(report.damaged_groups, 1, "{report:?}");
    assert_eq!(report.rewritten_bytes, (VOLUME - GROUP) as u64, "all other groups, and nothing of the damaged one");
    assert_eq!(found(), 1, "HARNESS: damage was lost, or spread");
    let volume = world.pool().volume("v").unwrap();
    let (mut damaged, mut block) = (0, vec![0; BLOCK]);
    for at in (0..VOLUME).step_by(BLOCK) {
        match volume.read(at as u64, &mut block) {
            Ok(()) => assert!(block == world.data[at..at + BLOCK], "HARNESS: byte {at} is not what was written"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                damaged += 1;
            }
        }
    }
    assert!((1..=UNIT / BLOCK).contains(&damaged), "{damaged} blocks cannot be read");
}

/// A medium error is damage like any other: sorting goes past it, and it is counted once.
#[test]
fn what_cannot_be_read_stays_where_it_is_and_is_counted() {
    let world = World::new(CAPACITY, VOLUME / BLOCK);
    let records = world.machine.store.dump().into_iter().filter(|(key, _)| format::parse_record_key(key).is_some());
    let mut fragments = records.flat_map(|(_, record)| format::Record::decode(&record).unwrap().fragments);
    let place = fragments.nth(500).unwrap().location / BLOCK as u64 * BLOCK as u64;
    world.machine.disk.break_reads(place..place + BLOCK as u64);
    world.pool().drop_caches();
    let report = world.pool().sort(u64::MAX, true).unwrap();
    assert!(report.is_finished && report.damaged_groups > 0, "{report:?}");
    assert_eq!(report.rewritten_bytes, VOLUME as u64 - report.damaged_groups * GROUP as u64, "all other groups");
    world.machine.disk.heal();
    world.pool().checkpoint().unwrap();
    world.read();
    world.check();
}

/// Data compressed better than the volume's properties now ask for does not grow.
#[test]
fn what_was_compressed_better_than_now_does_not_grow() {
    let mut world = World::new(CAPACITY, 0);
    let set = |world: &World, codec: &str| {
        world.pool().set_properties(Some("v"), &[("compression".into(), Some(codec.into()))]).unwrap();
    };
    set(&world, "zstd-12");
    world.overwrite(4 * VOLUME / BLOCK);
    set(&world, "lz4");
    let before = world.stored();
    let report = world.sort();
    assert!(report.rewritten_bytes > VOLUME as u64 * 9 / 10, "{report:?}");
    let after = world.stored();
    println!("{before} bytes stored with zstd-12, {after} after sorting with lz4");
    assert!(after < before, "HARNESS: sorting made {after} bytes of {before}");
    world.read();
    world.check();
}

/// Bytes that sorting writes are cleaning, not users' data: the write amplification shows them.
#[test]
fn what_is_sorted_counts_as_moved() {
    let world = World::new(CAPACITY, 4 * VOLUME / BLOCK);
    let before = world.pool().status();
    let report = world.sort();
    let after = world.pool().status();
    assert_eq!(after.fragment_bytes, before.fragment_bytes, "no user wrote anything");
    let moved = after.moved_bytes - before.moved_bytes;
    assert!(moved > report.rewritten_bytes / 10 && moved < report.rewritten_bytes, "{moved} of {report:?}");
    assert!(after.log_bytes - before.log_bytes >= moved);
}

/// A writer comes between the read of a group and its way back into the write buffer; once more
/// with a flush, after which nothing of the group is dirty any more.
#[test]
fn what_is_written_while_a_group_is_read_wins() {
    for flushes in [false, true] {
        let mut world = World::new(CAPACITY, 4 * VOLUME / BLOCK);
        let at = 5 * BLOCK;
        world.data[at..at + 2 * BLOCK].fill(7);
        world.sort_interrupted(move |volume| {
            volume.write(at as u64, Bytes::from(vec![7; 2 * BLOCK]), WriteOptions { fua: flushes }).unwrap();
        });
    }
}

/// The same with a discard: a small one goes through the write buffer, a large one past it.
#[test]
fn what_is_punched_while_a_group_is_read_stays_a_hole() {
    for length in [3 * BLOCK, LARGE_DISCARD] {
        let mut world = World::new(CAPACITY, 4 * VOLUME / BLOCK);
        world.pool().resize_volume("v", 2 * LARGE_DISCARD as u64).unwrap();
        let at = 5 * BLOCK;
        let end = VOLUME.min(at + length);
        world.data[at..end].fill(0);
        world.sort_interrupted(move |volume| volume.discard(at as u64, length as u64).unwrap());
        let allocated = world.pool().volume("v").unwrap().allocated_bytes();
        assert_eq!(allocated, (VOLUME - (end - at)) as u64, "HARNESS: a hole holds data again");
    }
}
