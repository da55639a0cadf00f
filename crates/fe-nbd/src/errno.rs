//! Maps errors of the surface to NBD's error codes; the only place that does.

use surface::ErrorKind;

/// The error codes of NBD, independent of the system's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errno {
    /// Not permitted.
    Perm,
    /// Input/output error.
    Io,
    /// Invalid argument.
    Inval,
    /// No space left.
    NoSpc,
    /// Larger than the announced maximum.
    Overflow,
    /// Not supported: a fast zeroing that would not be fast.
    NotSup,
}

impl Errno {
    /// The number on the wire.
    pub const fn code(self) -> u32 {
        match self {
            Self::Perm => 1,
            Self::Io => 5,
            Self::Inval => 22,
            Self::NoSpc => 28,
            Self::Overflow => 75,
            Self::NotSup => 95,
        }
    }
}

impl From<ErrorKind> for Errno {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Invalid | ErrorKind::Exists => Self::Inval,
            ErrorKind::InUse | ErrorKind::ReadOnly | ErrorKind::Conflict | ErrorKind::Denied => Self::Perm,
            ErrorKind::Full => Self::NoSpc,
            // A device that vanished under its client is to the client like one that broke.
            ErrorKind::NotFound | ErrorKind::Corrupt | ErrorKind::Io => Self::Io,
            ErrorKind::Unsupported => Self::NotSup,
        }
    }
}
