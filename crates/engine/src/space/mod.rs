//! Free space: the extents and their live data, admission of writes, and the free space of the file
//! system. Owns the accounts of extents (`extents`). Checkpoints change them, the log takes extents
//! from them, admission and the cleaner read them.
//!
//! A byte of the data file goes through these steps:
//! 1. *Admitted*: a write is taken only if it surely finds room (`admission`, with `claims` and
//!    `host_space`). The room counts as taken from here on.
//! 2. *Dirty*, and then in a batch of an extent that the log has open.
//! 3. *Live*, as of the checkpoint that counts it (`extents`, `usage`).
//! 4. *Dead*, when something newer takes its place (`dead_map`).
//! 5. *Free*, with its whole extent. **Only a checkpoint frees an extent** (`Extents::release`,
//!    called when it is published): when nothing in it is live and no reader is left in it. The
//!    cleaner only makes extents empty.
//! 6. Punched out of the data file (`trim`), unless it is filled again at once.

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
