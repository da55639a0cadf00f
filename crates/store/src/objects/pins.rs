//! The points of all timelines, counted, and kept up to date as descriptors change.

use std::collections::{BTreeMap, HashMap};

use units::{Epoch, ObjectId};

/// A point of an object, as seen from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    pub object: ObjectId,
    pub epoch: Epoch,
    /// Whether all data seen from there is needed. An object with records of its own needs the
    /// blocks that these leave open (see `objects::clone_needs`).
    pub needs_all: bool,
}

/// Numbers of users of a point.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    all: u32,
    need_all: u32,
}

/// The remaining point when a snapshot, clone or volume there is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// A point that needs everything.
    Same,
    /// Partial points: they may need less than before.
    Less,
    /// No point.
    Nobody,
}

/// The points of all timelines.
#[derive(Default)]
pub(crate) struct Points {
    by_object: HashMap<ObjectId, BTreeMap<Epoch, Count>>,
}

impl Points {
    /// Whether any point sees the object.
    #[inline]
    pub fn any(&self, object: ObjectId) -> bool {
        self.by_object.contains_key(&object)
    }

    /// Returns the points of an object, ascending.
    pub fn of(&self, object: ObjectId) -> Vec<Epoch> {
        self.by_object.get(&object).map_or_else(Vec::new, |points| points.keys().copied().collect())
    }

    /// The newest point of an object before an epoch.
    pub(crate) fn newest_before(&self, object: ObjectId, epoch: Epoch) -> Option<Epoch> {
        self.by_object.get(&object)?.range(..epoch).next_back().map(|(point, _)| *point)
    }

    /// Returns whether exactly one object looks from there.
    pub fn is_alone(&self, object: ObjectId, epoch: Epoch) -> bool {
        self.count(object, epoch).all == 1
    }

    /// Returns whether it is a point, and no user of it needs everything seen from there.
    pub fn is_partial(&self, object: ObjectId, epoch: Epoch) -> bool {
        let count = self.count(object, epoch);
        count.all > 0 && count.need_all == 0
    }

    /// Whether some point sees the object, and none of its points needs all of it.
    pub(crate) fn are_all_partial(&self, object: ObjectId) -> bool {
        self.by_object.get(&object).is_some_and(|points| points.values().all(|count| count.need_all == 0))
    }

    /// Returns the objects with a partial point, ascending.
    pub(crate) fn with_partial(&self) -> Vec<ObjectId> {
        let has_partial = |points: &BTreeMap<Epoch, Count>| points.values().any(|count| count.need_all == 0);
        let mut found: Vec<_> =
            self.by_object.iter().filter(|(_, points)| has_partial(points)).map(|(id, _)| *id).collect();
        found.sort_unstable();
        found
    }

    fn count(&self, object: ObjectId, epoch: Epoch) -> Count {
        self.by_object.get(&object).and_then(|points| points.get(&epoch)).copied().unwrap_or_default()
    }

    pub fn add(&mut self, look: Look) {
        let count = self.by_object.entry(look.object).or_default().entry(look.epoch).or_default();
        count.all += 1;
        count.need_all += u32::from(look.needs_all);
    }

    /// Removes one that was added.
    pub fn remove(&mut self, look: Look) -> Left {
        let Some(points) = self.by_object.get_mut(&look.object) else { return Left::Same };
        let Some(count) = points.get_mut(&look.epoch) else { return Left::Same };
        count.all -= 1;
        count.need_all -= u32::from(look.needs_all);
        if count.need_all > 0 {
            return Left::Same;
        }
        if count.all > 0 {
            return Left::Less;
        }
        points.remove(&look.epoch);
        if points.is_empty() {
            self.by_object.remove(&look.object);
        }
        Left::Nobody
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_at_a_point_depends_on_who_still_looks() {
        let look = |needs_all| Look { object: ObjectId(1), epoch: Epoch(2), needs_all };
        let mut points = Points::default();
        [true, false, false, true].into_iter().for_each(|needs_all| points.add(look(needs_all)));
        assert!(!points.is_partial(ObjectId(1), Epoch(2)) && !points.are_all_partial(ObjectId(1)));
        assert_eq!(points.remove(look(true)), Left::Same);
        assert_eq!(points.remove(look(false)), Left::Same);
        assert_eq!(points.remove(look(true)), Left::Less);
        assert!(points.is_partial(ObjectId(1), Epoch(2)) && points.is_alone(ObjectId(1), Epoch(2)));
        assert_eq!(points.with_partial(), [ObjectId(1)]);
        points.add(Look { epoch: Epoch(3), ..look(true) });
        assert!(!points.are_all_partial(ObjectId(1)) && points.with_partial() == [ObjectId(1)]);
        assert_eq!(points.remove(look(false)), Left::Nobody);
        assert!(points.any(ObjectId(1)) && !points.is_partial(ObjectId(1), Epoch(2)));
        assert_eq!(points.remove(Look { epoch: Epoch(3), ..look(true) }), Left::Nobody);
        assert!(!points.any(ObjectId(1)));
    }
}
