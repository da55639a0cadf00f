//! Cleaning that a user requests. Owns nothing; the caller's thread does the work.

use store::base::status::{CleanMark, CleanReport};
use surface::Result;

use crate::pool::Pool;

impl Pool {
    /// Cleans the extents of which more than a twentieth is dead, in at most `rounds` rounds: until
    /// the pool is as free as the background cleaner would make it, or with `all` until none is
    /// left; extents that writers fill in the meantime are left out. The gained space is free on
    /// return.
    ///
    /// # Errors
    /// When the storage fails. Damage does not stop it: see
    /// [`PoolStatus::damages`](crate::PoolStatus::damages).
    pub fn clean(&self, all: bool, rounds: u32) -> Result<CleanReport> {
        self.core.clean.clean_pass(all, rounds, None)
    }

    /// Continues a pass for which [`clean`](Self::clean) has reported the mark: only extents of
    /// that time are cleaned, so that the pass ends however much is written in the meantime.
    ///
    /// # Errors
    /// Those of [`clean`](Self::clean).
    pub fn clean_on(&self, all: bool, rounds: u32, mark: CleanMark) -> Result<CleanReport> {
        self.core.clean.clean_pass(all, rounds, Some(mark))
    }
}
