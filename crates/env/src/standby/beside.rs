//! Files next to standby memory: created by the same process, in the same place, and valid only
//! together with that memory. Owns their names and ownership; does not interpret them.
//!
//! - They are not locked: the pool's lock protects them. Another process, which outlives the
//!   pool's, may hold a descriptor of one.
//! - Each becomes visible when its creator has written its beginning and allocated its space.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::FileStandby;
use super::files::{aside, make_whole};

/// An existing file.
#[derive(Debug)]
pub struct Beside {
    /// The number that it was made with.
    pub number: u64,
    /// Where it is.
    pub path: PathBuf,
}

impl FileStandby {
    /// Path of the file with that number, for humans.
    pub fn place_beside(&self, pool: &[u8; 16], number: u64) -> PathBuf {
        self.dir.join(format!("{}.{number}", self.beside_prefix(pool)))
    }

    fn beside_prefix(&self, pool: &[u8; 16]) -> String {
        format!("{}.beside", self.file_stem(pool))
    }

    /// Creates a file written by `fill`, replacing an existing one. The file becomes visible only
    /// afterwards.
    ///
    /// # Errors
    /// When there is no space, or the existing one cannot be replaced.
    pub fn make_beside(&self, pool: &[u8; 16], number: u64, fill: &mut dyn FnMut(&File) -> Result<()>) -> Result<File> {
        make_whole(&self.place_beside(pool, number), true, |file| fill(&file).map(|()| file))
    }

    /// Returns the reason why the next process would not find a file of this size made by
    /// `make_beside`. `None` if it would.
    pub fn fault_beside(&self, pool: &[u8; 16], number: u64, file: &File, bytes: u64) -> Option<String> {
        match file.metadata() {
            Ok(metadata) => {
                let identity = (metadata.dev(), metadata.ino());
                self.fault_of(&self.place_beside(pool, number), identity, bytes, true)
            }
            Err(error) => Some(error.to_string()),
        }
    }

    /// Lists the existing files, except those set aside.
    pub fn left_beside(&self, pool: &[u8; 16]) -> Vec<Beside> {
        let prefix = format!("{}.", self.beside_prefix(pool));
        let dirs = self.dirs().filter_map(|dir| std::fs::read_dir(dir).ok());
        let of_name = |path: PathBuf| {
            let number = path.file_name()?.to_str()?.strip_prefix(&prefix)?.parse().ok()?;
            Some(Beside { number, path })
        };
        let mut files: Vec<_> = dirs.flatten().flatten().filter_map(|entry| of_name(entry.path())).collect();
        files.sort_by_key(|file| file.number);
        files
    }

    /// Opens an existing file.
    ///
    /// # Errors
    /// When it is not a plain file, or others may write to it.
    pub fn open_beside(&self, path: &Path) -> Result<File> {
        let told = |error: Error| Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file = self.open_file(path).map_err(told)?;
        match self.why_not_ours(&file.metadata()?) {
            None => Ok(file),
            Some(why) => Err(told(Error::new(ErrorKind::PermissionDenied, why))),
        }
    }

    /// Removes a file returned by `open_beside` or `make_beside`, if it still exists.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove_beside(&self, pool: &[u8; 16], number: u64, file: &File) -> Result<()> {
        let ours = file.metadata()?;
        for path in self.left_beside(pool).into_iter().filter(|file| file.number == number).map(|file| file.path) {
            match std::fs::symlink_metadata(&path) {
                Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => std::fs::remove_file(&path)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes all files of the pool, or keeps them under other names. Returns these, and the names
    /// of files that could not be removed.
    pub(super) fn pass_over(&self, pool: &[u8; 16], is_void: bool) -> Vec<String> {
        let kept = |file: Beside| {
            if is_void && std::fs::remove_file(&file.path).is_ok() {
                return None;
            }
            Some(aside(&file.path).unwrap_or_else(|error| format!("{} ({error})", file.path.display())))
        };
        self.left_beside(pool).into_iter().filter_map(kept).collect()
    }

    /// Keeps a file under another name, which is returned.
    ///
    /// # Errors
    /// When it cannot be renamed.
    pub fn set_beside_aside(&self, path: &Path) -> Result<String> {
        aside(path)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::Standby;
    use testkit::TempDir;

    const POOL: [u8; 16] = [0xcd; 16];

    fn numbers(standby: &FileStandby) -> Vec<u64> {
        standby.left_beside(&POOL).iter().map(|file| file.number).collect()
    }

    #[test]
    fn files_beside_are_of_one_copy_and_found_by_the_next_process() {
        let dir = TempDir::new("beside");
        let owner = rustix::process::geteuid().as_raw();
        let pool = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("data"), b"x").unwrap();
            FileStandby::new(dir.path(), owner).of_copy(&path, &path.join("data")).unwrap()
        };
        let (ours, theirs) = (pool("first"), pool("second"));
        ours.make_beside(&POOL, 7, &mut |mut file| file.write_all(b"seven")).unwrap();
        let first = ours.make_beside(&POOL, 40, &mut |_| Ok(())).unwrap();
        assert_eq!(numbers(&ours), [7, 40]);
        assert!(numbers(&theirs).is_empty(), "another copy has none");
        assert!(ours.others(&POOL).is_empty(), "they are its own");
        assert_eq!(theirs.others(&POOL).len(), 2, "and are told to the other");
        let mut text = String::new();
        ours.open_beside(&ours.left_beside(&POOL)[0].path).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "seven");
        // A file that a later one replaced does not remove that one.
        assert_eq!(ours.fault_beside(&POOL, 40, &first, 0), None);
        let second = ours.make_beside(&POOL, 40, &mut |_| Ok(())).unwrap();
        assert!(ours.fault_beside(&POOL, 40, &first, 0).unwrap().contains("another file"));
        assert!(ours.fault_beside(&POOL, 40, &second, 1).unwrap().contains("truncated"));
        let failed = ours.make_beside(&POOL, 41, &mut |_| Err(ErrorKind::StorageFull.into()));
        assert!(failed.is_err() && numbers(&ours) == [7, 40], "{failed:?}");
        ours.remove_beside(&POOL, 40, &first).unwrap();
        assert_eq!(numbers(&ours), [7, 40]);
        ours.remove_beside(&POOL, 40, &second).unwrap();
        assert_eq!(numbers(&ours), [7]);
        // A file that is not replayed is kept, and not found again.
        let kept = ours.pass_over_beside(&POOL, false);
        assert!(kept.len() == 1 && Path::new(&kept[0]).exists(), "{kept:?}");
        assert!(numbers(&ours).is_empty());
        ours.make_beside(&POOL, 7, &mut |_| Ok(())).unwrap();
        assert!(ours.pass_over_beside(&POOL, true).is_empty() && numbers(&ours).is_empty());
    }

    #[test]
    fn a_file_beside_that_others_may_write_is_not_opened() {
        let dir = TempDir::new("beside-foreign");
        let standby = FileStandby::new(dir.path(), rustix::process::geteuid().as_raw());
        standby.make_beside(&POOL, 1, &mut |_| Ok(())).unwrap();
        let path = standby.place_beside(&POOL, 1);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(standby.open_beside(&path).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
}
