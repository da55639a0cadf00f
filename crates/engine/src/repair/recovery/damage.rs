//! How recovery repairs a damaged log.
//!
//! **A batch with a whole header and damaged payloads** names all of its changes. If a later batch
//! proves it durable, no crash has torn it: it is applied, with its damaged fragments, which give
//! errors when they are read, and so are all later batches, in order. A damaged fragment that was
//! only moved keeps its old location, which is not reused before the next checkpoint.
//!
//! **A batch whose header is gone** may have changed anything. Whole batches after it are not used.
//! The missing one may have written or discarded blocks that they do not name, between two flushes
//! or before a snapshot; the volumes would reach a state that never existed, with old and new data
//! mixed, and a file system or database on them could not detect it. So the log ends before it, at
//! a state that did exist, and the dropped part is reported ([`Loss`]). `salvage` does use the
//! batches after it, and reports which blocks are uncertain.

use format::{BATCH_ALIGN, Batch, Entry, decode_batch};
use store::base::loss::Loss;
use store::log::log_reads::LogReads;
use store::map::apply::Applier;
use units::BlockMask;

use super::tail::Tail;
use super::{End, Replay, Taken};
use crate::repair::loss::Dropped;

/// The search ends after this many consecutive listed extents without a batch of this log: damage
/// may destroy many heads, and reading this many takes no longer than a second or two.
const EMPTY_MAX: usize = 256;

impl Replay<'_> {
    /// Returns the next batch, if it was durable, although some of its payloads are damaged.
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
            "batch {} at byte {} of the data file is damaged: {bad} of its {all} payloads do not match. It was \
             durable when batch {} was written, so it is applied, and so are all later ones; reading its damaged \
             data gives errors",
            self.next.0 - 1,
            taken.begins,
            later.0
        );
        self.damaged.push(text);
        Some(taken)
    }

    /// Returns the loss if the log ends here.
    pub(super) fn loss(&mut self, what: String, applier: &Applier) -> Loss {
        let mut dropped = Dropped::default();
        for tail in self.open.iter().flatten() {
            self.drop_after(tail, &mut dropped);
        }
        let mut empty = 0;
        for extent in self.checkpoint.extents.iter().copied().skip(self.opened) {
            if empty == EMPTY_MAX {
                break;
            }
            let before = dropped.batches;
            let tail = self.load(extent, self.source.read_around(extent), 0, None);
            self.drop_after(&tail, &mut dropped);
            empty = if dropped.batches == before { empty + 1 } else { 0 };
            self.source.buffers.put(tail.buf);
        }
        dropped.loss(what, self.next, &applier.objects)
    }

    fn drop_after(&self, tail: &Tail, dropped: &mut Dropped) {
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

    /// Returns whether the next batch may be in the part that was cut off.
    pub(super) fn reaches(&self, cut_at: u64) -> bool {
        let geometry = self.source.geometry;
        let next = self.checkpoint.extents.get(self.opened).copied();
        let places = self.open.iter().flatten().map(|tail| tail.extent).chain(next);
        places.into_iter().any(|extent| geometry.start(extent) + u64::from(geometry.extent_bytes) > cut_at)
    }
}

/// Removes the moves from a batch whose payloads do not match: the moved data is still at its old
/// location.
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
