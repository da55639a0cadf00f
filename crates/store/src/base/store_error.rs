//! Failures of the map store, as errors of the pool.
#![warn(missing_docs, reason = "`engine` exports these types")]

use env::MapError;
use surface::{Error, ErrorKind};

/// Maps a failure of the store to the kind that says how a caller can react.
pub fn store_error_kind(error: &MapError) -> ErrorKind {
    match (error.corrupt, error.full) {
        (true, _) => ErrorKind::Corrupt,
        (false, true) => ErrorKind::Full,
        (false, false) => ErrorKind::Io,
    }
}

/// The error for a failure of the store.
pub fn store_error(error: MapError) -> Error {
    Error::with_source(store_error_kind(&error), "the pool's metadata could not be read or written", error)
}
