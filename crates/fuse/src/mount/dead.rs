//! Mounts whose server was killed: the kernel keeps them, and answers ENOTCONN to whatever is asked
//! of them.
//!
//! One is taken away only if all of this holds; else mounting is refused, as it is over a live one:
//! 1. the directory shows a mount of ours, and of the same source, which is the pool: the caller
//!    has the pool alone;
//! 2. the kernel says at once that the other end is gone. It is asked for what no cache answers, by
//!    a thread of its own: a server that lives and hangs would not answer, and must not be waited
//!    for.

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::kernel as kernel_mount;

/// Mounts that may lie on one another: each start of a server that did not look left one.
const LAYERS_MAX: usize = 16;
/// How long the kernel may take to say that the other end is gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// Takes dead mounts of this source off `dir`.
pub fn take_away(dir: &Path, source: &str) {
    for _ in 0..LAYERS_MAX {
        let is_of_source =
            kernel_mount::source_of(dir).is_some_and(|s| s == source || s == kernel_mount::helper_source(source));
        if !is_of_source || !is_dead(dir) {
            return;
        }
        // Files on it may be open, and loop devices attached: they have lost their server already.
        if let Err(error) = kernel_mount::unmount(dir, UnmountFlags::DETACH) {
            log::warn!("the mount that a killed server left cannot be taken away: {error}");
            return;
        }
        log::warn!("{}: the mount that a killed server left was taken away", dir.display());
    }
}

/// Whether the kernel says that nobody serves what `dir` shows.
fn is_dead(dir: &Path) -> bool {
    let (send, answer) = mpsc::channel();
    let dir = dir.to_owned();
    let asked = thread::Builder::new().name("mount-probe".to_owned()).spawn(move || {
        let flags = AtFlags::STATX_FORCE_SYNC;
        let found = rustix::fs::statx(rustix::fs::CWD, &dir, flags, StatxFlags::BASIC_STATS);
        // Whether anyone still waits for it is all the same.
        let _ = send.send(matches!(found, Err(Errno::NOTCONN)));
    });
    asked.is_ok() && answer.recv_timeout(PATIENCE).unwrap_or(false)
}
