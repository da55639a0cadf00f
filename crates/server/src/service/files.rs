//! Requests about the files of shares, and the choice of their tree, mounted or not.

use std::path::Path;
use std::sync::Arc;

use engine::{RecompressReport, Volume, VolumeRef};
use surface::{Error, ErrorKind, Result};

use super::Service;
use crate::share_browse::{self, FilePlace, Part};
use crate::share_files::Opened;
use crate::share_trees;
use operations::{Caller, Reply, Request, Which};
use report::{FileReport, FileVersion};

impl Service {
    /// Opens the current tree of a share, or that of a snapshot, for reading.
    pub(crate) fn opened(&self, share: &str) -> Result<Opened> {
        let volume = self.pool.volume(share)?;
        let shares = self.shares.lock().clone();
        if let Some(opened) = shares.and_then(|shares| shares.opened(volume.id())) {
            return Ok(opened);
        }
        let moment = share_trees::open_moment(volume.clone(), volume)?;
        Ok(Opened::new(Arc::new(moment.tree), moment.files))
    }

    /// Returns the share that contains a path, and the path in it: a share in the named one holds
    /// the files below its directory. The path may begin with the mount point.
    pub(crate) fn place_of(&self, share: &str, path: &str) -> (String, String) {
        let mounted = self.mounted_shares().map(|shares| shares.dir().join(share));
        let in_mount = mounted.as_deref().and_then(|dir| Path::new(path).strip_prefix(dir).ok());
        let path = in_mount.map_or(path, |path| path.to_str().unwrap_or_default());
        let mut found = (share.to_owned(), path.to_owned());
        if share.contains('@') {
            // A snapshot contains no other shares.
            return found;
        }
        let names: Vec<_> = path.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
        for depth in 1..=names.len() {
            let inner = format!("{share}/{}", names[..depth].join("/"));
            match self.pool.volume(&inner) {
                Ok(volume) if volume.is_share() => found = (inner, names[depth..].join("/")),
                _ => break,
            }
        }
        found
    }

    /// Returns the share of a request, or the snapshot of one.
    pub(crate) fn share_meant(&self, object: &Which) -> Result<Arc<Volume>> {
        let volume = self.volume(object)?;
        if volume.is_share() {
            return Ok(volume);
        }
        let text = format!("'{}' is a volume, which has no files: specify a share", volume.name());
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// Returns a path of a share, or of a snapshot of one, for listing or reading.
    pub(super) fn file_place(self: &Arc<Self>, object: &Which, path: &str, at: Option<&str>) -> Result<FilePlace> {
        share_browse::check_path(path)?;
        let name = self.share_meant(object)?.name();
        let title = at.map_or_else(|| name.clone(), |at| format!("{name}@{at}"));
        let (share, path) = self.place_of(&title, path);
        Ok(FilePlace { opened: self.opened(&share)?, share, path })
    }

    /// Reads a part of a file. The caller's role is checked, as for any operation.
    ///
    /// # Errors
    /// `Denied`, `Conflict` if the file has another version, and those of the pool.
    pub(crate) fn read_file(
        self: &Arc<Self>,
        caller: &Caller,
        object: Which,
        path: String,
        at: Option<String>,
        part: &Part,
    ) -> Result<(FileVersion, Vec<u8>)> {
        self.guarded(caller, Request::FileVersion { object, path, at }, |request| match request {
            Request::FileVersion { ref object, ref path, ref at } => {
                let place = {
                    let _names = self.guard_names(&request);
                    self.file_place(object, path, at.as_deref())?
                };
                share_browse::read(&place, part)
            }
            other => Err(Error::new(ErrorKind::Invalid, format!("'{}' does not read a file", other.about().op()))),
        })
    }

    /// Reports how a file is stored, and why; under the path of the request.
    pub(super) fn explain_file(&self, share: &str, path: String) -> Result<Reply> {
        let (share, in_share) = self.place_of(share, &path);
        let report = self.opened(&share)?.explain(&share, &in_share)?;
        let absent_xattrs = share_trees::absent_xattrs(&self.pool, operations::names::volume_of(&share))?;
        Ok(Reply::File(Box::new(FileReport { path, absent_xattrs, ..report })))
    }

    /// Passes the tree of a share to `work`, whether it is mounted or not.
    pub(crate) fn with_writable<T>(&self, volume: &Arc<Volume>, work: impl FnOnce(&Opened) -> Result<T>) -> Result<T> {
        let open = || share_trees::open_writable(self, volume.clone());
        let shares = self.shares.lock().clone();
        // Checking for a mount and opening the tree are one step: no mount may come between.
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
        volume: VolumeRef<'_>,
        path: Option<String>,
        mode: Option<&str>,
        (bytes, restart): (u64, bool),
    ) -> Result<RecompressReport> {
        let volume = self.pool.volume_by_ref(volume)?;
        if volume.is_share() {
            let path = path.unwrap_or_default();
            return self.recompressing.slice(self, &volume, &path, mode, (bytes, restart));
        }
        if path.is_some() {
            let name = volume.name();
            let text = format!("'{name}' is a volume, which has no files: omit the path");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.pool.recompress(volume.id(), mode, bytes, restart)
    }

    /// Ends the recompression: no slice follows.
    pub(crate) fn end_recompression(&self) {
        self.recompressing.end();
    }
}
