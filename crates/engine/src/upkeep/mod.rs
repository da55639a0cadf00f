//! Work on what is stored that users or schedules ask for: sort, recompress, scrub, train, calibrate, grow, shrink.

pub(crate) mod calibration;
pub(crate) mod defrag;
pub(crate) mod dictionary_review;
pub(crate) mod explain;
pub(crate) mod explain_files;
pub(crate) mod grow;
pub(crate) mod recompress;
pub(crate) mod scrub;
pub(crate) mod shrink;
pub(crate) mod training;
