//! Holds, which keep a snapshot; bookmarks, which outlive one, and from which a difference must be
//! right after any later changes; and differences received into a clone of their base.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::machine_env::{env, features};
use crate::common::{Campaign, Ended, Failure, Shape, Tally, World, noise};
use engine::{FormatOptions, Pool, PoolOptions, ReceiveReport, Sender};
use format::STREAM_HEAD_BYTES;
use sim::{Machine, Rng};
use surface::{BlockDevice, Error, ErrorKind, WriteOptions};

const MIB: u64 = 1 << 20;

/// Differences from bookmarks whose snapshot had gone, and those that were refused: of all runs.
static BROUGHT: AtomicU64 = AtomicU64::new(0);
static WITHOUT_SNAPSHOT: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);

fn new_pool(machine: &Machine, bytes: u64) -> Pool {
    let properties = [("compression".to_owned(), "lz4".to_owned())].into();
    let format = FormatOptions { capacity_bytes: bytes, extent_bytes: 128 << 10, properties };
    Pool::format(&env(machine), &format).unwrap();
    open(machine)
}

fn open(machine: &Machine) -> Pool {
    let options = PoolOptions { workers: 0, memory_bytes: 4 << 20, ..PoolOptions::default() };
    Pool::open(env(machine), options).unwrap()
}

fn image(pool: &Pool, name: &str) -> Result<Vec<u8>, Error> {
    let device = pool.volume(name)?;
    let mut bytes = vec![0xee; device.size_bytes() as usize];
    device.read(0, &mut bytes)?;
    Ok(bytes)
}

/// Takes a stream from a sender to a volume.
fn carry(mut sender: Sender, to: &Pool, volume: &str) -> Result<ReceiveReport, Error> {
    let unlimited = [("quota".to_owned(), "none".to_owned())].into();
    let mut receiver = to.receive(volume, &unlimited);
    loop {
        let chunk = sender.next_chunk()?.expect("the end came before the report");
        let (head, body) = chunk.split_first_chunk::<STREAM_HEAD_BYTES>().unwrap();
        if let Some(report) = receiver.take(head, body)? {
            return Ok(report);
        }
    }
}

fn settle(pool: &Pool) {
    pool.checkpoint().unwrap();
    while pool.status().reaping > 0 {
        pool.checkpoint().unwrap();
    }
}

fn check(pool: &Pool) {
    let report = pool.check(false, &mut |_, _| ()).unwrap();
    assert!(report.problems.is_empty(), "HARNESS: {:?}", report.problems);
}

fn write(pool: &Pool, name: &str, offset: u64, seed: u64, bytes: usize) {
    pool.volume(name).unwrap().write(offset, noise(seed, bytes), WriteOptions::default()).unwrap();
}

/// The copy's state at a snapshot that was bookmarked.
struct Base {
    /// The bookmark's name, without the volume.
    name: String,
    /// `VOLUME@SNAPSHOT` in the copy.
    held: String,
    /// The snapshot in the source, when it was there.
    was: String,
}

fn told(what: &str) -> impl Fn(Error) -> Failure + '_ {
    move |error| Failure(format!("{what}: {error}"))
}

/// Random operations on the source, crashes included; now and then a snapshot is bookmarked and
/// copied, and now and then a difference from some bookmark to some snapshot is brought into a
/// clone of the copy: it must be the snapshot.
fn random_run(seed: u64) -> Result<Tally, Failure> {
    let small = |rng: &mut Rng| {
        let shape = Shape::small(rng);
        Shape { volume_bytes_max: shape.volume_bytes_max.min(1 << 20), ..shape }
    };
    let mut source = World::new(seed, small)?;
    let machine = Machine::new(64 << 20, seed);
    let copy = new_pool(&machine, 64 << 20);
    let mut bases: Vec<Base> = Vec::new();
    let mut number = 0;
    for _ in 0..25 {
        for _ in 0..source.rng.between(3, 25) {
            if source.step()? == Ended::Full {
                source.relieve()?;
            }
        }
        let snapshots: Vec<String> =
            source.pool().snapshots(None).unwrap().iter().map(|s| format!("{}@{}", s.volume, s.name)).collect();
        if snapshots.is_empty() {
            continue;
        }
        let snapshot = (*source.rng.pick(&snapshots)).clone();
        if bases.len() < 4 {
            number += 1;
            let (name, volume) = (format!("k{number}"), format!("b{number}"));
            match source.pool().bookmark(&snapshot, &name) {
                Err(error) if error.kind() == ErrorKind::Full => continue,
                made => made.map_err(told("bookmark"))?,
            }
            let report = carry(source.pool().send(&snapshot, None).map_err(told("send"))?, &copy, &volume);
            let held = format!("{volume}@{}", report.map_err(told("a whole snapshot"))?.snapshot);
            bases.push(Base { name, held, was: snapshot });
            continue;
        }
        let bookmarks = source.pool().bookmarks(None).unwrap();
        let index = source.rng.below(bases.len() as u64) as usize;
        let found = bookmarks.iter().find(|b| b.name == bases[index].name);
        if let Some(found) = found {
            let title = format!("{}#{}", found.volume, found.name);
            match source.pool().send(&snapshot, Some(&title)) {
                Ok(sender) => {
                    copy.clone_snapshot(&bases[index].held, "t", &BTreeMap::new()).map_err(told("clone"))?;
                    let report = carry(sender, &copy, "t").map_err(told("a difference from a bookmark"))?;
                    let there = format!("t@{}", report.snapshot);
                    let expected = image(source.pool(), &snapshot).map_err(told("source"))?;
                    for name in [&there, "t"] {
                        if image(&copy, name).map_err(told("copy"))? != expected {
                            return Err(
                                source.fail(format!("'{snapshot}' from '{title}' is something else at '{name}'"))
                            );
                        }
                    }
                    copy.destroy("t", true).map_err(told("destroy"))?;
                    BROUGHT.fetch_add(1, Ordering::Relaxed);
                    let is_gone = !snapshots.contains(&bases[index].was);
                    WITHOUT_SNAPSHOT.fetch_add(u64::from(is_gone), Ordering::Relaxed);
                }
                Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Invalid) => {
                    REFUSED.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => return Err(Failure(format!("send '{snapshot}' from '{title}': {error}"))),
            }
        }
        // Gone with its volume, or for a change.
        if found.is_none() || source.rng.percent(15) {
            let base = bases.swap_remove(index);
            let volume = base.held.split('@').next().unwrap();
            copy.destroy(volume, true).map_err(told("destroy"))?;
        }
    }
    source.verify_check()?;
    let report = copy.check(false, &mut |_, _| ()).map_err(told("check"))?;
    if !report.problems.is_empty() {
        return Err(source.fail(format!("the copy: {:?}", report.problems)));
    }
    Ok(Tally { ops: source.op_number, crashes: 0, fulls: source.fulls, faults: 0 })
}

#[test]
fn random_differences_from_bookmarks() {
    let campaign = Campaign { file: "bookmarks", test: "random_differences_from_bookmarks", seeds: 200, soaks: true };
    campaign.run(random_run);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (brought, without, refused) = (count(&BROUGHT), count(&WITHOUT_SNAPSHOT), count(&REFUSED));
    println!("{brought} differences from bookmarks, {without} of them without the snapshot; {refused} refused");
    campaign.demand(
        brought >= 300 && without >= 100 && refused >= 100,
        "300 differences, 100 without the snapshot, 100 refusals",
    );
}

/// A source with a volume that has the snapshot `a`, and a copy that has it too.
struct Pair {
    machines: [Machine; 2],
    source: Pool,
    copy: Pool,
}

impl Pair {
    fn new() -> Self {
        let machines = [Machine::new(32 << 20, 1), Machine::new(32 << 20, 2)];
        let [source, copy] = [0, 1].map(|index| new_pool(&machines[index], 32 << 20));
        source.create_volume("v", 8 * MIB, &BTreeMap::new()).unwrap();
        write(&source, "v", 0, 1, 2 << 20);
        source.snapshot("v", "a").unwrap();
        carry(source.send("v@a", None).unwrap(), &copy, "w").unwrap();
        Self { machines, source, copy }
    }

    fn same(&self, one: &str, other: &str) {
        assert!(
            image(&self.source, one).unwrap() == image(&self.copy, other).unwrap(),
            "HARNESS: {one} and {other} differ"
        );
    }
}

/// The hole that hid a block goes with the snapshot that needed the block: no trace of it is left
/// in the map.
#[test]
fn what_was_discarded_is_told_when_nothing_is_left_of_it() {
    let Pair { source, copy, .. } = &Pair::new();
    source.bookmark("v@a", "a").unwrap();
    let volume = source.volume("v").unwrap();
    volume.discard(0, MIB).unwrap();
    volume.flush().unwrap();
    source.destroy("v@a", false).unwrap();
    settle(source);
    source.snapshot("v", "b").unwrap();
    let report = carry(source.send("v@b", Some("#a")).unwrap(), copy, "w").unwrap();
    assert_eq!((report.payload_bytes, report.fragments), (0, 0));
    assert!(image(source, "v@b").unwrap() == image(copy, "w@b").unwrap(), "HARNESS: a hole was left out");
    check(copy);
}

/// Every hole is sent as one, of 8 MiB as of a petabyte; the receiver makes holes only where there
/// was data.
#[test]
fn holes_that_hide_nothing_cost_the_receiver_nothing() {
    let Pair { source, copy, .. } = &Pair::new();
    source.bookmark("v@a", "a").unwrap();
    source.destroy("v@a", false).unwrap();
    source.resize_volume("v", 1 << 50).unwrap();
    write(source, "v", 0, 2, 8192);
    write(source, "v", (1 << 50) - 4096, 3, 4096);
    source.snapshot("v", "b").unwrap();
    let before = copy.status().log_bytes;
    let report = carry(source.send("v@b", Some("v#a")).unwrap(), copy, "w").unwrap();
    assert_eq!(report.payload_bytes, 12288);
    assert!(copy.status().log_bytes - before < 256 << 10, "HARNESS: {} bytes of log", copy.status().log_bytes - before);
    let mut block = vec![0; 4096];
    copy.volume("w@b").unwrap().read((1 << 50) - 4096, &mut block).unwrap();
    assert!(block == noise(3, 4096), "HARNESS: the last block");
    check(copy);
}

#[test]
fn a_bookmark_keeps_nothing_and_outlives_crashes() {
    let Pair { source, mut machines, .. } = Pair::new();
    settle(&source);
    source.bookmark("v@a", "a").unwrap();
    write(&source, "v", 0, 2, 2 << 20);
    source.destroy("v@a", false).unwrap();
    settle(&source);
    let stored = source.volumes()[0].stored_bytes;
    assert!(stored <= 2 << 20, "HARNESS: {stored} bytes are stored, the volume has half of that");
    drop(source);
    machines[0].power_cycle();
    let source = open(&machines[0]);
    let bookmarks = source.bookmarks(Some("v")).unwrap();
    assert_eq!(bookmarks.iter().map(|b| b.name.as_str()).collect::<Vec<_>>(), ["a"], "HARNESS");
    source.rename("v", "u").unwrap();
    source.snapshot("u", "b").unwrap();
    assert!(source.send("u@b", Some("u#a")).is_ok());
    assert_eq!(source.bookmark("u@b", "a").unwrap_err().kind(), ErrorKind::Exists);
    check(&source);
    source.destroy_bookmark("u#a").unwrap();
    assert_eq!(source.send("u@b", Some("#a")).unwrap_err().kind(), ErrorKind::NotFound);
    source.bookmark("u@b", "b").unwrap();
    source.destroy("u", true).unwrap();
    settle(&source);
    assert!(source.bookmarks(None).unwrap().is_empty());
    check(&source);
}

/// The volume was rolled back to before the bookmark: the receiver's data was discarded in the
/// source, and the map has nothing of it.
#[test]
fn a_bookmark_of_what_was_given_up_is_no_base() {
    let Pair { source, copy, .. } = &Pair::new();
    write(source, "v", 0, 2, 1 << 20);
    source.snapshot("v", "b").unwrap();
    source.bookmark("v@a", "a").unwrap();
    source.bookmark("v@b", "b").unwrap();
    carry(source.send("v@b", Some("a")).unwrap(), copy, "w").unwrap();
    source.rollback("v@a", true).unwrap();
    for _ in 0..2 {
        source.snapshot("v", "c").unwrap();
        assert_eq!(source.send("v@c", Some("#b")).unwrap_err().kind(), ErrorKind::Conflict, "HARNESS");
        assert!(source.send("v@c", Some("#a")).is_ok(), "HARNESS");
        source.destroy("v@c", false).unwrap();
        // From here on the cut is undone, and the way down does not show it.
        settle(source);
    }
}

/// Both sides of a history that has divided are kept.
#[test]
fn a_difference_goes_into_a_clone_of_its_base() {
    let pair = Pair::new();
    let Pair { source, copy, .. } = &pair;
    write(source, "v", 64 << 10, 2, 256 << 10);
    source.snapshot("v", "b").unwrap();
    carry(source.send("v@b", Some("a")).unwrap(), copy, "w").unwrap();
    let old = image(copy, "w@b").unwrap();
    source.rollback("v@a", true).unwrap();
    write(source, "v", 1 << 20, 3, 256 << 10);
    source.snapshot("v", "b").unwrap();
    let refused = carry(source.send("v@b", Some("a")).unwrap(), copy, "w").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.to_string().contains("shale clone POOL w@a NEW"), "{refused}");
    copy.clone_snapshot("w@a", "x", &BTreeMap::new()).unwrap();
    let report = carry(source.send("v@b", Some("a")).unwrap(), copy, "x").unwrap();
    assert_eq!(report.snapshot, "b");
    pair.same("v@b", "x@b");
    pair.same("v", "x");
    assert!(image(copy, "w@b").unwrap() == old, "HARNESS: the other side has changed");
    // It goes on from there, and a clone that was written to is refused.
    write(source, "v", 0, 4, 64 << 10);
    source.snapshot("v", "c").unwrap();
    carry(source.send("v@c", Some("b")).unwrap(), copy, "x").unwrap();
    pair.same("v@c", "x@c");
    copy.clone_snapshot("x@b", "y", &BTreeMap::new()).unwrap();
    write(copy, "y", 0, 5, 4096);
    let refused = carry(source.send("v@c", Some("b")).unwrap(), copy, "y").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.to_string().contains("shale clone POOL x@b NEW"), "{refused}");
    check(copy);
}

#[test]
fn a_held_snapshot_stays_until_it_is_released() {
    let Pair { source, mut machines, .. } = Pair::new();
    source.snapshot("v", "b").unwrap();
    source.hold("v@b", "offsite").unwrap();
    source.hold("v@b", "audit").unwrap();
    assert_eq!(source.hold("v@b", "audit").unwrap_err().kind(), ErrorKind::Exists);
    drop(source);
    machines[0].power_cycle();
    let salvaged = crate::common::salvage::salvage(&machines[0].duplicate(9), 32 << 20, 9).unwrap();
    assert_eq!(salvaged.pool.holds(Some("v@b")).unwrap().len(), 2, "HARNESS: salvage");
    let source = open(&machines[0]);
    let tags: Vec<_> = source.holds(None).unwrap().into_iter().map(|hold| (hold.snapshot, hold.tag)).collect();
    assert_eq!(tags, [("b".to_owned(), "audit".to_owned()), ("b".to_owned(), "offsite".to_owned())], "HARNESS");
    type Attempt<'a> = (&'a str, &'a dyn Fn() -> Result<(), Error>);
    let attempts: [Attempt<'_>; 3] = [
        ("destroy", &|| source.destroy("v@b", false)),
        ("destroy -r", &|| source.destroy("v", true)),
        ("rollback -r", &|| source.rollback("v@a", true)),
    ];
    for (what, attempt) in attempts {
        let error = attempt().expect_err(what);
        assert_eq!(error.kind(), ErrorKind::InUse, "HARNESS: {what}: {error}");
        assert!(error.to_string().contains("'audit', 'offsite'"), "{what}: {error}");
        assert_eq!(source.snapshots(Some("v")).unwrap().len(), 2, "HARNESS: {what}");
    }
    source.release("v@b", "audit").unwrap();
    assert_eq!(source.release("v@b", "audit").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(source.destroy("v@b", false).unwrap_err().kind(), ErrorKind::InUse);
    for n in 0..31 {
        source.hold("v@b", &format!("t{n}")).unwrap();
    }
    assert_eq!(source.hold("v@b", "one-more").unwrap_err().kind(), ErrorKind::Invalid);
    check(&source);
    for hold in source.holds(Some("v@b")).unwrap() {
        source.release("v@b", &hold.tag).unwrap();
    }
    source.destroy("v@b", false).unwrap();
    check(&source);
}

/// A program that does not know bookmarks must refuse the pool. Wherever the power fails while the
/// first one is made, a pool that has one names the feature.
#[test]
fn a_pool_with_a_bookmark_refuses_older_programs_at_every_crash_point() {
    let says = |machine: &Machine| features(machine).iter().all(|bits| bits & format::INCOMPAT_BOOKMARKS != 0);
    for point in 0.. {
        let mut machine = Machine::new(16 << 20, point);
        let pool = new_pool(&machine, 16 << 20);
        pool.create_volume("v", MIB, &BTreeMap::new()).unwrap();
        pool.snapshot("v", "s").unwrap();
        assert!(!says(&machine), "HARNESS: nothing keeps older programs off a pool without bookmarks");
        machine.power.plan(machine.power.next_point() + point, sim::Fault::Crash);
        let made = pool.bookmark("v@s", "b");
        drop(pool);
        machine.power.clear_plan();
        machine.reseed(point);
        machine.power_cycle();
        let pool = open(&machine);
        let has = pool.bookmarks(Some("v")).unwrap().len() == 1;
        assert!(has || made.is_err(), "HARNESS: point {point}: the bookmark is gone");
        assert!(!has || says(&machine), "HARNESS: point {point}: {:?}", features(&machine));
        // A crash may have torn one copy of the superblock, which `check` reports and repairs.
        let report = pool.check(true, &mut |_, _| ()).unwrap();
        let is_torn = |problem: &engine::Problem| problem.kind == "superblock" && problem.repaired;
        assert!(report.problems.iter().all(is_torn), "HARNESS: point {point}: {:?}", report.problems);
        if made.is_ok() {
            assert!(point > 3, "the power never failed in the middle");
            break;
        }
    }
}
