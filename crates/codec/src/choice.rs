//! Codecs as users name them in the property `compression`.

use std::fmt;
use std::str::FromStr;

use crate::CodecId;

/// Level of zstd, 1 to 19.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZstdLevel(u8);

impl ZstdLevel {
    /// The fastest level.
    pub const MIN: Self = Self(1);
    /// The highest level whose memory stays small; 20 to 22 differ only in windows larger than a unit.
    pub const MAX: Self = Self(19);

    /// A level, if there is one of that number.
    pub const fn new(level: u8) -> Option<Self> {
        if level >= Self::MIN.0 && level <= Self::MAX.0 { Some(Self(level)) } else { None }
    }
    /// Its number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A codec that data can be written with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Codec {
    /// Store as it comes.
    Off,
    /// LZ4, fast.
    Lz4,
    /// zstd at a level.
    Zstd(ZstdLevel),
}

impl Codec {
    /// What [`FromStr`] accepts, for messages and help.
    pub const ALLOWED: &str = "off, lz4, zstd-1 to zstd-19";

    /// Its number in the format.
    pub const fn id(self) -> CodecId {
        match self {
            Self::Off => CodecId::RAW,
            Self::Lz4 => CodecId::LZ4,
            Self::Zstd(level) => CodecId(CodecId::ZSTD_1 - 1 + level.0),
        }
    }

    /// All of them, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        let zstd = (ZstdLevel::MIN.0..=ZstdLevel::MAX.0).map(|level| Self::Zstd(ZstdLevel(level)));
        [Self::Off, Self::Lz4].into_iter().chain(zstd)
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd(level) => write!(f, "zstd-{}", level.0),
        }
    }
}

/// No codec of that name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseCodecError {
    text: String,
}

impl fmt::Display for ParseCodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no codec is called '{}'; allowed are {}", self.text, Codec::ALLOWED)
    }
}

impl std::error::Error for ParseCodecError {}

impl FromStr for Codec {
    type Err = ParseCodecError;

    fn from_str(text: &str) -> Result<Self, ParseCodecError> {
        let fail = || ParseCodecError { text: text.to_owned() };
        match text {
            "off" => Ok(Self::Off),
            "lz4" => Ok(Self::Lz4),
            _ => {
                let digits = text.strip_prefix("zstd-").ok_or_else(fail)?;
                // "+3" and "03" parse as numbers but would not be shown again as they were written.
                if digits.starts_with(['+', '0']) {
                    return Err(fail());
                }
                digits.parse().ok().and_then(ZstdLevel::new).map(Self::Zstd).ok_or_else(fail)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_unique_and_round_trip() {
        let mut numbers = Vec::new();
        for codec in Codec::all() {
            assert_eq!(codec.to_string().parse(), Ok(codec));
            assert!(codec.id().is_known());
            numbers.push(codec.id());
        }
        assert_eq!(numbers.len(), 21);
        assert!(numbers.is_sorted_by(|a, b| a < b));
        assert_eq!(Codec::Zstd(ZstdLevel::MAX).id(), CodecId(83));
    }

    #[test]
    fn refuses_other_names_and_lists_what_is_allowed() {
        for text in ["", "LZ4", "zstd", "zstd-0", "zstd-20", "zstd-+3", "zstd-03", "zstd-256", "gzip-1", "lz4 "] {
            let error = text.parse::<Codec>().unwrap_err().to_string();
            assert!(error.contains("zstd-1 to zstd-19"), "{error}");
        }
    }
}
