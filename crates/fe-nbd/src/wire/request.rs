//! Header of a request of the transmission phase, decoded.

use super::{Cursor, EXTENDED_REQUEST_MAGIC, REQUEST_MAGIC};

/// Bytes of a request's header.
pub const HEADER_BYTES: usize = 28;
/// Bytes of an extended one.
pub const EXTENDED_HEADER_BYTES: usize = 32;

/// Header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// Flags ([`super::command_flag`]).
    pub flags: u16,
    /// Which command ([`super::command`]).
    pub command: u16,
    /// The client's name for the request, returned in the reply.
    pub cookie: u64,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes on the device; also of the payload, if the command is a write.
    pub length: u64,
}

/// Bytes of a request's header.
pub const fn header_bytes(extended: bool) -> usize {
    if extended { EXTENDED_HEADER_BYTES } else { HEADER_BYTES }
}

impl RequestHeader {
    /// Decodes a header, which is [`header_bytes`] long; `None` if the magic is wrong: the rest of
    /// the stream cannot be interpreted then.
    pub fn decode(bytes: &[u8], extended: bool) -> Option<Self> {
        let mut cursor = Cursor::new(bytes);
        if cursor.u32()? != magic(extended) {
            return None;
        }
        Some(Self {
            flags: cursor.u16()?,
            command: cursor.u16()?,
            cookie: cursor.u64()?,
            offset: cursor.u64()?,
            length: if extended { cursor.u64()? } else { u64::from(cursor.u32()?) },
        })
    }

    /// Encodes, for tests and fuzz seeds. Without extended headers the length has 32 bits.
    pub fn encode(&self, extended: bool) -> Vec<u8> {
        let mut bytes = magic(extended).to_be_bytes().to_vec();
        bytes.extend(self.flags.to_be_bytes());
        bytes.extend(self.command.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(self.offset.to_be_bytes());
        bytes.extend(&self.length.to_be_bytes()[if extended { 0 } else { 4 }..]);
        bytes
    }
}

const fn magic(extended: bool) -> u32 {
    if extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC }
}
