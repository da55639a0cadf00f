//! `fallocate`, set-id bits and access times.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use share::{Caller, Options, SetAttributes, SetId, Time, Tree};
use sim::SimSpace;
use surface::Allocation;

use crate::run::OPTIONS;

const CALLER: Caller = Caller { uid: 1000, gid: 100 };
const KEEP_SIZE: i32 = libc::FALLOC_FL_KEEP_SIZE;
const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP_SIZE;
const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;

fn tree_with(options: Options) -> (Arc<SimSpace>, Tree, u64) {
    let space = SimSpace::new();
    let tree = Tree::create(space.clone(), 7, options).unwrap();
    let node = tree.make(Tree::ROOT, b"f", CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap().0;
    (space, tree, node)
}

fn tree() -> (Arc<SimSpace>, Tree, u64) {
    tree_with(OPTIONS)
}

fn blocks(tree: &Tree, node: u64) -> u64 {
    tree.blocks(&tree.inode(node).unwrap())
}

fn set_mode(tree: &Tree, node: u64, mode: u32) {
    tree.set_attributes(node, &SetAttributes { mode: Some(mode), ..SetAttributes::default() }).unwrap();
}

fn mode(tree: &Tree, node: u64) -> u32 {
    tree.inode(node).unwrap().mode & 0o7777
}

#[test]
fn a_preallocated_range_shows_as_allocated() {
    let (_, tree, node) = tree();
    // All blocks that the range touches.
    tree.allocate(node, 4095, 2, 0, SetId::Kept).unwrap();
    assert_eq!((tree.inode(node).unwrap().size, blocks(&tree, node)), (4097, 16));
    tree.allocate(node, 4097, 1 << 20, 0, SetId::Kept).unwrap();
    assert_eq!(blocks(&tree, node), ((1 << 20) + 8192) / 512);
    // As on other file systems, nothing is written there.
    assert_eq!(tree.seek(node, 0, Allocation::Hole).unwrap(), 0);
    tree.allocate(node, 0, 1 << 20, PUNCH, SetId::Kept).unwrap();
    assert_eq!(blocks(&tree, node), 0);
    tree.allocate(node, 0, 2 << 20, ZERO, SetId::Kept).unwrap();
    assert_eq!(blocks(&tree, node), (2 << 20) / 512);
}

#[test]
fn a_hole_before_a_preallocated_range_does_not() {
    let (_, tree, node) = tree();
    tree.allocate(node, 1 << 20, 4096, 0, SetId::Kept).unwrap();
    assert_eq!(blocks(&tree, node), 0);
    tree.allocate(node, 0, (1 << 20) + 4096, KEEP_SIZE, SetId::Kept).unwrap();
    assert_eq!(blocks(&tree, node), ((1 << 20) + 4096) / 512);
}

#[test]
fn more_than_there_is_room_for_is_refused_and_changes_nothing() {
    keep_to_the_room();
}

pub(crate) fn keep_to_the_room() {
    let (space, tree, node) = tree();
    tree.write(node, 0, Bytes::from(vec![7; 40 << 10]), false).unwrap();
    tree.commit().unwrap();
    space.limit(16, 64, u64::MAX);
    let before = tree.inode(node).unwrap();
    for mode in [0, KEEP_SIZE, ZERO, ZERO | KEEP_SIZE] {
        let refused = tree.allocate(node, 0, (40 + 68) << 10, mode, SetId::Kept).err().map(|failure| failure.errno());
        assert_eq!(refused, Some(libc::ENOSPC), "HARNESS: room that is not there, mode {mode}");
    }
    let refused = tree.allocate(node, 0, 1 << 45, 0, SetId::Kept).unwrap_err();
    assert_eq!(refused.errno(), libc::ENOSPC);
    assert!(tree.inode(node).unwrap() == before, "a refused request changed the file");
    let mut content = vec![0; 40 << 10];
    assert_eq!(tree.read(node, 0, &mut content).unwrap(), content.len());
    assert!(content.iter().all(|byte| *byte == 7), "a refused request cleared data");
    // A range with data needs no space, and a hole frees some.
    tree.allocate(node, 0, (40 + 32) << 10, 0, SetId::Kept).unwrap();
    tree.allocate(node, 0, 1 << 40, PUNCH, SetId::Kept).unwrap();
}

#[test]
fn an_allocation_or_copy_that_is_refused_leaves_set_id_bits() {
    let (space, tree, node) = tree();
    tree.write(node, 0, Bytes::from(vec![7; 40 << 10]), false).unwrap();
    tree.set_attributes(node, &SetAttributes { mode: Some(0o6777), ..SetAttributes::default() }).unwrap();
    tree.commit().unwrap();
    space.limit(16, 64, u64::MAX);
    let mode = || tree.inode(node).unwrap().mode & 0o7777;
    for every_sgid in [false, true] {
        let cleared = SetId::Cleared { every_sgid };
        let length = (40 + 68) << 10;
        assert_eq!(tree.allocate(node, 0, length, 0, cleared).unwrap_err().errno(), libc::ENOSPC);
        assert_eq!(tree.allocate(node, 0, u64::MAX, 0, cleared).unwrap_err().errno(), libc::EFBIG);
        let unknown = libc::FALLOC_FL_COLLAPSE_RANGE;
        assert_eq!(tree.allocate(node, 0, 4096, unknown, cleared).unwrap_err().errno(), libc::EOPNOTSUPP);
        assert_eq!(tree.copy_range((node, 0), (node, 1), 4096, cleared).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(tree.copy_range((node, 1 << 20), (node, 0), 4096, cleared).unwrap(), 0);
        assert_eq!(mode(), 0o6777, "{every_sgid}");
    }
    for every_sgid in [false, true] {
        for copies in [false, true] {
            let set_group = SetAttributes { mode: Some(0o6767), ..SetAttributes::default() };
            tree.set_attributes(node, &set_group).unwrap();
            let cleared = SetId::Cleared { every_sgid };
            match copies {
                true => assert_eq!(tree.copy_range((node, 0), (node, 8192), 4096, cleared).unwrap(), 4096),
                false => tree.allocate(node, 0, 4096, PUNCH, cleared).unwrap(),
            }
            assert_eq!(mode(), if every_sgid { 0o767 } else { 0o2767 }, "{copies}");
        }
    }
}

#[test]
fn an_allocation_takes_capabilities_from_a_file() {
    for mode in [0, KEEP_SIZE, PUNCH, ZERO] {
        let (_, tree, node) = tree();
        tree.write(node, 0, Bytes::from(vec![7; 9000]), false).unwrap();
        tree.set_xattr(node, b"security.capability", b"cap", 0, false).unwrap();
        tree.allocate(node, 0, 10_000, mode, SetId::Kept).unwrap();
        assert_eq!(tree.xattr(node, b"security.capability").unwrap_err().errno(), libc::ENODATA, "{mode}");
    }
}

#[test]
fn set_group_id_without_execution_goes_for_callers_of_other_groups() {
    clear_set_id();
}

pub(crate) fn clear_set_id() {
    let (_, tree, node) = tree();
    set_mode(&tree, node, 0o6644);
    let has_changed = tree.clear_set_id(node, false).unwrap();
    assert_eq!((has_changed, mode(&tree, node)), (true, 0o2644), "HARNESS: bits that stay");
    assert!(tree.clear_set_id(node, true).unwrap() && !tree.clear_set_id(node, true).unwrap());
    assert_eq!(mode(&tree, node), 0o644);
    set_mode(&tree, node, 0o2644);
    let chown = SetAttributes { gid: Some(5), kill_every_sgid: true, ..SetAttributes::default() };
    assert_eq!(tree.set_attributes(node, &chown).unwrap().mode & 0o7777, 0o644);
    set_mode(&tree, node, 0o6775);
    let nothing = SetAttributes { kill_suid_sgid: true, ..SetAttributes::default() };
    assert_eq!(tree.set_attributes(node, &nothing).unwrap().mode & 0o7777, 0o775);
}

static CLOCK: AtomicI64 = AtomicI64::new(1_000_000);

#[test]
fn access_times_move_after_a_change_and_once_a_day() {
    let now = || Time { seconds: CLOCK.load(Ordering::Relaxed), nanoseconds: 5 };
    let pass = |seconds| CLOCK.fetch_add(seconds, Ordering::Relaxed);
    let (_, tree, node) = tree_with(Options { now, ..OPTIONS });
    let accessed = || tree.inode(node).unwrap().accessed.seconds;
    let moved = || {
        let (before, was_due) = (accessed(), tree.has_old_access(node).unwrap());
        let changed = tree.inode(node).unwrap().changed;
        tree.note_access(node).unwrap();
        assert_eq!((accessed() != before, tree.inode(node).unwrap().changed), (was_due, changed));
        was_due
    };
    pass(10);
    assert!(moved());
    pass(10);
    assert!(!moved(), "nothing has changed since");
    tree.write(node, 0, Bytes::from_static(b"x"), false).unwrap();
    pass(10);
    assert!(moved() && !moved());
    pass(24 * 60 * 60 - 1);
    assert!(!moved());
    pass(1);
    assert!(moved());
}
