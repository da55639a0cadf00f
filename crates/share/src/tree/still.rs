//! A tree that stands still, so that a snapshot of the space below it is of one moment.

use parking_lot::{MutexGuard, RwLockWriteGuard};

use super::{Namespace, Tree};
use crate::failure::Result;

/// A tree of which the space has all that was done. Nothing changes while this is there: an
/// operation that would change something waits.
pub struct Still<'a> {
    _nobody_commits: MutexGuard<'a, Namespace>,
    _shut: Option<RwLockWriteGuard<'a, ()>>,
}

impl Tree {
    /// Has the tree stand still, with all changes in the space, durably.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn stand_still(&self) -> Result<Still<'_>> {
        if crate::canary!("overlay-not-in-snapshot") {
            return Ok(Still { _nobody_commits: self.committing.lock(), _shut: None });
        }
        // Most of it before anybody has to wait.
        self.commit()?;
        // A canary: changes go on while the snapshot is taken.
        let shut = (!crate::canary!("changes-beside-snapshot")).then(|| self.gate.write());
        let mut one = self.committing.lock();
        let wanted = self.state.read().changes;
        self.commit_locked(&mut one, wanted, false)?;
        Ok(Still { _nobody_commits: one, _shut: shut })
    }

    /// Has `take` make a snapshot of the space while the tree stands still.
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
