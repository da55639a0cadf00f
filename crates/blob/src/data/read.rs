//! Reading a version's bytes: from ranges to extents, from extents to frames, from frames to
//! requests. Owns the cache of decoded frames. Any task may read; decoding runs on blocking
//! threads.
//!
//! 1. The range's extents are found in the record and its nodes; gaps between them are zeroes.
//! 2. Frames that are in the cache, or in the record itself, are taken from there.
//! 3. The others are grouped by pack; two that are at most [`GAP_BYTES`] apart are fetched with one
//!    request.
//! 4. Each frame's checksum is verified, then it is decoded. One that does not match is fetched
//!    once more, alone.
//!
//! A longer read than the cache takes is [scattered](crate::data::scatter) into its result.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use codec::{CodecId, Workspace};
use futures_util::StreamExt;
use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::sync::Semaphore;

use crate::data::extent::{Extent, FRAME_BYTES, Frame, PackRef, Piece, Place};
use crate::data::fetch::Fetcher;
use crate::data::frame::frame_checksum;
use crate::data::scatter::Scatter;
use crate::data::tree::Tree;
use crate::data::upload::Tally;
use crate::error::Error;
use crate::names::Inc;
use crate::protocol::record::Record;

/// Bytes between two frames that are fetched and dropped instead of making another request: 0.3 ms
/// at 1 Gbit/s, far less than a round trip, and a request costs as much as 100 KiB.
const GAP_BYTES: u64 = 32 << 10;
/// Bytes of one request: a sequential read has several of them in flight.
const REQUEST_BYTES_MAX: u64 = 8 << 20;
/// Requests of one read in flight.
pub(crate) const REQUESTS_AT_ONCE: usize = 8;
/// Default size of the cache of decoded frames, in bytes.
pub(crate) const CACHE_BYTES: u64 = 32 << 20;
/// Longest read, in frames, that leaves its frames in the cache: a longer one would only evict
/// those that others use.
const CACHED_FRAMES_MAX: usize = 8;
/// Bytes of one read; longer ones are read as a stream.
pub(crate) const READ_BYTES_MAX: u64 = 64 << 20;

/// The permanent identity of a frame: packs never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct FrameKey {
    inc: Inc,
    pack: PackRef,
    offset: u32,
}

#[derive(Debug, Clone)]
struct ByBytes;

impl Weighter<FrameKey, Bytes> for ByBytes {
    fn weight(&self, _: &FrameKey, bytes: &Bytes) -> u64 {
        bytes.len() as u64
    }
}

/// Takes bytes of an extent that are there without a request, and their place in the read.
type Sink<'a> = &'a mut dyn FnMut(usize, &[u8]) -> Result<(), Error>;

/// A frame that a read needs, and the destination of its bytes.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) pack: PackRef,
    /// Byte of the pack.
    pub(crate) offset: u32,
    pub(crate) frame: Frame,
    pub(crate) raw_len: u32,
    /// The visible part of its data, and where that goes in the result.
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) at: usize,
}

impl Wanted {
    /// Returns the number of visible bytes.
    pub(crate) fn shown(&self) -> u64 {
        u64::from(self.to - self.from)
    }

    /// Returns the byte of the pack after its last one.
    fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.frame.stored)
    }
}

/// Reads one blob.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) tree: Arc<Tree>,
    frames: Cache<FrameKey, Bytes, ByBytes>,
    pub(crate) workspaces: Arc<Mutex<Vec<Workspace>>>,
    /// Threads that may decode scattered frames: one for each processor.
    pub(crate) decoders: Arc<Semaphore>,
}

impl Reader {
    pub(crate) fn new(tree: Arc<Tree>, cache_bytes: u64) -> Self {
        let frames = Cache::with_weighter((cache_bytes / u64::from(FRAME_BYTES)).max(1) as usize, cache_bytes, ByBytes);
        let decoders = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self { tree, frames, workspaces: Arc::default(), decoders: Arc::new(Semaphore::new(decoders)) }
    }

    pub(crate) fn fetcher(&self) -> &Fetcher {
        self.tree.fetcher()
    }

    /// Returns the bytes in `from..to` of a version, clipped to the end of the blob.
    pub(crate) async fn read(&self, record: &Record, from: u64, to: u64) -> Result<Bytes, Error> {
        let to = to.min(record.size);
        let Some(len) = to.checked_sub(from).filter(|len| *len > 0) else { return Ok(Bytes::new()) };
        if len > READ_BYTES_MAX {
            return Err(Error::Refused(format!(
                "{len} bytes in one read, at most {READ_BYTES_MAX}: read them as a stream"
            )));
        }
        let extents = self.tree.extents(record, from, to).await?;
        let (mut wanted, mut out) = (Vec::new(), vec![0; len as usize]);
        for piece in &extents {
            let Piece::Extent(extent) = piece else { continue };
            self.collect(extent, from, &mut wanted, &mut |at, part| {
                out[at..at + part.len()].copy_from_slice(part);
                Ok(())
            })?;
        }
        if let [one] = wanted[..].as_ref() {
            // Concurrent readers of a frame that is not in the cache share one request.
            let key = self.key(record, one);
            let fetch = self.fetch_alone(record, one);
            let data = self.frames.get_or_insert_async(&key, fetch).await?;
            place(&mut out, one, &data);
            return Ok(out.into());
        }
        let is_long = wanted.len() > CACHED_FRAMES_MAX;
        wanted.retain(|wanted| match self.frames.get(&self.key(record, wanted)) {
            Some(data) => {
                place(&mut out, wanted, &data);
                false
            }
            None => true,
        });
        if is_long {
            let out = Arc::new(Mutex::new(out));
            let shared = out.clone();
            let sink = move |at: u64, part: &[u8]| {
                shared.lock()[at as usize..][..part.len()].copy_from_slice(part);
                Ok(())
            };
            let (mut scatter, tally) = (Scatter::new(self, Arc::new(sink)), Tally::default());
            scatter.start(record, 0, wanted, &tally).await?;
            scatter.finish(&tally).await?;
            return Ok(std::mem::take(&mut *out.lock()).into());
        }
        let requests = merge(wanted);
        let mut answers = futures_util::stream::iter(requests)
            .map(|request| async move { self.fetch(record, request).await })
            .buffer_unordered(REQUESTS_AT_ONCE);
        while let Some(answer) = answers.next().await {
            for (wanted, data) in answer? {
                place(&mut out, &wanted, &data);
                self.frames.insert(self.key(record, &wanted), data);
            }
        }
        Ok(out.into())
    }

    fn key(&self, record: &Record, wanted: &Wanted) -> FrameKey {
        let origin = usize::from(wanted.pack.origin).checked_sub(1).and_then(|index| record.origins.get(index));
        let inc = origin.map_or(self.fetcher().inc, |origin| origin.inc);
        FrameKey { inc, pack: PackRef { origin: 0, ..wanted.pack }, offset: wanted.offset }
    }

    /// Finds the frames of an extent; those in the record are decoded at once and passed to `sink`.
    pub(crate) fn collect(
        &self,
        extent: &Extent,
        from: u64,
        wanted: &mut Vec<Wanted>,
        sink: Sink<'_>,
    ) -> Result<(), Error> {
        let frame_bytes = u64::from(FRAME_BYTES);
        let mut before = 0;
        for (index, frame) in extent.frames.iter().enumerate() {
            let raw_len = extent.raw_len(index);
            let start = index as u64 * frame_bytes;
            let shown_from = u64::from(extent.skip).max(start);
            let shown_to = (u64::from(extent.skip) + extent.len).min(start + u64::from(raw_len));
            let at = (extent.start - from + (shown_from - u64::from(extent.skip))) as usize;
            let (part_from, part_to) = ((shown_from - start) as u32, (shown_to - start) as u32);
            let stored_from = before;
            before += frame.stored;
            if frame.is_zero() {
                continue;
            }
            match &extent.place {
                Place::Pack { pack, offset } => wanted.push(Wanted {
                    pack: *pack,
                    offset: offset + stored_from,
                    frame: *frame,
                    raw_len,
                    from: part_from,
                    to: part_to,
                    at,
                }),
                Place::Inline(bytes) => {
                    let stored = bytes.slice(stored_from as usize..before as usize);
                    let mut workspace = self.workspaces.lock().pop().unwrap_or_default();
                    let data = open_frame(&mut workspace, frame, raw_len, &stored);
                    self.workspaces.lock().push(workspace);
                    let data = data.map_err(|detail| Error::damaged("a frame in the record".into(), detail))?;
                    sink(at, &data[part_from as usize..part_to as usize])?;
                }
            }
        }
        Ok(())
    }

    async fn fetch_alone(&self, record: &Record, wanted: &Wanted) -> Result<Bytes, Error> {
        let mut answer = self.fetch(record, vec![wanted.clone()]).await?;
        answer.pop().map(|(_, data)| data).ok_or_else(|| cancelled(()))
    }

    /// Fetches frames of one pack with one request, verifies and decodes them.
    async fn fetch(&self, record: &Record, request: Vec<Wanted>) -> Result<Vec<(Wanted, Bytes)>, Error> {
        let Some(first) = request.first() else { return Ok(Vec::new()) };
        let path = self.fetcher().path(record, &first.pack)?;
        let range = range_of(&request);
        let base = range.start;
        let bytes = self.fetcher().cached(&path, range).await?;
        let workspaces = self.workspaces.clone();
        let decode = move || {
            let workspace = workspaces.lock().pop();
            let mut workspace = workspace.unwrap_or_default();
            let opened: Vec<_> = request
                .into_iter()
                .map(|wanted| {
                    let at = (u64::from(wanted.offset) - base) as usize;
                    let stored = bytes.slice(at..at + wanted.frame.stored as usize);
                    let data = open_frame(&mut workspace, &wanted.frame, wanted.raw_len, &stored);
                    (wanted, data)
                })
                .collect();
            workspaces.lock().push(workspace);
            opened
        };
        // Decoding a frame takes about 0.1 ms, too long for the other requests of this thread.
        let opened = tokio::task::spawn_blocking(decode).await;
        let mut all = Vec::new();
        for (wanted, data) in opened.map_err(cancelled)? {
            let data = match data {
                Ok(data) => data,
                Err(_) => self.fetch_again(&path, &wanted).await?,
            };
            all.push((wanted, data));
        }
        Ok(all)
    }

    /// Fetches a frame whose checksum did not match once more, alone.
    async fn fetch_again(&self, path: &object_store::path::Path, wanted: &Wanted) -> Result<Bytes, Error> {
        let from = u64::from(wanted.offset);
        let stored = self.fetcher().range(path, from..from + u64::from(wanted.frame.stored)).await?;
        let data = open_frame(&mut Workspace::new(), &wanted.frame, wanted.raw_len, &stored);
        data.map_err(|detail| {
            Error::damaged(format!("frame at {} of {path}", wanted.offset), format!("{detail}, twice"))
        })
    }
}

/// The error of a read whose runtime ends.
pub(crate) fn cancelled<E>(_: E) -> Error {
    Error::Refused("the read was cancelled".into())
}

fn place(out: &mut [u8], wanted: &Wanted, data: &Bytes) {
    let part = &data[wanted.from as usize..wanted.to as usize];
    out[wanted.at..wanted.at + part.len()].copy_from_slice(part);
}

/// Verifies the checksum of a frame, and the length of a raw one.
pub(crate) fn verify_frame(frame: &Frame, raw_len: u32, stored: &[u8]) -> Result<(), String> {
    let found = frame_checksum(frame.codec, raw_len, stored);
    if found != frame.crc {
        return Err(format!("checksum {found:#010x}, expected {:#010x}", frame.crc));
    }
    if frame.codec == CodecId::RAW && stored.len() != raw_len as usize {
        return Err(format!("{} raw bytes, expected {raw_len}", stored.len()));
    }
    Ok(())
}

/// Verifies and decodes a frame. A raw one is not copied.
pub(crate) fn open_frame(
    workspace: &mut Workspace,
    frame: &Frame,
    raw_len: u32,
    stored: &Bytes,
) -> Result<Bytes, String> {
    verify_frame(frame, raw_len, stored)?;
    if frame.codec == CodecId::RAW {
        return Ok(stored.clone());
    }
    let mut data = vec![0; raw_len as usize];
    workspace.decompress(frame.codec, stored, &mut data).map_err(|error| error.to_string())?;
    Ok(data.into())
}

/// Groups frames into requests: of one pack, close to each other.
pub(crate) fn merge(mut wanted: Vec<Wanted>) -> Vec<Vec<Wanted>> {
    wanted.sort_by_key(|wanted| (wanted.pack, wanted.offset));
    let mut requests: Vec<Vec<Wanted>> = Vec::new();
    // Of the last request.
    let mut end = 0;
    for next in wanted {
        let next_end = next.end();
        let joins = requests.last().and_then(|request| request.first()).is_some_and(|first| {
            first.pack == next.pack
                && u64::from(next.offset) <= end + GAP_BYTES
                && next_end - u64::from(first.offset) <= REQUEST_BYTES_MAX
        });
        match requests.last_mut() {
            Some(request) if joins => {
                request.push(next);
                end = next_end.max(end);
            }
            _ => {
                requests.push(vec![next]);
                end = next_end;
            }
        }
    }
    requests
}

/// Returns the bytes of a pack that hold all frames of a request of [`merge`], or of a part of one.
/// The last frame need not end last: a layout may name frames that lie within others.
pub(crate) fn range_of(request: &[Wanted]) -> Range<u64> {
    let start = request.first().map_or(0, |first| u64::from(first.offset));
    start..request.iter().map(Wanted::end).max().unwrap_or(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::extent::Session;

    fn wanted(number: u32, offset: u32, stored: u32) -> Wanted {
        let pack = PackRef { origin: 0, born: 0, session: Session(1), number };
        let frame = Frame { stored, codec: CodecId::LZ4, crc: 0 };
        Wanted { pack, offset, frame, raw_len: FRAME_BYTES, from: 0, to: 1, at: 0 }
    }

    #[test]
    fn frames_are_joined_up_to_a_gap_and_a_length() {
        let all = vec![
            wanted(1, 8, 100),
            wanted(0, 50_000, 10),
            wanted(0, 8, 100),
            wanted(0, 108, 100),
            wanted(0, 208 + (32 << 10), 100),
            wanted(0, 309 + (64 << 10), 100),
        ];
        let joined: Vec<Vec<(u32, u32)>> =
            merge(all).into_iter().map(|r| r.into_iter().map(|w| (w.pack.number, w.offset)).collect()).collect();
        assert_eq!(joined, [vec![(0, 8), (0, 108), (0, 32_976), (0, 50_000), (0, 65_845)], vec![(1, 8)]],);
        let far = merge(vec![wanted(0, 8, 100), wanted(0, 109 + (32 << 10), 100)]);
        assert_eq!(far.len(), 2);
        let within = merge(vec![wanted(0, 8, 100_000), wanted(0, 20, 5), wanted(0, 90_000, 5)]);
        assert!(matches!(&within[..], [request] if range_of(request) == (8..100_008)));
        let long: Vec<Wanted> = (0..200).map(|i| wanted(0, i * 131_072, 131_072)).collect();
        assert!(merge(long).iter().all(|request| request.len() <= 64));
    }
}
