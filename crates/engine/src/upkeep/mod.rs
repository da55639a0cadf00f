//! Maintenance of stored data that users or schedules request. Owns the progress of each task,
//! which is kept in the map store. Most tasks run in slices that a client requests, on its thread,
//! so that the client decides on the pace; the pool's trainer runs `training`.
//!
//! - `defrag` sorts scattered data, `recompress` recompresses it.
//! - `training` makes dictionaries, `dictionary_review` drops those that no fragment needs.
//! - `calibration` measures codecs on this machine; `explain` explains how data is stored.
//! - `grow` and `shrink` change the size of the pool.

pub(crate) mod calibration;
pub(crate) mod defrag;
pub(crate) mod dictionary_review;
pub(crate) mod explain;
pub(crate) mod explain_map;
pub(crate) mod grow;
pub(crate) mod recompress;
pub(crate) mod shrink;
pub(crate) mod training;

use store::base::ranked::Mutex;
use store::base::ranks;
use units::{GroupIndex, ObjectId};

use crate::clean::walked::Walked;

/// The tasks in progress.
#[derive(Default)]
pub(crate) struct Upkeep {
    /// The shrink in progress.
    shrinking: Mutex<Option<Shrinking>, ranks::Shrinking>,
    /// Held by a slice of the recompression.
    recompressing: Mutex<(), ranks::Recompressing>,
    /// Progress of the recompression, after its last slice.
    recompressed: Mutex<Walked, ranks::Recompressed>,
    /// Held by the thread that sorts.
    sorting: Mutex<SortWalk, ranks::Sorting>,
}

/// A shrink in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shrinking {
    /// The new number of extents.
    extents: u32,
    /// Time of the last request for a slice.
    asked_ns: u64,
}

/// Progress of the pass within a volume, in bytes of data; counted while the pool is open, and once
/// from the map if a pass continues after the pool was opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SortWalk {
    object: ObjectId,
    group: GroupIndex,
    bytes: u64,
}

impl Default for SortWalk {
    /// Before all volumes.
    fn default() -> Self {
        Self { object: ObjectId(0), group: GroupIndex(0), bytes: 0 }
    }
}
