//! Decides which records of an object some point still sees. Pure:
//!
//! An object is a timeline of epochs. A *point* is an epoch from which it is seen: its own head if
//! it is a volume, and the origin of each of its snapshots and clones. A point sees the records up
//! to its epoch, without those that a rollback before the point cut out, newest first; the first
//! one that knows a block decides. So a record's block is *needed* if and only if there is a point
//! that sees the record and no newer one that knows the block. Everything else is dead: destroying
//! a snapshot, a volume or a clone, and rolling back, need nothing more. A *partial* point, where
//! only clones look, needs only the blocks that these do not have themselves
//! (`objects::clone_needs`).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use format::{Cut, FragmentRef, ObjectDescriptor, ObjectState};
use smallvec::SmallVec;
use units::{BlockMask, Epoch, ObjectId};

use crate::base::canary::Canary;
use crate::base::group::GroupRecords;
use crate::objects::clone_needs::Needs;
use crate::objects::pins::Look;

/// The points that see one object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Points, each once, ascending.
    pub points: Vec<Epoch>,
    /// Epochs undone by rollbacks, by end.
    pub cuts: Vec<Cut>,
    /// Whether there is an origin whose data its holes may hide.
    pub has_origin: bool,
    /// The partial points, ascending, and the clones that look from there.
    pub clones: Vec<(Epoch, Vec<ObjectId>)>,
    /// The objects of which less is needed when this one has more: its origin, if it looks from a
    /// partial point, and so on.
    pub below: Vec<ObjectId>,
}

/// The timelines of all objects that have records, at one moment.
pub type Timelines = HashMap<ObjectId, Arc<Timeline>>;

/// Points with the same view, by index; the records that answer, by index, and for which blocks;
/// blocks that none answers.
pub(crate) type View = (Range<usize>, Vec<(usize, BlockMask)>, BlockMask);

impl Timeline {
    /// Whether no point sees the object any more.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.points.is_empty()
    }

    /// Whether a group has one record, and some point sees all of it.
    pub fn shows_all_of(&self, records: &GroupRecords) -> bool {
        let [(epoch, _)] = &records[..] else { return false };
        self.cuts.is_empty() && self.points.last().is_some_and(|point| point >= epoch)
    }

    /// Returns the points' views of `records` (newest first): for each run of points with the same
    /// view, their indices in [`objects::pins`](Self::points), the records that answer with the
    /// blocks for which they do, and the blocks that none knows.
    pub fn views(&self, records: &GroupRecords) -> Vec<View> {
        let known: Vec<_> = records.iter().map(|(_, record)| record.known()).collect();
        let mut views: Vec<View> = Vec::new();
        let mut last = None;
        for (at, point) in self.points.iter().enumerate() {
            let start = records.partition_point(|(epoch, _)| epoch > point);
            // Points between which nothing was written see the same.
            let cuts = self.cuts.partition_point(|cut| cut.before <= *point);
            if last.replace((start, cuts)) == Some((start, cuts))
                && let Some((points, _, _)) = views.last_mut()
            {
                points.end = at + 1;
                continue;
            }
            let mut missing = BlockMask::FULL;
            let mut answers = Vec::new();
            for (index, (epoch, _)) in records.iter().enumerate().skip(start) {
                if self.cuts[..cuts].iter().any(|cut| cut.hides(*epoch, *point)) {
                    continue;
                }
                let mask = known[index].and(missing);
                if !mask.is_empty() {
                    answers.push((index, mask));
                    missing = missing.minus(mask);
                }
                if missing.is_empty() {
                    break;
                }
            }
            views.push((at..at + 1, answers, missing));
        }
        views
    }

    /// Returns the blocks that some of these points, given by index, need.
    pub fn wanted(&self, points: Range<usize>, needs: &Needs) -> BlockMask {
        if needs.is_empty() {
            return BlockMask::FULL;
        }
        let need = |point: &Epoch| match needs.binary_search_by_key(point, |(epoch, _)| *epoch) {
            Ok(at) => needs[at].1,
            Err(_) => BlockMask::FULL,
        };
        self.points[points].iter().map(need).fold(BlockMask::EMPTY, BlockMask::or)
    }

    /// Returns the blocks of each of `records` (newest first) that some point needs, given the
    /// needs of partial ones.
    pub fn needed(&self, records: &GroupRecords, needs: &Needs) -> Vec<BlockMask> {
        let mut needed = vec![BlockMask::EMPTY; records.len()];
        for (points, answers, _) in self.views(records) {
            let wanted = self.wanted(points, needs);
            for (index, mask) in answers {
                needed[index] = needed[index].or(mask.and(wanted));
            }
        }
        needed
    }

    /// Returns whether trimming would remove data from `records`.
    pub fn loses(&self, records: &GroupRecords, needs: &Needs) -> bool {
        let needed = self.needed(records, needs);
        records.iter().zip(needed).any(|((_, record), needed)| !record.allocated().minus(needed).is_empty())
    }

    /// Removes blocks that no point needs from `records`, given the `needs` of partial points;
    /// `lost` gets the fragments that lose blocks, with those blocks as their live mask. Records
    /// may be empty afterwards. Returns whether anything changed.
    ///
    /// Holes that hide nothing are removed too. `above` are changes that lie over the records until
    /// a checkpoint is published: blocks of older epochs that they name must stay hidden until
    /// then. A block removed now may have been moved since the checkpoint captured its state, and
    /// that move restores it: the hole that hides it stays until the group is processed again.
    pub fn trim(
        &self,
        records: &mut GroupRecords,
        needs: &Needs,
        above: &GroupRecords,
        lost: &mut dyn FnMut(Epoch, &FragmentRef),
    ) -> bool {
        let mut changed = false;
        let was: SmallVec<[BlockMask; 4]> = records.iter().map(|(_, record)| record.allocated()).collect();
        if !needs.is_empty() || !self.shows_all_of(records) {
            let needed = self.needed(records, needs);
            for ((epoch, record), needed) in records.iter_mut().zip(needed) {
                let mut gone = record.known().minus(needed);
                if Canary::SnapshotDeleteLosesNeighbour.is_planted() && !gone.is_empty() {
                    gone = gone.or(BlockMask(needed.0 & needed.0.wrapping_neg()));
                }
                if !gone.is_empty() {
                    record.forget(gone, &mut |fragment| lost(*epoch, fragment));
                    changed = true;
                }
            }
        }
        if !self.has_origin {
            let mut below = BlockMask::EMPTY;
            for index in (0..records.len()).rev() {
                let epoch = records[index].0;
                let over = above.iter().filter(|(e, _)| *e < epoch).fold(below, |mask, (_, r)| mask.or(r.allocated()));
                let record = &mut records[index].1;
                let idle = record.holes.minus(over);
                if !idle.is_empty() {
                    record.holes = record.holes.and(over);
                    changed = true;
                }
                below = below.or(was[index]);
            }
        }
        changed
    }
}

/// The points that one object makes: at its own head, and at its origin.
pub type Made = (Option<Look>, Option<Look>);

/// Returns the points that a descriptor makes: at its own head, and its origin. A destroyed object
/// that others still see needs its origin for them. A dictionary is seen for as long as its parent
/// exists (`has_parent`), in any state: only fragments of the parent's records, and of its
/// descendants, may need it.
pub fn points_of(descriptor: &ObjectDescriptor, is_seen: bool, has_parent: bool) -> Made {
    let has_head = match descriptor.state {
        ObjectState::Volume => true,
        ObjectState::Dictionary => has_parent || Canary::DictionaryOutlived.is_planted(),
        ObjectState::Bookmark if !Canary::BookmarkKeeps.is_planted() => return (None, None),
        ObjectState::Snapshot
        | ObjectState::Partial
        | ObjectState::Incoming
        | ObjectState::Deleting
        | ObjectState::Bookmark
        | ObjectState::Folder => false,
    };
    let head = has_head.then_some(Look { object: descriptor.id, epoch: descriptor.epoch, needs_all: true });
    let needs_origin = descriptor.state != ObjectState::Deleting || is_seen;
    let needs_all = !descriptor.state.has_records();
    let look = descriptor.origin.map(|origin| Look { object: origin.object, epoch: origin.epoch, needs_all });
    (head, look.filter(|_| needs_origin))
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;
