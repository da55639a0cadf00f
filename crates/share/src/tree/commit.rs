//! Making changes durable.

use std::sync::atomic::Ordering;

use super::Tree;
use crate::failure::{Failure, Result};

impl Tree {
    /// Makes all changes durable that were made before the call. One commit serves all that wait for it.
    ///
    /// # Errors
    /// `ENOSPC`, `EIO`. After an error every operation fails until the share is opened again: what was durable before is.
    pub fn commit(&self) -> Result<()> {
        let wanted = self.state.lock().changes;
        self.commit_up_to(wanted, false)
    }

    /// Commits, and says that the session ended in order. Nothing may be changed any more.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn close(&self) -> Result<()> {
        let wanted = {
            let mut state = self.state.lock();
            state.changes += 1;
            state.changes
        };
        self.commit_up_to(wanted, true)
    }

    fn commit_up_to(&self, wanted: u64, is_last: bool) -> Result<()> {
        let _one = self.committing.lock();
        if self.committed.load(Ordering::Acquire) >= wanted {
            return Ok(());
        }
        let mut state = self.state.lock();
        let reached = state.changes;
        // 1. Data that sizes in this commit show.
        self.space.flush()?;
        // 2. The namespace. Quick repair: opening it after a loss of power, and opening a snapshot, reads no more than its head.
        let (mut transaction, trims) = state.freeze(is_last)?;
        transaction.set_quick_repair(true);
        transaction.commit()?;
        state.thaw(&self.database)?;
        self.committed.store(reached, Ordering::Release);
        // 3. Data that no name shows any more. The next commit flushes that, and then forgets it.
        for (data, from) in trims {
            self.space.discard(data, from..u64::MAX)?;
            state.trim_done(data)?;
        }
        Ok(())
    }

    /// `fsync` of a file or directory.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn sync(&self) -> Result<()> {
        let wanted = self.state.lock().changes;
        if self.committed.load(Ordering::Acquire) >= wanted {
            // The namespace is as the caller knows it; its data may not be.
            return self.space.flush().map_err(Failure::from);
        }
        self.commit_up_to(wanted, false)
    }
}
