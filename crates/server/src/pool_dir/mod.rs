//! The directory of a pool: its entries and its possible states.
//!
//! | entry | content |
//! | --- | --- |
//! | `pool.json` | place of the data, and whether the creation finished; written atomically |
//! | `lock` | held by the process that has the pool open |
//! | `control.sock` | control socket of the running server |
//! | `serve.log` | messages of servers in the background, unless they have another file |
//! | `map/` | the map store |
//! | `data` | the log, unless it was put elsewhere |
//! | `standby` | directory of the server's standby memory, if it is not the default |
//! | `reserve` | room for the map when the file system is full |
//! | `access.json` | users and tokens of the HTTP front end |
//! | `http.pem` | the front end's own certificate and key |
//! | `audit/` | the audit log |
//! | `jobs` | the last number of a job |
//! | `salvage.tmp/` | working files of a salvage into this pool: a store, a copy of the old map |
//!
//! States: no `pool.json`: no pool. `state` is `initialising`: `init`, or a `salvage` into this
//! pool, is running or was interrupted; either may be repeated, and may overwrite the named data;
//! nothing else opens the pool. `state` is `ready`: a pool.

mod belongs;
mod config;
mod init;
mod mend;
mod open;
mod reserve;
mod standby;
mod wait;

pub use belongs::refuse_part_of_pool;
pub use config::{Config, State};
pub use init::{InitOptions, Made, Overwrite, Unfinished, begin, init};
pub use mend::mend_description;
pub use open::{
    MEMORY_BYTES_MIN, OpenPool, Opening, busy, environment, lock_alone, lock_for_reading, open_locked, open_to_serve,
    store_error,
};
pub use standby::{ServeStandby, parse_standby, promise};
pub use wait::{Access, wait_for};

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use surface::{Error, ErrorKind, Result};

use env::PoolLock;

use operations::kind_of;

/// Paths in a pool's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolDir {
    root: PathBuf,
}

impl PoolDir {
    /// Refers to that directory, which need not exist.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }
    /// Returns the directory.
    pub fn root(&self) -> &Path {
        &self.root
    }
    /// `pool.json`.
    pub fn config_path(&self) -> PathBuf {
        self.root.join("pool.json")
    }
    /// `lock`.
    pub fn lock_path(&self) -> PathBuf {
        self.root.join("lock")
    }
    /// `control.sock`.
    pub fn control_path(&self) -> PathBuf {
        self.root.join("control.sock")
    }
    /// `nbd.sock`, where a server listens by default.
    pub fn nbd_path(&self) -> PathBuf {
        self.root.join("nbd.sock")
    }
    /// `keeper.sock`, where a keeper of mounts waits for the next server.
    pub fn keeper_path(&self) -> PathBuf {
        self.root.join("keeper.sock")
    }
    /// `serve.log`, where a server in the background writes by default.
    pub fn log_path(&self) -> PathBuf {
        self.root.join("serve.log")
    }
    /// `jobs`.
    pub fn jobs_path(&self) -> PathBuf {
        self.root.join("jobs")
    }
    /// `map/`.
    pub fn map_path(&self) -> PathBuf {
        self.root.join("map")
    }
    /// `salvage.tmp/`.
    pub fn salvage_path(&self) -> PathBuf {
        self.root.join("salvage.tmp")
    }

    /// Reads `pool.json` in any state.
    ///
    /// # Errors
    /// `NotFound` when there is no pool, `Corrupt` when the file is invalid, or when there is a map
    /// but no file.
    pub fn config(&self) -> Result<Config> {
        let path = self.config_path();
        match std::fs::read(&path) {
            Ok(bytes) => Config::decode(&bytes).map_err(|error| {
                let is_damaged = error.kind() == ErrorKind::Corrupt;
                let error = error.context(path.display());
                if is_damaged {
                    Error::new(error.kind(), format!("{error}; {}", self.description_advice()))
                } else {
                    error
                }
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && self.map_path().is_dir() => {
                let message =
                    format!("the pool has lost its description {}; {}", path.display(), self.description_advice());
                Err(Error::new(ErrorKind::Corrupt, message))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let here = self.root.display();
                let message = format!("there is no pool in {here}; create one with: shale init {here}");
                Err(Error::new(ErrorKind::NotFound, message))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
                let message = format!("there is no pool in {}: it is not a directory", self.root.display());
                Err(Error::new(ErrorKind::NotFound, message))
            }
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                let text = format!("cannot read {} (only root and the pool's owner can)", path.display());
                Err(Error::from_io(text, error))
            }
            Err(error) => Err(Error::from_io(format!("cannot read {}", path.display()), error)),
        }
    }

    /// Reads `pool.json` of a pool that can be opened.
    ///
    /// # Errors
    /// As [`config`](Self::config), and `NotFound` when `init` or `salvage` did not finish.
    pub fn ready_config(&self) -> Result<Config> {
        let config = self.config()?;
        match config.state {
            State::Ready => Ok(config),
            State::Initialising => {
                let here = self.root.display();
                let message = format!(
                    "the creation of the pool in {here} was never finished; unless it is still under way, repeat the shale \
                     init or shale salvage that began it"
                );
                Err(Error::new(ErrorKind::NotFound, message))
            }
        }
    }

    /// Takes the pool's lock, or returns a description of its holder.
    ///
    /// # Errors
    /// When the lock file cannot be used.
    pub fn lock(&self) -> Result<std::result::Result<PoolLock, String>> {
        match PoolLock::acquire(&self.root) {
            Ok(lock) => Ok(Ok(lock)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(Err(error.to_string())),
            Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => {
                let message = format!(
                    "{error}; opening a pool writes to it: copy it elsewhere, or rescue its volumes with: shale \
                     salvage {} --into NEW",
                    self.root.display()
                );
                Err(Error::new(kind_of(&error), message))
            }
            Err(error) => Err(Error::new(kind_of(&error), error.to_string())),
        }
    }

    /// Advice for a description that is lost or damaged.
    fn description_advice(&self) -> String {
        let root = self.root.display();
        format!(
            "shale check {root} --repair rebuilds it if the data lies in {root}/data; otherwise restore it from a \
             copy, or {}",
            self.salvage_advice()
        )
    }

    /// Advice for a map that is lost or beyond repair.
    pub fn salvage_advice(&self) -> String {
        format!(
            "rebuild the pool from its log, as a second pool, with: shale salvage {} --into NEW",
            self.root.display()
        )
    }
}

/// Maximum length of a socket's path in bytes, without the terminating zero (`sun_path` of
/// unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// A name for a socket that fits `sun_path`, however long its real path is.
#[derive(Debug)]
pub struct ShortSocketPath {
    path: PathBuf,
    /// Keeps the directory open through which `path` leads.
    _dir: Option<std::fs::File>,
}

impl ShortSocketPath {
    /// Returns the name, which is valid as long as self lives.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns a short name for the socket `path`: the path itself if it fits, else one through
/// `/proc/self/fd`.
///
/// # Errors
/// When its directory cannot be opened.
pub fn short_socket_path(path: &Path) -> std::io::Result<ShortSocketPath> {
    if path.as_os_str().as_bytes().len() <= SOCKET_PATH_BYTES_MAX {
        return Ok(ShortSocketPath { path: path.to_owned(), _dir: None });
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(std::io::ErrorKind::InvalidInput.into());
    };
    let dir = std::fs::File::open(parent)?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&dir);
    Ok(ShortSocketPath { path: PathBuf::from(format!("/proc/self/fd/{fd}")).join(name), _dir: Some(dir) })
}

#[cfg(test)]
mod tests {
    use testkit::TempDir;

    use super::*;

    #[test]
    fn a_long_path_still_gives_a_usable_socket() {
        let root = TempDir::new("sock");
        let deep = root.path().join("d".repeat(120));
        std::fs::create_dir_all(&deep).unwrap();
        let socket = deep.join("control.sock");
        let short = short_socket_path(&socket).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(short.path()).unwrap();
        assert!(socket.exists());
        let again = short_socket_path(&socket).unwrap();
        let client = std::os::unix::net::UnixStream::connect(again.path());
        drop((listener, client.unwrap()));
    }

    #[test]
    fn absent_and_unfinished_pools_are_told_apart() {
        let temporary = TempDir::new("states");
        let root = temporary.path().join("pool");
        let dir = PoolDir::new(&root);
        let absent = dir.ready_config().unwrap_err();
        assert_eq!(absent.kind(), ErrorKind::NotFound);
        assert!(absent.to_string().contains("there is no pool"), "{absent}");

        std::fs::create_dir_all(&root).unwrap();
        let mut config = Config { state: State::Initialising, data: "data".into(), created_unix_s: 1 };
        config.write(&dir.config_path()).unwrap();
        let unfinished = dir.ready_config().unwrap_err();
        assert!(unfinished.to_string().contains("never finished"), "{unfinished}");

        config.state = State::Ready;
        config.write(&dir.config_path()).unwrap();
        assert_eq!(dir.ready_config().unwrap(), config);

        std::fs::write(dir.config_path(), b"{").unwrap();
        assert_eq!(dir.ready_config().unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
