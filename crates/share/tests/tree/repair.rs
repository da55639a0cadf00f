//! Damaged trees: faults are found and repaired, and everything else is preserved.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use redb::{Builder, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};
use share::{Caller, RECORD_CONTENT_BYTES_MAX, SetAttributes, SetId, Tree};
use sim::{Rng, SimSpace};
use surface::ObjectSpace;

use crate::run::OPTIONS;

pub const CALLER: Caller = Caller { uid: 1000, gid: 100 };
const TABLES: [&str; 3] = ["inode", "entry", "xattr"];
/// Where the database begins in its file (FORMAT.md).
pub const BEGIN: u64 = 128 << 10;

pub type Content = BTreeMap<Vec<u8>, Vec<u8>>;

fn table(name: &'static str) -> TableDefinition<'static, &'static [u8], &'static [u8]> {
    TableDefinition::new(name)
}

/// A closed tree of some directories with files and attributes; returns the content of its files by
/// their paths.
pub fn filled(files: u64) -> (Arc<SimSpace>, Content) {
    filled_with(files, |number| {
        // Longer than contents in records, which go with them.
        let bytes = format!("content {number} ").repeat(60 + number as usize % 400).into_bytes();
        assert!(bytes.len() as u64 > RECORD_CONTENT_BYTES_MAX);
        bytes
    })
}

/// The same with other contents.
fn filled_with(files: u64, content_of: impl Fn(u64) -> Vec<u8>) -> (Arc<SimSpace>, Content) {
    let space = SimSpace::new();
    let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
    let mut content = Content::new();
    let mut directory = (Tree::ROOT, Vec::new());
    for number in 0..files {
        if number % 50 == 0 {
            let name = format!("directory {}", number / 50);
            let parent = if number % 200 == 0 { (Tree::ROOT, Vec::new()) } else { directory };
            let made = tree.make(parent.0, name.as_bytes(), CALLER, libc::S_IFDIR | 0o755, 0, 0).unwrap().0;
            directory = (made, [&parent.1[..], b"/", name.as_bytes()].concat());
        }
        let name = format!("file {number}");
        let node = tree.make(directory.0, name.as_bytes(), CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap().0;
        let bytes = content_of(number);
        tree.write(node, 0, Bytes::from(bytes.clone()), false).unwrap();
        tree.set_xattr(node, b"user.number", name.as_bytes(), 0, false).unwrap();
        content.insert([&directory.1[..], b"/", name.as_bytes()].concat(), bytes);
    }
    tree.close().unwrap();
    (space, content)
}

/// Path, content and size of all files; `None` for a name without a file.
pub fn files_of(tree: &Tree) -> Content {
    let (mut found, mut directories) = (Content::new(), vec![(Tree::ROOT, Vec::new())]);
    while let Some((node, path)) = directories.pop() {
        let mut names = Vec::new();
        tree.list(node, share::COOKIE_DOT_DOT, |listed, inode| {
            names.push((listed, inode));
            true
        })
        .unwrap();
        for (listed, inode) in names {
            let path = [&path[..], b"/", &listed.name].concat();
            // It is found by its name as well.
            assert_eq!(tree.lookup(node, &listed.name).unwrap().0, listed.node, "{}", String::from_utf8_lossy(&path));
            if listed.kind == libc::S_IFDIR {
                directories.push((listed.node, path));
            } else {
                let mut content = vec![0; inode.size as usize];
                tree.read(listed.node, 0, &mut content).unwrap();
                found.insert(path, content);
            }
        }
    }
    found
}

fn with_data(space: &SimSpace) -> BTreeSet<u64> {
    (16..100_000).filter(|file| space.allocated_blocks(*file..file + 1) > 0).collect()
}

/// Surveys, rebuilds if it must be, opens and repairs a tree; returns the remedies.
pub fn mend(space: &Arc<SimSpace>) -> (Tree, Vec<String>, bool) {
    let shared: Arc<dyn ObjectSpace> = space.clone();
    let is_whole = Tree::survey(space.clone()).unwrap().unwrap().is_whole;
    if !is_whole {
        Tree::rebuild(&shared, OPTIONS, [11, 12]).unwrap();
        assert!(Tree::survey(space.clone()).unwrap().unwrap().is_whole, "it is damaged still");
    }
    let tree = Tree::open(shared.clone(), OPTIONS).unwrap_or_else(|_| {
        // The database's internal data is damaged.
        assert!(is_whole);
        Tree::rebuild(&shared, OPTIONS, [11, 12]).unwrap();
        Tree::open(shared, OPTIONS).unwrap()
    });
    let repaired = tree.repair(&with_data(space), true).unwrap();
    assert_eq!(repaired.left, Vec::<String>::new());
    (tree, repaired.mended, is_whole)
}

/// Whether one is the beginning of the other, which ends with a block.
fn is_same(found: &[u8], expected: &[u8]) -> bool {
    found == expected || {
        let mut padded = expected.to_vec();
        padded.resize(expected.len().next_multiple_of(4096), 0);
        found == padded
    }
}

/// The database as `redb` itself sees it.
struct Below(Arc<SimSpace>);

impl std::fmt::Debug for Below {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Below")
    }
}

impl StorageBackend for Below {
    fn len(&self) -> std::io::Result<u64> {
        let mut header = [0; 16];
        self.0.read(1, 0, &mut header).unwrap();
        Ok(u64::from_le_bytes(*header[8..].first_chunk().unwrap()))
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.read(1, BEGIN + offset, out).unwrap();
        Ok(())
    }
    fn set_len(&self, len: u64) -> std::io::Result<()> {
        let header = [&b"SHLTREE1"[..], &len.to_le_bytes(), &[0; 8]].concat();
        self.0.write(1, 0, Bytes::from(header)).unwrap();
        Ok(())
    }
    fn sync_data(&self) -> std::io::Result<()> {
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.0.write(1, BEGIN + offset, Bytes::copy_from_slice(data)).unwrap();
        Ok(())
    }
}

/// Removes the pairs of a table selected by `picks`.
pub fn remove(space: &Arc<SimSpace>, name: &'static str, mut picks: impl FnMut(&[u8], &[u8]) -> bool) -> usize {
    let database = Builder::new().create_with_backend(Below(space.clone())).unwrap();
    let transaction = database.begin_write().unwrap();
    let mut removed = 0;
    {
        let mut table = transaction.open_table(table(name)).unwrap();
        table
            .retain(|key, value| {
                let goes = picks(key, value);
                removed += usize::from(goes);
                !goes
            })
            .unwrap();
    }
    transaction.commit().unwrap();
    removed
}

/// Takes the number of the file that holds the data out of an inode's record.
fn take_data(space: &Arc<SimSpace>, inode: u64) {
    let database = Builder::new().create_with_backend(Below(space.clone())).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let mut inodes = transaction.open_table(table("inode")).unwrap();
        let key = inode.to_be_bytes();
        let mut record = inodes.get(&key[..]).unwrap().unwrap().value().to_vec();
        record[30..38].fill(0);
        inodes.insert(&key[..], &record[..]).unwrap();
    }
    transaction.commit().unwrap();
}

#[test]
fn a_file_without_a_place_for_its_data_keeps_what_its_record_has() {
    let space = SimSpace::new();
    let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
    let make = |name: &[u8], bytes: &'static [u8]| {
        let node = tree.make(Tree::ROOT, name, CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap().0;
        tree.write(node, 0, Bytes::from_static(bytes), false).unwrap();
        node
    };
    let (small, large) = (make(b"small", b"in its record"), make(b"large", &[7; 5000]));
    tree.close().unwrap();
    take_data(&space, small);
    take_data(&space, large);
    let (tree, mended, _) = mend(&space);
    assert!(mended.iter().any(|text| text.starts_with("/small") && text.contains("13 bytes")), "{mended:?}");
    let found = files_of(&tree);
    assert_eq!((&found[&b"/small"[..]][..], &found[&b"/large"[..]][..]), (&b"in its record"[..], &b""[..]));
    // The data of the other becomes a separate file.
    let adopted =
        found.iter().filter(|(path, content)| path.starts_with(b"/lost+found/") && content.starts_with(&[7; 5000]));
    assert_eq!(adopted.count(), 1);
    let node = tree.lookup(Tree::ROOT, b"small").unwrap().0;
    tree.write(node, 13, Bytes::from(vec![b'!'; 1000]), false).unwrap();
    let mut content = vec![0; 1013];
    assert_eq!(tree.read(node, 0, &mut content).unwrap(), 1013);
    assert!(content.starts_with(b"in its record!!!"));
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(*bytes.first_chunk().unwrap())
}

#[test]
fn a_survey_sees_what_redb_sees_and_a_rebuilt_tree_is_the_same() {
    let (space, content) = filled(700);
    let survey = Tree::survey(space.clone()).unwrap().unwrap();
    assert!(survey.is_whole && survey.records > 2100, "{survey:?}");
    let shared: Arc<dyn ObjectSpace> = space.clone();
    // Twice, so that it returns to the first place.
    for _ in 0..2 {
        Tree::rebuild(&shared, OPTIONS, [1, 2]).unwrap();
        let tree = Tree::open(space.clone(), OPTIONS).unwrap();
        assert_eq!(tree.check().unwrap(), Vec::<String>::new());
        assert!(files_of(&tree) == content);
        assert_eq!(tree.repair(&with_data(&space), true).unwrap().mended, Vec::<String>::new());
        tree.close().unwrap();
    }
    let database = Builder::new().create_with_backend(Below(space.clone())).unwrap();
    let transaction = database.begin_read().unwrap();
    for name in TABLES {
        assert!(transaction.open_table(table(name)).unwrap().iter().unwrap().count() >= 700, "{name}");
    }
    assert!(Tree::survey(SimSpace::new()).unwrap().is_none(), "no tree");
}

/// Power goes at each access of a rebuild: the tree is the damaged one, or the new one.
#[test]
fn a_rebuild_that_is_cut_off_can_be_done_again() {
    let (first, content) = filled(120);
    for after in (0..400).step_by(7) {
        let mut rng = Rng::new(after);
        let space = first.after_power_loss(&mut rng);
        space.fail_after(after);
        let shared: Arc<dyn ObjectSpace> = space.clone();
        let is_done = Tree::rebuild(&shared, OPTIONS, [1, 2]).is_ok();
        drop(shared);
        let space = space.after_power_loss(&mut rng);
        let (tree, mended, is_whole) = mend(&space);
        assert!(is_whole && mended.is_empty(), "after {after} accesses: {mended:?}");
        assert!(files_of(&tree) == content, "after {after} accesses");
        if is_done {
            return;
        }
    }
    panic!("it is never done");
}

/// Pages that are lost, one at a time and several together: everything intact is available under
/// its name, or in `lost+found`, and no file has lost a byte or shows another's.
#[test]
fn pages_that_are_lost_take_only_what_was_in_them() {
    let mut lost_names = 0;
    for seed in 0..40 {
        let (space, content) = filled(400);
        let mut rng = Rng::new(seed);
        let mut header = [0; 16];
        space.read(1, 0, &mut header).unwrap();
        let pages = u64::from_le_bytes(*header[8..].first_chunk().unwrap()) / 4096;
        // A page at a time, and a group, as a damaged unit is; at last its beginning as well.
        let count = if seed % 2 == 0 { 1 } else { 32 };
        let first = if seed == 39 { 0 } else { rng.below(pages) };
        let bytes = if seed % 3 == 0 { vec![0; 4096] } else { vec![0x5a; 4096] };
        for page in first..(first + count).min(pages) {
            space.write(1, BEGIN + page * 4096, Bytes::from(bytes.clone())).unwrap();
        }
        let (tree, mended, _) = mend(&space);
        let found = files_of(&tree);
        for (path, expected) in &content {
            let here = found.get(path).is_some_and(|found| is_same(found, expected));
            let moved = || found.iter().any(|(_, found)| is_same(found, expected));
            lost_names += usize::from(!here);
            assert!(here || moved(), "seed {seed}: {} is lost: {mended:?}", String::from_utf8_lossy(path));
        }
        for found in found.values() {
            assert!(
                content.values().any(|content| is_same(found, content)),
                "seed {seed}: bytes that were never written"
            );
        }
        tree.close().unwrap();
        let tree = Tree::open(space, OPTIONS).unwrap();
        assert_eq!(tree.check().unwrap(), Vec::<String>::new(), "seed {seed}");
    }
    assert!(lost_names > 0, "the damage was in no page that is used");
}

#[test]
fn names_inodes_and_counts_that_are_lost_are_mended_and_named() {
    let (space, content) = filled(300);
    // Each tenth name, each tenth inode of a file, and one directory's.
    let names = remove(&space, "entry", |key, value| value.ends_with(b"7") && number(key) != Tree::ROOT);
    let mut directories = 0;
    let inodes = remove(&space, "inode", |key, value| {
        let mode = u32::from_le_bytes(*value[2..].first_chunk().unwrap());
        let is_directory = mode & libc::S_IFMT == libc::S_IFDIR;
        directories += usize::from(is_directory && number(key) != Tree::ROOT);
        is_directory && directories == 2 || !is_directory && number(key) % 10 == 3
    });
    assert!(names > 20 && inodes > 20, "{names} names, {inodes} inodes");
    let before = Tree::open(space.clone(), OPTIONS).unwrap();
    let wrong = before.check().unwrap();
    assert!(wrong.iter().any(|text| text.contains("has no name")), "{wrong:?}");
    assert!(wrong.iter().any(|text| text.starts_with("/directory") && text.contains("does not exist")), "{wrong:?}");
    before.close().unwrap();
    let (tree, mended, _) = mend(&space);
    assert!(mended.iter().any(|text| text.contains("lost+found/#")), "{mended:?}");
    assert!(mended.iter().any(|text| text.contains("it was recreated as a file of root")), "{mended:?}");
    assert!(mended.iter().any(|text| text.contains("a directory of root")), "{mended:?}");
    let found = files_of(&tree);
    for (path, expected) in &content {
        let is_there = found.values().any(|found| is_same(found, expected));
        assert!(is_there, "{} is lost", String::from_utf8_lossy(path));
    }
    assert_eq!(found.len(), content.len());
    // It goes on.
    let node = tree.make(Tree::ROOT, b"new", CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap().0;
    tree.set_attributes(node, &SetAttributes { size: Some(5), ..SetAttributes::default() }).unwrap();
    tree.close().unwrap();
}

#[test]
fn small_files_go_with_their_inodes_and_are_told_by_path() {
    // Each third one is no small file.
    let long = |number: u64| number.is_multiple_of(3);
    let (space, content) = filled_with(300, |number| {
        format!("{number} of many ").repeat(if long(number) { 400 } else { 1 + number as usize % 30 }).into_bytes()
    });
    let (small, large): (Vec<_>, Vec<_>) =
        content.iter().partition(|(_, bytes)| bytes.len() as u64 <= RECORD_CONTENT_BYTES_MAX);
    assert!(small.len() > 100 && large.len() > 90, "{} and {}", small.len(), large.len());
    assert_eq!(with_data(&space).len(), large.len());
    assert!(Tree::without_records(space.clone()).is_empty());
    let names = remove(&space, "entry", |key, value| value.ends_with(b"7") && number(key) != Tree::ROOT);
    let inodes = remove(&space, "inode", |key, value| {
        let mode = u32::from_le_bytes(*value[2..].first_chunk().unwrap());
        mode & libc::S_IFMT == libc::S_IFREG && number(key) % 10 == 3
    });
    assert!(names > 20 && inodes > 20, "{names} names, {inodes} inodes");
    let without: Vec<Vec<u8>> =
        Tree::without_records(space.clone()).into_values().flat_map(|paths| paths.listed().to_vec()).collect();
    assert!(without.len() + names > inodes && without.iter().all(|path| content.contains_key(path)));
    let (tree, mended, _) = mend(&space);
    assert!(Tree::without_records(space.clone()).is_empty());
    let found = files_of(&tree);
    let is_lost = |path: &Vec<u8>| without.contains(path) && content[path].len() as u64 <= RECORD_CONTENT_BYTES_MAX;
    for (path, expected) in &content {
        let told = format!("{}: the name refers to inode", String::from_utf8_lossy(path));
        let told = mended.iter().find(|text| text.starts_with(&told));
        if is_lost(path) {
            assert!(
                told.is_some_and(|text| text.contains("with it an empty file or one of at most 512 bytes")),
                "{told:?}"
            );
            assert!(!found.contains_key(path));
        } else if !path.ends_with(b"7") {
            assert!(is_same(&found[path], expected), "{}", String::from_utf8_lossy(path));
        }
    }
    // Files that have only lost their names are in `lost+found`, small or not.
    let nameless = content.iter().filter(|(path, _)| path.ends_with(b"7"));
    let back = nameless.filter(|(_, expected)| found.values().any(|found| is_same(found, expected))).count();
    assert!(back > 20, "{back} of {names} that have lost their names are there");
    tree.close().unwrap();
    assert_eq!(Tree::open(space, OPTIONS).unwrap().check().unwrap(), Vec::<String>::new());
}

#[test]
fn paths_are_told_of_a_tree_that_is_not_opened() {
    let (space, content) = filled(120);
    let files: BTreeSet<u64> = with_data(&space);
    let paths = Tree::paths_of(space.clone(), &files);
    assert_eq!(paths.len(), content.len());
    for (file, paths) in paths {
        let [path] = paths.listed() else { panic!("{paths}") };
        let mut found = vec![0; content[path].len()];
        space.read(file, 0, &mut found).unwrap();
        assert!(found == content[path], "{}", String::from_utf8_lossy(path));
    }
}

#[test]
fn all_paths_of_a_file_with_several_names_are_told() {
    let space = SimSpace::new();
    let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
    let directory = tree.make(Tree::ROOT, b"d", CALLER, libc::S_IFDIR | 0o755, 0, 0).unwrap().0;
    let node = tree.make(Tree::ROOT, b"a", CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap().0;
    tree.link(node, directory, b"b").unwrap();
    tree.write(node, 0, Bytes::from(vec![1; 5000]), false).unwrap();
    let data = tree.inode(node).unwrap().data_file();
    tree.close().unwrap();
    let told = |paths: &share::Paths| {
        let mut told = paths.listed().to_vec();
        told.sort();
        told
    };
    let expected = [b"/a".to_vec(), b"/d/b".to_vec()];
    assert_eq!(told(&Tree::paths_of(space.clone(), &[data].into())[&data]), expected);
    assert_eq!(remove(&space, "inode", |key, _| number(key) == node), 1);
    assert_eq!(told(&Tree::without_records(space.clone())[&node]), expected);
    assert_eq!(told(&Tree::paths_of_inodes(space.clone(), &[node].into())[&node]), expected);
}

#[test]
fn holes_are_not_counted_as_allocated() {
    let space = SimSpace::new();
    let tree = Tree::create(space, 7, OPTIONS).unwrap();
    let node = tree.make(Tree::ROOT, b"f", CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap().0;
    let blocks = || tree.blocks(&tree.inode(node).unwrap());
    assert_eq!(blocks(), 0);
    tree.write(node, 0, Bytes::from(vec![1; 5000]), false).unwrap();
    assert_eq!(blocks(), 16);
    tree.write(node, 1 << 30, Bytes::from(vec![1; 4096]), false).unwrap();
    assert_eq!(blocks(), 24);
    tree.allocate(node, 0, 4096, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, SetId::Kept).unwrap();
    assert_eq!(blocks(), 16);
    tree.set_attributes(node, &SetAttributes { size: Some(0), ..SetAttributes::default() }).unwrap();
    assert_eq!(blocks(), 0);
    tree.set_attributes(node, &SetAttributes { size: Some(1 << 40), ..SetAttributes::default() }).unwrap();
    assert_eq!(blocks(), 0);
}

/// Bytes past the end of a file, left there by a power loss, never appear, even after a session in
/// between ended cleanly.
#[test]
fn loose_ends_are_remembered_over_an_orderly_end() {
    let space = SimSpace::new();
    let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
    let node = tree.make(Tree::ROOT, b"f", CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap().0;
    tree.write(node, 0, Bytes::from_static(b"kept"), false).unwrap();
    tree.sync().unwrap();
    tree.write(node, 4, Bytes::from(vec![b'x'; 9000]), false).unwrap();
    ObjectSpace::flush(&*space).unwrap();
    let space = space.after_power_loss(&mut Rng::new(1));
    Tree::open(space.clone(), OPTIONS).unwrap().close().unwrap();
    let tree = Tree::open(space, OPTIONS).unwrap();
    tree.set_attributes(node, &SetAttributes { size: Some(8000), ..SetAttributes::default() }).unwrap();
    let mut content = vec![1; 8000];
    tree.read(node, 0, &mut content).unwrap();
    assert!(content[..4] == *b"kept" && content[4..].iter().all(|byte| *byte == 0));
}

/// The space's remaining record of a removed file has no data to recover.
#[test]
fn a_file_that_is_gone_with_its_data_is_not_found_again() {
    const GONE: u64 = 5000;
    let (space, content) = filled(20);
    space.write(GONE, 0, Bytes::from(vec![1; 5000])).unwrap();
    space.discard(GONE, 0..u64::MAX).unwrap();
    // The removal was never finished.
    let space = space.snapshot();
    assert!(space.files().contains(&GONE));
    let tree = Tree::open(space.clone(), OPTIONS).unwrap();
    let repaired = tree.repair(&space.files(), true).unwrap();
    let [mended] = &repaired.mended[..] else { panic!("{repaired:?}") };
    assert!(mended.contains("file 5000 hold no data"), "{mended}");
    assert_eq!((repaired.left, files_of(&tree)), (Vec::new(), content));
    assert!(tree.lookup(Tree::ROOT, b"lost+found").is_err());
    assert!(!space.files().contains(&GONE));
}
