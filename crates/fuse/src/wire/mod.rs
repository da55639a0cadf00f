//! The encoding of the protocol, `include/uapi/linux/fuse.h`: no I/O, no state. All numbers are in
//! the byte order of the machine. Every length in a message of the kernel is checked before it is
//! used.

pub mod attributes;
pub mod errno;
pub mod init;
pub mod listing;
pub mod notify;
pub mod opcode;
pub mod reply;
pub mod request;

mod args;

pub use request::{Malformed, decode};

/// Bytes of `struct fuse_in_header`.
pub const IN_HEADER_BYTES: usize = 40;

/// Bytes of `struct fuse_out_header`.
pub const OUT_HEADER_BYTES: usize = 16;

/// Reads a 32-bit number at an offset; 0 beyond the end.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

/// Reads a 64-bit number at an offset; 0 beyond the end.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|eight| eight.try_into().ok()).map_or(0, u64::from_ne_bytes)
}
