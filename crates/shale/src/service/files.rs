//! Requests about the files of shares: which tree they mean, mounted or not.

use std::sync::Arc;

use engine::{Meant, RecompressReport, Volume};
use surface::{Error, ErrorKind, Result};

use super::Service;
use crate::share_files::Opened;
use crate::share_trees;

impl Service {
    /// The tree of a share as it is now, or of a snapshot of one, to be looked at.
    pub(super) fn opened(&self, share: &str) -> Result<Opened> {
        let volume = self.pool.volume(share)?;
        let shares = self.shares.lock().clone();
        if let Some(opened) = shares.and_then(|shares| shares.opened(volume.id())) {
            return Ok(opened);
        }
        let moment = share_trees::open_moment(volume.clone(), volume)?;
        Ok(Opened::new(Arc::new(moment.tree), moment.files))
    }

    /// Works on the tree of a share, be it mounted or not.
    pub(crate) fn with_writable<T>(&self, volume: &Arc<Volume>, work: impl FnOnce(&Opened) -> Result<T>) -> Result<T> {
        let open = || share_trees::open_writable(self, volume.clone());
        let shares = self.shares.lock().clone();
        // Whether it is mounted, and its opening if it is not, are one: no mount may come between.
        let opened = match &shares {
            Some(shares) => shares.opened_or(volume.id(), open),
            None => open().map(|opened| (opened, true)),
        };
        let (opened, is_own) = opened?;
        let done = work(&opened);
        if !is_own {
            return done;
        }
        let closed = opened.tree.close();
        closed.map_err(|failure| share_trees::error_of(&volume.name(), "its tree cannot be closed", failure)).and(done)
    }

    /// Recompresses a slice of a volume, or of a share or a part of one.
    pub(crate) fn recompress(
        &self,
        volume: Meant<'_>,
        path: Option<String>,
        mode: Option<&str>,
        (bytes, restart): (u64, bool),
    ) -> Result<RecompressReport> {
        let volume = self.pool.volume_meant(volume)?;
        if volume.is_share() {
            let path = path.unwrap_or_default();
            return self.recompressing.slice(self, &volume, &path, mode, (bytes, restart));
        }
        if path.is_some() {
            let name = volume.name();
            let text = format!("'{name}' is a volume, which has no files: leave the path out");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.pool.recompress(volume.id(), mode, bytes, restart)
    }
}
