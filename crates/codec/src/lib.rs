//! Mechanism: compress these bytes, decompress those. Owns the codecs' permanent numbers in the format
//! ([`CodecId`]), the names that users give them ([`Codec`]) and the reusable contexts of one thread
//! ([`Workspace`]). Which codec is used for what is decided elsewhere; checksums are verified elsewhere, before
//! anything gets here, but the decoders do not rely on it: hostile bytes give an error or garbage of the right length.

mod choice;
mod error;
mod id;
mod lz4;
mod workspace;
mod zstd;

pub use choice::{Codec, ParseCodecError, ZstdLevel};
pub use error::DecodeError;
pub use id::CodecId;
pub use workspace::{UNIT_BYTES_MAX, Workspace};
