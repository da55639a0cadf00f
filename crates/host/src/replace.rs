//! Durable replacement of a small file: after a crash it has its old or its new content.
//!
//! 1. The content is written to `NAME.new` in the same directory, and synced.
//! 2. `NAME.new` is renamed to `NAME`: readers see the new content from here on.
//! 3. The directory is synced.
//!
//! A `NAME.new` of a killed process is removed first. Writers of one file must exclude each other,
//! because all use that name. A link at either name is replaced, and never followed.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;

/// A new version of a file, complete and synced next to it, which is not in force yet. Dropping it
/// removes it.
#[derive(Debug)]
pub struct NewVersion {
    /// Held open, so that all steps are done in the same directory.
    directory: File,
    name: OsString,
    temporary: OsString,
    path: PathBuf,
    is_in_force: bool,
}

impl NewVersion {
    /// Writes the new version of a file. `mode`: its permissions, minus the umask of the process.
    ///
    /// # Errors
    /// Of the system, and `InvalidInput` for a path without a file name. Nothing is left then.
    pub fn write(file: &Path, content: &[u8], mode: u32) -> Result<Self> {
        let Some(name) = file.file_name() else {
            return Err(Error::new(ErrorKind::InvalidInput, "the path has no file name"));
        };
        let mut temporary = name.to_owned();
        temporary.push(".new");
        let directory = File::open(directory_of(file))?;
        match unlinkat(&directory, &temporary, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut created = File::from(openat(&directory, &temporary, flags, Mode::from_raw_mode(mode))?);
        let path = file.with_file_name(&temporary);
        let new = Self { directory, name: name.to_owned(), temporary, path, is_in_force: false };
        created.write_all(content)?;
        created.sync_all()?;
        Ok(new)
    }

    /// Returns its path until it is published, for programs that check it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the file by this version.
    ///
    /// # Errors
    /// Of the system. If only the sync of the directory failed, the new version is in force, and a
    /// crash may bring the old one back.
    pub fn publish(mut self) -> Result<()> {
        renameat(&self.directory, &self.temporary, &self.directory, &self.name)?;
        self.is_in_force = true;
        self.directory.sync_all()
    }
}

impl Drop for NewVersion {
    fn drop(&mut self) {
        if !self.is_in_force {
            // A file that remains is removed by the next writer.
            let _ = unlinkat(&self.directory, &self.temporary, AtFlags::empty());
        }
    }
}

/// Replaces a file, or creates it. `mode`: its permissions, minus the umask of the process.
///
/// # Errors
/// Of the system, and `InvalidInput` for a path without a file name.
pub fn replace_file(file: &Path, content: &[u8], mode: u32) -> Result<()> {
    NewVersion::write(file, content, mode)?.publish()
}

/// Makes the entries of a directory durable. An empty path is the working directory.
///
/// # Errors
/// Of open and fsync.
pub fn sync_directory(path: &Path) -> Result<()> {
    File::open(or_here(path))?.sync_all()
}

fn directory_of(file: &Path) -> &Path {
    file.parent().map_or(Path::new("."), or_here)
}

fn or_here(directory: &Path) -> &Path {
    if directory.as_os_str().is_empty() { Path::new(".") } else { directory }
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir, read, read_dir, read_link, remove_dir, symlink_metadata, write};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use testkit::TempDir;

    use super::*;

    fn names(dir: &TempDir) -> Vec<String> {
        let entries = read_dir(dir.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Type and permissions, links not followed.
    fn mode(path: &Path) -> u32 {
        symlink_metadata(path).unwrap().permissions().mode()
    }

    #[test]
    fn a_file_gets_its_content_and_its_mode() {
        let dir = TempDir::new("replace");
        let (file, usual) = (dir.join("file"), dir.join("usual"));
        write(&usual, "").unwrap();
        replace_file(&file, b"one", 0o666).unwrap();
        assert_eq!((read(&file).unwrap(), mode(&file)), (b"one".to_vec(), mode(&usual)));
        // Not the mode of the old file, which others could read.
        replace_file(&file, b"longer than one", 0o600).unwrap();
        assert_eq!((read(&file).unwrap(), mode(&file)), (b"longer than one".to_vec(), 0o100_600));
        replace_file(&file, b"", 0o600).unwrap();
        assert_eq!((read(&file).unwrap(), names(&dir)), (Vec::new(), vec!["file".to_owned(), "usual".to_owned()]));
    }

    #[test]
    fn a_new_version_is_in_force_once_it_is_published() {
        let dir = TempDir::new("replace-publish");
        let file = dir.join("file");
        write(&file, "old").unwrap();
        let given_up = NewVersion::write(&file, b"given up", 0o600).unwrap();
        assert_eq!((read(given_up.path()).unwrap(), mode(given_up.path())), (b"given up".to_vec(), 0o100_600));
        assert_eq!(read(&file).unwrap(), b"old");
        drop(given_up);
        assert_eq!((read(&file).unwrap(), names(&dir)), (b"old".to_vec(), vec!["file".to_owned()]));
        NewVersion::write(&file, b"new", 0o600).unwrap().publish().unwrap();
        assert_eq!((read(&file).unwrap(), names(&dir)), (b"new".to_vec(), vec!["file".to_owned()]));
    }

    #[test]
    fn a_leftover_of_a_killed_process_is_no_obstacle_and_gives_no_mode() {
        let dir = TempDir::new("replace-leftover");
        let file = dir.join("file");
        write(dir.join("file.new"), "much longer than the new content").unwrap();
        std::fs::set_permissions(dir.join("file.new"), std::fs::Permissions::from_mode(0o666)).unwrap();
        replace_file(&file, b"new", 0o600).unwrap();
        assert_eq!((read(&file).unwrap(), mode(&file)), (b"new".to_vec(), 0o100_600));
        assert_eq!(names(&dir), ["file"]);
    }

    #[test]
    fn links_are_replaced_and_not_followed() {
        let dir = TempDir::new("replace-links");
        let (file, victim) = (dir.join("file"), dir.join("victim"));
        write(&victim, "untouched").unwrap();
        symlink(&victim, dir.join("file.new")).unwrap();
        symlink(&victim, &file).unwrap();
        replace_file(&file, b"new", 0o600).unwrap();
        assert!(read_link(&file).is_err());
        assert_eq!((read(&file).unwrap(), read(&victim).unwrap()), (b"new".to_vec(), b"untouched".to_vec()));
        assert_eq!(names(&dir), ["file", "victim"]);
    }

    #[test]
    fn a_failure_leaves_the_old_file_and_nothing_else() {
        let dir = TempDir::new("replace-failure");
        let file = dir.join("file");
        // It cannot be renamed to a directory.
        create_dir(&file).unwrap();
        replace_file(&file, b"new", 0o600).unwrap_err();
        assert_eq!(names(&dir), ["file"]);
        remove_dir(&file).unwrap();
        // Its temporary name is not that of a file.
        write(&file, "old").unwrap();
        create_dir(dir.join("file.new")).unwrap();
        replace_file(&file, b"new", 0o600).unwrap_err();
        assert_eq!((read(&file).unwrap(), names(&dir).len()), (b"old".to_vec(), 2));
        let absent = dir.join("absent/file");
        assert_eq!(replace_file(&absent, b"new", 0o600).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(replace_file(Path::new("/"), b"new", 0o600).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn the_directory_of_a_bare_name_is_the_working_directory() {
        assert_eq!(directory_of(Path::new("file")), Path::new("."));
        assert_eq!(directory_of(Path::new("pool/file")), Path::new("pool"));
        assert_eq!(directory_of(Path::new("/file")), Path::new("/"));
        sync_directory(Path::new("")).unwrap();
    }
}
