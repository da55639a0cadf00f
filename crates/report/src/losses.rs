//! What repairs have lost, as `check` and `status` show it.

use serde::{Deserialize, Serialize};

/// Losses of a repair that were not acknowledged yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossLine {
    /// When, in seconds since 1970.
    pub unix_s: u64,
    /// What.
    pub text: String,
}

/// What `check --repair` drops, or would drop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LossReport {
    /// The damage.
    pub what: String,
    /// The first batch that is dropped; 0: none is.
    pub first_batch: u64,
    /// Batches before this one were flushed for certain.
    pub flushed_before: u64,
    /// Batches that are there, those of them that are whole, and those that are missing between
    /// them.
    pub batches: u64,
    /// See `batches`.
    pub batches_whole: u64,
    /// See `batches`.
    pub batches_unknown: u64,
    /// Volumes and snapshots that go back, as far as it is known.
    pub volumes: Vec<LossOfReport>,
}

/// What one volume or snapshot loses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct LossOfReport {
    pub name: String,
    pub batches: u64,
    pub written_bytes: u64,
    pub discarded_bytes: u64,
    pub cut_off_bytes: u64,
    pub changes: Vec<String>,
}
