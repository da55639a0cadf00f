//! Standby memory in files on a memory file system (`/dev/shm`). Owns their names, ownership and
//! access.
//!
//! - The name identifies the owner: two pools have two files, and so do two copies of a pool,
//!   because the same pool id and content do not make a copy the one that a server wrote to. The
//!   file is readable by its owner alone, and locked while it is mapped.
//! - A file of another user, or one that is not a plain file, is rejected: anyone can create files
//!   in `/dev/shm`.
//! - All of its space is allocated on creation: a page that the file system could not provide later
//!   would kill the process.
//! - A file is created under another name, and renamed when complete: if a process dies in between,
//!   the next one finds no file, and removes the unfinished one.

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

/// The end of the name of a file that is not whole.
const UNFINISHED: &str = ".new";

/// Standby memory in files.
#[derive(Debug, Clone)]
pub struct FileStandby {
    /// Where new files are made.
    pub(super) dir: PathBuf,
    /// Other directories where an earlier process may have left one.
    pub(super) earlier: Vec<PathBuf>,
    /// The owner of the pool, whose files are accepted like our own.
    owner: u32,
    copy: [u8; 32],
    pool_path: Vec<u8>,
}

impl FileStandby {
    /// Files in that directory, of pools whose directory belongs to `owner`.
    pub fn new(dir: &Path, owner: u32) -> Self {
        Self { dir: dir.to_owned(), earlier: Vec::new(), owner, copy: [0; 32], pool_path: Vec::new() }
    }

    /// The same, for the pool with that directory and that data.
    ///
    /// # Errors
    /// When one of them cannot be examined.
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
    pub fn or_left_in(mut self, earlier: &Path) -> Self {
        if earlier != self.dir && self.earlier.iter().all(|dir| dir != earlier) {
            self.earlier.push(earlier.to_owned());
        }
        self
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

    /// Common prefix of the names of all files of this copy of the pool.
    pub(super) fn file_stem(&self, pool: &[u8; 16]) -> String {
        // FNV-1a: a name, and no proof; the header has the whole.
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = self.copy.iter().fold(0xcbf2_9ce4_8422_2325, step);
        format!("{}-{hash:016x}", file_prefix(pool))
    }

    /// Where a file of the pool may be, the likeliest place first.
    fn paths(&self, pool: &[u8; 16]) -> impl Iterator<Item = PathBuf> {
        self.earlier.iter().map(|dir| dir.join(self.file_name(pool))).chain([self.path(pool)])
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
        if let Some(why) = why_not_whole(&metadata, 1) {
            return Err(Error::new(ErrorKind::InvalidData, format!("{}: {why}", path.display())));
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
            let text = format!("{}: in use by another process", path.display());
            return Err(Error::new(ErrorKind::ResourceBusy, text));
        }
        Ok(())
    }

    /// Returns the reason why no server of this pool can have made the file; `None` if one may
    /// have.
    pub(super) fn why_not_ours(&self, metadata: &Metadata) -> Option<&'static str> {
        let own = rustix::process::geteuid().as_raw();
        if !metadata.is_file() {
            Some("it is not a plain file")
        } else if metadata.uid() != own && metadata.uid() != self.owner {
            Some("it belongs to another user")
        } else if metadata.mode() & 0o077 != 0 {
            Some("other users may read or write it")
        } else {
            None
        }
    }
}

/// Returns the reason why a file does not have all of its space, of at least this many bytes.
fn why_not_whole(metadata: &Metadata, bytes: u64) -> Option<&'static str> {
    match metadata.len() {
        len if len < bytes => Some("it was truncated"),
        len if metadata.blocks() * 512 < len => Some("a part of it was removed"),
        _ => None,
    }
}

/// Creates a file, lets `fill` write it, and only then gives it its name. `replaces`: replaces an
/// existing file.
pub(super) fn make_whole<T>(path: &Path, replaces: bool, fill: impl FnOnce(File) -> Result<T>) -> Result<T> {
    let told = |error: Error| Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(UNFINISHED);
    let unfinished = Path::new(&unfinished);
    let flags = if replaces { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    let made = || {
        // Its maker is dead: a pool is open in one process.
        match std::fs::remove_file(unfinished) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(unfinished)?;
        let made = fill(file)?;
        rustix::fs::renameat_with(rustix::fs::CWD, unfinished, rustix::fs::CWD, path, flags)?;
        Ok(made)
    };
    made().map_err(|error| {
        let _ = std::fs::remove_file(unfinished);
        told(error)
    })
}

impl FileStandby {
    /// All directories where the pool may have files.
    pub(super) fn dirs(&self) -> impl Iterator<Item = &PathBuf> {
        self.earlier.iter().chain([&self.dir])
    }

    /// Removes unfinished files of all kinds: they never held acknowledged data.
    fn remove_unfinished(&self, pool: &[u8; 16]) {
        let stem = self.file_stem(pool);
        let is_unfinished = |name: &[u8]| name.starts_with(stem.as_bytes()) && name.ends_with(UNFINISHED.as_bytes());
        for entry in self.dirs().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten() {
            if is_unfinished(entry.file_name().as_bytes()) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Returns the reason why the next process would not accept this file at this path, with this
    /// size. `None` if it would. `has_holes`: parts of the file may be unallocated.
    pub(super) fn fault_of(&self, path: &Path, identity: (u64, u64), bytes: u64, has_holes: bool) -> Option<String> {
        let why = match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => "it was removed",
            Err(error) => return Some(format!("{}: {error}", path.display())),
            Ok(metadata) if (metadata.dev(), metadata.ino()) != identity => "another file replaced it",
            Ok(metadata) if has_holes && metadata.len() >= bytes => self.why_not_ours(&metadata)?,
            Ok(metadata) => self.why_not_ours(&metadata).or_else(|| why_not_whole(&metadata, bytes))?,
        };
        Some(format!("{}: {why}", path.display()))
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
        let dirs = self.dirs().filter_map(|dir| std::fs::read_dir(dir).ok());
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
        self.remove_unfinished(pool);
        self.paths(pool).find_map(|path| self.open(&path).transpose()).transpose()
    }

    fn make(&self, pool: &[u8; 16], bytes: usize, fill: &dyn Fn(&dyn StandbyMemory)) -> Result<Arc<dyn StandbyMemory>> {
        make_whole(&self.path(pool), false, |file| {
            if !try_hold(&file)? {
                return Err(ErrorKind::WouldBlock.into());
            }
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
            let memory = Mapping::of(file, bytes)?;
            fill(&memory);
            Ok(Arc::new(memory) as Arc<dyn StandbyMemory>)
        })
    }

    fn fault(&self, pool: &[u8; 16], memory: &dyn StandbyMemory) -> Option<String> {
        self.fault_of(&self.path(pool), memory.identity(), memory.len() as u64, false)
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

    fn has_beside(&self, pool: &[u8; 16]) -> bool {
        !self.left_beside(pool).is_empty()
    }

    fn pass_over_beside(&self, pool: &[u8; 16], is_void: bool) -> Vec<String> {
        self.pass_over(pool, is_void)
    }
}

/// Gives a file another name, which is returned; at most [`FILES_MAX`] are kept per name.
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
    Err(Error::new(ErrorKind::AlreadyExists, "the limit of files set aside is reached"))
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
        let memory = standby.make(&POOL, 1 << 16, &|_| ()).unwrap();
        memory.write(100, b"payload");
        memory.store(8, 77);
        assert!(refusal(&standby).contains("in use by another process"));
        assert!(standby.make(&POOL, 1 << 16, &|_| ()).is_err(), "it is there");
        drop(memory);
        let left = standby.left(&POOL).unwrap().unwrap();
        let mut bytes = [0; 7];
        assert!(left.read(100, &mut bytes));
        assert_eq!((&bytes, left.load(8), left.len()), (b"payload", 77, 1 << 16));
        drop(left);
        assert_ne!(standby.path(&POOL), standby.path(&[1; 16]), "two pools have two files");
        // The next server may have been configured with another directory.
        let other = TempDir::new("standby-other");
        let moved = FileStandby::new(other.path(), 0).or_left_in(dir.path());
        assert_eq!(moved.left(&POOL).unwrap().unwrap().load(8), 77);
        drop(moved.make(&POOL, 4096, &|_| ()).unwrap());
        let third = TempDir::new("standby-third");
        let again = FileStandby::new(third.path(), 0).or_left_in(third.path()).or_left_in(other.path());
        assert_eq!(again.or_left_in(dir.path()).left(&POOL).unwrap().unwrap().len(), 4096, "one of three");
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
        drop(theirs.make(&POOL, 4096, &|_| ()).unwrap());
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
                drop(theirs.make(&POOL, 4096, &|_| ()).unwrap());
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
        drop(standby.make(&POOL, 4096, &|_| ()).unwrap());
        let path = standby.path(&POOL);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o660)).unwrap();
        assert!(refusal(&standby).contains("other users may"));
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
        // One that was truncated since it was created, and one that lost a part.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
        assert!(refusal(&standby).contains("truncated"));
        file.set_len(1 << 20).unwrap();
        assert!(refusal(&standby).contains("a part of it was removed"));
    }

    /// A process that dies while creating a file leaves nothing that the next one takes for its
    /// memory, and does not leak the space.
    #[test]
    fn a_file_has_its_name_when_it_is_whole() {
        let dir = TempDir::new("standby-unfinished");
        let standby = standby(&dir);
        let names =
            || std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        let made = standby.make(&POOL, 8192, &|memory| {
            memory.store(0, 9);
            assert!(standby.path(&POOL).metadata().is_err() && names().len() == 1, "{:?}", names());
        });
        assert_eq!((made.unwrap().load(0), names().len()), (9, 1));
        standby.remove(&POOL).unwrap();
        let unfinished = [standby.file_name(&POOL), format!("{}.beside.3", standby.file_stem(&POOL))];
        unfinished.iter().for_each(|name| std::fs::write(dir.path().join(format!("{name}.new")), b"").unwrap());
        std::fs::write(dir.path().join("another.new"), b"").unwrap();
        assert!(standby.left(&POOL).unwrap().is_none());
        assert_eq!(names(), ["another.new"]);
    }

    /// All that would keep the next process from using the memory is found while it is in use.
    #[test]
    fn memory_that_the_next_process_would_not_find_is_noticed() {
        let dir = TempDir::new("standby-fault");
        let standby = standby(&dir);
        let path = standby.path(&POOL);
        let memory = standby.make(&POOL, 8192, &|_| ()).unwrap();
        let fault = || standby.fault(&POOL, &*memory).unwrap_or_default();
        assert_eq!(fault(), "");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o660)).unwrap();
        assert!(fault().contains("other users may"), "{}", fault());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        assert!(fault().contains("truncated"), "{}", fault());
        std::fs::remove_file(&path).unwrap();
        assert!(fault().contains("removed"), "{}", fault());
        std::fs::write(&path, vec![1; 8192]).unwrap();
        assert!(fault().contains("another file"), "{}", fault());
    }

    #[test]
    fn without_room_there_is_none_and_nothing_is_left() {
        let dir = TempDir::new("standby-full");
        let standby = standby(&dir);
        assert!(standby.make(&POOL, 1 << 55, &|_| ()).is_err());
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
