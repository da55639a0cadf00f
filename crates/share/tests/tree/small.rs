//! Small files, whose content is in their inode records.

use std::sync::{Arc, Barrier};
use std::thread;

use bytes::Bytes;
use parking_lot::Mutex;
use share::{Caller, Journal, Left, RECORD_CONTENT_BYTES_MAX, SetAttributes, SetId, Tree};
use sim::{Rng, SimSpace};
use surface::Allocation;

use crate::run::OPTIONS;

const CALLER: Caller = Caller { uid: 1000, gid: 100 };
const MAX: usize = RECORD_CONTENT_BYTES_MAX as usize;

fn tree() -> (Arc<SimSpace>, Tree) {
    let space = SimSpace::new();
    let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
    (space, tree)
}

fn file(tree: &Tree, name: &[u8]) -> u64 {
    tree.make(Tree::ROOT, name, CALLER, libc::S_IFREG | 0o644, 0, 0).unwrap().0
}

fn write(tree: &Tree, node: u64, offset: u64, bytes: &[u8]) {
    tree.write(node, offset, Bytes::copy_from_slice(bytes), false).unwrap();
}

fn size(tree: &Tree, node: u64, size: u64) {
    tree.set_attributes(node, &SetAttributes { size: Some(size), ..SetAttributes::default() }).unwrap();
}

fn content(tree: &Tree, node: u64) -> Vec<u8> {
    let mut content = vec![0; tree.inode(node).unwrap().size as usize];
    assert_eq!(tree.read(node, 0, &mut content).unwrap(), content.len());
    content
}

fn is_in_record(tree: &Tree, node: u64) -> bool {
    tree.inode(node).unwrap().content().is_some()
}

fn blocks(space: &SimSpace, tree: &Tree, node: u64) -> u64 {
    let data = tree.inode(node).unwrap().data_file();
    space.allocated_blocks(data..data + 1) as u64
}

#[test]
fn a_file_takes_a_block_when_it_is_longer_than_a_record_holds() {
    let (space, tree) = tree();
    let node = file(&tree, b"f");
    write(&tree, node, 0, &[b'a'; MAX]);
    assert!(is_in_record(&tree, node));
    assert_eq!((blocks(&space, &tree, node), tree.blocks(&tree.inode(node).unwrap())), (0, 1));
    write(&tree, node, MAX as u64, b"b");
    assert!(!is_in_record(&tree, node));
    let whole = [&[b'a'; MAX][..], b"b"].concat();
    assert_eq!((blocks(&space, &tree, node), content(&tree, node)), (1, whole.clone()));
    // Cut, it stays in its blocks.
    size(&tree, node, 3);
    assert!(!is_in_record(&tree, node));
    write(&tree, node, 5, b"c");
    assert_eq!(content(&tree, node), b"aaa\0\0c");
    tree.close().unwrap();
    let tree = Tree::open(space.clone(), OPTIONS).unwrap();
    assert_eq!((is_in_record(&tree, node), content(&tree, node)), (false, b"aaa\0\0c".to_vec()));
    // Emptied, it starts over.
    size(&tree, node, 0);
    write(&tree, node, 2, b"d");
    assert!(is_in_record(&tree, node));
    assert_eq!(content(&tree, node), b"\0\0d");
    tree.commit().unwrap();
    assert_eq!((space.allocated_blocks(node..node + 1), blocks(&space, &tree, node)), (0, 0));
    size(&tree, node, 9000);
    let mut grown = b"\0\0d".to_vec();
    grown.resize(9000, 0);
    assert_eq!((is_in_record(&tree, node), content(&tree, node)), (false, grown));
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
}

#[test]
fn what_was_synced_is_there_after_a_loss_of_power_and_in_snapshots() {
    let (space, tree) = tree();
    let node = file(&tree, b"f");
    write(&tree, node, 0, b"one");
    tree.sync().unwrap();
    let snapshot = Tree::open(tree.snapshot(|| space.snapshot()).unwrap(), OPTIONS).unwrap();
    write(&tree, node, 1, b"wo, not synced");
    for seed in 0..20 {
        let opened = Tree::open(space.after_power_loss(&mut Rng::new(seed)), OPTIONS).unwrap();
        assert_eq!(content(&opened, node), b"one");
    }
    tree.sync().unwrap();
    // Moved to blocks, which arrive, while the record does not.
    write(&tree, node, 3, &[b'x'; 2000]);
    surface::ObjectSpace::flush(&*space).unwrap();
    for seed in 0..20 {
        let opened = Tree::open(space.after_power_loss(&mut Rng::new(seed)), OPTIONS).unwrap();
        assert_eq!(content(&opened, node), b"owo, not synced");
        size(&opened, node, 4000);
        let mut grown = b"owo, not synced".to_vec();
        grown.resize(4000, 0);
        assert_eq!(content(&opened, node), grown, "what was lost shows behind the end");
    }
    tree.sync().unwrap();
    for seed in 0..20 {
        let opened = Tree::open(space.after_power_loss(&mut Rng::new(seed)), OPTIONS).unwrap();
        assert_eq!(content(&opened, node), content(&tree, node));
    }
    assert_eq!(content(&snapshot, node), b"one");
}

/// Records of changes, as a program leaves them.
#[derive(Default)]
struct Kept(Mutex<Vec<(u64, Vec<u8>)>>);

impl Journal for Kept {
    fn keep(&self, commit: u64, record: &[u8]) {
        self.0.lock().push((commit, record.to_vec()));
    }
}

#[test]
fn the_death_of_the_program_takes_nothing_that_was_acknowledged() {
    let (space, tree) = tree();
    let kept = Arc::new(Kept::default());
    tree.keep_journal(kept.clone());
    let nodes: Vec<_> = [&b"short"[..], b"long", b"emptied"].iter().map(|name| file(&tree, name)).collect();
    write(&tree, nodes[0], 0, b"in its record");
    write(&tree, nodes[1], 0, b"moved");
    write(&tree, nodes[1], 600, b"out");
    write(&tree, nodes[2], 0, &[b'o'; 5000]);
    size(&tree, nodes[2], 0);
    write(&tree, nodes[2], 1, b"new");
    let expected: Vec<_> = nodes.iter().map(|&node| content(&tree, node)).collect();
    let session = tree.session();
    drop(tree);
    let records = kept.0.lock().clone();
    let left = Left { session, is_replayed: false, records };
    let tree = Tree::take_over(space, OPTIONS, &left).unwrap();
    let found: Vec<_> = nodes.iter().map(|&node| content(&tree, node)).collect();
    assert_eq!(found, expected);
    assert_eq!(nodes.iter().map(|&node| is_in_record(&tree, node)).collect::<Vec<_>>(), [true, false, true]);
}

/// Otherwise a program that dies between the two changes of a new file leaves it empty, and each
/// file costs a record more.
#[test]
fn the_first_write_of_a_file_is_one_change() {
    let (space, tree) = tree();
    let kept = Arc::new(Kept::default());
    tree.keep_journal(kept.clone());
    let node = file(&tree, b"f");
    write(&tree, node, 5000, &[b'a'; 3000]);
    let records = kept.0.lock().clone();
    assert_eq!(records.len(), 2);
    let mut expected = vec![0; 8000];
    expected[5000..].fill(b'a');
    assert_eq!((is_in_record(&tree, node), content(&tree, node)), (false, expected.clone()));
    let session = tree.session();
    drop(tree);
    for kept in [1, 2] {
        let left = Left { session, is_replayed: false, records: records[..kept].to_vec() };
        let tree = Tree::take_over(space.snapshot(), OPTIONS, &left).unwrap();
        assert_eq!(content(&tree, node), if kept == 1 { Vec::new() } else { expected.clone() });
        size(&tree, node, 6000);
        let cut_or_grown = if kept == 1 { vec![0; 6000] } else { expected[..6000].to_vec() };
        assert_eq!(content(&tree, node), cut_or_grown, "bytes without a record are shown");
        assert_eq!(tree.check().unwrap(), Vec::<String>::new());
    }
}

/// The data of a refused write stays out of the file when it grows.
#[test]
fn a_first_write_that_finds_no_room_leaves_an_empty_file() {
    let (space, tree) = tree();
    let node = file(&tree, b"f");
    space.limit(1, 100, u64::MAX);
    let refused = tree.write(node, 0, Bytes::from(vec![b'a'; 8192]), false);
    assert_eq!(refused.unwrap_err().errno(), libc::ENOSPC);
    assert_eq!((is_in_record(&tree, node), content(&tree, node)), (true, Vec::new()));
    space.lift_limit();
    write(&tree, node, 9000, b"b");
    let mut expected = vec![0; 9001];
    expected[9000] = b'b';
    assert_eq!(content(&tree, node), expected);
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
}

/// Some find an empty content, others one in the record, others blocks.
#[test]
fn first_writes_of_several_threads_are_all_there() {
    let (_, tree) = tree();
    let pieces = [(0, 100), (300, 200), (500, 3000), (9000, 5000)];
    for round in 0..200 {
        let node = file(&tree, format!("f{round}").as_bytes());
        let start = Barrier::new(pieces.len());
        thread::scope(|scope| {
            for (number, (offset, length)) in pieces.into_iter().enumerate() {
                let (tree, start) = (&tree, &start);
                scope.spawn(move || {
                    start.wait();
                    write(tree, node, offset, &vec![number as u8 + 1; length]);
                });
            }
        });
        let mut expected = vec![0; 14_000];
        for (number, (offset, length)) in pieces.into_iter().enumerate() {
            expected[offset as usize..][..length].fill(number as u8 + 1);
        }
        assert!(content(&tree, node) == expected, "round {round}");
    }
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
}

#[test]
fn holes_are_zeroes_in_a_record() {
    let (space, tree) = tree();
    let node = file(&tree, b"f");
    write(&tree, node, 100, &[b'a'; 100]);
    assert_eq!(tree.seek(node, 0, Allocation::Data).unwrap(), 0);
    assert_eq!(tree.seek(node, 7, Allocation::Hole).unwrap(), 200);
    assert_eq!(tree.seek(node, 200, Allocation::Data).unwrap_err().errno(), libc::ENXIO);
    let mut expected = vec![0; 200];
    expected[100..].fill(b'a');
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    tree.allocate(node, 150, 10_000, punch, SetId::Kept).unwrap();
    expected[150..].fill(0);
    assert_eq!(content(&tree, node), expected);
    tree.allocate(node, 300, 100, libc::FALLOC_FL_ZERO_RANGE, SetId::Kept).unwrap();
    expected.resize(400, 0);
    assert_eq!(content(&tree, node), expected);
    assert!(is_in_record(&tree, node));
    tree.allocate(node, 0, 5000, 0, SetId::Kept).unwrap();
    expected.resize(5000, 0);
    assert_eq!((is_in_record(&tree, node), content(&tree, node)), (false, expected.clone()));
    // A copy within the share is in a record again, or not, by its own length.
    let copy = file(&tree, b"copy");
    assert_eq!(tree.copy_range((node, 100), (copy, 0), 200, SetId::Kept).unwrap(), 200);
    assert!(is_in_record(&tree, copy));
    assert_eq!(content(&tree, copy), &expected[100..300]);
    assert_eq!(blocks(&space, &tree, copy), 0);
    let usage = String::from_utf8(tree.xattr(copy, b"user.shale.usage").unwrap()).unwrap();
    assert_eq!(usage, "files=1 size=200 data=200 stored=200");
}
