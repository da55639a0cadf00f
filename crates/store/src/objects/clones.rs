//! Relations between clones and origins: the timelines with the clones that look from partial
//! points (`objects::pins`), the reaping circles that begin when clones need less, and objects that
//! only remain as origins.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use format::{ObjectDescriptor, ObjectState};
use units::{Epoch, ObjectId};

use super::{Object, Objects, Table};
use crate::base::canary::Canary;
use crate::objects::timeline::{Timeline, Timelines};

impl Table {
    /// Returns clone dependencies, read from the descriptors.
    pub(super) fn timelines_now(&self) -> Timelines {
        let mut clones: HashMap<ObjectId, BTreeMap<Epoch, Vec<ObjectId>>> = HashMap::new();
        for (id, (_, look)) in &self.made {
            if let Some(look) = look.filter(|look| self.points.is_partial(look.object, look.epoch)) {
                clones.entry(look.object).or_default().entry(look.epoch).or_default().push(*id);
            }
        }
        let mut timelines = Timelines::new();
        for (id, object) in &self.by_id {
            let descriptor = object.descriptor.read();
            if !descriptor.state.has_records() {
                continue;
            }
            let mut clones: Vec<_> = clones.remove(id).unwrap_or_default().into_iter().collect();
            // In an order that does not depend on the table's.
            clones.iter_mut().for_each(|(_, clones)| clones.sort_unstable());
            let timeline = Timeline {
                points: self.points.of(*id),
                cuts: descriptor.cuts.clone(),
                // In an image a hole was found in the store: without it, nothing is known.
                has_origin: descriptor.origin.is_some() || descriptor.image.is_some(),
                clones,
                below: self.below(*id),
            };
            timelines.insert(*id, Arc::new(timeline));
        }
        timelines
    }

    /// Returns the objects of which less is needed when an object has more, the nearest first.
    fn below(&self, id: ObjectId) -> Vec<ObjectId> {
        let mut below = Vec::new();
        let mut last = id;
        while let Some(look) = self.made.get(&last).and_then(|made| made.1)
            && self.points.is_partial(look.object, look.epoch)
        {
            below.push(look.object);
            last = look.object;
        }
        below
    }

    /// Starts reaping of an object that has lost a point, or whose points need less: all its groups
    /// must be processed, and those of the objects below.
    pub(super) fn begin_circle(&mut self, id: ObjectId) {
        for id in std::iter::once(id).chain(self.below(id)) {
            if let Some(object) = self.by_id.get(&id) {
                object.restart_reap();
                self.reaping.insert(id);
            }
        }
    }

    /// Recomputes the chains of all objects that pass through one with a new origin.
    pub(super) fn renew_levels_through(&self, id: ObjectId) {
        let passes = |object: &&Arc<Object>| object.id != id && object.levels().iter().any(|level| level.object == id);
        for object in self.by_id.values().filter(passes) {
            let descriptor = object.descriptor.read().clone();
            object.set_levels(self.levels(&descriptor).into());
        }
    }

    /// Returns whether an object remains only as an origin of clones. Their data may need its
    /// dictionaries: while it has some, it stays.
    fn is_bare(&self, object: &Object) -> bool {
        let descriptor = object.descriptor.read();
        descriptor.state == ObjectState::Deleting
            && descriptor.reap.is_none()
            && descriptor.image.is_none()
            && object.settled() == (0, 0)
            && self.points.are_all_partial(object.id)
            && (self.dictionaries_of(object.id).next().is_none() || Canary::OriginTakesDictionaries.is_planted())
    }
}

impl Objects {
    /// Starts reaping of all objects of which clones may need less than there is.
    pub fn begin_circles(&self) {
        let mut table = self.table.write();
        for id in table.points.with_partial() {
            table.begin_circle(id);
        }
    }

    /// Returns the destroyed origins of clones that have no data left by their figures, oldest
    /// first.
    pub fn bare(&self) -> Vec<ObjectId> {
        let table = self.table.read();
        let mut bare: Vec<_> =
            table.by_id.values().filter(|object| table.is_bare(object)).map(|object| object.id).collect();
        bare.sort_unstable();
        bare
    }

    /// Returns the descriptors of a bare object's clones with that object's origin as their own;
    /// none if it is not bare any more.
    pub fn passed_on(&self, id: ObjectId) -> Vec<ObjectDescriptor> {
        let table = self.table.read();
        let Some(object) = table.by_id.get(&id).filter(|object| table.is_bare(object)) else { return Vec::new() };
        let origin = object.descriptor.read().origin;
        let looks = |made: &super::Made| made.1.is_some_and(|look| look.object == id);
        let clones = table.made.iter().filter(|(_, made)| looks(made)).filter_map(|(id, _)| table.by_id.get(id));
        let mut clones: Vec<_> =
            clones.map(|clone| ObjectDescriptor { origin, ..clone.descriptor.read().clone() }).collect();
        clones.sort_unstable_by_key(|clone| clone.id);
        clones
    }
}
