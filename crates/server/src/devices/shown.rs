//! The volumes that front ends show. While a server changes its front ends, which may fail, those
//! of before are listed, and only what is shown before and after can be opened: neither a change
//! that is refused nor one that is half done opens more than was asked for.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine::Volume;
use operations::names;
use parking_lot::RwLock;
use surface::{BlockDevice, Client, DeviceId, DeviceInfo, DeviceSet, Error, ErrorKind, FolderInfo, Result};

use super::{Devices, is_in};

/// See the module's text.
pub struct Shown {
    devices: Devices,
    names: RwLock<Names>,
}

struct Names {
    now: Set,
    /// Those of a change under way.
    next: Option<Set>,
}

/// Volumes, shares and folders; empty: all.
struct Set(BTreeSet<String>);

impl Set {
    fn of(names: &[String]) -> Self {
        Self(names.iter().cloned().collect())
    }

    fn shows(&self, name: &str) -> bool {
        // A volume's snapshots are shown with it.
        let volume = names::volume_of(name);
        self.0.is_empty() || self.0.iter().any(|name| name == volume || is_in(volume, name))
    }

    /// Returns whether a folder has shown objects, or may have.
    fn leads_to(&self, folder: &str) -> bool {
        let leads_to = |name: &String| is_in(name, folder) || name == folder || is_in(folder, name);
        self.0.is_empty() || self.0.iter().any(leads_to)
    }
}

impl Names {
    fn opens(&self, name: &str) -> bool {
        self.now.shows(name) && self.next.as_ref().is_none_or(|next| next.shows(name))
    }
}

fn check(is_shown: bool, name: &str) -> Result<()> {
    if is_shown {
        return Ok(());
    }
    Err(Error::new(ErrorKind::NotFound, format!("volume '{name}' is not served")))
}

impl Shown {
    pub(super) fn new(devices: Devices, names: &[String]) -> Self {
        Self { devices, names: RwLock::new(Names { now: Set::of(names), next: None }) }
    }

    /// Begins a change to these, or to all if there are none.
    pub fn begin_change(&self, names: &[String]) {
        self.names.write().next = Some(Set::of(names));
    }

    /// Ends a change: shows those that it was for, or those of before. A client keeps other volumes
    /// that it has open.
    pub fn end_change(&self, is_done: bool) {
        let mut names = self.names.write();
        if let Some(next) = names.next.take().filter(|_| is_done) {
            names.now = next;
        }
    }

    fn volume(&self, id: DeviceId) -> Result<Arc<Volume>> {
        let volume = self.devices.pool.volume_of(id)?;
        let name = volume.name();
        check(self.names.read().opens(&name), &name)?;
        Ok(volume)
    }
}

impl DeviceSet for Shown {
    fn list(&self) -> Result<Vec<DeviceInfo>> {
        let mut list = self.devices.pool.list()?;
        let names = self.names.read();
        list.retain(|info| names.now.shows(&info.name));
        Ok(list)
    }

    fn folders(&self) -> Result<Vec<FolderInfo>> {
        let mut folders = DeviceSet::folders(&self.devices.pool)?;
        let names = self.names.read();
        folders.retain(|folder| names.now.leads_to(&folder.name));
        Ok(folders)
    }

    fn find(&self, name: &str) -> Result<DeviceInfo> {
        check(self.names.read().opens(name), name)?;
        self.devices.pool.find(name)
    }

    fn look(&self, id: DeviceId) -> Result<DeviceInfo> {
        let info = self.devices.pool.look(id)?;
        check(self.names.read().now.shows(&info.name), &info.name)?;
        Ok(info)
    }

    fn open(&self, id: DeviceId, client: &Arc<dyn Client>) -> Result<Arc<dyn BlockDevice>> {
        self.devices.open_volume(self.volume(id)?, client)
    }

    fn open_alone(
        &self,
        id: DeviceId,
        client: &Arc<dyn Client>,
        work: &mut dyn FnMut(&dyn BlockDevice) -> Result<()>,
    ) -> Result<Arc<dyn BlockDevice>> {
        self.devices.open_alone(self.volume(id)?, client, work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_under_way_opens_only_what_is_shown_before_and_after() {
        let of = |names: &[&str]| Set::of(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let opens = |now: &[&str], next: Option<&[&str]>| {
            let names = Names { now: of(now), next: next.map(of) };
            ["a", "a@s", "f/b", "ab"].map(|name| names.opens(name))
        };
        assert_eq!(opens(&[], None), [true; 4]);
        assert_eq!(opens(&["a", "f"], None), [true, true, true, false]);
        assert_eq!(opens(&["a"], Some(&[])), [true, true, false, false], "a change to all");
        assert_eq!(opens(&[], Some(&["f"])), [false, false, true, false], "a change from all");
        assert_eq!(opens(&["a"], Some(&["f"])), [false; 4]);
    }
}
