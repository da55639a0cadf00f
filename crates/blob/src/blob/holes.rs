//! Reading a version with its holes: as a stream, in which a run of zeroes is a count and not
//! bytes, or to places that read as zeroes. The version's tree knows its holes. Any task may call
//! it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::{Stream, StreamExt};

use crate::blob::{Blob, WINDOW_FIRST, WINDOW_MAX, WINDOWS_AT_ONCE, window};
use crate::data::chunk::Chunk;
use crate::data::extent::{FRAME_BYTES, Piece};
use crate::data::read::Wanted;
use crate::data::scatter::{Scatter, Sink};
use crate::data::upload::Tally;
use crate::error::Error;
use crate::protocol::record::Record;

/// Bytes of a version whose frames are looked up together, and requested in the order of packs.
const LOOKUP_BYTES: u64 = 256 << 20;

/// The next step of a stream of chunks.
enum Step {
    Hole(u64),
    Read(Range<u64>),
    Fail(Error),
}

impl Blob {
    /// Returns the first byte in `from..to` that is not in a hole of the version.
    ///
    /// # Errors
    /// When the store fails. The range of a damaged node counts as data, because its content is
    /// unknown.
    pub async fn next_data(&self, version: &Record, from: u64, to: u64) -> Result<Option<u64>, Error> {
        self.reader.tree.next_data(version, from, to.min(version.size)).await
    }

    /// Returns the bytes of a range in order, as [`stream`](Blob::stream) does, but reports holes
    /// as counts of zeroes. Zeroes that are stored are returned as data.
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
            // Reads begin at a frame boundary of the blob, as they end at one.
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

    /// Passes the bytes of a range to `sink`, in no order and each of them once. Zeroes that are
    /// not stored are left out: the destination must read as zeroes there. `tally.raw` counts
    /// bytes, including those left out.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`Error::Sink`] when the sink fails.
    pub async fn scatter(
        &self,
        version: &Record,
        from: u64,
        to: u64,
        sink: Arc<Sink>,
        tally: &Tally,
    ) -> Result<(), Error> {
        let (mut at, to) = (from, to.min(version.size));
        let mut scatter = Scatter::new(&self.reader, sink.clone());
        while let Some(data) = self.next_data(version, at, to).await? {
            let end = to.min(data - data % LOOKUP_BYTES + LOOKUP_BYTES);
            let mut wanted = Vec::new();
            for piece in self.reader.tree.extents(version, data, end).await? {
                let Piece::Extent(extent) = piece else { continue };
                let mut inline = |place: usize, part: &[u8]| sink(data + place as u64, part).map_err(Error::Sink);
                self.reader.collect(&extent, data, &mut wanted, &mut inline)?;
            }
            let coming = wanted.iter().map(Wanted::shown).sum::<u64>();
            tally.raw.fetch_add(end - at - coming, Ordering::Relaxed);
            scatter.start(version, data, wanted, tally).await?;
            at = end;
        }
        tally.raw.fetch_add(to.saturating_sub(at), Ordering::Relaxed);
        scatter.finish(tally).await
    }
}
