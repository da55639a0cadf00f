//! Pushing: a change of many groups becomes one version based on a known version. Owns the order of
//! the steps, and refuses before the upload everything that can be refused by then. Any task may
//! call it.
//!
//! 1. *Look*: a process that was killed before it knew may have committed an operation of this
//!    name. The version must be live, and the newest record must have its content, unless the push
//!    is to replace another version.
//! 2. *Upload*: groups that are stored go into packs as they are, the others are encoded. A group
//!    of zeroes becomes a hole.
//! 3. *Lay*: nodes that the change touches are opened, the change is laid over their extents, and
//!    all is folded into nodes again, so that the record stays small however many places changed.
//! 4. *Commit*: the record is refused when the newest one has other pieces than those in step 3. If
//!    only tags or folds came in between, steps 3 and 4 are repeated; the packs stay.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};

use crate::blob::Blob;
use crate::blob::groups::StoredGroup;
use crate::data::extent::{FRAME_BYTES, Frame, NodeRef, PackRef, Piece, Session};
use crate::data::frame::{Encoded, Encoder, frame_checksum};
use crate::data::layout::{END_MAX, Layout};
use crate::data::pack::{PACK_BYTES, PackBuilder};
use crate::data::tree::{self, FOLDED_BYTES};
use crate::data::upload::{Packer, UploadOptions};
use crate::error::Error;
use crate::names::{self, OpId};
use crate::protocol::commit::Committed;
use crate::protocol::ops::{Action, Op, Replacement};
use crate::protocol::record::{OpKind, Record};
use crate::texts::check_message;

const GROUP_BYTES: u64 = FRAME_BYTES as u64;
/// Groups encoded by one thread at a time.
const BATCH_GROUPS: usize = 8;
/// Attempts to lay the pieces when tags and folds come in between.
const TRIES: usize = 16;
/// Records examined together.
const RECORDS: u64 = 256;

/// A group's new content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// As stored.
    Zero,
    /// As it is stored.
    Stored(StoredGroup),
    /// Decoded data: 128 KiB, or the remainder at the end.
    Plain(Bytes),
}

/// Options of a push.
#[derive(Debug, Clone)]
pub struct PushOptions {
    /// Encoding of the groups that are not stored, and how packs are sent.
    pub upload: UploadOptions,
    /// Name of the operation: the same for the same change, so that it is applied once.
    pub id: OpId,
    /// Message for the log.
    pub message: String,
    /// Whether it may replace a newer version.
    pub replace: bool,
}

/// The result of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pushed {
    /// The record that carries it.
    pub committed: Committed,
    /// Whether an earlier process had committed it.
    pub is_earlier: bool,
    /// Groups that changed.
    pub groups: u64,
    /// Of these, groups that were pushed as they were stored.
    pub as_stored: u64,
    /// Of these, groups that became holes.
    pub zeroes: u64,
    /// Bytes that they take in packs.
    pub stored: u64,
}

/// The uploaded change.
struct UploadedChange {
    pieces: Vec<Piece>,
    /// Ranges that change, in order.
    ranges: Vec<Range<u64>>,
    born: u64,
    pushed: Pushed,
}

impl Blob {
    /// Refuses a push that cannot be committed; returns the earlier commit, if there is one.
    ///
    /// # Errors
    /// [`Error::Changed`] when there is a newer version; [`Error::Expired`] when the base has
    /// expired.
    pub async fn check_push(
        &self,
        base: &Record,
        size: u64,
        options: &PushOptions,
    ) -> Result<Option<Committed>, Error> {
        check_message(&options.message)?;
        let head = self.refresh().await?;
        if let Some((seq, done)) = self.log().find(options.id, base.seq, &head).await? {
            return Ok(Some(Committed { seq, at: done.at, len: done.len }));
        }
        if size > END_MAX {
            return Err(Error::Refused(format!("{size} bytes exceed the size of the largest blob, {END_MAX}")));
        }
        if head.closed {
            return Err(Error::Removed);
        }
        if base.seq > 0 && !head.is_live(base.seq) {
            return Err(Error::Expired(base.seq));
        }
        if !options.replace {
            self.check_content(&head, base).await?;
        }
        Ok(None)
    }

    /// Commits a change of groups of version `base`, in ascending order, as one version of `size`
    /// bytes.
    ///
    /// # Errors
    /// As [`check_push`](Self::check_push), before anything is uploaded; [`Error::Changed`] also
    /// later, if another client commits first.
    pub async fn push(
        &self,
        base: &Record,
        size: u64,
        changes: impl Stream<Item = std::io::Result<(u64, Change)>>,
        options: &PushOptions,
    ) -> Result<Pushed, Error> {
        if let Some(committed) = self.check_push(base, size, options).await? {
            return Ok(Pushed { committed, is_earlier: true, groups: 0, as_stored: 0, zeroes: 0, stored: 0 });
        }
        let uploaded = self.upload_change(size, changes, options).await?;
        for _ in 0..TRIES {
            match self.commit_laid(base, size, &uploaded, options).await {
                Ok(committed) => return Ok(Pushed { committed, ..uploaded.pushed }),
                Err(Error::Changed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Changed { base: base.seq, newest: self.refresh().await?.seq })
    }

    /// Refuses a newest record whose content is not that of `base`.
    async fn check_content(&self, head: &Record, base: &Record) -> Result<(), Error> {
        let mut first = base.seq + 1;
        while first <= head.seq {
            let last = head.seq.min(first + RECORDS - 1);
            let newer = self.records(first, last).await?.into_iter().rev().find(|record| record.is_version());
            if let Some(newer) = newer.filter(|_| !crate::canary!("push-over-newer-version")) {
                return Err(Error::Changed { base: base.seq, newest: newer.seq });
            }
            first = last + 1;
        }
        Ok(())
    }

    /// Step 2.
    async fn upload_change(
        &self,
        size: u64,
        changes: impl Stream<Item = std::io::Result<(u64, Change)>>,
        options: &PushOptions,
    ) -> Result<UploadedChange, Error> {
        let born = self.committer().head().await.seq;
        let upload = &options.upload;
        let mut packer = Packer::new(self.fetcher(), born, upload)?;
        let encoding = &upload.encoding;
        let clock = self.fetcher().backend.clock.clone();
        let encoder = Encoder::new(encoding.choose(&upload.name, &[]), encoding.min_saving_permille(), clock);
        let encoder = Arc::new(encoder);
        let batches = changes.chunks(BATCH_GROUPS).map(|batch| {
            let encoder = encoder.clone();
            async move {
                let batch: Vec<_> = batch.into_iter().collect::<std::io::Result<_>>().map_err(Error::Source)?;
                let work =
                    move || batch.into_iter().map(|(group, change)| encode(&encoder, size, group, change)).collect();
                let worked: Result<Vec<_>, Error> = tokio::task::spawn_blocking(work).await.map_err(|_| cancelled())?;
                worked
            }
        });
        let mut batches = std::pin::pin!(batches.buffered(upload.lanes.max(1)));
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut pushed = Pushed {
            committed: Committed { seq: 0, at: 0, len: 0 },
            is_earlier: false,
            groups: 0,
            as_stored: 0,
            zeroes: 0,
            stored: 0,
        };
        while let Some(batch) = batches.next().await {
            for Ready { range, encoded, as_stored } in batch? {
                if ranges.last().is_some_and(|last| last.end > range.start) {
                    return Err(Error::Refused(format!("the group at byte {} is out of order", range.start)));
                }
                pushed.groups += 1;
                pushed.as_stored += u64::from(as_stored);
                match ranges.last_mut() {
                    Some(last) if last.end == range.start => last.end = range.end,
                    _ => ranges.push(range.clone()),
                }
                match encoded {
                    Some(encoded) => packer.push_at(range.start, encoded).await?,
                    None => pushed.zeroes += 1,
                }
            }
        }
        let (mut pieces, stored, has_packs) = packer.end().await?;
        pushed.stored = stored;
        // The frame of the last group may extend past the end of the blob.
        pieces = pieces.iter().filter_map(|piece| piece.clip(0, size)).collect();
        Ok(UploadedChange { pieces, ranges, born: if has_packs { born } else { u64::MAX }, pushed })
    }

    /// Steps 3 and 4.
    async fn commit_laid(
        &self,
        base: &Record,
        size: u64,
        uploaded: &UploadedChange,
        options: &PushOptions,
    ) -> Result<Committed, Error> {
        let head = self.refresh().await?;
        if !options.replace {
            self.check_content(&head, base).await?;
        }
        let on: &Record = if options.replace { base } else { &head };
        let opened = self.reader.tree.opened_at(on, &uploaded.ranges).await?;
        let at = uploaded.ranges.first().map_or(0, |range| range.start);
        let replacement = Replacement {
            version: base.seq,
            expected: (!options.replace).then(|| (head.layout.clone(), head.size)),
            layout: Layout::of(laid(opened, &uploaded.pieces, &uploaded.ranges, size)),
            size,
            kind: OpKind::Write,
            at,
            len: uploaded.ranges.last().map_or(0, |range| range.end - at),
        };
        let op = Op {
            id: options.id,
            born: uploaded.born,
            raw: uploaded.ranges.iter().map(|range| range.end - range.start).sum(),
            stored: uploaded.pushed.stored,
            message: options.message.clone(),
            action: Action::Replace(Box::new(replacement)),
        };
        self.commit_folded(head.seq, op).await
    }

    /// Folds the pieces of a replacement, uploads the nodes, and commits it.
    pub(crate) async fn commit_folded(&self, born: u64, mut op: Op) -> Result<Committed, Error> {
        if let Action::Replace(all) = &mut op.action {
            let mut nodes = Nodes::new(self, born)?;
            let pieces = std::mem::take(&mut all.layout).into_pieces();
            all.layout = Layout::of(tree::fold(pieces, FOLDED_BYTES, &mut |node| nodes.put(node)));
            if nodes.upload(self).await? {
                op.born = op.born.min(born);
            }
        }
        self.committer().commit(op).await
    }
}

fn cancelled() -> Error {
    Error::Refused("the upload was cancelled".into())
}

/// A group that is ready to be packed.
struct Ready {
    range: Range<u64>,
    /// `None`: zeroes.
    encoded: Option<Encoded>,
    as_stored: bool,
}

fn encode(encoder: &Encoder, size: u64, group: u64, change: Change) -> Result<Ready, Error> {
    let start = group.saturating_mul(GROUP_BYTES);
    let range = start..start.saturating_add(GROUP_BYTES).min(size);
    if range.is_empty() {
        return Err(Error::Refused(format!("group {group} is beyond the end of {size} bytes")));
    }
    let ready = |encoded, as_stored| Ready { range: range.clone(), encoded, as_stored };
    match change {
        Change::Zero => Ok(ready(None, false)),
        Change::Stored(StoredGroup { codec, data_len, crc, bytes }) => {
            let found = frame_checksum(codec, data_len, &bytes);
            let fits = u64::from(data_len) >= range.end - range.start && data_len <= FRAME_BYTES && !bytes.is_empty();
            if found != crc || !fits || bytes.len() > FRAME_BYTES as usize {
                let why = format!("{} bytes of {data_len}, checksum {found:#010x}, expected {crc:#010x}", bytes.len());
                return Err(Error::damaged(format!("group {group} of the push"), why));
            }
            let frame = Frame { stored: bytes.len() as u32, codec, crc };
            Ok(ready(Some(Encoded { frame, raw_len: data_len, stored: bytes }), true))
        }
        Change::Plain(data) => {
            let len = (range.end - range.start) as usize;
            if data.len() < len || data.len() > GROUP_BYTES as usize {
                return Err(Error::Refused(format!("group {group} has {} bytes, but needs {len}", data.len())));
            }
            let encoded = encoder.encode(vec![data.slice(..len)]).pop().filter(|encoded| !encoded.frame.is_zero());
            Ok(ready(encoded, false))
        }
    }
}

/// Lays the pieces of a change over others, which are clipped to the ranges that do not change.
pub(crate) fn laid(opened: Vec<Piece>, change: &[Piece], ranges: &[Range<u64>], size: u64) -> Vec<Piece> {
    // One pass over both lists: laying the pieces one by one would move the list each time.
    let mut all = Vec::with_capacity(opened.len() + 2 * change.len());
    let mut next = 0;
    for piece in opened {
        let (mut from, end) = (piece.start(), piece.end().min(size));
        while next < ranges.len() && ranges[next].end <= from {
            next += 1;
        }
        let mut at = next;
        while from < end {
            let range = ranges.get(at);
            let to = range.map_or(end, |range| range.start.clamp(from, end));
            all.extend(piece.clip(from, to));
            let Some(range) = range.filter(|range| range.start < end) else { break };
            from = range.end;
            at += 1;
        }
    }
    all.extend_from_slice(change);
    all.sort_by_key(Piece::start);
    all
}

/// The packs for the nodes of a folded layout.
struct Nodes {
    name: PackRef,
    pack: PackBuilder,
    full: Vec<(PackRef, PackBuilder)>,
}

impl Nodes {
    fn new(blob: &Blob, born: u64) -> Result<Self, Error> {
        let session = Session(names::random(&*blob.fetcher().backend.entropy)?);
        let name = PackRef { origin: 0, born, session, number: 0 };
        Ok(Self { name, pack: PackBuilder::default(), full: Vec::new() })
    }

    fn put(&mut self, node: Bytes) -> NodeRef {
        if self.pack.offset() >= PACK_BYTES {
            self.full.push((self.name, std::mem::take(&mut self.pack)));
            self.name.number += 1;
        }
        self.pack.push_node(self.name, node)
    }

    /// Uploads the packs; returns whether there were any.
    async fn upload(mut self, blob: &Blob) -> Result<bool, Error> {
        if !self.pack.is_empty() {
            self.full.push((self.name, self.pack));
        }
        let is_some = !self.full.is_empty();
        for (name, pack) in self.full {
            let path = blob.fetcher().key.pack(blob.log().inc(), &name);
            blob.fetcher().backend.put(&path, pack.finish().into()).await?;
        }
        Ok(is_some)
    }
}

impl Record {
    /// Returns whether it is the first record of a clone of `source`, whose incarnation is `inc`.
    pub fn is_clone_of(&self, inc: names::Inc, source: &Self) -> bool {
        let adopted = crate::protocol::clone::adopted(source);
        self.seq == 1
            && self.origins.first().is_some_and(|origin| origin.inc == inc)
            && self.size == source.size
            && self.layout == adopted
    }
}
