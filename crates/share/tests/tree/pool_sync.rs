//! `fsync` and `fdatasync` of files of a share on a pool: syncs of the disk, and losses of power at
//! each access to it.

use std::sync::Arc;

use bytes::Bytes;
use engine::{Files, FormatOptions, Pool, PoolOptions, Properties};
use share::{Caller, SetAttributes, Tree};
use sim::{Fault, Machine, PointKind};
use surface::ObjectSpace;

use crate::ground::env;
use crate::run::OPTIONS;

const CALLER: Caller = Caller { uid: 1000, gid: 100 };
const CAPACITY_BYTES: u64 = 32 << 20;
const PAGE: usize = 8192;

/// A share of a pool without threads, and its tree.
struct OnMachine {
    tree: Tree,
    files: Arc<Files>,
    pool: Pool,
    machine: Machine,
}

impl OnMachine {
    fn new(seed: u64) -> Self {
        let machine = Machine::new(CAPACITY_BYTES, seed);
        // Batches often reach the end of an extent, and are divided there.
        let format =
            FormatOptions { capacity_bytes: CAPACITY_BYTES, extent_bytes: 64 << 10, properties: Properties::new() };
        let pool = Pool::format(&env(&machine), &format).and_then(|_| open(&machine)).unwrap();
        pool.create_share("share", &Properties::new()).unwrap();
        let files = files_of(&pool);
        let tree = Tree::create(files.clone() as _, seed, OPTIONS).unwrap();
        Self { tree, files, pool, machine }
    }

    fn after_power_loss(self) -> Self {
        let Self { tree, files, pool, mut machine } = self;
        machine.power.cut();
        drop((tree, files, pool));
        machine.power.clear_plan();
        machine.power_cycle();
        let pool = open(&machine).unwrap();
        let files = files_of(&pool);
        let tree = Tree::open(files.clone() as _, OPTIONS).unwrap();
        assert_eq!(tree.check().unwrap(), Vec::<String>::new());
        Self { tree, files, pool, machine }
    }

    fn make(&self, directory: u64, name: &[u8], mode: u32) -> share::Result<u64> {
        Ok(self.tree.make(directory, name, CALLER, mode, 0, 0)?.0)
    }

    /// A durable file of pages of the letter `o`.
    fn old_file(&self, name: &[u8], pages: usize) -> u64 {
        let node = self.make(Tree::ROOT, name, libc::S_IFREG | 0o644).unwrap();
        write(&self.tree, node, 0, b'o', pages * PAGE).unwrap();
        self.tree.sync().unwrap();
        node
    }

    /// Syncs of the disk, and writes to it, during a call.
    fn accesses(&self, what: impl FnOnce() -> share::Result<()>) -> (usize, usize) {
        let power = &self.machine.power;
        let first = power.next_point();
        what().unwrap();
        let points: Vec<_> = power.trace().into_iter().filter(|point| point.number >= first).collect();
        assert_eq!(points.len() as u64, power.next_point() - first, "the trace is too short");
        let count = |kind| points.iter().filter(|point| point.kind == kind).count();
        assert_eq!((count(PointKind::Commit), count(PointKind::Persist)), (0, 0), "the map is written: {points:?}");
        (count(PointKind::Sync), count(PointKind::Write))
    }

    /// Blocks of the tree's log that have data.
    fn log_blocks(&self) -> u64 {
        let runs = self.files.allocation(2, 0, 8 << 20, 4096).unwrap();
        runs.iter().filter(|run| run.allocation == surface::Allocation::Data).map(|run| run.length / 4096).sum()
    }
}

fn open(machine: &Machine) -> surface::Result<Pool> {
    Pool::open(env(machine), PoolOptions { workers: 0, memory_bytes: 4 << 20, ..PoolOptions::default() })
}

fn files_of(pool: &Pool) -> Arc<Files> {
    let volume = pool.volume("share").unwrap();
    Arc::new(Files::new(volume.clone(), volume).unwrap())
}

fn write(tree: &Tree, node: u64, offset: usize, letter: u8, bytes: usize) -> share::Result<()> {
    tree.write(node, offset as u64, Bytes::from(noise(letter, bytes)), false).map(drop)
}

/// Bytes that no codec makes much smaller, so that batches fill extents.
fn noise(letter: u8, bytes: usize) -> Vec<u8> {
    let mut noise = vec![letter; bytes];
    let mut rng = sim::Rng::new(letter.into());
    noise.chunks_mut(8).for_each(|chunk| rng.fill(&mut chunk[1..]));
    noise
}

fn content(tree: &Tree, node: u64) -> Vec<u8> {
    let mut content = vec![0; tree.inode(node).unwrap().size as usize];
    assert_eq!(tree.read(node, 0, &mut content).unwrap(), content.len());
    content
}

#[test]
fn an_fsync_on_a_pool_is_one_sync_of_the_disk() {
    let ground = OnMachine::new(1);
    let (tree, node) = (&ground.tree, ground.old_file(b"f", 4));
    let checkpoints = ground.pool.figures().checkpoints;
    for round in 0..12 {
        // A page of a database is overwritten: no record.
        let before = ground.log_blocks();
        write(tree, node, PAGE, b'0' + round, PAGE).unwrap();
        assert_eq!(ground.accesses(|| tree.sync_data(&[node])).0, 1, "fdatasync of a page");
        assert_eq!(ground.log_blocks(), before);
        // `fsync` has its times.
        write(tree, node, PAGE, b'0' + round, PAGE).unwrap();
        assert_eq!(ground.accesses(|| tree.sync()).0, 1, "fsync of a page");
        assert_eq!(ground.log_blocks(), before + 1);
        // Growth: the data, the record behind it, and the record's copy.
        let size = tree.inode(node).unwrap().size as usize;
        write(tree, node, size, b'g', PAGE).unwrap();
        let (syncs, writes) = ground.accesses(|| tree.sync());
        assert_eq!(syncs, 1, "fsync of a file that has grown");
        assert!((3..=5).contains(&writes), "{writes} writes: a batch may be divided at the end of an extent");
        assert_eq!(ground.log_blocks(), before + 2);
        // A new file with its names.
        let directory = ground.make(Tree::ROOT, &[b'd', b'0' + round], libc::S_IFDIR | 0o755).unwrap();
        let new = ground.make(directory, b"new", libc::S_IFREG | 0o644).unwrap();
        write(tree, new, 0, b'n', PAGE).unwrap();
        assert_eq!(ground.accesses(|| tree.sync()).0, 1, "fsync of a new file");
    }
    assert_eq!(ground.pool.figures().checkpoints, checkpoints, "the pool wrote its map in between");
}

/// What a program does before its call, the call, and what it finds after a loss of power: whether
/// that is the new state, as a whole.
struct Case {
    what: &'static str,
    change: fn(&OnMachine, u64) -> share::Result<()>,
    sync: fn(&Tree, u64) -> share::Result<()>,
    is_new: fn(&Tree, u64) -> bool,
}

const OLD_PAGES: usize = 3;

/// Whether the file has grown; if so, all of it is there.
fn has_grown(tree: &Tree, node: u64) -> bool {
    let content = content(tree, node);
    let old = OLD_PAGES * PAGE;
    let new = noise(b'g', 2 * PAGE + 100);
    assert!(content.len() == old || content[old..] == new, "HARNESS: the size shows bytes that were never written");
    assert!(content[..old] == noise(b'o', old), "HARNESS: old bytes are lost");
    content.len() > old
}

fn grow(ground: &OnMachine, node: u64) -> share::Result<()> {
    write(&ground.tree, node, OLD_PAGES * PAGE, b'g', 2 * PAGE + 100)
}

const CASES: [Case; 5] = [
    Case {
        what: "fdatasync of a page",
        change: |ground, node| write(&ground.tree, node, PAGE, b'p', PAGE),
        sync: |tree, node| tree.sync_data(&[node]),
        is_new: |tree, node| {
            let content = content(tree, node);
            assert_eq!(content.len(), OLD_PAGES * PAGE, "HARNESS: the size");
            content[PAGE..2 * PAGE] == noise(b'p', PAGE)
        },
    },
    Case { what: "fdatasync of growth", change: grow, sync: |tree, node| tree.sync_data(&[node]), is_new: has_grown },
    Case { what: "fsync of growth", change: grow, sync: |tree, _| tree.sync(), is_new: has_grown },
    Case {
        what: "fdatasync of a mode",
        change: |ground, node| {
            let mode = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
            ground.tree.set_attributes(node, &mode)?;
            write(&ground.tree, node, PAGE, b'o', 1)
        },
        sync: |tree, node| tree.sync_data(&[node]),
        is_new: |tree, node| tree.inode(node).unwrap().mode & 0o7777 == 0o600,
    },
    Case {
        what: "fsync of a new file in new directories",
        change: |ground, _| {
            let outer = ground.make(Tree::ROOT, b"outer", libc::S_IFDIR | 0o755)?;
            let inner = ground.make(outer, b"inner", libc::S_IFDIR | 0o755)?;
            let new = ground.make(inner, b"new", libc::S_IFREG | 0o644)?;
            write(&ground.tree, new, 0, b'n', 3 * PAGE)
        },
        sync: |tree, _| tree.sync(),
        is_new: |tree, _| {
            let Ok((outer, _)) = tree.lookup(Tree::ROOT, b"outer") else { return false };
            let inner = tree.lookup(outer, b"inner").expect("HARNESS: a directory").0;
            let new = tree.lookup(inner, b"new").expect("HARNESS: a file").0;
            assert!(content(tree, new) == noise(b'n', 3 * PAGE), "HARNESS: a file without its bytes");
            true
        },
    },
];

/// Losses of power at each access to the disk, from the first change on, with what other programs
/// do before and after.
fn lose_power_in(case: &Case, seed: u64) {
    let mut has_ended = false;
    for accesses in 0.. {
        let ground = OnMachine::new(seed);
        let node = ground.old_file(b"f", OLD_PAGES);
        let other = ground.old_file(b"other", 1);
        // The place in the extent differs from seed to seed.
        for round in 0..seed % 7 {
            write(&ground.tree, other, PAGE * round as usize, b'x', PAGE).unwrap();
            ground.tree.sync().unwrap();
        }
        let power = &ground.machine.power;
        power.plan(power.next_point() + accesses, Fault::Crash);
        let before = write(&ground.tree, other, 0, b'y', PAGE);
        let done = before.and_then(|()| (case.change)(&ground, node)).and_then(|()| (case.sync)(&ground.tree, node));
        let is_acknowledged = done.is_ok();
        if is_acknowledged {
            // More data, with a sync that the power loss may interrupt.
            let _ = write(&ground.tree, other, PAGE, b'z', 4 * PAGE).and_then(|()| ground.tree.sync_data(&[other]));
        }
        has_ended = !ground.machine.power.is_lost();
        let ground = ground.after_power_loss();
        let is_new = (case.is_new)(&ground.tree, node);
        assert!(is_new || !is_acknowledged, "HARNESS: {}, seed {seed}: lost after {accesses} accesses", case.what);
        if has_ended {
            assert!(is_acknowledged && accesses > 2, "HARNESS: {}: {accesses} accesses", case.what);
            break;
        }
    }
    assert!(has_ended);
}

#[test]
fn what_a_sync_has_acknowledged_survives_each_loss_of_power() {
    for case in &CASES {
        (0..14).for_each(|seed| lose_power_in(case, seed));
    }
}

/// Bugs that these runs must find, each by an assertion of its own.
#[test]
fn planted_bugs_of_syncs_are_caught() {
    for name in ["data-sync-loses-size", "data-sync-without-flush"] {
        share::canary::plant(Some(name));
        let ran = std::panic::catch_unwind(what_a_sync_has_acknowledged_survives_each_loss_of_power);
        share::canary::plant(None);
        let Err(said) = ran else { panic!("NOT CAUGHT: {name}") };
        let said = said.downcast_ref::<String>().expect("NOT CAUGHT: not by an assertion of the test");
        assert!(said.contains("HARNESS:"), "NOT CAUGHT: {name} failed otherwise: {said}");
        println!("caught: {name}: {said}");
    }
}
