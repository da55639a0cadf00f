//! Creates a pool.
//!
//! Steps; a crash may follow any of them:
//! 1. Make the directory, take its lock, check sizes and properties, and claim the data. Every
//!    refusal happens here, while anything that `--force` would overwrite is untouched.
//! 2. `pool.json` says `initialising` and names the data. From here on `init` may be repeated and
//!    may overwrite the data.
//! 3. Make the data file; the engine writes its superblock and the first checkpoint into data and
//!    `map/`.
//! 4. `pool.json` says `ready`.
//!
//! A failure (unlike a crash) removes everything made so far. `salvage` fills the pool between
//! steps 3 and 4 ([`Unfinished`]), so that a partly filled pool is never taken for a complete one.

use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{FormatOptions, Pool, Properties};
use env::{AlignedBuf, Disk, FileDisk, FjallOptions, FjallStore, PoolLock};
use surface::{Error, ErrorKind, Result};

use super::belongs::refuse_own_name;
use super::open::{OpenPool, Opening, environment, open_with, store_error};
use super::{Config, PoolDir, State};
use operations::{kind_of, path_error};

/// Default share of the file system's free space that a pool uses, in percent: the rest is for the
/// map and for other files.
const FREE_SPACE_PERCENT: u64 = 80;
/// Bytes that must be blank at the beginning of a block device to use it without `--force`:
/// partition tables and the superblocks of all common file systems lie there.
const BLANK_BYTES: usize = 1 << 20;

/// Options for creating a pool.
#[derive(Debug, Clone)]
pub struct InitOptions {
    /// Data file or device; `None` for the file `data` in the pool's directory.
    pub data: Option<PathBuf>,
    /// Bytes of data.
    pub capacity_bytes: Option<u64>,
    /// Bytes of an extent.
    pub extent_bytes: u32,
    /// Properties of the pool.
    pub properties: Properties,
    /// Treatment of existing data.
    pub overwrite: Overwrite,
}

/// Whether existing data may be overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overwrite {
    /// Never: the command has no flag for it.
    Never,
    /// Only with `--force`, which was not given.
    Refused,
    /// `--force` was given.
    Forced,
}

impl Overwrite {
    /// Returns the advice for a user whose target is occupied, to follow "choose an empty
    /// directory" or similar.
    const fn advice(self) -> &'static str {
        match self {
            Self::Never => "",
            Self::Refused | Self::Forced => ", or overwrite with --force",
        }
    }
}

/// A pool that was created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// Data file or device.
    pub data: PathBuf,
    /// Bytes of data.
    pub capacity_bytes: u64,
    /// Source of the capacity, if the caller did not set one.
    pub capacity_from: Option<String>,
    /// An interrupted `init` was repeated.
    pub redone: bool,
}

/// The content of the directory.
enum Found {
    Nothing,
    Unfinished(PathBuf),
    /// A pool, or something else: only with force.
    Occupied(String),
}

/// A pool that lacks only step 4: its lock is held, and no other process opens it. Dropping it
/// leaves it in this state, as a crash does.
pub struct Unfinished {
    dir: PoolDir,
    config: Config,
    lock: Arc<PoolLock>,
    made: Made,
    /// This call created the data file.
    has_made_data: bool,
    /// The directory was empty, so that everything made can be removed without a trace.
    was_empty: bool,
    had_directory: bool,
}

impl Unfinished {
    /// Returns its directory.
    pub const fn dir(&self) -> &PoolDir {
        &self.dir
    }

    /// Opens it for its creator, which closes it before finishing or abandoning it.
    ///
    /// # Errors
    /// As [`open_locked`](super::open_locked).
    pub fn open(&self, how: Opening) -> Result<OpenPool> {
        open_with(&self.dir, &self.config, Arc::clone(&self.lock), how)
    }

    /// Performs step 4.
    ///
    /// # Errors
    /// I/O errors; everything made is then removed.
    pub fn finish(mut self) -> Result<Made> {
        self.dir.keep_reserve();
        self.config.state = State::Ready;
        if let Err(error) = self.config.write(&self.dir.config_path()) {
            self.abandon();
            return Err(error);
        }
        Ok(self.made)
    }

    /// Removes everything that was made, and returns whether it did. If anything was there before,
    /// it is already overwritten, and `initialising` is the true state. Best effort: the caller
    /// reports the error that led here.
    pub fn abandon(self) -> bool {
        if self.was_empty {
            if self.has_made_data {
                drop(std::fs::remove_file(&self.made.data));
            }
            drop(std::fs::remove_dir_all(self.dir.map_path()));
            drop(std::fs::remove_file(self.dir.reserve_path()));
            drop(std::fs::remove_file(self.dir.config_path()));
        }
        if !self.had_directory {
            remove_directory(&self.dir);
        } else if self.was_empty {
            drop(std::fs::remove_file(self.dir.lock_path()));
        }
        self.was_empty
    }
}

/// Removes a directory that holds nothing but a lock, which this process holds.
fn remove_directory(dir: &PoolDir) {
    drop(std::fs::remove_file(dir.lock_path()));
    drop(std::fs::remove_dir(dir.root()));
}

/// Creates a pool.
///
/// # Errors
/// `Exists` for existing data that must not be overwritten, `InUse`, and errors of the engine and
/// the system.
pub fn init(dir: &PoolDir, options: &InitOptions) -> Result<Made> {
    begin(dir, options)?.finish()
}

/// Creates a pool up to step 3.
///
/// # Errors
/// As [`init`].
pub fn begin(dir: &PoolDir, options: &InitOptions) -> Result<Unfinished> {
    // Before anything is touched, and again under the lock.
    admit(dir, options)?;
    let (had_directory, had_lock) = (dir.root().exists(), dir.lock_path().exists());
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir.root())
        .map_err(|error| path_error("cannot make the directory", dir.root(), error))?;
    let lock = Arc::new(dir.lock()?.map_err(|holder| Error::new(ErrorKind::InUse, holder))?);
    let begun = begin_locked(dir, options, &lock, had_directory);
    match &begun {
        Err(_) if !had_directory => remove_directory(dir),
        Err(_) if !had_lock => drop(std::fs::remove_file(dir.lock_path())),
        _ => {}
    }
    begun
}

fn begin_locked(dir: &PoolDir, options: &InitOptions, lock: &Arc<PoolLock>, had_directory: bool) -> Result<Unfinished> {
    let found = admit(dir, options)?;
    let data = match &options.data {
        None => PathBuf::from("data"),
        Some(path) => absolute(path)?,
    };
    let redone = matches!(found, Found::Unfinished(_));
    let may_overwrite =
        options.overwrite == Overwrite::Forced || matches!(&found, Found::Unfinished(old) if *old == data);
    let data_path = dir.root().join(&data);
    refuse_own_name(dir.root(), &data_path)?;
    let target = Target::examine(&data_path, may_overwrite, options.overwrite)?;
    let (capacity_bytes, capacity_from) = capacity(&target, &data_path, options)?;

    // Predictable failures must come before an old pool is touched.
    let format =
        FormatOptions { capacity_bytes, extent_bytes: options.extent_bytes, properties: options.properties.clone() };
    Pool::check_format(&format)?;
    let claimed = claim(dir, &data_path, &target, capacity_bytes)?;

    let config = Config { state: State::Initialising, data, created_unix_s: host::unix_s() };
    config.write(&dir.config_path())?;
    let mut unfinished = Unfinished {
        dir: dir.clone(),
        config,
        lock: Arc::clone(lock),
        has_made_data: false,
        made: Made { data: data_path, capacity_bytes, capacity_from, redone },
        was_empty: matches!(found, Found::Nothing),
        had_directory,
    };
    match make(&mut unfinished, &target, claimed, &format) {
        Ok(()) => Ok(unfinished),
        Err(error) => {
            unfinished.abandon();
            Err(error)
        }
    }
}

/// Returns the content of the directory, if `init` may proceed with it.
fn admit(dir: &PoolDir, options: &InitOptions) -> Result<Found> {
    match examine(dir)? {
        Found::Occupied(what) if options.overwrite != Overwrite::Forced => {
            let advice = options.overwrite.advice();
            let message = format!("{} {what}; choose an empty directory{advice}", dir.root().display());
            Err(Error::new(ErrorKind::Exists, message))
        }
        found => Ok(found),
    }
}

fn examine(dir: &PoolDir) -> Result<Found> {
    let root = dir.root();
    let entries = match std::fs::read_dir(root) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            let text =
                format!("{} is a file, and a pool is a directory; --data FILE sets its data file", root.display());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Err(error) => return Err(path_error("cannot read the directory", root, error)),
        Ok(entries) => entries,
    };
    let mut other = None;
    let mut has_config = false;
    for entry in entries {
        let name = entry.map_err(|error| path_error("cannot read the directory", root, error))?.file_name();
        match name.to_str() {
            Some("pool.json") => has_config = true,
            // Remains of an `init` interrupted before step 2, and the usual entry in the root of a
            // new file system.
            Some("lock" | "pool.json.new" | "lost+found") => {}
            _ => other = Some(name),
        }
    }
    if has_config {
        return Ok(match dir.config() {
            Ok(Config { state: State::Initialising, data, .. }) => Found::Unfinished(data),
            Ok(_) => Found::Occupied("holds a pool already".to_owned()),
            Err(error) => Found::Occupied(format!("holds an unreadable pool ({error})")),
        });
    }
    Ok(match other {
        None => Found::Nothing,
        Some(name) => {
            // May be overwritten only if a `pool.json` names it.
            if name == "map" || name == "data" {
                let message = format!(
                    "{} has an entry '{}' but no pool.json; move it away, or choose another directory",
                    root.display(),
                    name.display()
                );
                return Err(Error::new(ErrorKind::Exists, message));
            }
            Found::Occupied(format!("is not empty (it has '{}')", name.display()))
        }
    })
}

/// File or device that holds the data.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Absent,
    File { bytes: u64 },
    BlockDevice { bytes: u64 },
}

impl Target {
    fn examine(path: &Path, may_overwrite: bool, overwrite: Overwrite) -> Result<Self> {
        let metadata = match std::fs::metadata(path) {
            // A file there would be in memory, and gone after a reboot: the user means a device.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && is_of_devices(path) => {
                return Err(path_error("there is no block device", path, error));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::Absent),
            Err(error) => return Err(path_error("cannot look at", path, error)),
            Ok(metadata) => metadata,
        };
        let refuse = |why: &str| {
            let message = format!("{} {why}; choose another place{}", path.display(), overwrite.advice());
            Err(Error::new(ErrorKind::Exists, message))
        };
        let kind = metadata.file_type();
        if kind.is_block_device() {
            let bytes = host::device_bytes(path).map_err(|error| path_error("cannot open", path, error))?;
            if !may_overwrite && !is_blank(path).map_err(|error| path_error("cannot read", path, error))? {
                return refuse("is not blank: it may hold a pool, a file system or a partition table");
            }
            return Ok(Self::BlockDevice { bytes });
        }
        if !kind.is_file() {
            let message = format!("{} is neither a file nor a block device", path.display());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if !may_overwrite && metadata.blocks() > 0 {
            return refuse("is not empty");
        }
        Ok(Self::File { bytes: metadata.len() })
    }
}

fn is_of_devices(path: &Path) -> bool {
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

fn is_blank(path: &Path) -> std::io::Result<bool> {
    use std::io::Read;
    let mut head = Vec::with_capacity(BLANK_BYTES);
    std::fs::File::open(path)?.take(BLANK_BYTES as u64).read_to_end(&mut head)?;
    Ok(head.iter().all(|byte| *byte == 0))
}

fn capacity(target: &Target, path: &Path, options: &InitOptions) -> Result<(u64, Option<String>)> {
    // Less than an extent is not rounded, so that the refusal names the requested size.
    let extent = u64::from(options.extent_bytes.max(1));
    let whole_extents = |bytes: u64| if bytes < extent { bytes } else { bytes - bytes % extent };
    match (options.capacity_bytes, target) {
        (Some(wanted), Target::BlockDevice { bytes }) if wanted > *bytes => {
            let message = format!(
                "{} has {}, less than the capacity of {}",
                path.display(),
                units::format_size(*bytes),
                units::format_size(wanted)
            );
            Err(Error::new(ErrorKind::Invalid, message))
        }
        (Some(wanted), _) => Ok((whole_extents(wanted), None)),
        (None, Target::BlockDevice { bytes }) => {
            // Reserves room for the copy of the superblock at its end, unless the device is then
            // too small for a pool.
            let with_end = format::superblock_end_offset(*bytes).map(whole_extents);
            let is_pool = |bytes: &u64| {
                let (capacity_bytes, extent_bytes) = (*bytes, options.extent_bytes);
                let properties = Properties::new();
                Pool::check_format(&FormatOptions { capacity_bytes, extent_bytes, properties }).is_ok()
            };
            let capacity = with_end.filter(is_pool).unwrap_or_else(|| whole_extents(*bytes));
            Ok((capacity, Some("the size of the device".to_owned())))
        }
        (None, Target::File { bytes }) if *bytes > 0 => {
            Ok((whole_extents(*bytes), Some("the size of the file".to_owned())))
        }
        (None, _) => {
            let parent = path.parent().unwrap_or(Path::new("/"));
            let free = host::free_bytes(parent).map_err(|error| path_error("cannot look at", parent, error))?;
            let why = format!("{FREE_SPACE_PERCENT} % of the {} that are free", units::format_size(free));
            Ok((whole_extents(free / 100 * FREE_SPACE_PERCENT), Some(why)))
        }
    }
}

/// Claims the data without changing it, so that every refusal comes before an old pool is removed.
/// A missing file is created only where a `pool.json` names its owner.
fn claim(dir: &PoolDir, data: &Path, target: &Target, capacity_bytes: u64) -> Result<Option<FileDisk>> {
    let claimed = match target {
        Target::Absent if !dir.config_path().exists() => return Ok(None),
        Target::Absent => FileDisk::create(data, capacity_bytes),
        Target::File { .. } | Target::BlockDevice { .. } => FileDisk::claim(data, capacity_bytes),
    };
    claimed.map(Some).map_err(refused)
}

fn refused(error: std::io::Error) -> Error {
    let is_too_large = error.kind() == std::io::ErrorKind::FileTooLarge;
    let advice = if is_too_large { "; choose a smaller --capacity, or a block device as --data" } else { "" };
    Error::new(kind_of(&error), format!("{error}{advice}"))
}

fn make(unfinished: &mut Unfinished, target: &Target, claimed: Option<FileDisk>, format: &FormatOptions) -> Result<()> {
    let (dir, data) = (&unfinished.dir, &unfinished.made.data);
    let map = dir.map_path();
    // An interrupted salvage leaves its temporary store.
    for old in [&map, &dir.salvage_path()] {
        match std::fs::remove_dir_all(old) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(path_error("cannot remove the old map in", old, error));
            }
            _ => {}
        }
    }
    // A file is emptied: old bytes must not be taken for a batch of the new log.
    let disk = match claimed {
        Some(disk) => disk.empty(format.capacity_bytes).map(|()| disk),
        None => FileDisk::create(data, format.capacity_bytes),
    };
    let disk = disk.map_err(refused)?;
    unfinished.has_made_data = disk.is_new();
    if matches!(target, Target::BlockDevice { .. }) {
        // An old superblock must not survive this step: it would make a half-made pool look like
        // the old one.
        let zeroes = AlignedBuf::new(BLANK_BYTES);
        disk.write_at(0, &zeroes, BLANK_BYTES)
            .and_then(|()| disk.sync())
            .map_err(|error| path_error("cannot write", data, error))?;
    }
    let store_options = FjallOptions { memory_bytes: FjallOptions::MEMORY_BYTES_MIN };
    let store = FjallStore::create(&map, store_options).map_err(store_error)?;
    Pool::format(&environment(disk, store), format)?;
    // Of a new directory, its own name as well.
    let above = dir.root().parent().filter(|_| !unfinished.had_directory);
    for path in [data.parent().unwrap_or(Path::new("/")), dir.root()].into_iter().chain(above) {
        host::sync_directory(path).map_err(|error| path_error("cannot sync", path, error))?;
    }
    Ok(())
}

/// Returns the path made absolute through its directory, so that the pool finds its data from any
/// working directory.
fn absolute(path: &Path) -> Result<PathBuf> {
    let Some(name) = path.file_name() else {
        return Err(Error::new(ErrorKind::Invalid, format!("{} is not the path of a file", path.display())));
    };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = parent.canonicalize().map_err(|error| path_error("cannot find the directory", parent, error))?;
    Ok(parent.join(name))
}
