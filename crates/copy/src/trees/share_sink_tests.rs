use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

use share::Options;
use sim::{Rng, SimSpace};

use super::super::{Got, Source, Tally, copy};
use super::*;

const OPTIONS: Options = Options { now: || Time { seconds: 9, nanoseconds: 1 }, cache_bytes: 1 << 20 };
const CALLER: Caller = Caller { uid: 1, gid: 2 };

fn tree() -> (Arc<SimSpace>, Arc<Tree>) {
    let space = SimSpace::new();
    let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
    (space, Arc::new(tree))
}

/// The content of the file with that path, of up to three blocks, in one of two versions.
fn content_of(path: &[u8], version: u64) -> Vec<u8> {
    let seed = path.iter().fold(version, |seed, &byte| seed * 31 + u64::from(byte));
    testkit::noise(seed, (seed % 12_000) as usize + 1)
}

/// A directory with files, each with a second name, a link and a fifo.
struct Files {
    left: VecDeque<Item>,
    content: Vec<u8>,
    version: u64,
}

#[allow(clippy::single_range_in_vec_init, reason = "the one range of data that a file has")]
fn files(count: usize, version: u64) -> Files {
    let item = |path: String, mode| Item { path: path.into(), mode, uid: 5, gid: 6, ..Item::default() };
    let mut left = VecDeque::from([item(String::new(), libc::S_IFDIR | 0o755)]);
    left.push_back(item("d".to_owned(), libc::S_IFDIR | 0o750));
    for number in 0..count {
        let path = format!("d/{number}");
        let size = content_of(path.as_bytes(), version).len() as u64;
        left.push_back(Item { size, data: vec![0..size], ..item(path.clone(), libc::S_IFREG | 0o640) });
        left.push_back(Item { link_to: Some(path.into()), ..item(format!("d/again {number}"), libc::S_IFREG | 0o640) });
    }
    left.push_back(Item { target: b"d/0".to_vec(), ..item("link".to_owned(), libc::S_IFLNK | 0o777) });
    left.push_back(item("fifo".to_owned(), libc::S_IFIFO | 0o600));
    Files { left, content: Vec::new(), version }
}

impl Source for Files {
    fn next(&mut self) -> Step<Option<Item>> {
        let item = self.left.pop_front();
        self.content = item.as_ref().map_or_else(Vec::new, |item| content_of(&item.path, self.version));
        Ok(item)
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Step<Got> {
        out.copy_from_slice(&self.content[usize::try_from(offset).unwrap()..][..out.len()]);
        Ok(Got::All)
    }
}

/// Copies, and makes some of it durable from time to time, as a mount does.
fn import(sink: &mut ShareSink, tree: &Tree, mut source: Files) -> (Tally, bool) {
    let mut tally = Tally::default();
    let done = copy(&mut source, sink, &AtomicBool::new(false), &mut tally, &mut |tally, _| {
        if tally.names().is_multiple_of(5) {
            // Fails once the power is off.
            let _ = tree.commit();
        }
    });
    (tally, done.is_ok())
}

fn read(tree: &Tree, node: u64) -> Vec<u8> {
    let mut content = vec![0; usize::try_from(tree.inode(node).unwrap().size).unwrap()];
    assert_eq!(tree.read(node, 0, &mut content).unwrap(), content.len());
    content
}

fn names(tree: &Tree, directory: u64) -> Vec<(Vec<u8>, u64)> {
    let (names, lost) = tree.names(directory);
    assert!(lost.is_none());
    names
        .into_iter()
        .map(|listed| (listed.name, listed.node))
        .filter(|(name, _)| name != b"." && name != b"..")
        .collect()
}

#[test]
fn a_loss_of_power_during_an_import_leaves_whole_files() {
    let calls = {
        let (space, tree) = tree();
        let before = space.calls();
        assert!(import(&mut ShareSink::new(tree.clone(), false, true), &tree, files(20, 1)).1);
        space.calls() - before
    };
    let mut partial = 0;
    for at in 0..calls {
        // The first import is complete; the second one replaces its files.
        for overwrites in [false, true] {
            let (space, tree) = tree();
            if overwrites {
                assert!(import(&mut ShareSink::new(tree.clone(), false, true), &tree, files(20, 2)).1);
            }
            space.fail_after(at);
            let is_done = import(&mut ShareSink::new(tree.clone(), overwrites, true), &tree, files(20, 1)).1;
            drop(tree);
            let tree = Tree::open(space.after_power_loss(&mut Rng::new(at)), OPTIONS).unwrap();
            assert_eq!(tree.check().unwrap(), Vec::<String>::new());
            let found = tree.lookup(Tree::ROOT, b"d").map_or_else(|_| Vec::new(), |(node, _)| names(&tree, node));
            assert!(!(is_done || overwrites) || found.len() == 40, "{} names", found.len());
            partial += usize::from(!found.is_empty() && found.len() < 40);
            for (name, node) in found {
                let name = String::from_utf8(name).unwrap();
                let first = format!("d/{}", name.trim_start_matches("again "));
                let content = read(&tree, node);
                let is_new = content == content_of(first.as_bytes(), 1);
                assert!(is_new || overwrites && content == content_of(first.as_bytes(), 2), "{name} at {at}");
                let inode = tree.inode(node).unwrap();
                assert_eq!((inode.uid, inode.gid, inode.mode & 0o7777), (5, 6, 0o640), "{name} at {at}");
            }
        }
    }
    assert!(partial > 0, "no cut was in the middle of an import");
}

/// Checks that a node is complete when it is reported, and records the reports.
struct Watcher {
    tree: Arc<Tree>,
    said: Rc<RefCell<Vec<String>>>,
}

impl Others for Watcher {
    fn named(&self, named: Named<'_>) {
        let path = String::from_utf8(named.path.to_vec()).unwrap();
        let (node, inode) = self.tree.lookup(named.directory, named.name).unwrap();
        if inode.is_file() && !path.contains("again") {
            assert_eq!(read(&self.tree, node), content_of(named.path, 1), "{path}");
            assert_eq!((inode.uid, inode.mode & 0o7777), (5, 0o640), "{path}");
        }
        self.said.borrow_mut().push(path + if named.replaced.is_some() { " replaces" } else { "" });
    }

    fn refusal_of_xattr(&self, name: &[u8]) -> Option<i32> {
        (name == b"user.refused").then_some(libc::EOPNOTSUPP)
    }

    fn lost_name(&self, _: u64) -> share::Result<()> {
        self.said.borrow_mut().push("lost".to_owned());
        Ok(())
    }

    fn settle(&self) -> surface::Result<()> {
        self.said.borrow_mut().push("settled".to_owned());
        Ok(())
    }
}

fn watched(tree: &Arc<Tree>, overwrite: bool) -> (ShareSink, Rc<RefCell<Vec<String>>>) {
    let said = Rc::default();
    let watcher = Watcher { tree: tree.clone(), said: Rc::clone(&said) };
    (ShareSink::among(Box::new(watcher), tree.clone(), overwrite, true), said)
}

#[test]
fn others_hear_of_each_name_when_it_is_complete() {
    let (_, tree) = tree();
    let (mut sink, said) = watched(&tree, false);
    let (tally, is_done) = import(&mut sink, &tree, files(1, 1));
    assert!(is_done && tally.problems == 0, "{:?}", tally.lines);
    assert_eq!(*said.borrow(), ["d", "d/0", "d/again 0", "link", "fifo", "settled"]);
    let old = tree.lookup(Tree::ROOT, b"fifo").unwrap().0;
    let (mut sink, said) = watched(&tree, true);
    assert!(import(&mut sink, &tree, files(1, 1)).1);
    let replaced = [
        "d/0 replaces",
        "lost",
        "d/again 0 replaces",
        "lost",
        "link replaces",
        "lost",
        "fifo replaces",
        "lost",
        "settled",
    ];
    assert_eq!(*said.borrow(), replaced);
    // It stays until its last user has forgotten it.
    assert_eq!(tree.inode(old).unwrap().links, 0);
}

#[test]
fn a_directory_takes_the_place_of_a_file() {
    let (_, tree) = tree();
    for name in [&b"d"[..], b".shale-replaced-0"] {
        tree.make(Tree::ROOT, name, CALLER, libc::S_IFREG | 0o600, 0, 0).unwrap();
    }
    let (mut sink, said) = watched(&tree, true);
    assert!(import(&mut sink, &tree, files(0, 1)).1);
    assert_eq!(said.borrow()[..2], ["d replaces", "lost"]);
    let mut found: Vec<_> = names(&tree, Tree::ROOT).into_iter().map(|(name, _)| name).collect();
    found.sort_unstable();
    assert_eq!(found, [&b".shale-replaced-0"[..], b"d", b"fifo", b"link"]);
    assert!(tree.lookup(Tree::ROOT, b"d").unwrap().1.is_directory());
}

#[test]
fn an_interrupted_file_leaves_nothing() {
    let (_, tree) = tree();
    let (mut sink, before) = (ShareSink::new(tree.clone(), false, true), tree.inode_count().unwrap());
    for drops in [false, true] {
        let item = Item { path: b"f".to_vec(), mode: libc::S_IFREG | 0o600, size: 9000, ..Item::default() };
        assert!(matches!(sink.add(&item), Ok(Added::New)));
        assert!(sink.write(0, Bytes::from(vec![7; 9000])).is_ok());
        assert_eq!(tree.lookup(Tree::ROOT, b"f").unwrap_err().errno(), libc::ENOENT);
        assert_eq!(tree.inode_count().unwrap(), before + 1);
        if drops {
            break;
        }
        // The next item.
        assert!(sink.add(&Item { mode: libc::S_IFDIR, ..Item::default() }).is_ok());
        assert_eq!(tree.inode_count().unwrap(), before);
    }
    drop(sink);
    assert_eq!(tree.inode_count().unwrap(), before);
}

/// Nodes of others have higher numbers than the first one of the copy.
#[test]
fn files_that_others_make_meanwhile_are_kept() {
    let (_, tree) = tree();
    let mut sink = ShareSink::new(tree.clone(), false, true);
    let item = |path: &str| Item { path: path.into(), mode: libc::S_IFREG | 0o600, ..Item::default() };
    let mut add = |path| {
        let added = sink.add(&item(path));
        assert!(sink.end(&item(path)).is_ok());
        added.ok()
    };
    assert_eq!(add("first"), Some(Added::New));
    let theirs = tree.make(Tree::ROOT, b"theirs", CALLER, libc::S_IFREG | 0o600, 0, 0).unwrap().0;
    assert_eq!(add("theirs"), Some(Added::Kept));
    // The last of two with one name counts.
    assert_eq!([add("ours"), add("ours"), add("first")], [Some(Added::New); 3]);
    assert_eq!(tree.lookup(Tree::ROOT, b"theirs").unwrap().0, theirs);
}

#[test]
fn attributes_that_others_refuse_are_problems() {
    let (_, tree) = tree();
    let (mut sink, _) = watched(&tree, false);
    let value = |name: &str| (name.as_bytes().to_vec(), b"x".to_vec());
    let xattrs = vec![value("user.refused"), value("user.kept")];
    let item = Item { path: b"f".to_vec(), mode: libc::S_IFIFO | 0o600, xattrs, ..Item::default() };
    assert!(matches!(sink.add(&item), Ok(Added::New)));
    assert!(matches!(sink.end(&item), Err(Stop::Skip(line)) if line.starts_with("f: user.refused cannot be set: ")));
    let node = tree.lookup(Tree::ROOT, b"f").unwrap().0;
    assert_eq!(tree.xattr_names(node).unwrap(), [b"user.kept".to_vec()]);
}
