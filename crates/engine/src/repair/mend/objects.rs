//! Restores damaged and missing descriptors, as of the checkpoint. The checkpoint counts them; only
//! the catalogue in the log, and the entries after it (`catalogue`), have their content.
//!
//! 1. *Whether*: a descriptor is damaged, or there are fewer than the checkpoint counts.
//! 2. *Which*: the log does not record when a destroyed object has been removed. So the missing
//!    ones are all live objects, those destroyed ones whose data the map still has, and those that
//!    are the origin of a visible clone.
//! 3. *Restored* descriptors must be as many as the checkpoint counts. If there are fewer, and at
//!    least as many destroyed objects are absent, these are the missing ones: they were about to be
//!    removed, and are taken as removed. Any other difference means that the log is damaged as
//!    well, and differs in history from the map. Guessing would then lose a volume, or make a
//!    destroyed one reappear empty.

use std::collections::BTreeSet;

use env::AlignedBuf;
use format::{ObjectDescriptor, ObjectState, Reap};
use salvage::{LogObjects, Table, read_log_objects};
use store::map::loaded::objects_differ;
use surface::Result;
use units::{GroupIndex, ObjectId, Seq};

use crate::repair::mend::{Found, Mender, hopeless};

impl Found {
    fn has_key(&self, id: ObjectId) -> bool {
        self.descriptors.contains_key(&id) || self.damaged_descriptors.contains_key(&id)
    }

    /// Step 2.
    fn missing(&self, table: &Table) -> BTreeSet<ObjectId> {
        let mut missing: BTreeSet<_> = self.owners.iter().copied().filter(|id| !self.has_key(*id)).collect();
        // Parents have smaller numbers than their dependents.
        for descriptor in table.objects.values().filter(|d| d.state != ObjectState::Deleting && !self.has_key(d.id)) {
            let is_there = |id: ObjectId| self.has_key(id) || missing.contains(&id);
            // A dictionary goes with its parent, without an entry in the log.
            if descriptor.state != ObjectState::Dictionary || descriptor.parent.is_some_and(is_there) {
                missing.insert(descriptor.id);
            }
        }
        let descriptor = |id: ObjectId| self.descriptors.get(&id).or_else(|| table.objects.get(&id));
        let there = self.descriptors.keys().chain(self.damaged_descriptors.keys()).chain(&missing).copied();
        // A bookmark may have outlived its origin, and so may a destroyed object.
        let sees = |d: &ObjectDescriptor| !matches!(d.state, ObjectState::Deleting | ObjectState::Bookmark);
        let mut seen: Vec<ObjectId> = there.filter(|id| descriptor(*id).is_some_and(sees)).collect();
        let mut known = BTreeSet::new();
        while let Some(id) = seen.pop() {
            if known.insert(id) {
                if !self.has_key(id) {
                    missing.insert(id);
                }
                seen.extend(descriptor(id).and_then(|d| d.origin).map(|origin| origin.object));
            }
        }
        missing
    }
}

impl Mender<'_> {
    /// All steps.
    pub(crate) fn objects(&mut self) -> Result<()> {
        let stored = self.found.descriptors.len() + self.found.damaged_descriptors.len();
        let expected = self.checkpoint.objects as usize;
        if self.found.damaged_descriptors.is_empty() && stored == expected {
            return Ok(());
        }
        let table = self.log_table();
        let is_complete = self.checkpoint.catalogue.as_of > Seq(0)
            && table.as_of.is_some_and(|as_of| as_of >= self.checkpoint.catalogue.as_of);
        let why_not = if is_complete { "the catalogue does not know it" } else { "there is no complete catalogue" };
        let missing = if stored == expected { BTreeSet::new() } else { self.found.missing(&table) };
        if stored != expected && !is_complete {
            return Err(hopeless(format!("{}, and {why_not}", objects_differ(stored, self.checkpoint.objects))));
        }
        let mut wanted = std::mem::take(&mut self.found.damaged_descriptors);
        wanted.extend(missing.into_iter().map(|id| (id, "it is missing".to_owned())));
        for (id, why) in wanted {
            let what = format!("the descriptor of object {} is damaged ({why})", id.0);
            let Some(descriptor) = table.objects.get(&id).filter(|_| is_complete) else {
                return Err(hopeless(format!("{what}, and {why_not}")));
            };
            // Its unneeded records are reaped from the start, and its figures are counted when all
            // records are restored.
            let reap = descriptor.state.has_records().then_some(Reap::from(GroupIndex(0)));
            let descriptor = ObjectDescriptor { reap, ..descriptor.clone() };
            self.concerned.insert(id);
            let detail = format!("{what}; it was replaced by that of the catalogue, named '{}'", descriptor.name);
            self.problem("object", None, detail);
            self.found.descriptors.insert(id, descriptor);
        }
        self.settle_count(&table)
    }

    fn log_table(&self) -> Table {
        let mut gathered = LogObjects::default();
        let mut buf = AlignedBuf::new(self.geometry.extent_bytes as usize);
        let catalogue = &self.checkpoint.catalogue;
        let pins: BTreeSet<_> = catalogue.base.iter().chain(&catalogue.since).collect();
        for extent in pins.into_iter().filter(|extent| extent.0 < self.geometry.extents()) {
            read_log_objects(&*self.env.disk, self.geometry, self.pool, *extent, &mut buf, &mut gathered);
        }
        gathered.table(self.checkpoint.next_seq)
    }

    /// Step 3.
    fn settle_count(&mut self, table: &Table) -> Result<()> {
        let (found, expected) = (self.found.descriptors.len(), self.checkpoint.objects as usize);
        if found == expected {
            return Ok(());
        }
        let unmissed = table.objects.keys().filter(|id| !self.found.descriptors.contains_key(id)).count();
        if found > expected || expected - found > unmissed {
            let what = objects_differ(found, self.checkpoint.objects);
            return Err(hopeless(format!("with those of the catalogue {what}")));
        }
        let text = "descriptors of destroyed objects are gone, and nothing else is left of these objects: they are \
             treated as removed";
        self.problem("object", None, format!("{} {text}", expected - found));
        self.checkpoint.objects = found as u32;
        Ok(())
    }
}
