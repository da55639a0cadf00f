//! The two kinds of checkpoints, as the map knows them.

/// Treatment of the map's changes by a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Merges them, and the settled ones, into the records.
    Full,
    /// Stores them apart from the records.
    Light,
}
