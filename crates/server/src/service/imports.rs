//! Imports of trees into shares that are created for them. Owns such a share until it can be mounted.
//!
//! It is mounted when the import has ended. Until then nothing else uses its tree, so a name takes
//! no message of the kernel, and the kernel caches no part of the tree.

use std::collections::BTreeSet;
use std::sync::Arc;

use copy::trees::ShareSink;
use operations::{ImportWish, Reply, Request};
use surface::{DeviceId, Error, ErrorKind, Result};

use super::Service;
use crate::share_files::Opened;
use crate::share_trees::{self, error_of};

/// A share that is not mounted before this is dropped.
struct Unmounted {
    service: Arc<Service>,
    id: DeviceId,
}

impl Drop for Unmounted {
    fn drop(&mut self) {
        if let Some(shares) = self.service.mounted_shares() {
            shares.end_filling(self.id);
        }
    }
}

/// A new share, and its tree.
pub(crate) struct TreeImport {
    name: String,
    opened: Opened,
    unmounted: Unmounted,
}

impl Service {
    /// Creates the share of an import.
    ///
    /// # Errors
    /// Those of the pool; `ReadOnly`. Then there is no new share.
    pub(crate) fn begin_import(self: &Arc<Self>, mut request: Request) -> Result<(TreeImport, Reply)> {
        let _names = self.guard_names(&request);
        let notes = request.spell_out();
        let Request::ImportTree(ImportWish { share, properties }) = request else {
            return Err(Error::new(ErrorKind::Invalid, "not an import of a tree"));
        };
        let make = |filling: &mut BTreeSet<u64>| -> Result<DeviceId> {
            let id = share_trees::create(&self.pool, &share, &properties)?;
            filling.insert(id.0);
            Ok(id)
        };
        let id = match self.mounted_shares() {
            Some(shares) => shares.make_apart(&share, make),
            None => make(&mut BTreeSet::new()),
        }?;
        let unmounted = Unmounted { service: self.clone(), id };
        match self.open_new(id, &share) {
            Ok(opened) => Ok((TreeImport { name: share, opened, unmounted }, Reply::created(id.0).with_notes(notes))),
            Err(error) => {
                if let Err(left) = self.pool.destroy(id, true) {
                    log::warn!("share '{share}', whose import could not begin, cannot be removed: {left}");
                }
                Err(error)
            }
        }
    }

    fn open_new(&self, id: DeviceId, share: &str) -> Result<Opened> {
        let volume = self.pool.volume_of(id)?;
        if volume.is_set_readonly() {
            let text = format!("share '{share}' would have readonly=on: import it without, and set it afterwards");
            return Err(Error::new(ErrorKind::ReadOnly, text));
        }
        share_trees::open_writable(self, volume)
    }
}

impl TreeImport {
    /// Returns a sink for the tree.
    ///
    /// # Errors
    /// Those of the pool.
    pub(crate) fn sink(&self) -> Result<ShareSink> {
        share_trees::sink(&self.unmounted.service, &self.name, self.opened.tree.clone(), false, true)
    }

    /// Closes the tree, of which there is no sink any more. `mounts`: mounts the share as well.
    ///
    /// # Errors
    /// When the tree is not durable.
    pub(crate) fn end(self, mounts: bool) -> Result<()> {
        let Self { name, opened, unmounted } = self;
        let closed = opened.tree.close();
        drop(opened);
        let service = unmounted.service.clone();
        drop(unmounted);
        if mounts {
            service.look_at_shares();
        }
        closed.map_err(|failure| error_of(&name, "its tree cannot be closed", failure))
    }
}
