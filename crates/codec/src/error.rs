//! Why bytes cannot be decoded.

use std::fmt;

use crate::{CodecId, DictionaryNumber};

/// Why a fragment's payload could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    /// This version has no codec with that number: the data is damaged, or written by a later
    /// version.
    UnknownCodec(CodecId),
    /// The payload is not a valid stream of its codec, or does not decode to the expected length.
    Malformed {
        /// Codec it should be.
        codec: CodecId,
        /// Bytes of payload.
        stored: usize,
        /// Bytes that it should decode to.
        raw: usize,
    },
    /// The payload was compressed with a dictionary that the caller did not supply.
    MissingDictionary(DictionaryNumber),
    /// Memory for the decoder's context could not be had.
    OutOfMemory,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownCodec(id) => write!(f, "this version cannot decode {id} (number {} in the format)", id.0),
            Self::Malformed { codec, stored, raw } => {
                write!(f, "{stored} bytes are not {codec} data of {raw} bytes")
            }
            Self::MissingDictionary(number) => write!(f, "dictionary {number}, which the data needs, is missing"),
            Self::OutOfMemory => f.write_str("out of memory for a decoder"),
        }
    }
}

impl std::error::Error for DecodeError {}
