//! Closing files without a request to the server. Owns how a new mount announces that to the
//! kernel.
//!
//! The kernel sends `FLUSH` when a descriptor is closed. Nothing here needs it: a write is complete
//! when it is answered, and locks stay with the kernel. But the kernel sends `FLUSH` until one has
//! been answered with `ENOSYS`. A program that executes another one waits for that answer with its
//! memory locked, and so do `ps` and all programs that read its `/proc/PID`. Neither the answer to
//! `INIT` nor opens that are answered with `ENOSYS` turn `FLUSH` off. So the server has a file of its
//! own closed as soon as the share is mounted. That file is in no tree, so it exists in a full share,
//! too.
//!
//! Another process opens and closes it. One that is killed while it waits for the answer to `FLUSH`
//! ends only when that comes. A server that waited for itself would not end at all, and would keep
//! the lock of its pool.
//!
//! Opens that are sent to the server, where access times are updated, are answered with a flag
//! instead.
//!
//! The thread that mounts calls [`close_first`]; any thread that serves may call the rest.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fuse::{Answer, Attributes, Entry, Errno, Operation, Request, Time};
use share::Tree;

use crate::served::{Served, TTL};
use crate::snapshots::FIRST_CLOSED;

/// The file's name in the root while the server opens it.
const NAME: &str = ".shale-first-closed";

/// Whether the file can currently be found.
#[derive(Default)]
pub(crate) struct Closing {
    is_shown: AtomicBool,
}

impl Closing {
    /// Returns whether a request is for the file.
    pub(crate) fn takes(&self, request: &Request<'_>) -> bool {
        let is_looked_up = || matches!(request.operation, Operation::Lookup { name } if name == NAME.as_bytes());
        request.node == FIRST_CLOSED
            || request.node == Tree::ROOT && is_looked_up() && self.is_shown.load(Ordering::Relaxed)
    }

    /// Answers a request for the file: the look-up, and that it is opened and closed without the
    /// server.
    pub(crate) fn serve(request: &Request<'_>, answer: impl Answer) {
        debug_assert!(!is_own(request.pid), "the server waits for itself");
        if !matches!(request.operation, Operation::Lookup { .. }) {
            return answer.fail(Errno::ENOSYS);
        }
        let none = Time::default();
        let attributes = Attributes {
            inode: FIRST_CLOSED,
            size: 0,
            blocks: 0,
            accessed: none,
            modified: none,
            changed: none,
            mode: libc::S_IFREG | 0o400,
            links: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            device: 0,
            block_bytes: 0,
        };
        let name_valid = Duration::ZERO;
        answer.entry(&Entry { node: FIRST_CLOSED, generation: 0, name_valid, attributes_valid: TTL, attributes });
    }
}

/// Makes the kernel learn that closing needs no `FLUSH`, on a share that was just mounted at `dir`
/// and is served.
pub(crate) fn close_first(served: &Served, dir: &Path) {
    if served.has_access_times {
        return;
    }
    let is_shown = &served.closing.is_shown;
    is_shown.store(true, Ordering::Relaxed);
    let file = dir.join(NAME);
    let closed =
        Command::new("cat").arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    is_shown.store(false, Ordering::Relaxed);
    if let Err(error) = closed {
        log::debug!("{}: the first close of a file there waits for the server: {error}", dir.display());
    }
}

/// Whether a request is of a thread of this process. The kernel names none for `FLUSH`.
fn is_own(thread: u32) -> bool {
    thread != 0 && Path::new("/proc/self/task").join(thread.to_string()).exists()
}
