//! Files of certificates, which are reloaded when they change. Owns the value that was made of
//! them last.
//!
//! Files that cannot be used leave the previous value in force. So does the removal of one that was
//! there: while a file is being replaced, the server must not admit every client, or those whose
//! certificates were revoked. Each change, and each fault, is reported once.

use std::io::ErrorKind as Io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use parking_lot::{Mutex, MutexGuard};
use surface::{Error, ErrorKind, Result};

use crate::server::Log;

/// A file and its content.
#[derive(Debug, Clone)]
pub struct FileContent {
    /// Its path.
    pub path: PathBuf,
    /// `None`: it does not exist.
    pub bytes: Option<Vec<u8>>,
}

impl FileContent {
    /// Returns the bytes of a file that must exist; `why` completes the message if it does not.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn required(&self, why: &str) -> Result<&[u8]> {
        let missing = || Error::new(ErrorKind::NotFound, format!("{} is missing{why}", self.path.display()));
        self.bytes.as_deref().ok_or_else(missing)
    }

    /// Returns the error that the file is invalid.
    pub fn invalid(&self, why: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Invalid, format!("{} cannot be used: {why}", self.path.display()))
    }
}

/// Makes a value of the files.
type Parse<T, const N: usize> = fn(&[FileContent; N]) -> Result<T>;

/// See the module's text.
pub struct CertificateFiles<T, const N: usize> {
    /// The part of the server that uses them.
    user: &'static str,
    paths: [PathBuf; N],
    parse: Parse<T, N>,
    log: Option<Log>,
    current: Mutex<Current<T, N>>,
}

struct Current<T, const N: usize> {
    /// The files at the last look.
    stamps: [Stamp; N],
    value: T,
    /// Whether each file existed when the value was made.
    is_there: [bool; N],
    /// The reason why the value was kept at the last look; `None`: there was none.
    fault: Option<String>,
}

/// Identity, length and times of change of a file; `None`: it does not exist.
type Stamp = Option<(u64, u64, u64, [i64; 4])>;

impl<T: Clone, const N: usize> CertificateFiles<T, N> {
    /// Loads the files. `log` receives a line for each later change.
    ///
    /// # Errors
    /// Those of reading them, and of `parse`.
    pub fn load(user: &'static str, paths: [PathBuf; N], parse: Parse<T, N>, log: Option<Log>) -> Result<Self> {
        // Before they are read: a change in between is seen by the next look.
        let stamps = stamps(&paths);
        let files = read(&paths)?;
        let current = Current { stamps, value: parse(&files)?, is_there: presence(&files), fault: None };
        Ok(Self { user, paths, parse, log, current: Mutex::new(current) })
    }

    /// Returns the value of the files as they are now.
    pub fn current(&self) -> T {
        self.look(Ok(())).0.value.clone()
    }

    /// Returns the value if it has changed since the last look. `prepared`: the result of preparing
    /// the files, which are not read after an error.
    pub fn changed(&self, prepared: Result<()>) -> Option<T> {
        let (current, is_new) = self.look(prepared);
        is_new.then(|| current.value.clone())
    }

    fn look(&self, prepared: Result<()>) -> (MutexGuard<'_, Current<T, N>>, bool) {
        let mut current = self.current.lock();
        let reloaded = prepared.and_then(|()| self.reload(&mut current));
        let line = match &reloaded {
            Ok(false) => return (current, false),
            Ok(true) => format!("{} uses new certificates", self.user),
            Err(error) => format!("{} keeps its current certificates: {error}", self.user),
        };
        let fault = reloaded.is_err().then_some(line.clone());
        let is_known = fault.is_some() && fault == current.fault;
        current.fault = fault;
        if let Some(log) = self.log.as_ref().filter(|_| !is_known) {
            log(&line);
        }
        (current, reloaded.is_ok())
    }

    /// Makes the value again if the files have changed since they were last read; returns whether
    /// it did.
    fn reload(&self, current: &mut Current<T, N>) -> Result<bool> {
        let stamps = stamps(&self.paths);
        if stamps == current.stamps {
            return Ok(false);
        }
        let files = read(&self.paths)?;
        // A failed read is repeated by the next look.
        current.stamps = stamps;
        let is_there = presence(&files);
        if let Some(gone) = (0..N).find(|at| current.is_there[*at] && !is_there[*at]) {
            return Err(Error::new(ErrorKind::NotFound, format!("{} is gone", self.paths[gone].display())));
        }
        (current.value, current.is_there) = ((self.parse)(&files)?, is_there);
        Ok(true)
    }
}

fn presence<const N: usize>(files: &[FileContent; N]) -> [bool; N] {
    files.each_ref().map(|file| file.bytes.is_some())
}

fn stamps<const N: usize>(paths: &[PathBuf; N]) -> [Stamp; N] {
    paths.each_ref().map(|path| {
        let meta = path.metadata().ok()?;
        let times = [meta.ctime(), meta.ctime_nsec(), meta.mtime(), meta.mtime_nsec()];
        Some((meta.dev(), meta.ino(), meta.len(), times))
    })
}

fn read<const N: usize>(paths: &[PathBuf; N]) -> Result<[FileContent; N]> {
    let mut files = paths.each_ref().map(|path| FileContent { path: path.clone(), bytes: None });
    for file in &mut files {
        file.bytes = match std::fs::read(&file.path) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == Io::NotFound => None,
            Err(error) => return Err(Error::from_io(format!("cannot read {}", file.path.display()), error)),
        };
    }
    Ok(files)
}
