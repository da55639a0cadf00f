//! What can go wrong with a blob, by what the caller can do about it.

use format::FormatError;

use crate::names::OpId;
use crate::told::told;
use units::shown;

/// An error of a blob.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed, again and again: try later, or look at the credentials if it says that
    /// they are refused.
    #[error("{what}: {}", told(.source))]
    Store {
        /// What was asked.
        what: String,
        /// What came back.
        #[source]
        source: object_store::Error,
    },
    /// An object's bytes are no valid object of their kind.
    #[error("{what}: {source}; `shale blob verify` lists all that is damaged")]
    Damaged {
        /// The object.
        what: String,
        /// What is wrong with it.
        #[source]
        source: FormatError,
    },
    /// An object was written by a newer program.
    #[error("{what}: {source}: a newer version of Shale wrote it; use that one here, too")]
    Newer {
        /// The object.
        what: String,
        /// Its format.
        #[source]
        source: FormatError,
    },
    /// An object that a version needs is not in the store.
    #[error(
        "{path} is not in the store, and the version needs it: it was deleted, or the version was given up and \
         collected while it was read; run `shale blob verify`"
    )]
    Lost {
        /// The object.
        path: String,
    },
    /// There is no blob at the key.
    #[error("there is no blob at {0}; `shale blob put` makes one")]
    Missing(String),
    /// A blob that is open is not in its store any more, without having been removed.
    #[error(
        "the blob at {0} is gone from its store, and nothing was written there: its objects were moved or deleted by hand, or the \
         store is not mounted; bring them back, or use another blob"
    )]
    Vanished(String),
    /// There is a blob at the key already.
    #[error("there is a blob at {0} already: choose another key, or remove that one with `shale blob rm` first")]
    Exists(String),
    /// The blob was removed; the key may have been born again under another incarnation.
    #[error("the blob was removed while it was in use: open it again if it was made anew")]
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
    /// The newest version is another one than that which the change was made on.
    #[error(
        "version {newest} is newer than version {base}, on which the change was made: give it to another key, \
         or put it in the place of that one on purpose"
    )]
    Changed {
        /// The version on which the change was made.
        base: u64,
        /// The newest version.
        newest: u64,
    },
    /// The upload took longer than uploads may take, and its packs may be deleted: upload again,
    /// under a new session.
    #[error(
        "the upload began before record {fence}, and `shale blob gc` has given up uploads that are so old; upload again"
    )]
    Fenced {
        /// Sessions born before this record are fenced.
        fence: u64,
    },
    /// The outcome is not known within the time given: the operation may have been done, or may be
    /// done later.
    #[error("the store did not say whether record {seq} was written; ask later with `shale blob log --op {op}`")]
    Unknown {
        /// The number that was tried last.
        seq: u64,
        /// The operation.
        op: OpId,
    },
    /// The operation does not make sense as things are.
    #[error("{0}")]
    Refused(String),
    /// The store breaks what the protocol assumes of it.
    #[error("{0}")]
    StoreLies(String),
    /// The stream of bytes that was to be stored failed.
    #[error("the data cannot be read: {0}")]
    Source(#[source] std::io::Error),
    /// The system's generator of random numbers failed.
    #[error("the system's random numbers cannot be read: {0}")]
    Entropy(#[source] std::io::Error),
}

/// Why bytes could not be had, as far as it decides about trying again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The store was not reached, or failed: later it may answer.
    Unreachable,
    /// The store refuses the credentials, or there are none: others may help.
    Denied,
    /// The blob, the version or an object of it is not there any longer.
    Gone,
    /// Bytes came, twice, that are not those that were stored.
    Damaged,
    /// The request itself is wrong, and stays so.
    Refused,
}

impl Error {
    /// Tells why, for what waits for bytes: whether to try again, and what to tell its user.
    pub fn cause(&self) -> Cause {
        match self {
            Self::Store { source, .. } if crate::told::is_without_credentials(source) => Cause::Denied,
            Self::Store { source, .. } if crate::told::is_without_bucket(source) => Cause::Gone,
            Self::Store { source, .. } if crate::told::is_refused(source) => Cause::Denied,
            Self::Store { .. } | Self::StoreLies(_) | Self::Unknown { .. } | Self::Source(_) | Self::Entropy(_) => {
                Cause::Unreachable
            }
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

    /// Tells whether the disk below the store is full.
    pub fn is_full(&self) -> bool {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        let Self::Store { source, .. } = self else { return false };
        matches!(crate::world::io_kind(source), Some(StorageFull | QuotaExceeded))
    }

    /// Names an object that does not decode.
    pub(crate) fn undecodable(what: impl Into<String>, source: FormatError) -> Self {
        let what = what.into();
        if source.is_newer { Self::Newer { what, source } } else { Self::Damaged { what, source } }
    }

    /// Wraps what the store answered.
    pub(crate) fn store(what: impl Into<String>, source: object_store::Error) -> Self {
        Self::Store { what: what.into(), source }
    }
}
