//! The share of the last room that a write may take. New data leaves this room to overwrites:
//! enough for a file system above, whose new files find no room, to still delete some.
//!
//! A file system writes little to delete, and not all of it to blocks with data: its log continues
//! into blocks that were never written, and btrfs writes its tree to new places. So writes are
//! classified by their visible properties:
//! - *New*: it leaves all of overwriting's share alone.
//! - *Little*: new data in a request of a unit's size at most. Data of large files comes in larger
//!   ones. It leaves half of the share alone.
//! - *Log*: new data directly after the block that was last before a flush, such as a journal's
//!   next transaction. It leaves a quarter alone.
//! - *Overwrite*: it leaves nothing of the share alone, since it leaves as much dead.
//!
//! Each claim ends at a wall of its own. None goes past the soft wall, so the cleaner always has
//! its room.

use units::GROUP_BYTES;

use crate::objects::object::Object;

/// Largest request that is *little*: the size of a unit. Data of large files comes in larger ones.
const LITTLE_BYTES_MAX: u64 = GROUP_BYTES as u64;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    New,
    Little,
    Log,
    Overwrite,
}

impl Claim {
    /// Returns the claim of a write of `length` bytes at `offset` of an object.
    pub fn of(object: &Object, offset: u64, length: u64, overwrites: bool) -> Self {
        match () {
            () if overwrites => Self::Overwrite,
            () if object.quota.tails.continues(offset, length) => Self::Log,
            () if length <= LITTLE_BYTES_MAX => Self::Little,
            () => Self::New,
        }
    }

    /// Returns how many extents of the overwriting share it leaves alone.
    pub(crate) fn leaves_of(self, share: u64) -> u64 {
        match self {
            Self::New => share,
            Self::Little => share / 2,
            Self::Log => share / 4,
            Self::Overwrite => 0,
        }
    }
}
