//! Empties extents: picks victims, moves live fragments, compresses cold ones anew, and keeps its pace with the writers.

pub(crate) mod cold;
pub(crate) mod extent_liveness;
pub(crate) mod pacing;
pub(crate) mod recode;
pub(crate) mod round;
pub(crate) mod survivors;
pub(crate) mod victim_reads;
pub(crate) mod walked;
pub(crate) mod write_heat;
