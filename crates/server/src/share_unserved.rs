//! The shares that a server could not mount, each with the reason.

use std::collections::BTreeMap;

use engine::Pool;
use parking_lot::Mutex;
use surface::{DeviceId, Error};

use report::UnservedLine;

/// Reason why a share cannot be mounted.
pub(crate) struct Fault {
    pub(crate) error: Error,
    /// Set if its tree, or the share that contains it, is the cause; otherwise its mount point is.
    pub(crate) is_of_share: bool,
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self { error, is_of_share: false }
    }
}

impl Fault {
    pub(crate) const fn of_share(error: Error) -> Self {
        Self { error, is_of_share: true }
    }
}

/// See the module's text. Reading the list does not wait for shares that are being mounted.
#[derive(Default)]
pub(crate) struct Unserved(Mutex<BTreeMap<u64, String>>);

impl Unserved {
    /// Records that a share could not be mounted. Returns whether that, or the reason, is new.
    pub(crate) fn note(&self, id: u64, why: String) -> bool {
        let mut known = self.0.lock();
        let is_new = known.get(&id) != Some(&why);
        known.insert(id, why);
        is_new
    }

    /// Removes a share that is mounted now.
    pub(crate) fn forget(&self, id: u64) {
        self.0.lock().remove(&id);
    }

    /// Keeps only the shares that should be mounted.
    pub(crate) fn retain(&self, is_wanted: impl Fn(u64) -> bool) {
        self.0.lock().retain(|id, _| is_wanted(*id));
    }

    /// Returns the existing shares among them, by their current names.
    pub(crate) fn lines(&self, pool: &Pool) -> Vec<UnservedLine> {
        let known = self.0.lock().clone();
        let line = |(id, why)| {
            let share = pool.volume_of(DeviceId(id)).ok()?.name();
            Some(UnservedLine { share, why })
        };
        let mut lines: Vec<_> = known.into_iter().filter_map(line).collect();
        lines.sort_unstable_by(|a, b| a.share.cmp(&b.share));
        lines
    }
}
