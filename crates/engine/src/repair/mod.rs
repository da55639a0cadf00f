//! What opens, judges and mends a pool after a crash or damage, and what brings data out of one that cannot be mended.

pub(crate) mod check;
pub(crate) mod damages;
pub(crate) mod loss;
pub(crate) mod mend;
pub(crate) mod recovery;
#[cfg(test)]
pub(crate) mod recovery_tests;
pub(crate) mod salvage;
pub(crate) mod standby_lost;
