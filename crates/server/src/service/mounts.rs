//! Keeps the mounts and doors of shares in step with changes of the pool.

use std::sync::Arc;

use surface::{Error, ErrorKind, Result};

use super::Service;
use crate::documents;
use crate::exports::{self, Exports};
use crate::share_trees::{self, OF_MOUNTS};
use crate::shares::Shares;
use operations::{Reply, Which};

/// Returns whether a property has no meaning for a volume: it is a door, or concerns the mount of a
/// share.
pub(super) fn is_of_shares(key: &str) -> bool {
    OF_MOUNTS.contains(&key) || doors::Door::of_property(key).is_some()
}

impl Service {
    /// Returns the mounted shares, if the server mounts any.
    pub fn mounted_shares(&self) -> Option<Arc<Shares>> {
        self.shares.lock().clone()
    }

    /// Sets the exports, which follow changes of the pool's properties from now on.
    pub fn set_exports(&self, exports: Arc<Exports>) {
        *self.exports.lock() = Some(exports);
    }

    /// Clears the exports.
    pub fn forget_exports(&self) {
        *self.exports.lock() = None;
    }

    /// Sets properties. Those of doors apply to shares, and are in force when this returns.
    pub(super) fn set(&self, object: Option<&Which>, changes: &[(String, Option<String>)]) -> Result<Reply> {
        let doors: Vec<_> = changes.iter().filter_map(|(key, _)| doors::Door::of_property(key)).collect();
        let name = self.name_if(object)?;
        let name = name.as_deref();
        let meant = object.zip(name).map(|(which, name)| self.meant(which, name));
        if let Some(name) = name
            && let Some((key, _)) = changes.iter().find(|(key, value)| value.is_some() && is_of_shares(key))
        {
            self.refuse_for_volume(name, key)?;
        }
        let exports = self.exports.lock().clone().filter(|_| !doors.is_empty());
        if let Some(exports) = &exports {
            for (key, value) in changes {
                if let Some((door, value)) = doors::Door::of_property(key).zip(value.as_deref()) {
                    exports.check_ports(door, value)?;
                }
            }
        }
        self.pool.set_properties_of(meant, changes)?;
        // Whether snapshots appear in mounted roots may have changed.
        if let Some(shares) = self.mounted_shares().filter(|_| changes.iter().any(|(key, _)| key == "snapdir")) {
            shares.close_snapshots(true);
        }
        if let Some(shares) = self.mounted_shares().filter(|_| changes.iter().any(|(key, _)| key == policy::READONLY)) {
            shares.follow_readonly();
        }
        let Some(exports) = exports else {
            let is_served = !doors.is_empty() && self.served.lock().is_some();
            let mut notes = if is_served { exports::unserved_notes(changes) } else { Vec::new() };
            notes.extend(self.later_mounts(changes));
            notes.extend(self.quota_note(name, changes));
            return self.properties(name, notes).map(Reply::Properties);
        };
        if let Some(fault) = exports.change(&doors, name).first() {
            let text = format!("the property is set, but not in force: {} (see shale exports --check)", fault.text);
            return Err(Error::new(ErrorKind::Io, text));
        }
        let notes = exports.notes(changes).into_iter().chain(self.later_mounts(changes));
        let notes = notes.chain(self.quota_note(name, changes)).collect();
        self.properties(name, notes).map(Reply::Properties)
    }

    /// Returns notes on properties that mounts keep as they are.
    fn later_mounts(&self, changes: &[(String, Option<String>)]) -> Vec<String> {
        let is_mounted = self.mounted_shares().is_some_and(|shares| !shares.mounted().is_empty());
        let of_mounts = changes.iter().filter(|(key, _)| is_mounted && OF_MOUNTS.contains(&key.as_str()));
        let note = |(key, value): &(String, Option<String>)| {
            let ends = key == policy::XATTR && value.as_deref() == Some("off");
            let ends = if ends { "; SMB will not serve it then" } else { "" };
            format!("'{key}' takes effect at the next mount of a share{ends}")
        };
        of_mounts.map(note).collect()
    }

    /// Returns a note on a quota below the space already used.
    fn quota_note(&self, name: Option<&str>, changes: &[(String, Option<String>)]) -> Option<String> {
        changes.iter().find(|(key, _)| key == "quota")?;
        let used = self.pool.quota_use(name?).filter(|used| used.stored_bytes > used.quota_bytes)?;
        Some(documents::quota_line(used).words())
    }

    /// Fails for a volume: it has no files.
    fn refuse_for_volume(&self, name: &str, key: &str) -> Result<()> {
        if self.pool.is_folder(name) || self.pool.volume(name)?.is_share() {
            return Ok(());
        }
        let text = format!("'{name}' is a volume: '{key}' is a property of shares, of folders and of the pool");
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// Updates mounts and doors for new and removed shares, if the server mounts and exports any.
    /// Returns when clients see the result.
    pub fn look_at_shares(&self) {
        self.look_at_mounts();
        let exports = self.exports.lock().clone();
        if let Some(exports) = exports {
            exports.follow();
        }
    }

    /// Mounts new shares, and unmounts removed ones; the doors follow by themselves. For the
    /// server's own thread, which waits for no server of a protocol.
    pub fn look_at_mounts(&self) {
        let shares = self.shares.lock().clone();
        if let Some(shares) = shares {
            shares.close_snapshots(true);
            shares.bring_up_to_date().iter().for_each(|line| log::warn!("{line}"));
        }
    }

    /// Checks that the pool would roll back to all of these snapshots.
    pub(super) fn check_rollback(&self, snapshots: &[String], recursive: bool) -> Result<()> {
        snapshots.iter().try_for_each(|snapshot| {
            let checked = self.pool.check_rollback(&**snapshot, recursive);
            checked
                .map_err(|error| if snapshots.len() > 1 { error.context(format_args!("'{snapshot}'")) } else { error })
        })
    }

    /// Runs `work` on volumes or shares, or on folders with shares, none of which is mounted
    /// meanwhile.
    pub(super) fn unmounted<T>(&self, names: &[&str], force: bool, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let shares = self.shares.lock().clone();
        // Snapshots and bookmarks are removed while the share stays mounted; new trees are opened
        // on demand.
        shares.iter().for_each(|shares| shares.close_snapshots(false));
        if names.iter().all(|name| name.contains(['@', '#'])) {
            return work();
        }
        let Some(shares) = shares else {
            // A job or a command may have the tree open, without any mount.
            let _claims = share_trees::claim_all(&self.pool, names)?;
            return work();
        };
        let exports = self.exports.lock().clone();
        let withdrawn: Vec<_> =
            exports.iter().flat_map(|exports| names.iter().map(|name| exports.withdraw(name))).collect();
        let (was_mounted, done) = shares.without(names, force, work);
        drop(withdrawn);
        // Some shares of a folder may have been unmounted before another one failed.
        if was_mounted {
            self.look_at_shares();
        } else if let Some(exports) = exports {
            exports.follow();
        }
        done
    }
}
