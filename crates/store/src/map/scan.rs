//! Scans of the map, in order: which groups exist, and the records of the base.

use std::ops::ControlFlow;
use std::sync::Arc;

use format::{FragmentRef, RecordKey, parse_record_key, record_key, record_key_range};
use smallvec::smallvec;
use surface::{Error, Result};
use units::{Epoch, GroupIndex, ObjectId};

use super::{Map, absorb, decode};
use crate::base::group::{GroupKey, GroupRecords, StoredGroups};
use crate::base::store_error::store_error;
use crate::map::look::MISSES_MAX;
use crate::map::overlay::Overlay;

/// Records that a full scan reads while no change leaves for the store: the end of a full
/// checkpoint waits for that. Some tens of milliseconds; the settled overlay is sorted for each
/// such page.
const PAGE_RECORDS: usize = 1 << 16;

/// The fragments of a range of the data file.
#[derive(Debug, Default)]
pub struct FragmentsIn {
    pub found: Vec<(RecordKey, FragmentRef)>,
    /// Groups with damaged records, which may have fragments there.
    pub damaged: Vec<(GroupKey, Error)>,
}

impl Map {
    /// Returns the groups in `from..to` of an object that some layer knows, in order, and where the
    /// search ended: at `to`, or earlier, after `records_max` groups with records.
    pub fn groups_in(
        &self,
        object: ObjectId,
        from: GroupIndex,
        to: GroupIndex,
        records_max: usize,
    ) -> Result<(Vec<GroupIndex>, GroupIndex)> {
        let (mut misses, mut stays) = (0, None);
        loop {
            if misses == MISSES_MAX {
                stays.get_or_insert_with(|| self.base_stays.read());
            }
            let (stored, end, departures) = self.stored_groups(object, from, to, records_max)?;
            if let Some(groups) = self.with_layers(object, (from, end), &stored, departures) {
                return Ok((groups, end));
            }
            misses += 1;
        }
    }

    /// Returns the groups in `from..to` of an object for which the store has records, to be
    /// completed with [`known_groups`](Self::known_groups).
    pub(crate) fn foresee_groups(&self, object: ObjectId, from: GroupIndex, to: GroupIndex) -> StoredGroups {
        let (groups, departures) = match self.stored_groups(object, from, to, usize::MAX) {
            Ok((groups, _, departures)) => (Some(groups), departures),
            Err(_) => (None, 0),
        };
        StoredGroups { object, from, to, groups, departures }
    }

    /// Returns the groups that some layer knows now, in order. The outer `None`: since the store
    /// was asked, changes have left the layers above for it, and it must be asked again; the inner
    /// one: it could not be read.
    pub fn known_groups(&self, stored: &StoredGroups) -> Option<Option<Vec<GroupIndex>>> {
        let StoredGroups { object, from, to, departures, .. } = *stored;
        let Some(groups) = &stored.groups else { return Some(None) };
        self.with_layers(object, (from, to), groups, departures).map(Some)
    }

    /// Returns the groups in `from..to` of an object for which the store has records, where the
    /// search ended, and the number of departures before it.
    fn stored_groups(
        &self,
        object: ObjectId,
        from: GroupIndex,
        mut to: GroupIndex,
        records_max: usize,
    ) -> Result<(Vec<GroupIndex>, GroupIndex, u64)> {
        let departures = self.layers.read().departures;
        let mut groups: Vec<GroupIndex> = Vec::new();
        let (low, high) = record_key_range(object, from, to);
        self.store
            .scan(&low, &high, &mut |key, _| {
                let Some(key) = parse_record_key(key) else { return ControlFlow::Continue(()) };
                if groups.last() == Some(&key.group) {
                    return ControlFlow::Continue(());
                }
                if groups.len() == records_max {
                    to = key.group;
                    return ControlFlow::Break(());
                }
                groups.push(key.group);
                ControlFlow::Continue(())
            })
            .map_err(store_error)?;
        Ok((groups, to, departures))
    }

    /// Returns the groups that the store had, and those in the same range that the layers above it
    /// know now, in order. `None`: there have been departures since.
    fn with_layers(
        &self,
        object: ObjectId,
        (from, to): (GroupIndex, GroupIndex),
        stored: &[GroupIndex],
        departures: u64,
    ) -> Option<Vec<GroupIndex>> {
        let layers = self.layers.read();
        if layers.departures != departures {
            return None;
        }
        let mut groups = stored.to_vec();
        for overlay in [&layers.active, &layers.settled].into_iter().chain(&layers.frozen) {
            overlay.add_groups(object, from, to, &mut groups);
        }
        groups.sort_unstable();
        groups.dedup();
        Some(groups)
    }

    /// Adds the groups of an object, from `from` on, with changes since the last checkpoint.
    pub(crate) fn add_changed_groups(&self, object: ObjectId, from: GroupIndex, groups: &mut Vec<GroupIndex>) {
        let layers = self.layers.read();
        for overlay in std::iter::once(&layers.active).chain(&layers.frozen) {
            overlay.add_groups(object, from, GroupIndex(u64::MAX), groups);
        }
    }

    /// Returns the number of groups in `from..to` of an object with records in the store, counted
    /// up to `max`.
    pub fn count_groups(&self, object: ObjectId, from: GroupIndex, to: GroupIndex, max: u64) -> Result<u64> {
        let (low, high) = record_key_range(object, from, to);
        let (mut count, mut last) = (0, None);
        let scanned = self.store.scan(&low, &high, &mut |key, _| {
            let group = parse_record_key(key).map(|key| key.group);
            count += u64::from(group != last);
            last = group;
            if count < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        scanned.map_err(store_error)?;
        Ok(count)
    }

    /// Returns every fragment to which a record points, as of the last checkpoint, within `len`
    /// bytes from `start` of the data file, where no writer may write. Reads all records of the
    /// pool, so many at a time that no other thread waits for long. Fragments that a checkpoint
    /// removes during the scan may be missing, or still there.
    ///
    /// # Errors
    /// When the store fails. Damaged records are [`FragmentsIn::damaged`].
    pub fn fragments_in(&self, start: u64, len: u64) -> Result<FragmentsIn> {
        self.fragments_by_pages(start, len, PAGE_RECORDS)
    }

    pub(super) fn fragments_by_pages(&self, start: u64, len: u64, records_max: usize) -> Result<FragmentsIn> {
        let mut all = FragmentsIn::default();
        let mut next = Some(b"R".to_vec());
        while let Some(from) = next.take() {
            let mut count = 0;
            self.scan_groups(&from, b"S", &mut |key, records| {
                if count >= records_max {
                    next = Some(record_key_range(key.object, key.group, key.group).0.to_vec());
                    return ControlFlow::Break(());
                }
                let records = match records {
                    Ok(records) => records,
                    Err(error) => {
                        count += 1;
                        all.damaged.push((key, error));
                        return ControlFlow::Continue(());
                    }
                };
                count += records.len();
                for (epoch, record) in records {
                    let id = RecordKey { object: key.object, group: key.group, epoch };
                    let inside = |f: &&FragmentRef| f.location >= start && f.location - start < len;
                    all.found.extend(record.fragments.iter().filter(inside).map(|f| (id, *f)));
                }
                ControlFlow::Continue(())
            })?;
        }
        Ok(all)
    }

    /// Returns the changes that light checkpoints made durable, and no record has yet; the caller
    /// holds `base_stays`.
    fn unmerged(&self) -> Arc<Overlay> {
        let layers = self.layers.read();
        if layers.is_merged { Arc::default() } else { layers.settled.clone() }
    }

    /// Calls `visit` for each group of the base with keys in `from..to`, in order, until it stops
    /// the scan.
    ///
    /// # Errors
    /// When the store fails or a record is damaged.
    pub fn scan_records(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(GroupKey, GroupRecords) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut damaged = Ok(());
        self.scan_groups(from, to, &mut |key, records| match records {
            Ok(records) => visit(key, records),
            Err(error) => {
                damaged = Err(error);
                ControlFlow::Break(())
            }
        })?;
        damaged
    }

    /// The same; `visit` gets an error for a group of which a record is damaged.
    ///
    /// # Errors
    /// When the store fails.
    fn scan_groups(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(GroupKey, Result<GroupRecords>) -> ControlFlow<()>,
    ) -> Result<()> {
        let _stays = self.base_stays.read();
        let settled = self.unmerged();
        let inside = |key: &GroupKey| {
            let first = record_key(&RecordKey { object: key.object, group: key.group, epoch: Epoch(u32::MAX) });
            first[..] >= *from && first[..] < *to
        };
        let mut only_settled = settled.keys().into_iter().filter(inside).peekable();
        let mut give = |key: GroupKey, mut records: Result<GroupRecords>| {
            if let Ok(records) = &mut records {
                settled.with(key, |changes| absorb(records, changes, &mut |_, _| ()));
            }
            visit(key, records)
        };
        let mut open: Option<(GroupKey, Result<GroupRecords>)> = None;
        let mut end = ControlFlow::Continue(());
        let mut step = |id: &[u8], value: &[u8]| {
            let Some(id) = parse_record_key(id) else { return ControlFlow::Continue(()) };
            let key = GroupKey { object: id.object, group: id.group };
            let record = decode(key, value);
            match &mut open {
                Some((last, records)) if *last == key => match (&mut *records, record) {
                    (Ok(records), Ok(record)) => records.push((id.epoch, record)),
                    (Ok(_), Err(error)) => *records = Err(error),
                    (Err(_), _) => {}
                },
                _ => {
                    let records = record.map(|record| smallvec![(id.epoch, record)]);
                    if let Some((last, records)) = open.replace((key, records))
                        && give(last, records).is_break()
                    {
                        open = None;
                        return ControlFlow::Break(());
                    }
                    while let Some(settled) = only_settled.next_if(|settled| *settled <= key) {
                        if settled < key && give(settled, Ok(GroupRecords::new())).is_break() {
                            open = None;
                            return ControlFlow::Break(());
                        }
                    }
                }
            }
            ControlFlow::Continue(())
        };
        let scanned = self.store.scan(from, to, &mut |id, value| {
            end = step(id, value);
            end
        });
        scanned.map_err(store_error)?;
        if end.is_break() {
            return Ok(());
        }
        let rest = open.into_iter().chain(only_settled.map(|key| (key, Ok(GroupRecords::new()))));
        for (key, records) in rest {
            if give(key, records).is_break() {
                break;
            }
        }
        Ok(())
    }
}
