//! Changes of the map since a checkpoint, by group, newest epoch first. Bounded by checkpoints,
//! which are taken when [`Overlay::bytes`] passes a limit.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use format::{FragmentRef, Record};
use units::{BlockMask, Epoch, GroupIndex, ObjectId};

use crate::base::group::GroupKey;
use crate::base::group::GroupRecords;
use crate::base::hash::FastHash;
use crate::base::ranked::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};
use crate::base::ranks;
use crate::map::relocation_notes::MovedFrom;

const SHARDS: usize = 16;
/// Memory of a group's entry in addition to its fragments: a table slot at mean load, a vector of
/// one epoch, a vector of fragments, and the allocator's rounding.
const GROUP_BYTES: usize = 208;
/// Memory of each further epoch of a group.
const RECORD_BYTES: usize = size_of::<(Epoch, Record)>() + 32;
/// Memory of a fragment.
const FRAGMENT_BYTES: usize = size_of::<FragmentRef>();

type Shard = RwLock<HashMap<GroupKey, GroupRecords, FastHash>, ranks::OverlayShard>;

/// The records of a group, with its shard.
pub type Records<'a> = MappedRwLockReadGuard<'a, GroupRecords, ranks::OverlayShard>;

#[derive(Default)]
pub struct Overlay {
    shards: [Shard; SHARDS],
    bytes: AtomicUsize,
    groups: AtomicUsize,
    moved_from: Mutex<Vec<MovedFrom>, ranks::MovedFrom>,
}

/// Effect of one change on a group's record in the overlay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Blocks that were new to the overlay in this epoch.
    pub new: BlockMask,
    /// Allocated blocks of this record before and after.
    pub allocated_before: u32,
    pub allocated_after: u32,
}

impl Overlay {
    fn shard(&self, key: GroupKey) -> &Shard {
        &self.shards[key.shard(SHARDS)]
    }

    /// Memory used, roughly.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Groups that have changed.
    #[inline]
    pub fn groups(&self) -> usize {
        self.groups.load(Ordering::Relaxed)
    }

    /// Whether nothing has changed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.groups() == 0
    }

    /// Changes the record of one group and epoch.
    pub(super) fn change(&self, key: GroupKey, epoch: Epoch, change: impl FnOnce(&mut Record)) -> Change {
        self.with_record(key, epoch, |record| {
            let (known, allocated) = (record.known(), record.allocated());
            change(record);
            Change {
                new: record.known().minus(known),
                allocated_before: allocated.count(),
                allocated_after: record.allocated().count(),
            }
        })
    }

    /// Passes the record of one group and epoch to `change`; the record is created if there is
    /// none.
    fn with_record<R>(&self, key: GroupKey, epoch: Epoch, change: impl FnOnce(&mut Record) -> R) -> R {
        let mut shard = self.shard(key).write();
        let records = shard.entry(key).or_insert_with(|| {
            self.groups.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(GROUP_BYTES, Ordering::Relaxed);
            GroupRecords::new()
        });
        let at = match records.binary_search_by(|(e, _)| epoch.cmp(e)) {
            Ok(at) => at,
            Err(at) => {
                if !records.is_empty() {
                    self.bytes.fetch_add(RECORD_BYTES, Ordering::Relaxed);
                }
                records.insert(at, (epoch, Record::default()));
                at
            }
        };
        let record = &mut records[at].1;
        let count = record.fragments.len();
        let result = change(record);
        let grown = record.fragments.len();
        if grown >= count {
            self.bytes.fetch_add((grown - count) * FRAGMENT_BYTES, Ordering::Relaxed);
        } else {
            self.bytes.fetch_sub((count - grown) * FRAGMENT_BYTES, Ordering::Relaxed);
        }
        result
    }

    /// Passes the records of a group to `look`, if there are any.
    pub fn with<R>(&self, key: GroupKey, look: impl FnOnce(&GroupRecords) -> R) -> Option<R> {
        // A reader that must see a change comes after it, and finds it counted.
        if self.is_empty() {
            return None;
        }
        self.shard(key).read().get(&key).map(look)
    }

    /// The records of a group, if there are any; changes to its shard wait while they are held.
    pub(super) fn records(&self, key: GroupKey) -> Option<Records<'_>> {
        RwLockReadGuard::try_map(self.shard(key).read(), |groups| groups.get(&key))
    }

    /// The same for a frozen overlay: no thread changes it any more.
    #[inline]
    pub fn frozen_records(&self, key: GroupKey) -> Option<Records<'_>> {
        RwLockReadGuard::try_map(self.shard(key).read_unchanging(), |groups| groups.get(&key))
    }

    /// Adds the groups in `from..to` of an object that have changed.
    pub(super) fn add_groups(&self, object: ObjectId, from: GroupIndex, to: GroupIndex, groups: &mut Vec<GroupIndex>) {
        if (self.groups() as u64) < to.0.saturating_sub(from.0) {
            self.each(|key, _| {
                if key.object == object && key.group >= from && key.group < to {
                    groups.push(key.group);
                }
            });
            return;
        }
        for group in from.0..to.0 {
            let group = GroupIndex(group);
            if self.with(GroupKey { object, group }, |_| ()).is_some() {
                groups.push(group);
            }
        }
    }

    /// Forgets the changes of a group.
    pub(super) fn remove(&self, key: GroupKey) {
        if let Some(records) = self.shard(key).write().remove(&key) {
            let fragments: usize = records.iter().map(|(_, record)| record.fragments.len()).sum();
            let bytes = GROUP_BYTES + (records.len() - 1) * RECORD_BYTES + fragments * FRAGMENT_BYTES;
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.groups.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Keeps notes of the former locations of moved blocks.
    pub fn note(&self, mut notes: Vec<MovedFrom>) {
        self.bytes.fetch_add(notes.len() * size_of::<MovedFrom>(), Ordering::Relaxed);
        self.moved_from.lock().append(&mut notes);
    }

    /// All notes, by group.
    pub fn notes(&self) -> Vec<MovedFrom> {
        let mut notes = self.moved_from.lock().clone();
        notes.sort_by_key(|note| note.key);
        notes
    }

    /// Lays the changes of a newer overlay over these.
    pub(super) fn lay(&self, newer: &Self) {
        for shard in &newer.shards {
            for (key, records) in shard.read().iter() {
                for (epoch, change) in records {
                    self.with_record(*key, *epoch, |record| record.absorb(change, &mut |_| ()));
                }
            }
        }
    }

    /// Passes each changed group to `look`; changes to its shard wait for that time.
    pub fn each(&self, mut look: impl FnMut(GroupKey, &GroupRecords)) {
        for shard in &self.shards {
            shard.read().iter().for_each(|(key, records)| look(*key, records));
        }
    }

    /// Passes all groups, sorted, to `look`, for a frozen overlay: no thread changes it any more.
    pub fn sorted<R>(&self, look: impl FnOnce(Vec<(GroupKey, &GroupRecords)>) -> R) -> R {
        let shards = self.shards.each_ref().map(|shard| shard.read_unchanging());
        let mut groups = Vec::with_capacity(self.groups());
        groups.extend(shards.iter().flat_map(|shard| shard.iter()).map(|(key, records)| (*key, records)));
        groups.sort_unstable_by_key(|(key, _)| *key);
        look(groups)
    }

    /// All groups, sorted.
    pub fn keys(&self) -> Vec<GroupKey> {
        let mut keys = Vec::with_capacity(self.groups());
        for shard in &self.shards {
            keys.extend(shard.read().keys().copied());
        }
        keys.sort_unstable();
        keys
    }
}
