//! The two ioctls of a block device that no safe wrapper provides.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;

/// `_IO(0x12, 119)`: discard a range, given as offset and length in bytes.
const BLKDISCARD: libc::c_ulong = 0x1277;
/// `_IOR(0x12, 114, size_t)`: size in bytes.
#[cfg(target_pointer_width = "64")]
const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;

/// Size of the device.
pub(crate) fn size_bytes(device: &File) -> Result<u64> {
    let mut size = 0u64;
    // SAFETY: the ioctl writes a u64 to the pointer, which is valid for that.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), BLKGETSIZE64, &raw mut size) };
    if done == 0 { Ok(size) } else { Err(Error::last_os_error()) }
}

/// Discards a range of the device.
pub(crate) fn discard(device: &File, offset: u64, len: u64) -> Result<()> {
    let range = [offset, len];
    // SAFETY: the ioctl reads two u64 from the pointer, which is valid for that.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), BLKDISCARD, range.as_ptr()) };
    if done == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}
