//! Progress and results of long work on a pool, one slice at a time. Field names are a promise to
//! scripts, as the crate's head says.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ProblemReport;

/// Result of one slice of cleaning on demand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CleanSlice {
    /// Whether nothing is left to clean.
    pub finished: bool,
    /// Extents emptied in this slice.
    pub extents_cleaned: u64,
    /// Stored bytes of live data moved out of them.
    pub bytes_moved: u64,
    /// Free extents now.
    pub extents_free: u64,
    /// Free extents before this pass.
    pub extents_free_before: u64,
    /// Extents with more dead space than cleaning is worth.
    pub extents_todo: u64,
    /// Identifies the pass, so that the next slice continues it; null when it is finished.
    pub mark: Option<u32>,
}

/// Result of cleaning on demand, with the sorting before it if there was one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CleanTotal {
    /// Extents emptied.
    pub extents_cleaned: u64,
    /// Stored bytes of live data moved out of them.
    pub bytes_moved: u64,
    /// Free extents before.
    pub extents_free_before: u64,
    /// Free extents after.
    pub extents_free: u64,
    /// Extents left that cleaning on demand would still empty.
    pub extents_todo: u64,
    /// Result of the sorting before it; null if nothing was sorted.
    pub sort: Option<SortSlice>,
}

/// Progress of sorting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SortSlice {
    /// Whether all data was visited.
    pub finished: bool,
    /// Start of the pass, in seconds since 1970; 0 if none was started.
    pub started_unix_s: u64,
    /// Stored bytes visited.
    pub bytes_done: u64,
    /// Stored bytes of all data.
    pub bytes_total: u64,
    /// Stored bytes rewritten in sorted order.
    pub rewritten_bytes: u64,
    /// Groups that cannot be read and stay in place.
    pub damaged_groups: u64,
    /// Bytes of client traffic during the pass.
    pub foreground_bytes: u64,
}

/// Progress of making the pool smaller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShrinkSlice {
    /// Whether the pool has its new capacity.
    pub finished: bool,
    /// Capacity of the pool now.
    pub capacity_bytes: u64,
    /// Extents past the new end that still hold data.
    pub extents_todo: u64,
    /// Stored bytes in these extents.
    pub bytes_todo: u64,
    /// Stored bytes moved in this slice.
    pub bytes_moved: u64,
}

/// Progress of a scrub.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScrubSlice {
    /// Whether all data was verified.
    pub finished: bool,
    /// Start of the pass, in seconds since 1970; 0 if none was started.
    pub started_unix_s: u64,
    /// Extents verified.
    pub extents_done: u64,
    /// All extents.
    pub extents_total: u64,
    /// Size of an extent.
    pub extent_bytes: u64,
    /// Stored bytes verified.
    pub bytes_done: u64,
    /// Stored bytes of all data.
    pub bytes_total: u64,
    /// Fragments verified.
    pub fragments: u64,
    /// Bytes of these fragments.
    pub bytes: u64,
    /// Bytes of client traffic during the pass.
    pub foreground_bytes: u64,
    /// Damages found by this pass.
    pub found: u64,
    /// Damaged fragments repaired from another copy since this pass began.
    pub repaired: u64,
    /// Damages known and neither repaired nor acknowledged.
    pub unacknowledged: u64,
    /// The damages, the first thousand.
    pub damages: Vec<ProblemReport>,
}
