//! The lock that reserves a pool for one process.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// Name of the lock file in the pool's directory. It stays after the lock is released, except when
/// creating the pool is abandoned.
const FILE_NAME: &str = "lock";

/// An exclusive lock on a pool's directory, held until dropped or until the process ends, however
/// it ends.
#[derive(Debug)]
pub struct PoolLock {
    file: File,
}

impl PoolLock {
    /// Takes the lock.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] when another process holds it; the message names that process.
    pub fn acquire(pool: &Path) -> std::io::Result<Self> {
        loop {
            let lock = Self::acquire_once(pool)?;
            // A process that gives up a pool in the making removes the file while holding it: then
            // the lock is that of another file.
            if lock.file.metadata()?.nlink() > 0 {
                return Ok(lock);
            }
        }
    }

    fn acquire_once(pool: &Path) -> std::io::Result<Self> {
        let path: PathBuf = pool.join(FILE_NAME);
        let failed = |e: Error| Error::new(e.kind(), format!("cannot lock {}: {e}", path.display()));
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        match try_hold(&file) {
            Ok(true) => {}
            Ok(false) => {
                let mut holder = String::new();
                // The holder may not have written its process id yet: then the message is less
                // precise, nothing worse.
                let named = file.read_to_string(&mut holder).is_ok() && holder.trim().parse::<u32>().is_ok();
                let by = if named { format!("process {}", holder.trim()) } else { "another process".to_owned() };
                return Err(Error::new(ErrorKind::WouldBlock, format!("pool {} is in use by {by}", pool.display())));
            }
            Err(error) => return Err(failed(error.into())),
        }
        // Without the process id a later message is less precise, nothing worse. A full file system
        // rejects the write, and is where the lock is needed most: for operations that free space.
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self { file })
    }
}

impl Drop for PoolLock {
    fn drop(&mut self) {
        // So that an old number is not taken for a holder.
        let _ = self.file.set_len(0);
        release(&self.file);
    }
}

/// Takes the exclusive lock of an open file, if no process has it.
///
/// # Errors
/// Of flock, also where the file system has no locks.
pub fn try_hold(file: &File) -> Result<bool, Errno> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives the lock back. Closing the file is not enough: it gives the lock back with the last copy
/// of the descriptor, and a process that another thread just starts has one until its program is
/// loaded.
pub(crate) fn release(file: &File) {
    // The error has no receiver, and the end of the process unlocks it too.
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::TempDir;

    #[test]
    fn a_held_lock_names_its_holder_and_a_dropped_one_is_free() {
        let dir = TempDir::new("lock");
        let held = PoolLock::acquire(dir.path()).unwrap();
        let error = PoolLock::acquire(dir.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        drop(held);
        drop(PoolLock::acquire(dir.path()).unwrap());
    }

    /// Failed occasionally when one test started a process while another released a lock.
    #[test]
    fn a_copy_of_the_descriptor_in_a_new_process_does_not_hold() {
        let dir = TempDir::new("lock-copy");
        let held = PoolLock::acquire(dir.path()).unwrap();
        let copy = held.file.try_clone().unwrap();
        drop(held);
        drop(PoolLock::acquire(dir.path()).unwrap());
        drop(copy);
    }

    #[test]
    fn a_number_left_by_a_crash_does_not_hold() {
        let dir = TempDir::new("lock-stale");
        std::fs::write(dir.path().join(FILE_NAME), "4000000000\n").unwrap();
        drop(PoolLock::acquire(dir.path()).unwrap());
    }

    /// Not even the commands that rescue data from a full file system could be started.
    #[test]
    fn a_full_file_system_does_not_keep_the_lock_from_anybody() {
        use std::process::{Command, Stdio};
        let dir = TempDir::new("lock-full");
        let ended = |command: &mut Command| {
            let _alone = testkit::starting();
            command.stderr(Stdio::null()).status().unwrap().success()
        };
        if !ended(Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "none"]).arg(dir.path())) {
            eprintln!("skipped: cannot mount a tmpfs");
            return;
        }
        drop(PoolLock::acquire(dir.path()).unwrap());
        std::fs::write(dir.path().join("filler"), [7; 128 << 10]).unwrap_err();
        let held = PoolLock::acquire(dir.path());
        let error = PoolLock::acquire(dir.path()).map(drop);
        let is_held = held.map(drop);
        assert!(ended(Command::new("umount").arg(dir.path())));
        is_held.unwrap();
        assert_eq!(error.unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn a_missing_directory_is_named() {
        let dir = TempDir::new("lock-missing");
        let error = PoolLock::acquire(&dir.path().join("nowhere")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("nowhere"), "{error}");
    }
}
