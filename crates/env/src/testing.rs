//! What the tests of several crates need of the outside world. Not for production code.

mod contract;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::{Mutex, MutexGuard};

pub use contract::map_store_contract;

/// Keeps processes apart from descriptors that they must not have. A process that is being started
/// has a copy of each descriptor of this one until its program is loaded: an exclusive hold
/// outlives its file by that moment, and a mount is busy though all files on it were closed. A test
/// that starts a process holds this until the process has gone on, or has ended. A test that cannot
/// stand a copy holds it for as long as the descriptor is open.
pub fn starting() -> MutexGuard<'static, ()> {
    static STARTING: Mutex<()> = Mutex::new(());
    STARTING.lock()
}

/// A directory that is removed with all that is in it when dropped.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// A new directory below `$TMPDIR` or `/var/tmp`: not `/tmp`, which may be memory and then
    /// behaves like no disk.
    ///
    /// # Panics
    /// When it cannot be made.
    #[allow(clippy::panic)]
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let below = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
        let unique = format!("shale-{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = below.join(unique);
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
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
