//! Options of the handshake: header and data, decoded.

use super::{Cursor, OPTION_MAGIC};

/// Bytes of an option's header.
pub const HEADER_BYTES: usize = 16;

/// Enters transmission in the old way, without error reporting.
pub const EXPORT_NAME: u32 = 1;
/// Give up.
pub const ABORT: u32 = 2;
/// List the exports.
pub const LIST: u32 = 3;
/// Start TLS.
pub const STARTTLS: u32 = 5;
/// Describe an export.
pub const INFO: u32 = 6;
/// Describe an export and enter transmission.
pub const GO: u32 = 7;
/// Use structured replies.
pub const STRUCTURED_REPLY: u32 = 8;
/// List metadata contexts.
pub const LIST_META_CONTEXT: u32 = 9;
/// Select metadata contexts.
pub const SET_META_CONTEXT: u32 = 10;
/// Use headers with lengths of 64 bits.
pub const EXTENDED_HEADERS: u32 = 11;

/// Kinds of information about an export.
pub mod info {
    /// Size and transmission flags; always sent.
    pub const EXPORT: u16 = 0;
    /// The canonical name.
    pub const NAME: u16 = 1;
    /// A text for people.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum sizes of requests.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Header of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionHeader {
    /// Which option.
    pub option: u32,
    /// Bytes of data after the header.
    pub length: u32,
}

impl OptionHeader {
    /// Decodes a header; `None` if the magic is wrong.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let mut cursor = Cursor::new(bytes);
        if cursor.u64()? != OPTION_MAGIC {
            return None;
        }
        Some(Self { option: cursor.u32()?, length: cursor.u32()? })
    }
}

/// Data of `INFO` and `GO`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// Name of the export, any bytes.
    pub name: &'a [u8],
    /// The client wants [`info::NAME`].
    pub wants_name: bool,
    /// The client wants [`info::DESCRIPTION`].
    pub wants_description: bool,
}

impl<'a> InfoRequest<'a> {
    /// Decodes; `None` if lengths are inconsistent.
    pub fn decode(data: &'a [u8]) -> Option<Self> {
        let mut cursor = Cursor::new(data);
        let name = cursor.string()?;
        let mut request = Self { name, wants_name: false, wants_description: false };
        for _ in 0..cursor.u16()? {
            match cursor.u16()? {
                info::NAME => request.wants_name = true,
                info::DESCRIPTION => request.wants_description = true,
                // The export is always described, sizes are always sent, and unknown kinds must be
                // ignored.
                _ => {}
            }
        }
        cursor.is_empty().then_some(request)
    }
}

/// Data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaRequest<'a> {
    /// Name of the export, any bytes.
    pub name: &'a [u8],
    /// Whether there was no query at all.
    pub is_empty: bool,
    /// A query named `base:allocation`.
    pub names_allocation: bool,
    /// A query asked for all of `base:`.
    pub names_base: bool,
}

impl<'a> MetaRequest<'a> {
    /// Decodes; `None` if lengths are inconsistent. Queries of unknown namespaces are ignored, as
    /// required.
    pub fn decode(data: &'a [u8]) -> Option<Self> {
        let mut cursor = Cursor::new(data);
        let name = cursor.string()?;
        let queries = cursor.u32()?;
        let mut request = Self { name, is_empty: queries == 0, names_allocation: false, names_base: false };
        // A query takes at least four bytes, so a false count ends the loop at the end of the data.
        for _ in 0..queries {
            let query = cursor.string()?;
            request.names_allocation |= query == super::CONTEXT_ALLOCATION.as_bytes();
            request.names_base |= query == b"base:";
        }
        cursor.is_empty().then_some(request)
    }
}
