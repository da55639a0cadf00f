//! Finds the end of the whole batches in the journals of fjall 3, before that library reads them: of a torn tail it drops
//! some kinds and refuses to open for others (a crash may leave the last batch with its end marker and a hole before it,
//! because pages reach the disk in any order, and a hole within a value looks like a value), and of damage in the middle it
//! takes everything for a tail that follows. Cuts a journal, and puts back what it cut; never judges whether that was right.
//!
//! A journal is a sequence of batches: a start marker (tag 1, item count u32, sequence number u64), items (tag 2, value type
//! u8, compression u8, keyspace u64, key length u16, value length u32, stored length u32, key, stored value) and clears
//! (tag 4, keyspace u64), and an end marker (tag 3, xxh3-64 of the items' bytes, `FJL` and 3). All little-endian.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Result, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use crate::file_disk::forget_cached;

/// Room for reading ahead; journals are tens of megabytes.
const READ_BYTES: usize = 1 << 20;
const END_MAGIC: [u8; 4] = *b"FJL\x03";

/// A journal as far as it is whole.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    /// Bytes to the end of the last whole batch, counting only batches that follow each other without a gap.
    whole_bytes: u64,
    /// Whether anything but the padding of zeroes follows.
    has_tail: bool,
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
        let mut has_tail = false;
        while !has_tail {
            let piece = reader.inner.fill_buf()?;
            if piece.is_empty() {
                break;
            }
            has_tail = piece.iter().any(|b| *b != 0);
            let len = piece.len();
            reader.inner.consume(len);
        }
        Ok(Self { path, whole_bytes, has_tail })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether something follows its last whole batch: a batch that a crash tore, or damage.
    pub(crate) fn has_tail(&self) -> bool {
        self.has_tail
    }

    /// Cuts the tail off, durably, and keeps it in a file that the library does not take for a journal.
    pub(crate) fn cut(&self) -> Result<CutTail> {
        let mut file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        let cut = CutTail { kept: self.path.with_extension("torn"), journal: self.path.clone(), at: self.whole_bytes };
        file.seek(SeekFrom::Start(self.whole_bytes))?;
        let mut kept = File::create(&cut.kept)?;
        std::io::copy(&mut file, &mut kept)?;
        kept.sync_all()?;
        file.set_len(self.whole_bytes)?;
        file.sync_all()?;
        Ok(cut)
    }
}

/// A tail that was cut off a journal.
#[derive(Debug)]
pub(crate) struct CutTail {
    journal: PathBuf,
    kept: PathBuf,
    at: u64,
}

impl CutTail {
    /// Forgets the tail.
    pub(crate) fn discard(self) -> Result<()> {
        std::fs::remove_file(self.kept)
    }

    /// Makes the journal what it was.
    pub(crate) fn put_back(self) -> Result<()> {
        let mut file = OpenOptions::new().write(true).open(&self.journal)?;
        file.set_len(self.at)?;
        file.seek(SeekFrom::Start(self.at))?;
        std::io::copy(&mut File::open(&self.kept)?, &mut file)?;
        file.sync_all()?;
        std::fs::remove_file(self.kept)
    }
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
