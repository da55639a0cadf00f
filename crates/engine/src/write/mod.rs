//! From an accepted write to a batch in the log: write buffer, standby memory, quota, drain.

pub(crate) mod buffer;
pub(crate) mod drain;
pub(crate) mod precompress;
pub(crate) mod quota;
pub(crate) mod sorted;
pub(crate) mod standby;
pub(crate) mod standby_lost;
pub(crate) mod standby_open;
#[cfg(test)]
pub(crate) mod standby_tests;
