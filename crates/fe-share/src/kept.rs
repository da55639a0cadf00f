//! Memory that outlives the program: the journal of a tree whose mount a keeper holds.
//!
//! A file without a name, in memory. Header: magic 8, session of the tree 8. Then two halves;
//! records of commit N are in half N % 2. A record is its commit 8, its length 8, its bytes, up to
//! a multiple of 16. All numbers are little-endian.
//!
//! The program may be killed at any point of a write. So the bytes of a record are there, and
//! zeroes behind them, before its head is, whose 16 bytes lie in one page and are written whole.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;
use rustix::fs::MemfdFlags;
use share::{JOURNAL_BYTES_MAX, Journal, Left};

const MAGIC: [u8; 8] = *b"SHLJRNL1";
const HEADER_BYTES: u64 = 4096;
const HEAD_BYTES: usize = 16;

/// What a half holds: the records of a commit, and what surrounds each, at most half as much again
/// as the smallest record.
const HALF_BYTES: u64 = 2 * JOURNAL_BYTES_MAX as u64;

/// A journal that is written.
pub(crate) struct KeptJournal {
    memory: File,
    /// Of each half, the commit that it is of and how far it is written.
    halves: Mutex<[(u64, u64); 2]>,
}

fn begin(commit: u64) -> u64 {
    HEADER_BYTES + commit % 2 * HALF_BYTES
}

impl KeptJournal {
    /// An empty journal of a session.
    pub(crate) fn new(session: u64) -> io::Result<Self> {
        let memory = File::from(rustix::fs::memfd_create("shale-journal", MemfdFlags::CLOEXEC)?);
        memory.set_len(HEADER_BYTES + 2 * HALF_BYTES)?;
        memory.write_all_at(&[MAGIC, session.to_le_bytes()].concat(), 0)?;
        Ok(Self { memory, halves: Mutex::new([(u64::MAX, 0); 2]) })
    }

    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    fn try_keep(&self, commit: u64, record: &[u8]) -> io::Result<()> {
        let mut halves = self.halves.lock();
        let half = &mut halves[(commit % 2) as usize];
        if half.0 != commit {
            // The half has records of a commit that nothing needs any more.
            self.memory.write_all_at(&[0; HEAD_BYTES], begin(commit))?;
            *half = (commit, 0);
        }
        let length = (HEAD_BYTES + record.len()).next_multiple_of(HEAD_BYTES);
        if half.1 + (length + HEAD_BYTES) as u64 > HALF_BYTES {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let at = begin(commit) + half.1;
        let mut behind = record.to_vec();
        behind.resize(length, 0);
        self.memory.write_all_at(&behind, at + HEAD_BYTES as u64)?;
        self.memory.write_all_at(&[commit.to_le_bytes(), (record.len() as u64).to_le_bytes()].concat(), at)?;
        half.1 += length as u64;
        Ok(())
    }
}

impl Journal for KeptJournal {
    fn keep(&self, commit: u64, record: &[u8]) {
        if let Err(error) = self.try_keep(commit, record) {
            log::error!("a change of a share would not outlive this program: its journal in memory fails: {error}");
        }
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// What a journal has.
pub(crate) fn left(memory: &File) -> io::Result<Left> {
    let mut header = [0; 16];
    memory.read_exact_at(&mut header, 0)?;
    if header[..8] != MAGIC {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let mut records = Vec::new();
    for half in 0..2 {
        let (mut at, mut of) = (0, None);
        while at + HEAD_BYTES as u64 <= HALF_BYTES {
            let mut head = [0; HEAD_BYTES];
            memory.read_exact_at(&mut head, begin(half) + at)?;
            let (commit, length) = (number(&head), number(&head[8..]));
            // The first one says of which commit the half is.
            if length == 0 || length > HALF_BYTES - at - HEAD_BYTES as u64 || *of.get_or_insert(commit) != commit {
                break;
            }
            let mut record = vec![0; length as usize];
            memory.read_exact_at(&mut record, begin(half) + at + HEAD_BYTES as u64)?;
            records.push((commit, record));
            at += (HEAD_BYTES as u64 + length).next_multiple_of(HEAD_BYTES as u64);
        }
    }
    Ok(Left { session: number(&header[8..]), records })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_two_commits_are_kept_and_older_ones_go() {
        let journal = KeptJournal::new(7).unwrap();
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
        let commits: Vec<u64> = left(&journal.memory).unwrap().records.iter().map(|(of, _)| *of).collect();
        assert_eq!(commits, [6, 5, 5]);
    }

    /// The program is killed between any two writes: the record that it was about to keep is there
    /// whole or not at all.
    #[test]
    fn a_record_that_was_not_finished_is_not_there() {
        let journal = KeptJournal::new(1).unwrap();
        journal.keep(2, b"kept");
        // The bytes are there, the head is not.
        journal.memory.write_all_at(b"torn", begin(2) + 48).unwrap();
        assert_eq!(left(&journal.memory).unwrap().records, [(2, b"kept".to_vec())]);
        // An older commit's record stood behind.
        let journal = KeptJournal::new(1).unwrap();
        journal.keep(2, &[1; 100]);
        journal.keep(2, b"old");
        journal.keep(4, b"new");
        assert_eq!(left(&journal.memory).unwrap().records, [(4, b"new".to_vec())]);
    }
}
