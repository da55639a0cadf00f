//! From a range of blocks to bytes: write buffer, cache, map, disk, checksum, codec. Changes nothing that is stored.

pub(crate) mod allocation;
pub(crate) mod damage_owners;
pub(crate) mod lacking;
pub(crate) mod prefetch;
pub(crate) mod read_ahead;
pub(crate) mod reader;
pub(crate) mod runs;
pub(crate) mod unit_cache;
