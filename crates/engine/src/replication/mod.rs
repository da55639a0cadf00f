//! Snapshots and their differences as streams, out of one pool and into another.

pub(crate) mod receive;
pub(crate) mod receive_chunk;
pub(crate) mod receive_fit;
pub(crate) mod receives;
pub(crate) mod send;
pub(crate) mod send_pages;
pub(crate) mod thin;
