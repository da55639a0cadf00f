//! Uploading: a stream of bytes becomes frames, packs and a run of pieces. Owns the session of one
//! upload, and the number of requests in flight. Used by one task; the lanes compress on blocking
//! threads.
//!
//! 1. The stream is cut into frames; a blocking thread compresses a batch of them, with as many
//!    batches at once as there are lanes.
//! 2. Batches are packed in order. A pack that reaches its size, or an age, is sent while the next
//!    one fills.
//! 3. At the end, a run of many extents is folded into nodes, which go into the last pack; a run of
//!    one small frame stays in the record, without any pack.
//! 4. The run is returned once every pack is acknowledged. Packs of an interrupted upload are
//!    garbage that `gc` removes.
//!
//! Memory: the packs in flight and the one that fills, and a batch for each lane.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::FuturesOrdered;
use futures_util::{Stream, StreamExt};
use object_store::{ObjectStoreExt, PutPayload};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::data::chunk::Chunk;
use crate::data::extent::{EXTENT_FRAMES_MAX, Extent, FRAME_BYTES, Frame, PackRef, Piece, Place, Session};
use crate::data::fetch::Fetcher;
use crate::data::frame::{Encoded, Encoder, Encoding, Framer};
use crate::data::layout::{END_MAX, Layout, Run};
use crate::data::pack::{PACK_BYTES, PACK_BYTES_MAX, PackBuilder};
use crate::data::session::{DataHash, Finished, Uploading};
use crate::data::tree;
use crate::data::upload_limit::UploadLimit;
use crate::error::Error;
use crate::names;
use crate::store::backend::is_permanent;

/// Frames of a batch: 1 MiB, a few milliseconds of work, so that the cost of passing it to another
/// thread is negligible.
const BATCH_FRAMES: usize = 8;
/// Largest upload of one frame that stays in the record.
const INLINE_BYTES_MAX: usize = 4 << 10;
/// Encoded bytes of a run's pieces above which they are folded into nodes: a quarter of a record's
/// list.
pub(crate) const RUN_BYTES_MAX: usize = 2 << 10;
/// Consecutive frames of zeroes that end an extent: a shorter run is cheaper within it.
const ZERO_FRAMES_MIN: usize = 5;
/// The head of data that begins with zeroes.
static ZERO_HEAD: [u8; policy::HEAD_BYTES] = [0; policy::HEAD_BYTES];
/// Age at which a pack is sent before it is full, so that data from a slow source does not stay
/// unsent for longer.
const PACK_AGE: Duration = Duration::from_secs(2);
/// Tries for a pack: about half a minute with the pauses in between.
const TRIES: u32 = 12;

/// Progress of an upload or a read, for a progress bar. Each field only grows.
#[derive(Debug, Default)]
pub struct Tally {
    /// Bytes of data taken from the source.
    pub raw: AtomicU64,
    /// Bytes of data that were encoded.
    pub encoded_raw: AtomicU64,
    /// Stored bytes of the encoded data.
    pub encoded: AtomicU64,
    /// Bytes of packs acknowledged.
    pub stored: AtomicU64,
    /// Packs acknowledged.
    pub packs: AtomicU64,
    /// Whether everything is uploaded and the commit has begun: from then on the outcome is up to
    /// the store.
    pub committing: AtomicBool,
}

/// Options of an upload.
#[derive(Debug, Clone)]
pub struct UploadOptions {
    /// The choice of codecs.
    pub encoding: Encoding,
    /// Name of the file that the data comes from, for the rules; empty if there is none.
    pub name: String,
    /// Target of a pack's stored bytes, from 4 to 64 MiB.
    pub pack_bytes: u32,
    /// Memory for packs in flight and the one that fills, in bytes.
    pub memory_bytes: u64,
    /// Threads that compress.
    pub lanes: usize,
    /// Progress counters.
    pub tally: Arc<Tally>,
    /// The session, if a later process may resume this upload.
    pub session: Option<Uploading>,
}

impl Default for UploadOptions {
    /// `compression=auto` and `mode=balanced`, packs of 16 MiB, 128 MiB of memory, and one thread
    /// for each CPU.
    fn default() -> Self {
        Self {
            encoding: Encoding::default(),
            name: String::new(),
            pack_bytes: PACK_BYTES,
            memory_bytes: 128 << 20,
            lanes: std::thread::available_parallelism().map_or(2, std::num::NonZero::get),
            tally: Arc::default(),
            session: None,
        }
    }
}

/// The result of an upload.
#[derive(Debug)]
pub(crate) struct Uploaded {
    pub(crate) run: Run,
    /// `born` of the session; `u64::MAX` if no pack was written.
    pub(crate) born: u64,
    pub(crate) stored: u64,
}

/// Puts frames into packs and packs into the store.
pub(crate) struct Packer {
    fetcher: Fetcher,
    limit: Arc<UploadLimit>,
    sending: JoinSet<Result<(), Error>>,
    tally: Arc<Tally>,
    target: u32,
    session: Session,
    born: u64,
    number: u32,
    pack: PackBuilder,
    extent: Option<Extent>,
    zeroes: usize,
    pieces: Vec<Piece>,
    len: u64,
    stored: u64,
    resumable: Option<Resumable>,
}

/// State of the packer for a later process.
struct Resumable {
    session: Uploading,
    /// Hashes of frames that are being encoded.
    coming: VecDeque<u128>,
    /// Hash of the data after the last pack that was sent.
    hash: DataHash,
    /// Pieces that were reported to the session.
    reported: usize,
}

impl Packer {
    /// Begins a session that is born at record `born`.
    pub(crate) fn new(fetcher: &Fetcher, born: u64, options: &UploadOptions) -> Result<Self, Error> {
        let target = options.pack_bytes.clamp(1 << 20, PACK_BYTES_MAX);
        let session = Session(names::random(&*fetcher.backend.entropy)?);
        let most = (options.memory_bytes / u64::from(target)).saturating_sub(1) as f64;
        Ok(Self {
            fetcher: fetcher.clone(),
            limit: Arc::new(UploadLimit::new(most)),
            sending: JoinSet::new(),
            tally: options.tally.clone(),
            target,
            session,
            born,
            number: 0,
            pack: PackBuilder::default(),
            extent: None,
            zeroes: 0,
            pieces: Vec::new(),
            len: 0,
            stored: 0,
            resumable: None,
        })
    }

    /// Adds a frame that is not all zeroes at its own offset.
    ///
    /// # Errors
    /// When a pack could not be sent, without waiting for the others.
    pub(crate) async fn push_at(&mut self, at: u64, encoded: Encoded) -> Result<(), Error> {
        if at != self.len {
            self.end_extent(0);
            self.len = at;
        }
        self.push(encoded).await;
        while let Some(sent) = self.sending.try_join_next() {
            sent.map_err(|_| Error::Refused("the upload was cancelled".into()))??;
        }
        Ok(())
    }

    /// Sends the last pack and waits for all. Returns the extents in the order of their offsets,
    /// their stored bytes, and whether there are packs at all.
    pub(crate) async fn end(mut self) -> Result<(Vec<Piece>, u64, bool), Error> {
        self.end_extent(0);
        if !self.pack.is_empty() {
            self.send().await;
        }
        self.wait().await?;
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.sort_by_key(Piece::start);
        Ok((pieces, self.stored, self.number > 0))
    }

    /// Waits until every pack is acknowledged.
    async fn wait(&mut self) -> Result<(), Error> {
        while let Some(sent) = self.sending.join_next().await {
            if let Err(error) = sent.unwrap_or_else(|_| Err(Error::Refused("the upload was cancelled".into()))) {
                self.sending.shutdown().await;
                return Err(error);
            }
        }
        Ok(())
    }

    const fn name(&self) -> PackRef {
        PackRef { origin: 0, born: self.born, session: self.session, number: self.number }
    }

    async fn push(&mut self, encoded: Encoded) {
        self.tally.encoded_raw.fetch_add(encoded.raw_len.into(), Ordering::Relaxed);
        self.tally.encoded.fetch_add(encoded.frame.stored.into(), Ordering::Relaxed);
        self.place(&encoded).await;
        if let Some(resumable) = &mut self.resumable
            && let Some(hash) = resumable.coming.pop_front()
        {
            resumable.hash.add(hash);
        }
    }

    /// Adds whole frames of zeroes that were given as a count.
    async fn push_zeroes(&mut self, frames: u64) {
        let encoded = Encoded { frame: Frame::ZERO, raw_len: FRAME_BYTES, stored: Bytes::new() };
        // The first ones may belong to an extent, which the last of these ends.
        let placed = frames.min(ZERO_FRAMES_MIN as u64);
        for _ in 0..placed {
            self.place(&encoded).await;
        }
        self.len += (frames - placed) * u64::from(FRAME_BYTES);
        self.tally.encoded_raw.fetch_add(frames * u64::from(FRAME_BYTES), Ordering::Relaxed);
        if let Some(resumable) = &mut self.resumable {
            let hash = DataHash::of_frame(&[0; FRAME_BYTES as usize]);
            (0..frames).for_each(|_| resumable.hash.add(hash));
        }
    }

    async fn place(&mut self, encoded: &Encoded) {
        let raw_len = encoded.raw_len;
        if encoded.frame.is_zero() {
            // Ranges without a piece read as zeroes.
            self.zeroes += 1;
            if self.zeroes == ZERO_FRAMES_MIN {
                self.end_extent(ZERO_FRAMES_MIN - 1);
            }
            if self.zeroes >= ZERO_FRAMES_MIN || self.extent.is_none() {
                self.len += u64::from(raw_len);
                return;
            }
        } else {
            self.zeroes = 0;
            if self.pack.offset() + encoded.frame.stored > self.target && !self.pack.is_empty() {
                self.end_extent(0);
                self.send().await;
            }
        }
        let (start, name, offset) = (self.len, self.name(), self.pack.offset());
        let extent = self.extent.get_or_insert_with(|| Extent {
            start,
            len: 0,
            skip: 0,
            tail: FRAME_BYTES,
            place: Place::Pack { pack: name, offset },
            frames: Vec::new(),
        });
        extent.frames.push(encoded.frame);
        extent.len += u64::from(raw_len);
        extent.tail = raw_len;
        let is_full = extent.frames.len() == EXTENT_FRAMES_MAX;
        self.pack.push_frame(encoded);
        self.stored += u64::from(encoded.frame.stored);
        self.len += u64::from(raw_len);
        if is_full {
            self.end_extent(0);
        }
    }

    /// Sends the current pack, although it is not full.
    async fn flush(&mut self) {
        if !self.pack.is_empty() {
            self.end_extent(self.zeroes.min(ZERO_FRAMES_MIN - 1));
            self.send().await;
        }
    }

    /// Ends the extent without its last frames, which are zeroes.
    fn end_extent(&mut self, zeroes: usize) {
        let Some(mut extent) = self.extent.take() else { return };
        let kept = extent.frames.len().saturating_sub(zeroes);
        if kept < extent.frames.len() {
            extent.frames.truncate(kept);
            extent.len = kept as u64 * u64::from(FRAME_BYTES);
            extent.tail = FRAME_BYTES;
        }
        if !extent.frames.is_empty() {
            self.pieces.push(Piece::Extent(extent));
        }
    }

    /// Sends the pack once the limit on uploads allows it.
    async fn send(&mut self) {
        let name = self.name();
        let payload = std::mem::take(&mut self.pack).finish();
        self.number += 1;
        let finished = self.finished(name.number);
        self.limit.acquire().await;
        let (fetcher, limit, tally) = (self.fetcher.clone(), self.limit.clone(), self.tally.clone());
        self.sending.spawn(async move {
            let sent = send(&fetcher, &limit, &name, payload, &tally).await;
            limit.release();
            if let (Ok(()), Some((session, finished))) = (&sent, finished) {
                session.acknowledged(finished);
            }
            sent
        });
    }
}

impl Packer {
    /// Describes the pack that is about to be sent, for a later process.
    fn finished(&mut self, number: u32) -> Option<(Uploading, Finished)> {
        let (to, stored) = (self.len, self.stored);
        let resumable = self.resumable.as_mut()?;
        let pieces = Layout::of(self.pieces[resumable.reported..].to_vec());
        resumable.reported = self.pieces.len();
        let hash = std::mem::take(&mut resumable.hash).finish();
        let number = resumable.session.done().len() as u32 + number;
        Some((resumable.session.clone(), Finished { number, to, stored, hash, pieces }))
    }

    /// Returns whether there are packs of an earlier process.
    fn has_earlier(&self) -> bool {
        self.resumable.as_ref().is_some_and(|resumable| !resumable.session.done().is_empty())
    }

    /// Continues after the packs of an earlier process.
    fn resume(&mut self, session: Uploading) {
        for finished in session.done() {
            self.pieces.extend_from_slice(finished.pieces.pieces());
            (self.len, self.stored) = (finished.to, finished.stored);
        }
        self.tally.raw.fetch_add(self.len, Ordering::Relaxed);
        self.tally.encoded_raw.fetch_add(self.len, Ordering::Relaxed);
        self.tally.encoded.fetch_add(self.stored, Ordering::Relaxed);
        (self.session, self.born) = (session.session(), session.born());
        let reported = self.pieces.len();
        self.resumable = Some(Resumable { session, coming: VecDeque::new(), hash: DataHash::default(), reported });
    }
}

async fn send(
    fetcher: &Fetcher,
    limit: &UploadLimit,
    name: &PackRef,
    payload: PutPayload,
    tally: &Tally,
) -> Result<(), Error> {
    let path = fetcher.key.pack(fetcher.inc, name);
    let mut tries = 0;
    loop {
        // Only this session uses the name, so sending the same bytes again is harmless.
        let Err(error) = fetcher.data.put(&path, payload.clone()).await else {
            tally.stored.fetch_add(payload.content_length() as u64, Ordering::Relaxed);
            tally.packs.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        tries += 1;
        if tries == TRIES || is_permanent(&error, tries) {
            return Err(Error::store(format!("writing {path}"), error));
        }
        limit.slow_down();
        fetcher.backend.pause(tries).await;
    }
}

/// Uploads a stream under a new session that is born at record `born`.
pub(crate) async fn upload(
    fetcher: &Fetcher,
    born: u64,
    options: &UploadOptions,
    source: impl Stream<Item = std::io::Result<impl Into<Chunk>>>,
) -> Result<Uploaded, Error> {
    upload_to(fetcher, born, options, source, true).await
}

/// Uploads a stream as [`upload`] does; a small one stays in the record only if `may_inline`.
pub(crate) async fn upload_to(
    fetcher: &Fetcher,
    born: u64,
    options: &UploadOptions,
    source: impl Stream<Item = std::io::Result<impl Into<Chunk>>>,
    may_inline: bool,
) -> Result<Uploaded, Error> {
    let mut packer = Packer::new(fetcher, born, options)?;
    if let Some(session) = &options.session {
        packer.resume(session.clone());
    }
    let born = packer.born;
    if let Err(error) = pack_all(&mut packer, options, source).await {
        // A pack that a later upload does not know must not be acknowledged while that upload runs.
        packer.sending.shutdown().await;
        return Err(error);
    }
    packer.end_extent(packer.zeroes.min(ZERO_FRAMES_MIN - 1));
    let len = packer.len;
    if let Some(inline) = inline(&packer).filter(|_| may_inline) {
        return Ok(Uploaded { run: Run { pieces: vec![inline], len }, born: u64::MAX, stored: packer.stored });
    }
    let mut pieces = packer.pieces.clone();
    if Layout::of(pieces.clone()).encoded_bytes() > RUN_BYTES_MAX {
        let name = packer.name();
        let pack = &mut packer.pack;
        pieces = tree::fold(pieces, RUN_BYTES_MAX, &mut |node| pack.push_node(name, node));
    }
    if !packer.pack.is_empty() {
        packer.send().await;
    }
    packer.wait().await?;
    let has_packs = packer.number > 0 || packer.has_earlier();
    let born = if has_packs { born } else { u64::MAX };
    Ok(Uploaded { run: Run { pieces, len }, born, stored: packer.stored })
}

/// Returns a small upload as an extent in the record.
fn inline(packer: &Packer) -> Option<Piece> {
    let [Piece::Extent(extent)] = packer.pieces.as_slice() else { return None };
    if packer.number > 0
        || packer.has_earlier()
        || extent.frames.len() > 1
        || extent.stored_len() > INLINE_BYTES_MAX as u64
    {
        return None;
    }
    let stored = packer.pack.last_part()?;
    Some(Piece::Extent(Extent { place: Place::Inline(Bytes::copy_from_slice(&stored)), ..extent.clone() }))
}

/// Returns the end of a piece that begins at byte `at` of an upload.
fn end_of(at: u64, len: u64) -> Result<u64, Error> {
    // A program can ask for more zeroes than a u64 can count.
    let end = at.checked_add(len).filter(|end| *end <= END_MAX);
    end.ok_or_else(|| Error::Refused(format!("{len} bytes at {at} exceed the size of the largest blob")))
}

/// The output of the lanes, in the order of the stream.
enum Batch {
    Frames(Vec<Encoded>),
    /// Frames of zeroes that were given as a count.
    Zeroes(u64),
}

/// Waits for a lane; `zeroes` are frames that need none.
async fn lane(work: Option<JoinHandle<Vec<Encoded>>>, zeroes: u64) -> Result<Batch, Error> {
    let Some(work) = work else { return Ok(Batch::Zeroes(zeroes)) };
    work.await.map(Batch::Frames).map_err(|_| Error::Refused("the upload was cancelled".into()))
}

/// Steps 1 and 2.
async fn pack_all(
    packer: &mut Packer,
    options: &UploadOptions,
    source: impl Stream<Item = std::io::Result<impl Into<Chunk>>>,
) -> Result<(), Error> {
    let mut source = std::pin::pin!(source.fuse());
    let (mut framer, mut frames) = (Framer::default(), Vec::new());
    // Whole frames of zeroes after `frames`.
    let mut zeroes = 0;
    let mut taken = packer.len;
    let mut encoder: Option<Arc<Encoder>> = None;
    let mut batches = FuturesOrdered::new();
    let mut ended = false;
    // The time at which the pack is sent even if it is not full.
    let mut due: Option<Instant> = None;
    let mut is_due = false;
    let lanes = options.lanes.max(1);
    loop {
        let all = ended || is_due || zeroes > 0;
        while batches.len() < lanes && (frames.len() >= BATCH_FRAMES || (all && !frames.is_empty())) {
            let rest = frames.split_off(frames.len().min(BATCH_FRAMES));
            let batch = std::mem::replace(&mut frames, rest);
            let encoder = encoder.get_or_insert_with(|| encoder_for(packer, options, &batch[0])).clone();
            if let Some(resumable) = &mut packer.resumable {
                resumable.coming.extend(batch.iter().map(|frame| DataHash::of_frame(frame)));
            }
            let work = tokio::task::spawn_blocking(move || encoder.encode(batch));
            batches.push_back(lane(Some(work), 0));
        }
        if zeroes > 0 && frames.is_empty() && batches.len() < lanes {
            encoder.get_or_insert_with(|| encoder_for(packer, options, &Bytes::from_static(&ZERO_HEAD)));
            batches.push_back(lane(None, std::mem::take(&mut zeroes)));
        }
        if frames.is_empty() && batches.is_empty() {
            if ended {
                return Ok(());
            }
            if is_due {
                packer.flush().await;
                (due, is_due) = (None, false);
            }
        }
        let something = !frames.is_empty() || !batches.is_empty() || !packer.pack.is_empty();
        if due.is_none() && something {
            due = Some(Instant::now() + PACK_AGE);
        }
        let wants = !ended && zeroes == 0 && frames.len() < BATCH_FRAMES && batches.len() < lanes;
        tokio::select! {
            biased;
            Some(batch) = batches.next(), if !batches.is_empty() => {
                let number = packer.number;
                match batch? {
                    Batch::Frames(frames) => {
                        for encoded in frames {
                            packer.push(encoded).await;
                        }
                    }
                    Batch::Zeroes(frames) => packer.push_zeroes(frames).await,
                }
                if packer.number > number {
                    (due, is_due) = (None, false);
                }
                // A pack that could not be sent ends the upload without waiting for the others.
                while let Some(sent) = packer.sending.try_join_next() {
                    sent.map_err(|_| Error::Refused("the upload was cancelled".into()))??;
                }
            }
            piece = source.next(), if wants => match piece {
                Some(piece) => {
                    let piece = piece.map_err(Error::Source)?.into();
                    taken = end_of(taken, piece.len())?;
                    options.tally.raw.fetch_add(piece.len(), Ordering::Relaxed);
                    match piece {
                        Chunk::Data(piece) => framer.push(piece, &mut frames),
                        Chunk::Zeroes(len) => zeroes = framer.push_zeroes(len, &mut frames),
                    }
                }
                None => {
                    ended = true;
                    frames.extend(framer.finish());
                }
            },
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() && !is_due => is_due = true,
        }
    }
}

fn encoder_for(packer: &Packer, options: &UploadOptions, first: &Bytes) -> Arc<Encoder> {
    // A process that resumes in the middle must choose the same codecs as the first one.
    let resumed = options.session.as_ref().and_then(Uploading::head);
    let head = resumed.unwrap_or_else(|| first.slice(..first.len().min(policy::HEAD_BYTES)));
    let choice = options.encoding.choose(&options.name, &head);
    let clock = packer.fetcher.backend.clock.clone();
    Arc::new(Encoder::new(choice, options.encoding.min_saving_permille(), clock))
}
