//! Copies of the pages that others depend on: losing such a page costs no name, no copy is used
//! that is not the right one, and they cost little.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::catch_unwind;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use share::Tree;
use sim::{Rng, SimSpace};
use surface::{Capacity, Error, ErrorKind, ObjectSpace, Result, Run, Taken};

use crate::repair::{BEGIN, CALLER, files_of, filled, mend};
use crate::run::OPTIONS;

/// The files with the copies of the database in file 1, and of that in file 3 (FORMAT.md).
const COPIES: Range<u64> = 4..5;
const SECOND_COPIES: Range<u64> = 5..6;
const PAGE: u64 = 4096;
const BRANCH: u8 = 2;

pub fn page_at(space: &SimSpace, file: u64, page: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE as usize];
    space.read(file, BEGIN + page * PAGE, &mut bytes).unwrap();
    bytes
}

pub fn damage(space: &SimSpace, page: u64) {
    space.write(1, BEGIN + page * PAGE, Bytes::from(vec![0x5a; PAGE as usize])).unwrap();
}

/// Pages of the database that are branches now or were, and its head.
fn upper_pages(space: &SimSpace) -> Vec<u64> {
    let mut header = [0; 16];
    space.read(1, 0, &mut header).unwrap();
    let pages = u64::from_le_bytes(*header[8..].first_chunk().unwrap()) / PAGE;
    (0..pages).filter(|page| *page == 0 || page_at(space, 1, *page)[0] == BRANCH).collect()
}

/// Each page with children is lost, one at a time and all at once: no name is lost.
#[test]
fn pages_above_others_that_are_lost_cost_no_name() {
    let (space, content) = filled(2000);
    let upper = upper_pages(&space);
    assert!(upper.len() > 6, "{upper:?}");
    let mut used = 0;
    for page in &upper {
        let space = space.snapshot();
        damage(&space, *page);
        let survey = Tree::survey(&*space).unwrap().unwrap();
        assert!(!survey.is_lossy && survey.pages_lost == 0, "page {page}: {survey:?}");
        used += usize::from(!survey.is_whole);
        // A read-only tree continues, too, unless the head is lost.
        if *page != 0 {
            let tree = Tree::open(space, OPTIONS).unwrap();
            assert_eq!(tree.check().unwrap(), Vec::<String>::new(), "page {page}");
        }
    }
    // The head, and the roots of inodes, names and attributes.
    assert!(used >= 4, "only {used} of the damaged pages were in use");
    upper.iter().for_each(|page| damage(&space, *page));
    let (tree, mended, is_whole) = mend(&space);
    assert!(!is_whole && mended.is_empty(), "{mended:?}");
    assert!(files_of(&tree) == content);
    tree.close().unwrap();
    assert_eq!(space.allocated_blocks(COPIES), 0, "copies of a database that is gone");
    assert!(space.allocated_blocks(SECOND_COPIES) > 3, "the new database has none");
}

/// A server that finds such pages damaged continues: it reads all names, and changes them.
#[test]
fn a_tree_is_served_from_copies() {
    let (space, content) = filled(2000);
    let upper = upper_pages(&space);
    upper.iter().filter(|page| **page != 0).for_each(|page| damage(&space, *page));
    let tree = Tree::open(space.clone(), OPTIONS).unwrap();
    assert!(files_of(&tree) == content);
    for path in content.keys() {
        let (directory, name) = node_of(&tree, path);
        tree.rename(directory, &name, directory, &[&name[..], b" moved"].concat(), 0).unwrap();
    }
    tree.close().unwrap();
    // Branches of other tables are as they were.
    let survey = Tree::survey(&*space).unwrap().unwrap();
    assert!(!survey.is_lossy, "{survey:?}");
    let moved = Tree::open(space, OPTIONS).unwrap();
    assert_eq!(files_of(&moved).len(), content.len());
}

/// The directory and the name of a path.
fn node_of(tree: &Tree, path: &[u8]) -> (u64, Vec<u8>) {
    let mut parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').skip(1).collect();
    let name = parts.pop().unwrap().to_vec();
    (parts.into_iter().fold(Tree::ROOT, |node, part| tree.lookup(node, part).unwrap().0), name)
}

/// The header before the database is lost, or its block reads as zeroes: the database is found, in
/// the first file and in the second, and is not taken for missing.
#[test]
fn a_database_is_found_without_its_header() {
    for rebuilds in 0..3 {
        let (space, content) = filled(120);
        let shared: Arc<dyn ObjectSpace> = space.clone();
        for _ in 0..rebuilds {
            Tree::rebuild(&shared, OPTIONS, [1, 2]).unwrap();
        }
        for byte in [0, 0x5a] {
            space.write(1, 0, Bytes::from(vec![byte; PAGE as usize])).unwrap();
            let survey = Tree::survey(&*space).unwrap().expect("it is taken for none");
            assert!(!survey.is_whole && !survey.is_lossy, "{survey:?}");
            let (tree, mended, _) = mend(&space);
            assert_eq!(mended, Vec::<String>::new());
            assert!(files_of(&tree) == content, "{rebuilds} rebuilds, {byte}");
            tree.close().unwrap();
        }
    }
}

/// Branch pages that a database uses.
fn in_use(space: &SimSpace) -> Vec<u64> {
    let is_used = |page: &u64| {
        let space = space.snapshot();
        damage(&space, *page);
        !Tree::survey(&*space).unwrap().unwrap().is_whole
    };
    upper_pages(space).into_iter().filter(|page| *page != 0).filter(is_used).collect()
}

/// A program unaware of copies has overwritten a page with children, whose old copy still exists.
/// The new page is damaged: the old one is not used in its place.
fn copies_that_are_stale() {
    let (before, content) = filled(300);
    let after = before.snapshot();
    let tree = Tree::open(after.clone(), OPTIONS).unwrap();
    let moved: Vec<&Vec<u8>> = content.keys().filter(|path| path.ends_with(b"3")).collect();
    for path in &moved {
        let (directory, name) = node_of(&tree, path);
        tree.rename(directory, &name, directory, &[&name[..], b" moved"].concat(), 0).unwrap();
    }
    tree.commit().unwrap();
    drop(tree);
    let (old, new) = (in_use(&before), in_use(&after));
    assert!(old.len() >= 3 && new.len() >= 3 && moved.len() >= 20, "{old:?} {new:?}");
    let mut spaces = Vec::new();
    for (old, new) in old.iter().flat_map(|old| new.iter().map(move |new| (*old, *new))) {
        let (stale, is_now) = (page_at(&before, 1, old), page_at(&after, 1, new));
        if stale == is_now {
            continue;
        }
        let space = after.snapshot();
        space.write(COPIES.start, BEGIN + new * PAGE, Bytes::from(stale)).unwrap();
        damage(&space, new);
        let survey = Tree::survey(&*space).unwrap().unwrap();
        assert!(survey.is_lossy, "HARNESS: page {old} is taken for page {new}");
        spaces.push(space);
    }
    for space in spaces {
        let (tree, ..) = mend(&space);
        let found = files_of(&tree);
        for path in &moved {
            assert!(!found.contains_key(*path), "{} was moved", String::from_utf8_lossy(path));
        }
    }
}

#[test]
fn a_copy_that_is_stale_is_never_taken() {
    copies_that_are_stale();
    share::canary::plant(Some("stale-copy-taken"));
    let said = catch_unwind(copies_that_are_stale);
    share::canary::plant(None);
    let said = said.expect_err("NOT CAUGHT: stale-copy-taken");
    let said = said.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(said.contains("HARNESS:"), "NOT CAUGHT: stale-copy-taken failed otherwise: {said}");
}

/// A database without copies loses pages as before, and a commit copies the pages that it writes.
#[test]
fn a_database_without_copies_is_as_it_was_and_gets_some() {
    let (space, _) = filled(2000);
    let upper = upper_pages(&space);
    space.discard(COPIES.start, 0..u64::MAX).unwrap();
    assert!(Tree::survey(&*space).unwrap().unwrap().is_whole);
    let damaged = space.snapshot();
    upper.iter().for_each(|page| damage(&damaged, *page));
    assert!(Tree::survey(&*damaged).unwrap().unwrap().is_lossy);
    let tree = Tree::open(space.clone(), OPTIONS).unwrap();
    tree.make(Tree::ROOT, b"new", CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap();
    tree.close().unwrap();
    assert!(space.allocated_blocks(COPIES) > 3);
    // The roots of the tables have been written since.
    let before = Tree::survey(&*space).unwrap().unwrap();
    damage(&space, 0);
    let after = Tree::survey(&*space).unwrap().unwrap();
    assert!(before.is_whole && !after.is_lossy && !after.is_whole, "{after:?}");
}

/// After a power loss the copies are present: they are durable with their pages.
#[test]
fn copies_are_durable_with_their_pages() {
    let mut damaged = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let space = SimSpace::new();
        let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
        let make = |number: u64| {
            let name = format!("a name that is long enough to fill some pages, number {number}");
            tree.make(Tree::ROOT, name.as_bytes(), CALLER, libc::S_IFREG | 0o644, 0, 0).map(drop)
        };
        (0..300).for_each(|number| make(number).unwrap());
        tree.commit().unwrap();
        space.fail_after(rng.below(120));
        for number in 300..600 {
            if make(number).is_err() || number % 30 == 0 && tree.commit().is_err() {
                break;
            }
        }
        let space = space.after_power_loss(&mut rng);
        let whole = Tree::survey(&*space).unwrap().unwrap();
        assert!(whole.is_whole, "seed {seed}: {whole:?}");
        for page in upper_pages(&space) {
            let space = space.snapshot();
            damage(&space, page);
            let survey = Tree::survey(&*space).unwrap().unwrap();
            assert!(!survey.is_lossy, "seed {seed}, page {page}: {survey:?}");
            damaged += u64::from(!survey.is_whole);
        }
    }
    assert!(damaged > 120, "only {damaged} pages in use were damaged");
}

/// Counts the blocks written to each file, and flushes.
struct Counting {
    below: Arc<SimSpace>,
    written: Mutex<BTreeMap<u64, u64>>,
    flushes: Mutex<u64>,
    settles: Mutex<u64>,
}

impl Counting {
    fn over(below: Arc<SimSpace>) -> Arc<Self> {
        Arc::new(Self { below, written: Mutex::default(), flushes: Mutex::default(), settles: Mutex::default() })
    }
}

impl ObjectSpace for Counting {
    fn read(&self, file: u64, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.below.read(file, offset, buf)
    }
    fn write(&self, file: u64, offset: u64, data: Bytes) -> Result<()> {
        let blocks = (offset + data.len() as u64).div_ceil(PAGE) - offset / PAGE;
        *self.written.lock().entry(file).or_default() += blocks;
        self.below.write(file, offset, data)
    }
    fn discard(&self, file: u64, range: Range<u64>) -> Result<()> {
        self.below.discard(file, range)
    }
    fn discard_files(&self, files: Range<u64>) -> Result<()> {
        self.below.discard_files(files)
    }
    fn finish_discards(&self) -> Result<()> {
        self.below.finish_discards()
    }
    fn flush(&self) -> Result<()> {
        *self.flushes.lock() += 1;
        self.below.flush()
    }
    fn allocation(&self, file: u64, offset: u64, length: u64, runs_max: usize) -> Result<Vec<Run>> {
        self.below.allocation(file, offset, length, runs_max)
    }
    /// Behaves like a full pool.
    fn settle(&self) -> Result<()> {
        *self.settles.lock() += 1;
        Err(Error::new(ErrorKind::Full, "no room"))
    }
    fn stored(&self, _: u64) -> Result<Option<Taken>> {
        Ok(Some(Taken { raw_bytes: PAGE, stored_bytes: 100 }))
    }
    fn capacity(&self) -> Result<Capacity> {
        self.below.capacity()
    }
    fn admit(&self, bytes: u64) -> Result<()> {
        self.below.admit(bytes)
    }
    fn set_aside(&self, bytes: u64) -> Result<()> {
        self.below.set_aside(bytes)
    }
    fn own_room(&self) -> u64 {
        self.below.own_room()
    }
}

/// Cost of copies: blocks written by small commits and by large ones, blocks in use after many
/// changes, and no additional flush.
#[test]
fn copies_cost_little() {
    let below = SimSpace::new();
    let space = Counting::over(below.clone());
    let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
    let make = |number: u64| {
        let name = format!("a file with a name of some length, number {number}");
        tree.make(Tree::ROOT, name.as_bytes(), CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap();
        name
    };
    let taken = || {
        let mut written = space.written.lock();
        let [names, copies] = [1, 4].map(|file| written.get(&file).copied().unwrap_or(0));
        written.clear();
        (names, copies, std::mem::take(&mut *space.flushes.lock()))
    };
    taken();
    let mut names: Vec<String> = (0..6000).map(make).collect();
    tree.commit().unwrap();
    let (pages, copies, _) = taken();
    println!("one commit of 6000 names: {pages} pages, {copies} copies");
    assert!(copies * 20 < pages, "{copies} copies of {pages} pages");
    for number in 6000..6020 {
        make(number);
        tree.commit().unwrap();
    }
    let (pages, copies, flushes) = taken();
    println!("20 commits of a name each: {pages} pages, {copies} copies, {flushes} flushes");
    // Branches and the head, and the first leaves of the table of tables and of two tables or
    // three.
    assert!(copies * 5 < pages * 3, "{copies} copies of {pages} pages");
    assert_eq!(flushes, 40, "a commit flushes twice");
    let mut rng = Rng::new(3);
    for round in 1..40_u64 {
        for _ in 0..150 {
            let at = rng.below(names.len() as u64) as usize;
            let new = format!("{} {round}", names[at]);
            tree.rename(Tree::ROOT, names[at].as_bytes(), Tree::ROOT, new.as_bytes(), 0).unwrap();
            names[at] = new;
        }
        tree.commit().unwrap();
    }
    let (pages, copies, _) = taken();
    let (all, copied) = (below.allocated_blocks(1..2), below.allocated_blocks(COPIES));
    println!("39 commits of 150 renamed: {pages} pages, {copies} copies; {copied} blocks beside {all}");
    assert!(copies * 8 < pages, "{copies} copies of {pages} pages");
    assert!(copied * 12 < all, "{copied} blocks beside {all}");
}

/// The usage of a directory settles the space once, not for each file, and is told of a full one.
#[test]
fn usage_settles_the_space_once() {
    let space = Counting::over(SimSpace::new());
    let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
    for name in [b"a", b"b", b"c"] {
        let node = tree.make(Tree::ROOT, name, CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap().0;
        tree.write(node, 0, Bytes::from(vec![1; PAGE as usize]), false).unwrap();
    }
    let usage = String::from_utf8(tree.xattr(Tree::ROOT, b"user.shale.usage").unwrap()).unwrap();
    assert_eq!((&*usage, *space.settles.lock()), ("files=3 size=12288 data=12288 stored=300", 1));
}
