//! Standby memory in files on a file system in memory (`/dev/shm`). Owns their names, whose they
//! are, and who may have them.
//!
//! - The name says whose it is, so that two pools have two files, and two copies of a pool as well:
//!   the same pool and the same content do not make a copy the one that a server wrote to. The file
//!   is readable by its owner alone, and locked while it is mapped.
//! - A file of another user, or one that is not a plain file, is not taken: anyone may put
//!   something into `/dev/shm`.
//! - All of its space is allocated when it is made: a page that the file system could not give
//!   later would end the process.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags, RenameFlags};

use super::boot::this_boot;
use super::mapping::Mapping;
use super::{Standby, StandbyMemory};
use crate::lock::try_hold;

/// Where such files are by default.
pub const STANDBY_DIR: &str = "/dev/shm";
/// `f_type` of tmpfs and ramfs (linux/magic.h).
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// Most files of other copies that are named, and most files of this one that are set aside.
const FILES_MAX: usize = 8;

/// Standby memory in files.
#[derive(Debug, Clone)]
pub struct FileStandby {
    /// Where new files are made.
    pub(super) dir: PathBuf,
    /// Where an earlier process may have left one, if that is elsewhere.
    pub(super) earlier: Option<PathBuf>,
    /// The owner of the pool, whose files are as good as ours.
    owner: u32,
    copy: [u8; 32],
    pool_path: Vec<u8>,
}

impl FileStandby {
    /// Files in that directory, of pools whose directory belongs to `owner`.
    pub fn new(dir: &Path, owner: u32) -> Self {
        Self { dir: dir.to_owned(), earlier: None, owner, copy: [0; 32], pool_path: Vec::new() }
    }

    /// The same, of the pool with that directory and that data.
    ///
    /// # Errors
    /// When one of them cannot be looked at.
    pub fn of_copy(self, directory: &Path, data: &Path) -> Result<Self> {
        let (data, metadata) = (std::fs::metadata(data)?, std::fs::metadata(directory)?);
        let place = if data.file_type().is_block_device() { (data.rdev(), 0) } else { (data.dev(), data.ino()) };
        let mut copy = [0; 32];
        for (bytes, number) in copy.chunks_mut(8).zip([place.0, place.1, metadata.dev(), metadata.ino()]) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        Ok(Self { copy, pool_path: directory.as_os_str().as_bytes().to_vec(), ..self })
    }

    /// The same; an earlier process may have left its file in another directory.
    pub fn or_left_in(self, earlier: &Path) -> Self {
        Self { earlier: Some(earlier.to_owned()).filter(|earlier| *earlier != self.dir), ..self }
    }

    /// Whether the directory is on a file system in memory.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub fn is_in_memory(&self) -> Result<bool> {
        let kind = rustix::fs::statfs(&self.dir)?.f_type as u64;
        Ok(kind == TMPFS_MAGIC || kind == RAMFS_MAGIC)
    }

    fn path(&self, pool: &[u8; 16]) -> PathBuf {
        self.dir.join(self.file_name(pool))
    }

    fn file_name(&self, pool: &[u8; 16]) -> String {
        format!("{}.standby", self.file_stem(pool))
    }

    /// What the names of all files of this copy of the pool begin with.
    pub(super) fn file_stem(&self, pool: &[u8; 16]) -> String {
        // FNV-1a: a name, and no proof; the header has the whole.
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = self.copy.iter().fold(0xcbf2_9ce4_8422_2325, step);
        format!("{}-{hash:016x}", file_prefix(pool))
    }

    /// Where a file of the pool may be, the likeliest place first.
    fn paths(&self, pool: &[u8; 16]) -> impl Iterator<Item = PathBuf> {
        let earlier = self.earlier.as_ref().map(|dir| dir.join(self.file_name(pool)));
        earlier.into_iter().chain([self.path(pool)])
    }

    fn open(&self, path: &Path) -> Result<Option<Arc<dyn StandbyMemory>>> {
        let told = |error: Error| Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file = match self.open_file(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(told(error)),
        };
        self.check(path, &file)?;
        let metadata = file.metadata()?;
        let len = usize::try_from(metadata.len()).map_err(|_| ErrorKind::OutOfMemory)?;
        // A file with holes was not allocated to its end: a page that is missing would have to be
        // found now.
        if len == 0 || metadata.blocks() * 512 < metadata.len() {
            return Err(Error::new(ErrorKind::InvalidData, format!("{}: it was never finished", path.display())));
        }
        Ok(Some(Arc::new(Mapping::of(file, len).map_err(told)?)))
    }

    pub(super) fn open_file(&self, path: &Path) -> Result<File> {
        // A pipe in its place must not make anyone wait.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        OpenOptions::new().read(true).write(true).custom_flags(flags as i32).open(path)
    }

    /// Whether a file is one that a server of this pool made, and that no process has.
    fn check(&self, path: &Path, file: &File) -> Result<()> {
        if let Some(why) = self.why_not_ours(&file.metadata()?) {
            return Err(Error::new(ErrorKind::PermissionDenied, format!("{}: {why}", path.display())));
        }
        if !try_hold(file)? {
            let text = format!("{}: another process has it", path.display());
            return Err(Error::new(ErrorKind::ResourceBusy, text));
        }
        Ok(())
    }

    /// What tells that no server of this pool made a file; `None` if one may have.
    pub(super) fn why_not_ours(&self, metadata: &Metadata) -> Option<&'static str> {
        let own = rustix::process::geteuid().as_raw();
        if !metadata.is_file() {
            Some("it is no file")
        } else if metadata.uid() != own && metadata.uid() != self.owner {
            Some("it belongs to another user")
        } else if metadata.mode() & 0o077 != 0 {
            Some("others may write or read it")
        } else {
            None
        }
    }
}

impl Standby for FileStandby {
    fn place(&self, pool: &[u8; 16]) -> String {
        self.path(pool).display().to_string()
    }

    fn copy(&self) -> [u8; 32] {
        self.copy
    }

    fn pool_path(&self) -> Vec<u8> {
        self.pool_path.clone()
    }

    fn others(&self, pool: &[u8; 16]) -> Vec<String> {
        let (all, own) = (file_prefix(pool), self.file_stem(pool));
        let dirs = self.earlier.iter().chain([&self.dir]).filter_map(|dir| std::fs::read_dir(dir).ok());
        let of_pool = |name: &[u8]| name.starts_with(all.as_bytes()) && !name.starts_with(own.as_bytes());
        let found = dirs.flatten().flatten().filter(|entry| of_pool(entry.file_name().as_bytes()));
        let mut places: Vec<_> = found.map(|entry| entry.path().display().to_string()).take(FILES_MAX).collect();
        places.sort();
        places
    }

    fn set_aside(&self, pool: &[u8; 16]) -> Result<String> {
        match self.paths(pool).find(|path| path.exists()) {
            Some(path) => aside(&path),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn boot(&self) -> Result<[u8; 16]> {
        this_boot()
    }

    fn left(&self, pool: &[u8; 16]) -> Result<Option<Arc<dyn StandbyMemory>>> {
        self.paths(pool).find_map(|path| self.open(&path).transpose()).transpose()
    }

    fn make(&self, pool: &[u8; 16], bytes: usize) -> Result<Arc<dyn StandbyMemory>> {
        let path = self.path(pool);
        let told = |error: Error| Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path).map_err(told)?;
        let made = || {
            if !try_hold(&file)? {
                return Err(ErrorKind::WouldBlock.into());
            }
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
            Mapping::of(file.try_clone()?, bytes)
        };
        match made() {
            Ok(mapping) => Ok(Arc::new(mapping)),
            Err(error) => {
                // It is ours, and of no use; what stays is refused by the next one, and told.
                let _ = std::fs::remove_file(&path);
                Err(told(error))
            }
        }
    }

    fn remove(&self, pool: &[u8; 16]) -> Result<()> {
        for path in self.paths(pool) {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn pass_over_beside(&self, pool: &[u8; 16], is_void: bool) -> Vec<String> {
        self.pass_over(pool, is_void)
    }
}

/// Gives a file another name, which is returned; as many of one name are kept as [`FILES_MAX`].
pub(super) fn aside(path: &Path) -> Result<String> {
    for number in 1..=FILES_MAX {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".aside{number}"));
        match rustix::fs::renameat_with(
            rustix::fs::CWD,
            path,
            rustix::fs::CWD,
            Path::new(&name),
            RenameFlags::NOREPLACE,
        ) {
            Ok(()) => return Ok(name.display().to_string()),
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::new(ErrorKind::AlreadyExists, "as many as are kept have been set aside"))
}

fn file_prefix(pool: &[u8; 16]) -> String {
    let id: String = pool.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("shale-{id}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use testkit::TempDir;

    const POOL: [u8; 16] = [0xab; 16];

    fn standby(dir: &TempDir) -> FileStandby {
        FileStandby::new(dir.path(), rustix::process::geteuid().as_raw())
    }

    fn refusal(standby: &FileStandby) -> String {
        standby.left(&POOL).map(|left| left.is_some()).unwrap_err().to_string()
    }

    #[test]
    fn what_one_process_writes_the_next_one_reads() {
        let dir = TempDir::new("standby");
        let standby = standby(&dir);
        assert!(standby.left(&POOL).unwrap().is_none());
        let memory = standby.make(&POOL, 1 << 16).unwrap();
        memory.write(100, b"payload");
        memory.store(8, 77);
        assert!(refusal(&standby).contains("another process has it"));
        assert!(standby.make(&POOL, 1 << 16).is_err(), "it is there");
        drop(memory);
        let left = standby.left(&POOL).unwrap().unwrap();
        let mut bytes = [0; 7];
        assert!(left.read(100, &mut bytes));
        assert_eq!((&bytes, left.load(8), left.len()), (b"payload", 77, 1 << 16));
        drop(left);
        assert_ne!(standby.path(&POOL), standby.path(&[1; 16]), "two pools have two files");
        // The next server may have been told another directory.
        let other = TempDir::new("standby-other");
        let moved = FileStandby::new(other.path(), 0).or_left_in(dir.path());
        assert_eq!(moved.left(&POOL).unwrap().unwrap().load(8), 77);
        moved.remove(&POOL).unwrap();
        standby.remove(&POOL).unwrap();
        assert!(standby.left(&POOL).unwrap().is_none());
    }

    #[test]
    fn a_copy_has_a_file_of_its_own() {
        let dir = TempDir::new("standby-copies");
        let pool = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("data"), b"x").unwrap();
            path
        };
        let (first, second) = (pool("first"), pool("second"));
        let of = |path: &Path| standby(&dir).of_copy(path, &path.join("data")).unwrap();
        let (ours, theirs) = (of(&first), of(&second));
        drop(theirs.make(&POOL, 4096).unwrap());
        assert!(ours.left(&POOL).unwrap().is_none());
        assert_eq!(ours.others(&POOL), [theirs.place(&POOL)]);
        ours.remove(&POOL).unwrap();
        assert!(theirs.left(&POOL).unwrap().is_some(), "it is not removed either");
        // A pool that was moved is the same one.
        let moved = dir.path().join("moved");
        std::fs::rename(&second, &moved).unwrap();
        assert_eq!(of(&moved).place(&POOL), theirs.place(&POOL));
        let aside: Vec<_> = (0..2)
            .map(|_| {
                let aside = of(&moved).set_aside(&POOL).unwrap();
                drop(theirs.make(&POOL, 4096).unwrap());
                aside
            })
            .collect();
        assert!(aside[0] != aside[1] && aside.iter().all(|path| Path::new(path).exists()), "{aside:?}");
        assert!(of(&moved).others(&POOL).is_empty(), "what is set aside is its own");
    }

    #[test]
    fn what_is_not_ours_is_not_taken() {
        let dir = TempDir::new("standby-foreign");
        let standby = standby(&dir);
        drop(standby.make(&POOL, 4096).unwrap());
        let path = standby.path(&POOL);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o660)).unwrap();
        assert!(refusal(&standby).contains("others may"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            assert!(refusal(&standby).contains("another user"));
            let of_that_user = FileStandby::new(dir.path(), 12345);
            assert!(of_that_user.left(&POOL).unwrap().is_some(), "the pool's owner left it");
        }
        let elsewhere = dir.path().join("elsewhere");
        std::fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(standby.left(&POOL).is_err(), "a link is not followed");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(standby.left(&POOL).is_err());
        std::fs::remove_dir(&path).unwrap();
        // One that was not allocated when its maker died.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
        assert!(refusal(&standby).contains("never finished"));
        file.set_len(1 << 20).unwrap();
        assert!(refusal(&standby).contains("never finished"));
    }

    #[test]
    fn without_room_there_is_none_and_nothing_is_left() {
        let dir = TempDir::new("standby-full");
        let standby = standby(&dir);
        assert!(standby.make(&POOL, 1 << 55).is_err());
        assert!(standby.left(&POOL).unwrap().is_none());
    }

    #[test]
    fn memory_is_told_from_disks() {
        let standby = FileStandby::new(Path::new("/proc"), 0);
        assert!(!standby.is_in_memory().unwrap());
        let shm = FileStandby::new(Path::new(STANDBY_DIR), 0);
        if let Ok(in_memory) = shm.is_in_memory() {
            assert!(in_memory, "{STANDBY_DIR}");
        }
    }
}
