//! Examining versions as a whole: the space that they take, the difference between two, and the
//! verification of every byte. Owns no state; any task may call it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use codec::CodecId;
use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;

use crate::blob::Blob;
use crate::data::extent::{FRAME_BYTES, Frame, PackRef, Piece};
use crate::data::fetch::Fetcher;
use crate::data::layout::Layout;
use crate::data::read::{CACHE_BYTES, Reader};
use crate::data::tree::Tree;
use crate::data::upload::Tally;
use crate::error::Error;
use crate::protocol::record::{OpKind, Record};

/// Bytes of a version whose extents are in memory at once: 1 MiB of extents, when every frame is
/// raw.
const WINDOW_BYTES: u64 = 16 << 30;
/// Bytes that a verification reads at once, and the number of these reads in flight.
const VERIFY_BYTES: u64 = 8 << 20;
const VERIFY_AT_ONCE: usize = 3;
/// Damaged ranges in a report; a lost pack makes thousands, and a longer list is of no use to a
/// reader.
const DAMAGE_MAX: usize = 1000;

/// The space that a version takes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of data; the rest is holes.
    pub data: u64,
    /// Stored bytes of the frames, including frames of which only a part is visible.
    pub stored: u64,
    /// Extents.
    pub extents: u64,
    /// Frames and their stored bytes, by codec.
    pub codecs: BTreeMap<CodecId, (u64, u64)>,
}

/// An unreadable range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Offset in the blob.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// The fault.
    pub what: String,
}

/// The result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Frames that were read, verified and decoded, or failed that.
    pub frames: u64,
    /// Their stored bytes.
    pub stored: u64,
    /// Unreadable ranges, at most 1000.
    pub damaged: Vec<Damage>,
}

impl OpKind {
    /// Returns its name, for logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Write => "write",
            Self::Put => "put",
            Self::Resize => "resize",
            Self::Rewrite => "rewrite",
            Self::Restore => "restore",
            Self::Tag => "tag",
            Self::Untag => "untag",
            Self::Expire => "expire",
            Self::Fence => "fence",
            Self::Close => "close",
        }
    }
}

impl Blob {
    /// Adds up the space of a version. Reads its nodes but no data.
    ///
    /// # Errors
    /// When a node cannot be read.
    pub async fn usage(&self, version: &Record) -> Result<Usage, Error> {
        let mut usage = Usage::default();
        let mut from = 0;
        while let Some(data) = self.next_data(version, from, version.size).await? {
            from = data - data % WINDOW_BYTES;
            let to = version.size.min(from + WINDOW_BYTES);
            for piece in self.reader.tree.extents(version, from, to).await? {
                let Piece::Extent(extent) = piece else { continue };
                usage.data += extent.len;
                usage.extents += 1;
                for frame in &extent.frames {
                    usage.stored += u64::from(frame.stored);
                    let codec = usage.codecs.entry(frame.codec).or_default();
                    *codec = (codec.0 + 1, codec.1 + u64::from(frame.stored));
                }
            }
            from = to;
        }
        Ok(usage)
    }

    /// Returns the visible frames of a range, in order: the offset of each, its visible bytes, and
    /// its entry in the extent. Reads no data.
    ///
    /// # Errors
    /// When a node cannot be read.
    pub async fn frames(&self, version: &Record, from: u64, to: u64) -> Result<Vec<(u64, u64, Frame)>, Error> {
        let mut all = Vec::new();
        for piece in self.reader.tree.extents(version, from, to.min(version.size)).await? {
            let Piece::Extent(extent) = piece else { continue };
            let end = extent.start + extent.len;
            let mut at = extent.start;
            for (index, frame) in extent.frames.iter().enumerate() {
                let skip = if index == 0 { u64::from(extent.skip) } else { 0 };
                let next = end.min(at + u64::from(FRAME_BYTES) - skip);
                all.push((at, next - at, *frame));
                at = next;
            }
        }
        Ok(all)
    }

    /// Reads every visible frame of a version, verifies its checksum and decodes it. `tally.raw`
    /// counts the progress.
    ///
    /// # Errors
    /// When the store fails. Damage is reported in the result, not as an error.
    pub async fn verify(&self, version: &Record, tally: &Tally) -> Result<Verified, Error> {
        self.verify_range(version, 0, version.size, tally).await
    }

    /// Verifies the visible frames in `from..to`, as [`verify`](Self::verify) does.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn verify_range(&self, version: &Record, from: u64, to: u64, tally: &Tally) -> Result<Verified, Error> {
        let mut verified = Verified::default();
        let end = to.min(version.size);
        // The content of a cache proves nothing about the store.
        let fetcher = Fetcher { cache: None, ..self.fetcher().clone() };
        let reader = &Reader::new(Arc::new(Tree::new(fetcher)), CACHE_BYTES);
        // Windows without data are skipped: a hole of a TiB has 131,072 of them.
        let windows = windows(reader, version, from, end);
        let lost = Mutex::default();
        let lost = &lost;
        let windows = windows.map(|window| async move { verify_window(reader, version, window?, lost).await });
        // The loop itself must not await anything: a window that waits there for a fetch of another
        // window would never continue.
        let mut windows = std::pin::pin!(windows.buffered(VERIFY_AT_ONCE));
        while let Some(window) = windows.next().await {
            let (window, part) = window?;
            verified.frames += part.frames;
            verified.stored += part.stored;
            for damage in part.damaged {
                add(&mut verified, damage.at..damage.at + damage.len, damage.what);
            }
            tally.raw.store(window.end, std::sync::atomic::Ordering::Relaxed);
        }
        tally.raw.store(end, std::sync::atomic::Ordering::Relaxed);
        Ok(verified)
    }

    /// Returns the ranges that differ between two versions of the blob. Shared parts are not
    /// examined, and no data is read: a range that was written again counts as different, even with
    /// the same bytes.
    ///
    /// # Errors
    /// When a node cannot be read.
    pub async fn diff(&self, a: &Record, b: &Record) -> Result<Vec<Range<u64>>, Error> {
        let (mut left, mut right) = (a.layout.pieces().to_vec(), b.layout.pieces().to_vec());
        let mut changed: Vec<Range<u64>> = Vec::new();
        let (small, large) = (a.size.min(b.size), a.size.max(b.size));
        if small < large {
            changed.push(small..large);
        }
        while !left.is_empty() || !right.is_empty() {
            let mut cuts: Vec<u64> = left.iter().chain(&right).flat_map(|piece| [piece.start(), piece.end()]).collect();
            cuts.sort_unstable();
            cuts.dedup();
            let (layout_a, layout_b) = (Layout::of(left), Layout::of(right));
            let at =
                |layout: &Layout, from, to| layout.overlapping(from, to).first().and_then(|piece| piece.clip(from, to));
            (left, right) = (Vec::new(), Vec::new());
            for cut in cuts.windows(2) {
                let (from, to) = (cut[0], cut[1]);
                let (one, other) = (at(&layout_a, from, to), at(&layout_b, from, to));
                if one == other {
                    continue;
                }
                if one.iter().chain(&other).any(|piece| piece.level() > 0) {
                    left.extend(one);
                    right.extend(other);
                } else {
                    changed.push(from..to);
                }
            }
            left = open_spans(&self.reader.tree, a, left).await?;
            right = open_spans(&self.reader.tree, b, right).await?;
        }
        Ok(joined(changed))
    }
}

/// Returns the windows in `from..end` that have data.
fn windows<'a>(
    reader: &'a Reader,
    version: &'a Record,
    from: u64,
    end: u64,
) -> impl Stream<Item = Result<Range<u64>, Error>> + Send + 'a {
    futures_util::stream::try_unfold(from, move |at| async move {
        let Some(data) = reader.tree.next_data(version, at, end).await? else { return Ok(None) };
        let at = data - (data - from) % VERIFY_BYTES;
        Ok(Some((at..end.min(at + VERIFY_BYTES), at + VERIFY_BYTES)))
    })
}

/// Reads a window, and finds its unreadable frames.
async fn verify_window(
    reader: &Reader,
    version: &Record,
    window: Range<u64>,
    lost: &Mutex<BTreeSet<PackRef>>,
) -> Result<(Range<u64>, Verified), Error> {
    let mut part = Verified::default();
    match reader.read(version, window.start, window.end).await.map(drop) {
        Ok(()) => count(reader, version, &window, &mut part).await?,
        Err(error) if error.is_damage() => narrow(reader, version, &window, &mut part, lost).await?,
        Err(error) => return Err(error),
    }
    Ok((window, part))
}

/// Finds the unreadable frames of a window. `lost` are packs that the store does not have: it is
/// not asked again for each of their frames.
async fn narrow(
    reader: &Reader,
    version: &Record,
    window: &Range<u64>,
    verified: &mut Verified,
    lost: &Mutex<BTreeSet<PackRef>>,
) -> Result<(), Error> {
    let extents = match reader.tree.extents(version, window.start, window.end).await {
        Ok(extents) => extents,
        // A node is damaged, so its frames are unknown.
        Err(error) if error.is_damage() => {
            add(verified, window.clone(), error.to_string());
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    for piece in &extents {
        let Piece::Extent(extent) = piece else { continue };
        verified.frames += extent.frames.len() as u64;
        verified.stored += extent.stored_len();
        let mut at = extent.start;
        let pack = piece.pack();
        while at < piece.end() {
            if let Some(pack) = pack.filter(|pack| lost.lock().contains(pack)) {
                let path = reader.tree.fetcher().path(version, &pack)?.to_string();
                add(verified, at..piece.end(), Error::Lost { path }.to_string());
                break;
            }
            // To the end of the frame that contains `at`.
            let position = u64::from(extent.skip) + (at - extent.start);
            let left = u64::from(FRAME_BYTES) - position % u64::from(FRAME_BYTES);
            let end = piece.end().min(at + left);
            match reader.read(version, at, end).await {
                Ok(_) => {}
                Err(error) if error.is_damage() => {
                    lost.lock().extend(pack.filter(|_| matches!(error, Error::Lost { .. })));
                    add(verified, at..end, error.to_string());
                }
                Err(error) => return Err(error),
            }
            at = end;
        }
    }
    Ok(())
}

/// Counts the frames of a window that was read completely.
async fn count(reader: &Reader, version: &Record, window: &Range<u64>, verified: &mut Verified) -> Result<(), Error> {
    for piece in reader.tree.extents(version, window.start, window.end).await? {
        if let Piece::Extent(extent) = piece {
            verified.frames += extent.frames.len() as u64;
            verified.stored += extent.stored_len();
        }
    }
    Ok(())
}

fn add(verified: &mut Verified, range: Range<u64>, what: String) {
    let is_full = verified.damaged.len() == DAMAGE_MAX;
    match verified.damaged.last_mut() {
        Some(last) if last.at + last.len == range.start && last.what == what => last.len += range.end - range.start,
        _ if !is_full => verified.damaged.push(Damage { at: range.start, len: range.end - range.start, what }),
        _ => {}
    }
}

async fn open_spans(tree: &Tree, record: &Record, pieces: Vec<Piece>) -> Result<Vec<Piece>, Error> {
    let mut opened = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Span(span) => opened.extend(tree.open(record, &span).await?),
            piece => opened.push(piece),
        }
    }
    Ok(opened)
}

/// Sorts ranges and joins adjacent ones.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}
