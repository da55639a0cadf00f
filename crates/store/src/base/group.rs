//! The key of a group of an object, and the form of its records in the map.

use format::Record;
use smallvec::SmallVec;
use units::{Epoch, GroupIndex, ObjectId};

use crate::base::hash::MULTIPLIER;

/// A group of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    pub object: ObjectId,
    pub group: GroupIndex,
}

impl GroupKey {
    /// Returns the group's shard among `count`, a power of two.
    pub(crate) const fn shard(self, count: usize) -> usize {
        let mixed = (self.group.0 ^ self.object.0.rotate_left(32)).wrapping_mul(MULTIPLIER);
        (mixed >> (u64::BITS - count.ilog2())) as usize
    }
}

/// Groups of an object for which the map store had records when it was asked.
#[derive(Debug)]
pub struct StoredGroups {
    pub object: ObjectId,
    pub from: GroupIndex,
    /// Where the search ended.
    pub to: GroupIndex,
    /// In order. `None`: the store could not be read.
    pub groups: Option<Vec<GroupIndex>>,
    /// Number of departures from the map's layers to the store before it was asked.
    pub departures: u64,
}

/// Records of one group, one for each epoch, newest first. Most groups have one, which is stored
/// inline and needs no allocation.
pub type GroupRecords = SmallVec<[(Epoch, Record); 1]>;
