//! The key of a group of an object, and the form of its records in the map.

use format::Record;
use smallvec::SmallVec;
use units::{Epoch, GroupIndex, ObjectId};

use crate::base::hash::MULTIPLIER;

/// A group of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupKey {
    pub object: ObjectId,
    pub group: GroupIndex,
}

impl GroupKey {
    /// Which of `count` shards, a power of two, the group belongs to.
    pub(crate) const fn shard(self, count: usize) -> usize {
        let mixed = (self.group.0 ^ self.object.0.rotate_left(32)).wrapping_mul(MULTIPLIER);
        (mixed >> (u64::BITS - count.ilog2())) as usize
    }
}

/// Groups of an object of which the map store had records when it was asked.
#[derive(Debug)]
pub(crate) struct StoredGroups {
    pub object: ObjectId,
    pub from: GroupIndex,
    /// Where the look ended.
    pub to: GroupIndex,
    /// In order. `None`: the store could not be read.
    pub groups: Option<Vec<GroupIndex>>,
    /// How often changes had left the map's layers for the store before it was asked.
    pub departures: u64,
}

/// Records of one group, one an epoch, newest first. Most groups have one: it lies where the list
/// does, and needs no memory of its own.
pub(crate) type GroupRecords = SmallVec<[(Epoch, Record); 1]>;
