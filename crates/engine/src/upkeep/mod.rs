//! Maintenance of stored data that users or schedules request. Owns the progress of each task,
//! which is kept in the map store. Most tasks run in slices that a client requests, so that the
//! client decides on the pace.
//!
//! - `defrag` sorts scattered data, `recompress` recompresses it.
//! - `training` makes dictionaries, `dictionary_review` drops those that no fragment needs.
//! - `calibration` measures codecs on this machine; `explain` and `explain_files` explain how data
//!   is stored.
//! - `grow` and `shrink` change the size of the pool.

pub(crate) mod calibration;
pub(crate) mod defrag;
pub(crate) mod dictionary_review;
pub(crate) mod explain;
pub(crate) mod explain_files;
pub(crate) mod explain_map;
pub(crate) mod grow;
pub(crate) mod recompress;
pub(crate) mod shrink;
pub(crate) mod training;
