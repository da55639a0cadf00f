//! The foundation of all rooms: memory, sums, options, counters, health, locks with a rank. Owns
//! no state of a pool but its `vitals`, the signals between its threads, and their jobs. All rooms
//! may call it, on any thread; it calls none.

pub mod buffers;
pub mod canary;
pub mod counters;
pub mod decode_counts;
pub mod group;
pub mod hash;
pub mod jobs;
pub mod loss;
pub mod options;
pub mod pieces;
pub mod ranked;
pub mod ranks;
pub mod scratch;
pub mod shares;
pub mod signals;
pub mod status;
pub mod storage_check;
pub mod store_error;
#[cfg(test)]
pub mod testing;
pub mod users;
pub mod vitals;
