//! Paths of files by the numbers of their data, in an open tree.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use share::{Caller, SetAttributes, Tree};
use sim::SimSpace;

use crate::run::OPTIONS;

const CALLER: Caller = Caller { uid: 1000, gid: 100 };

fn tree() -> Tree {
    Tree::create(SimSpace::new(), 7, OPTIONS).unwrap()
}

fn directory(tree: &Tree, at: u64, name: &str) -> u64 {
    tree.make(at, name.as_bytes(), CALLER, libc::S_IFDIR | 0o755, 0, 0).unwrap().0
}

/// A file that has blocks.
fn file(tree: &Tree, at: u64, name: &str) -> u64 {
    let node = tree.make(at, name.as_bytes(), CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap().0;
    tree.write(node, 0, Bytes::from(vec![7; 600]), false).unwrap();
    node
}

/// The path returned for a single file.
fn path(tree: &Tree, data: u64) -> Option<String> {
    let found = tree.paths_of_files(&BTreeSet::from([data]), 0).unwrap();
    assert!(found.len() <= 1 && found.keys().all(|file| *file == data), "{found:?}");
    found.into_values().next().map(|path| String::from_utf8(path).unwrap())
}

/// Some of the names are in the database and some in later changes, and there are more than are
/// examined in one step.
#[test]
fn each_of_many_files_has_its_path() {
    let tree = tree();
    let (a, b) = (directory(&tree, Tree::ROOT, "a"), directory(&tree, Tree::ROOT, "b"));
    let below = directory(&tree, b, "below");
    let mut expected = BTreeMap::new();
    for index in 0..9000 {
        if index == 5000 {
            tree.sync().unwrap();
            tree.commit().unwrap();
        }
        let (at, place) = [(a, "/a"), (below, "/b/below"), (Tree::ROOT, "")][index % 3];
        let name = format!("f{index}");
        let node = tree.make(at, name.as_bytes(), CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap().0;
        expected.insert(node, format!("{place}/{name}").into_bytes());
    }
    let nodes: BTreeSet<u64> = expected.keys().copied().collect();
    assert_eq!(tree.paths_of_files(&nodes, 0).unwrap(), expected);
}

#[test]
fn hard_links_renames_and_removals_are_followed() {
    let tree = tree();
    let (a, b) = (directory(&tree, Tree::ROOT, "a"), directory(&tree, Tree::ROOT, "b"));
    let below = directory(&tree, b, "below");
    let (one, two, three) = (file(&tree, a, "one"), file(&tree, below, "two"), file(&tree, below, "three"));
    tree.commit().unwrap();
    // A directory takes its files along.
    tree.rename(b, b"below", a, b"moved", 0).unwrap();
    tree.rename(Tree::ROOT, b"a", b, b"c", 0).unwrap();
    assert_eq!(path(&tree, one).as_deref(), Some("/b/c/one"));
    assert_eq!(path(&tree, two).as_deref(), Some("/b/c/moved/two"));
    // Of two names one is returned, and the other one when that is removed.
    tree.link(one, Tree::ROOT, b"second").unwrap();
    let either = path(&tree, one).unwrap();
    assert!(["/b/c/one", "/second"].contains(&either.as_str()), "{either}");
    tree.unlink(a, b"one").unwrap();
    assert_eq!(path(&tree, one).as_deref(), Some("/second"));
    // A file that is replaced, and one that is removed but not forgotten by its user, have no name.
    tree.rename(below, b"three", below, b"two", 0).unwrap();
    assert_eq!((path(&tree, two), path(&tree, three).as_deref()), (None, Some("/b/c/moved/two")));
    tree.unlink(Tree::ROOT, b"second").unwrap();
    assert_eq!(path(&tree, one), None);
    assert!(tree.inode(one).is_ok(), "its user has it still");
    tree.commit().unwrap();
    let all = tree.paths_of_files(&BTreeSet::from([one, two, three, 1 << 40]), 0).unwrap();
    assert_eq!(all, BTreeMap::from([(three, b"/b/c/moved/two".to_vec())]));
}

/// Later data has another number, and the older number belongs to no file.
#[test]
fn a_file_that_was_emptied_is_found_by_its_new_number() {
    let tree = tree();
    let node = file(&tree, Tree::ROOT, "f");
    assert_eq!(tree.inode(node).unwrap().data_file(), node);
    tree.set_attributes(node, &SetAttributes { size: Some(0), ..SetAttributes::default() }).unwrap();
    tree.write(node, 0, Bytes::from(vec![8; 600]), false).unwrap();
    let data = tree.inode(node).unwrap().data_file();
    assert_ne!(data, node);
    assert_eq!((path(&tree, data).as_deref(), path(&tree, node)), (Some("/f"), None));
    // Alongside files that have their own numbers.
    let other = file(&tree, Tree::ROOT, "g");
    let both = tree.paths_of_files(&BTreeSet::from([data, other]), 0).unwrap();
    assert_eq!(both, BTreeMap::from([(data, b"/f".to_vec()), (other, b"/g".to_vec())]));
}

#[test]
fn others_come_along_as_far_as_there_is_room() {
    let tree = tree();
    let wanted = file(&tree, Tree::ROOT, "wanted");
    for index in 0..20 {
        file(&tree, Tree::ROOT, &format!("other{index}"));
    }
    // It is in its inode's record, and in no file of the space.
    tree.make(Tree::ROOT, b"small", CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap();
    let found = |others| tree.paths_of_files(&BTreeSet::from([wanted]), others).unwrap();
    assert_eq!(found(0), BTreeMap::from([(wanted, b"/wanted".to_vec())]));
    let all = found(100);
    assert_eq!(all.len(), 21);
    assert!(all.values().all(|path| !path.ends_with(b"small")), "{all:?}");
    let some = found(5);
    assert!((5..=6).contains(&some.len()) && some.contains_key(&wanted), "{some:?}");
    assert!(some.iter().all(|(file, path)| all[file] == *path));
}
