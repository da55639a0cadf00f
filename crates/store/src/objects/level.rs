//! The chain of levels below an object: objects whose records it sees, each up to an epoch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use format::Cut;
use units::{BlockMask, Epoch, GROUP_BLOCKS, GroupIndex, ObjectId};

/// One level of an object's chain: the object, then its origin, and so on.
#[derive(Debug, Clone)]
pub struct Level {
    pub object: ObjectId,
    /// Newest epoch that is seen.
    pub epoch: Epoch,
    /// The object's current epoch, if it may still be the first and only one, because the object
    /// has no snapshot. Read under the layers' lock: as long as it is the first there, no
    /// checkpoint can have stored a record of another epoch that the cache would lack, however old
    /// these levels are.
    pub newest: Option<Arc<AtomicU32>>,
    /// Epochs that are not visible.
    pub cuts: Vec<Cut>,
    /// For an image: its number of blocks. Blocks without a record have not been fetched.
    pub image: Option<u64>,
}

impl PartialEq for Level {
    fn eq(&self, other: &Self) -> bool {
        (self.object, self.epoch, &self.cuts) == (other.object, other.epoch, &other.cuts)
    }
}

impl Level {
    /// Returns whether nothing but the first epoch can have records; the caller holds the layers'
    /// lock.
    pub(crate) fn has_only_first(&self) -> bool {
        self.newest.as_ref().is_some_and(|newest| newest.load(Ordering::Acquire) == 0)
    }

    /// The blocks of a group that an image has.
    pub(crate) fn image_mask(&self, group: GroupIndex) -> BlockMask {
        let blocks = self.image.map_or(0, |blocks| blocks.saturating_sub(group.first_block().0));
        BlockMask::run(0, blocks.min(GROUP_BLOCKS as u64) as u32)
    }

    /// How many groups an image has.
    #[inline]
    pub fn image_groups(&self) -> u64 {
        self.image.unwrap_or(0).div_ceil(GROUP_BLOCKS as u64)
    }

    /// Whether records of an epoch are seen.
    #[inline]
    pub fn sees(&self, epoch: Epoch) -> bool {
        epoch <= self.epoch && !self.cuts.iter().any(|cut| cut.hides(epoch, self.epoch))
    }
}
