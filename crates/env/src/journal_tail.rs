//! Finds the end of the complete batches in the journals of fjall 3, before that library reads
//! them. The library drops some kinds of torn tails, but refuses to open for others: a crash may
//! leave the last batch with its end marker and a hole before it, because pages reach the disk in
//! any order, and a hole within a value looks like a value. And it treats everything after damage
//! in the middle as a torn tail. This module cuts a journal, and restores a cut; it never judges
//! whether the cut was right.
//!
//! The tail is moved to a file next to the journal piece by piece, and back in the same way. A file
//! system with only a few free blocks suffices, because pieces become smaller when larger ones do
//! not fit. A crash in between leaves the file, and the next opening starts by restoring its
//! content: each byte of the tail is in one of the two places or in both, and zero where it is
//! missing. The file begins with the offset of the cut in the journal, the journal's previous
//! length, and the xxh3-64 of both: 8 bytes each.
//!
//! A journal is a sequence of batches: a start marker (tag 1, item count u32, sequence number u64),
//! items (tag 2, value type u8, compression u8, keyspace u64, key length u16, value length u32,
//! stored length u32, key, stored value) and clears (tag 4, keyspace u64), and an end marker (tag
//! 3, xxh3-64 of the items' bytes, `FJL` and 3). All little-endian.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Result, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::file_disk::{forget_cached, sync_parent};

/// Room for reading ahead; journals are tens of megabytes.
const READ_BYTES: usize = 1 << 20;
const END_MAGIC: [u8; 4] = *b"FJL\x03";

/// Suffix of a file that holds a tail. The library does not take it for a journal.
const TAIL_EXTENSION: &str = "torn";
const TAIL_HEAD_BYTES: u64 = 24;
/// Bytes that are in both places for a moment, at most.
const PIECE_BYTES: u64 = 1 << 20;
/// Allocation unit of file systems: a block. All pieces except at the ends of a tail are multiples
/// of it, as are their offsets in the journal.
const BLOCK_BYTES: u64 = 4 << 10;

/// The intact part of a journal.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    /// Bytes to the end of the last whole batch, counting only batches that follow each other
    /// without a gap.
    whole_bytes: u64,
    /// End of the data after it. Only zero padding follows.
    used_bytes: u64,
}

impl Journal {
    /// All journals of the library in `lsm`, oldest first.
    pub(crate) fn all(lsm: &Path) -> Result<Vec<Self>> {
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(lsm)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "jnl") {
                let number = path.file_stem().and_then(|s| s.to_str()).and_then(|s| s.parse::<u64>().ok());
                paths.extend(number.map(|n| (n, path)));
            }
        }
        paths.sort_unstable();
        paths.into_iter().map(|(_, path)| Self::scan(path)).collect()
    }

    fn scan(path: PathBuf) -> Result<Self> {
        let file = File::open(&path)?;
        forget_cached(&file)?;
        let mut reader = Counting { inner: BufReader::with_capacity(READ_BYTES, file), at: 0 };
        let mut whole_bytes = 0;
        loop {
            match batch_is_whole(&mut reader) {
                Ok(true) => whole_bytes = reader.at,
                Ok(false) => break,
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            }
        }
        reader.inner.seek(SeekFrom::Start(whole_bytes))?;
        let (mut at, mut used_bytes) = (whole_bytes, whole_bytes);
        loop {
            let piece = reader.inner.fill_buf()?;
            if piece.is_empty() {
                break;
            }
            used_bytes = piece.iter().rposition(|b| *b != 0).map_or(used_bytes, |last| at + last as u64 + 1);
            let len = piece.len();
            at += len as u64;
            reader.inner.consume(len);
        }
        Ok(Self { path, whole_bytes, used_bytes })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether something follows its last whole batch: a batch that a crash tore, or damage.
    pub(crate) fn has_tail(&self) -> bool {
        self.used_bytes > self.whole_bytes
    }

    /// Whether it was never written to.
    pub(crate) fn is_empty(&self) -> bool {
        self.used_bytes == 0
    }

    /// Cuts the tail off, durably, and keeps it in a file. After an error everything is unchanged.
    pub(crate) fn cut(&self) -> Result<CutTail> {
        let journal = OpenOptions::new().read(true).write(true).open(&self.path)?;
        let kept = self.path.with_extension(TAIL_EXTENSION);
        let journal_bytes = journal.metadata()?.len();
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&kept)?;
        let cut = CutTail { journal, file, path: kept, at: self.whole_bytes, journal_bytes };
        match cut.take(self.used_bytes) {
            Ok(()) => Ok(cut),
            Err(error) => {
                // If this fails, the next opening of the store restores it.
                let _ = cut.restore();
                Err(error)
            }
        }
    }
}

/// A tail that was cut off a journal.
#[derive(Debug)]
pub(crate) struct CutTail {
    journal: File,
    /// The file with the tail.
    file: File,
    path: PathBuf,
    /// Where it was in the journal.
    at: u64,
    /// The journal's length before.
    journal_bytes: u64,
}

impl CutTail {
    /// Restores tails left by a crash while cutting or restoring.
    pub(crate) fn restore_all(lsm: &Path) -> Result<()> {
        for entry in std::fs::read_dir(lsm)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == TAIL_EXTENSION) {
                match Self::left(&path)? {
                    Some(left) => left.restore()?,
                    None => std::fs::remove_file(path)?,
                }
            }
        }
        Ok(())
    }

    /// The remains of an interrupted cut. Nothing was cut if the file does not yet contain its
    /// source position, and nothing is missing if the journal has continued since.
    fn left(path: &Path) -> Result<Option<Self>> {
        let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
        let journal = match open(&path.with_extension("jnl")) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            journal => journal?,
        };
        let file = open(path)?;
        if file.metadata()?.len() < TAIL_HEAD_BYTES {
            return Ok(None);
        }
        let mut word = [0; 8];
        let [at, journal_bytes, checksum] = {
            let mut words = [0; 3];
            for (place, value) in (0..).step_by(8).zip(&mut words) {
                file.read_exact_at(&mut word, place)?;
                *value = u64::from_le_bytes(word);
            }
            words
        };
        let is_ours = [at, journal_bytes].contains(&journal.metadata()?.len());
        let left = Self { journal, file, path: path.to_owned(), at, journal_bytes };
        Ok((is_ours && left.checksum() == checksum).then_some(left))
    }

    fn checksum(&self) -> u64 {
        xxh3_64(&[self.at, self.journal_bytes].map(u64::to_le_bytes).concat())
    }

    /// Takes the bytes of the journal up to `end`.
    fn take(&self, end: u64) -> Result<()> {
        let head = [self.at, self.journal_bytes, self.checksum()];
        self.file.write_all_at(&head.map(u64::to_le_bytes).concat(), 0)?;
        self.file.sync_all()?;
        sync_parent(&self.path)?;
        let mut piece = vec![0; PIECE_BYTES as usize];
        in_pieces(end - self.at, self.at, |from, len| {
            let (piece, at) = (&mut piece[..len as usize], self.at + from);
            self.journal.read_exact_at(piece, at)?;
            self.file.write_all_at(piece, TAIL_HEAD_BYTES + from)?;
            self.file.sync_data()?;
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Where that does not work it takes room for both.
            let _ = rustix::fs::fallocate(&self.journal, flags, at, len);
            Ok(())
        })?;
        self.journal.set_len(self.at)?;
        self.journal.sync_all()
    }

    /// Forgets the tail.
    pub(crate) fn discard(self) -> Result<()> {
        std::fs::remove_file(&self.path)?;
        // It must not reappear once the journal has grown.
        sync_parent(&self.path)
    }

    /// Restores the journal.
    pub(crate) fn restore(self) -> Result<()> {
        self.journal.set_len(self.journal_bytes)?;
        let (mut piece, mut there) = (vec![0; PIECE_BYTES as usize], vec![0; PIECE_BYTES as usize]);
        let all = self.file.metadata()?.len().saturating_sub(TAIL_HEAD_BYTES);
        // The last piece first: so the file shrinks by the part restored.
        in_pieces(all, (self.at + all).wrapping_neg(), |done, len| {
            let from = all - done - len;
            let (piece, there) = (&mut piece[..len as usize], &mut there[..len as usize]);
            self.file.read_exact_at(piece, TAIL_HEAD_BYTES + from)?;
            self.journal.read_exact_at(there, self.at + from)?;
            piece.iter_mut().zip(there).for_each(|(byte, there)| *byte |= *there);
            self.journal.write_all_at(piece, self.at + from)?;
            self.journal.sync_all()?;
            self.file.set_len(TAIL_HEAD_BYTES + from)
        })?;
        self.journal.sync_all()?;
        self.discard()
    }
}

/// Moves this many bytes in pieces, in order: `take` gets the start and length of each. A piece
/// that does not fit is retried with half the length; each one moved frees space, so the next may
/// be twice as long. Each piece except the last ends on a multiple of [`BLOCK_BYTES`], counted from
/// `offset` bytes before the first: if two pieces shared a block, neither would free it.
///
/// # Errors
/// Those of `take`; lack of space only at the smallest piece.
fn in_pieces(bytes: u64, offset: u64, mut take: impl FnMut(u64, u64) -> Result<()>) -> Result<()> {
    let (mut at, mut most) = (0, PIECE_BYTES);
    while at < bytes {
        let len = (most - offset.wrapping_add(at) % BLOCK_BYTES).min(bytes - at);
        match take(at, len) {
            Ok(()) => {
                at += len;
                most = (most * 2).min(PIECE_BYTES);
            }
            Err(error) if error.kind() == ErrorKind::StorageFull && len > BLOCK_BYTES => {
                most = (len / 2 / BLOCK_BYTES * BLOCK_BYTES).max(BLOCK_BYTES);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn batch_is_whole(reader: &mut Counting) -> Result<bool> {
    let mut hash = Xxh3::new();
    if reader.take::<1>()? != [1] {
        return Ok(false);
    }
    let items = u32::from_le_bytes(reader.take()?);
    reader.take::<8>()?;
    for _ in 0..items {
        let tag = reader.take::<1>()?;
        hash.update(&tag);
        match tag {
            [2] => {
                let head = reader.take::<20>()?;
                hash.update(&head);
                let key = u16::from_le_bytes([head[10], head[11]]);
                let stored = u32::from_le_bytes([head[16], head[17], head[18], head[19]]);
                reader.hash_through(u64::from(key) + u64::from(stored), &mut hash)?;
            }
            [4] => hash.update(&reader.take::<8>()?),
            _ => return Ok(false),
        }
    }
    let tag = reader.take::<1>()?;
    let checksum = u64::from_le_bytes(reader.take()?);
    Ok(tag == [3] && checksum == hash.digest() && reader.take()? == END_MAGIC)
}

/// A reader that knows where it is.
struct Counting {
    inner: BufReader<File>,
    at: u64,
}

impl Counting {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn hash_through(&mut self, mut len: u64, hash: &mut Xxh3) -> Result<()> {
        let mut piece = [0; 4096];
        while len > 0 {
            let now = piece.len().min(usize::try_from(len).unwrap_or(usize::MAX));
            self.inner.read_exact(&mut piece[..now])?;
            hash.update(&piece[..now]);
            self.at += now as u64;
            len -= now as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::Range;

    use super::*;

    /// Blocks that contain the bytes `range`.
    fn blocks(range: Range<u64>) -> Range<u64> {
        range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES)
    }

    /// Two files that share the free blocks: the journal, and the part cut off.
    struct Blocks {
        journal: BTreeSet<u64>,
        kept_bytes: u64,
        free: u64,
    }

    impl Blocks {
        /// Allocates that many blocks, or none.
        fn fill(&mut self, blocks: u64) -> Result<()> {
            self.free = self.free.checked_sub(blocks).ok_or(ErrorKind::StorageFull)?;
            Ok(())
        }

        fn set_tail(&mut self, bytes: u64) -> Result<()> {
            let [before, now] = [self.kept_bytes, bytes].map(|bytes| bytes.div_ceil(BLOCK_BYTES));
            self.fill(now.saturating_sub(before))?;
            self.free += before.saturating_sub(now);
            self.kept_bytes = bytes;
            Ok(())
        }

        fn punch(&mut self, range: Range<u64>) {
            for block in range.start.div_ceil(BLOCK_BYTES)..range.end / BLOCK_BYTES {
                self.free += u64::from(self.journal.remove(&block));
            }
        }

        fn write(&mut self, range: Range<u64>) -> Result<()> {
            let new: Vec<_> = blocks(range).filter(|block| !self.journal.contains(block)).collect();
            self.fill(new.len() as u64)?;
            self.journal.extend(new);
            Ok(())
        }
    }

    /// Only pieces of 1 MiB were tried. Later, pieces ended within blocks, and freed one block less
    /// than they filled: the smallest ones freed none.
    #[test]
    fn pieces_become_as_small_as_there_is_room_for() {
        let bytes = (3 << 20) + 77;
        for at in [0, 1, 4095, 8192, 100_000] {
            // The file's head and the ends of the tail take a block each.
            for free in [3, 4, 300] {
                let end = at + bytes;
                let mut disk = Blocks { journal: blocks(0..end).collect(), kept_bytes: 0, free };
                disk.set_tail(TAIL_HEAD_BYTES).unwrap();
                let mut next = 0;
                let taken = in_pieces(bytes, at, |from, len| {
                    assert!(from == next && 0 < len && len <= PIECE_BYTES);
                    disk.set_tail(TAIL_HEAD_BYTES + from + len)?;
                    disk.punch(at + from..at + from + len);
                    next = from + len;
                    Ok(())
                });
                taken.unwrap();
                assert_eq!(next, bytes);
                let whole = end / BLOCK_BYTES - at.div_ceil(BLOCK_BYTES);
                assert_eq!(disk.journal.len() as u64, blocks(0..end).end - whole, "from byte {at} on");
                let mut back = bytes;
                let moved = in_pieces(bytes, end.wrapping_neg(), |done, len| {
                    let from = bytes - done - len;
                    assert!(from + len == back && 0 < len && len <= PIECE_BYTES);
                    disk.write(at + from..at + from + len)?;
                    disk.set_tail(TAIL_HEAD_BYTES + from)?;
                    back = from;
                    Ok(())
                });
                moved.unwrap();
                disk.set_tail(0).unwrap();
                assert_eq!((back, disk.free), (0, free), "from byte {at} on");
            }
        }
    }

    #[test]
    fn no_room_at_all_is_an_error() {
        let mut tries = 0;
        let full = in_pieces(3 << 20, 0, |_, _| {
            tries += 1;
            Err(ErrorKind::StorageFull.into())
        });
        assert_eq!((full.unwrap_err().kind(), tries), (ErrorKind::StorageFull, 9));
    }
}
