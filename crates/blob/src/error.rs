//! Errors of a blob, by what the caller can do about them. Holds no state.

use format::FormatError;

use crate::names::OpId;
use crate::store::store_errors::describe;
use units::shown;

/// An error of a blob.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed repeatedly: try later, or check the credentials if they are refused.
    #[error("{what}: {}", describe(.source))]
    Store {
        /// The request.
        what: String,
        /// The store's answer.
        #[source]
        source: object_store::Error,
    },
    /// The bytes of an object are not a valid object of its kind.
    #[error("{what}: {source}; `shale blob verify` lists all damage")]
    Damaged {
        /// The object.
        what: String,
        /// The fault in the bytes.
        #[source]
        source: FormatError,
    },
    /// An object was written by a newer program.
    #[error("{what}: {source}: a newer version of Shale wrote it; upgrade Shale on this machine")]
    Newer {
        /// The object.
        what: String,
        /// Its format.
        #[source]
        source: FormatError,
    },
    /// An object that a version needs is missing from the store.
    #[error(
        "{path} is not in the store, and the version needs it: it was deleted, or the version expired and was \
         collected during the read; run `shale blob verify`"
    )]
    Lost {
        /// The object.
        path: String,
    },
    /// There is no blob at the key.
    #[error("there is no blob at {0}; create one with `shale blob put`")]
    Missing(String),
    /// An open blob is missing from its store, although nobody removed it with Shale.
    #[error(
        "the blob at {0} is gone from its store, and nothing was written there: its objects were moved or deleted by hand, or the \
         store is not mounted; restore them or mount the store, or use another blob"
    )]
    Vanished(String),
    /// There is already a blob at the key.
    #[error("there is a blob at {0} already: choose another key, or remove that one with `shale blob rm` first")]
    Exists(String),
    /// The blob was removed; the key may have a new incarnation.
    #[error("the blob was removed while it was in use: open it again if it was created again")]
    Removed,
    /// The version does not exist.
    #[error("there is no version {0}; `shale blob log` lists them")]
    NoVersion(u64),
    /// No version has the tag.
    #[error("no version has the tag {}; `shale blob stat` lists the tags", shown(.0))]
    NoTag(String),
    /// The version expired.
    #[error("version {0} was given up; `shale blob log` shows the versions, and which of them are given up")]
    Expired(u64),
    /// The newest version is not the one on which the change is based.
    #[error(
        "version {newest} is newer than version {base}, on which the change is based: give it to another key, \
         or replace that version deliberately"
    )]
    Changed {
        /// The version on which the change is based.
        base: u64,
        /// The newest version.
        newest: u64,
    },
    /// The upload took longer than uploads may take, so its packs may be deleted: upload again, in
    /// a new session.
    #[error(
        "the upload began before record {fence}, and `shale blob gc` has expired uploads of that age; upload again"
    )]
    Fenced {
        /// Sessions born before this record are fenced.
        fence: u64,
    },
    /// The outcome is not known within the timeout: the operation may have been applied, or may be
    /// later.
    #[error("the store did not report whether record {seq} was written; check later with `shale blob log --op {op}`")]
    Unknown {
        /// The last number that was tried.
        seq: u64,
        /// The operation.
        op: OpId,
    },
    /// The operation is not valid in the current state.
    #[error("{0}")]
    Refused(String),
    /// The store violates an assumption of the protocol.
    #[error("{0}")]
    StoreInconsistent(String),
    /// The source stream of an upload failed.
    #[error("the data cannot be read: {0}")]
    Source(#[source] std::io::Error),
    /// The destination of a read failed.
    #[error("the data cannot be written: {0}")]
    Sink(#[source] std::io::Error),
    /// The system's random number generator failed.
    #[error("the system's random numbers cannot be read: {0}")]
    Entropy(#[source] std::io::Error),
}

/// The cause of a failed read, as far as it decides whether to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The store was not reached, or failed: it may answer later.
    Unreachable,
    /// The store refuses the credentials, or there are none: other credentials may help.
    Denied,
    /// The blob, the version or an object of it no longer exists.
    Gone,
    /// Two reads returned bytes that are not those that were stored.
    Damaged,
    /// The request itself is invalid, and trying again does not help.
    Refused,
}

impl Error {
    /// Returns the cause, from which a reader decides whether to try again.
    pub fn cause(&self) -> Cause {
        match self {
            Self::Store { source, .. } if crate::store::store_errors::lacks_credentials(source) => Cause::Denied,
            Self::Store { source, .. } if crate::store::store_errors::lacks_bucket(source) => Cause::Gone,
            Self::Store { source, .. } if crate::store::store_errors::is_refused(source) => Cause::Denied,
            Self::Store { .. }
            | Self::StoreInconsistent(_)
            | Self::Unknown { .. }
            | Self::Source(_)
            | Self::Sink(_)
            | Self::Entropy(_) => Cause::Unreachable,
            Self::Lost { .. }
            | Self::Missing(_)
            | Self::Vanished(_)
            | Self::Removed
            | Self::NoVersion(_)
            | Self::NoTag(_)
            | Self::Expired(_) => Cause::Gone,
            Self::Damaged { .. } => Cause::Damaged,
            Self::Exists(_) | Self::Changed { .. } | Self::Fenced { .. } | Self::Newer { .. } | Self::Refused(_) => {
                Cause::Refused
            }
        }
    }

    /// Returns whether it is about stored bytes, not about reaching them.
    pub(crate) const fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Lost { .. })
    }

    /// Returns whether the disk of the store is full.
    pub fn is_full(&self) -> bool {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        let Self::Store { source, .. } = self else { return false };
        matches!(crate::store::store_errors::io_kind(source), Some(StorageFull | QuotaExceeded))
    }

    /// Wraps the decoding error of an object.
    pub(crate) fn undecodable(what: impl Into<String>, source: FormatError) -> Self {
        let what = what.into();
        if source.is_newer { Self::Newer { what, source } } else { Self::Damaged { what, source } }
    }

    /// Wraps an error of the store.
    pub(crate) fn store(what: impl Into<String>, source: object_store::Error) -> Self {
        Self::Store { what: what.into(), source }
    }
}
