//! Mechanism: compress these bytes, decompress those. Owns the codecs' permanent numbers in the
//! format ([`CodecId`]), the names that users give them ([`Codec`]), the reusable contexts of one
//! thread ([`Workspace`]), and trained dictionaries ([`train`], [`EncodeDictionary`],
//! [`DecodeDictionary`]). The choice of a codec is made elsewhere; checksums are verified
//! elsewhere, before anything gets here, but the decoders do not rely on it: hostile bytes give an
//! error or garbage of the right length.

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
