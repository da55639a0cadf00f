//! Opens a pool: its lock, its data, its map, and the engine on them.

use std::ops::ControlFlow;
use std::sync::Arc;

use engine::{Pool, PoolEnv, PoolOptions};
use env::{FileDisk, FjallOptions, FjallStore, MapError, PoolLock, SystemClock, SystemEntropy};
use surface::{Error, ErrorKind, Result};

use super::standby::tell_standby;
use super::{Access, Config, PoolDir, ServeStandby, wait_for};
use crate::control::Client;
use crate::images::{Images, place_of, pool_holder};
use crate::service::{Facts, Service};
use crate::share_journals::Journals;
use operations::{kind_of, path_error};

/// Maximum memory of the map store. Beyond this the engine's own cache of decoded groups serves
/// better.
const STORE_MEMORY_BYTES_MAX: u64 = 256 << 20;
/// Minimum memory of a pool: the write buffer and the caches must each hold a few requests of the
/// largest size.
pub const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// An open pool with its lock.
pub struct OpenPool {
    /// Answers requests.
    pub service: Arc<Service>,
    dir: PoolDir,
    lock: Arc<PoolLock>,
}

impl OpenPool {
    /// Closes the pool, then releases the lock.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn close(self) -> Result<()> {
        let closed = self.service.close();
        drop(self.service);
        self.dir.keep_reserve();
        drop(self.lock);
        closed
    }
}

/// Options for opening a pool.
#[derive(Debug, Clone, Copy)]
pub struct Opening {
    /// Memory for buffers and caches.
    pub memory_bytes: u64,
    /// See [`PoolOptions::repair`].
    pub repair: bool,
    /// See [`PoolOptions::accept_loss`].
    pub accept_loss: bool,
}

impl Opening {
    /// Opens the pool without repair, with so much memory.
    pub const fn usual(memory_bytes: u64) -> Self {
        Self { memory_bytes, repair: false, accept_loss: false }
    }
}

/// Takes the lock of a pool for a command that cannot go through a server; waits for other commands
/// as long as `access` permits, but not for a server.
///
/// # Errors
/// `NotFound`, `InUse`.
pub fn lock_alone(dir: &PoolDir, access: &Access) -> Result<Arc<PoolLock>> {
    wait_for(access, |is_last| {
        dir.ready_config()?;
        match dir.lock()? {
            Ok(lock) => Ok(ControlFlow::Break(Arc::new(lock))),
            Err(holder) => taken(dir, &holder, !is_last || access.wait == 0),
        }
    })
}

/// Takes the lock of a pool that may be damaged, for commands that only read its data. Waits as
/// [`lock_alone`] does. `None`: the medium is read-only, so that no other process can have the pool
/// open either.
///
/// # Errors
/// `NotFound`, `InUse`.
pub fn lock_for_reading(dir: &PoolDir, access: &Access) -> Result<Option<PoolLock>> {
    wait_for(access, |is_last| match PoolLock::acquire(&dir.root) {
        Ok(lock) => Ok(ControlFlow::Break(Some(lock))),
        Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => Ok(ControlFlow::Break(None)),
        Err(error) => {
            let (kind, text) = (kind_of(&error), error.to_string());
            if kind == ErrorKind::InUse {
                taken(dir, &text, !is_last || access.wait == 0)
            } else {
                Err(Error::new(kind, text))
            }
        }
    })
}

/// Handles a pool that another process holds. A server is not worth waiting for; `ask` only once,
/// because connecting to a hung server takes long.
fn taken<T>(dir: &PoolDir, holder: &str, ask: bool) -> Result<ControlFlow<T, Error>> {
    if ask && Client::connect(&dir.control_path()).is_ok() {
        return Err(Error::new(ErrorKind::InUse, format!("{holder}, which serves it: stop that first")));
    }
    Ok(ControlFlow::Continue(busy(holder)))
}

/// Error for a pool whose holder is not a server that answers.
pub fn busy(holder: &str) -> Error {
    let text = "another command, or a server that is starting or stopping: --wait SECONDS waits longer for it";
    Error::new(ErrorKind::InUse, format!("{holder}, {text}"))
}

/// Opens a pool whose lock is held.
///
/// # Errors
/// `Invalid` for too little memory, and errors of the system and the engine.
pub fn open_locked(dir: &PoolDir, lock: Arc<PoolLock>, how: Opening) -> Result<OpenPool> {
    open_with(dir, &dir.ready_config()?, lock, how)
}

/// As [`open_locked`], for a server, which keeps acknowledged data in standby memory.
///
/// # Errors
/// As [`open_locked`], and when the directory for standby memory cannot be used.
pub fn open_to_serve(dir: &PoolDir, lock: Arc<PoolLock>, how: Opening, standby: &ServeStandby) -> Result<OpenPool> {
    let pool = open_in(dir, &dir.ready_config()?, lock, how, Some(standby))?;
    pool.service.jobs().keep_numbers(dir.jobs_path());
    Ok(pool)
}

/// As [`open_locked`], for a pool in any state, with its description given.
pub(super) fn open_with(dir: &PoolDir, config: &Config, lock: Arc<PoolLock>, how: Opening) -> Result<OpenPool> {
    open_in(dir, config, lock, how, None)
}

fn open_in(
    dir: &PoolDir,
    config: &Config,
    lock: Arc<PoolLock>,
    how: Opening,
    standby: Option<&ServeStandby>,
) -> Result<OpenPool> {
    let memory_bytes = how.memory_bytes;
    if memory_bytes < MEMORY_BYTES_MIN {
        let least = units::format_size(MEMORY_BYTES_MIN);
        return Err(Error::new(ErrorKind::Invalid, format!("--memory must be at least {least}")));
    }
    let root = dir.root().canonicalize().map_err(|error| path_error("cannot find", dir.root(), error))?;
    let data = root.join(&config.data);
    let store_bytes = (memory_bytes / 8).clamp(FjallOptions::MEMORY_BYTES_MIN, STORE_MEMORY_BYTES_MAX);
    let map = dir.map_path();
    if !map.is_dir() {
        let advice = dir.salvage_advice();
        let message = format!("the pool has lost its map: {} is not a directory; {advice}", map.display());
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    let disk = FileDisk::open(&data)
        .map_err(|error| Error::new(kind_of(&error), error.to_string()).context("the pool's data cannot be opened"))?;
    dir.use_reserve();
    let store_options = FjallOptions { memory_bytes: store_bytes };
    let opened = match how.repair {
        true => FjallStore::open_for_repair(&map, store_options),
        false => FjallStore::open(&map, store_options).map(|store| (store, Vec::new())),
    };
    let (store, made) = opened.map_err(|error| match error.corrupt {
        true => damaged_map(dir, &error),
        false => store_error(error),
    })?;
    for file in made {
        log::warn!("{} was lost or damaged: it was rebuilt", file.display());
    }
    let mut environment = environment(disk, store);
    let beside = Arc::new(dir.standby(&data, standby)?);
    environment.standby = Some(beside.clone());
    let images = Arc::new(Images::default());
    environment.origins = Some(images.clone());
    let options = PoolOptions {
        memory_bytes: memory_bytes - store_bytes,
        workers: std::thread::available_parallelism().map_or(2, std::num::NonZero::get),
        repair: how.repair,
        accept_loss: how.accept_loss,
        standby_bytes_max: if matches!(standby, Some(ServeStandby::In(_))) { usize::MAX } else { 0 },
        ..PoolOptions::default()
    };
    let place = place_of(&data, &root).map_err(|error| path_error("cannot look at", &data, error))?;
    let pool = Pool::open(environment, options).map_err(|error| match store_damage(&error) {
        Some(damage) => damaged_map(dir, damage),
        None if error.kind() == ErrorKind::NotFound => foreign_data(dir, &data, &error),
        None => error,
    })?;
    tell_standby(&pool.status().standby);
    dir.keep_reserve();
    if let Some(end) = pool.torn_end() {
        log::warn!("the pool was not closed in order: {end}");
    }
    let holder = pool_holder(&pool.status().id, &place);
    let journals = Journals::new(&pool, beside);
    journals.bring_back(&pool);
    // All earlier standby memory was taken over or set aside.
    if matches!(standby, Some(ServeStandby::In(_)))
        && journals.left().is_empty()
        && let Err(error) = dir.forget_earlier_standby()
    {
        // The threads of a dropped pool would continue, and keep its data and its map in use.
        drop(pool.close());
        return Err(error);
    }
    let facts = Facts { pool: root, data, memory_bytes, holder };
    Ok(OpenPool { service: Arc::new(Service::new(pool, facts, journals, images)), dir: dir.clone(), lock })
}

/// Environment of a pool: the real disk, store, clock and generator.
pub fn environment(disk: FileDisk, store: FjallStore) -> PoolEnv {
    PoolEnv {
        disk: Arc::new(disk),
        store: Arc::new(store),
        clock: Arc::new(SystemClock::default()),
        entropy: Arc::new(SystemEntropy),
        standby: None,
        origins: None,
    }
}

/// Returns the damage that the map store's own checksums found, if it caused the engine's error.
fn store_damage(error: &Error) -> Option<&MapError> {
    std::error::Error::source(error)?.downcast_ref::<MapError>().filter(|found| found.corrupt)
}

/// Error for a map whose files are damaged: the advice first, the message of the store last.
fn damaged_map(dir: &PoolDir, found: &MapError) -> Error {
    let (map, advice) = (dir.map_path(), dir.salvage_advice());
    Error::new(ErrorKind::Corrupt, format!("the pool's map in {} is damaged; {advice} ({found})", map.display()))
}

/// Error for data without a superblock: according to the directory, a pool was made with it.
fn foreign_data(dir: &PoolDir, data: &std::path::Path, error: &Error) -> Error {
    let (root, data) = (dir.root().display(), data.display());
    let text = format!(
        "the data of the pool in {root} is gone from {data} ({error}): it was emptied, overwritten, or replaced by \
         another file or device; restore it from a copy that was made together with {root}"
    );
    Error::new(ErrorKind::Corrupt, text)
}

/// Converts an error of the map store for the user.
pub fn store_error(error: MapError) -> Error {
    Error::with_source(engine::store_error_kind(&error), "the pool's map cannot be used", error)
}

#[cfg(test)]
mod tests {
    use testkit::TempDir;

    use super::*;
    use crate::pool_dir::{InitOptions, Overwrite, init};

    /// The pool was dropped without being closed: its threads kept the data in use.
    #[test]
    fn a_pool_is_closed_if_its_opening_fails_late() {
        let temporary = TempDir::new("open-late");
        let standby = temporary.join("standby");
        std::fs::create_dir(&standby).unwrap();
        let dir = PoolDir::new(&temporary.join("pool"));
        let options = InitOptions {
            data: None,
            capacity_bytes: Some(64 << 20),
            extent_bytes: 1 << 20,
            properties: Default::default(),
            overwrite: Overwrite::Never,
        };
        init(&dir, &options).unwrap();
        let open = || {
            let lock = Arc::new(dir.lock()?.map_err(|holder| Error::new(ErrorKind::InUse, holder))?);
            open_to_serve(&dir, lock, Opening::usual(MEMORY_BYTES_MIN), &ServeStandby::In(standby.clone()))
        };
        // An earlier server had its memory elsewhere, and this one cannot drop that line.
        let (note, in_the_way) = (dir.root().join("standby"), dir.root().join("standby.new"));
        std::fs::write(&note, format!("/dev/shm\n{}", standby.display())).unwrap();
        std::fs::create_dir(&in_the_way).unwrap();
        let error = open().err().unwrap();
        assert!(error.to_string().contains(&note.display().to_string()), "{error}");
        std::fs::remove_dir(&in_the_way).unwrap();
        open().unwrap().close().unwrap();
        assert_eq!(std::fs::read_to_string(&note).unwrap(), standby.display().to_string());
    }
}
