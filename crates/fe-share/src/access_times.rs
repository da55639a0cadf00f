//! Access times by the rule of `relatime`, for shares that have them. Called by any thread that
//! serves requests.
//!
//! The kernel leaves access times to the server of a FUSE mount, and does not send it reads of
//! cached pages. So opens are sent to the server, and opening a file whose access time is due drops
//! the file's pages: the next read is then sent. A program that writes to a file and reads it
//! through the same descriptor does not update the access time.

use std::sync::atomic::Ordering;

use fuse::wire::reply::OpenFlags;
use fuse::{Operation, Request};

use crate::served::Served;
use crate::snapshots;

impl Served {
    /// Returns the flags with which a file or directory is opened where access times are updated.
    /// If the access time is due, the kernel drops the cached pages, because reading them would
    /// bring no request.
    pub(crate) fn open_flags(&self, request: &Request<'_>) -> Option<OpenFlags> {
        let cache = match request.operation {
            // Closing it needs no request to the server.
            Operation::Open { .. } => OpenFlags::NO_FLUSH,
            Operation::OpenDirectory { .. } => OpenFlags::CACHE_DIR,
            _ => return None,
        };
        let is_due =
            !snapshots::is_in_other_view(request.node) && self.tree.has_old_access(request.node).unwrap_or(false);
        Some(if is_due { cache } else { cache.with(OpenFlags::KEEP_CACHE) })
    }

    /// Updates the access time of a node that is read, if it is due. A failure is ignored: a share
    /// that is full or damaged can still be read.
    pub(crate) fn note_access(&self, node: u64) {
        if self.has_access_times
            && !self.is_read_only.load(Ordering::Relaxed)
            && let Err(failure) = self.tree.note_access(node)
        {
            log::debug!("the access time of inode {node} cannot be updated: {failure:?}");
        }
    }
}
