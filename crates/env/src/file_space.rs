//! Space of a file: allocates it, frees it, and distinguishes holes from data. Stateless.

use std::fs::File;
use std::io::{Error, Result};

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

/// Calls fallocate(2) until no signal interrupts it.
pub(crate) fn allocate(file: &File, flags: FallocateFlags, offset: u64, len: u64) -> Result<()> {
    loop {
        match rustix::fs::fallocate(file, flags, offset, len) {
            Err(Errno::INTR) => {}
            other => return other.map_err(Error::from),
        }
    }
}

/// Returns the first byte at or after `offset` that may hold data; see [`crate::Disk::data_from`].
/// Devices have no holes and do not support the query.
pub(crate) fn data_from(file: &File, offset: u64) -> Option<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(found) => Some(found),
        Err(Errno::NXIO) => None,
        Err(_) => Some(offset),
    }
}
