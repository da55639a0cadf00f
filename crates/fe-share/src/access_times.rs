//! Access times by the rule of `relatime`, for shares that have them.
//!
//! The kernel leaves access times to the server of a mount by FUSE, and sends it no read of a
//! cached page. So opens come to the server, and one of a file whose access time is due drops the
//! file's pages: the next read is sent. A program that writes to a file and reads it through the
//! same descriptor moves nothing.

use std::sync::atomic::Ordering;

use fuse::wire::reply::OpenFlags;
use fuse::{Operation, Request};

use crate::moments;
use crate::served::Served;

impl Served {
    /// How a file or directory is opened where access times move: a cached page that is read again
    /// brings no request, so the kernel drops what it has cached of one whose access time is due.
    pub(crate) fn open_flags(&self, request: &Request<'_>) -> Option<OpenFlags> {
        let cache = match request.operation {
            // Closing it waits for no server.
            Operation::Open { .. } => OpenFlags::NO_FLUSH,
            Operation::OpenDirectory { .. } => OpenFlags::CACHE_DIR,
            _ => return None,
        };
        let is_due = !moments::is_elsewhere(request.node) && self.tree.has_old_access(request.node).unwrap_or(false);
        Some(if is_due { cache } else { cache.with(OpenFlags::KEEP_CACHE) })
    }

    /// Moves the access time of a node that is read, if that is due. A share that is full or
    /// damaged can still be read.
    pub(crate) fn note_access(&self, node: u64) {
        if self.has_access_times
            && !self.is_read_only.load(Ordering::Relaxed)
            && let Err(failure) = self.tree.note_access(node)
        {
            log::debug!("the access time of inode {node} cannot be moved: {failure:?}");
        }
    }
}
