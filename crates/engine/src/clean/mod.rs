//! Empties extents that are mostly dead, so that a checkpoint can free them. Owns what the cleaner
//! knows between rounds, and the pace beside the writers. Its own threads call it, writers that
//! find no room, and `upkeep` for work that goes from extent to extent.
//!
//! 1. *When*: by how much space is left, or for a writer that waits (`pacing`).
//! 2. *Which*: a round chooses victims (`round`) and reads them whole (`victim_reads`).
//! 3. *What*: the fragments that live in them (`extent_liveness`), verified, cut down to the parts
//!    that are still read, and in order (`survivors`). Cold ones are compressed anew where that is
//!    wanted (`cold`, `recode`); hot ones are kept apart (`write_heat`).
//! 4. They are appended as moves, which take effect only where nothing newer has come
//!    (`map::apply`).
//! 5. The next checkpoint finds the victims empty, and frees them.

pub(crate) mod cold;
pub(crate) mod extent_liveness;
pub(crate) mod pacing;
pub(crate) mod recode;
pub(crate) mod round;
pub(crate) mod survivors;
pub(crate) mod victim_reads;
pub(crate) mod walked;
pub(crate) mod write_heat;
