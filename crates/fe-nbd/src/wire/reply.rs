//! Replies of the transmission phase, encoded.

use super::{
    CONTEXT_ALLOCATION_ID, REPLY_FLAG_DONE, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, option_reply::clip, reply_type,
};
use crate::errno::Errno;

/// Bytes of a simple reply, without data.
pub const SIMPLE_BYTES: usize = 16;
/// Bytes of the header of a structured reply's chunk.
pub const CHUNK_BYTES: usize = 20;
/// Bytes before the data of a structured read: the chunk's header and the offset.
pub const CHUNK_DATA_BYTES: usize = CHUNK_BYTES + 8;

/// A simple reply; `None` is success.
pub fn simple(cookie: u64, errno: Option<Errno>) -> [u8; SIMPLE_BYTES] {
    let mut bytes = [0; SIMPLE_BYTES];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&errno.map_or(0, Errno::code).to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// Header of the only chunk of a structured reply.
fn only_chunk(cookie: u64, kind: u16, length: usize) -> [u8; CHUNK_BYTES] {
    let mut bytes = [0; CHUNK_BYTES];
    bytes[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&REPLY_FLAG_DONE.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..].copy_from_slice(&(length as u32).to_be_bytes());
    bytes
}

/// Bytes before the data in the reply to a read of `length` bytes.
pub const fn read_header_bytes(structured: bool, length: u32) -> usize {
    match (structured, length) {
        (false, _) => SIMPLE_BYTES,
        // A data chunk must hold at least one byte.
        (true, 0) => CHUNK_BYTES,
        (true, _) => CHUNK_DATA_BYTES,
    }
}

/// Writes the header of a successful read into `header`, which is [`read_header_bytes`] long.
pub fn put_read_header(header: &mut [u8], structured: bool, cookie: u64, offset: u64, length: u32) {
    if !structured {
        header.copy_from_slice(&simple(cookie, None));
    } else if length == 0 {
        header.copy_from_slice(&only_chunk(cookie, reply_type::NONE, 0));
    } else {
        let chunk = only_chunk(cookie, reply_type::OFFSET_DATA, 8 + length as usize);
        header[..CHUNK_BYTES].copy_from_slice(&chunk);
        header[CHUNK_BYTES..].copy_from_slice(&offset.to_be_bytes());
    }
}

/// An error: with its text if the client can take it.
pub fn error(structured: bool, cookie: u64, errno: Errno, message: &str) -> Vec<u8> {
    if !structured {
        return simple(cookie, Some(errno)).to_vec();
    }
    let message = clip(message);
    let mut bytes = only_chunk(cookie, reply_type::ERROR, 6 + message.len()).to_vec();
    bytes.extend_from_slice(&errno.code().to_be_bytes());
    bytes.extend_from_slice(&(message.len() as u16).to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}

/// Extents of `base:allocation`: (length, status), at least one.
pub fn block_status(cookie: u64, extents: &[(u32, u32)]) -> Vec<u8> {
    let length = 4 + 8 * extents.len();
    let mut bytes = Vec::with_capacity(CHUNK_BYTES + length);
    bytes.extend_from_slice(&only_chunk(cookie, reply_type::BLOCK_STATUS, length));
    bytes.extend_from_slice(&CONTEXT_ALLOCATION_ID.to_be_bytes());
    for (length, status) in extents {
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&status.to_be_bytes());
    }
    bytes
}
