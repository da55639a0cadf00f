//! Bytes with holes: a stream of data in which a stretch of zeroes is a number and not bytes.
//! Owns how a version is read that way; the version's tree knows its holes.

use std::ops::Range;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};

use crate::blob::{Blob, WINDOW_FIRST, WINDOW_MAX, WINDOWS_AT_ONCE, window};
use crate::error::Error;
use crate::extent::FRAME_BYTES;
use crate::record::Record;

/// The next bytes of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    /// These.
    Data(Bytes),
    /// So many zeroes.
    Zeroes(u64),
}

impl Chunk {
    /// Returns how many bytes it stands for.
    pub const fn len(&self) -> u64 {
        match self {
            Self::Data(bytes) => bytes.len() as u64,
            Self::Zeroes(len) => *len,
        }
    }

    /// Tells whether it stands for none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Bytes> for Chunk {
    fn from(bytes: Bytes) -> Self {
        Self::Data(bytes)
    }
}

/// What a stream of chunks does next.
enum Step {
    Hole(u64),
    Read(Range<u64>),
    Fail(Error),
}

impl Blob {
    /// Returns the first byte from `from` on, and before `to`, that is in no hole of a version.
    ///
    /// # Errors
    /// When the store fails. A damaged node may hold anything, so its range counts as data.
    pub async fn next_data(&self, version: &Record, from: u64, to: u64) -> Result<Option<u64>, Error> {
        self.reader.tree.next_data(version, from, to.min(version.size)).await
    }

    /// Returns the bytes of a range in order, as [`stream`](Blob::stream) does, and passes over
    /// holes: nothing is made of them. Zeroes that are stored come as data.
    pub fn chunks<'a>(
        &'a self,
        version: &'a Record,
        from: u64,
        to: u64,
    ) -> impl Stream<Item = Result<Chunk, Error>> + 'a {
        let to = to.min(version.size);
        let steps = futures_util::stream::unfold(Some((from, WINDOW_FIRST)), move |state| async move {
            let (at, len) = state.filter(|(at, _)| *at < to)?;
            let data = match self.next_data(version, at, to).await {
                Ok(data) => data.unwrap_or(to),
                Err(error) => return Some((Step::Fail(error), None)),
            };
            // Reads begin with a frame of the blob, as they end with one.
            let begin = if data == to { to } else { (data - data % u64::from(FRAME_BYTES)).max(at) };
            if begin > at {
                return Some((Step::Hole(begin - at), Some((begin, len))));
            }
            let (from, end, len) = window(at, to, len)?;
            Some((Step::Read(from..end), Some((end, (len * 2).min(WINDOW_MAX)))))
        });
        let chunks = steps.map(move |step| async move {
            match step {
                Step::Hole(len) => Ok(Chunk::Zeroes(len)),
                Step::Read(range) => self.read(version, range.start, range.end).await.map(Chunk::Data),
                Step::Fail(error) => Err(error),
            }
        });
        chunks.buffered(WINDOWS_AT_ONCE)
    }
}
