//! Opens, judges and mends a pool after a crash or damage, and brings data out of one that cannot
//! be mended. Owns the lists of known damage (`damages`) and of losses (`loss`).
//!
//! 1. An opening applies the log behind the last checkpoint (`recovery`), and tells what a lost
//!    standby memory means (`standby_lost`). Nothing is dropped unless the caller accepts the loss.
//! 2. With `check --repair`, a damaged map store is mended before that (`mend`).
//! 3. A check reads everything, and compares (`check`).
//! 4. Where nothing else helps, `salvage` rebuilds volumes in another pool from the log alone.

pub(crate) mod check;
pub(crate) mod damages;
pub(crate) mod loss;
pub(crate) mod mend;
pub(crate) mod recovery;
#[cfg(test)]
pub(crate) mod recovery_tests;
pub(crate) mod salvage;
pub(crate) mod standby_lost;
