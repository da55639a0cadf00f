//! Damaged leaves, while the tree is served: an error there, and nowhere else. And
//! pages crafted with wrong content and right checksums: an error there too, never the end of the
//! program.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use share::{Options, SetAttributes, Tree};
use sim::{Rng, SimSpace};
use surface::ObjectSpace;

use crate::pages::{damage, page_at};
use crate::repair::{BEGIN, CALLER, filled};
use crate::run::OPTIONS;

const LEAF: u8 = 1;
const BRANCH: u8 = 2;

/// Names, or inodes, that one page has at most.
const PAGE_NAMES_MAX: usize = 4096 / 42;

/// `redb` keeps no page in memory.
const UNCACHED: Options = Options { cache_bytes: 0, ..OPTIONS };

/// Directory and name of each file and directory, with its inode.
type Names = BTreeMap<(u64, Vec<u8>), u64>;

fn names_of(tree: &Tree) -> Names {
    let (mut names, mut directories) = (Names::new(), vec![Tree::ROOT]);
    while let Some(directory) = directories.pop() {
        tree.list(directory, share::COOKIE_DOT_DOT, |listed, _| {
            directories.extend((listed.kind == libc::S_IFDIR).then_some(listed.node));
            names.insert((directory, listed.name), listed.node);
            true
        })
        .unwrap();
    }
    names
}

fn pages(space: &SimSpace) -> u64 {
    let mut header = [0; 16];
    space.read(1, 0, &mut header).unwrap();
    u64::from_le_bytes(*header[8..].first_chunk().unwrap()) / 4096
}

/// A tree, its names, and the leaves with which something is lost.
fn with_leaves(files: u64) -> (Arc<SimSpace>, Names, Vec<u64>) {
    let (space, _) = filled(files);
    let names = names_of(&Tree::open(space.snapshot(), OPTIONS).unwrap());
    let is_lossy = |page: &u64| {
        let space = space.snapshot();
        damage(&space, *page);
        Tree::survey(&*space).unwrap().unwrap().is_lossy
    };
    let leaves = (1..pages(&space)).filter(|page| page_at(&space, 1, *page)[0] == LEAF).filter(is_lossy).collect();
    (space, names, leaves)
}

/// Names that cannot be looked up. All others are unchanged.
fn lost<'a>(tree: &Tree, names: impl Iterator<Item = (&'a (u64, Vec<u8>), &'a u64)>) -> BTreeSet<u64> {
    let mut lost = BTreeSet::new();
    for ((directory, name), node) in names {
        match tree.lookup(*directory, name) {
            Ok((found, _)) => assert_eq!(found, *node, "{}", String::from_utf8_lossy(name)),
            Err(failure) => {
                assert_eq!(failure.errno(), libc::EIO);
                lost.insert(*node);
            }
        }
    }
    lost
}

#[test]
fn a_damaged_leaf_takes_no_names_but_its_own() {
    let (space, names, leaves) = with_leaves(600);
    assert!(leaves.len() > 10, "{leaves:?}");
    let directories: BTreeSet<u64> = names.keys().map(|(directory, _)| *directory).collect();
    let (mut all_lost, mut made, mut unopened) = (BTreeSet::new(), 0, 0);
    for page in leaves {
        let space = space.snapshot();
        damage(&space, page);
        let Ok(tree) = Tree::open(space.clone(), OPTIONS) else {
            // It has the facts, or the root directory.
            unopened += 1;
            continue;
        };
        // The order in which pages are met does not matter.
        let forward = lost(&tree, names.iter());
        assert_eq!(lost(&tree, names.iter().rev()), forward, "page {page}");
        assert!(forward.len() <= PAGE_NAMES_MAX, "page {page} takes {} names along", forward.len());
        all_lost.extend(forward);
        let unlisted = directories.iter().filter(|node| tree.list(**node, 0, |_, _| true).is_err()).count();
        assert!(unlisted <= 4, "page {page}: {unlisted} directories cannot be listed");
        // A name is listed whose inode is damaged.
        let is_listed = |node: &u64| tree.inode(*node).is_err() || tree.list_names(*node, 0, |_, _| true).is_ok();
        let has_names = directories.iter().all(is_listed);
        let is_of_inodes = names.values().any(|node| tree.inode(*node).is_err());
        assert!(has_names || !is_of_inodes, "page {page}");
        // Names that are taken can be made durable.
        let is_made = |node: &u64| {
            let made = tree.make(*node, b"new", CALLER, libc::S_IFREG | 0o644, 0, 0);
            made.map_err(|failure| assert_eq!(failure.errno(), libc::EIO)).is_ok()
        };
        let new: Vec<u64> = directories.iter().copied().filter(is_made).collect();
        tree.commit().unwrap();
        drop(tree);
        let tree = Tree::open(space, OPTIONS).unwrap();
        new.iter().for_each(|node| drop(tree.lookup(*node, b"new").unwrap()));
        made += new.len();
    }
    assert!(all_lost.len() * 2 > names.len(), "only {} of {} names were ever lost", all_lost.len(), names.len());
    assert!(made > 50, "only {made} new names");
    assert!(unopened <= 3, "{unopened} leaves without which no tree opens");
}

#[test]
fn readers_of_damaged_names_do_not_disturb_others() {
    let (space, names, leaves) = with_leaves(300);
    damage(&space, leaves[leaves.len() / 2]);
    let tree = Tree::open(space, OPTIONS).unwrap();
    let lost = lost(&tree, names.iter());
    let (damaged, whole): (Vec<_>, Vec<_>) = names.iter().partition(|(_, node)| lost.contains(*node));
    assert!(!damaged.is_empty() && whole.len() > 100);
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let (tree, names) = (&tree, if reader % 2 == 0 { &damaged } else { &whole });
            scope.spawn(move || {
                for ((directory, name), node) in names.iter().cycle().take(100) {
                    let found = tree.lookup(*directory, name).map(|(found, _)| found);
                    assert_eq!(found.ok(), (reader % 2 == 1).then_some(**node), "reader {reader}");
                }
            });
        }
    });
}

/// The mode of a node.
fn mode(tree: &Tree, node: u64) -> share::Result<u32> {
    Ok(tree.inode(node)?.mode & 0o7777)
}

fn set_mode(tree: &Tree, node: u64, mode: u32) -> share::Result<()> {
    tree.set_attributes(node, &SetAttributes { mode: Some(mode), ..SetAttributes::default() }).map(drop)
}

/// A leaf, one inode that is in it, and one that is not.
fn a_leaf_of_inodes(space: &Arc<SimSpace>, names: &Names, leaves: &[u64]) -> (u64, u64, u64) {
    let of = |page: u64| {
        let space = space.snapshot();
        damage(&space, page);
        let tree = Tree::open(space, OPTIONS).unwrap();
        let (whole, lost): (Vec<u64>, Vec<u64>) = names.values().copied().partition(|node| tree.inode(*node).is_ok());
        Some((page, *lost.get(lost.len() / 2)?, *whole.get(whole.len() / 2)?))
    };
    leaves.iter().find_map(|page| of(*page)).unwrap()
}

/// A change accepted while its page was intact is not lost when the page is damaged before the
/// commit: it waits, others are refused in the meantime, and it becomes durable once the page is
/// back.
#[test]
fn a_commit_that_meets_a_damaged_page_loses_nothing() {
    let (space, names, leaves) = with_leaves(300);
    let (page, node, other) = a_leaf_of_inodes(&space, &names, &leaves);
    let tree = Tree::open(space.clone(), UNCACHED).unwrap();
    mode(&tree, node).unwrap();
    let whole = page_at(&space, 1, page);
    damage(&space, page);
    set_mode(&tree, node, 0o600).unwrap();
    assert_eq!(tree.commit().unwrap_err().errno(), libc::EIO);
    assert_eq!(tree.sync().unwrap_err().errno(), libc::EIO);
    assert_eq!(set_mode(&tree, other, 0o611).unwrap_err().errno(), libc::EIO);
    assert_eq!(mode(&tree, node).unwrap(), 0o600);
    let readable = names.len() - lost(&tree, names.iter()).len();
    assert!(readable + PAGE_NAMES_MAX > names.len(), "{readable} of {} names", names.len());
    // The refused change did not happen.
    assert_ne!(mode(&Tree::open(space.snapshot(), OPTIONS).unwrap(), other).unwrap(), 0o611);
    space.write(1, BEGIN + page * 4096, Bytes::from(whole)).unwrap();
    tree.commit().unwrap();
    set_mode(&tree, other, 0o622).unwrap();
    tree.commit().unwrap();
    drop(tree);
    let tree = Tree::open(space, OPTIONS).unwrap();
    assert_eq!((mode(&tree, node).unwrap(), mode(&tree, other).unwrap()), (0o600, 0o622));
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
}

/// Log records for a damaged page stay there while the tree is read, and apply when the page is
/// back.
#[test]
fn a_tree_whose_log_needs_a_damaged_page_is_served_and_loses_nothing() {
    let (space, names, leaves) = with_leaves(300);
    let (page, node, other) = a_leaf_of_inodes(&space, &names, &leaves);
    let tree = Tree::open(space.clone(), OPTIONS).unwrap();
    set_mode(&tree, node, 0o600).unwrap();
    tree.sync().unwrap();
    drop(tree);
    let whole = page_at(&space, 1, page);
    damage(&space, page);
    assert_eq!(Tree::open(space.snapshot(), OPTIONS).err().unwrap().errno(), libc::EIO);
    let tree = Tree::open_to_serve(space.clone(), OPTIONS).unwrap();
    assert_eq!((mode(&tree, node).unwrap(), mode(&tree, other).is_ok()), (0o600, true));
    assert_eq!(set_mode(&tree, other, 0o611).unwrap_err().errno(), libc::EIO);
    assert_eq!(tree.close().unwrap_err().errno(), libc::EIO);
    drop(tree);
    space.write(1, BEGIN + page * 4096, Bytes::from(whole)).unwrap();
    let tree = Tree::open(space, OPTIONS).unwrap();
    assert_eq!(mode(&tree, node).unwrap(), 0o600);
}

/// Pages are made inconsistent: counts, and positions of keys and values. All operations are run on
/// such a tree, and each answer is right or an error.
#[test]
fn pages_that_contradict_themselves_are_an_error_and_not_the_end() {
    let (space, _, _) = with_leaves(300);
    let names = names_of(&Tree::open(space.snapshot(), OPTIONS).unwrap());
    let (mut rng, mut refused) = (Rng::new(5), 0);
    for page in 1..pages(&space) {
        let whole = page_at(&space, 1, page);
        if ![LEAF, BRANCH].contains(&whole[0]) {
            continue;
        }
        for round in 0..8 {
            let mut wrong = whole.clone();
            let at = 2 + rng.below(if round % 2 == 0 { 30 } else { 400 }) as usize;
            wrong[at] = if round < 4 { wrong[at] ^ 1 << rng.below(8) } else { rng.next_u64() as u8 };
            let space = space.snapshot();
            space.write(1, BEGIN + page * 4096, Bytes::from(wrong)).unwrap();
            refused += usize::from(!Tree::survey(&*space).unwrap().unwrap().is_whole);
            let Ok(tree) = Tree::open_to_serve(space, UNCACHED) else { continue };
            for ((directory, name), node) in &names {
                drop((tree.lookup(*directory, name), tree.list(*node, 0, |_, _| true), tree.xattr_names(*node)));
            }
            for ((directory, name), node) in names.iter().step_by(7) {
                let made = tree.make(*directory, &[&name[..], b" new"].concat(), CALLER, libc::S_IFREG | 0o644, 0, 0);
                drop((made, tree.unlink(*directory, name), tree.forget(*node)));
            }
            drop((tree.check(), tree.commit(), tree.close()));
        }
    }
    assert!(refused > 100, "only {refused} pages were wrong");
}
