//! Snapshots of a tree while others change it: each must be of one moment.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use bytes::Bytes;
use share::{Caller, SetAttributes, Tree};
use sim::SimSpace;

use crate::run::OPTIONS;

const CALLER: Caller = Caller { uid: 1000, gid: 100 };

/// Bytes that each step writes in place, and at the end of a file.
const STEP_BYTES: usize = 5000;

/// Snapshots of each run.
const SNAPSHOTS: u64 = 40;

/// Steps that each writer may do for a snapshot: they are under way when it is taken.
const STEPS: u64 = 12;

fn make(tree: &Tree, name: &str, kind: u32) -> u64 {
    tree.make(Tree::ROOT, name.as_bytes(), CALLER, kind | 0o755, 0, 0).unwrap().0
}

fn find(tree: &Tree, name: &str) -> Option<u64> {
    tree.lookup(Tree::ROOT, name.as_bytes()).ok().map(|(node, _)| node)
}

fn number_at(tree: &Tree, node: u64, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    let length = tree.read(node, offset, &mut bytes).unwrap();
    if length == 8 { u64::from_le_bytes(bytes) } else { 0 }
}

fn bytes_of(step: u64) -> Bytes {
    Bytes::from([&step.to_le_bytes()[..], &vec![step as u8; STEP_BYTES - 8]].concat())
}

/// Steps of a writer, in a known order: data in place, data at the end, a name, an attribute, and a
/// cut. Of the trees of a set the first is always a step ahead, or at the same.
fn steps(trees: &[Arc<Tree>], writer: usize, allowed: &AtomicU64) {
    let name = |what: &str| format!("{what}-{writer}");
    let nodes: Vec<_> = trees
        .iter()
        .map(|tree| [name("place"), name("end"), name("cut")].map(|file| make(tree, &file, libc::S_IFREG)))
        .collect();
    for step in 1.. {
        for (tree, [place, end, cut]) in trees.iter().zip(&nodes) {
            tree.write(*place, 0, bytes_of(step), false).unwrap();
            tree.write(*end, (step - 1) * STEP_BYTES as u64, bytes_of(step), false).unwrap();
            let made = make(tree, &format!("{writer}-{step}"), libc::S_IFDIR);
            tree.set_xattr(Tree::ROOT, name("user.step").as_bytes(), &step.to_le_bytes(), 0, false).unwrap();
            if step % 16 == 0 {
                tree.write(*cut, 0, bytes_of(step), false).unwrap();
                let size = SetAttributes { size: Some(8), ..SetAttributes::default() };
                tree.set_attributes(*cut, &size).unwrap();
            }
            if let Some(before) = step.checked_sub(20).filter(|before| *before > 0) {
                tree.remove_directory(Tree::ROOT, format!("{writer}-{before}").as_bytes()).unwrap();
            }
            assert!(made > 0);
        }
        while step >= allowed.load(Ordering::Acquire) {
            thread::yield_now();
        }
        if allowed.load(Ordering::Acquire) == u64::MAX {
            return;
        }
    }
}

/// The steps that a moment shows of a writer: at its place, at the end, of names, and the last.
fn shown(tree: &Tree, writer: usize) -> [u64; 4] {
    let file = |what: &str| find(tree, &format!("{what}-{writer}"));
    let place = file("place").map_or(0, |node| number_at(tree, node, 0));
    let end = file("end").map_or(0, |node| {
        let size = tree.inode(node).unwrap().size;
        assert_eq!(size % STEP_BYTES as u64, 0, "HARNESS: writer {writer}: a write is there in part");
        let steps = size / STEP_BYTES as u64;
        for step in 1..=steps {
            let found = number_at(tree, node, (step - 1) * STEP_BYTES as u64);
            assert_eq!(found, step, "HARNESS: writer {writer}: data of a step is not there, but its size is");
        }
        steps
    });
    if let Some(cut) = file("cut") {
        let size = tree.inode(cut).unwrap().size;
        assert!([0, 8, STEP_BYTES as u64].contains(&size), "HARNESS: writer {writer}: {size} bytes");
    }
    let is_there = |step: u64| find(tree, &format!("{writer}-{step}")).is_some();
    let first = (1..).find(|&step| is_there(step) || step > end + 2).unwrap_or(0);
    let name = (first..).find(|&step| !is_there(step)).map_or(0, |step| step - 1);
    let name = if is_there(first) { name } else { 0 };
    let xattr = tree.xattr(Tree::ROOT, format!("user.step-{writer}").as_bytes());
    let xattr = xattr.ok().and_then(|bytes| bytes.first_chunk().copied()).map_or(0, u64::from_le_bytes);
    [place, end, name, xattr]
}

/// Takes snapshots of a set of trees at one moment while two writers change all of them.
fn snapshots_beside_writers(trees: usize) {
    let spaces: Vec<_> = (0..trees).map(|_| SimSpace::new()).collect();
    let trees: Vec<_> = spaces.iter().map(|space| Arc::new(Tree::create(space.clone(), 7, OPTIONS).unwrap())).collect();
    let allowed = AtomicU64::new(0);
    thread::scope(|scope| {
        for writer in 0..2 {
            let (trees, allowed) = (&trees, &allowed);
            scope.spawn(move || steps(trees, writer, allowed));
        }
        let looked = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..SNAPSHOTS {
                allowed.fetch_add(STEPS, Ordering::AcqRel);
                let still: Vec<_> = trees.iter().map(|tree| tree.stand_still().unwrap()).collect();
                // A tree that is not quiesced progresses in the meantime.
                thread::yield_now();
                let taken: Vec<_> = spaces.iter().map(|space| SimSpace::snapshot(space)).collect();
                drop(still);
                let opened: Vec<_> = taken.into_iter().map(|taken| Tree::open(taken, OPTIONS).unwrap()).collect();
                for tree in &opened {
                    assert_eq!(tree.check().unwrap(), Vec::<String>::new(), "HARNESS: in a snapshot");
                }
                for writer in 0..2 {
                    let all: Vec<u64> = opened.iter().flat_map(|tree| shown(tree, writer)).collect();
                    let is_prefix = all.is_sorted_by(|before, after| before >= after);
                    let spread = all.first().unwrap_or(&0) - all.last().unwrap_or(&0).min(all.first().unwrap_or(&0));
                    assert!(is_prefix && spread <= 1, "HARNESS: writer {writer} did {all:?} at one moment");
                }
            }
        }));
        allowed.store(u64::MAX, Ordering::Release);
        if let Err(payload) = looked {
            std::panic::resume_unwind(payload);
        }
    });
}

#[test]
fn a_snapshot_beside_writers_is_of_one_moment() {
    snapshots_beside_writers(1);
}

#[test]
fn a_snapshot_of_several_trees_beside_writers_is_of_one_moment() {
    snapshots_beside_writers(3);
}

/// The planted bug: the gate is not shut.
#[test]
fn changes_beside_a_snapshot_are_caught() {
    share::canary::plant(Some("changes-beside-snapshot"));
    let ran = catch_unwind(|| snapshots_beside_writers(1));
    share::canary::plant(None);
    let said = ran.expect_err("NOT CAUGHT: changes-beside-snapshot");
    let said = said.downcast_ref::<String>().expect("NOT CAUGHT: not by an assertion of the test");
    assert!(said.contains("HARNESS:"), "NOT CAUGHT: changes-beside-snapshot failed otherwise: {said}");
}
