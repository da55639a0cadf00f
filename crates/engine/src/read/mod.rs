//! From a range of blocks to bytes. Owns the cache of decoded units, and the streams that are read
//! ahead. Changes nothing that is stored. Volumes call it for their clients; `replication`,
//! `upkeep` and `repair` call it for snapshots and for data that they verify.
//!
//! 1. Dirty blocks come from the write buffer, blocks of images that have just arrived from memory
//!    (`images`).
//! 2. The map has the locations of the others (`allocation` answers that alone).
//! 3. Decoded units come from the cache (`unit_cache`). The rest is read, verified and decoded
//!    (`reader`), with neighbours while there is room for them (`prefetch`).
//! 4. A stream of reads has the next ones read ahead (`read_ahead`).
//!
//! Locations stay valid while the lock `readers` is shared: no extent is filled again in that time.
//! An error names blocks that are not in the pool at all (`lacking`); one for damaged bytes names
//! all objects that see them (`damage_owners`).

pub(crate) mod allocation;
pub(crate) mod damage_owners;
pub(crate) mod dictionaries;
pub(crate) mod ending;
pub(crate) mod images;
pub(crate) mod lacking;
pub(crate) mod prefetch;
pub(crate) mod read_ahead;
pub(crate) mod reader;
pub(crate) mod runs;
pub(crate) mod suspects;
pub(crate) mod unit_cache;
