//! Finds the end of the good batches in a journal of fjall 3, for the one case in which that library refuses to open
//! instead of dropping a torn tail: a crash left the last batch with its end marker and a hole before it (pages reach the
//! disk in any order, and a hole within a large value looks like a value). Only reads.
//!
//! A journal is a sequence of batches: a start marker (tag 1, item count u32, sequence number u64), items (tag 2, value type
//! u8, compression u8, keyspace u64, key length u16, value length u32, stored length u32, key, stored value) and clears
//! (tag 4, keyspace u64), and an end marker (tag 3, xxh3-64 of the items' bytes, `FJL` and 3). All little-endian.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Result};
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

/// Room for reading ahead; journals are tens of megabytes.
const READ_BYTES: usize = 1 << 20;
const END_MAGIC: [u8; 4] = *b"FJL\x03";

/// Bytes from the journal's start to the end of its last batch that is whole, counting only batches that follow each other
/// without a gap.
pub(crate) fn good_bytes(journal: &Path) -> Result<u64> {
    let mut reader = Counting { inner: BufReader::with_capacity(READ_BYTES, File::open(journal)?), at: 0 };
    let mut good = 0;
    loop {
        match batch_is_whole(&mut reader) {
            Ok(true) => good = reader.at,
            Ok(false) => return Ok(good),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(good),
            Err(error) => return Err(error),
        }
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
