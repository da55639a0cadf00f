//! Mounts whose server was killed: the kernel keeps them, and answers every request to them with
//! ENOTCONN. Owns the decision to detach one; called by the thread that mounts.
//!
//! A mount is detached only if both of these hold; otherwise mounting is refused, as it is over a
//! live mount:
//! 1. the directory shows a mount of Shale with the same source, which is the pool: the caller has
//!    exclusive use of the pool;
//! 2. the kernel reports at once that the server is gone. A separate thread makes a request that no
//!    cache answers: a server that is alive but hangs would not answer, and must not be waited for.

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::kernel as kernel_mount;

/// Mounts that may be stacked: each start of a server that did not check left one.
const LAYERS_MAX: usize = 16;
/// Time for the kernel to report that the server is gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// Detaches dead mounts of this source from `dir`.
pub fn detach_dead(dir: &Path, source: &str) {
    for _ in 0..LAYERS_MAX {
        let is_of_source =
            kernel_mount::source_of(dir).is_some_and(|s| s == source || s == kernel_mount::helper_source(source));
        if !is_of_source || !is_dead(dir) {
            return;
        }
        // Open files and loop devices on it have already lost their server.
        if let Err(error) = kernel_mount::unmount(dir, UnmountFlags::DETACH) {
            log::warn!("cannot detach the mount that a killed server left: {error}");
            return;
        }
        log::warn!("{}: detached the mount that a killed server left", dir.display());
    }
}

/// Returns whether the kernel reports that no server answers for `dir`.
fn is_dead(dir: &Path) -> bool {
    let (send, answer) = mpsc::channel();
    let dir = dir.to_owned();
    let asked = thread::Builder::new().name("mount-probe".to_owned()).spawn(move || {
        let flags = AtFlags::STATX_FORCE_SYNC;
        let found = rustix::fs::statx(rustix::fs::CWD, &dir, flags, StatxFlags::BASIC_STATS);
        // The receiver may have timed out.
        let _ = send.send(matches!(found, Err(Errno::NOTCONN)));
    });
    asked.is_ok() && answer.recv_timeout(PATIENCE).unwrap_or(false)
}
