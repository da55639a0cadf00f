//! Compacting a version: many small appends and writes leave short and clipped frames, which cost
//! requests and space. Owns the choice of ranges to rewrite. The content does not change, and other
//! writers continue: a range that one of them changes is left alone. Any task may run it.

use std::ops::Range;

use futures_util::StreamExt;

use crate::blob::Blob;
use crate::data::extent::{FRAME_BYTES, Piece};
use crate::data::layout::Layout;
use crate::data::upload::{UploadOptions, upload};
use crate::error::Error;
use crate::names::OpId;
use crate::protocol::commit::Committed;
use crate::protocol::ops::{Action, Op, Patch};
use crate::protocol::record::Record;

/// Bytes of a range that is rewritten or left alone as a whole: about one pack.
const RANGE_BYTES: u64 = 16 << 20;
/// A range is rewritten if it has more frames than this multiple of the minimum: below that there
/// is little to gain.
const FRAMES_EXCESS: u64 = 2;
/// Ranges of one rewrite: as many patches of spans as fit in a record.
const RANGES_MAX: usize = 64;

/// The result of an optimization.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Optimized {
    /// Ranges that were rewritten.
    pub ranges: u64,
    /// Bytes of data in these ranges.
    pub raw: u64,
    /// Stored bytes before, including frames of which only a part was visible.
    pub stored_before: u64,
    /// Stored bytes afterwards.
    pub stored_after: u64,
    /// Records committed.
    pub commits: u64,
}

/// A range to rewrite, and its current cost.
struct Rewritable {
    range: Range<u64>,
    stored: u64,
}

impl Blob {
    /// Rewrites ranges that consist of many small or clipped frames, or with `all` everything, for
    /// example after a change of `mode`.
    ///
    /// # Errors
    /// When the store fails. Earlier commits of the same run stay.
    pub async fn optimize(&self, all: bool, options: &UploadOptions) -> Result<Optimized, Error> {
        let mut done = Optimized::default();
        let mut from = 0;
        loop {
            let head = self.refresh().await?;
            let (selected, next) = self.next_ranges(&head, from, all).await?;
            if !selected.is_empty() {
                self.rewrite(&head, &selected, options, &mut done).await?;
            }
            match next {
                Some(next) => from = next,
                None => return Ok(done),
            }
        }
    }

    /// Finds the next ranges to rewrite, and the offset at which to continue.
    async fn next_ranges(
        &self,
        head: &Record,
        mut from: u64,
        all: bool,
    ) -> Result<(Vec<Rewritable>, Option<u64>), Error> {
        let mut selected = Vec::new();
        while from < head.size && selected.len() < RANGES_MAX {
            let to = head.size.min(from + RANGE_BYTES);
            let (mut frames, mut stored, mut shown) = (0, 0, 0);
            for piece in self.reader.tree.extents(head, from, to).await? {
                let Piece::Extent(extent) = piece else { continue };
                frames += extent.frames.len() as u64;
                stored += extent.stored_len();
                shown += extent.len;
            }
            let needed = shown.div_ceil(u64::from(FRAME_BYTES));
            if frames > 0 && (all || frames > needed * FRAMES_EXCESS) {
                selected.push(Rewritable { range: from..to, stored });
            }
            from = to;
        }
        Ok((selected, (from < head.size).then_some(from)))
    }

    async fn rewrite(
        &self,
        head: &Record,
        selected: &[Rewritable],
        options: &UploadOptions,
        done: &mut Optimized,
    ) -> Result<(), Error> {
        let windows: Vec<_> =
            selected.iter().map(|selected| self.stream(head, selected.range.start, selected.range.end)).collect();
        let source = futures_util::stream::iter(windows).flatten();
        let source = source.map(|bytes| bytes.map_err(std::io::Error::other));
        let uploaded = upload(self.fetcher(), head.seq, options, source).await?;
        let written = Layout::of(uploaded.run.pieces);
        let mut patches = Vec::with_capacity(selected.len());
        let mut at = 0;
        for Rewritable { range, stored } in selected {
            let len = range.end - range.start;
            let clipped = |layout: &Layout, from: u64, to: u64| -> Vec<Piece> {
                layout.overlapping(from, to).iter().filter_map(|piece| piece.clip(from, to)).collect()
            };
            let mut after = clipped(&written, at, at + len);
            for piece in &mut after {
                piece.set_start(range.start + (piece.start() - at));
            }
            let before = clipped(&head.layout, range.start, range.end);
            patches.push(Patch { from: range.start, to: range.end, before, after });
            at += len;
            done.ranges += 1;
            done.raw += len;
            done.stored_before += stored;
        }
        let op = Op {
            id: OpId::random(&*self.fetcher().backend.entropy)?,
            born: uploaded.born,
            raw: 0,
            stored: uploaded.stored,
            message: String::new(),
            action: Action::Rewrite(patches),
        };
        done.stored_after += uploaded.stored;
        let _: Committed = self.committer().commit(op).await?;
        done.commits += 1;
        Ok(())
    }
}
