//! The file that a version is copied to. Owns its state after a failed copy: there is none, or the
//! old one, because the copy has another name until it is complete and durable. Bytes are written
//! in no order, so an incomplete copy may be as long as a complete one.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use surface::{Error, ErrorKind};

use operations::{Outcome, path_error};

/// Kind of target.
#[derive(Debug)]
enum Place {
    Stdout,
    /// A device, a pipe or similar: written in place.
    Device,
    /// Written as `half`, and renamed to `path`. `is_new`: nothing may be there then.
    File {
        half: PathBuf,
        path: PathBuf,
        is_new: bool,
    },
}

/// An open target.
#[derive(Debug)]
pub struct Target {
    pub file: File,
    place: Place,
}

impl Target {
    /// Opens it: `-` is stdout. With `force` an existing file is replaced.
    pub fn create(path: &Path, force: bool) -> Outcome<Self> {
        if path == Path::new("-") {
            let file = host::stdout().map_err(|error| Error::from_io("cannot write to stdout", error))?;
            return Ok(Self { file, place: Place::Stdout });
        }
        let failed = |error| path_error("cannot create", path, error);
        let about = match std::fs::metadata(path) {
            Ok(about) if force => about,
            Ok(_) => {
                let why = format!("{} exists; overwrite it with --force", path.display());
                return Err(Error::new(ErrorKind::Exists, why).into());
            }
            Err(_) if path.is_symlink() => {
                let aim = std::fs::read_link(path).unwrap_or_default();
                let why = format!(
                    "{} is a symbolic link to {}, which does not exist: remove the link, or specify the file to write",
                    path.display(),
                    aim.display()
                );
                return Err(Error::new(ErrorKind::Exists, why).into());
            }
            Err(_) => return Self::half(path.to_owned(), true),
        };
        if !about.is_file() {
            let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
            return Ok(Self { file, place: Place::Device });
        }
        // The target of a link is replaced, and not the link.
        let target = Self::half(path.canonicalize().map_err(failed)?, false)?;
        // Only root may keep the owner of another user's file.
        let _ = fchown(&target.file, Some(about.uid()), Some(about.gid()));
        match target.file.set_permissions(about.permissions()) {
            Ok(()) => Ok(target),
            Err(error) => {
                target.abandon();
                Err(failed(error).into())
            }
        }
    }

    /// Creates the file that becomes `path`.
    fn half(path: PathBuf, is_new: bool) -> Outcome<Self> {
        let half = path.with_file_name(format!(".shale-get-{}-{}", std::process::id(), host::unix_s()));
        let what = format!("cannot create the file that becomes {} once it is complete, as", path.display());
        let file = OpenOptions::new().write(true).create_new(true).open(&half);
        let file = file.map_err(|error| path_error(&what, &half, error))?;
        Ok(Self { file, place: Place::File { half, path, is_new } })
    }

    /// Returns whether it reads as zeroes where nothing is written.
    pub fn is_sparse(&self) -> bool {
        matches!(self.place, Place::File { .. })
    }

    /// Returns whether it is the standard output.
    pub fn is_stdout(&self) -> bool {
        matches!(self.place, Place::Stdout)
    }

    /// Makes it durable, and a new file `len` bytes long and visible under its name.
    pub fn finish(&self, len: u64) -> std::io::Result<()> {
        match &self.place {
            Place::Stdout => Ok(()),
            // A device and a pipe have no settable length, and some cannot be synced.
            Place::Device => match self.file.sync_all() {
                Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Ok(()),
                done => done,
            },
            Place::File { half, path, is_new } => {
                self.file.set_len(len)?;
                self.file.sync_all()?;
                let renamed = if *is_new { rename_to_new(half, path) } else { std::fs::rename(half, path) };
                renamed.and_then(|()| sync_directory_of(path))
            }
        }
    }

    /// Removes an incomplete file; returns the words for a message.
    pub fn abandon(&self) -> &'static str {
        match &self.place {
            Place::Stdout => "",
            Place::Device => "; the file is incomplete",
            Place::File { half, is_new, .. } if std::fs::remove_file(half).is_ok() && !is_new => {
                "; the old file is unchanged"
            }
            Place::File { .. } => "",
        }
    }
}

/// Makes a file's name durable, where that is possible.
fn sync_directory_of(path: &Path) -> std::io::Result<()> {
    match host::sync_directory(path.parent().unwrap_or(Path::new(""))) {
        // A directory may be writable only, and some file systems sync none.
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::InvalidInput) =>
        {
            Ok(())
        }
        done => done,
    }
}

/// Renames a file unless there is one under the new name.
fn rename_to_new(from: &Path, to: &Path) -> std::io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not all file systems can (NFS).
        Err(Errno::INVAL) if to.symlink_metadata().is_err() => std::fs::rename(from, to),
        renamed => Ok(renamed?),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn an_old_file_is_as_it_was_until_the_new_one_is_complete() {
        let dir = testkit::TempDir::new("get-target");
        let (old, link) = (dir.join("old"), dir.join("link"));
        std::fs::write(&old, "old content").unwrap();
        std::fs::set_permissions(&old, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("old", &link).unwrap();
        for path in [&old, &link] {
            let mut target = Target::create(path, true).unwrap();
            target.file.write_all(b"half").unwrap();
            assert_eq!(std::fs::read(&old).unwrap(), b"old content");
            assert_eq!(target.abandon(), "; the old file is unchanged");
            assert_eq!(names(dir.path()), ["link", "old"]);
            assert_eq!(std::fs::read(&old).unwrap(), b"old content");
        }
        let mut target = Target::create(&link, true).unwrap();
        target.file.write_all(b"new").unwrap();
        target.finish(5).unwrap();
        assert_eq!(std::fs::read(&old).unwrap(), b"new\0\0");
        assert_eq!(old.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        assert!(link.is_symlink());
        assert_eq!(names(dir.path()), ["link", "old"]);
    }

    /// The file would not be created where the user sees it, or would be in an unexpected place.
    #[test]
    fn a_link_to_nothing_is_refused_and_stays() {
        let dir = testkit::TempDir::new("get-link");
        let link = dir.join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        for force in [false, true] {
            let refused = Target::create(&link, force).unwrap_err().to_string();
            assert!(refused.contains("symbolic link to nowhere"), "{refused}");
            assert_eq!(names(dir.path()), ["link"]);
        }
    }

    #[test]
    fn a_new_file_has_its_name_once_it_is_complete() {
        let dir = testkit::TempDir::new("get-new");
        let path = dir.join("new");
        let mut target = Target::create(&path, false).unwrap();
        target.file.write_all(b"whole").unwrap();
        assert!(target.is_sparse() && !path.exists(), "a killed command would leave it");
        target.finish(6).unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), names(dir.path())), (b"whole\0".to_vec(), vec!["new".to_owned()]));
        assert!(Target::create(&path, false).is_err());
        Target::create(Path::new("/dev/null"), true).unwrap().finish(7).unwrap();
    }

    #[test]
    fn without_force_nothing_is_replaced_and_an_abandoned_file_is_removed() {
        let dir = testkit::TempDir::new("get-late");
        let path = dir.join("new");
        let target = Target::create(&path, false).unwrap();
        // Of another program, meanwhile.
        std::fs::write(&path, "old content").unwrap();
        assert_eq!(target.finish(0).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
        assert_eq!(target.abandon(), "");
        assert_eq!(
            (std::fs::read(&path).unwrap(), names(dir.path())),
            (b"old content".to_vec(), vec!["new".to_owned()])
        );
    }
}
