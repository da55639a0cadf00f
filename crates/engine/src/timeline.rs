//! Which records of an object somebody still sees. Pure: descriptors and records go in, masks come out.
//!
//! An object is a timeline of epochs. A *point* is an epoch at which somebody looks at it: its own head if it is a volume, and
//! the origin of every snapshot and clone that came from it. From a point one sees the records up to its epoch, without those
//! that a rollback before the point cut out, newest first; the first one that knows a block decides. So a record's block is
//! *needed* if and only if there is a point that sees the record and no newer one that knows the block. Everything else
//! is dead: that is all there is to destroying a snapshot, a volume or a clone, and to rolling back.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use format::{Cut, FragmentRef, ObjectDescriptor, ObjectState};
use smallvec::SmallVec;
use units::{BlockMask, Epoch, ObjectId};

use crate::canary::Canary;
use crate::overlay::GroupRecords;

/// Who looks at one object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Timeline {
    /// Points, each once, rising.
    pub points: Vec<Epoch>,
    /// What rollbacks took back, by end.
    pub cuts: Vec<Cut>,
    /// Whether there is something below the object that its holes may hide.
    pub has_origin: bool,
}

/// The timelines of all objects that have records, at one moment.
pub(crate) type Timelines = HashMap<ObjectId, Arc<Timeline>>;

/// Points that see the same, by index; the records that answer, by index, and for which blocks; blocks that none answers.
pub(crate) type View = (Range<usize>, Vec<(usize, BlockMask)>, BlockMask);

impl Timeline {
    /// Whether nobody looks at the object any more.
    pub(crate) fn is_dead(&self) -> bool {
        self.points.is_empty()
    }

    /// Whether a group has one record, and somebody sees all of it.
    pub(crate) fn shows_all_of(&self, records: &GroupRecords) -> bool {
        let [(epoch, _)] = &records[..] else { return false };
        self.cuts.is_empty() && self.points.last().is_some_and(|point| point >= epoch)
    }

    /// What points see of `records` (newest first): for each run of points that see the same, which of [`points`](Self::points)
    /// they are, the records that answer with the blocks for which they do, and the blocks that none knows.
    pub(crate) fn views(&self, records: &GroupRecords) -> Vec<View> {
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

    /// The blocks of each of `records` (newest first) that some point needs.
    pub(crate) fn needed(&self, records: &GroupRecords) -> Vec<BlockMask> {
        let mut needed = vec![BlockMask::EMPTY; records.len()];
        for (_, answers, _) in self.views(records) {
            for (index, mask) in answers {
                needed[index] = needed[index].or(mask);
            }
        }
        needed
    }

    /// Takes out of `records` what nobody needs; `lost` gets what fragments lose by it, with those blocks as their live mask.
    /// Records may be empty afterwards. Returns whether anything changed.
    ///
    /// Holes that hide nothing go too. `above` are changes that lie over the records until a checkpoint is published: what
    /// they say of older epochs must stay hidden until then. What is taken out now may have been moved since the checkpoint captured its state,
    /// and come back with that move: what hides it stays until the group is looked at again.
    pub(crate) fn trim(
        &self,
        records: &mut GroupRecords,
        above: &GroupRecords,
        lost: &mut dyn FnMut(Epoch, &FragmentRef),
    ) -> bool {
        let mut changed = false;
        let was: SmallVec<[BlockMask; 4]> = records.iter().map(|(_, record)| record.allocated()).collect();
        if !self.shows_all_of(records) {
            let needed = self.needed(records);
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

/// The points of all timelines, kept up to date as descriptors change.
#[derive(Default)]
pub(crate) struct Points {
    by_object: HashMap<ObjectId, BTreeMap<Epoch, u32>>,
}

impl Points {
    /// Whether somebody looks at the object.
    pub(crate) fn any(&self, object: ObjectId) -> bool {
        self.by_object.contains_key(&object)
    }

    /// The points of an object, rising.
    pub(crate) fn of(&self, object: ObjectId) -> Vec<Epoch> {
        self.by_object.get(&object).map_or_else(Vec::new, |points| points.keys().copied().collect())
    }

    /// The newest point of an object before an epoch.
    pub(crate) fn newest_before(&self, object: ObjectId, epoch: Epoch) -> Option<Epoch> {
        self.by_object.get(&object)?.range(..epoch).next_back().map(|(point, _)| *point)
    }

    /// Whether exactly one object looks from there.
    pub(crate) fn is_alone(&self, object: ObjectId, epoch: Epoch) -> bool {
        self.by_object.get(&object).and_then(|points| points.get(&epoch)) == Some(&1)
    }

    pub(crate) fn add(&mut self, object: ObjectId, epoch: Epoch) {
        *self.by_object.entry(object).or_default().entry(epoch).or_default() += 1;
    }

    /// Takes one away; whether nobody looks from there any more.
    pub(crate) fn remove(&mut self, object: ObjectId, epoch: Epoch) -> bool {
        let Some(points) = self.by_object.get_mut(&object) else { return false };
        let Some(count) = points.get_mut(&epoch) else { return false };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        points.remove(&epoch);
        if points.is_empty() {
            self.by_object.remove(&object);
        }
        true
    }
}

/// The points that a descriptor makes: its own head, and its origin. A destroyed object that others still look at needs its
/// origin for them. A dictionary is looked at for as long as its parent exists (`has_parent`), in whatever state: only fragments of
/// the parent's records, and of what came from the parent, may need it.
pub(crate) fn points_of(
    descriptor: &ObjectDescriptor,
    is_seen: bool,
    has_parent: bool,
) -> (Option<Epoch>, Option<(ObjectId, Epoch)>) {
    let has_head = match descriptor.state {
        ObjectState::Volume => true,
        ObjectState::Dictionary => has_parent || Canary::DictionaryOutlived.is_planted(),
        ObjectState::Snapshot | ObjectState::Partial | ObjectState::Incoming | ObjectState::Deleting => false,
    };
    let head = has_head.then_some(descriptor.epoch);
    let needs_origin = descriptor.state != ObjectState::Deleting || is_seen;
    (head, descriptor.origin.filter(|_| needs_origin).map(|origin| (origin.object, origin.epoch)))
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;
