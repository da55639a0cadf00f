//! `fdatasync`: the data is durable, and times alone cost no record of the tree. `fsync`: one flush
//! makes the data of a file that has grown durable, and the record that shows it.

use std::sync::Arc;

use bytes::Bytes;
use share::{Caller, SetAttributes, SetId, TimeToSet, Tree};
use sim::{Rng, SimSpace};

use crate::run::OPTIONS;

const CALLER: Caller = Caller { uid: 1000, gid: 100 };

/// The log's file of the space.
const LOG: u64 = 2;

const BYTES: usize = 3 * 4096;

/// A tree with a file `f` of [`BYTES`] that is durable, after a commit.
fn tree_with_a_file() -> (Arc<SimSpace>, Tree, u64) {
    let space = SimSpace::new();
    let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
    let node = make(&tree, b"f");
    write(&tree, node, 0, &[b'o'; BYTES]);
    tree.commit().unwrap();
    (space, tree, node)
}

fn make(tree: &Tree, name: &[u8]) -> u64 {
    tree.make(Tree::ROOT, name, CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap().0
}

fn write(tree: &Tree, node: u64, offset: u64, bytes: &[u8]) {
    tree.write(node, offset, Bytes::copy_from_slice(bytes), false).unwrap();
}

fn content(tree: &Tree, node: u64) -> Vec<u8> {
    let mut content = vec![0; tree.inode(node).unwrap().size as usize];
    assert_eq!(tree.read(node, 0, &mut content).unwrap(), content.len());
    content
}

/// Records that the log has: each begins with a block of its own.
fn records(space: &SimSpace) -> usize {
    space.allocated_blocks(LOG..LOG + 1)
}

fn after_power_loss(space: &SimSpace, seed: u64) -> Tree {
    let tree = Tree::open(space.after_power_loss(&mut Rng::new(seed)), OPTIONS).unwrap();
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
    tree
}

#[test]
fn overwritten_data_is_durable_without_a_record() {
    let (space, tree, node) = tree_with_a_file();
    let (before, calls) = (records(&space), space.calls());
    for round in 0..4 {
        write(&tree, node, 4096, &[b'0' + round; 4096]);
        let accessed = SetAttributes { accessed: Some(TimeToSet::Now), ..SetAttributes::default() };
        tree.set_attributes(node, &accessed).unwrap();
        // Of another file more has changed.
        let other = make(&tree, &[b'a' + round]);
        write(&tree, other, 0, b"other");
        tree.sync_data(&[node]).unwrap();
        for seed in 0..5 {
            let left = after_power_loss(&space, seed);
            let expected = [&[b'o'; 4096][..], &[b'0' + round; 4096], &[b'o'; 4096]].concat();
            assert_eq!(content(&left, node), expected, "round {round}");
        }
    }
    assert_eq!(records(&space), before);
    // Each time the write and the flush; the other file is in its record.
    assert_eq!(space.calls() - calls, 4 * 2);
    // An `fsync` has the other files and the times.
    tree.sync().unwrap();
    assert!(records(&space) > before);
    assert!(after_power_loss(&space, 1).lookup(Tree::ROOT, b"d").is_ok());
}

/// Everything that finds the data, or that a user would miss, is in a record.
#[test]
fn all_but_times_is_in_a_record() {
    type Changes = fn(&Tree, u64);
    let changes: [(&str, Changes); 8] = [
        ("growth", |tree, node| write(tree, node, BYTES as u64, b"more")),
        ("a cut and growth to the same size", |tree, node| {
            size(tree, node, 0);
            write(tree, node, 0, &[b'n'; BYTES]);
        }),
        ("allocation", |tree, node| tree.allocate(node, 0, BYTES as u64 + 1, 0, SetId::Kept).unwrap()),
        ("a mode", |tree, node| {
            let mode = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
            tree.set_attributes(node, &mode).unwrap();
        }),
        ("an owner", |tree, node| {
            let owner = SetAttributes { uid: Some(1), ..SetAttributes::default() };
            tree.set_attributes(node, &owner).unwrap();
        }),
        ("an attribute", |tree, node| tree.set_xattr(node, b"user.a", b"b", 0, false).unwrap()),
        ("another name", |tree, _| tree.rename(Tree::ROOT, b"f", Tree::ROOT, b"g", 0).unwrap()),
        ("a link", |tree, node| drop(tree.link(node, Tree::ROOT, b"g").unwrap())),
    ];
    for (what, change) in changes {
        let (space, tree, node) = tree_with_a_file();
        change(&tree, node);
        // Only times change after it.
        write(&tree, node, 0, b"new");
        let before = records(&space);
        tree.sync_data(&[node]).unwrap();
        assert!(records(&space) > before, "{what}");
        let (is, was) = (after_power_loss(&space, 3), &tree);
        let seen = |tree: &Tree| {
            let inode = tree.inode(node).unwrap();
            let names = [&b"f"[..], b"g"].map(|name| tree.lookup(Tree::ROOT, name).is_ok());
            let attributes = (inode.mode, inode.uid, inode.links, inode.size, tree.xattr_names(node).unwrap());
            (names, attributes, content(tree, node))
        };
        assert_eq!(seen(&is), seen(was), "{what}");
        // The record is durable: from here on times are all that changes.
        let before = records(&space);
        write(&tree, node, 0, b"newer");
        tree.sync_data(&[node]).unwrap();
        assert_eq!(records(&space), before, "{what}");
    }
}

fn size(tree: &Tree, node: u64, size: u64) {
    tree.set_attributes(node, &SetAttributes { size: Some(size), ..SetAttributes::default() }).unwrap();
}

/// A content in the inode's record is durable only with that record.
#[test]
fn a_small_file_is_in_a_record_with_its_content() {
    let (space, tree, _) = tree_with_a_file();
    let node = make(&tree, b"small");
    write(&tree, node, 0, b"old");
    tree.sync_data(&[node]).unwrap();
    write(&tree, node, 0, b"new");
    tree.sync_data(&[node]).unwrap();
    assert_eq!(content(&after_power_loss(&space, 5), node), b"new");
}

/// A change that no commit could make durable is not forgotten by `fdatasync` either.
#[test]
fn a_size_that_a_refused_commit_had_is_not_forgotten() {
    let (space, tree, node) = tree_with_a_file();
    write(&tree, node, BYTES as u64, b"more");
    space.limit(0, 0, 0);
    assert_eq!(tree.commit().unwrap_err().errno(), libc::ENOSPC);
    space.limit(0, 0, 0);
    assert_eq!(tree.sync_data(&[node]).unwrap_err().errno(), libc::ENOSPC);
    space.lift_limit();
    tree.sync_data(&[node]).unwrap();
    assert_eq!(content(&after_power_loss(&space, 2), node).len(), BYTES + 4);
}

/// The data is ordered before its record, and one flush makes both durable.
#[test]
fn a_file_that_has_grown_is_durable_with_one_flush() {
    let syncs: [fn(&Tree, u64) -> share::Result<()>; 2] = [|tree, _| tree.sync(), |tree, node| tree.sync_data(&[node])];
    let (space, tree, node) = tree_with_a_file();
    for (round, sync) in syncs.into_iter().enumerate() {
        let (flushes, before) = (space.flushes(), records(&space));
        write(&tree, node, (BYTES + round * 4096) as u64, &[b'n'; 4096]);
        sync(&tree, node).unwrap();
        assert_eq!(space.flushes(), flushes + 1);
        assert!(records(&space) > before);
        for seed in 0..5 {
            let grown = content(&after_power_loss(&space, seed), node);
            assert_eq!(grown, [&[b'o'; BYTES][..], &vec![b'n'; (round + 1) * 4096]].concat());
        }
    }
}
