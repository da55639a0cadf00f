//! The namespace's database in the share's own object space: what `redb` asks of storage.
//!
//! The database is file [`ROOT`] of the space, which no directory needs for data. Its first group
//! holds a header: magic 8, length of the database 8, little-endian. The database begins at the
//! second group. The length is written before `redb` syncs a state that uses it, and what is cut
//! off is discarded, so that it reads as zeroes if it comes back.
//!
//! After an error of the storage `redb` does nothing more until it is opened anew. So it is noted
//! if a write found no room: there, opening it anew is all that is needed.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use redb::StorageBackend;
use surface::{ErrorKind, ObjectSpace};

/// The root directory's inode; its file of the space holds the database.
pub(crate) const ROOT: u64 = 1;

const MAGIC: [u8; 8] = *b"SHLTREE1";

/// Where the database begins: behind one group.
const BEGIN: u64 = 128 << 10;

/// The database of a share as storage for `redb`.
pub(crate) struct Backend {
    space: Arc<dyn ObjectSpace>,
    facts: Arc<Facts>,
}

/// Facts of a database that are seen from outside.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    length: AtomicU64,
    /// Something found no room.
    was_full: AtomicBool,
}

impl Facts {
    /// Bytes of the database, those included that are not used.
    pub(crate) fn length(&self) -> u64 {
        self.length.load(Ordering::Acquire)
    }

    /// Whether something that was written found no room.
    pub(crate) fn was_full(&self) -> bool {
        self.was_full.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Backend({})", self.facts.length())
    }
}

impl Backend {
    /// The database of a space; `None` if there is none.
    pub(crate) fn open(space: Arc<dyn ObjectSpace>) -> surface::Result<Option<Self>> {
        let mut header = [0; 16];
        space.read(ROOT, 0, &mut header)?;
        let (magic, length) = header.split_at(8);
        let length = length.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let facts = Facts { length: AtomicU64::new(length), was_full: AtomicBool::new(false) };
        Ok((magic == MAGIC).then(|| Self { space, facts: Arc::new(facts) }))
    }

    /// An empty database; durable with the first sync.
    pub(crate) fn create(space: Arc<dyn ObjectSpace>) -> surface::Result<Self> {
        let backend = Self { space, facts: Arc::default() };
        backend.write_header(0)?;
        Ok(backend)
    }

    pub(crate) fn facts(&self) -> Arc<Facts> {
        self.facts.clone()
    }

    /// Notes what an error means.
    fn failed(&self, error: surface::Error) -> io::Error {
        if error.kind() == ErrorKind::Full {
            self.facts.was_full.store(true, Ordering::Release);
        }
        io::Error::other(error)
    }

    fn write_header(&self, length: u64) -> surface::Result<()> {
        let header = [&MAGIC[..], &length.to_le_bytes()].concat();
        self.space.write(ROOT, 0, Bytes::from(header))
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.facts.length())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.facts.length()) {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        self.space.read(ROOT, BEGIN + offset, out).map_err(|error| self.failed(error))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let before = self.facts.length();
        self.write_header(len).map_err(|error| self.failed(error))?;
        self.facts.length.store(len, Ordering::Release);
        if len < before {
            self.space.discard(ROOT, BEGIN + len..BEGIN + before).map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.space.flush().map_err(|error| self.failed(error))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.space.write(ROOT, BEGIN + offset, Bytes::copy_from_slice(data)).map_err(|error| self.failed(error))
    }
}
