//! Errors, classified by the remedy. Mapped to an errno, a wire code or an exit code once, at the
//! edge.

use std::fmt;

/// Possible reaction of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request makes no sense (out of range, bad name, bad property): change it.
    Invalid,
    /// No such pool, volume or property.
    NotFound,
    /// The name is taken.
    Exists,
    /// Another process or client holds it: try later, or go through the holder.
    InUse,
    /// No space: free some, or grow the pool. Reads, discards and deletions still work.
    Full,
    /// Stored bytes failed verification. Repeating does not help.
    Corrupt,
    /// The storage below failed. Repeating may help.
    Io,
    /// It is a snapshot, which never changes: write elsewhere.
    ReadOnly,
    /// It is not in the state that the request expects (a stream for another parent): bring it to
    /// that state, or make another request.
    Conflict,
    /// Not supported by this version, kernel or file system.
    Unsupported,
    /// The caller's role does not allow it: ask an administrator.
    Denied,
}

impl ErrorKind {
    /// All kinds, in the order of their counts.
    pub const ALL: [Self; 11] = [
        Self::Invalid,
        Self::NotFound,
        Self::Exists,
        Self::InUse,
        Self::Full,
        Self::Corrupt,
        Self::Io,
        Self::ReadOnly,
        Self::Conflict,
        Self::Unsupported,
        Self::Denied,
    ];

    /// A stable name for `--json` output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::NotFound => "not-found",
            Self::Exists => "exists",
            Self::InUse => "in-use",
            Self::Full => "full",
            Self::Corrupt => "corrupt",
            Self::Io => "io",
            Self::ReadOnly => "read-only",
            Self::Conflict => "conflict",
            Self::Unsupported => "unsupported",
            Self::Denied => "denied",
        }
    }

    /// Returns the kind with that name; [`Self::Io`] for an unknown name.
    pub fn by_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|kind| kind.name() == name).unwrap_or(Self::Io)
    }
}

/// An error: its kind, a message that names the object, the offset, the expectation and the remedy,
/// and its cause.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error without a deeper cause.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// An error with the cause beneath it.
    pub fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { kind, message: message.into(), source: Some(source.into()) }
    }

    /// An I/O error of the system: ENOSPC becomes [`ErrorKind::Full`], all else [`ErrorKind::Io`].
    pub fn from_io(message: impl Into<String>, source: std::io::Error) -> Self {
        let kind = match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::Full,
            _ => ErrorKind::Io,
        };
        Self::with_source(kind, message, source)
    }

    /// Possible reaction of the caller.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Prefixes the message with the interrupted action.
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|s| s as &(dyn std::error::Error + 'static))
    }
}
