//! Looks at the layers that need groups from the store, which is asked without the layers' lock.
//! The head of `map` proves that a group loaded in this way is the right one.

use std::ops::ControlFlow;
use std::sync::Arc;

use format::{RecordKey, parse_record_key, record_key, record_key_range};
use smallvec::{SmallVec, smallvec};
use surface::Result;
use units::{BlockMask, Epoch, GroupIndex};

use super::{Layers, Map, Piece, absorb, decode};
use crate::base::group::{GroupKey, GroupRecords};
use crate::base::store_error::store_error;
use crate::objects::level::Level;

/// Departures during a look's loads after which the look blocks further ones.
pub(super) const MISSES_MAX: u32 = 3;

/// A group that a look needs, and memory does not have.
pub(super) struct Lacking {
    key: GroupKey,
    /// Nothing but epoch 0 can be there.
    only: bool,
}

/// Result of a look in memory.
pub(super) type Looked<T> = std::result::Result<T, Lacking>;

/// Groups that were loaded for a look, whether or not the cache has kept them.
#[derive(Default)]
pub(super) struct Loaded {
    /// Departures before.
    departures: u64,
    groups: SmallVec<[(GroupKey, Arc<GroupRecords>); 1]>,
}

impl Map {
    /// Looks at the layers, and loads missing groups without their lock. A group that a departure
    /// has made out of date is discarded, and loaded again.
    ///
    /// # Errors
    /// When the store fails or a record is damaged.
    pub(super) fn look<T>(&self, mut look: impl FnMut(&Layers, &Loaded) -> Looked<T>) -> Result<T> {
        let mut loaded = Loaded::default();
        let mut misses = 0;
        let mut stays = None;
        loop {
            if misses == MISSES_MAX {
                stays.get_or_insert_with(|| self.base_stays.read());
            }
            let lacking = {
                let layers = self.layers.read();
                if loaded.departures != layers.departures {
                    loaded = Loaded { departures: layers.departures, ..Loaded::default() };
                }
                match look(&layers, &loaded) {
                    Ok(found) => return Ok(found),
                    Err(lacking) => lacking,
                }
            };
            let mut records = self.stored(lacking.key, lacking.only)?;
            let layers = self.layers.read();
            if layers.departures != loaded.departures {
                misses += 1;
                continue;
            }
            let settled = layers.unmerged();
            settled
                .and_then(|settled| settled.with(lacking.key, |changes| absorb(&mut records, changes, &mut |_, _| ())));
            let records = Arc::new(records);
            self.cache.insert(lacking.key, records.clone());
            loaded.groups.push((lacking.key, records));
        }
    }

    /// Like [`lookup_partly`](Self::lookup_partly), for two chains of levels at one moment.
    ///
    /// # Errors
    /// When the store fails or a record is damaged.
    pub(crate) fn lookup_both(
        &self,
        (old, of_old): (&[Level], BlockMask),
        (new, of_new): (&[Level], BlockMask),
        group: GroupIndex,
    ) -> Result<[(Vec<Piece>, BlockMask); 2]> {
        self.look(|layers, loaded| {
            let before = self.walk(layers, loaded, old, group, of_old)?;
            Ok([before, self.walk(layers, loaded, new, group, of_new)?])
        })
    }

    /// Returns the group, which may lack settled changes: see the head of `map`. `only`: whether
    /// nothing but epoch 0 can be in the store.
    pub(super) fn group(
        &self,
        loaded: &Loaded,
        key: GroupKey,
        only: impl FnOnce() -> bool,
    ) -> Looked<Arc<GroupRecords>> {
        if let Some(records) = self.cache.get(&key) {
            return Ok(records);
        }
        let loaded = loaded.groups.iter().find(|(loaded, _)| *loaded == key);
        loaded.map(|(_, records)| records.clone()).ok_or_else(|| Lacking { key, only: only() })
    }

    /// The group in the store.
    pub(super) fn stored(&self, key: GroupKey, only: bool) -> Result<GroupRecords> {
        if only {
            // Nothing but epoch 0 can be there: a point lookup is several times cheaper than a
            // scan.
            let epoch = Epoch(0);
            let id = record_key(&RecordKey { object: key.object, group: key.group, epoch });
            let value = self.store.get(&id).map_err(store_error)?;
            return value.map_or(Ok(GroupRecords::new()), |v| Ok(smallvec![(epoch, decode(key, &v)?)]));
        }
        let (from, to) = record_key_range(key.object, key.group, GroupIndex(key.group.0 + 1));
        let mut records = GroupRecords::new();
        let mut failure = None;
        let scanned = self.store.scan(&from, &to, &mut |id, value| {
            let Some(id) = parse_record_key(id) else { return ControlFlow::Continue(()) };
            match decode(key, value) {
                Ok(record) => records.push((id.epoch, record)),
                Err(error) => {
                    failure = Some(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        });
        scanned.map_err(store_error)?;
        failure.map_or(Ok(records), Err)
    }
}
