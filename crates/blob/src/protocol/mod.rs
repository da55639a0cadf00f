//! The protocol of a blob: the log that orders its versions, the records in it, and how their data
//! is kept and deleted: commits, pins, clones, expiry, collection and removal. Owns every rule that
//! docs/internals/BLOBS.md proves. Any task may use it.

pub(crate) mod clone;
pub(crate) mod commit;
pub(crate) mod crowd;
pub(crate) mod delete;
pub(crate) mod expire;
pub(crate) mod gc;
pub(crate) mod gc_progress;
pub(crate) mod life;
pub(crate) mod log;
pub(crate) mod offer;
pub(crate) mod ops;
pub(crate) mod outcomes;
pub(crate) mod pins;
pub(crate) mod record;
pub(crate) mod rm;
pub(crate) mod walk;
