//! The namespace's database in the share's own object space: the storage backend of `redb`.
//!
//! The database is in one of two files; file [`ROOT`] of the space, which no directory needs for
//! data, records which. The first block of each has a header: magic 8, length of the database 8,
//! little-endian; and in `ROOT`, the location of the database 8: 0 for `ROOT` itself, else
//! [`SECOND`]. A database rebuilt because the other one is damaged becomes current when that number
//! is written. The database begins at the second group of its file. The length is written before
//! `redb` syncs a state that uses it, and truncated bytes are discarded, so that they read as
//! zeroes if the file grows again.
//!
//! `redb` trusts the pages that it reads: an inconsistent one would end the program. So each page
//! read is checked (`shapes`), and an invalid one is an error. The space stores these files once more
//! than others, and repairs what the medium damages.
//!
//! After a storage error `redb` does nothing more until it is reopened. So the backend records
//! whether a write found no space, or a page is damaged: in these cases, reopening is sufficient.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use redb::StorageBackend;
use surface::{ErrorKind, ObjectSpace};

use crate::pages;
use crate::shapes::Shapes;

/// The root directory's inode; its file of the space holds the database.
pub(crate) const ROOT: u64 = 1;

const MAGIC: [u8; 8] = *b"SHLTREE1";

/// The other file that may hold it.
pub(crate) const SECOND: u64 = 3;

/// Offset of the database: after one group.
const BEGIN: u64 = 128 << 10;

/// A header with the rest of its block, so that a damaged one can be rewritten.
const HEADER_BLOCK: usize = 4096;

/// Bytes of a page of `redb`, and the possible values of its first byte: a leaf, or a branch.
pub(crate) const PAGE_BYTES: u64 = 4096;
pub(crate) const LEAF: u8 = 1;
pub(crate) const BRANCH: u8 = 2;

/// Which file the database is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DatabaseFile {
    /// [`ROOT`].
    First,
    /// [`SECOND`].
    Second,
}

impl DatabaseFile {
    pub(crate) fn file(self) -> u64 {
        match self {
            Self::First => ROOT,
            Self::Second => SECOND,
        }
    }

    /// Where the database begins in the file.
    pub(crate) fn begin(self) -> u64 {
        BEGIN
    }

    pub(crate) fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// Number of this file in a header.
    fn number(self) -> u64 {
        match self {
            Self::First => 0,
            Self::Second => SECOND,
        }
    }
}

/// The database of a share as storage for `redb`.
pub(crate) struct Backend {
    space: Arc<dyn ObjectSpace>,
    place: DatabaseFile,
    /// The file named by the header in `ROOT`.
    counts: DatabaseFile,
    facts: Arc<Facts>,
    shapes: Shapes,
}

/// Location and length of the database of a space; `None` if there is none.
pub(crate) fn read_header(space: &dyn ObjectSpace) -> surface::Result<Option<(DatabaseFile, u64)>> {
    let read = |file| -> surface::Result<Option<[u64; 2]>> {
        let mut header = [0; 24];
        space.read(file, 0, &mut header)?;
        let number = |at: usize| header[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Ok((header[..8] == MAGIC).then(|| [number(8), number(16)]))
    };
    Ok(match read(ROOT)? {
        None => None,
        Some([_, SECOND]) => read(SECOND)?.map(|[length, _]| (DatabaseFile::Second, length)),
        Some([length, _]) => Some((DatabaseFile::First, length)),
    })
}

/// The current database, as far as it can be determined; `None`: there is no evidence of one.
pub(crate) fn current_file(space: &dyn ObjectSpace) -> Option<DatabaseFile> {
    match read_header(space) {
        Ok(Some((place, _))) => Some(place),
        // The header is lost, and a database identifies its own location.
        _ => pages::found_without_header(space),
    }
}

/// Facts of a database that are seen from outside.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    length: AtomicU64,
    /// Something found no room.
    was_full: AtomicBool,
    /// Something could not be read.
    was_damaged: AtomicBool,
    /// Something could not be written, and not for want of room.
    has_failed: AtomicBool,
}

impl Facts {
    /// Bytes of the database, those included that are not used.
    pub(crate) fn length(&self) -> u64 {
        self.length.load(Ordering::Acquire)
    }

    /// Whether something could not be read.
    pub(crate) fn was_damaged(&self) -> bool {
        self.was_damaged.load(Ordering::Acquire)
    }

    /// Whether something could not be read, and all that was written was written.
    pub(crate) fn is_only_damaged(&self) -> bool {
        self.was_damaged() && !self.was_full() && !self.has_failed.load(Ordering::Acquire)
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
    /// Opens the database of a space; `None` if there is none.
    pub(crate) fn open(space: Arc<dyn ObjectSpace>) -> surface::Result<Option<Self>> {
        let Some((place, length)) = read_header(&*space)? else { return Ok(None) };
        let facts = Facts { length: AtomicU64::new(length), ..Facts::default() };
        Ok(Some(Self { space, place, counts: place, facts: Arc::new(facts), shapes: Shapes::default() }))
    }

    /// An empty database; durable with the first sync.
    pub(crate) fn create(space: Arc<dyn ObjectSpace>) -> surface::Result<Self> {
        Self::create_in(space, DatabaseFile::First, DatabaseFile::First)
    }

    /// Creates an empty database in a file, while the one in `counts` stays current.
    pub(crate) fn create_in(
        space: Arc<dyn ObjectSpace>,
        place: DatabaseFile,
        counts: DatabaseFile,
    ) -> surface::Result<Self> {
        let backend = Self { space, place, counts, facts: Arc::default(), shapes: Shapes::default() };
        backend.write_header(0)?;
        Ok(backend)
    }

    /// Which file it is in.
    pub(crate) fn place(&self) -> DatabaseFile {
        self.place
    }

    /// Initialises the database with `head`, and a length of `length` bytes, no more than it has.
    /// Must be called first.
    ///
    /// # Errors
    /// Those of the space.
    pub(crate) fn initialize(&self, head: [u8; pages::HEAD_BYTES], length: u64) -> surface::Result<()> {
        self.space.write(self.place.file(), BEGIN, Bytes::copy_from_slice(&head))?;
        if length < self.facts.length() {
            self.write_header(length)?;
            self.facts.length.store(length, Ordering::Release);
            self.space.discard(self.place.file(), BEGIN + length..u64::MAX)?;
        }
        Ok(())
    }

    pub(crate) fn facts(&self) -> Arc<Facts> {
        self.facts.clone()
    }

    /// Records the consequence of a failed write.
    fn failed(&self, error: surface::Error) -> io::Error {
        let noted = if error.kind() == ErrorKind::Full { &self.facts.was_full } else { &self.facts.has_failed };
        noted.store(true, Ordering::Release);
        io::Error::other(error)
    }

    /// Whether bytes that were read are those of a page, or of a head.
    fn is_right(&self, offset: u64, out: &[u8], is_page: bool) -> bool {
        if is_page {
            // Also for pages that this database wrote itself.
            let is_one = out.first().is_some_and(|kind| [LEAF, BRANCH].contains(kind));
            return is_one && self.shapes.is_right(offset, out, || pages::roots(&*self.space, self.place));
        }
        offset > 0 || out.first_chunk().is_none_or(pages::is_head_right)
    }

    fn write_header(&self, length: u64) -> surface::Result<()> {
        write_header(&*self.space, self.place, length, self.counts)
    }
}

fn write_header(
    space: &dyn ObjectSpace,
    place: DatabaseFile,
    length: u64,
    counts: DatabaseFile,
) -> surface::Result<()> {
    let mut header = [&MAGIC[..], &length.to_le_bytes()].concat();
    if place == DatabaseFile::First {
        header.extend(counts.number().to_le_bytes());
    }
    header.resize(HEADER_BLOCK, 0);
    space.write(place.file(), 0, Bytes::from(header))
}

/// Has the database at a place, which is durable, count from now on; the other one goes when this
/// is durable.
///
/// # Errors
/// Those of the space.
pub(crate) fn make_current(space: &dyn ObjectSpace, place: DatabaseFile, length: u64) -> surface::Result<()> {
    let first_length = if place == DatabaseFile::First { length } else { 0 };
    write_header(space, DatabaseFile::First, first_length, place)?;
    space.flush()?;
    discard(space, place.other())?;
    space.flush()
}

/// Discards a database that does not count.
///
/// # Errors
/// Those of the space.
pub(crate) fn discard(space: &dyn ObjectSpace, place: DatabaseFile) -> surface::Result<()> {
    match place {
        // The header stays: it names the current database.
        DatabaseFile::First => space.discard(ROOT, BEGIN..u64::MAX),
        DatabaseFile::Second => space.discard(SECOND, 0..u64::MAX),
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.facts.length())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let length = self.facts.length();
        let is_page = offset >= PAGE_BYTES && out.len() as u64 >= PAGE_BYTES;
        let is_within = offset.checked_add(out.len() as u64).is_some_and(|end| end <= length);
        let read = if is_within {
            self.space.read(self.place.file(), BEGIN + offset, out).map_err(io::Error::other)
        } else {
            Err(io::Error::from(io::ErrorKind::UnexpectedEof))
        };
        let read = read.and_then(|()| {
            let text = || format!("a page of the names is damaged, at byte {offset}: run shale check for details");
            self.is_right(offset, out, is_page)
                .then_some(())
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, text()))
        });
        read.inspect_err(|_| self.facts.was_damaged.store(true, Ordering::Release))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let before = self.facts.length();
        self.write_header(len).map_err(|error| self.failed(error))?;
        self.facts.length.store(len, Ordering::Release);
        if len < before {
            self.space.discard(self.place.file(), BEGIN + len..BEGIN + before).map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.space.flush().map_err(|error| self.failed(error))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let data = Bytes::copy_from_slice(data);
        self.shapes.written(offset);
        self.space.write(self.place.file(), BEGIN + offset, data).map_err(|error| self.failed(error))
    }
}
