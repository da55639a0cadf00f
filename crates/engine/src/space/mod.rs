//! Free space: which extents there are and what lives in them, what the host's file system has left, and who may write how much.
//! Owns the accounts; an extent is freed by `dead_map` and a checkpoint, and by nothing else.

pub(crate) mod admission;
pub(crate) mod claims;
pub(crate) mod dead_map;
pub(crate) mod extents;
pub(crate) mod host_space;
#[cfg(test)]
pub(crate) mod room_tests;
pub(crate) mod rule;
pub(crate) mod trim;
pub(crate) mod usage;
