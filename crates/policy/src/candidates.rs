//! The codecs that `auto` chooses among: an ordered list whose length is bounded, which bounds the
//! cost of a decision.

use std::fmt;
use std::str::FromStr;

use codec::{Codec, CodecId};

/// Most candidates: a test compresses a unit with every one that could win.
pub const CANDIDATES_MAX: usize = 8;

/// An ordered list of 1 to 8 different codecs; the first wins a tie. Storing raw is always possible
/// and not listed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Candidates {
    codecs: [Codec; CANDIDATES_MAX],
    count: u8,
}

impl Candidates {
    /// Values that [`FromStr`] accepts, for messages and help.
    pub const ALLOWED: &str = "1 to 8 different codecs other than off, separated by commas, such as lz4,zstd-1,zstd-9";

    /// The default list: from the fastest codec to one a hundred times as slow, each worth its time
    /// on some data.
    pub const DEFAULT: &str = "lz4,zstd-1,zstd-3,zstd-6,zstd-9,zstd-15,zstd-19";

    /// A list; `None` if it is empty, too long, names `off`, or names a codec twice.
    pub fn new(list: &[Codec]) -> Option<Self> {
        let mut codecs = [Codec::Off; CANDIDATES_MAX];
        codecs.get_mut(..list.len())?.copy_from_slice(list);
        let different = list.iter().enumerate().all(|(i, codec)| *codec != Codec::Off && !list[..i].contains(codec));
        (!list.is_empty() && different).then_some(Self { codecs, count: list.len() as u8 })
    }

    /// The codecs in their order.
    pub fn as_slice(&self) -> &[Codec] {
        &self.codecs[..usize::from(self.count)]
    }

    /// The candidate of that number in the format.
    pub fn find(&self, id: CodecId) -> Option<Codec> {
        self.as_slice().iter().copied().find(|codec| codec.id() == id)
    }
}

impl Default for Candidates {
    fn default() -> Self {
        // A constant of this file, which a test parses; lz4 alone would be a valid list, too.
        Self::DEFAULT.parse().unwrap_or(Self { codecs: [Codec::Lz4; CANDIDATES_MAX], count: 1 })
    }
}

impl fmt::Debug for Candidates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Candidates({self})")
    }
}

impl fmt::Display for Candidates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, codec) in self.as_slice().iter().enumerate() {
            write!(f, "{}{codec}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// Not a list of candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseCandidatesError;

impl fmt::Display for ParseCandidatesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a list of candidates; allowed: {}", Candidates::ALLOWED)
    }
}

impl std::error::Error for ParseCandidatesError {}

impl FromStr for Candidates {
    type Err = ParseCandidatesError;
    fn from_str(text: &str) -> Result<Self, ParseCandidatesError> {
        let list: Result<Vec<Codec>, _> = text.split(',').map(|codec| codec.trim().parse()).collect();
        list.ok().and_then(|list| Self::new(&list)).ok_or(ParseCandidatesError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_by_table() {
        assert_eq!(Candidates::default().to_string(), Candidates::DEFAULT);
        for good in ["lz4", "zstd-1,lz4", "lz4,zstd-1,zstd-2,zstd-3,zstd-4,zstd-5,zstd-6,zstd-7"] {
            assert_eq!(good.parse::<Candidates>().unwrap().to_string(), good);
        }
        assert_eq!("lz4, zstd-1".parse::<Candidates>().unwrap().to_string(), "lz4,zstd-1");
        for bad in [
            "",
            ",",
            "lz4,",
            "off",
            "lz4,lz4",
            "lz4 zstd-1",
            "lz4,zstd-1,zstd-2,zstd-3,zstd-4,zstd-5,zstd-6,zstd-7,zstd-8",
        ] {
            assert!(bad.parse::<Candidates>().is_err(), "{bad}");
        }
        let list: Candidates = "lz4,zstd-1".parse().unwrap();
        assert_eq!(list.find(CodecId::LZ4), Some(Codec::Lz4));
        assert_eq!(list.find(CodecId::RAW), None);
    }
}
