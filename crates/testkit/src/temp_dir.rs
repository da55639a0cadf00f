//! Temporary directories.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that is removed with its content when dropped. Must not contain mounts: use
/// [`MountDir`](crate::MountDir) for those.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

/// A path that no other test has, below `$TMPDIR` or `/var/tmp`: not `/tmp`, which may be memory
/// and then behaves like no disk.
pub(crate) fn new_path(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let below = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    below.join(format!("shale-{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
}

impl TempDir {
    /// A new directory.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn new(name: &str) -> Self {
        let path = new_path(name);
        // A leftover of a process of the same number.
        let _ = std::fs::remove_dir_all(&path);
        if let Err(error) = std::fs::create_dir_all(&path) {
            panic!("cannot create {}: {error}", path.display());
        }
        Self { path }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path in it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
