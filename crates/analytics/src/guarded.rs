//! The file below the database, with a checksum in memory of each block that was read or written.
//! Owns the open file and those checksums.
//!
//! `redb` trusts a page once it has compared it with the page above, which it does for all pages
//! when it opens a database with `check_integrity_on_open`: a page that changes on the medium later
//! could end the program. So blocks are noted while that check reads them, and a block that differs
//! when it is read again is an error. The store then opens the file again, which checks it in
//! whole. For the same reason a file that grew or shrank under it is an error: `redb` computes the
//! layout of its next growth from the length.

use std::fmt;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use env::PlacedFile;
use parking_lot::Mutex;
use redb::StorageBackend;

const BLOCK_BYTES: u64 = 4096;

/// Whether a write found no room: that is no damage, and later writes may find some.
#[derive(Clone, Default)]
pub(crate) struct WasFull(Arc<AtomicBool>);

impl WasFull {
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn note<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            use ErrorKind::{FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
            let kinds = [StorageFull, QuotaExceeded, ReadOnlyFilesystem, PermissionDenied, FileTooLarge];
            if kinds.contains(&error.kind()) {
                self.0.store(true, Ordering::Release);
            }
        }
        result
    }
}

pub(crate) struct Guarded {
    file: Box<dyn PlacedFile>,
    was_full: WasFull,
    /// Bytes of the file, from the first look on.
    length: Mutex<Option<u64>>,
    /// By number of the block; none: not known.
    checksums: Mutex<Vec<Option<u32>>>,
}

impl Guarded {
    pub(crate) fn new(file: Box<dyn PlacedFile>, was_full: WasFull) -> Self {
        Self { file, was_full, length: Mutex::default(), checksums: Mutex::default() }
    }

    /// Whole blocks of a range, with their data.
    fn blocks(offset: u64, data: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
        let lead = (offset.next_multiple_of(BLOCK_BYTES) - offset) as usize;
        let first = offset.div_ceil(BLOCK_BYTES) as usize;
        let whole = data.get(lead..).unwrap_or(&[]).chunks_exact(BLOCK_BYTES as usize);
        whole.enumerate().map(move |(number, block)| (first + number, block))
    }
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guarded({:?})", self.file)
    }
}

impl StorageBackend for Guarded {
    fn len(&self) -> Result<u64> {
        let found = self.file.len()?;
        match *self.length.lock().get_or_insert(found) {
            known if known == found => Ok(found),
            known => {
                let text = format!("the file has {found} bytes, and had {known} when this program last changed it");
                Err(Error::new(ErrorKind::InvalidData, text))
            }
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.file.read_at(offset, out)?;
        let mut checksums = self.checksums.lock();
        for (number, block) in Self::blocks(offset, out) {
            if checksums.len() <= number {
                checksums.resize(number + 1, None);
            }
            let found = crc32c::crc32c(block);
            if *checksums[number].get_or_insert(found) != found {
                let text = format!("block {number} is not what was read or written before");
                return Err(Error::new(ErrorKind::InvalidData, text));
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.len()?;
        self.checksums.lock().truncate((len / BLOCK_BYTES) as usize);
        self.was_full.note(self.file.set_len(len))?;
        *self.length.lock() = Some(len);
        Ok(())
    }

    fn sync_data(&self) -> Result<()> {
        self.was_full.note(self.file.sync())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        {
            let mut checksums = self.checksums.lock();
            let end = (offset + data.len() as u64).div_ceil(BLOCK_BYTES) as usize;
            if checksums.len() < end {
                checksums.resize(end, None);
            }
            // Blocks of which only a part is written are not known any more.
            checksums[(offset / BLOCK_BYTES) as usize..end].fill(None);
            for (number, block) in Self::blocks(offset, data) {
                checksums[number] = Some(crc32c::crc32c(block));
            }
        }
        self.was_full.note(self.file.write_at(offset, data))
    }
}
