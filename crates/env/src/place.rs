//! A file of its own beside the data of a pool, behind traits: for a small database that may be
//! lost, and that is replaced when it cannot be read. Owns no state but the open file.
//!
//! Any thread may call it. Reads and writes are positioned and leave no offset behind.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An open file.
///
/// Assumptions, as for [`Disk`](crate::Disk): writes before a successful `sync` survive a crash;
/// later ones may survive in any subset of their sectors.
pub trait PlacedFile: Debug + Send + Sync {
    /// Length in bytes.
    fn len(&self) -> Result<u64>;

    /// Whether it is empty.
    fn is_empty(&self) -> Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// Fills `out` from `offset`; reading past the end is an error.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()>;

    /// Writes `data` at `offset`.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;

    /// Sets the length; new bytes read as zeroes.
    fn set_len(&self, len: u64) -> Result<()>;

    /// Makes every write that returned durable, and the length.
    fn sync(&self) -> Result<()>;
}

/// The name that a file has in its directory.
pub trait FilePlace: Send + Sync {
    /// Opens the file, and creates it if it does not exist.
    fn open(&self) -> Result<Box<dyn PlacedFile>>;

    /// Renames the file, so that the next [`open`](Self::open) creates another one. A file that was
    /// set aside earlier is deleted.
    fn set_aside(&self) -> Result<()>;

    /// Deletes the file and the one that was set aside.
    fn remove(&self) -> Result<()>;

    /// Free bytes of the file system that unprivileged programs may use.
    fn room_bytes(&self) -> Result<u64>;

    /// How messages call it.
    fn name(&self) -> String;
}

/// A place in a directory of this machine.
#[derive(Debug)]
pub struct HostPlace {
    path: PathBuf,
}

impl HostPlace {
    /// The file of that path.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf() }
    }

    fn aside(&self) -> PathBuf {
        self.path.with_extension("damaged")
    }

    fn sync_directory(&self) -> Result<()> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    }
}

fn absent_is_fine(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

impl FilePlace for HostPlace {
    fn open(&self) -> Result<Box<dyn PlacedFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&self.path)?;
        if file.metadata()?.len() == 0 {
            self.sync_directory()?;
        }
        Ok(Box::new(HostFile(file)))
    }

    fn set_aside(&self) -> Result<()> {
        absent_is_fine(std::fs::rename(&self.path, self.aside()))?;
        self.sync_directory()
    }

    fn remove(&self) -> Result<()> {
        absent_is_fine(std::fs::remove_file(&self.path))?;
        absent_is_fine(std::fs::remove_file(self.aside()))
    }

    fn room_bytes(&self) -> Result<u64> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let facts = rustix::fs::statvfs(parent.unwrap_or(Path::new("."))).map_err(Error::from)?;
        Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

#[derive(Debug)]
struct HostFile(File);

impl PlacedFile for HostFile {
    fn len(&self) -> Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.0.set_len(len)
    }

    fn sync(&self) -> Result<()> {
        self.0.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_set_aside_makes_room_for_an_empty_one() {
        let dir = std::env::temp_dir().join(format!("place-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let place = HostPlace::new(&dir.join("a.redb"));
        let file = place.open().unwrap();
        file.set_len(8192).unwrap();
        file.write_at(4096, b"some").unwrap();
        file.sync().unwrap();
        let mut found = [9; 8];
        place.open().unwrap().read_at(4092, &mut found).unwrap();
        assert_eq!(&found, b"\0\0\0\0some");
        assert!(file.read_at(8190, &mut found).is_err(), "the end is an error");
        place.set_aside().unwrap();
        assert!(place.open().unwrap().is_empty().unwrap());
        assert!(dir.join("a.damaged").exists() && place.room_bytes().unwrap() > 0);
        place.remove().unwrap();
        place.remove().unwrap();
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        std::fs::remove_dir(&dir).unwrap();
    }
}
