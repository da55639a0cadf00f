//! Levels of the codecs that have them: how much time to spend to save another byte.

/// A level from 1 to `LAST`; each codec defines what a level stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level<const LAST: u8>(u8);

impl<const LAST: u8> Level<LAST> {
    /// The first level.
    pub const MIN: Self = Self(1);
    /// The last level.
    pub const MAX: Self = Self(LAST);

    /// Returns the level, if that number is one.
    pub const fn new(level: u8) -> Option<Self> {
        if level >= 1 && level <= LAST { Some(Self(level)) } else { None }
    }

    /// Its number.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// All levels, upwards.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..=LAST).map(Self)
    }

    /// Parses `digits`. Rejects "+3" and "03", which would not be displayed as they were written.
    pub(crate) fn parse(digits: &str) -> Option<Self> {
        if digits.starts_with(['+', '0']) {
            return None;
        }
        digits.parse().ok().and_then(Self::new)
    }
}

/// Level of lz4hc: higher searches longer; from 10 on it weighs every parse.
pub type Lz4HcLevel = Level<12>;
/// Level of gzip, with libdeflate's meaning.
pub type GzipLevel = Level<9>;
/// Level of bzip2: the block size in 100 kB as bzip2 has it. Units are smaller than 200 kB, so 2 to
/// 9 store the same.
pub type Bzip2Level = Level<9>;
/// Level of zstd. Levels 20 to 22 differ from 19 only in windows larger than a unit.
pub type ZstdLevel = Level<19>;
/// Level of zstd-fast, zstd's negative levels: 10 is the fastest and saves least.
pub type ZstdFastLevel = Level<10>;
