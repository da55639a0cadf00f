//! Compression and decompression of one unit. Owns the codecs' permanent numbers in the format
//! ([`CodecId`]), the names by which users select them ([`Codec`]), the reusable contexts of one
//! thread ([`Workspace`]), and trained dictionaries ([`train`], [`EncodeDictionary`],
//! [`DecodeDictionary`]). Choosing a codec is up to the caller. So is verifying checksums before
//! decoding, but the decoders do not rely on it: hostile bytes yield an error, or garbage of the
//! right length.

mod bytes;
mod bzip2;
mod choice;
mod deflate;
mod dictionary;
mod error;
mod id;
mod level;
mod lz4;
mod lzjb;
mod lzo;
mod training;
mod workspace;
mod zle;
mod zstd;
mod zstd_prefix;

pub use choice::{Codec, ParseCodecError};
pub use dictionary::{DICTIONARY_BYTES_MAX, DecodeDictionary, DictionaryNumber, EncodeDictionary};
pub use error::DecodeError;
pub use id::CodecId;
pub use level::{Bzip2Level, GzipLevel, Level, Lz4HcLevel, ZstdFastLevel, ZstdLevel};
pub use training::{Evaluation, TRAINING_BYTES_MAX, TRAINING_SAMPLES_MIN, evaluate, train};
pub use workspace::{UNIT_BYTES_MAX, Workspace};
