//! Codecs as users name them in the property `compression`.

use std::fmt;
use std::str::FromStr;

use crate::{Bzip2Level, CodecId, GzipLevel, Lz4HcLevel, ZstdFastLevel, ZstdLevel};

/// A codec that data can be written with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Codec {
    /// Stores data uncompressed.
    Off,
    /// Omits runs of zeroes, nothing else.
    Zle,
    /// LZJB, the first codec of ZFS.
    Lzjb,
    /// LZ4, fast.
    Lz4,
    /// LZ4 that searches longer; reads like LZ4.
    Lz4Hc(Lz4HcLevel),
    /// LZO1X.
    Lzo,
    /// Deflate, without gzip's header and trailer.
    Gzip(GzipLevel),
    /// bzip2.
    Bzip2(Bzip2Level),
    /// zstd at a level.
    Zstd(ZstdLevel),
    /// zstd at a negative level.
    ZstdFast(ZstdFastLevel),
}

impl Codec {
    /// Values that [`FromStr`] accepts, for messages and help.
    pub const ALLOWED: &str = "off, zle, lzjb, lz4, lz4hc-1 to lz4hc-12, lzo, gzip-1 to gzip-9, bzip2-1 to bzip2-9, \
                               zstd-fast-1 to zstd-fast-10, zstd-1 to zstd-19";

    /// Returns the codec's number in the format.
    pub const fn id(self) -> CodecId {
        match self {
            Self::Off => CodecId::RAW,
            Self::Zle => CodecId::ZLE,
            Self::Lzjb => CodecId::LZJB,
            Self::Lz4 => CodecId::LZ4,
            Self::Lz4Hc(level) => CodecId(CodecId::LZ4HC_1 - 1 + level.get()),
            Self::Lzo => CodecId::LZO,
            Self::Gzip(level) => CodecId(CodecId::GZIP_1 - 1 + level.get()),
            Self::Bzip2(level) => CodecId(CodecId::BZIP2_1 - 1 + level.get()),
            Self::Zstd(level) => CodecId(CodecId::ZSTD_1 - 1 + level.get()),
            Self::ZstdFast(level) => CodecId(CodecId::ZSTD_FAST_1 - 1 + level.get()),
        }
    }

    /// Returns all codecs, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Off, Self::Zle, Self::Lzjb, Self::Lz4]
            .into_iter()
            .chain(Lz4HcLevel::all().map(Self::Lz4Hc))
            .chain([Self::Lzo])
            .chain(GzipLevel::all().map(Self::Gzip))
            .chain(Bzip2Level::all().map(Self::Bzip2))
            .chain(ZstdLevel::all().map(Self::Zstd))
            .chain(ZstdFastLevel::all().map(Self::ZstdFast))
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            other => other.id().fmt(f),
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
        write!(f, "unknown codec '{}'; allowed: {}", self.text, Codec::ALLOWED)
    }
}

impl std::error::Error for ParseCodecError {}

impl FromStr for Codec {
    type Err = ParseCodecError;

    fn from_str(text: &str) -> Result<Self, ParseCodecError> {
        let found = match text {
            "off" => Some(Self::Off),
            "zle" => Some(Self::Zle),
            "lzjb" => Some(Self::Lzjb),
            "lz4" => Some(Self::Lz4),
            "lzo" => Some(Self::Lzo),
            _ => match text.rsplit_once('-') {
                Some(("lz4hc", level)) => Lz4HcLevel::parse(level).map(Self::Lz4Hc),
                Some(("gzip", level)) => GzipLevel::parse(level).map(Self::Gzip),
                Some(("bzip2", level)) => Bzip2Level::parse(level).map(Self::Bzip2),
                Some(("zstd", level)) => ZstdLevel::parse(level).map(Self::Zstd),
                Some(("zstd-fast", level)) => ZstdFastLevel::parse(level).map(Self::ZstdFast),
                _ => None,
            },
        };
        found.ok_or_else(|| ParseCodecError { text: text.to_owned() })
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
        assert_eq!(numbers.len(), 5 + 12 + 9 + 9 + 19 + 10);
        assert!(numbers.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn numbers_are_those_of_the_format() {
        for (name, number) in [
            ("off", 0),
            ("zle", 1),
            ("lzjb", 2),
            ("lz4", 16),
            ("lz4hc-1", 17),
            ("lz4hc-12", 28),
            ("lzo", 32),
            ("gzip-1", 41),
            ("gzip-9", 49),
            ("bzip2-1", 51),
            ("bzip2-9", 59),
            ("zstd-1", 65),
            ("zstd-19", 83),
            ("zstd-fast-1", 97),
            ("zstd-fast-10", 106),
        ] {
            assert_eq!(name.parse::<Codec>().unwrap().id(), CodecId(number), "{name}");
        }
    }

    #[test]
    fn refuses_other_names_and_lists_what_is_allowed() {
        for text in [
            "",
            "LZ4",
            "zstd",
            "zstd-0",
            "zstd-20",
            "zstd-+3",
            "zstd-03",
            "zstd-256",
            "gzip-10",
            "lz4 ",
            "lz4-1",
            "raw",
            "zstd-fast",
            "zstd-fast-11",
            "zstd-fast--1",
            "lz4hc-13",
            "bzip2-0",
            "-1",
            "off-1",
        ] {
            let error = text.parse::<Codec>().unwrap_err().to_string();
            assert!(error.contains("zstd-1 to zstd-19"), "{error}");
        }
    }
}
