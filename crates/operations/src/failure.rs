//! Failures of commands and their exit codes. The only place where an [`ErrorKind`] becomes an exit
//! code.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use surface::{Error, ErrorKind};

/// Text of the exit codes for `--help` and the man page.
pub const EXIT_CODES_HELP: &str = "\
Exit codes:
    0  done
    1  anything not listed below
    2  usage: an unknown flag, a bad size, name or property
    3  not found: no such pool, volume, property or file
    4  in use: another process or client holds it, or snapshots depend on it
    5  full: no space in the pool, or below it
    6  corrupt: stored bytes failed verification
    7  I/O error of the storage below, or no permission to use it
    8  exists already
    9  unsupported by this version, kernel or file system
   10  read-only: a snapshot never changes
   11  conflict: a stream does not fit its volume, or a push is behind a newer version
   12  salvage or check --repair is done, but something is lost: see its report
   13  unknown: the object store did not tell whether a commit was done
   14  denied: the caller's role does not allow it
  130  interrupted by a signal, or the job that the command watches was cancelled
With --json an error is printed on stdout as {\"error\":{\"kind\":...,\"message\":...}}, with the kind
internal, invalid, not-found, in-use, full, corrupt, io, exists, unsupported, read-only, conflict, denied, unknown or interrupted.";

/// Exit code of a salvage or a repair that lost something.
const LOSSY_CODE: u8 = 12;
/// Exit code of a commit whose outcome is not known.
const UNKNOWN_CODE: u8 = 13;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// An error of known kind.
    Error(Error),
    /// None of the kinds fits.
    Internal(String),
    /// A signal stopped the command; the message names the unfinished work.
    Interrupted(String),
    /// The outcome of a request to the store is unknown; the message says how to check it later.
    Unknown(String),
    /// Everything was said already (a report on stdout): only the exit code is left.
    Reported(ErrorKind),
    /// Salvage or a repair has named the losses: only the exit code is left.
    Lossy,
}

/// Result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Ends a command that a signal has interrupted: the flag says so.
///
/// # Errors
/// [`Failure::Interrupted`].
pub fn stop_if(interrupted: &AtomicBool) -> Outcome {
    if interrupted.load(Ordering::SeqCst) { Err(Failure::Interrupted("interrupted".to_owned())) } else { Ok(()) }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Failure {
    /// Puts the interrupted action in front of the message.
    #[must_use]
    pub fn context(self, what: impl fmt::Display) -> Self {
        match self {
            Self::Error(error) => Self::Error(error.context(what)),
            Self::Internal(message) => Self::Internal(format!("{what}: {message}")),
            Self::Interrupted(message) => Self::Interrupted(format!("{what}: {message}")),
            Self::Unknown(message) => Self::Unknown(format!("{what}: {message}")),
            Self::Reported(kind) => Self::Reported(kind),
            Self::Lossy => Self::Lossy,
        }
    }

    /// Appends advice to the message.
    #[must_use]
    pub fn with(self, way: &str) -> Self {
        match self {
            Self::Error(error) => {
                let text = format!("{error}{way}");
                Self::Error(Error::new(error.kind(), text))
            }
            Self::Internal(message) => Self::Internal(message + way),
            Self::Interrupted(message) => Self::Interrupted(message + way),
            other => other,
        }
    }

    /// The process's exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Error(error) => code_of(error.kind()),
            Self::Reported(kind) => code_of(*kind),
            Self::Internal(_) => 1,
            Self::Lossy => LOSSY_CODE,
            Self::Unknown(_) => UNKNOWN_CODE,
            Self::Interrupted(_) => 130,
        }
    }

    /// The name of its kind, in JSON.
    pub fn kind_name(&self) -> &'static str {
        match self {
            Self::Error(error) => error.kind().name(),
            Self::Reported(kind) => kind.name(),
            Self::Internal(_) => "internal",
            Self::Lossy => "corrupt",
            Self::Unknown(_) => "unknown",
            Self::Interrupted(_) => "interrupted",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => error.fmt(f),
            Self::Internal(message) | Self::Interrupted(message) | Self::Unknown(message) => f.write_str(message),
            Self::Reported(kind) => f.write_str(kind.name()),
            Self::Lossy => f.write_str("something is lost"),
        }
    }
}

/// The exit code of a kind.
pub const fn code_of(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Invalid => 2,
        ErrorKind::NotFound => 3,
        ErrorKind::InUse => 4,
        ErrorKind::Full => 5,
        ErrorKind::Corrupt => 6,
        ErrorKind::Io => 7,
        ErrorKind::Exists => 8,
        ErrorKind::Unsupported => 9,
        ErrorKind::ReadOnly => 10,
        ErrorKind::Conflict => 11,
        ErrorKind::Denied => 14,
    }
}

/// The HTTP status of a kind. An error about a request that cannot be understood at all is a 400
/// instead, which the caller of this knows.
pub const fn http_status(kind: ErrorKind) -> u16 {
    match kind {
        ErrorKind::Invalid => 422,
        ErrorKind::NotFound => 404,
        ErrorKind::InUse | ErrorKind::Exists | ErrorKind::ReadOnly | ErrorKind::Conflict => 409,
        ErrorKind::Full => 507,
        ErrorKind::Corrupt | ErrorKind::Io => 500,
        ErrorKind::Unsupported => 501,
        ErrorKind::Denied => 403,
    }
}

/// The kind of an I/O error on a path or address that the user named. Errors without a kind of
/// their own are [`ErrorKind::Io`].
pub fn kind_of(error: &std::io::Error) -> ErrorKind {
    use std::io::ErrorKind as Io;
    match error.kind() {
        Io::NotFound => ErrorKind::NotFound,
        Io::AlreadyExists => ErrorKind::Exists,
        Io::InvalidInput | Io::IsADirectory | Io::NotADirectory | Io::InvalidFilename | Io::FileTooLarge => {
            ErrorKind::Invalid
        }
        Io::WouldBlock | Io::ResourceBusy | Io::AddrInUse => ErrorKind::InUse,
        Io::Unsupported => ErrorKind::Unsupported,
        Io::StorageFull | Io::QuotaExceeded => ErrorKind::Full,
        _ => ErrorKind::Io,
    }
}

/// The error for a failed operation on a path that the user named.
pub fn path_error(what: impl fmt::Display, path: &std::path::Path, error: std::io::Error) -> Error {
    Error::with_source(kind_of(&error), format!("{what} {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [ErrorKind; 11] = [
        ErrorKind::Invalid,
        ErrorKind::NotFound,
        ErrorKind::InUse,
        ErrorKind::Full,
        ErrorKind::Corrupt,
        ErrorKind::Io,
        ErrorKind::Exists,
        ErrorKind::Unsupported,
        ErrorKind::ReadOnly,
        ErrorKind::Conflict,
        ErrorKind::Denied,
    ];

    #[test]
    fn codes_are_distinct_and_documented() {
        let mut seen = std::collections::BTreeSet::from([0, 1, LOSSY_CODE, UNKNOWN_CODE, 130]);
        assert!(EXIT_CODES_HELP.contains(&format!("\n{LOSSY_CODE:>5}  ")));
        for kind in ALL {
            assert!(seen.insert(code_of(kind)), "{kind:?} shares its code");
            assert!((400..600).contains(&http_status(kind)), "{kind:?} is no failure over HTTP");
            assert!(EXIT_CODES_HELP.contains(&format!("\n{:>5}  ", code_of(kind))), "{kind:?} is not documented");
            assert!(EXIT_CODES_HELP.contains(kind.name()), "{kind:?} is not named");
            let row = format!("\n| {} | {} | ", code_of(kind), kind.name());
            assert!(include_str!("../../../docs/OPERATIONS.md").contains(&row), "{kind:?} is not in OPERATIONS");
        }
    }

    #[test]
    fn a_missing_file_is_not_found() {
        let path = std::path::Path::new("/nonexistent/x");
        let error = path_error("cannot open", path, std::io::Error::from(std::io::ErrorKind::NotFound));
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("/nonexistent/x"), "{error}");
    }
}
