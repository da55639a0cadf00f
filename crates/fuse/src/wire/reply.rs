//! Payloads of replies. Pure functions.

use std::time::Duration;

use super::attributes::{Attributes, Entry, StatFs};

fn numbers32(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// `struct fuse_out_header` of a reply: `error` is 0 or a negative errno.
pub fn header(unique: u64, error: i32, payload_bytes: usize) -> [u8; super::OUT_HEADER_BYTES] {
    let mut header = [0; super::OUT_HEADER_BYTES];
    // A payload is at most that of the largest request and a page.
    let length = u32::try_from(super::OUT_HEADER_BYTES + payload_bytes).unwrap_or(u32::MAX);
    header[0..4].copy_from_slice(&length.to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..16].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// `struct fuse_entry_out`: answers look-ups and operations that create a name.
pub fn entry(entry: &Entry) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    entry.encode(&mut out);
    out
}

/// `struct fuse_attr_out`.
pub fn attributes(attributes: &Attributes, valid: Duration) -> Vec<u8> {
    let mut out = Vec::with_capacity(104);
    out.extend(valid.as_secs().to_ne_bytes());
    out.extend(numbers32(&[valid.subsec_nanos(), 0]));
    attributes.encode(&mut out);
    out
}

/// How the kernel treats an open file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenFlags(u32);

impl OpenFlags {
    /// No page cache.
    pub const DIRECT_IO: Self = Self(1);
    /// Cached pages stay.
    pub const KEEP_CACHE: Self = Self(1 << 1);
    /// The listing of a directory may be cached.
    pub const CACHE_DIR: Self = Self(1 << 3);
    /// Closing it sends no `FLUSH`.
    pub const NO_FLUSH: Self = Self(1 << 5);
    /// Direct writes may be in flight at the same time.
    pub const PARALLEL_DIRECT_WRITES: Self = Self(1 << 6);

    /// Returns the union of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// `struct fuse_open_out`.
pub fn opened(handle: u64, flags: OpenFlags) -> Vec<u8> {
    let mut out = handle.to_ne_bytes().to_vec();
    out.extend(numbers32(&[flags.0, 0]));
    out
}

/// `struct fuse_write_out`: bytes that were written, or copied by `COPY_FILE_RANGE`.
pub fn written(bytes: u32) -> Vec<u8> {
    numbers32(&[bytes, 0])
}

/// `struct fuse_getxattr_out`: the length of a value or a list.
pub fn xattr_size(bytes: u32) -> Vec<u8> {
    numbers32(&[bytes, 0])
}

/// A 64-bit number: `struct fuse_lseek_out`, `struct fuse_copy_file_range_out`.
pub fn offset(offset: u64) -> Vec<u8> {
    offset.to_ne_bytes().to_vec()
}

/// `struct fuse_ioctl_out` and its data.
pub fn ioctl(result: i32, data: &[u8]) -> Vec<u8> {
    let mut out = numbers32(&[result.cast_unsigned(), 0, 0, 0]);
    out.extend(data);
    out
}

/// `struct fuse_statfs_out`.
pub fn statfs(of: &StatFs) -> Vec<u8> {
    let mut out = Vec::with_capacity(80);
    for number in [of.blocks, of.blocks_free, of.blocks_available, of.files, of.files_free] {
        out.extend(number.to_ne_bytes());
    }
    out.extend(numbers32(&[of.block_bytes, of.name_bytes_max, of.block_bytes, 0, 0, 0, 0, 0, 0, 0]));
    out
}
