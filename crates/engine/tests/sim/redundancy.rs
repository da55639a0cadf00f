//! Data stored in several copies (the property `copies`): no damaged place of the medium takes a
//! block and its copy, damage is repaired and counted, and a copy is never older than its original.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::Bytes;
use engine::{Files, Pool, Properties};
use format::STREAM_HEAD_BYTES;
use sim::{ContentKind, Fault, Machine, Rng, fill_content};
use surface::{BlockDevice, ObjectSpace, WriteOptions};

use crate::common::lz4_pool::{EXTENT, Lz4Pool};
use crate::common::salvage::{salvage, salvage_with_map};
use crate::common::{Campaign, Failure, Tally};
use crate::damages::{damage, damage_heads, location};

const CAPACITY: u64 = 16 << 20;
const BLOCK: u64 = 4096;
const BYTES: usize = 768 << 10;

fn copies(count: u8) -> Properties {
    Properties::from([("copies".to_owned(), count.to_string())])
}

fn set_copies(pool: &Pool, name: &str, count: u8) {
    pool.set_properties(Some(name), &[("copies".to_owned(), Some(count.to_string()))]).unwrap();
}

/// A pool with a volume `v`, the content of which is known.
struct Made {
    pool: Lz4Pool,
    content: Vec<u8>,
    rng: Rng,
}

impl Made {
    fn new(seed: u64, count: u8) -> Self {
        let pool = Lz4Pool::new(CAPACITY);
        pool.pool().create_volume("v", BYTES as u64, &copies(count)).unwrap();
        Self { pool, content: vec![0; BYTES], rng: Rng::new(seed) }
    }

    fn pool(&self) -> &Pool {
        self.pool.pool()
    }

    fn machine(&self) -> &Machine {
        &self.pool.machine
    }

    fn write(&mut self, first: u64, blocks: u64) {
        let at = (first * BLOCK) as usize;
        let data = &mut self.content[at..at + (blocks * BLOCK) as usize];
        let kind = if self.rng.below(3) == 0 { ContentKind::Random } else { ContentKind::Text };
        data.chunks_mut(BLOCK as usize).for_each(|block| fill_content(&mut self.rng, kind, block));
        let data = Bytes::copy_from_slice(data);
        self.pool.pool().volume("v").unwrap().write(first * BLOCK, data, WriteOptions::default()).unwrap();
    }

    /// Writes, discards, flushes, snapshots, checkpoints and cleaning, in some order.
    fn work(&mut self, steps: u64) {
        let all = BYTES as u64 / BLOCK;
        for _ in 0..steps {
            let blocks = 1 + self.rng.below(24);
            let first = self.rng.below(all - blocks);
            match self.rng.below(16) {
                0 => {
                    let at = (first * BLOCK) as usize;
                    self.content[at..at + (blocks * BLOCK) as usize].fill(0);
                    self.pool().volume("v").unwrap().discard(first * BLOCK, blocks * BLOCK).unwrap();
                }
                1 => self.pool().checkpoint().unwrap(),
                2 => drop(self.pool().clean(true, 1).unwrap()),
                3 => self.pool().flush().unwrap(),
                4 => {
                    let _ = self.pool().destroy("v@s", false);
                    self.pool().snapshot("v", "s").unwrap();
                }
                _ => self.write(first, blocks),
            }
        }
        self.pool().checkpoint().unwrap();
    }

    /// The first block that reads as something else, or not at all.
    fn wrong(&self) -> Option<String> {
        self.pool().drop_caches();
        let volume = self.pool().volume("v").unwrap();
        (0..BYTES as u64 / BLOCK).find_map(|block| {
            let mut found = vec![0; BLOCK as usize];
            match volume.read(block * BLOCK, &mut found) {
                Err(error) => Some(format!("block {block}: {error}")),
                Ok(()) => {
                    let is_right = found == self.content[(block * BLOCK) as usize..][..BLOCK as usize];
                    (!is_right).then(|| format!("block {block} reads as something else"))
                }
            }
        })
    }

    /// Flips bits everywhere in an extent.
    fn spoil(&self, extent: u64) {
        let places = (extent * EXTENT..(extent + 1) * EXTENT).step_by(32);
        places.for_each(|at| self.machine().disk.flip_bit(at + 7, 2));
        self.pool().drop_caches();
    }
}

/// Places of the medium of so many bytes that hold something.
fn places(machine: &Machine, bytes: u64) -> Vec<u64> {
    let holds = |at: &u64| {
        let mut content = vec![0; bytes as usize];
        machine.disk.peek(*at, &mut content);
        content.iter().any(|byte| *byte != 0)
    };
    (EXTENT..CAPACITY).step_by(bytes as usize).filter(holds).collect()
}

#[test]
fn no_lost_extent_takes_a_block_and_its_copy() {
    for count in [2, 3] {
        let mut made = Made::new(u64::from(count), count);
        made.work(150);
        let mut hits = 0;
        for place in places(made.machine(), EXTENT) {
            made.machine().disk.break_reads(place..place + EXTENT);
            let before = made.pool().status().reads_of_copies;
            if let Some(wrong) = made.wrong() {
                panic!("HARNESS: without the extent at byte {place}, {wrong}");
            }
            hits += u64::from(made.pool().status().reads_of_copies > before);
            made.machine().disk.heal();
        }
        assert!(hits > 1, "HARNESS: {hits} extents were needed");
    }
}

#[test]
fn two_of_three_copies_may_be_lost() {
    let mut made = Made::new(9, 3);
    made.write(0, 8);
    made.pool().checkpoint().unwrap();
    let all = places(made.machine(), EXTENT);
    let mut lost = 0;
    for one in &all {
        for other in all.iter().filter(|other| *other > one) {
            [one, other].into_iter().for_each(|place| made.machine().disk.break_reads(*place..*place + EXTENT));
            assert_eq!(made.wrong(), None, "HARNESS: without the extents at bytes {one} and {other}");
            lost += 1;
            made.machine().disk.heal();
        }
    }
    assert!(lost >= 3, "HARNESS: {all:?}");
}

/// Names and places of files are stored in one copy more than the files.
#[test]
fn what_the_tree_of_a_share_writes_for_itself_has_a_copy_more() {
    let made = Lz4Pool::new(CAPACITY);
    made.pool().create_share("s", &Properties::new()).unwrap();
    let share = made.pool().volume("s").unwrap();
    let files = Files::new(share.clone(), share).unwrap();
    let page = |number: u64| {
        let mut bytes = vec![0; BLOCK as usize];
        fill_content(&mut Rng::new(number), ContentKind::Random, &mut bytes);
        Bytes::from(bytes)
    };
    // In the first MiB of a file, and beyond.
    let at = |number: u64| number * 9 * BLOCK;
    for number in 0..40 {
        files.write(1, at(number), page(number)).unwrap();
        files.write(77, at(number), page(100 + number)).unwrap();
        if number % 4 == 3 {
            files.flush().unwrap();
        }
    }
    made.pool().checkpoint().unwrap();
    let mut lost = 0;
    for place in places(&made.machine, EXTENT) {
        made.machine.disk.break_reads(place..place + EXTENT);
        made.pool().drop_caches();
        for number in 0..40 {
            let mut found = vec![0; BLOCK as usize];
            let read = files.read(1, at(number), &mut found);
            assert!(read.is_ok() && found == page(number), "HARNESS: the extent at byte {place} takes page {number}");
            lost += u64::from(files.read(77, at(number), &mut found).is_err());
        }
        made.machine.disk.heal();
    }
    assert!(lost >= 40, "HARNESS: {lost} blocks of the file were hit");
    let report = made.pool().check(false, &mut |_, _| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn an_overwrite_with_fewer_copies_leaves_no_old_one() {
    let mut made = Made::new(4, 3);
    let noise = |made: &mut Made, seed: u64| {
        let mut data = vec![0; 8 * BLOCK as usize];
        fill_content(&mut Rng::new(seed), ContentKind::Random, &mut data);
        made.content[..data.len()].copy_from_slice(&data);
        made.pool().volume("v").unwrap().write(0, Bytes::from(data), WriteOptions::default()).unwrap();
        made.pool().flush().unwrap();
    };
    noise(&mut made, 1);
    for (count, seed) in [(2, 2), (1, 3)] {
        set_copies(made.pool(), "v", count);
        noise(&mut made, seed);
    }
    made.pool().checkpoint().unwrap();
    for place in places(made.machine(), EXTENT) {
        made.machine().disk.break_reads(place..place + EXTENT);
        made.pool().drop_caches();
        let mut found = vec![0; 8 * BLOCK as usize];
        let read = made.pool().volume("v").unwrap().read(0, &mut found);
        assert!(read.is_err() || found == made.content[..found.len()], "HARNESS: an overwritten copy is read");
        made.machine().disk.heal();
    }
    let report = made.pool().check(false, &mut |_, _| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    let stored = made.pool().volumes()[0].stored_bytes;
    assert!(stored < 9 * BLOCK, "{stored} bytes are stored");
}

/// Whatever a crash leaves, no copy is older than its original.
#[test]
fn after_a_crash_no_copy_is_older_than_its_original() {
    let mut base = Made::new(6, 2);
    base.work(20);
    let mut crashes = 0;
    for steps in 0..40 {
        let pool = Lz4Pool { machine: base.machine().duplicate(steps), pool: None };
        let mut made = Made { pool, content: base.content.clone(), rng: Rng::new(steps) };
        made.pool.open();
        made.machine().power.plan(made.machine().power.next_point() + steps, Fault::Crash);
        let mut has_crashed = false;
        for block in 0..8 {
            let data = Bytes::from(vec![100 + block as u8; 4 * BLOCK as usize]);
            let written = made.pool().volume("v").unwrap().write(3 * block * BLOCK, data, WriteOptions::default());
            has_crashed |= written.and_then(|()| made.pool().flush()).is_err();
        }
        if !has_crashed {
            break;
        }
        crashes += 1;
        drop(made.pool.pool.take());
        made.pool.machine.power_cycle();
        made.pool.open();
        let mut content = vec![0; BYTES];
        made.pool().volume("v").unwrap().read(0, &mut content).unwrap();
        for place in places(made.machine(), EXTENT) {
            made.machine().disk.break_reads(place..place + EXTENT);
            made.pool().drop_caches();
            let volume = made.pool().volume("v").unwrap();
            for block in 0..BYTES as u64 / BLOCK {
                let mut found = vec![0; BLOCK as usize];
                let is_read = volume.read(block * BLOCK, &mut found).is_ok();
                let is_right = found == content[(block * BLOCK) as usize..][..BLOCK as usize];
                assert!(!is_read || is_right, "HARNESS: after {steps} steps, an older copy of block {block} is read");
            }
            made.machine().disk.heal();
        }
    }
    assert!(crashes > 10, "{crashes} crashes");
}

/// The keeper looks at some extents at a time, and needs no further read to go on.
#[test]
fn the_keeper_repairs_all_that_one_reading_met() {
    let made = Made::new(5, 1);
    let bytes = 5 << 20;
    made.pool().create_volume("w", bytes, &copies(2)).unwrap();
    let volume = made.pool().volume("w").unwrap();
    let mut content = vec![0; bytes as usize];
    fill_content(&mut Rng::new(7), ContentKind::Random, &mut content);
    for (index, chunk) in content.chunks(128 << 10).enumerate() {
        let at = (index as u64) * (128 << 10);
        volume.write(at, Bytes::copy_from_slice(chunk), WriteOptions::default()).unwrap();
        made.pool().flush().unwrap();
    }
    made.pool().checkpoint().unwrap();
    let reads_of_copies = || {
        made.pool().drop_caches();
        let mut found = vec![0; content.len()];
        volume.read(0, &mut found).unwrap();
        assert!(found == content, "HARNESS: something else is read");
        made.pool().status().reads_of_copies
    };
    // Extents that are read first: no block loses both of its copies.
    let is_read = |place: &u64| {
        let before = made.pool().status().reads_of_copies;
        made.machine().disk.break_reads(*place..*place + EXTENT);
        let met = reads_of_copies();
        made.machine().disk.heal();
        met > before
    };
    let damaged: Vec<_> = places(made.machine(), EXTENT).into_iter().filter(is_read).collect();
    damaged.iter().for_each(|place| made.machine().disk.flip_bit(place + EXTENT / 2, 3));
    let met = reads_of_copies();
    (0..8).for_each(|_| made.pool().tick().unwrap());
    let repaired = made.pool().status().repaired_fragments;
    assert!(repaired > 16, "HARNESS: {repaired} repairs of {} extents", damaged.len());
    assert_eq!(reads_of_copies(), met, "HARNESS: something was left after {repaired} repairs");
}

/// The damage campaign: with two copies nothing is lost, and every repair is counted.
#[test]
fn nothing_is_lost_and_every_repair_is_counted() {
    let campaign =
        Campaign { file: "redundancy", test: "nothing_is_lost_and_every_repair_is_counted", seeds: 6, soaks: true };
    let tally = campaign.run(|seed| -> Result<Tally, Failure> {
        let mut made = Made::new(seed, 2);
        let mut faults = 0;
        for round in 0..6 {
            made.work(40);
            let used = places(made.machine(), EXTENT);
            let extent = used[made.rng.below(used.len() as u64) as usize] / EXTENT;
            made.spoil(extent);
            let before = made.pool().status().repaired_fragments;
            let count = match round % 3 {
                // A read finds some, and the keeper repairs them.
                0 => {
                    assert_eq!(made.wrong(), None, "HARNESS: extent {extent}, read");
                    made.pool().tick().unwrap();
                    made.pool().scrub(u64::MAX, true).unwrap();
                    made.pool().status().repaired_fragments - before
                }
                1 => {
                    let report = made.pool().scrub(u64::MAX, true).unwrap();
                    assert_eq!(report.found, 0, "HARNESS: extent {extent}, scrub: {:?}", report.damages);
                    report.repaired
                }
                _ => {
                    let report = made.pool().check(false, &mut |_, _| ()).unwrap();
                    let damaged = report.problems.iter().filter(|problem| problem.kind == "fragment");
                    let (all, left) = (damaged.clone().count(), damaged.filter(|problem| !problem.repaired).count());
                    assert_eq!(left, 0, "HARNESS: extent {extent}, check: {:?}", report.problems);
                    all as u64
                }
            };
            let counted = made.pool().status().repaired_fragments - before;
            assert_eq!(counted, count, "HARNESS: repairs of extent {extent} in round {round}");
            faults += counted;
            assert_eq!(made.wrong(), None, "HARNESS: extent {extent} was repaired");
            made.pool().checkpoint().unwrap();
            let report = made.pool().check(false, &mut |_, _| ()).unwrap();
            let damaged: Vec<_> =
                report.problems.iter().filter(|problem| !["header", "catalogue"].contains(&problem.kind)).collect();
            assert!(damaged.is_empty(), "HARNESS: after round {round}: {damaged:?}");
            assert_eq!(made.pool().damage_report().damages.iter().filter(|d| d.kind == "fragment").count(), 0);
        }
        Ok(Tally { faults, ..Tally::default() })
    });
    assert!(tally.faults > 50, "{} repairs", tally.faults);
}

/// A check that repaired one fragment with its extent and the other later called neither repaired.
#[test]
fn a_check_tells_of_each_fragment_whether_it_was_repaired() {
    let made = Lz4Pool::new(64 << 20);
    made.pool().set_properties(None, &[("copies".to_owned(), Some("2".to_owned()))]).unwrap();
    let data = made.fill("v", ContentKind::Random, 1 << 20);
    // The log moves to other extents: its open ones cannot be emptied.
    made.fill("w", ContentKind::Random, (1 << 20) + EXTENT as usize);
    let moved = damage(&made, &data, 100) / EXTENT;
    let is_elsewhere = |index: &usize| location(&made, &data, *index) / EXTENT != moved;
    let other = [250, 10].into_iter().find(is_elsewhere).unwrap();
    damage(&made, &data, other);
    damage_heads(&made, moved);
    let report = made.pool().check(true, &mut |_, _| ()).unwrap();
    let repaired = |kind: &str| -> Vec<bool> {
        report.problems.iter().filter(|found| found.kind == kind).map(|found| found.repaired).collect()
    };
    assert_eq!(repaired("header"), [true], "HARNESS: {:?}", report.problems);
    assert_eq!(repaired("fragment"), [true, true], "HARNESS: {:?}", report.problems);
    let left = report.problems.iter().filter(|found| !found.repaired).count();
    assert_eq!(report.problems_left, left as u64, "HARNESS: {:?}", report.problems);
    assert!(made.content("v", data.len()) == data, "HARNESS: the content differs");
}

/// A stream has each block once, and its receiver makes as many copies as the volume wants.
#[test]
fn a_stream_has_each_block_once_and_its_receiver_makes_copies() {
    let sent = |count| {
        let mut made = Made::new(3, count);
        (0..6).for_each(|part| made.write(part * 30, 24));
        made.pool().snapshot("v", "a").unwrap();
        let mut sender = made.pool().send("v@a", None).unwrap();
        let chunks: Vec<_> = std::iter::from_fn(|| sender.next_chunk().unwrap()).collect();
        let fragments = sender.fragments().0;
        (made, chunks, fragments)
    };
    let ((_, once, of_one), (made, chunks, of_three)) = (sent(1), sent(3));
    assert_eq!((once.len(), of_one), (chunks.len(), of_three));
    let mut target = Made { pool: Lz4Pool::new(CAPACITY), content: made.content, rng: Rng::new(1) };
    let mut receiver = target.pool().receive("v", &Properties::new());
    for chunk in &chunks {
        let (head, body) = chunk.split_first_chunk::<STREAM_HEAD_BYTES>().unwrap();
        receiver.take(head, body).unwrap();
    }
    drop(receiver);
    target.pool().checkpoint().unwrap();
    for place in places(target.machine(), EXTENT) {
        target.machine().disk.break_reads(place..place + EXTENT);
        assert_eq!(target.wrong(), None, "without the extent at byte {place}");
        target.machine().disk.heal();
    }
    target.work(10);
    assert_eq!(target.wrong(), None);
}

/// Where data is damaged, a stream is made from its copy.
#[test]
fn a_stream_is_made_from_copies_where_data_is_damaged() {
    let mut made = Made::new(5, 2);
    made.work(60);
    made.pool().snapshot("v", "a").unwrap();
    made.pool().checkpoint().unwrap();
    let read = made.pool().status().reads_of_copies;
    for place in places(made.machine(), EXTENT) {
        made.machine().disk.break_reads(place..place + EXTENT);
        made.pool().drop_caches();
        let mut sender = made.pool().send("v@a", None).unwrap();
        let chunks: Vec<_> = std::iter::from_fn(|| sender.next_chunk().unwrap()).collect();
        drop(sender);
        made.machine().disk.heal();
        let target = Made { pool: Lz4Pool::new(CAPACITY), content: made.content.clone(), rng: Rng::new(1) };
        let mut receiver = target.pool().receive("v", &Properties::new());
        for chunk in &chunks {
            let (head, body) = chunk.split_first_chunk::<STREAM_HEAD_BYTES>().unwrap();
            receiver.take(head, body).unwrap();
        }
        drop(receiver);
        assert_eq!(target.wrong(), None, "HARNESS: a stream made without the extent at byte {place}");
    }
    assert!(made.pool().status().reads_of_copies > read, "no copy was needed");
}

/// Of an extent that is gone, salvage takes the copies, with the map and without it.
#[test]
fn salvage_takes_copies_of_what_is_gone() {
    let mut made = Made::new(8, 2);
    for round in 0..60 {
        let first = made.rng.below(BYTES as u64 / BLOCK - 24);
        made.write(first, 1 + round % 24);
        match round % 4 {
            3 => made.pool().checkpoint().unwrap(),
            _ => made.pool().flush().unwrap(),
        }
    }
    made.pool.pool.take().unwrap().close().unwrap();
    let mut compared = 0;
    for (round, place) in (0..).zip(places(made.machine(), EXTENT)) {
        let copy = made.machine().duplicate(round);
        copy.disk.break_reads(place..place + EXTENT);
        let salvage = if round % 2 == 0 { salvage } else { salvage_with_map };
        let salvaged = salvage(&copy, CAPACITY, round).unwrap();
        // The extent may have had the only record of the volume's name.
        let Ok(volume) = salvaged.pool.volume("v") else { continue };
        let mut content = vec![0; BYTES];
        volume.read(0, &mut content).unwrap();
        let is_wrong = |block: &usize| content[block * 4096..][..4096] != made.content[block * 4096..][..4096];
        let wrong: Vec<_> = (0..BYTES / 4096).filter(is_wrong).collect();
        assert!(wrong.is_empty(), "HARNESS: without the extent at byte {place}: blocks {wrong:?}");
        compared += 1;
    }
    assert!(compared > 4, "{compared} salvages");
}

/// The bytes that `explain` reports are those of all copies.
#[test]
fn explained_bytes_are_those_of_all_copies() {
    for count in [1, 3] {
        let mut made = Made::new(2, count);
        made.write(0, 96);
        made.pool().checkpoint().unwrap();
        let (regions, _) = made.pool().explain("v", 0, usize::MAX).unwrap();
        let stored: u64 = regions.iter().map(|region| region.stored_bytes).sum();
        let raw: u64 = regions.iter().map(|region| region.raw_bytes).sum();
        assert_eq!((stored, raw), (made.pool().volumes()[0].stored_bytes, 96 * BLOCK), "{count} copies");
    }
}
