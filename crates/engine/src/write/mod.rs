//! From an accepted write to a batch in the log: room, quota, drain, and what an opening replays.

pub(crate) mod drain;
pub(crate) mod precompress;
pub(crate) mod quota;
pub(crate) mod room;
pub(crate) mod standby_open;
#[cfg(test)]
pub(crate) mod standby_tests;
