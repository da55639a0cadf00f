//! Lists the clients that a change would disturb. Owns nothing, and changes nothing.

use std::path::Path;

use fe_fuse::Stack;
use operations::{Request, Which, names};
use report::{AffectedLine, ObjectChange};
use surface::{BlockDevice, Error, ErrorKind, Result};

use super::Service;
use crate::devices::is_in;

impl Service {
    /// Lists the open objects that a request would take from their clients, or change under them.
    pub(super) fn preview(&self, request: &Request) -> Result<Vec<AffectedLine>> {
        let mut affected = Vec::new();
        for (name, change) in self.changed_by(request)? {
            affected.extend(self.affected(name, change));
        }
        Ok(affected)
    }

    /// Returns the names of volumes and snapshots that a request changes.
    fn changed_by(&self, request: &Request) -> Result<Vec<(String, ObjectChange)>> {
        match request {
            Request::Destroy { object, recursive, .. } => self.destroyed_by(object, *recursive),
            Request::Rollback { snapshots, recursive, .. } => {
                let titles = self.names_of(snapshots)?;
                self.check_rollback(&titles, *recursive)?;
                let mut changed = Vec::new();
                for title in titles {
                    changed.extend(self.rolled_back_by(&title, *recursive)?);
                }
                Ok(changed)
            }
            // Without `shrink`, a request that would cut data off is refused.
            Request::Resize { object, size_bytes, shrink: true, .. } => {
                let volume = self.volume(object)?;
                let is_smaller = *size_bytes < volume.size_bytes();
                Ok(is_smaller.then(|| (volume.name(), ObjectChange::Shrunk)).into_iter().collect())
            }
            Request::Preview { .. } => {
                Err(Error::new(ErrorKind::Invalid, "a preview of a preview is impossible: specify another request"))
            }
            Request::Receive(wish) => Ok(vec![(wish.volume.clone(), ObjectChange::Received)]),
            _ => Ok(Vec::new()),
        }
    }

    pub(super) fn destroyed_by(&self, object: &Which, recursive: bool) -> Result<Vec<(String, ObjectChange)>> {
        let name = self.name_of(object)?;
        // No client has a bookmark open. Its existence is checked when it is destroyed.
        if name.contains('#') {
            return Ok(Vec::new());
        }
        self.pool.check_destroy(self.meant(object, &name), recursive)?;
        let is_going = |other: &str| other == name || recursive && is_in(other, &name);
        let mut going = vec![];
        if name.contains('@') {
            going.push(name);
        } else {
            going.extend(self.pool.volumes().into_iter().map(|volume| volume.name).filter(|other| is_going(other)));
            let snapshots = if recursive { self.pool.snapshots(None)? } else { Vec::new() };
            let titles = snapshots.into_iter().filter(|snapshot| is_going(&snapshot.volume));
            going.extend(titles.map(|snapshot| format!("{}@{}", snapshot.volume, snapshot.name)));
        }
        Ok(going.into_iter().map(|name| (name, ObjectChange::Destroyed)).collect())
    }

    fn rolled_back_by(&self, title: &str, recursive: bool) -> Result<Vec<(String, ObjectChange)>> {
        let volume = names::volume_of(title);
        let mut changed = vec![(volume.to_owned(), ObjectChange::RolledBack)];
        if recursive {
            let id = self.pool.volume(title)?.id();
            // Oldest first.
            let newer = self.pool.snapshots(Some(volume))?.into_iter().skip_while(|one| one.id != id).skip(1);
            changed.extend(newer.map(|one| (format!("{volume}@{}", one.name), ObjectChange::Destroyed)));
        }
        Ok(changed)
    }

    /// Returns the clients of a volume or a snapshot; `None` if it has none.
    fn affected(&self, name: String, change: ObjectChange) -> Option<AffectedLine> {
        let (clients, client_names) = self.devices.named_clients(&name);
        let id = self.pool.volume(&name).ok().filter(|_| clients > 0)?.id().0;
        let mount = self.served.lock().as_ref().and_then(|served| served.mount.clone());
        let stack = mount.map(|mount| Stack::above(&Path::new(&mount).join(&name)));
        let mounts = stack.into_iter().flat_map(|stack| stack.mounts).map(|path| path.display().to_string()).collect();
        Some(AffectedLine { id, name, change, clients, client_names, mounts })
    }
}
