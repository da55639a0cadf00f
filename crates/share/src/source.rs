//! The storage of a database that `redb` only reads, because it may be damaged or crafted. Owns the
//! bounds of such a reading.
//!
//! `redb` opens it as one reader next to a writer in another process (`ConcurrencyMode`). Such a
//! reader reads the head and the tables, never `redb`'s own tables of free pages, allocates nothing
//! by the length of the database, and writes nothing. The locks between processes, which it
//! asks for, are all free here.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;
use redb::{BackendError, StorageBackend};
use surface::ObjectSpace;

use crate::backend::{self, DatabaseFile, PAGE_BYTES};
use crate::contained::outside;

/// The longest page that is read. The largest value is an extended attribute, 64 KiB.
pub(crate) const PAGE_BYTES_MAX: usize = 1 << 20;

/// Reads of a table beyond those that its pages account for: some hundreds to find the end of each
/// damaged place.
const READS: u64 = 1 << 21;

/// Reads per page: passes over its table, and each opening of the database.
const READS_PER_PAGE: u64 = 8;

/// Pages whose bits are stored together.
const CHUNK_PAGES: u64 = 256;

/// Reads that are left. Pages may refer to each other in a way that a pass over a table, or a
/// search in it, would not end in this century: so each different page pays for some reads.
pub(crate) struct Budget(Mutex<Left>);

struct Left {
    reads: u64,
    /// A page asked for too much: no page pays any more.
    is_spent: bool,
    met: HashMap<u64, [u64; (CHUNK_PAGES / 64) as usize]>,
}

impl Budget {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Left { reads: READS, is_spent: false, met: HashMap::new() })))
    }

    /// Takes all that are left.
    fn spend(&self) {
        let mut left = self.0.lock();
        (left.reads, left.is_spent) = (0, true);
    }

    /// Takes a read of the page at an offset; `false` if none is left.
    fn take(&self, offset: u64) -> bool {
        let mut left = self.0.lock();
        let page = offset / PAGE_BYTES;
        let (word, bit) = ((page % CHUNK_PAGES / 64) as usize, 1 << (page % 64));
        let met = &mut left.met.entry(page / CHUNK_PAGES).or_default()[word];
        let is_new = *met & bit == 0;
        *met |= bit;
        if is_new && !left.is_spent {
            left.reads += READS_PER_PAGE;
        }
        left.reads = match left.reads.checked_sub(1) {
            Some(reads) => reads,
            None => return false,
        };
        true
    }
}

/// A database in a space, for reading.
pub(crate) struct Source {
    space: Arc<dyn ObjectSpace>,
    place: DatabaseFile,
    length: u64,
    budget: Arc<Budget>,
}

impl Source {
    pub(crate) fn new(space: Arc<dyn ObjectSpace>, place: DatabaseFile, length: u64, budget: Arc<Budget>) -> Self {
        Self { space, place, length, budget }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({:?})", self.place)
    }
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn read_only<T>() -> io::Result<T> {
    Err(io::Error::from(io::ErrorKind::ReadOnlyFilesystem))
}

impl StorageBackend for Source {
    fn len(&self) -> io::Result<u64> {
        Ok(self.length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let is_within = offset.checked_add(out.len() as u64).is_some_and(|end| end <= self.length);
        if out.len() > PAGE_BYTES_MAX {
            // `redb` allocates memory for a page before it asks for it: once is enough.
            self.budget.spend();
        }
        if !is_within || out.len() > PAGE_BYTES_MAX {
            return Err(invalid("a page of the names is past their end, or too long"));
        }
        // The head is not a page, and is read at each opening.
        if offset >= PAGE_BYTES && !self.budget.take(offset) {
            return Err(invalid("the pages of the names refer to each other in circles"));
        }
        let read = outside(|| self.space.read(self.place.file(), self.place.begin() + offset, out));
        read.map_err(io::Error::other)?;
        if backend::is_missing(offset, out) { Err(invalid("a page of the names is lost")) } else { Ok(()) }
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        read_only()
    }

    fn sync_data(&self) -> io::Result<()> {
        read_only()
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        read_only()
    }

    fn try_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn try_lock_shared_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }

    fn lock_shared_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }

    fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }

    /// A reader asks twice. With a range: whether programs with other locks have the database open;
    /// there are none. With one byte: whether a writer accounts for a head that was not closed. The
    /// server that ended without closing it does: its commits are in two phases, so the pages
    /// that the head refers to were durable before it.
    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        Ok(start == end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_pay_for_a_bounded_number_of_reads() {
        let budget = Budget::new();
        let pages = 1000;
        let mut taken = 0;
        while budget.take((1 + taken % pages) * PAGE_BYTES) {
            taken += 1;
            assert!(taken <= READS + pages * READS_PER_PAGE);
        }
        assert_eq!(taken, READS + pages * READS_PER_PAGE);
        // A page that was not met before pays for itself.
        assert!(budget.take(PAGE_BYTES * 5000));
        budget.spend();
        assert!(!budget.take(PAGE_BYTES * 5001));
    }
}
