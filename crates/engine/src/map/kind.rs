//! The two kinds of checkpoints, as the map knows them.

/// What a checkpoint does with the changes of the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Merges them, and those that are settled, into the records.
    Full,
    /// Puts them beside the records.
    Light,
}
