//! What recovery makes of a damaged log when it is to repair it.
//!
//! **A batch whose header is whole and whose payloads are not** tells all that it changed. If a
//! later batch says that it was durable, no crash has torn it: it counts, with its damaged
//! fragments, which give errors when they are read, and so do all batches behind it, in their
//! order. A damaged fragment that was only moved is left where it was moved from: that place is not
//! used again before the next checkpoint.
//!
//! **A batch whose header is gone** may have changed anything. Batches behind it that are whole are
//! not used: blocks that they do not name may have been written or discarded by what is missing,
//! between two flushes or before a snapshot, so the volumes would become what they never were,
//! newer data beside older, and a file system or database on them could not tell. So the log ends
//! before it, as it was at one moment, and what is dropped is told ([`Loss`]). `salvage` does use
//! the batches behind, and says of which blocks it is not certain.

use format::{BATCH_ALIGN, Batch, Entry, decode_batch};
use units::BlockMask;

use super::tail::Tail;
use super::{End, Replay, Taken};
use crate::base::loss::Loss;
use crate::log::log_reads::LogReads;
use crate::map::apply::Applier;
use crate::repair::loss::Dropped;

/// Listed extents without a batch of this log, one after the other, behind which no more are looked
/// for: damage may take the heads of many, and reading this many takes no longer than a second or
/// two.
const EMPTY_MAX: usize = 256;

impl Replay<'_> {
    /// The next batch, although payloads of it are damaged, if it was durable.
    pub(super) fn advance_damaged(&mut self, reads: &LogReads<'_>) -> Option<Taken> {
        let stands = self.open.iter().flatten().chain(&self.fresh).any(|tail| tail.has(self.next));
        if !stands {
            return None;
        }
        let End { later, newer, .. } = self.end();
        let later = later.filter(|_| newer.is_none())?;
        let taken = self.advance(reads, true).ok()?;
        let (bad, all) = taken.damaged;
        let text = format!(
            "batch {} at byte {} of the data file is damaged: {bad} of its {all} payloads do not match. It was durable when batch {} was written, so it \
             counts, and so do those behind it; reading what is damaged gives errors",
            self.next.0 - 1,
            taken.begins,
            later.0
        );
        self.damaged.push(text);
        Some(taken)
    }

    /// What is lost if the log ends here.
    pub(super) fn loss(&mut self, what: String, applier: &Applier) -> Loss {
        let mut dropped = Dropped::default();
        for tail in self.open.iter().flatten() {
            self.drop_behind(tail, &mut dropped);
        }
        let mut empty = 0;
        for extent in self.checkpoint.extents.iter().copied().skip(self.opened) {
            if empty == EMPTY_MAX {
                break;
            }
            let before = dropped.batches;
            let tail = self.load(extent, self.source.read_around(extent), 0, None);
            self.drop_behind(&tail, &mut dropped);
            empty = if dropped.batches == before { empty + 1 } else { 0 };
            self.source.buffers.put(tail.buf);
        }
        dropped.loss(what, self.next, &applier.objects)
    }

    fn drop_behind(&self, tail: &Tail, dropped: &mut Dropped) {
        let mut at = tail.at;
        while at + BATCH_ALIGN <= tail.len {
            match decode_batch(&tail.bytes()[at..]) {
                Ok(batch) if self.id.has(&batch.header, tail.extent) && batch.header.seq >= self.next => {
                    dropped.add(&batch, tail.payloads_match(at, &batch).all(|matches| matches));
                    at += batch.batch_bytes;
                }
                _ => at += BATCH_ALIGN,
            }
        }
    }

    /// Whether the next batch may lie where the data was cut off.
    pub(super) fn reaches(&self, cut_at: u64) -> bool {
        let geometry = self.source.geometry;
        let next = self.checkpoint.extents.get(self.opened).copied();
        let places = self.open.iter().flatten().map(|tail| tail.extent).chain(next);
        places.into_iter().any(|extent| geometry.start(extent) + u64::from(geometry.extent_bytes) > cut_at)
    }
}

/// Takes the moves out of a batch whose payloads do not match: what they moved is still where it
/// was.
pub(super) fn leave_damaged_moves(batch: &mut Batch, matches: &[bool]) {
    let mut matches = matches.iter();
    for entry in &mut batch.entries {
        match entry {
            Entry::Moves { moves, .. } => {
                for (moved, matches) in moves.iter_mut().zip(&mut matches) {
                    if !matches {
                        moved.live = BlockMask::EMPTY;
                    }
                }
            }
            entry => {
                let payloads = entry.payloads().count();
                matches.by_ref().take(payloads).for_each(drop);
            }
        }
    }
}
