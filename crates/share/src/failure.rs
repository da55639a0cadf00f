//! Errors of the tree: an error number for the caller, logged with its cause if storage is at
//! fault.

use std::fmt;

use surface::ErrorKind;

/// An error number of `errno.h`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Failure(i32);

/// Result with a [`Failure`].
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Creates an error with that number.
    pub const fn new(errno: i32) -> Self {
        Self(errno)
    }

    /// The number.
    pub const fn errno(self) -> i32 {
        self.0
    }

    /// A failure of the namespace's store.
    pub(crate) fn store(doing: &str, error: impl fmt::Display) -> Self {
        log::error!("the namespace of a share failed while {doing}: {error}");
        Self(libc::EIO)
    }

    /// An invalid record.
    pub(crate) fn damaged(what: fmt::Arguments<'_>) -> Self {
        log::error!("the namespace of a share is damaged: {what}; run shale check for details");
        Self(libc::EIO)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

impl From<surface::Error> for Failure {
    fn from(error: surface::Error) -> Self {
        let errno = match error.kind() {
            ErrorKind::Full => libc::ENOSPC,
            ErrorKind::ReadOnly => libc::EROFS,
            ErrorKind::Invalid => libc::EFBIG,
            _ => libc::EIO,
        };
        if errno == libc::EIO {
            log::error!("{error}");
        }
        Self(errno)
    }
}

macro_rules! from_store {
    ($($kind:ident),*) => {
        $(impl From<redb::$kind> for Failure {
            fn from(error: redb::$kind) -> Self {
                Self::store("it reads or writes", error)
            }
        })*
    };
}

from_store!(StorageError, TableError, TransactionError, CommitError, DatabaseError, SetDurabilityError);
