//! Memory that outlives the program: the journal of a mounted tree.
//!
//! A file in memory: without a name if only a keeper holds it, with one if the next program is to
//! find it by itself. All numbers are little-endian.
//!
//! | offset | bytes | what |
//! | --- | --- | --- |
//! | 0 | 8 | magic; written last, so that a file without it never counted |
//! | 8 | 8 | session of the tree |
//! | 16 | 8 | state: [`COUNTS`], [`REPLAYED`] or [`VOID`] |
//! | 24 | 8 | length of the owner, at most [`OWNER_BYTES_MAX`] |
//! | 32 | | owner: whose journal it is, as its maker says |
//! | 4096 | | two halves of records: those of commit N are in half N % 2 |
//!
//! A record is a head, then its bytes, up to a multiple of 32. A head is the commit 8, the length
//! 8, a checksum of all of it 8, zero 8. A head of zeroes ends a half.
//!
//! The program may be killed at any point of a write. So the bytes of a record are there, and
//! zeroes behind them, before its head is, which lies in one page and is written whole. A head of
//! another commit than the half's first, or a checksum that is wrong, is damage: then no record of
//! the journal counts, because records behind it may need it.
//!
//! A record that cannot be written makes the journal void, because those behind it would not count
//! without it. It counts again from the commit on that leaves the missing one behind.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, MemfdFlags};
use share::{JOURNAL_BYTES_MAX, Journal, Left, journal_sum};

const MAGIC: [u8; 8] = *b"SHLJRNL2";
const HEADER_BYTES: u64 = 4096;
const HEAD_BYTES: usize = 32;
const STATE_OFFSET: u64 = 16;
const OWNER_OFFSET: usize = 32;

/// What says whose a journal is has so many bytes at most: they fit the header's page many times.
pub(crate) const OWNER_BYTES_MAX: usize = 256;

/// States.
const COUNTS: u64 = 0;
const REPLAYED: u64 = 1;
const VOID: u64 = 2;

/// What a half holds: the records of a commit, and what surrounds each, at most as much again as
/// the smallest record.
const HALF_BYTES: u64 = 2 * JOURNAL_BYTES_MAX as u64;

/// A half that took more gives its memory back when the next commit comes.
const KEPT_BYTES_MAX: u64 = 1 << 20;

/// Where the journal of a mount is made, so that the next program finds it.
pub trait JournalPlace: Send + Sync + fmt::Debug {
    /// A new, empty file, in place of one that is there.
    ///
    /// # Errors
    /// When there is no room.
    fn make(&self) -> io::Result<File>;

    /// What says of a journal that it is one of this mount; at most 256 bytes.
    fn owner(&self) -> Vec<u8>;

    /// All that is in the file is durable: it goes.
    fn remove(&self, file: &File);
}

/// How a journal is written.
#[derive(Default)]
struct State {
    /// Of each half, the commit that it is of and how far it is written.
    halves: [Option<(u64, u64)>; 2],
    /// The last commit of which a record is missing, if nothing counts for that.
    missing: Option<u64>,
}

/// A journal that is written.
pub(crate) struct KeptJournal {
    memory: File,
    place: Option<Arc<dyn JournalPlace>>,
    state: Mutex<State>,
}

fn begin(commit: u64) -> u64 {
    HEADER_BYTES + commit % 2 * HALF_BYTES
}

impl KeptJournal {
    /// An empty journal of a session, in a file of that place or in one without a name.
    pub(crate) fn new(session: u64, place: Option<Arc<dyn JournalPlace>>) -> io::Result<Self> {
        let memory = match &place {
            Some(place) => place.make()?,
            None => File::from(rustix::fs::memfd_create("shale-journal", MemfdFlags::CLOEXEC)?),
        };
        let owner = place.as_ref().map_or_else(Vec::new, |place| place.owner());
        if owner.len() > OWNER_BYTES_MAX {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        memory.set_len(HEADER_BYTES + 2 * HALF_BYTES)?;
        let numbers = [session, COUNTS, owner.len() as u64].map(u64::to_le_bytes).concat();
        memory.write_all_at(&[numbers, owner].concat(), MAGIC.len() as u64)?;
        memory.write_all_at(&MAGIC, 0)?;
        Ok(Self { memory, place, state: Mutex::default() })
    }

    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// All that it has is durable.
    pub(crate) fn end(&self) {
        if let Some(place) = &self.place {
            place.remove(&self.memory);
        }
    }

    /// Whether what it has would be replayed.
    pub(crate) fn counts(&self) -> bool {
        self.state.lock().missing.is_none()
    }

    fn try_keep(&self, half: &mut Option<(u64, u64)>, commit: u64, record: &[u8]) -> io::Result<()> {
        let used = match *half {
            Some((of, used)) if of == commit => used,
            before => {
                // The half has records of a commit that nothing needs any more.
                self.memory.write_all_at(&[0; HEAD_BYTES], begin(commit))?;
                let held = before.map_or(0, |(_, used)| used);
                if held > KEPT_BYTES_MAX {
                    // It is asked for memory, and nothing else depends on it.
                    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    let _ = rustix::fs::fallocate(&self.memory, punch, begin(commit), held);
                }
                0
            }
        };
        *half = Some((commit, used));
        let length = (HEAD_BYTES + record.len()).next_multiple_of(HEAD_BYTES);
        if used + (length + HEAD_BYTES) as u64 > HALF_BYTES {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let at = begin(commit) + used;
        let mut behind = record.to_vec();
        behind.resize(length, 0);
        self.memory.write_all_at(&behind, at + HEAD_BYTES as u64)?;
        self.memory.write_all_at(&head(commit, record), at)?;
        *half = Some((commit, used + length as u64));
        Ok(())
    }

    fn set_state(&self, state: u64) {
        if let Err(error) = set_state(&self.memory, state) {
            log::error!("the journal of a share's names cannot be written: {error}");
        }
    }
}

fn head(commit: u64, record: &[u8]) -> Vec<u8> {
    [commit, record.len() as u64, journal_sum(commit, record), 0].map(u64::to_le_bytes).concat()
}

fn set_state(memory: &File, state: u64) -> io::Result<()> {
    memory.write_all_at(&state.to_le_bytes(), STATE_OFFSET)
}

impl Journal for KeptJournal {
    fn keep(&self, commit: u64, record: &[u8]) {
        let state = &mut *self.state.lock();
        match self.try_keep(&mut state.halves[(commit % 2) as usize], commit, record) {
            Ok(()) if state.missing.is_some_and(|missing| missing + 2 <= commit) => {
                state.missing = None;
                self.set_state(COUNTS);
                log::info!("the journal of a share's names is whole again");
            }
            Ok(()) => {}
            Err(error) => {
                if state.missing.is_none() {
                    self.set_state(VOID);
                    log::error!(
                        "the death of this program would lose names of a share that were not synced, until there is room for \
                         the journal again: {error}"
                    );
                }
                state.missing = Some(commit);
            }
        }
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// What a journal says of itself.
struct Header {
    session: u64,
    state: u64,
    owner: Vec<u8>,
}

/// `None`: its maker died before it counted.
fn header(memory: &File) -> io::Result<Option<Header>> {
    let mut bytes = [0; OWNER_OFFSET + OWNER_BYTES_MAX];
    if memory.metadata()?.len() < HEADER_BYTES + 2 * HALF_BYTES {
        return Ok(None);
    }
    memory.read_exact_at(&mut bytes, 0)?;
    let owner_bytes = number(&bytes[24..]);
    if bytes[..8] == [0; 8] {
        return Ok(None);
    }
    if bytes[..8] != MAGIC || owner_bytes > OWNER_BYTES_MAX as u64 {
        return Err(damaged("it is no journal that this program knows"));
    }
    let owner = bytes[OWNER_OFFSET..OWNER_OFFSET + owner_bytes as usize].to_vec();
    Ok(Some(Header { session: number(&bytes[8..]), state: number(&bytes[16..]), owner }))
}

/// What a journal is found to be.
#[derive(Debug)]
pub enum Found {
    /// Nothing was ever in it.
    Nothing,
    /// It is of something else.
    Foreign {
        /// What it says of that.
        owner: Vec<u8>,
    },
    /// What it has.
    Left(Left),
}

/// Reads a journal from its file, if it is of that owner.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] if it does not count, because it is damaged or had no room.
pub fn find(file: &File, owner: &[u8]) -> io::Result<Found> {
    match header(file)? {
        None => Ok(Found::Nothing),
        Some(header) if header.owner != owner => Ok(Found::Foreign { owner: header.owner }),
        Some(header) => records(file, &header).map(Found::Left),
    }
}

/// Says of a journal that the tree has its changes, durably.
///
/// # Errors
/// When it cannot be written.
pub fn mark_replayed(file: &File) -> io::Result<()> {
    set_state(file, REPLAYED)
}

/// What a journal has.
pub(crate) fn left(memory: &File) -> io::Result<Left> {
    records(memory, &header(memory)?.ok_or_else(|| damaged("it was never finished"))?)
}

fn records(memory: &File, header: &Header) -> io::Result<Left> {
    if header.state == VOID {
        return Err(damaged("there was no room for all of it"));
    }
    let mut records = Vec::new();
    for half in 0..2 {
        let (mut at, mut of) = (0, None);
        while at + HEAD_BYTES as u64 <= HALF_BYTES {
            let mut head = [0; HEAD_BYTES];
            memory.read_exact_at(&mut head, begin(half) + at)?;
            if head == [0; HEAD_BYTES] {
                break;
            }
            let (commit, length) = (number(&head), number(&head[8..]));
            // The first one says of which commit the half is.
            if *of.get_or_insert(commit) != commit || length > HALF_BYTES - at - HEAD_BYTES as u64 {
                return Err(damaged("a record of it is damaged"));
            }
            let mut record = vec![0; length as usize];
            memory.read_exact_at(&mut record, begin(half) + at + HEAD_BYTES as u64)?;
            if number(&head[16..]) != journal_sum(commit, &record) {
                return Err(damaged("a record of it is damaged"));
            }
            records.push((commit, record));
            at += (HEAD_BYTES as u64 + length).next_multiple_of(HEAD_BYTES as u64);
        }
    }
    Ok(Left { session: header.session, is_replayed: header.state == REPLAYED, records })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(session: u64) -> KeptJournal {
        KeptJournal::new(session, None).unwrap()
    }

    fn commits(journal: &KeptJournal) -> Vec<u64> {
        left(&journal.memory).unwrap().records.iter().map(|(of, _)| *of).collect()
    }

    #[test]
    fn records_of_two_commits_are_kept_and_older_ones_go() {
        let journal = journal(7);
        journal.keep(4, b"four");
        journal.keep(5, &[5; 40]);
        journal.keep(5, b"0123456789abcdef");
        journal.keep(4, b"more");
        let left_now = left(&journal.memory).unwrap();
        assert_eq!(left_now.session, 7);
        let four: Vec<&[u8]> =
            left_now.records.iter().filter(|(of, _)| *of == 4).map(|(_, bytes)| &bytes[..]).collect();
        assert_eq!((four, left_now.records.len()), (vec![&b"four"[..], b"more"], 4));
        journal.keep(6, b"six");
        assert_eq!(commits(&journal), [6, 5, 5]);
    }

    /// The program is killed between any two writes: the record that it was about to keep is there
    /// whole or not at all.
    #[test]
    fn a_record_that_was_not_finished_is_not_there() {
        let kept = journal(1);
        kept.keep(2, b"kept");
        // The bytes are there, the head is not.
        kept.memory.write_all_at(b"torn", begin(2) + 96).unwrap();
        assert_eq!(left(&kept.memory).unwrap().records, [(2, b"kept".to_vec())]);
        // An older commit's record stood behind.
        let kept = journal(1);
        kept.keep(2, &[1; 100]);
        kept.keep(2, b"old");
        kept.keep(4, b"new");
        assert_eq!(left(&kept.memory).unwrap().records, [(4, b"new".to_vec())]);
    }

    #[test]
    fn a_journal_that_is_damaged_counts_as_a_whole_or_not_at_all() {
        let kept = journal(1);
        kept.keep(2, b"first");
        kept.keep(2, b"second");
        for at in [begin(2), begin(2) + 8, begin(2) + 32, begin(2) + 64, begin(2) + 100] {
            let mut byte = [0];
            kept.memory.read_exact_at(&mut byte, at).unwrap();
            kept.memory.write_all_at(&[byte[0] ^ 1], at).unwrap();
            assert_eq!(left(&kept.memory).unwrap_err().kind(), io::ErrorKind::InvalidData, "byte {at}");
            kept.memory.write_all_at(&byte, at).unwrap();
        }
        assert_eq!(commits(&kept), [2, 2]);
        kept.memory.write_all_at(b"SHLJRNL1", 0).unwrap();
        assert!(left(&kept.memory).is_err(), "of another program");
        kept.memory.write_all_at(&[0; 8], 0).unwrap();
        assert!(matches!(find(&kept.memory, b"").unwrap(), Found::Nothing), "never finished");
        kept.memory.set_len(100).unwrap();
        assert!(matches!(find(&kept.memory, b"").unwrap(), Found::Nothing), "cut");
    }

    /// What a record that found no room leaves out, a later one may need.
    #[test]
    fn a_journal_without_room_is_void_until_the_commit_is_left_behind() {
        let kept = journal(1);
        kept.keep(2, b"kept");
        kept.keep(3, &vec![3; HALF_BYTES as usize]);
        kept.keep(3, b"behind it");
        assert!(!kept.counts() && left(&kept.memory).is_err());
        kept.keep(4, b"may need it");
        assert!(!kept.counts() && left(&kept.memory).is_err());
        kept.keep(5, b"does not need it");
        assert!(kept.counts());
        assert_eq!(commits(&kept), [4, 5]);
    }

    #[test]
    fn a_journal_is_of_its_owner_and_says_that_it_was_replayed() {
        #[derive(Debug)]
        struct Place;
        impl JournalPlace for Place {
            fn make(&self) -> io::Result<File> {
                Ok(File::from(rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC)?))
            }
            fn owner(&self) -> Vec<u8> {
                b"pool and share".to_vec()
            }
            fn remove(&self, _: &File) {}
        }
        let kept = KeptJournal::new(9, Some(Arc::new(Place))).unwrap();
        kept.keep(1, b"one");
        let is_replayed = |owner: &[u8]| match find(&kept.memory, owner).unwrap() {
            Found::Left(left) => Some((left.session, left.is_replayed, left.records.len())),
            Found::Foreign { owner } => {
                assert_eq!(owner, b"pool and share");
                None
            }
            Found::Nothing => panic!("it has a record"),
        };
        assert_eq!(is_replayed(b"pool and share"), Some((9, false, 1)));
        assert_eq!(is_replayed(b"another pool"), None);
        mark_replayed(&kept.memory).unwrap();
        assert_eq!(is_replayed(b"pool and share"), Some((9, true, 1)));
    }

    #[test]
    fn a_half_gives_memory_back() {
        use std::os::unix::fs::MetadataExt;
        let kept = journal(1);
        kept.keep(2, &vec![2; 8 << 20]);
        let blocks = || kept.memory.metadata().unwrap().blocks() * 512;
        assert!(blocks() > 8 << 20);
        kept.keep(4, b"small");
        assert!(blocks() < 1 << 20);
        assert_eq!(commits(&kept), [4]);
    }
}
