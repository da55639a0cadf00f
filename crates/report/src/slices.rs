//! What slices of work that goes through a pool report: how far it is, and what came of it. Field
//! names are a promise to scripts, as the crate says.

use serde::{Deserialize, Serialize};

use crate::ProblemReport;

/// A piece of cleaning on demand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct CleanSlice {
    pub finished: bool,
    pub extents_cleaned: u64,
    pub bytes_moved: u64,
    pub extents_free: u64,
    pub extents_free_before: u64,
    pub extents_todo: u64,
    pub mark: Option<u32>,
}

/// Cleaning on demand from its beginning to its end, with sorting before it or without.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct CleanTotal {
    pub extents_cleaned: u64,
    pub bytes_moved: u64,
    pub extents_free_before: u64,
    pub extents_free: u64,
    pub extents_todo: u64,
    pub sort: Option<SortSlice>,
}

/// How far sorting is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct SortSlice {
    pub finished: bool,
    pub started_unix_s: u64,
    pub bytes_done: u64,
    pub bytes_total: u64,
    pub rewritten_bytes: u64,
    pub damaged_groups: u64,
    pub foreground_bytes: u64,
}

/// How far shrinking is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ShrinkSlice {
    pub finished: bool,
    pub capacity_bytes: u64,
    pub extents_todo: u64,
    pub bytes_todo: u64,
    pub bytes_moved: u64,
}

/// How far scrubbing is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ScrubSlice {
    pub finished: bool,
    pub started_unix_s: u64,
    pub extents_done: u64,
    pub extents_total: u64,
    pub extent_bytes: u64,
    pub bytes_done: u64,
    pub bytes_total: u64,
    pub fragments: u64,
    pub bytes: u64,
    pub foreground_bytes: u64,
    pub found: u64,
    pub unacknowledged: u64,
    pub damages: Vec<ProblemReport>,
}
