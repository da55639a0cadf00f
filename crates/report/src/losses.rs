//! Data that repairs have lost, as `check` and `status` show it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A loss of a repair that is not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LossLine {
    /// Time of the repair, in seconds since 1970.
    pub unix_s: u64,
    /// Description of the loss.
    pub text: String,
}

/// Batches that `check --repair` drops, or would drop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LossReport {
    /// The damage.
    pub what: String,
    /// First batch that is dropped; 0 if none is.
    pub first_batch: u64,
    /// Batches before this one were certainly flushed.
    pub flushed_before: u64,
    /// Batches found from `first_batch` on.
    pub batches: u64,
    /// Those of them that are whole.
    pub batches_whole: u64,
    /// Batches missing between them.
    pub batches_unknown: u64,
    /// Known effects by volume and snapshot.
    pub volumes: Vec<LossOfReport>,
}

/// Losses of one volume or snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LossOfReport {
    /// Name of the volume or snapshot.
    pub name: String,
    /// Number of dropped batches that changed it.
    pub batches: u64,
    /// Written bytes that are lost.
    pub written_bytes: u64,
    /// Discards that are lost, in bytes.
    pub discarded_bytes: u64,
    /// Bytes past the size to which it returns.
    pub cut_off_bytes: u64,
    /// Lost changes other than writes, in words.
    pub changes: Vec<String>,
}
