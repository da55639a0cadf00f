//! Ends mounts of shares, with the server or while it continues.

use fe_share::OrphanedMount;
use surface::Result;

use super::{Mounted, Shares, innermost_first, release, wait_for_users};

impl Shares {
    /// Sets the shares to mount at the next update; empty: all.
    pub fn set_names(&self, names: &[String]) {
        *self.names.lock() = names.to_vec();
    }

    /// Returns whether any mount has outlived an earlier server.
    pub fn have_resumed(&self) -> bool {
        self.state.lock().mounted.values().any(|share| share.is_resumed)
    }

    /// Unmounts all except those that have outlived an earlier server.
    pub fn end_new(&self) {
        self.end(|share| !share.is_resumed);
    }

    /// Unmounts shares until one is in use.
    ///
    /// # Errors
    /// `InUse`; the others are mounted again at the next update.
    pub fn release(&self) -> Result<()> {
        let mut state = self.state.lock();
        let all = innermost_first(&state.mounted);
        all.iter().try_for_each(|(_, id)| wait_for_users(&state.mounted, *id))?;
        all.iter().try_for_each(|(_, id)| release(&mut state.mounted, *id, false))
    }

    /// Unmounts all. Clients with open files are cut off; all of their completed changes are kept.
    pub fn stop(&self) {
        self.end(|_| true);
        let waiting = std::mem::take(&mut self.state.lock().without_space);
        waiting.into_iter().for_each(|id| self.end_waiting(id));
    }

    /// Ends the mount that waits for a share to be opened, if there is one.
    pub(super) fn end_waiting(&self, id: u64) {
        let Some(slot) = self.kept_by(id) else { return };
        match OrphanedMount::find(&slot) {
            Ok(kept) => kept.into_iter().for_each(OrphanedMount::end),
            Err(error) => log::warn!("{error}"),
        }
    }

    fn end(&self, is_meant: impl Fn(&Mounted) -> bool) {
        let mut state = self.state.lock();
        for (_, id) in innermost_first(&state.mounted) {
            if !state.mounted.get(&id).is_some_and(&is_meant) {
                continue;
            }
            if let Err(error) = release(&mut state.mounted, id, false) {
                log::warn!("{error}: it is cut off now; all completed changes are kept");
                let forced = release(&mut state.mounted, id, true);
                forced.err().iter().for_each(|error| log::warn!("{error}"));
            }
        }
    }
}
