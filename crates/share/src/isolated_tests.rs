use std::thread::JoinHandle;

use sim::SimSpace;

use super::*;
use crate::inode::Time;
use crate::tree::{Caller, Options, Tree};

const OPTIONS: Options = Options { now: || Time { seconds: 9, nanoseconds: 1 }, cache_bytes: 1 << 20 };

/// A thread in place of the process.
struct Joined(Option<JoinHandle<io::Result<()>>>);

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}

fn start() -> io::Result<NamesReader> {
    let (socket, theirs) = UnixStream::pair()?;
    let process = Box::new(Joined(Some(std::thread::spawn(move || read_foreign_names(theirs)))));
    Ok(NamesReader { socket, process })
}

/// Ends after some pairs, and in a message.
fn start_that_ends() -> io::Result<NamesReader> {
    let (socket, theirs) = UnixStream::pair()?;
    let ends = move || {
        let mut input = &theirs;
        assert_eq!(read_u8(&mut input)?, READ_ALL);
        let mut output = &theirs;
        output.write_all(&[PAIR, Table::Inodes as u8])?;
        write_bytes(&mut output, &1_u64.to_be_bytes())?;
        write_u64(&mut output, &[1 << 10])
    };
    Ok(NamesReader { socket, process: Box::new(Joined(Some(std::thread::spawn(ends)))) })
}

#[derive(Default, PartialEq, Debug)]
struct Everything {
    pairs: Vec<(u8, Vec<u8>, Vec<u8>)>,
    facts: Vec<(String, u64)>,
}

impl Take for Everything {
    type Error = io::Error;

    fn pair(&mut self, table: Table, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.pairs.push((table as u8, key.to_vec(), value.to_vec()));
        Ok(())
    }

    fn fact(&mut self, name: &str, value: u64) {
        self.facts.push((name.to_owned(), value));
    }
}

fn filled() -> Arc<dyn ObjectSpace> {
    let space = SimSpace::new();
    let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
    for number in 0..3000 {
        let name = format!("file {number}");
        let made = tree.make(Tree::ROOT, name.as_bytes(), Caller { uid: 0, gid: 0 }, libc::S_IFREG | 0o644, 0, 0);
        tree.set_xattr(made.unwrap().0, b"user.number", name.as_bytes(), 0, false).unwrap();
    }
    tree.close().unwrap();
    space
}

#[test]
fn a_process_finds_what_the_same_reading_finds_in_place() {
    let space = filled();
    let damaged = [None, Some(4096 * 40), Some(4096 * 90)].map(|at| {
        if let Some(at) = at {
            space.write(ROOT, DatabaseFile::First.begin() + at, Bytes::from(vec![0; 1 << 15])).unwrap();
        }
        let (mut here, mut there) = (Everything::default(), Everything::default());
        let in_place = reading::read_here(&space, &mut here).unwrap();
        assert_eq!(read(start, &space, &mut there).unwrap(), in_place);
        assert_eq!(there, here);
        assert!(!here.pairs.is_empty() && !here.facts.is_empty());
        in_place.is_lossy()
    });
    assert_eq!(damaged, [false, true, true]);
    assert_eq!(locate(start, &*space), reading::located_here(&space));
    // The header is lost.
    space.write(ROOT, 0, Bytes::from(vec![0; 4096])).unwrap();
    assert_eq!(locate(start, &*space), Some((DatabaseFile::First, None)));
}

#[test]
fn a_process_that_ends_early_is_an_error_and_no_end_of_the_names() {
    let space = filled();
    let mut found = Everything::default();
    let survey = read(start_that_ends, &space, &mut found).unwrap();
    assert!(survey.was_ended && survey.is_lossy() && survey.loses_names() && !survey.is_whole());
    assert_eq!(found, Everything::default());
}

#[test]
fn impossible_messages_are_refused() {
    let message = |kind: &[u8], numbers: &[u64]| {
        let mut bytes = kind.to_vec();
        write_u64(&mut bytes, numbers).unwrap();
        Message::receive(&mut &bytes[..]).err().map(|error| error.kind())
    };
    let page = PAGE_BYTES_MAX as u64;
    assert_eq!(message(&[READ], &[ROOT, 4096, page]), None);
    let refused = Some(io::ErrorKind::InvalidData);
    assert_eq!(message(&[READ], &[ROOT, 4096, page + 1]), refused);
    assert_eq!(message(&[READ], &[SECOND + 1, 4096, page]), refused);
    assert_eq!(message(&[READ], &[ROOT, u64::MAX, 1]), refused);
    assert_eq!(message(&[PAIR, 5], &[0, 0]), refused);
    assert_eq!(message(&[PAIR, 0], &[page + 1]), refused);
    assert_eq!(message(&[FACT, 9], &[0]), refused);
    assert_eq!(message(&[SURVEY], &[0, 0, 0, 0, 0, GAPS_MAX + 1]), refused);
    assert_eq!(message(&[9], &[]), refused);
}
