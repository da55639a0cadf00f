//! The semantics of read, write, fallocate and lseek on a block device of fixed size: end of range,
//! holes, preallocation. Knows neither the protocol nor names.
//!
//! The rules, where POSIX leaves a choice:
//! - A write that crosses the end is truncated there, one that starts at or past the end fails with
//!   `EFBIG`: to the kernel, the size of the device is the maximum size of the file. (Not `ENOSPC`,
//!   which must mean that the pool is full.)
//! - Opening with `O_TRUNC` discards everything; "Sizes" in the crate's documentation gives the
//!   reason. `cp` and `dd` may then set the length to what they have copied: a smaller size is
//!   accepted if only holes lie past it, because nothing is lost and they see the expected result.
//!   Every other change of the size fails with `EPERM`, as truncate(2) specifies for file systems
//!   without support.
//! - Plain preallocation (`fallocate` with mode 0 or `KEEP_SIZE`) within the size succeeds and does
//!   nothing. A thin, compressed store cannot reserve space for unknown data (ZFS does the same).
//!   Refusing would be worse: on `EOPNOTSUPP`, `posix_fallocate` of glibc reads and rewrites each
//!   block.
//! - `ZERO_RANGE` frees the space like `PUNCH_HOLE`: it guarantees zeroes, and no more than
//!   preallocation does.

use bytes::Bytes;
use fuse::Errno;
use surface::{Allocation, BlockDevice, Error, ErrorKind, WriteOptions, ZeroOptions};

/// Why an operation was not done.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The device refused or failed; its message has the reason.
    Device(Error),
    /// The rules of a file of fixed size.
    Rule(Errno),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Device(error)
    }
}

/// Fills `buf` from `offset`, and returns how many bytes lie before the end of the device.
pub(crate) fn read(device: &dyn BlockDevice, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
    let mut size = device.size_bytes();
    loop {
        let length = length_within(offset, buf.len() as u64, size);
        if length == 0 {
            return Ok(0);
        }
        match device.read(offset, &mut buf[..length]) {
            Ok(()) => return Ok(length),
            // It may have shrunk between the two calls; only a new size is a reason to try again,
            // so this ends.
            Err(error) if error.kind() == ErrorKind::Invalid && device.size_bytes() < size => {
                size = device.size_bytes()
            }
            Err(error) => return Err(error),
        }
    }
}

/// Like [`read`], if the device can answer from memory.
pub(crate) fn read_cached(device: &dyn BlockDevice, offset: u64, buf: &mut [u8]) -> Result<Option<usize>, Error> {
    let length = length_within(offset, buf.len() as u64, device.size_bytes());
    if length == 0 {
        return Ok(Some(0));
    }
    match device.read_cached(offset, &mut buf[..length]) {
        Ok(done) => Ok(done.then_some(length)),
        // A race with a shrinking device: `read` sorts it out.
        Err(error) if error.kind() == ErrorKind::Invalid => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes `data` at `offset`, up to the end of the device; returns how much.
pub(crate) fn write(device: &dyn BlockDevice, offset: u64, mut data: Bytes, fua: bool) -> Result<usize, Failure> {
    let length = length_within(offset, data.len() as u64, device.size_bytes());
    if length == 0 {
        return if data.is_empty() { Ok(0) } else { Err(Failure::Rule(Errno::EFBIG)) };
    }
    data.truncate(length);
    device.write(offset, data, WriteOptions { fua })?;
    Ok(length)
}

/// `open(2)` with `O_TRUNC`: returns how many bytes held data, as far as is known.
pub(crate) fn empty(device: &dyn BlockDevice) -> Result<u64, Error> {
    let allocated = device.allocated_bytes();
    device.discard(0, device.size_bytes())?;
    Ok(allocated)
}

/// Decides whether `truncate(2)` or `ftruncate(2)` of a file of `is` bytes is accepted, as a change
/// without effect. `emptied`: the device, if the file was opened with `O_TRUNC`.
pub(crate) fn truncate(emptied: Option<&dyn BlockDevice>, is: u64, size: u64) -> Result<(), Failure> {
    if size == is {
        return Ok(());
    }
    if let Some(device) = emptied.filter(|_| size < is) {
        return match seek(device, size, Allocation::Data) {
            Err(Failure::Rule(Errno::ENXIO)) => Ok(()),
            Err(failure) => Err(failure),
            Ok(_) => Err(Failure::Rule(Errno::EPERM)),
        };
    }
    Err(Failure::Rule(Errno::EPERM))
}

/// `fallocate(2)`.
pub(crate) fn allocate(device: &dyn BlockDevice, offset: u64, length: u64, mode: i32) -> Result<(), Failure> {
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    let size = device.size_bytes();
    let within = length_within(offset, length, size) as u64;
    let crosses_end = within < length;
    match mode {
        libc::FALLOC_FL_ZERO_RANGE | 0 if crosses_end => Err(Failure::Rule(Errno::EFBIG)),
        PUNCH | ZERO_KEEP | libc::FALLOC_FL_ZERO_RANGE if within == 0 => Ok(()),
        PUNCH => Ok(device.discard(offset, within)?),
        ZERO_KEEP | libc::FALLOC_FL_ZERO_RANGE => {
            Ok(device.write_zeroes(offset, within, ZeroOptions { fua: false, no_hole: false })?)
        }
        0 | libc::FALLOC_FL_KEEP_SIZE => Ok(()),
        _ => Err(Failure::Rule(Errno::EOPNOTSUPP)),
    }
}

/// `lseek(2)` with `SEEK_DATA` or `SEEK_HOLE`. The end of the device is a hole.
pub(crate) fn seek(device: &dyn BlockDevice, offset: u64, wanted: Allocation) -> Result<u64, Failure> {
    let size = device.size_bytes();
    let mut at = offset;
    while at < size {
        // Two runs suffice: either the first or the second is the wanted one; the loop is for
        // truncated answers.
        let runs = device.allocation(at, size - at, 2)?;
        let before = at;
        for run in runs {
            if run.allocation == wanted {
                return Ok(at);
            }
            at = at.saturating_add(run.length);
        }
        if at == before {
            return Err(Failure::Device(Error::new(
                ErrorKind::Io,
                format!("no allocation was reported for offset {at} of {size} bytes"),
            )));
        }
    }
    match wanted {
        Allocation::Hole if offset < size => Ok(size),
        _ => Err(Failure::Rule(Errno::ENXIO)),
    }
}

/// How many of `length` bytes from `offset` lie before `size`.
fn length_within(offset: u64, length: u64, size: u64) -> usize {
    usize::try_from(size.saturating_sub(offset).min(length)).unwrap_or(usize::MAX)
}
