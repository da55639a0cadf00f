//! A tree without any space: all operations that free space continue, in memory if necessary, and
//! nothing of them is lost when there is space again.

use std::sync::{Arc, mpsc};
use std::thread;

use bytes::Bytes;
use share::{Caller, Failure, SetAttributes, Tree};
use sim::{Rng, SimSpace};
use testkit::PATIENCE;

use crate::ground::{Ground, OnPool};
use crate::run::OPTIONS;

const CALLER: Caller = Caller { uid: 1000, gid: 100 };

/// Directories and files each: enough that their removal is more than a small commit.
const NAMES: u64 = 1200;

fn name(kind: &str, number: u64) -> Vec<u8> {
    format!("{kind} {number}").into_bytes()
}

/// A tree of some files and empty directories; returns the nodes of the files.
fn filled(tree: &Tree) -> Vec<u64> {
    (0..NAMES)
        .map(|number| {
            tree.make(Tree::ROOT, &name("directory", number), CALLER, libc::S_IFDIR | 0o755, 0, 0).unwrap();
            let node = tree.make(Tree::ROOT, &name("file", number), CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap().0;
            tree.write(node, 0, Bytes::from(vec![number as u8; 3000]), false).unwrap();
            node
        })
        .collect()
}

/// All that is promised to work in a full space; returns the directory entries that must be left.
fn remove_and_change(tree: &Tree, nodes: &[u64]) -> Vec<Vec<u8>> {
    let mut left = Vec::new();
    for (number, node) in (0..NAMES).zip(nodes) {
        let (directory, file) = (name("directory", number), name("file", number));
        tree.remove_directory(Tree::ROOT, &directory).unwrap();
        match number % 4 {
            0 => {
                tree.unlink(Tree::ROOT, &file).unwrap();
                tree.forget(*node).unwrap();
            }
            1 => {
                tree.rename(Tree::ROOT, &file, Tree::ROOT, &name("moved", number), 0).unwrap();
                left.push(name("moved", number));
            }
            // Over the previous file, which is removed.
            2 => {
                tree.rename(Tree::ROOT, &file, Tree::ROOT, &name("moved", number - 1), 0).unwrap();
                tree.forget(nodes[number as usize - 1]).unwrap();
            }
            _ => {
                let set = SetAttributes { size: Some(0), mode: Some(0o600), ..SetAttributes::default() };
                tree.set_attributes(*node, &set).unwrap();
                left.push(file);
            }
        }
    }
    left.sort_unstable();
    left
}

fn names_in(tree: &Tree) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    tree.list(Tree::ROOT, share::COOKIE_DOT_DOT, |listed, _| {
        names.push(listed.name.to_vec());
        true
    })
    .unwrap();
    names.sort_unstable();
    names
}

/// No commit finds space, however early it comes: removals got that error.
#[test]
fn removals_go_on_in_memory_where_no_commit_finds_room() {
    let space = SimSpace::new();
    let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
    let nodes = filled(&tree);
    tree.commit().unwrap();
    space.refuse_all();
    let full = Err(Failure::new(libc::ENOSPC));
    let made = |name: &[u8]| tree.make(Tree::ROOT, name, CALLER, libc::S_IFDIR | 0o755, 0, 0).map(drop);
    assert_eq!(made(b"new"), full);
    let left = remove_and_change(&tree, &nodes);
    assert_eq!(names_in(&tree), left);
    // New names are refused as always, and waiting changes are not reported as durable.
    assert_eq!(made(b"new"), full);
    assert_eq!(tree.sync(), full);
    assert_eq!(tree.commit(), full);
    SimSpace::lift_limit(&space);
    tree.sync().unwrap();
    let space = space.after_power_loss(&mut Rng::new(7));
    let tree = Tree::open(space.clone(), OPTIONS).unwrap();
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
    assert_eq!(names_in(&tree), left);
    tree.close().unwrap();
    let kept = nodes.iter().zip(0..NAMES).filter(|(_, number)| number % 4 == 2).map(|(node, _)| *node);
    let with_data = space.files().into_iter().filter(|file| *file >= 16).collect::<Vec<_>>();
    assert_eq!(with_data, kept.collect::<Vec<_>>(), "data of files that are gone");
}

/// A tree that finds no space for its last commit reports that, and can be closed again.
#[test]
fn the_end_of_a_tree_without_room_is_told() {
    let space = SimSpace::new();
    let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
    let nodes = filled(&tree);
    tree.commit().unwrap();
    space.refuse_all();
    let left = remove_and_change(&tree, &nodes);
    assert_eq!(tree.close(), Err(Failure::new(libc::ENOSPC)));
    // The next attempt finds some.
    SimSpace::lift_limit(&space);
    tree.close().unwrap();
    drop(tree);
    let tree = Tree::open(space, OPTIONS).unwrap();
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
    assert_eq!(names_in(&tree), left);
}

/// After a commit only records of the discarded data of removed files are left. With hardly any
/// space they request an early commit, and a change continues nevertheless.
#[test]
fn a_change_goes_on_where_notes_of_removed_data_ask_for_a_commit() {
    let space = SimSpace::new();
    let tree = Arc::new(Tree::create(space.clone(), 7, OPTIONS).unwrap());
    let nodes = filled(&tree);
    tree.commit().unwrap();
    for (number, node) in (0..NAMES).zip(&nodes) {
        tree.unlink(Tree::ROOT, &name("file", number)).unwrap();
        tree.forget(*node).unwrap();
    }
    tree.commit().unwrap();
    let own_blocks = 8;
    SimSpace::limit(&space, 0, own_blocks, u64::MAX);
    let (done, is_done) = mpsc::channel();
    let changing = tree.clone();
    thread::spawn(move || {
        let removed =
            (0..NAMES).map(|number| changing.remove_directory(Tree::ROOT, &name("directory", number)).map(drop));
        done.send(removed.collect::<Vec<_>>()).unwrap();
    });
    let removed = is_done.recv_timeout(PATIENCE).expect("changes wait for ever");
    assert_eq!(removed, vec![Ok(()); NAMES as usize]);
    SimSpace::lift_limit(&space);
    tree.close().unwrap();
    assert_eq!(names_in(&tree), Vec::<Vec<u8>>::new());
}

/// The same on a pool that a volume fills, where early commits find the room of trees.
#[test]
fn removals_go_on_in_a_full_pool() {
    let pool = OnPool::new(5);
    let tree = Tree::create(pool.space(), 7, OPTIONS).unwrap();
    let nodes = filled(&tree);
    tree.commit().unwrap();
    for seed in 0..8 {
        pool.limit(&mut Rng::new(seed));
    }
    // Names find no room either, in the end.
    let refused = (0..100_000).find_map(|number| {
        tree.make(Tree::ROOT, &name("empty", number), CALLER, libc::S_IFDIR | 0o755, 0, 0).err().map(|_| number)
    });
    let made = refused.unwrap();
    for number in 0..made {
        tree.remove_directory(Tree::ROOT, &name("empty", number)).unwrap();
    }
    let left = remove_and_change(&tree, &nodes);
    pool.lift_limit();
    tree.sync().unwrap();
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
    assert_eq!(names_in(&tree), left);
    tree.close().unwrap();
}
