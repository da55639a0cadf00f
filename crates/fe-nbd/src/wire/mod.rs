//! The NBD protocol's numbers and messages: decoding and encoding, no I/O, no state. Everything is
//! big-endian. The normative text is the NBD project's `doc/proto.md`; names here are its names
//! without `NBD_`. Public only for the fuzz targets.

pub mod option;
pub mod option_reply;
pub mod reply;
pub mod request;

/// First bytes of the server: "NBDMAGIC".
pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second word of the server, and first of each option: "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First word of each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First word of each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The same with extended headers.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// First word of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// First word of a chunk of a reply with extended headers.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Largest payload of a read or a write, as announced to clients. The protocol's recommended
/// minimum for portability; qemu, libnbd and the kernel stay below it.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// Longest string of the protocol (export names, queries, error messages).
pub const STRING_BYTES_MAX: usize = 4096;

/// Flags of the greeting, both directions.
pub mod handshake_flag {
    /// Fixed newstyle: options may be refused without closing.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The 124 zero bytes after the reply to `EXPORT_NAME` are omitted.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Capabilities of an export, sent when it is opened.
pub mod transmission_flag {
    /// The other flags mean something.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Every change is refused with `EPERM`.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` works.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The `FUA` flag works.
    pub const SEND_FUA: u16 = 1 << 3;
    /// `TRIM` works.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` works.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The `DF` flag works; only with structured replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers writes answered on all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `CACHE` works.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The `FAST_ZERO` flag works.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Commands of the transmission phase.
pub mod command {
    /// Read bytes.
    pub const READ: u16 = 0;
    /// Write bytes.
    pub const WRITE: u16 = 1;
    /// Finish requests in flight and close.
    pub const DISC: u16 = 2;
    /// Make answered writes durable.
    pub const FLUSH: u16 = 3;
    /// Give space back.
    pub const TRIM: u16 = 4;
    /// Bring into memory.
    pub const CACHE: u16 = 5;
    /// Make a range read as zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// Report the allocation.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of a request.
pub mod command_flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// Zeroes stay allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// One content chunk at most.
    pub const DF: u16 = 1 << 2;
    /// One extent only.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail with `ENOTSUP` rather than write zeroes slowly.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// The length is that of a payload which follows; only with extended headers.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Flag of a structured reply: the last chunk of this reply.
pub const REPLY_FLAG_DONE: u16 = 1;

/// Types of chunks of a structured reply.
pub mod reply_type {
    /// Success without content.
    pub const NONE: u16 = 0;
    /// Data with its offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Extents of a metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// The same with lengths of 64 bits.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// An error with a message.
    pub const ERROR: u16 = 0x8001;
}

/// The one metadata context that is served.
pub const CONTEXT_ALLOCATION: &str = "base:allocation";
/// The id given to [`CONTEXT_ALLOCATION`]; any number does.
pub const CONTEXT_ALLOCATION_ID: u32 = 1;

/// Status bits of `base:allocation`.
pub mod state {
    /// Not stored.
    pub const HOLE: u32 = 1 << 0;
    /// Reads as zeroes.
    pub const ZERO: u32 = 1 << 1;
}

/// A cursor over bytes that we did not make: every read is checked.
#[derive(Debug, Clone)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
    /// Returns the next `count` bytes, if there are that many.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }
    /// Returns the next `N` bytes, if there are that many.
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }
    /// A 16-bit number.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }
    /// A 32-bit number.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }
    /// A 64-bit number.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
    /// A string preceded by its 32-bit length, at most [`STRING_BYTES_MAX`] long.
    pub fn string(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        if length > STRING_BYTES_MAX {
            return None;
        }
        self.bytes(length)
    }
    /// Whether nothing is left.
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}
