//! The codecs' numbers in the format.

use std::fmt;

/// Number of a codec in the format. Permanent: a number is never given to another codec, and a codec's stream format
/// never changes under its number.
///
/// | number | codec | in this version |
/// | --- | --- | --- |
/// | 0 | raw: stored as it came | yes |
/// | 1 | zle (zero-length encoding) | reserved |
/// | 2 | lzjb | reserved |
/// | 16 | lz4 block | yes |
/// | 17 to 28 | lz4 block by lz4hc-1 to lz4hc-12; decoded like 16 | reserved |
/// | 32 | lzo | reserved |
/// | 41 to 49 | gzip-1 to gzip-9 | reserved |
/// | 51 to 59 | bzip2-1 to bzip2-9 | reserved |
/// | 65 to 83 | zstd-1 to zstd-19: one magicless frame without content size, checksum and dictionary id | yes |
/// | 97 to 106 | zstd-fast-1 to zstd-fast-10; decoded like 65 | reserved |
///
/// The level is part of the number although no decoder needs it, so that statistics and `recompress` can tell what was
/// stored how without another byte. All other numbers are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodecId(pub u8);

impl CodecId {
    /// Stored as it came.
    pub const RAW: Self = Self(0);
    /// An lz4 block.
    pub const LZ4: Self = Self(16);
    /// First and last number of zstd-1 to zstd-19.
    pub(crate) const ZSTD_1: u8 = 65;
    /// See [`ZSTD_1`](Self::ZSTD_1).
    pub(crate) const ZSTD_19: u8 = 83;

    /// Whether this version can decode it.
    pub const fn is_known(self) -> bool {
        matches!(self.0, 0 | 16 | Self::ZSTD_1..=Self::ZSTD_19)
    }
}

impl fmt::Display for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("raw"),
            1 => f.write_str("zle"),
            2 => f.write_str("lzjb"),
            16 => f.write_str("lz4"),
            n @ 17..=28 => write!(f, "lz4hc-{}", n - 16),
            32 => f.write_str("lzo"),
            n @ 41..=49 => write!(f, "gzip-{}", n - 40),
            n @ 51..=59 => write!(f, "bzip2-{}", n - 50),
            n @ Self::ZSTD_1..=Self::ZSTD_19 => write!(f, "zstd-{}", n - 64),
            n @ 97..=106 => write!(f, "zstd-fast-{}", n - 96),
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
            (32, "lzo"),
            (41, "gzip-1"),
            (49, "gzip-9"),
            (51, "bzip2-1"),
            (59, "bzip2-9"),
            (65, "zstd-1"),
            (83, "zstd-19"),
            (84, "codec 84"),
            (97, "zstd-fast-1"),
            (106, "zstd-fast-10"),
            (255, "codec 255"),
        ] {
            assert_eq!(CodecId(number).to_string(), name);
        }
    }
}
