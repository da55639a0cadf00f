//! A quiesced tree, so that a snapshot of the space below it is of one moment.

use parking_lot::{MutexGuard, RwLockWriteGuard};

use super::{Namespace, Tree};
use crate::failure::Result;

/// A tree with all its changes in the space. Nothing changes while this exists: operations that
/// would change something wait.
pub struct Still<'a> {
    _nobody_commits: MutexGuard<'a, Namespace>,
    _shut: Option<RwLockWriteGuard<'a, ()>>,
}

impl Tree {
    /// Quiesces the tree, with all changes in the space, durably.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn stand_still(&self) -> Result<Still<'_>> {
        if crate::canary!("overlay-not-in-snapshot") {
            return Ok(Still { _nobody_commits: self.committing.lock(), _shut: None });
        }
        // Most of it before other operations have to wait.
        self.commit()?;
        // A canary: changes continue while the snapshot is taken.
        let shut = (!crate::canary!("changes-beside-snapshot")).then(|| self.gate.write());
        let mut one = self.committing.lock();
        let wanted = self.state.read().changes;
        self.commit_locked(&mut one, wanted, false)?;
        Ok(Still { _nobody_commits: one, _shut: shut })
    }

    /// Lets `take` make a snapshot of the space while the tree is quiesced.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn snapshot<T>(&self, take: impl FnOnce() -> T) -> Result<T> {
        let still = self.stand_still()?;
        let taken = take();
        drop(still);
        Ok(taken)
    }
}
