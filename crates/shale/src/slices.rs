//! What slices of work that goes through a pool report: how far it is, and what came of it. Field
//! names are a promise to scripts, as in [`crate::model`].

use serde::{Deserialize, Serialize};

use crate::model::ProblemReport;

/// A piece of cleaning on demand. See [`engine::CleanReport`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct CleanSlice {
    pub finished: bool,
    pub extents_cleaned: u64,
    pub bytes_moved: u64,
    pub extents_free: u64,
    pub extents_free_before: u64,
    pub extents_todo: u64,
    #[serde(default)]
    pub mark: Option<u32>,
}

impl From<engine::CleanReport> for CleanSlice {
    fn from(report: engine::CleanReport) -> Self {
        Self {
            finished: report.is_finished,
            extents_cleaned: report.extents_cleaned,
            bytes_moved: report.bytes_moved,
            extents_free: report.extents_free_after,
            extents_free_before: report.extents_free_before,
            extents_todo: report.extents_todo,
            mark: Some(report.mark.0),
        }
    }
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

/// How far sorting is. See [`engine::SortReport`].
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

impl From<engine::SortReport> for SortSlice {
    fn from(report: engine::SortReport) -> Self {
        Self {
            finished: report.is_finished,
            started_unix_s: report.started_unix_s,
            bytes_done: report.bytes_done,
            bytes_total: report.bytes_total,
            rewritten_bytes: report.rewritten_bytes,
            damaged_groups: report.damaged_groups,
            foreground_bytes: report.foreground_bytes,
        }
    }
}

/// How far shrinking is. See [`engine::ShrinkReport`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ShrinkSlice {
    pub finished: bool,
    pub capacity_bytes: u64,
    pub extents_todo: u64,
    pub bytes_todo: u64,
    pub bytes_moved: u64,
}

impl From<engine::ShrinkReport> for ShrinkSlice {
    fn from(report: engine::ShrinkReport) -> Self {
        Self {
            finished: report.is_finished,
            capacity_bytes: report.capacity_bytes,
            extents_todo: report.extents_todo,
            bytes_todo: report.bytes_todo,
            bytes_moved: report.bytes_moved,
        }
    }
}

/// How far scrubbing is. See [`engine::ScrubReport`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ScrubSlice {
    pub finished: bool,
    pub started_unix_s: u64,
    pub extents_done: u64,
    pub extents_total: u64,
    pub extent_bytes: u64,
    #[serde(default)]
    pub bytes_done: u64,
    #[serde(default)]
    pub bytes_total: u64,
    pub fragments: u64,
    pub bytes: u64,
    pub foreground_bytes: u64,
    pub found: u64,
    #[serde(default)]
    pub unacknowledged: u64,
    pub damages: Vec<ProblemReport>,
}

impl From<engine::ScrubReport> for ScrubSlice {
    fn from(report: engine::ScrubReport) -> Self {
        Self {
            finished: report.is_finished,
            started_unix_s: report.started_unix_s,
            extents_done: report.extents_done,
            extents_total: report.extents_total,
            extent_bytes: report.extent_bytes,
            bytes_done: report.bytes_done,
            bytes_total: report.bytes_total,
            fragments: report.fragments,
            bytes: report.bytes,
            foreground_bytes: report.foreground_bytes,
            found: report.found,
            unacknowledged: report.unacknowledged,
            damages: report.damages.into_iter().map(ProblemReport::from).collect(),
        }
    }
}
