//! Reading groups of 128 KiB of an image *as they are stored*, so that a pool takes them without
//! decoding and encoding them again. Owns which groups can be read this way, and how requests are
//! merged. Any task may call it.
//!
//! 1. The groups are sorted, and the extents of nearby groups are looked up together.
//! 2. A group without frames, or with frames of zeroes only, is [`Group::Zero`]: nothing is
//!    fetched.
//! 3. A group that is exactly one frame is returned as it is stored, with codec and checksum.
//!    Frames that lie close to each other in one pack are fetched with one request.
//! 4. Any other group is returned decoded: several frames, clipped frames, shifted frames.
//! 5. Each checksum is verified. Bytes that do not match are fetched once more, alone.
//!
//! Each group has its own result: a failure does not affect the others.

use std::sync::Arc;

use bytes::Bytes;
use codec::CodecId;
use futures_util::StreamExt;

use crate::blob::Blob;
use crate::data::extent::{Extent, FRAME_BYTES, Piece, Place};
use crate::data::frame::frame_checksum;
use crate::data::layout::Layout;
use crate::data::read::{REQUESTS_AT_ONCE, Wanted, merge, range_of, verify_frame};
use crate::error::{Cause, Error};
use crate::protocol::record::Record;

/// Bytes of a group.
const GROUP_BYTES: u64 = FRAME_BYTES as u64;
/// Largest gap, in groups, between two wanted groups whose extents are looked up together: 16 MiB
/// of an image, usually in one node.
const APART_MAX: u64 = 128;
/// Groups of one look-up: the extents of 512 MiB.
const LOOKUP_MAX: u64 = 4096;

/// A stored frame that holds exactly one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredGroup {
    /// Its codec.
    pub codec: CodecId,
    /// Bytes of its decoded data: the length of the group.
    pub data_len: u32,
    /// `format::fragment_checksum` of the bytes as those of object 0, epoch 0, block 0.
    pub crc: u32,
    /// The stored bytes, verified.
    pub bytes: Bytes,
}

/// A group of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Group {
    /// All zeroes.
    Zero,
    /// As stored.
    Stored(StoredGroup),
    /// Decoded data: 128 KiB, or the remainder at the end of the image.
    Plain(Bytes),
}

/// The error of a group; groups that were fetched by one request share it.
pub type GroupError = Arc<Error>;

/// How a group is obtained.
enum GroupSource {
    Zero,
    Whole(Wanted),
    Inline(StoredGroup),
    Mixed { at: usize, from: u64, to: u64 },
}

impl Blob {
    /// Returns groups of a version by their numbers, in the given order, as stored where possible.
    /// All of them are in memory at once: at most 128 KiB each.
    pub async fn groups(&self, version: &Record, numbers: &[u64]) -> Vec<Result<Group, GroupError>> {
        let mut answers: Vec<Result<Group, GroupError>> = numbers.iter().map(|_| Ok(Group::Zero)).collect();
        let (mut whole, mut mixed) = (Vec::new(), Vec::new());
        for run in runs(numbers) {
            let (first, last) = (numbers[run[0]], numbers[run[run.len() - 1]]);
            let (from, to) = (first.saturating_mul(GROUP_BYTES), last.saturating_add(1).saturating_mul(GROUP_BYTES));
            match self.reader.tree.extents(version, from, to.min(version.size)).await {
                Ok(extents) => {
                    let extents = Layout::of(extents);
                    for at in run {
                        match find_source(&extents, version.size, numbers[at], at) {
                            Ok(GroupSource::Zero) => {}
                            Ok(GroupSource::Whole(wanted)) => whole.push(wanted),
                            Ok(GroupSource::Inline(group)) => answers[at] = Ok(Group::Stored(group)),
                            Ok(GroupSource::Mixed { at, from, to }) => mixed.push((at, from, to)),
                            Err(error) => answers[at] = Err(Arc::new(error)),
                        }
                    }
                }
                Err(error) => {
                    let error = Arc::new(error);
                    for at in run {
                        answers[at] = Err(error.clone());
                    }
                }
            }
        }
        let stored = futures_util::stream::iter(merge(whole))
            .map(|request| async move { self.fetch_stored(version, request).await })
            .buffer_unordered(REQUESTS_AT_ONCE)
            .for_each(|fetched| {
                for (at, answer) in fetched {
                    answers[at] = answer.map(Group::Stored);
                }
                std::future::ready(())
            });
        stored.await;
        let mut plain = futures_util::stream::iter(mixed)
            .map(|(at, from, to)| async move { (at, self.plain(version, from, to).await) })
            .buffer_unordered(REQUESTS_AT_ONCE);
        while let Some((at, answer)) = plain.next().await {
            answers[at] = answer.map_err(Arc::new);
        }
        answers
    }

    /// Fetches frames of one pack with one request, and verifies them.
    async fn fetch_stored(
        &self,
        version: &Record,
        request: Vec<Wanted>,
    ) -> Vec<(usize, Result<StoredGroup, GroupError>)> {
        match self.fetch_together(version, &request).await {
            Ok(fetched) => fetched,
            // An object that is too short or missing fails each frame separately.
            Err(error) if request.len() > 1 && error.cause() == Cause::Damaged => {
                let mut fetched = Vec::with_capacity(request.len());
                for wanted in &request {
                    let alone = self.fetch_again(version, wanted, false).await;
                    fetched.push((wanted.at, alone.map_err(Arc::new)));
                }
                fetched
            }
            Err(error) => {
                let error = Arc::new(error);
                request.iter().map(|wanted| (wanted.at, Err(error.clone()))).collect()
            }
        }
    }

    async fn fetch_together(
        &self,
        version: &Record,
        request: &[Wanted],
    ) -> Result<Vec<(usize, Result<StoredGroup, GroupError>)>, Error> {
        let Some(first) = request.first() else { return Ok(Vec::new()) };
        let path = self.fetcher().path(version, &first.pack)?;
        let range = range_of(request);
        let base = range.start;
        let bytes = self.fetcher().range(&path, range).await?;
        let mut fetched = Vec::with_capacity(request.len());
        for wanted in request {
            let at = (u64::from(wanted.offset) - base) as usize;
            let part = &bytes[at..at + wanted.frame.stored as usize];
            // One frame must not keep the buffer of all others alive.
            let stored = if request.len() == 1 { bytes.clone() } else { Bytes::copy_from_slice(part) };
            let group = match verified(wanted, stored) {
                Ok(group) => Ok(group),
                Err(_) => self.fetch_again(version, wanted, true).await.map_err(Arc::new),
            };
            fetched.push((wanted.at, group));
        }
        Ok(fetched)
    }

    /// Fetches a frame alone. `is_second` means that a first read did not match.
    async fn fetch_again(&self, version: &Record, wanted: &Wanted, is_second: bool) -> Result<StoredGroup, Error> {
        let path = self.fetcher().path(version, &wanted.pack)?;
        let from = u64::from(wanted.offset);
        let range = from..from + u64::from(wanted.frame.stored);
        let mut wrong = String::new();
        for _ in usize::from(is_second)..2 {
            match verified(wanted, self.fetcher().range(&path, range.clone()).await?) {
                Ok(group) => return Ok(group),
                Err(detail) => wrong = detail,
            }
        }
        Err(Error::damaged(format!("frame at {from} of {path}"), format!("{wrong}, twice")))
    }

    async fn plain(&self, version: &Record, from: u64, to: u64) -> Result<Group, Error> {
        let data = self.read(version, from, to).await?;
        Ok(if policy::is_zero(&data) { Group::Zero } else { Group::Plain(data) })
    }
}

fn verified(wanted: &Wanted, bytes: Bytes) -> Result<StoredGroup, String> {
    verify_frame(&wanted.frame, wanted.raw_len, &bytes)?;
    Ok(StoredGroup { codec: wanted.frame.codec, data_len: wanted.raw_len, crc: wanted.frame.crc, bytes })
}

/// Sorts the positions of the numbers, in runs whose extents are looked up together.
fn runs(numbers: &[u64]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..numbers.len()).collect();
    order.sort_by_key(|at| numbers[*at]);
    let mut runs: Vec<Vec<usize>> = Vec::new();
    for at in order {
        if let Some(run) = runs.last_mut() {
            let (first, last) = (numbers[run[0]], numbers[run[run.len() - 1]]);
            if numbers[at] - last <= APART_MAX && numbers[at] - first < LOOKUP_MAX {
                run.push(at);
                continue;
            }
        }
        runs.push(vec![at]);
    }
    runs
}

/// Finds how a group is obtained. `at` is its position in the result.
fn find_source(extents: &Layout, size: u64, number: u64, at: usize) -> Result<GroupSource, Error> {
    let from = number.saturating_mul(GROUP_BYTES);
    let whole = from.saturating_add(GROUP_BYTES);
    let to = whole.min(size);
    if from >= to {
        return Ok(GroupSource::Zero);
    }
    let pieces = extents.overlapping(from, to);
    let mut frames = Vec::new();
    for piece in pieces {
        let Some(Piece::Extent(extent)) = piece.clip(from, to) else { continue };
        frames.push(extent);
    }
    if frames.iter().flat_map(|extent| &extent.frames).all(|frame| frame.is_zero()) {
        return Ok(GroupSource::Zero);
    }
    // Exactly one whole frame.
    let [Extent { skip: 0, len, tail, place, frames, .. }] = &frames[..] else {
        return Ok(GroupSource::Mixed { at, from, to });
    };
    let ([frame], true) = (&frames[..], *len == to - from && u64::from(*tail) == *len) else {
        return Ok(GroupSource::Mixed { at, from, to });
    };
    let (frame, raw_len) = (*frame, *tail);
    match place {
        Place::Pack { pack, offset } => {
            let (pack, offset) = (*pack, *offset);
            Ok(GroupSource::Whole(Wanted { pack, offset, frame, raw_len, from: 0, to: raw_len, at }))
        }
        Place::Inline(bytes) => {
            let crc = frame_checksum(frame.codec, raw_len, bytes);
            if crc != frame.crc {
                let detail = format!("checksum {crc:#010x}, expected {:#010x}", frame.crc);
                return Err(Error::damaged("a frame in the record".into(), detail));
            }
            Ok(GroupSource::Inline(StoredGroup { codec: frame.codec, data_len: raw_len, crc, bytes: bytes.clone() }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_near_each_other_are_looked_up_together() {
        assert_eq!(runs(&[7, 3, 500, 130, 3]), [vec![1, 4, 0, 3], vec![2]]);
        let long: Vec<u64> = (0..9000).collect();
        assert_eq!(runs(&long).iter().map(Vec::len).collect::<Vec<_>>(), [4096, 4096, 808]);
        assert!(runs(&[]).is_empty());
    }
}
