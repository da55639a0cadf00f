//! The part of `check` that reads the catalogue as `salvage` would: the objects rebuilt from the
//! log alone must equal those in the map store.

use env::AlignedBuf;
use format::{ObjectDescriptor, ObjectState, Undone};
use salvage::{LogObjects, Table, read_log_objects};
use surface::Result;
use units::Seq;

use crate::repair::check::Checker;

impl Checker<'_> {
    /// With repair, a new catalogue is made when the pool is closed.
    pub(crate) fn catalogue(&mut self) -> Result<()> {
        let pins = self.parts.catalogue.pins();
        let Some(as_of) = pins.as_of else { return Ok(()) };
        let mut logged = LogObjects::default();
        let mut buf = AlignedBuf::new(self.parts.geometry.extent_bytes as usize);
        for extent in pins.extents() {
            read_log_objects(
                &*self.parts.vitals.env.disk,
                &self.parts.geometry,
                self.parts.log.pool(),
                extent,
                &mut buf,
                &mut logged,
            );
        }
        let table = logged.table(Seq(u64::MAX));
        let mut wrong = Vec::new();
        // A catalogue whose checkpoint was lost in a crash is as good, if it is complete.
        if table.as_of.is_none_or(|newest| newest < as_of) {
            wrong.push("the catalogue in the log is damaged".to_owned());
        } else {
            self.compare(&table, &mut wrong);
        }
        for detail in wrong {
            let detail = format!("{detail}: if the map were lost, salvage would not know all names and sizes");
            self.problem("catalogue", None, detail, self.repair);
        }
        if self.repair {
            self.parts.catalogue.want();
        }
        Ok(())
    }

    fn compare(&self, table: &Table, wrong: &mut Vec<String>) {
        let objects = self.parts.objects.all();
        for object in &objects {
            let held = object.descriptor.read().clone();
            let Some(logged) = table.objects.get(&object.id) else {
                wrong.push(format!("the log does not have '{}' (object {})", object.title(), object.id.0));
                continue;
            };
            let cuts: Vec<_> = logged.cuts.iter().chain(&logged.undone.cuts).collect();
            if plain(logged) != plain(&held) || !held.cuts.iter().all(|cut| cuts.contains(&cut)) {
                wrong.push(format!("the log has another descriptor of '{}' (object {})", object.title(), object.id.0));
            }
        }
        let is_unknown = |id: &units::ObjectId| objects.binary_search_by_key(id, |object| object.id).is_err();
        for descriptor in table.objects.values().filter(|d| is_unknown(&d.id)) {
            // A dictionary goes with its parent, without an entry in the log.
            let went_along =
                descriptor.state == ObjectState::Dictionary && descriptor.parent.is_none_or(|p| is_unknown(&p));
            if descriptor.state != ObjectState::Deleting && !went_along {
                wrong.push(format!("the log still has '{}' (object {})", descriptor.name, descriptor.id.0));
            }
        }
        if table.properties != self.parts.objects.pool_properties() {
            wrong.push("the log has other properties of the pool".to_owned());
        }
    }
}

/// Drops the fields that the log does not record, and cuts, which become undone without an entry in
/// the log.
fn plain(descriptor: &ObjectDescriptor) -> ObjectDescriptor {
    ObjectDescriptor {
        reap: None,
        allocated_blocks: 0,
        stored_bytes: 0,
        cuts: Vec::new(),
        undone: Undone::default(),
        ..descriptor.clone()
    }
}
