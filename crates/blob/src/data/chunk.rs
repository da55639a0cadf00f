//! The parts of a stream with holes, in which a run of zeroes is a count and not bytes. Plain
//! values.

use bytes::Bytes;

/// The next part of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    /// Bytes.
    Data(Bytes),
    /// A run of zeroes of this length.
    Zeroes(u64),
}

impl Chunk {
    /// Returns the number of bytes that it represents.
    pub const fn len(&self) -> u64 {
        match self {
            Self::Data(bytes) => bytes.len() as u64,
            Self::Zeroes(len) => *len,
        }
    }

    /// Returns whether it represents no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Bytes> for Chunk {
    fn from(bytes: Bytes) -> Self {
        Self::Data(bytes)
    }
}
