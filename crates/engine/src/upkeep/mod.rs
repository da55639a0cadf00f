//! Work on stored data that users or schedules ask for. Owns how far each has come, which is kept
//! in the map store. Most of it goes in slices that a client asks for, so that the client decides
//! on the pace.
//!
//! - `defrag` sorts scattered data, `recompress` compresses it anew, `scrub` verifies it.
//! - `training` makes dictionaries, `dictionary_review` gives up those that no fragment needs.
//! - `calibration` measures codecs on this machine; `explain` and `explain_files` say why data is
//!   stored as it is.
//! - `grow` and `shrink` change the size of the pool.

pub(crate) mod calibration;
pub(crate) mod defrag;
pub(crate) mod dictionary_review;
pub(crate) mod explain;
pub(crate) mod explain_files;
pub(crate) mod explain_map;
pub(crate) mod grow;
pub(crate) mod recompress;
pub(crate) mod scrub;
pub(crate) mod shrink;
pub(crate) mod training;
