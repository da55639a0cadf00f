//! The codecs' numbers in the format.

use std::fmt;

/// Number of a codec in the format. Permanent: a number is never reassigned, and the stream format
/// of a number never changes. docs/FORMAT.md defines each stream.
///
/// | number | codec |
/// | --- | --- |
/// | 0 | raw: stored as it came |
/// | 1 | zle (zero-length encoding) |
/// | 2 | lzjb |
/// | 16 | lz4 block |
/// | 17 to 28 | lz4 block by lz4hc-1 to lz4hc-12; decoded like 16 |
/// | 32 | lzo: LZO1X with its end marker |
/// | 41 to 49 | gzip-1 to gzip-9: a bare deflate stream |
/// | 51 to 59 | bzip2-1 to bzip2-9 |
/// | 65 to 83 | zstd-1 to zstd-19: one magicless frame without content size, checksum and dictionary id |
/// | 97 to 106 | zstd-fast-1 to zstd-fast-10; decoded like 65 |
/// | 120 | zstd with a trained dictionary: the dictionary's number, then a frame like those of 65 |
///
/// The level is part of the number although no decoder needs it, so that statistics and
/// `recompress` can report how data was stored without another byte. All other numbers are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodecId(pub u8);

impl CodecId {
    /// Stored uncompressed.
    pub const RAW: Self = Self(0);
    /// Runs of zeroes left out.
    pub const ZLE: Self = Self(1);
    /// LZJB.
    pub const LZJB: Self = Self(2);
    /// An lz4 block.
    pub const LZ4: Self = Self(16);
    /// LZO1X.
    pub const LZO: Self = Self(32);
    /// zstd with a trained dictionary.
    pub const ZSTD_DICTIONARY: Self = Self(120);

    // First and last numbers of the families with levels.
    pub(crate) const LZ4HC_1: u8 = 17;
    pub(crate) const LZ4HC_12: u8 = 28;
    pub(crate) const GZIP_1: u8 = 41;
    pub(crate) const GZIP_9: u8 = 49;
    pub(crate) const BZIP2_1: u8 = 51;
    pub(crate) const BZIP2_9: u8 = 59;
    pub(crate) const ZSTD_1: u8 = 65;
    pub(crate) const ZSTD_19: u8 = 83;
    pub(crate) const ZSTD_FAST_1: u8 = 97;
    pub(crate) const ZSTD_FAST_10: u8 = 106;

    /// Returns whether this version can decode it.
    pub const fn is_known(self) -> bool {
        self.stream().is_some()
    }

    /// How it is decoded; `None` if this version knows no such codec.
    pub(crate) const fn stream(self) -> Option<Stream> {
        Some(match self.0 {
            0 => Stream::Raw,
            1 => Stream::Zle,
            2 => Stream::Lzjb,
            16 | Self::LZ4HC_1..=Self::LZ4HC_12 => Stream::Lz4,
            32 => Stream::Lzo,
            Self::GZIP_1..=Self::GZIP_9 => Stream::Deflate,
            Self::BZIP2_1..=Self::BZIP2_9 => Stream::Bzip2,
            Self::ZSTD_1..=Self::ZSTD_19 | Self::ZSTD_FAST_1..=Self::ZSTD_FAST_10 => Stream::Zstd,
            120 => Stream::ZstdDictionary,
            _ => return None,
        })
    }
}

/// A stream format, shared by the numbers of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Raw,
    Zle,
    Lzjb,
    Lz4,
    Lzo,
    Deflate,
    Bzip2,
    Zstd,
    ZstdDictionary,
}

impl fmt::Display for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("raw"),
            1 => f.write_str("zle"),
            2 => f.write_str("lzjb"),
            16 => f.write_str("lz4"),
            n @ Self::LZ4HC_1..=Self::LZ4HC_12 => write!(f, "lz4hc-{}", n - Self::LZ4HC_1 + 1),
            32 => f.write_str("lzo"),
            n @ Self::GZIP_1..=Self::GZIP_9 => write!(f, "gzip-{}", n - Self::GZIP_1 + 1),
            n @ Self::BZIP2_1..=Self::BZIP2_9 => write!(f, "bzip2-{}", n - Self::BZIP2_1 + 1),
            n @ Self::ZSTD_1..=Self::ZSTD_19 => write!(f, "zstd-{}", n - Self::ZSTD_1 + 1),
            n @ Self::ZSTD_FAST_1..=Self::ZSTD_FAST_10 => write!(f, "zstd-fast-{}", n - Self::ZSTD_FAST_1 + 1),
            120 => f.write_str("zstd-dictionary"),
            n => write!(f, "codec {n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_table() {
        for (number, name) in [
            (0, "raw"),
            (1, "zle"),
            (2, "lzjb"),
            (3, "codec 3"),
            (16, "lz4"),
            (17, "lz4hc-1"),
            (28, "lz4hc-12"),
            (29, "codec 29"),
            (32, "lzo"),
            (40, "codec 40"),
            (41, "gzip-1"),
            (49, "gzip-9"),
            (50, "codec 50"),
            (51, "bzip2-1"),
            (59, "bzip2-9"),
            (65, "zstd-1"),
            (83, "zstd-19"),
            (84, "codec 84"),
            (97, "zstd-fast-1"),
            (106, "zstd-fast-10"),
            (120, "zstd-dictionary"),
            (255, "codec 255"),
        ] {
            assert_eq!(CodecId(number).to_string(), name);
            assert_eq!(CodecId(number).is_known(), !name.starts_with("codec"), "{name}");
        }
    }
}
