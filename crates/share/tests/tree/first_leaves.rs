//! Leaves on which all names depend, or without which no tree opens: the table of the tables, the
//! facts, the root directory, small tables. Each has a copy, so damage to a page or to a fragment
//! of pages only affects the names in it.

use std::collections::BTreeSet;
use std::panic::catch_unwind;
use std::sync::Arc;

use bytes::Bytes;
use share::{SetAttributes, Tree};
use sim::SimSpace;
use surface::ObjectSpace;

use crate::copies::{damage, page_at};
use crate::repair::{BEGIN, CALLER, Content, files_of, filled, mend};
use crate::run::OPTIONS;

const LEAF: u8 = 1;

/// Most pages compressed together, so that one flipped bit affects all of them.
const FRAGMENT_PAGES: u64 = 8;

/// Names that one page holds at most: 16 bytes of a key, 12 and the name of a value, and 8 where
/// they end.
const PAGE_NAMES_MAX: usize = 4096 / 42;

fn pages(space: &SimSpace) -> u64 {
    let mut header = [0; 16];
    space.read(1, 0, &mut header).unwrap();
    u64::from_le_bytes(*header[8..].first_chunk().unwrap()) / 4096
}

/// Damages pages and repairs the tree: returns the lost names of files, excluding directories. No
/// content is lost.
fn lost_with(space: &SimSpace, damaged: &[u64], content: &Content) -> BTreeSet<Vec<u8>> {
    let space = space.snapshot();
    damaged.iter().for_each(|page| damage(&space, *page));
    let survey = Tree::survey(&*space).unwrap().unwrap();
    assert!(!survey.problem.contains("tables are lost"), "HARNESS: pages {damaged:?}: {}", survey.problem);
    assert!(survey.pages_lost <= damaged.len() as u64, "HARNESS: pages {damaged:?}: {survey:?}");
    let (tree, ..) = mend(&space);
    let found = files_of(&tree);
    // A file whose record is lost ends with the zeroes of its last block.
    let trimmed = |bytes: &Vec<u8>| bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let contents: BTreeSet<&[u8]> = found.values().map(|bytes| &bytes[..trimmed(bytes)]).collect();
    let gone = content.iter().find(|(_, bytes)| !contents.contains(&bytes[..]));
    assert!(gone.is_none(), "HARNESS: pages {damaged:?}: the content of {gone:?} is lost");
    let name = |path: &Vec<u8>| path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
    let there: BTreeSet<Vec<u8>> = found.keys().map(name).collect();
    content.keys().map(name).filter(|name| !there.contains(name)).collect()
}

/// Each page is lost, one at a time, and then each run of pages that may be one fragment.
fn damage_each(files: u64) {
    let (space, content) = filled(files);
    let last = pages(&space);
    let mut lost = Vec::new();
    for page in 0..last {
        let names = lost_with(&space, &[page], &content);
        assert!(names.len() <= PAGE_NAMES_MAX, "HARNESS: page {page} takes {} names along", names.len());
        lost.push(names);
    }
    let together: BTreeSet<&Vec<u8>> = lost.iter().flatten().collect();
    // Pages without a copy lose their names: otherwise this tests nothing.
    assert!(together.len() * 2 > content.len() - 2 * PAGE_NAMES_MAX, "{} of {} names", together.len(), content.len());
    for first in (0..last).step_by(FRAGMENT_PAGES as usize) {
        let run: Vec<u64> = (first..last.min(first + FRAGMENT_PAGES)).collect();
        let names = lost_with(&space, &run, &content);
        let each: BTreeSet<Vec<u8>> = run.iter().flat_map(|page| lost[*page as usize].clone()).collect();
        let more: Vec<_> = names.difference(&each).map(|name| String::from_utf8_lossy(name)).collect();
        assert!(more.is_empty(), "HARNESS: pages {run:?} take along what is in none of them: {more:?}");
    }
}

#[test]
fn a_damaged_fragment_costs_only_the_names_that_are_in_it() {
    damage_each(300);
    share::canary::plant(Some("first-leaves-not-copied"));
    let said = catch_unwind(|| damage_each(300));
    share::canary::plant(None);
    let said = said.expect_err("NOT CAUGHT: first-leaves-not-copied");
    let said = said.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(said.contains("HARNESS:"), "NOT CAUGHT: first-leaves-not-copied failed otherwise: {said}");
}

/// A share so small that each of its tables is one leaf loses nothing at all with one page, and is
/// served from the copies.
#[test]
fn a_tiny_share_loses_nothing_and_is_served() {
    let (space, content) = filled(12);
    let mut leaves = 0;
    for page in 1..pages(&space) {
        assert_eq!(lost_with(&space, &[page], &content), BTreeSet::new(), "page {page}");
        let kind = page_at(&space, 1, page)[0];
        let space = space.snapshot();
        damage(&space, page);
        let survey = Tree::survey(&*space).unwrap().unwrap();
        assert!(!survey.is_lossy, "page {page}: {survey:?}");
        if !survey.is_whole {
            leaves += usize::from(kind == LEAF);
            let tree = Tree::open(space.clone(), OPTIONS).unwrap();
            assert!(files_of(&tree) == content, "page {page}");
            assert_eq!(tree.check().unwrap(), Vec::<String>::new(), "page {page}");
        }
    }
    // The tables, the facts, inodes, names, attributes.
    assert!(leaves >= 5, "only {leaves} leaves had copies");
}

/// A larger share works without the leaves that opening needs, and loses nothing when it is
/// changed.
#[test]
fn a_tree_is_served_from_copies_of_leaves() {
    let (space, content) = filled(300);
    let mut leaves = 0;
    for page in 1..pages(&space) {
        let is_leaf = page_at(&space, 1, page)[0] == LEAF;
        let space = space.snapshot();
        damage(&space, page);
        let survey = Tree::survey(&*space).unwrap().unwrap();
        if !is_leaf || survey.is_whole || survey.is_lossy {
            continue;
        }
        let tree = Tree::open(space.clone(), OPTIONS).unwrap_or_else(|error| panic!("page {page}: {error:?}"));
        assert!(files_of(&tree) == content, "page {page}");
        tree.make(Tree::ROOT, b"new", CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap();
        tree.close().unwrap();
        let survey = Tree::survey(&*space).unwrap().unwrap();
        assert!(!survey.is_lossy, "page {page}: {survey:?}");
        leaves += 1;
    }
    // The tables, the facts, the root directory, and the first names and attributes.
    assert!(leaves >= 5, "{leaves} leaves have copies");
}

/// In a directory with damaged leaves, all other names are read, and the loss of some is reported.
#[test]
fn names_around_a_damaged_leaf_are_read() {
    let space = SimSpace::new();
    let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
    let names = 3000;
    for number in 0..names {
        let name = format!("a name of some length, number {number}");
        tree.make(Tree::ROOT, name.as_bytes(), CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap();
    }
    tree.close().unwrap();
    // A leaf of names contains one of them, and no record of an inode.
    let has_names = |page: &u64| {
        let bytes = page_at(&space, 1, *page);
        bytes[0] == LEAF && bytes.windows(14).any(|part| part == b"a name of some")
    };
    let leaves: Vec<u64> = (1..pages(&space)).filter(has_names).collect();
    assert!(leaves.len() > 20, "{} leaves", leaves.len());
    let mut fewest = usize::MAX;
    for some in leaves.chunks(leaves.len() / 7) {
        let space = space.snapshot();
        // Two of them, with intact ones in between.
        let damaged = [some[0], some[some.len() - 1]];
        damaged.iter().for_each(|page| damage(&space, *page));
        let tree = Tree::open(space.clone(), OPTIONS).unwrap();
        let (found, lost) = tree.names(Tree::ROOT);
        fewest = fewest.min(found.len());
        assert_eq!(lost.is_some(), found.len() < names, "{damaged:?}");
        assert!(found.len() >= names - 2 * PAGE_NAMES_MAX, "{damaged:?}: {} of {names} names", found.len());
        assert!(found.windows(2).all(|pair| pair[0].cookie < pair[1].cookie), "{damaged:?}: out of order, or twice");
    }
    assert!(fewest < names, "no damage cost a name: this looks at nothing");
    let tree = Tree::open(space, OPTIONS).unwrap();
    let (found, lost) = tree.names(Tree::ROOT);
    assert_eq!((found.len(), lost), (names, None));
}

/// A leaf that has been copied is a copy no more when it has changed, by a program that copies no
/// leaves: the names are those of the leaf, and a damaged one is lost.
#[test]
fn a_first_leaf_that_is_stale_is_never_taken() {
    let (space, content) = filled(12);
    let copies: Vec<(u64, Vec<u8>)> =
        (1..pages(&space)).map(|page| (page, page_at(&space, 4, page))).filter(|(_, copy)| copy[0] == LEAF).collect();
    assert!(copies.len() >= 5, "{} copies of leaves", copies.len());
    let mut lost = 0;
    for (page, mut copy) in copies {
        let space = space.snapshot();
        damage(&space, page);
        if Tree::survey(&*space).unwrap().unwrap().is_whole {
            continue;
        }
        copy[5] ^= 1;
        space.write(4, BEGIN + page * 4096, Bytes::from(copy)).unwrap();
        let survey = Tree::survey(&*space).unwrap().unwrap();
        assert!(survey.is_lossy, "page {page}: {survey:?}");
        lost += 1;
        let shared: Arc<SimSpace> = space.clone();
        let (tree, ..) = mend(&shared);
        // Contents stay, whatever happens to the names.
        assert!(files_of(&tree).len() >= content.len(), "page {page}");
    }
    assert!(lost >= 5, "{lost} pages");
}

/// A leaf that is temporarily unreadable, as on an unresponsive disk, gets its copy when it is
/// readable, although it is not written in the meantime.
#[test]
fn a_first_leaf_that_could_not_be_read_gets_its_copy_later() {
    // Enough that first leaves are not roots, which are read when a tree opens.
    let (space, content) = filled(300);
    let copied: Vec<u64> = (1..pages(&space)).filter(|page| page_at(&space, 4, *page)[0] == LEAF).collect();
    space.discard(4, BEGIN + 4096..u64::MAX).unwrap();
    let mut later = 0;
    for page in copied {
        let space = space.snapshot();
        let leaf = page_at(&space, 1, page);
        damage(&space, page);
        let damaged = page_at(&space, 1, page);
        // Without some leaves no tree opens, or nothing is changed.
        let Ok(tree) = Tree::open(space.clone(), OPTIONS) else { continue };
        let commit = |mode| {
            let mode = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
            tree.set_attributes(Tree::ROOT, &mode).and_then(|_| tree.commit())
        };
        // And pages that were free are used again.
        if commit(0o711).is_err() || page_at(&space, 1, page) != damaged {
            continue;
        }
        assert!(page_at(&space, 4, page) != leaf, "page {page}");
        space.write(1, BEGIN + page * 4096, Bytes::from(leaf.clone())).unwrap();
        commit(0o700).unwrap();
        assert!(files_of(&tree) == content, "page {page}");
        later += usize::from(page_at(&space, 4, page) == leaf);
    }
    // Names and attributes: no commit here writes any of these.
    assert!(later >= 2, "{later} leaves");
}
