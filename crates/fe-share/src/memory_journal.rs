//! A journal in memory that survives the program: the acknowledged changes of a mounted tree. Owns
//! the format of its file and the rules of its validity. The thread that answers a change writes
//! its record; the thread that commits and the one that mounts use the rest.
//!
//! The journal is a file in memory: without a name if only a keeper holds it, with one if the next
//! program should find it by itself. All numbers are little-endian.
//!
//! | offset | bytes | content |
//! | --- | --- | --- |
//! | 0 | 8 | magic |
//! | 8 | 8 | checksum from the session to the end of the owner |
//! | 16 | 8 | session of the tree |
//! | 24 | 8 | state: [`VALID`], [`REPLAYED`] or [`VOID`] |
//! | 32 | 8 | length of the owner, at most [`OWNER_BYTES_MAX`] |
//! | 40 | | owner: identifies the mount of the journal |
//! | 512 | 2 x 32 | ends of the halves |
//! | 4096 | | two halves of records: those of commit N are in half N % 2 |
//!
//! A record is a head and its bytes, padded to a multiple of 32. A head is the commit 8, the length
//! 8, a checksum of all of it 8, zero 8. The end of a half is the commit of its records 8, their
//! bytes 8, a checksum 8, zero 8.
//!
//! The program may be killed at any point of a write. So a record is written behind the end of its
//! half, and then the end, which lies in one page and is written as a whole: that makes the record
//! count. All that is before the end must be there, so a part that was removed or zeroed is noticed
//! wherever it is. It is damage, as is a wrong checksum: then the whole journal is invalid, because
//! later records may depend on the damaged one.
//!
//! A record that cannot be written makes the journal void, because later ones would be invalid
//! without it. It becomes valid again when the missing change is durable: with the second commit
//! after it, or when the tree has settled since ([`MemoryJournal::settled`]).
//!
//! The first part of each half has its space from the start, and a half that fills gets more ahead
//! of its records. Without more space, the tree commits sooner ([`Journal::commit_bytes`]). So a
//! full directory never makes a journal void.
//!
//! A file that the next program would no longer find is recreated, void at first
//! ([`MemoryJournal::renew`]).

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, MemfdFlags};
use share::{JOURNAL_BYTES_MAX, Journal, Left, journal_sum};

const MAGIC: [u8; 8] = *b"SHLJRNL3";
const HEADER_BYTES: u64 = 4096;
const HEAD_BYTES: usize = 32;
const OWNER_OFFSET: usize = 40;
const ENDS_OFFSET: usize = 512;
const END_BYTES: usize = 32;
const _: () = assert!(OWNER_OFFSET + OWNER_BYTES_MAX <= ENDS_OFFSET);

/// Most bytes of an owner, which must fit into the page of the header.
pub(crate) const OWNER_BYTES_MAX: usize = 256;

/// States.
const VALID: u64 = 0;
const REPLAYED: u64 = 1;
const VOID: u64 = 2;

/// Bytes of a half: the records of a commit and their overhead, which is at most as large again for
/// the smallest record.
const HALF_BYTES: u64 = 2 * JOURNAL_BYTES_MAX as u64;
const FILE_BYTES: u64 = HEADER_BYTES + 2 * HALF_BYTES;

/// Bytes of a half that always have their space. A half that took more releases its memory at the
/// next commit.
const ALLOCATED_BYTES_MIN: u64 = 1 << 20;

/// A half whose space is used up to this part gets more; without more, a commit is due. So there is
/// room for the changes of all threads that wait for the commit.
const FULL_DIVISOR: u64 = 4;

/// Creates the journal of a mount where the next program finds it. Called by the threads that mount
/// and commit.
pub trait JournalPlace: Send + Sync + fmt::Debug {
    /// Creates a file that `fill` writes, replacing an existing one. The next program finds it only
    /// once it is written.
    ///
    /// # Errors
    /// When there is no room, or those of `fill`.
    fn make(&self, fill: &mut dyn FnMut(&File) -> io::Result<()>) -> io::Result<File>;

    /// Returns the reason why the next program would not find a file of this size; `None` if it
    /// would.
    fn fault(&self, file: &File, bytes: u64) -> Option<String>;

    /// Returns the identity of the mount, which its journal carries; at most 256 bytes.
    fn owner(&self) -> Vec<u8>;

    /// Removes the file: all of its changes are durable.
    fn remove(&self, file: &File);
}

/// The state of one half of a journal.
#[derive(Clone, Copy)]
struct Half {
    /// The commit of its records; `None` before the first one.
    of: Option<u64>,
    used: u64,
    /// Bytes whose space is allocated.
    allocated: u64,
}

/// The state of a journal that is written.
struct State {
    /// `None` if it could not be created yet.
    memory: Option<File>,
    /// The reason why it could not be created.
    create_error: Option<String>,
    halves: [Half; 2],
    /// The newest commit that has a record.
    newest: u64,
    /// The last commit with a missing record, if that makes the journal void.
    missing: Option<u64>,
    /// Records that could not be written so far.
    failures: u64,
}

/// A journal that is written.
pub(crate) struct MemoryJournal {
    session: u64,
    place: Option<Arc<dyn JournalPlace>>,
    state: Mutex<State>,
}

fn begin(commit: u64) -> u64 {
    HEADER_BYTES + commit % 2 * HALF_BYTES
}

impl MemoryJournal {
    /// Creates an empty journal of a session, in a file from `place` or in one without a name.
    /// Without room for the file it is void until [`Self::renew`] creates it.
    pub(crate) fn new(session: u64, place: Option<Arc<dyn JournalPlace>>) -> Self {
        let half = Half { of: None, used: 0, allocated: ALLOCATED_BYTES_MIN };
        let state =
            State { memory: None, create_error: None, halves: [half; 2], newest: 0, missing: None, failures: 0 };
        let journal = Self { session, place, state: Mutex::new(state) };
        journal.make(&mut journal.state.lock(), VALID);
        journal
    }

    fn owner(&self) -> Vec<u8> {
        self.place.as_ref().map_or_else(Vec::new, |place| place.owner())
    }

    /// Creates the file in this state.
    fn make(&self, state: &mut State, begins_as: u64) {
        let owner = self.owner();
        let mut fill = |memory: &File| {
            if owner.len() > OWNER_BYTES_MAX {
                return Err(io::Error::from(io::ErrorKind::InvalidInput));
            }
            memory.set_len(FILE_BYTES)?;
            allocate(memory, 0, HEADER_BYTES + ALLOCATED_BYTES_MIN)?;
            allocate(memory, begin(1), ALLOCATED_BYTES_MIN)?;
            (0..2).try_for_each(|commit| write_end(memory, self.session, commit, 0))?;
            write_header(memory, self.session, begins_as, &owner)
        };
        let made = match &self.place {
            Some(place) => place.make(&mut fill),
            None => rustix::fs::memfd_create("shale-journal", MemfdFlags::CLOEXEC)
                .map_err(io::Error::from)
                .and_then(|memory| Ok(File::from(memory)).and_then(|memory| fill(&memory).map(|()| memory))),
        };
        match made {
            Ok(memory) => {
                state.halves = [Half { of: None, used: 0, allocated: ALLOCATED_BYTES_MIN }; 2];
                (state.memory, state.create_error) = (Some(memory), None);
            }
            Err(error) => state.create_error = Some(error.to_string()),
        }
    }

    /// Returns another descriptor of the file. A caller waits while records are written.
    ///
    /// # Errors
    /// When there is no file, or no descriptor is available.
    pub(crate) fn memory(&self) -> io::Result<File> {
        let state = self.state.lock();
        let why = || state.create_error.clone().unwrap_or_default();
        state.memory.as_ref().ok_or_else(|| io::Error::other(why()))?.try_clone()
    }

    /// Ends the journal: all of its changes are durable.
    pub(crate) fn end(&self) {
        if let (Some(place), Some(memory)) = (&self.place, &self.state.lock().memory) {
            place.remove(memory);
        }
    }

    /// Returns the reason why the next program would not replay all of it; `None` if it would.
    pub(crate) fn fault(&self) -> Option<String> {
        let state = self.state.lock();
        let gone = self.gone(&state);
        gone.or_else(|| state.missing.map(|_| "the journal of its names has no room".to_owned()))
    }

    fn gone(&self, state: &State) -> Option<String> {
        match (&state.memory, &self.place) {
            (Some(memory), Some(place)) => place.fault(memory, FILE_BYTES),
            (Some(_), None) => None,
            (None, _) => Some(state.create_error.clone().unwrap_or_default()),
        }
    }

    /// Recreates the file if the next program would not find it. It is void until the tree has
    /// [settled](Self::settled). Returns whether the file is new.
    pub(crate) fn renew(&self) -> bool {
        let state = &mut *self.state.lock();
        if self.gone(state).is_none() {
            return false;
        }
        self.make(state, VOID);
        (state.missing, state.failures) = (Some(state.newest), state.failures + 1);
        state.create_error.is_none()
    }

    /// Called when the tree has changes that are neither durable nor recorded.
    pub(crate) fn note_unrecorded(&self) {
        let state = &mut *self.state.lock();
        (state.missing, state.failures) = (Some(u64::MAX - 2), state.failures + 1);
        self.set_state(state, VOID);
    }

    /// Returns the number of failed records so far, if one is missing.
    pub(crate) fn missing(&self) -> Option<u64> {
        let state = self.state.lock();
        state.missing.map(|_| state.failures)
    }

    /// Called when all changes are durable that were made up to this number of failures.
    pub(crate) fn settled(&self, failures: u64) {
        let state = &mut *self.state.lock();
        if state.failures == failures && state.missing.is_some() && state.memory.is_some() {
            self.mark_valid(state);
        }
    }

    fn mark_valid(&self, state: &mut State) {
        state.missing = None;
        self.set_state(state, VALID);
        log::info!("the journal of a share's names is complete again");
    }

    fn try_write(&self, state: &mut State, commit: u64, record: &[u8]) -> io::Result<()> {
        let why = || io::Error::other(state.create_error.clone().unwrap_or_default());
        let memory = state.memory.as_ref().ok_or_else(why)?;
        let half = &mut state.halves[(commit % 2) as usize];
        if half.of != Some(commit) {
            // The half has records of a commit that nothing needs any more.
            write_end(memory, self.session, commit, 0)?;
            // Records may go past the allocated space when no more could be allocated.
            let taken = half.allocated.max(half.used);
            if taken > ALLOCATED_BYTES_MIN {
                // Only a request to release memory; nothing depends on its success.
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let more = taken - ALLOCATED_BYTES_MIN;
                let _ = rustix::fs::fallocate(memory, punch, begin(commit) + ALLOCATED_BYTES_MIN, more);
            }
            *half = Half { of: Some(commit), used: 0, allocated: ALLOCATED_BYTES_MIN };
        }
        let length = (HEAD_BYTES + record.len()).next_multiple_of(HEAD_BYTES);
        let end = half.used + length as u64;
        if end > HALF_BYTES {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        // Allocate ahead of the records. Without more space the tree commits sooner.
        let wanted = (end * FULL_DIVISOR).next_power_of_two().min(HALF_BYTES);
        if wanted > half.allocated && allocate(memory, begin(commit), wanted).is_ok() {
            half.allocated = wanted;
        }
        let mut padded = head(commit, record);
        padded.extend_from_slice(record);
        padded.resize(length, 0);
        memory.write_all_at(&padded, begin(commit) + half.used)?;
        write_end(memory, self.session, commit, end)?;
        half.used = end;
        Ok(())
    }

    fn set_state(&self, state: &State, value: u64) {
        if let Some(memory) = &state.memory
            && let Err(error) = write_header(memory, self.session, value, &self.owner())
        {
            log::error!("the journal of a share's names cannot be written: {error}");
        }
    }
}

/// Allocates space of a file without changing its length.
fn allocate(memory: &File, at: u64, bytes: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(memory, FallocateFlags::KEEP_SIZE, at, bytes)?)
}

fn head(commit: u64, record: &[u8]) -> Vec<u8> {
    [commit, record.len() as u64, journal_sum(commit, record), 0].map(u64::to_le_bytes).concat()
}

/// Bytes that lie in one page and are written as a whole.
fn write_header(memory: &File, session: u64, state: u64, owner: &[u8]) -> io::Result<()> {
    let numbers = [session, state, owner.len() as u64].map(u64::to_le_bytes).concat();
    let summed = [&numbers, owner].concat();
    let sum = header_sum(&summed).to_le_bytes();
    memory.write_all_at(&[&MAGIC[..], &sum, &summed].concat(), 0)
}

fn header_sum(summed: &[u8]) -> u64 {
    journal_sum(u64::from_le_bytes(MAGIC), summed)
}

/// Makes the records of a commit count up to that many bytes.
fn write_end(memory: &File, session: u64, commit: u64, used: u64) -> io::Result<()> {
    let end = [commit, used, end_sum(session, commit, used), 0].map(u64::to_le_bytes).concat();
    memory.write_all_at(&end, (ENDS_OFFSET + (commit % 2) as usize * END_BYTES) as u64)
}

fn end_sum(session: u64, commit: u64, used: u64) -> u64 {
    journal_sum(commit, &[session, used].map(u64::to_le_bytes).concat())
}

impl Journal for MemoryJournal {
    fn keep(&self, commit: u64, record: &[u8]) {
        let state = &mut *self.state.lock();
        state.newest = state.newest.max(commit);
        match self.try_write(state, commit, record) {
            Ok(()) if state.missing.is_some_and(|missing| missing + 2 <= commit) => self.mark_valid(state),
            Ok(()) => {}
            Err(error) => {
                if state.missing.is_none() {
                    self.set_state(state, VOID);
                    log::error!(
                        "the death of this program would lose names of a share that were not synced, until there is room for \
                         the journal again: {error}"
                    );
                }
                state.missing = Some(commit);
                state.failures += 1;
            }
        }
    }

    fn commit_bytes(&self) -> usize {
        // The half of the previous commit does not take new records.
        let newest = self.state.lock().halves.into_iter().max_by_key(|half| half.of);
        (newest.map_or(ALLOCATED_BYTES_MIN, |half| half.allocated) / FULL_DIVISOR) as usize
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The header of a journal.
struct Header {
    session: u64,
    state: u64,
    owner: Vec<u8>,
    /// The commit of each half, and the bytes of its records.
    ends: [(u64, u64); 2],
}

fn header(memory: &File) -> io::Result<Header> {
    let mut bytes = [0; ENDS_OFFSET + 2 * END_BYTES];
    if memory.metadata()?.len() < FILE_BYTES {
        return Err(damaged("it is truncated"));
    }
    memory.read_exact_at(&mut bytes, 0)?;
    let owner_bytes = number(&bytes[32..]);
    if bytes[..8] != MAGIC || owner_bytes > OWNER_BYTES_MAX as u64 {
        return Err(damaged("it is not a journal in a known format"));
    }
    let owner_end = OWNER_OFFSET + owner_bytes as usize;
    if number(&bytes[8..]) != header_sum(&bytes[16..owner_end]) {
        return Err(damaged("its beginning is damaged"));
    }
    let (session, owner) = (number(&bytes[16..]), bytes[OWNER_OFFSET..owner_end].to_vec());
    let mut ends = [(0, 0); 2];
    for (half, end) in (0..).zip(&mut ends) {
        let words = &bytes[ENDS_OFFSET + half * END_BYTES..];
        let (commit, used) = (number(words), number(&words[8..]));
        let is_whole = used <= HALF_BYTES && used.is_multiple_of(HEAD_BYTES as u64) && commit % 2 == half as u64;
        if !is_whole || number(&words[16..]) != end_sum(session, commit, used) {
            return Err(damaged("its beginning is damaged"));
        }
        *end = (commit, used);
    }
    Ok(Header { session, state: number(&bytes[24..]), owner, ends })
}

/// The result of reading a journal file.
#[derive(Debug)]
pub enum Found {
    /// It belongs to another owner.
    Foreign {
        /// The owner in it.
        owner: Vec<u8>,
    },
    /// Its records.
    Left(Left),
}

/// Reads a journal from its file, if it belongs to this owner.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] if it is invalid because it is damaged or incomplete.
pub fn find(file: &File, owner: &[u8]) -> io::Result<Found> {
    match header(file)? {
        header if header.owner != owner => Ok(Found::Foreign { owner: header.owner }),
        header => records(file, &header).map(Found::Left),
    }
}

/// Marks a journal whose changes are durable in the tree.
///
/// # Errors
/// When it cannot be written.
pub fn mark_replayed(file: &File) -> io::Result<()> {
    let Header { session, owner, .. } = header(file)?;
    write_header(file, session, REPLAYED, &owner)
}

/// Reads the records of a journal.
pub(crate) fn left(memory: &File) -> io::Result<Left> {
    records(memory, &header(memory)?)
}

fn records(memory: &File, header: &Header) -> io::Result<Left> {
    if header.state == VOID {
        return Err(damaged("it lacks changes, because it had no room or its file was removed"));
    }
    let mut records = Vec::new();
    for (of, used) in header.ends {
        let mut at = 0;
        while at < used {
            let mut head = [0; HEAD_BYTES];
            memory.read_exact_at(&mut head, begin(of) + at)?;
            at += HEAD_BYTES as u64;
            let (commit, length) = (number(&head), number(&head[8..]));
            if commit != of || length > used - at {
                return Err(damaged("one of its records is damaged"));
            }
            let mut record = vec![0; length as usize];
            memory.read_exact_at(&mut record, begin(of) + at)?;
            if number(&head[16..]) != journal_sum(commit, &record) {
                return Err(damaged("one of its records is damaged"));
            }
            records.push((commit, record));
            at += length.next_multiple_of(HEAD_BYTES as u64);
        }
    }
    Ok(Left { session: header.session, is_replayed: header.state == REPLAYED, records })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(session: u64) -> MemoryJournal {
        MemoryJournal::new(session, None)
    }

    fn memory(journal: &MemoryJournal) -> File {
        journal.state.lock().memory.as_ref().unwrap().try_clone().unwrap()
    }

    fn commits(journal: &MemoryJournal) -> Vec<u64> {
        left(&memory(journal)).unwrap().records.iter().map(|(of, _)| *of).collect()
    }

    #[test]
    fn records_of_two_commits_are_kept_and_older_ones_go() {
        let journal = journal(7);
        journal.keep(4, b"four");
        journal.keep(5, &[5; 40]);
        journal.keep(5, b"0123456789abcdef");
        journal.keep(4, b"more");
        let left_now = left(&memory(&journal)).unwrap();
        assert_eq!(left_now.session, 7);
        let four: Vec<&[u8]> =
            left_now.records.iter().filter(|(of, _)| *of == 4).map(|(_, bytes)| &bytes[..]).collect();
        assert_eq!((four, left_now.records.len()), (vec![&b"four"[..], b"more"], 4));
        journal.keep(6, b"six");
        assert_eq!(commits(&journal), [6, 5, 5]);
    }

    /// The program is killed between any two writes: the record that it was writing is there
    /// completely or not at all.
    #[test]
    fn a_record_that_was_not_finished_is_not_there() {
        let kept = journal(1);
        kept.keep(2, b"kept");
        // The record is there, in part or as a whole, but not the end.
        let torn = [head(2, b"torn"), b"torn".to_vec()].concat();
        for bytes in [10, 32, 34, 36] {
            memory(&kept).write_all_at(&torn[..bytes], begin(2) + 64).unwrap();
            assert_eq!(left(&memory(&kept)).unwrap().records, [(2, b"kept".to_vec())]);
        }
        // Followed by a record of an older commit.
        let kept = journal(1);
        kept.keep(2, &[1; 100]);
        kept.keep(2, b"old");
        kept.keep(4, b"new");
        assert_eq!(left(&memory(&kept)).unwrap().records, [(4, b"new".to_vec())]);
        // The first record of a commit goes over those that nothing needs any more.
        write_end(&memory(&kept), 1, 6, 0).unwrap();
        memory(&kept).write_all_at(b"half of a head", begin(6)).unwrap();
        assert!(left(&memory(&kept)).unwrap().records.is_empty());
    }

    /// Whatever part of a journal is gone: it is damage, and not a journal with fewer names.
    #[test]
    fn a_part_that_is_zeroed_or_cut_off_is_noticed() {
        let filled = || {
            let kept = journal(1);
            (0..300).for_each(|number: u64| kept.keep(2 + number / 150, &[number as u8; 100]));
            kept
        };
        let bytes_kept = 150 * 160;
        // At which byte, and how many.
        let zeroed = [
            (0, HEADER_BYTES),
            (0, FILE_BYTES),
            (0, ENDS_OFFSET as u64),
            (ENDS_OFFSET as u64, 32),
            (ENDS_OFFSET as u64 + 32, 32),
            (HEADER_BYTES, FILE_BYTES - HEADER_BYTES),
            (begin(2), 4096),
            (begin(2) + 8192, 4096),
            (begin(2) + bytes_kept - 160, 160),
            (begin(2), HALF_BYTES),
            (begin(3), HALF_BYTES),
            (begin(3) + bytes_kept - 160, 4096),
        ];
        for (at, bytes) in zeroed {
            let kept = filled();
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(memory(&kept), punch, at, bytes).unwrap();
            let kind = left(&memory(&kept)).map_err(|error| error.kind()).map(|left| left.records.len());
            assert_eq!(kind, Err(io::ErrorKind::InvalidData), "{bytes} bytes at {at}");
        }
        for bytes in [0, 4096, begin(2) + 100, FILE_BYTES - 1] {
            let kept = filled();
            memory(&kept).set_len(bytes).unwrap();
            assert_eq!(left(&memory(&kept)).unwrap_err().kind(), io::ErrorKind::InvalidData, "{bytes} bytes");
        }
        assert_eq!(commits(&filled()).len(), 300);
        // What is after the end counts as little as before.
        let kept = filled();
        memory(&kept).write_all_at(&[7; 100], begin(3) + bytes_kept).unwrap();
        assert_eq!(commits(&kept).len(), 300);
    }

    #[test]
    fn a_journal_that_is_damaged_counts_as_a_whole_or_not_at_all() {
        let kept = journal(1);
        kept.keep(2, b"first");
        kept.keep(2, b"second");
        let header = (0..OWNER_OFFSET as u64).chain((512..536).chain(544..568));
        for at in header.chain([begin(2), begin(2) + 8, begin(2) + 32, begin(2) + 64, begin(2) + 100]) {
            let mut byte = [0];
            memory(&kept).read_exact_at(&mut byte, at).unwrap();
            memory(&kept).write_all_at(&[byte[0] ^ 1], at).unwrap();
            assert_eq!(left(&memory(&kept)).unwrap_err().kind(), io::ErrorKind::InvalidData, "byte {at}");
            memory(&kept).write_all_at(&byte, at).unwrap();
        }
        assert_eq!(commits(&kept), [2, 2]);
        memory(&kept).write_all_at(b"SHLJRNL2", 0).unwrap();
        assert!(left(&memory(&kept)).is_err(), "of another program");
        // A journal gets its name when it is complete: this is damage, not a journal without names.
        memory(&kept).write_all_at(&[0; 8], 0).unwrap();
        assert!(find(&memory(&kept), b"").is_err(), "its beginning is gone");
        memory(&kept).set_len(100).unwrap();
        assert!(find(&memory(&kept), b"").is_err(), "cut off");
    }

    /// A later record may depend on a change whose record found no room.
    #[test]
    fn a_journal_without_room_is_void_until_the_commit_is_left_behind() {
        let kept = journal(1);
        kept.keep(2, b"kept");
        kept.keep(3, &vec![3; HALF_BYTES as usize]);
        kept.keep(3, b"follows it");
        assert!(kept.fault().is_some() && left(&memory(&kept)).is_err());
        kept.keep(4, b"may need it");
        assert!(kept.fault().is_some() && left(&memory(&kept)).is_err());
        kept.keep(5, b"does not need it");
        assert!(kept.fault().is_none());
        assert_eq!(commits(&kept), [4, 5]);
    }

    #[test]
    fn a_journal_is_of_its_owner_and_says_that_it_was_replayed() {
        #[derive(Debug)]
        struct Place;
        impl JournalPlace for Place {
            fn make(&self, fill: &mut dyn FnMut(&File) -> io::Result<()>) -> io::Result<File> {
                let file = File::from(rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC)?);
                fill(&file).map(|()| file)
            }
            fn fault(&self, _: &File, _: u64) -> Option<String> {
                None
            }
            fn owner(&self) -> Vec<u8> {
                b"pool and share".to_vec()
            }
            fn remove(&self, _: &File) {}
        }
        let kept = MemoryJournal::new(9, Some(Arc::new(Place)));
        kept.keep(1, b"one");
        let is_replayed = |owner: &[u8]| match find(&memory(&kept), owner).unwrap() {
            Found::Left(left) => Some((left.session, left.is_replayed, left.records.len())),
            Found::Foreign { owner } => {
                assert_eq!(owner, b"pool and share");
                None
            }
        };
        assert_eq!(is_replayed(b"pool and share"), Some((9, false, 1)));
        assert_eq!(is_replayed(b"another pool"), None);
        mark_replayed(&memory(&kept)).unwrap();
        assert_eq!(is_replayed(b"pool and share"), Some((9, true, 1)));
    }

    #[test]
    fn a_half_gives_memory_back() {
        use std::os::unix::fs::MetadataExt;
        let kept = journal(1);
        kept.keep(2, &vec![2; 8 << 20]);
        let blocks = || memory(&kept).metadata().unwrap().blocks() * 512;
        assert!(blocks() > 8 << 20);
        kept.keep(4, b"small");
        assert!(blocks() < 3 << 20);
        assert_eq!(commits(&kept), [4]);
    }

    /// Where no more space can be allocated, records are written past the allocated part.
    #[test]
    fn a_half_gives_back_what_was_not_allocated_ahead() {
        use std::os::unix::fs::MetadataExt;
        let kept = journal(1);
        kept.keep(2, &vec![2; 8 << 20]);
        kept.state.lock().halves[0].allocated = ALLOCATED_BYTES_MIN;
        let bytes = || memory(&kept).metadata().unwrap().blocks() * 512;
        let before = bytes();
        kept.keep(4, b"small");
        assert!(bytes() + (6 << 20) < before, "{before} bytes, then {}", bytes());
    }

    /// A place with room on command, whose files can be removed.
    #[derive(Debug, Default)]
    struct Fickle {
        has_room: std::sync::atomic::AtomicBool,
        is_gone: std::sync::atomic::AtomicBool,
    }

    impl JournalPlace for Fickle {
        fn make(&self, fill: &mut dyn FnMut(&File) -> io::Result<()>) -> io::Result<File> {
            if !self.has_room.load(std::sync::atomic::Ordering::Relaxed) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.is_gone.store(false, std::sync::atomic::Ordering::Relaxed);
            let file = File::from(rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC)?);
            fill(&file).map(|()| file)
        }
        fn fault(&self, _: &File, _: u64) -> Option<String> {
            self.is_gone.load(std::sync::atomic::Ordering::Relaxed).then(|| "it has been removed".to_owned())
        }
        fn owner(&self) -> Vec<u8> {
            Vec::new()
        }
        fn remove(&self, _: &File) {}
    }

    /// A journal that could not be created, or whose file was removed, is recreated. It lacks
    /// earlier records, so it becomes valid when the tree has settled.
    #[test]
    fn a_journal_that_is_gone_is_made_again() {
        let place = Arc::new(Fickle::default());
        let set = |flag: &std::sync::atomic::AtomicBool| flag.store(true, std::sync::atomic::Ordering::Relaxed);
        let kept = MemoryJournal::new(1, Some(place.clone()));
        assert!(kept.fault().is_some() && kept.memory().is_err());
        kept.keep(5, b"before there was room");
        assert!(!kept.renew() && kept.missing().is_some());
        set(&place.has_room);
        for is_gone in [false, true] {
            if is_gone {
                set(&place.is_gone);
                assert_eq!(kept.fault().as_deref(), Some("it has been removed"));
            }
            assert!(kept.renew() && !kept.renew());
            let failures = kept.missing().unwrap();
            kept.keep(6, b"while it settles");
            assert!(kept.fault().is_some() && left(&memory(&kept)).is_err(), "void");
            kept.settled(failures - 1);
            assert!(kept.fault().is_some(), "something else was not kept since");
            kept.settled(failures);
            assert_eq!((kept.fault(), kept.missing(), commits(&kept)), (None, None, vec![6]));
        }
    }

    /// The tree commits before the allocated space of the journal is used up.
    #[test]
    fn a_commit_comes_before_the_space_ends() {
        let kept = journal(1);
        assert_eq!(kept.commit_bytes() as u64, ALLOCATED_BYTES_MIN / FULL_DIVISOR);
        kept.keep(2, &vec![2; 1 << 20]);
        assert!(kept.commit_bytes() > 1 << 20, "there is more");
        kept.keep(3, b"small");
        assert_eq!(kept.commit_bytes() as u64, ALLOCATED_BYTES_MIN / FULL_DIVISOR, "not of the half before");
    }
}
