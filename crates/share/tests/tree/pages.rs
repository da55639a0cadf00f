//! Pages of the names' database: found without its header, and read around damaged ones. The space
//! here has no copies; a pool stores the names once more than files, and repairs them.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use share::Tree;
use sim::SimSpace;
use surface::{Capacity, Error, ErrorKind, ObjectSpace, Result, Run, Taken};

use crate::repair::{BEGIN, CALLER, files_of, filled, mend};
use crate::run::OPTIONS;

const PAGE: u64 = 4096;
const LEAF: u8 = 1;

/// Names that one page holds at most: 16 bytes of a key, 12 and the name of a value, and 8 where
/// they end.
const PAGE_NAMES_MAX: usize = 4096 / 42;

pub fn page_at(space: &SimSpace, file: u64, page: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE as usize];
    space.read(file, BEGIN + page * PAGE, &mut bytes).unwrap();
    bytes
}

pub fn damage(space: &SimSpace, page: u64) {
    space.write(1, BEGIN + page * PAGE, Bytes::from(vec![0x5a; PAGE as usize])).unwrap();
}

fn pages(space: &SimSpace) -> u64 {
    let mut header = [0; 16];
    space.read(1, 0, &mut header).unwrap();
    u64::from_le_bytes(*header[8..].first_chunk().unwrap()) / 4096
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
    let (mut fewest, mut beginnings) = (usize::MAX, 0);
    for some in leaves.chunks(leaves.len() / 7) {
        let space = space.snapshot();
        // Two of them, with intact ones in between.
        let damaged = [some[0], some[some.len() - 1]];
        damaged.iter().for_each(|page| damage(&space, *page));
        let tree = Tree::open(space.clone(), OPTIONS).unwrap();
        let (found, lost) = tree.names(Tree::ROOT);
        if found.is_empty() {
            // The first leaf: the search has no beginning.
            beginnings += 1;
            continue;
        }
        fewest = fewest.min(found.len());
        assert_eq!(lost.is_some(), found.len() < names, "{damaged:?}");
        assert!(found.len() >= names - 2 * PAGE_NAMES_MAX, "{damaged:?}: {} of {names} names", found.len());
        assert!(found.windows(2).all(|pair| pair[0].cookie < pair[1].cookie), "{damaged:?}: out of order, or twice");
    }
    assert!(beginnings <= 1, "{beginnings} damages cost all names");
    assert!(fewest < names, "no damage cost a name: this looks at nothing");
    let tree = Tree::open(space, OPTIONS).unwrap();
    let (found, lost) = tree.names(Tree::ROOT);
    assert_eq!((found.len(), lost), (names, None));
}

/// Counts how often it is settled.
struct Counting {
    below: Arc<SimSpace>,
    settles: Mutex<u64>,
}

impl Counting {
    fn over(below: Arc<SimSpace>) -> Arc<Self> {
        Arc::new(Self { below, settles: Mutex::default() })
    }
}

impl ObjectSpace for Counting {
    fn read(&self, file: u64, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.below.read(file, offset, buf)
    }
    fn write(&self, file: u64, offset: u64, data: Bytes) -> Result<()> {
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
