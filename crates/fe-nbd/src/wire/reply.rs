//! Replies of the transmission phase, encoded.

use std::ops::Deref;

use super::{
    CONTEXT_ALLOCATION_ID, EXTENDED_REPLY_MAGIC, REPLY_FLAG_DONE, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC,
    option_reply::clip, reply_type,
};
use crate::errno::Errno;

/// Bytes of a simple reply, without data.
pub const SIMPLE_BYTES: usize = 16;
/// Bytes of the header of a structured reply's chunk.
pub const CHUNK_BYTES: usize = 20;
/// Bytes of the header of an extended reply's chunk.
pub const EXTENDED_CHUNK_BYTES: usize = 32;

/// The kind of replies that was agreed on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Replies {
    /// An error number, then the data of a read.
    #[default]
    Simple,
    /// Reads, extents and errors in chunks; otherwise as simple ones.
    Structured,
    /// Everything in chunks, with lengths of 64 bits, of requests too.
    Extended,
}

impl Replies {
    /// Whether reads are answered in chunks.
    pub const fn in_chunks(self) -> bool {
        !matches!(self, Self::Simple)
    }

    /// Bytes of the header of a chunk.
    const fn chunk_bytes(self) -> usize {
        if self.is_extended() { EXTENDED_CHUNK_BYTES } else { CHUNK_BYTES }
    }

    /// Whether headers are the extended ones.
    pub const fn is_extended(self) -> bool {
        matches!(self, Self::Extended)
    }
}

/// The fields of a request that its reply repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Echo {
    /// The client's name for the request.
    pub cookie: u64,
    /// Offset of the request.
    pub offset: u64,
}

/// A reply without data.
#[derive(Debug, Clone, Copy)]
pub struct Short {
    bytes: [u8; EXTENDED_CHUNK_BYTES],
    len: usize,
}

impl Deref for Short {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Success without data.
pub fn done(replies: Replies, echo: Echo) -> Short {
    let mut bytes = [0; EXTENDED_CHUNK_BYTES];
    if replies.is_extended() {
        put_only_chunk(&mut bytes, replies, echo, reply_type::NONE, 0);
        return Short { bytes, len: EXTENDED_CHUNK_BYTES };
    }
    bytes[..SIMPLE_BYTES].copy_from_slice(&simple(echo.cookie, None));
    Short { bytes, len: SIMPLE_BYTES }
}

/// A simple reply; `None` is success.
fn simple(cookie: u64, errno: Option<Errno>) -> [u8; SIMPLE_BYTES] {
    let mut bytes = [0; SIMPLE_BYTES];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&errno.map_or(0, Errno::code).to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// Writes the header of the only chunk of a reply.
fn put_only_chunk(header: &mut [u8], replies: Replies, echo: Echo, kind: u16, length: usize) {
    let magic = if replies.is_extended() { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC };
    header[..4].copy_from_slice(&magic.to_be_bytes());
    header[4..6].copy_from_slice(&REPLY_FLAG_DONE.to_be_bytes());
    header[6..8].copy_from_slice(&kind.to_be_bytes());
    header[8..16].copy_from_slice(&echo.cookie.to_be_bytes());
    if replies.is_extended() {
        header[16..24].copy_from_slice(&echo.offset.to_be_bytes());
        header[24..32].copy_from_slice(&(length as u64).to_be_bytes());
    } else {
        header[16..20].copy_from_slice(&(length as u32).to_be_bytes());
    }
}

/// The same, at the start of a buffer with room for the payload.
fn only_chunk(replies: Replies, echo: Echo, kind: u16, length: usize) -> Vec<u8> {
    let header = replies.chunk_bytes();
    let mut bytes = Vec::with_capacity(header + length);
    bytes.resize(header, 0);
    put_only_chunk(&mut bytes, replies, echo, kind, length);
    bytes
}

/// Bytes before the data in the reply to a read of `length` bytes.
pub const fn read_header_bytes(replies: Replies, length: u64) -> usize {
    match (replies, length) {
        (Replies::Simple, _) => SIMPLE_BYTES,
        // A data chunk must hold at least one byte.
        (_, 0) => replies.chunk_bytes(),
        (..) => replies.chunk_bytes() + 8,
    }
}

/// Writes the header of a successful read into `header`, which is [`read_header_bytes`] long. A read
/// is answered in one piece, so that its offset is that of the request.
pub fn put_read_header(header: &mut [u8], replies: Replies, echo: Echo, length: u64) {
    if !replies.in_chunks() {
        header.copy_from_slice(&simple(echo.cookie, None));
    } else if length == 0 {
        put_only_chunk(header, replies, echo, reply_type::NONE, 0);
    } else {
        put_only_chunk(header, replies, echo, reply_type::OFFSET_DATA, 8 + length as usize);
        header[replies.chunk_bytes()..].copy_from_slice(&echo.offset.to_be_bytes());
    }
}

/// An error: with its text if the client can take it.
pub fn error(replies: Replies, echo: Echo, errno: Errno, message: &str) -> Vec<u8> {
    if !replies.in_chunks() {
        return simple(echo.cookie, Some(errno)).to_vec();
    }
    let message = clip(message);
    let mut bytes = only_chunk(replies, echo, reply_type::ERROR, 6 + message.len());
    bytes.extend_from_slice(&errno.code().to_be_bytes());
    bytes.extend_from_slice(&(message.len() as u16).to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}

/// Extents of `base:allocation`: (length, status), at least one. Lengths are below 4 GiB where
/// headers are not extended.
pub fn block_status(replies: Replies, echo: Echo, extents: &[(u64, u32)]) -> Vec<u8> {
    if replies.is_extended() {
        let mut bytes = only_chunk(replies, echo, reply_type::BLOCK_STATUS_EXT, 8 + 16 * extents.len());
        bytes.extend_from_slice(&CONTEXT_ALLOCATION_ID.to_be_bytes());
        bytes.extend_from_slice(&(extents.len() as u32).to_be_bytes());
        for (length, status) in extents {
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.extend_from_slice(&u64::from(*status).to_be_bytes());
        }
        return bytes;
    }
    let mut bytes = only_chunk(replies, echo, reply_type::BLOCK_STATUS, 4 + 8 * extents.len());
    bytes.extend_from_slice(&CONTEXT_ALLOCATION_ID.to_be_bytes());
    for (length, status) in extents {
        bytes.extend_from_slice(&(*length as u32).to_be_bytes());
        bytes.extend_from_slice(&status.to_be_bytes());
    }
    bytes
}
