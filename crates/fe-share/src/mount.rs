//! The life of a share's mount. Owns the thread that serves it and the one that commits from time to time.
//!
//! A mount ends when it is unmounted, from here or from a shell. The tree is closed after the last request was answered.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fuse::mount::{self as kernel_mount, How};
use fuse::{Session, SessionOptions, Transport};
use parking_lot::{Condvar, Mutex};
use rustix::mount::UnmountFlags;
use share::Tree;
use surface::{Error, ErrorKind, Result};

use crate::held::Held;
use crate::served::Served;

/// How a share is mounted.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Threads that take requests from the device; a ring has one for each CPU instead.
    pub threads: usize,
    /// Whether set-user-id programs and device nodes of the share count as such.
    pub allow_suid_and_devices: bool,
    /// What `mount` and `df` show as the source.
    pub source: String,
    /// After how long changes become durable that no `fsync` has asked for.
    pub commit_every: Duration,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            threads: 4,
            allow_suid_and_devices: false,
            source: "shale".to_owned(),
            commit_every: Duration::from_secs(5),
        }
    }
}

/// Whether a mount has ended, for the thread that commits.
#[derive(Default)]
struct End {
    has_come: Mutex<bool>,
    changed: Condvar,
}

/// A mounted share. Dropping it leaves it mounted until it is unmounted from a shell, or the process ends.
pub struct Mount {
    dir: PathBuf,
    serving: JoinHandle<io::Result<()>>,
}

/// Mounts a tree at the directory `dir`. Returns when it can be used. Needs root.
///
/// # Errors
/// [`ErrorKind::NotFound`] or [`ErrorKind::Invalid`] for `dir`, [`ErrorKind::Unsupported`] if this kernel or user cannot mount,
/// [`ErrorKind::Io`] if the kernel fails.
pub fn mount(tree: Arc<Tree>, dir: &Path, options: &MountOptions) -> Result<Mount> {
    let about = |what: &str, error: io::Error| {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::NotADirectory => ErrorKind::Invalid,
            io::ErrorKind::PermissionDenied => ErrorKind::Unsupported,
            _ => ErrorKind::Io,
        };
        Error::with_source(kind, format!("share at {}: {what}", dir.display()), error)
    };
    let dir_path = dir.canonicalize().map_err(|error| about("no such directory: make it first", error))?;
    let served = Arc::new(Served { tree: tree.clone(), held: Held::default(), notifier: OnceLock::new() });
    let first = Transport::best();
    let session = match begin(&served, &dir_path, options, first) {
        Err(error) if first == Transport::Rings => {
            log::warn!("{}: FUSE over io_uring fails ({error}); served without", dir.display());
            begin(&served, &dir_path, options, Transport::Device)
        }
        result => result,
    };
    let session = session?;
    let _ = served.notifier.set(session.notifier());
    let end = Arc::new(End::default());
    let committing = {
        let (tree, end, every) = (tree.clone(), end.clone(), options.commit_every);
        thread::Builder::new().name("share-commit".to_owned()).spawn(move || end.commit_until(&tree, every))
    };
    let committing = committing.map_err(|error| about("cannot start a thread", error))?;
    let serve = move || {
        let result = session.run();
        *end.has_come.lock() = true;
        end.changed.notify_all();
        let _ = committing.join();
        let closed = tree.close().map_err(|failure| io::Error::from_raw_os_error(failure.errno()));
        result.and(closed)
    };
    let serving = thread::Builder::new().name("share-serve".to_owned()).spawn(serve);
    let serving = serving.map_err(|error| about("cannot start a thread", error))?;
    Ok(Mount { dir: dir_path, serving })
}

impl End {
    /// Commits from time to time, until the end.
    fn commit_until(&self, tree: &Tree, every: Duration) {
        fuse::become_io_flusher();
        let mut has_come = self.has_come.lock();
        while !*has_come {
            if self.changed.wait_for(&mut has_come, every).timed_out() {
                parking_lot::MutexGuard::unlocked(&mut has_come, || {
                    if let Err(failure) = tree.commit() {
                        log::error!("the namespace of a share cannot be made durable: {failure:?}");
                    }
                });
            }
        }
    }
}

fn begin(served: &Arc<Served>, dir: &Path, options: &MountOptions, transport: Transport) -> Result<Session<Served>> {
    let how = How {
        source: &options.source,
        allow_other: true,
        allow_exec: true,
        allow_suid_and_devices: options.allow_suid_and_devices,
    };
    let connection = kernel_mount::mount(dir, &how)?;
    let session_options = SessionOptions { transport, threads: options.threads, can_clone: connection.can_clone };
    Session::begin(connection.device, served.clone(), session_options).map_err(|error| {
        let _ = kernel_mount::unmount(dir, UnmountFlags::DETACH);
        Error::from_io(format!("share at {}: cannot be served", dir.display()), error)
    })
}

impl Mount {
    /// Where it is mounted, without symbolic links.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounts, closes the tree, and waits for that.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if a file is open or a process is in it; [`ErrorKind::Io`] if the tree could not be closed.
    pub fn unmount(self) -> Result<()> {
        kernel_mount::unmount(&self.dir, UnmountFlags::empty())?;
        self.wait()
    }

    /// Waits until it is unmounted and the tree is closed.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the connection failed or the tree could not be closed.
    pub fn wait(self) -> Result<()> {
        let about = |error| Error::from_io(format!("share at {}", self.dir.display()), error);
        let ended = self.serving.join().unwrap_or_else(|_| Err(io::Error::other("the thread that serves it panicked")));
        ended.map_err(about)
    }
}
