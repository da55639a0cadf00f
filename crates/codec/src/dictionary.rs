//! Trained dictionaries: content that small units share, stored once. Owns their prepared form,
//! which costs more to build than a unit costs to compress and is shared by all threads. `training`
//! makes dictionaries; the engine stores them.

use std::fmt;

use zstd_safe::{CDict, DDict};

use crate::ZstdLevel;
use crate::zstd::level_of;

/// Number of a dictionary within a pool, stored in each unit that needs it. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DictionaryNumber(pub u32);

impl DictionaryNumber {
    /// Bytes that it takes at the start of a payload, little-endian.
    pub const BYTES: usize = 4;

    /// The number and the frame of a payload of
    /// [`CodecId::ZSTD_DICTIONARY`](crate::CodecId::ZSTD_DICTIONARY); `None` if it is too short for
    /// one.
    pub fn split(payload: &[u8]) -> Option<(Self, &[u8])> {
        let (number, frame) = payload.split_first_chunk()?;
        Some((Self(u32::from_le_bytes(*number)), frame))
    }
}

impl fmt::Display for DictionaryNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Longest dictionary. Training does not find more that is worth keeping for units of up to 16 KiB.
pub const DICTIONARY_BYTES_MAX: usize = 112 << 10;

/// A dictionary prepared to compress at one level. Shared by all threads; takes a few times the
/// dictionary's length.
pub struct EncodeDictionary {
    number: DictionaryNumber,
    level: ZstdLevel,
    prepared: CDict<'static>,
}

impl EncodeDictionary {
    /// Prepares `bytes`. `None` when there is no memory, or when they are too long or not a
    /// dictionary.
    pub fn prepare(number: DictionaryNumber, bytes: &[u8], level: ZstdLevel) -> Option<Self> {
        if bytes.is_empty() || bytes.len() > DICTIONARY_BYTES_MAX {
            return None;
        }
        Some(Self { number, level, prepared: CDict::try_create(bytes, level_of(level))? })
    }

    /// The number that it is found by.
    pub fn number(&self) -> DictionaryNumber {
        self.number
    }

    /// The level that it compresses at.
    pub fn level(&self) -> ZstdLevel {
        self.level
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        self.prepared.sizeof()
    }

    pub(crate) fn prepared(&self) -> &CDict<'static> {
        &self.prepared
    }
}

/// A dictionary prepared to decompress data that was compressed with it at any level. Shared by all
/// threads; takes its own length and 27 KiB.
pub struct DecodeDictionary {
    number: DictionaryNumber,
    prepared: DDict<'static>,
}

impl DecodeDictionary {
    /// Prepares `bytes`. `None` when there is no memory, or when they are too long or not a
    /// dictionary.
    pub fn prepare(number: DictionaryNumber, bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() || bytes.len() > DICTIONARY_BYTES_MAX {
            return None;
        }
        Some(Self { number, prepared: DDict::try_create(bytes)? })
    }

    /// The number that it is found by.
    pub fn number(&self) -> DictionaryNumber {
        self.number
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        self.prepared.sizeof()
    }

    pub(crate) fn prepared(&self) -> &DDict<'static> {
        &self.prepared
    }
}

impl fmt::Debug for EncodeDictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncodeDictionary")
            .field("number", &self.number)
            .field("level", &self.level)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for DecodeDictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecodeDictionary").field("number", &self.number).finish_non_exhaustive()
    }
}
