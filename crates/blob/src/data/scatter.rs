//! Reading in no order: each run of bytes goes to its place as soon as it is decoded. Owns the
//! requests in flight of one read. Used by one task; requests are tasks of the runtime, and frames
//! are decoded on blocking threads.
//!
//! 1. Frames are grouped into requests as for any read, of [`REQUEST_FRAMES_MAX`] frames at most.
//!    [`REQUESTS_AT_ONCE`] of them are in flight.
//! 2. A request whose bytes are complete waits for one of the reader's decoders, of which there is
//!    one for each processor. The others go on meanwhile.
//! 3. The decoder verifies a frame's checksum and decodes it to the end of a run. A run that is
//!    full, or that the next frame does not continue, goes to the sink while the processor still
//!    has it in its cache. Raw frames go there as they are.
//! 4. A frame that does not match is fetched once more, alone.
//!
//! Memory: the requests in flight, and a run for each decoder.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use codec::{CodecId, Workspace};
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::data::fetch::Fetcher;
use crate::data::read::{Reader, Wanted, cancelled, merge, range_of, verify_frame};
use crate::data::upload::Tally;
use crate::error::Error;
use crate::protocol::record::Record;

/// Frames of one request: 4 MiB of data, so that the decoders share the last requests of a read.
const REQUEST_FRAMES_MAX: usize = 32;
/// Requests of one read in flight: 64 MiB at most. Stores limit the rate of each connection.
const REQUESTS_AT_ONCE: usize = 16;
/// Bytes that the sink gets at once: enough for a write, and few enough for a processor's cache.
const RUN_BYTES: usize = 1 << 20;

/// Takes bytes of a version and their offset. Called on several threads at once, in no order; after
/// an error, and when the read is dropped, perhaps for a moment longer than the read lasts.
pub type Sink = dyn Fn(u64, &[u8]) -> std::io::Result<()> + Send + Sync;

/// A read in progress. Dropping it cancels its requests.
pub(crate) struct Scatter {
    opener: Opener,
    running: JoinSet<Result<u64, Error>>,
}

impl Scatter {
    pub(crate) fn new(reader: &Reader, sink: Arc<Sink>) -> Self {
        let (workspaces, decoders) = (reader.workspaces.clone(), reader.decoders.clone());
        let opener = Opener { fetcher: reader.fetcher().clone(), workspaces, decoders, sink, start: 0 };
        Self { opener, running: JoinSet::new() }
    }

    /// Requests frames whose destinations are relative to byte `start`, as soon as earlier requests
    /// leave room for them. `tally.raw` counts bytes that the sink has taken.
    pub(crate) async fn start(
        &mut self,
        record: &Record,
        start: u64,
        wanted: Vec<Wanted>,
        tally: &Tally,
    ) -> Result<(), Error> {
        for request in merge(wanted) {
            for part in request.chunks(REQUEST_FRAMES_MAX) {
                let Some(first) = part.first() else { continue };
                let path = self.opener.fetcher.path(record, &first.pack)?;
                self.wait_below(REQUESTS_AT_ONCE, tally).await?;
                let opener = Opener { start, ..self.opener.clone() };
                self.running.spawn(opener.transfer(path, part.to_vec()));
            }
        }
        Ok(())
    }

    /// Waits until the sink has taken everything.
    pub(crate) async fn finish(&mut self, tally: &Tally) -> Result<(), Error> {
        self.wait_below(1, tally).await
    }

    async fn wait_below(&mut self, most: usize, tally: &Tally) -> Result<(), Error> {
        while self.running.len() >= most
            && let Some(done) = self.running.join_next().await
        {
            tally.raw.fetch_add(done.map_err(cancelled)??, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Transfers one request after another to the sink.
#[derive(Clone)]
struct Opener {
    fetcher: Fetcher,
    workspaces: Arc<Mutex<Vec<Workspace>>>,
    decoders: Arc<Semaphore>,
    sink: Arc<Sink>,
    start: u64,
}

impl Opener {
    /// Returns the number of bytes transferred.
    async fn transfer(self, path: Path, wanted: Vec<Wanted>) -> Result<u64, Error> {
        let shown = wanted.iter().map(Wanted::shown).sum();
        for (wanted, _) in self.open(&path, wanted, false).await? {
            let at = wanted.offset;
            if let Some((_, detail)) = self.open(&path, vec![wanted], true).await?.pop() {
                return Err(Error::damaged(format!("frame at {at} of {path}"), format!("{detail}, twice")));
            }
        }
        Ok(shown)
    }

    /// Fetches frames with one request and opens them. Returns those that do not match, and why.
    async fn open(&self, path: &Path, wanted: Vec<Wanted>, is_again: bool) -> Result<Vec<(Wanted, String)>, Error> {
        let Some(base) = wanted.first().map(|first| first.offset) else { return Ok(Vec::new()) };
        let range = range_of(&wanted);
        let bytes =
            if is_again { self.fetcher.range(path, range).await? } else { self.fetcher.cached(path, range).await? };
        let turn = self.decoders.clone().acquire_owned().await.map_err(cancelled)?;
        let opener = self.clone();
        let work = move || {
            let workspace = opener.workspaces.lock().pop();
            let mut workspace = workspace.unwrap_or_default();
            let opened = opener.decode(&mut workspace, wanted, base, &bytes);
            opener.workspaces.lock().push(workspace);
            drop(turn);
            opened
        };
        tokio::task::spawn_blocking(work).await.map_err(cancelled)?.map_err(Error::Sink)
    }

    /// Verifies and decodes the frames of a request, which begins at byte `base` of its pack.
    fn decode(
        &self,
        workspace: &mut Workspace,
        wanted: Vec<Wanted>,
        base: u32,
        bytes: &Bytes,
    ) -> std::io::Result<Vec<(Wanted, String)>> {
        let mut run = Run { sink: &*self.sink, buffer: Vec::new(), visible: 0..0, at: 0 };
        let mut wrong = Vec::new();
        for wanted in wanted {
            let (frame, shown) = (wanted.frame, wanted.from as usize..wanted.to as usize);
            let stored = &bytes[(wanted.offset - base) as usize..][..frame.stored as usize];
            let at = self.start + wanted.at as u64;
            if let Err(detail) = verify_frame(&frame, wanted.raw_len, stored) {
                wrong.push((wanted, detail));
            } else if frame.codec == CodecId::RAW {
                (self.sink)(at, &stored[shown])?;
            } else {
                let room = run.room(at, shown.start, wanted.raw_len as usize)?;
                match workspace.decompress(frame.codec, stored, room) {
                    Ok(()) => run.extend(shown),
                    Err(error) => wrong.push((wanted, error.to_string())),
                }
            }
        }
        run.flush()?;
        Ok(wrong)
    }
}

/// Decoded bytes that follow each other, on their way to the sink.
struct Run<'a> {
    sink: &'a Sink,
    buffer: Vec<u8>,
    /// The bytes of the buffer that go to byte `at`.
    visible: Range<usize>,
    at: u64,
}

impl Run<'_> {
    /// Returns the buffer for a frame of `len` bytes, of which those from `from` on go to byte
    /// `at`.
    fn room(&mut self, at: u64, from: usize, len: usize) -> std::io::Result<&mut [u8]> {
        let continues = from == 0 && at == self.at + self.visible.len() as u64;
        if !continues || self.visible.end + len > RUN_BYTES {
            self.flush()?;
            self.at = at;
        }
        self.buffer.resize(RUN_BYTES, 0);
        Ok(&mut self.buffer[self.visible.end..][..len])
    }

    /// Adds the visible part of the frame that was decoded into its [`room`](Self::room). Invisible
    /// bytes at the end of a frame are overwritten by the next one.
    fn extend(&mut self, shown: Range<usize>) {
        if self.visible.is_empty() {
            self.visible.start = shown.start;
        }
        self.visible.end += shown.end;
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let visible = std::mem::take(&mut self.visible);
        if visible.is_empty() { Ok(()) } else { (self.sink)(self.at, &self.buffer[visible]) }
    }
}
