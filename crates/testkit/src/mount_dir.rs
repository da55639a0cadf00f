//! Directories for mounts.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

use crate::temp_dir::new_path;

/// Fails early, naming the missing requirement for a FUSE mount.
///
/// # Panics
/// When the caller is not root, or there is no `/dev/fuse`.
pub fn require_fuse() {
    assert!(rustix::process::geteuid().is_root(), "these tests mount file systems: run them as root");
    let is_device = std::fs::metadata("/dev/fuse").is_ok_and(|found| found.file_type().is_char_device());
    assert!(is_device, "/dev/fuse is missing: load the kernel module fuse, or pass the device to the container");
}

/// A new, empty directory to mount a file system on. Dropped, it takes the mount along that is on
/// it still.
#[derive(Debug)]
pub struct MountDir {
    path: PathBuf,
}

impl MountDir {
    /// A new directory.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn new(name: &str) -> Self {
        loop {
            let path = new_path(name);
            match std::fs::create_dir(&path) {
                Ok(()) => return Self { path },
                // Left by a process of the same number that was killed, maybe with a mount on it.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("cannot create {}: {error}", path.display()),
            }
        }
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

impl Drop for MountDir {
    fn drop(&mut self) {
        let _ = unmount(&self.path, UnmountFlags::DETACH);
        // Never recursively: that would delete the content of a mount.
        let _ = std::fs::remove_dir(&self.path);
    }
}
