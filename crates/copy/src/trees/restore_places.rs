//! The places that a tree is restored to: a share's tree that is not mounted, and a mounted one.
//! The kernel caches names of a mounted share for good, so that a restore changes that one through
//! its mount only.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;
use share::{Failure, Tree};
use surface::{Error, ErrorKind, Result};

use super::restore::Place;
use super::split;
use operations::path_error;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// A share's tree that is not mounted.
pub struct TreePlace(pub Arc<Tree>);

fn number(failure: Failure) -> i32 {
    failure.errno()
}

impl Place for TreePlace {
    type Directory = u64;

    fn root(&self) -> std::result::Result<u64, i32> {
        Ok(Tree::ROOT)
    }

    fn enter(&self, directory: &u64, name: &[u8]) -> std::result::Result<u64, i32> {
        let (node, inode) = self.0.lookup(*directory, name).map_err(number)?;
        if inode.is_directory() { Ok(node) } else { Err(libc::ENOTDIR) }
    }

    fn kind(&self, directory: &u64, name: &[u8]) -> std::result::Result<Option<u32>, i32> {
        match self.0.lookup(*directory, name) {
            Ok((_, inode)) => Ok(Some(inode.kind())),
            Err(failure) if failure.errno() == libc::ENOENT => Ok(None),
            Err(failure) => Err(failure.errno()),
        }
    }

    fn names(&self, directory: &u64) -> std::result::Result<Vec<Vec<u8>>, i32> {
        let (names, lost) = self.0.names(*directory);
        lost.map_or_else(|| Ok(names.into_iter().map(|listed| listed.name).collect()), |lost| Err(lost.errno()))
    }

    fn rename(&self, from: (&u64, &[u8]), to: (&u64, &[u8]), replaces: bool) -> std::result::Result<(), i32> {
        let old = if replaces { self.0.lookup(*to.0, to.1).ok().map(|(node, _)| node) } else { None };
        let flags = if replaces { 0 } else { libc::RENAME_NOREPLACE };
        self.0.rename(*from.0, from.1, *to.0, to.1, flags).map_err(number)?;
        old.map_or(Ok(()), |node| self.0.forget(node).map_err(number))
    }

    fn remove(&self, directory: &u64, name: &[u8], is_directory: bool) -> std::result::Result<(), i32> {
        let removed = match is_directory {
            true => self.0.remove_directory(*directory, name),
            false => self.0.unlink(*directory, name),
        };
        removed.and_then(|node| self.0.forget(node)).map_err(number)
    }

    fn sync(&self) -> std::result::Result<(), i32> {
        self.0.commit().map_err(number)
    }
}

/// A mounted share.
pub struct MountPlace(OwnedFd);

impl MountPlace {
    /// At a directory.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        let root = rustix::fs::open(path, DIRECTORY, Mode::empty());
        root.map(Self).map_err(|error| path_error("cannot open", path, error.into()))
    }

    /// At the directory of a share.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if no share is mounted there any more: its files would come to the
    /// directory below.
    pub fn of_share(path: &Path) -> Result<Self> {
        let place = Self::open(path)?;
        let found = rustix::fs::fstatfs(&place.0).map_err(|error| path_error("cannot look at", path, error.into()))?;
        if found.f_type == libc::FUSE_SUPER_MAGIC {
            return Ok(place);
        }
        let text = format!("no share is mounted at {} any more: restore again", path.display());
        Err(Error::new(ErrorKind::NotFound, text))
    }

    /// Has the kernel look a path up again, whatever it has cached of the last name. A path that is
    /// not there, or leads to another share, is left alone.
    pub fn look_up_again(&self, path: &[u8]) {
        let (directory, name) = split(path);
        let directory = if directory.is_empty() { b"." } else { directory };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let Ok(directory) = rustix::fs::openat2(&self.0, directory, flags, Mode::empty(), within) else { return };
        // A name for a new link is not taken from the cache, and no directory can be linked.
        let _ = rustix::fs::linkat(&self.0, ".", directory, name, AtFlags::empty());
    }

    /// The same directory as a path, whatever is mounted or unmounted meanwhile.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

fn raw(error: Errno) -> i32 {
    error.raw_os_error()
}

impl Place for MountPlace {
    type Directory = OwnedFd;

    fn root(&self) -> std::result::Result<OwnedFd, i32> {
        self.0.as_fd().try_clone_to_owned().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    }

    fn enter(&self, directory: &OwnedFd, name: &[u8]) -> std::result::Result<OwnedFd, i32> {
        rustix::fs::openat(directory, name, DIRECTORY, Mode::empty()).map_err(raw)
    }

    fn kind(&self, directory: &OwnedFd, name: &[u8]) -> std::result::Result<Option<u32>, i32> {
        match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(found.st_mode & libc::S_IFMT)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(raw(error)),
        }
    }

    fn names(&self, directory: &OwnedFd) -> std::result::Result<Vec<Vec<u8>>, i32> {
        let entries = Dir::read_from(directory).map_err(raw)?;
        let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_bytes().to_vec()).map_err(raw));
        let names: Vec<_> = names.collect::<std::result::Result<_, _>>()?;
        Ok(names.into_iter().filter(|name: &Vec<u8>| name != b"." && name != b"..").collect())
    }

    fn rename(&self, from: (&OwnedFd, &[u8]), to: (&OwnedFd, &[u8]), replaces: bool) -> std::result::Result<(), i32> {
        let flags = if replaces { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        rustix::fs::renameat_with(from.0, from.1, to.0, to.1, flags).map_err(raw)
    }

    fn remove(&self, directory: &OwnedFd, name: &[u8], is_directory: bool) -> std::result::Result<(), i32> {
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        rustix::fs::unlinkat(directory, name, flags).map_err(raw)
    }

    fn sync(&self) -> std::result::Result<(), i32> {
        // For syncfs the kernel writes back the pages of a FUSE mount, and does not ask its server,
        // unlike for a directory.
        rustix::fs::syncfs(&self.0).and_then(|()| rustix::fs::fsync(&self.0)).map_err(raw)
    }
}
