//! The foundation of all rooms: memory, sums, options, counters, health, locks with a rank. Owns
//! no state of a pool but its `vitals`, the signals between its threads, and their jobs. All rooms
//! may call it, on any thread; it calls none.

pub(crate) mod buffers;
pub(crate) mod canary;
pub(crate) mod counters;
pub(crate) mod decode_counts;
pub(crate) mod group;
pub(crate) mod hash;
pub(crate) mod jobs;
pub(crate) mod loss;
pub(crate) mod options;
pub(crate) mod pieces;
pub(crate) mod ranked;
pub(crate) mod ranks;
pub(crate) mod scratch;
pub(crate) mod shares;
pub(crate) mod signals;
pub(crate) mod status;
pub(crate) mod storage_check;
pub(crate) mod store_error;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod users;
pub(crate) mod vitals;
