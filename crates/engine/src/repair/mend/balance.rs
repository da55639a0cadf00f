//! Compares the bytes that map records refer to with the counts of the last checkpoint, so that
//! data missing from the map store is noticed to the byte.
//!
//! Usage pages count live bytes by extent. If one of them is damaged or gone, none is trusted,
//! and the checkpoint's sum is left: then all extents are one *account*. Owns no state.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use format::{Record, RecordKey, parse_record_key, record_key_range};
use store::base::group::{GroupKey, GroupRecords};
use store::base::store_error::store_error;
use store::log::geometry::Geometry;
use store::map::absorb;
use surface::Result;
use units::{Epoch, ExtentIndex, GroupIndex, ObjectId};

use crate::repair::mend::Mender;

/// Bytes by account.
pub(crate) type Accounts = BTreeMap<ExtentIndex, u64>;

/// Live data, counted from records.
#[derive(Default)]
pub(crate) struct Live {
    pub extents: BTreeMap<ExtentIndex, u64>,
    /// Allocated blocks and stored bytes.
    pub objects: BTreeMap<ObjectId, (u64, u64)>,
}

impl Live {
    fn count(&mut self, geometry: &Geometry, key: GroupKey, record: &Record) {
        let (blocks, bytes) = self.objects.entry(key.object).or_default();
        if key.group.copy() == 0 {
            *blocks += u64::from(record.allocated().count());
        }
        for fragment in &record.fragments {
            let live = u64::from(fragment.live_bytes());
            *bytes += live;
            *self.extents.entry(geometry.extent_at(fragment.location)).or_default() += live;
        }
    }
}

/// Returns the amounts by which `more` exceeds `less`.
pub(crate) fn beyond(more: &Accounts, less: &Accounts) -> Accounts {
    let above = |(account, bytes): (&ExtentIndex, &u64)| {
        let rest = bytes.saturating_sub(less.get(account).copied().unwrap_or(0));
        (rest > 0).then_some((*account, rest))
    };
    more.iter().filter_map(above).collect()
}

impl Mender<'_> {
    pub(crate) fn account(&self, location: u64) -> ExtentIndex {
        if self.found.damaged_pages.is_empty() { self.geometry.extent_at(location) } else { ExtentIndex(0) }
    }

    /// Returns the live bytes of one record, by account.
    pub(crate) fn accounts_of(&self, record: &Record) -> Accounts {
        let mut accounts = Accounts::new();
        for fragment in &record.fragments {
            *accounts.entry(self.account(fragment.location)).or_default() += u64::from(fragment.live_bytes());
        }
        accounts
    }

    /// Live bytes by the last checkpoint.
    pub(crate) fn due(&self) -> Accounts {
        if !self.found.damaged_pages.is_empty() {
            return Accounts::from([(ExtentIndex(0), self.checkpoint.live_bytes)]);
        }
        let pages = self.found.pages.iter().flat_map(|(first, page)| (*first..).zip(page));
        let within = pages.filter(|(extent, _)| *extent < self.geometry.extents());
        within.map(|(extent, bytes)| (ExtentIndex(extent), u64::from(*bytes))).collect()
    }

    /// Returns live bytes by the readable records, and these.
    pub(crate) fn counted(&self, rebuilt: &BTreeMap<RecordKey, Record>) -> Result<Accounts> {
        let mut accounts = Accounts::new();
        for (extent, bytes) in self.live(rebuilt)?.extents {
            *accounts.entry(self.account(self.geometry.start(extent))).or_default() += bytes;
        }
        Ok(accounts)
    }

    /// Returns the bytes that all readable records, and these, refer to, with the changes that lie
    /// over them.
    pub(crate) fn live(&self, rebuilt: &BTreeMap<RecordKey, Record>) -> Result<Live> {
        let mut live = Live::default();
        let group = |key: &RecordKey| GroupKey { object: key.object, group: key.group };
        let apart: BTreeSet<GroupKey> =
            self.found.settled.keys().into_iter().chain(rebuilt.keys().map(group)).collect();
        self.env
            .store
            .scan(b"R", b"S", &mut |key, value| {
                if let (Some(key), Ok(record)) = (parse_record_key(key), Record::decode(value))
                    && !apart.contains(&group(&key))
                {
                    live.count(self.geometry, group(&key), &record);
                }
                ControlFlow::Continue(())
            })
            .map_err(store_error)?;
        for key in apart {
            for (_, record) in self.group(key, rebuilt)? {
                live.count(self.geometry, key, &record);
            }
        }
        Ok(live)
    }

    /// The records of a group, with the changes that lie over them.
    fn group(&self, key: GroupKey, rebuilt: &BTreeMap<RecordKey, Record>) -> Result<GroupRecords> {
        let (from, to) = record_key_range(key.object, key.group, GroupIndex(key.group.0 + 1));
        let mut records = BTreeMap::new();
        self.env
            .store
            .scan(&from, &to, &mut |key, value| {
                if let (Some(key), Ok(record)) = (parse_record_key(key), Record::decode(value)) {
                    records.insert(Reverse(key.epoch), record);
                }
                ControlFlow::Continue(())
            })
            .map_err(store_error)?;
        let at = |epoch| RecordKey { object: key.object, group: key.group, epoch };
        let mine = rebuilt.range(at(Epoch(0))..=at(Epoch(u32::MAX)));
        records.extend(mine.map(|(id, record)| (Reverse(id.epoch), record.clone())));
        let mut records: GroupRecords = records.into_iter().map(|(Reverse(epoch), record)| (epoch, record)).collect();
        if let Some(changes) = self.found.settled.with(key, Clone::clone) {
            absorb(&mut records, &changes, &mut |_, _| ());
        }
        Ok(records)
    }
}
