//! The namespace's database in the share's own object space: what `redb` asks of storage.
//!
//! The database is file [`ROOT`] of the space, which no directory needs for data. Its first group holds a header: magic 8,
//! length of the database 8, little-endian. The database begins at the second group. The length is written before
//! `redb` syncs a state that uses it, and what is cut off is discarded, so that it reads as zeroes if it comes back.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use redb::StorageBackend;
use surface::ObjectSpace;

/// The root directory's inode; its file of the space holds the database.
pub(crate) const ROOT: u64 = 1;

const MAGIC: [u8; 8] = *b"SHLTREE1";

/// Where the database begins: behind one group.
const BEGIN: u64 = 128 << 10;

/// The database of a share as storage for `redb`.
pub(crate) struct Backend {
    space: Arc<dyn ObjectSpace>,
    length: AtomicU64,
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Backend({})", self.length.load(Ordering::Relaxed))
    }
}

impl Backend {
    /// The database of a space; `None` if there is none.
    pub(crate) fn open(space: Arc<dyn ObjectSpace>) -> surface::Result<Option<Self>> {
        let mut header = [0; 16];
        space.read(ROOT, 0, &mut header)?;
        let (magic, length) = header.split_at(8);
        let length = length.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Ok((magic == MAGIC).then(|| Self { space, length: AtomicU64::new(length) }))
    }

    /// An empty database; durable with the first sync.
    pub(crate) fn create(space: Arc<dyn ObjectSpace>) -> surface::Result<Self> {
        let backend = Self { space, length: AtomicU64::new(0) };
        backend.write_header(0)?;
        Ok(backend)
    }

    fn write_header(&self, length: u64) -> surface::Result<()> {
        let header = [&MAGIC[..], &length.to_le_bytes()].concat();
        self.space.write(ROOT, 0, Bytes::from(header))
    }
}

fn failed(error: surface::Error) -> io::Error {
    io::Error::other(error)
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.length.load(Ordering::Acquire))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.length.load(Ordering::Acquire)) {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        self.space.read(ROOT, BEGIN + offset, out).map_err(failed)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let before = self.length.swap(len, Ordering::AcqRel);
        self.write_header(len).map_err(failed)?;
        if len < before {
            self.space.discard(ROOT, BEGIN + len..BEGIN + before).map_err(failed)?;
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.space.flush().map_err(failed)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.space.write(ROOT, BEGIN + offset, Bytes::copy_from_slice(data)).map_err(failed)
    }
}
