//! How mounts of shares end while the server goes on, or with it.

use surface::Result;

use super::{Mounted, Shares, innermost_first, release, wait_for_users};

impl Shares {
    /// Sets the shares that are mounted when they are next brought up to date; empty: all.
    pub fn set_names(&self, names: &[String]) {
        *self.names.lock() = names.to_vec();
    }

    /// Whether any mount has outlived an earlier server.
    pub fn have_resumed(&self) -> bool {
        self.state.lock().mounted.values().any(|share| share.is_resumed)
    }

    /// Unmounts all but those that have outlived an earlier server.
    pub fn end_new(&self) {
        self.end(|share| !share.is_resumed);
    }

    /// Unmounts all that are not in use, until one is.
    ///
    /// # Errors
    /// `InUse`; the others come back when the shares are brought up to date.
    pub fn release(&self) -> Result<()> {
        let mut state = self.state.lock();
        let all = innermost_first(&state.mounted);
        all.iter().try_for_each(|(_, id)| wait_for_users(&state.mounted, *id))?;
        all.iter().try_for_each(|(_, id)| release(&mut state.mounted, *id, false))
    }

    /// Unmounts all. Who has files open is cut off; all that was done to them is kept.
    pub fn stop(&self) {
        self.end(|_| true);
    }

    fn end(&self, is_meant: impl Fn(&Mounted) -> bool) {
        let mut state = self.state.lock();
        for (_, id) in innermost_first(&state.mounted) {
            if !state.mounted.get(&id).is_some_and(&is_meant) {
                continue;
            }
            if let Err(error) = release(&mut state.mounted, id, false) {
                log::warn!("{error}: it is cut off now; all that was done to it is kept");
                let forced = release(&mut state.mounted, id, true);
                forced.err().iter().for_each(|error| log::warn!("{error}"));
            }
        }
    }
}
