//! Assigns new stream identities to snapshots that see a rebuilt record with doubtful blocks:
//! blocks that may have been discarded or rolled back. A difference between such a snapshot and an
//! older one would be wrong for another pool.
//!
//! 1. The rebuild (`repair::mend::records`) notes these records in the map store, in the same batch
//!    as the records.
//! 2. Each opening, repairing or not, finds the snapshots that see them, after all of the log has
//!    been applied: only then are all snapshots present, with their identities from the log.
//! 3. The new identities are durable with the first checkpoint. They go into the catalogue too;
//!    otherwise it would restore the old ones.
//! 4. Then the notes are removed. After a crash before that, or while the pool is too full for
//!    a catalogue, the next opening repeats the steps.

use std::ops::ControlFlow;
use std::sync::Arc;

use env::{MapBatch, MapStore};
use format::{RecordKey, doubt_key, doubt_key_range, parse_doubt_key};
use store::base::status::Problem;
use store::base::store_error::store_error;
use store::objects::object::Object;
use surface::Result;

use crate::repair::Repairs;

/// Step 1, for one record.
pub(crate) fn note(batch: &mut MapBatch, key: &RecordKey) {
    batch.put(doubt_key(key), Vec::new());
}

/// Returns the notes: at most as many as records may be rebuilt in one go.
///
/// # Errors
/// Those of the store.
pub(crate) fn noted(store: &dyn MapStore) -> Result<Vec<RecordKey>> {
    let (from, to) = doubt_key_range();
    let mut noted = Vec::new();
    let mut look = |key: &[u8], _: &[u8]| {
        noted.extend(parse_doubt_key(key));
        ControlFlow::Continue(())
    };
    store.scan(from, to, &mut look).map_err(store_error)?;
    Ok(noted)
}

/// Step 4.
///
/// # Errors
/// Those of the store.
pub(crate) fn forget(store: &dyn MapStore, noted: &[RecordKey]) -> Result<()> {
    let mut batch = MapBatch::default();
    noted.iter().for_each(|key| batch.delete(doubt_key(key)));
    if noted.is_empty() {
        return Ok(());
    }
    // Durably: work under the new identities is durable, and would be repeated under others after a
    // crash.
    store.commit(batch).and_then(|()| store.persist()).map_err(store_error)
}

impl Repairs {
    /// Steps 2 and 3, before the first checkpoint; returns the affected snapshots.
    ///
    /// # Errors
    /// When there is no randomness for identities.
    pub(crate) fn estrange(&self, noted: &[RecordKey]) -> Result<Vec<Problem>> {
        let sees = |object: &Arc<Object>| {
            let levels = object.levels();
            noted.iter().any(|key| levels.iter().any(|level| level.object == key.object && level.sees(key.epoch)))
        };
        let mut problems = Vec::new();
        for object in self.objects.all().into_iter().filter(sees) {
            if object.descriptor.read().identity.is_none() {
                continue;
            }
            object.estrange(self.vitals.new_identity()?);
            self.catalogue.want();
            problems.push(Problem::estranged(&object.title()));
        }
        Ok(problems)
    }
}
