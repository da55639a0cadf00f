//! Header of a request of the transmission phase, decoded.

use super::{Cursor, REQUEST_MAGIC};

/// Bytes of a request's header.
pub const HEADER_BYTES: usize = 28;

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
    pub length: u32,
}

impl RequestHeader {
    /// Decodes a header; `None` if the magic is wrong: the rest of the stream cannot be interpreted
    /// then.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let mut cursor = Cursor::new(bytes);
        if cursor.u32()? != REQUEST_MAGIC {
            return None;
        }
        Some(Self {
            flags: cursor.u16()?,
            command: cursor.u16()?,
            cookie: cursor.u64()?,
            offset: cursor.u64()?,
            length: cursor.u32()?,
        })
    }

    /// Encodes, for tests and fuzz seeds.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}
