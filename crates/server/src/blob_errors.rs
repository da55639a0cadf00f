//! Converts errors of blobs to errors of a pool or a command. The only place that assigns their
//! kinds.

use blob::Error as BlobError;
use operations::kind_of;
use surface::{Error, ErrorKind};

/// Returns whether stored bytes are damaged or gone.
const fn is_damage(error: &BlobError) -> bool {
    matches!(error, BlobError::Damaged { .. } | BlobError::Lost { .. })
}

/// Returns the error of the source blob, if it made reading the data to be stored fail.
fn of_the_source(error: &std::io::Error) -> Option<&BlobError> {
    error.get_ref()?.downcast_ref()
}

/// Returns the kind and the message of a blob's error; an unknown outcome is an I/O error.
pub fn blob_error(error: &BlobError) -> Error {
    let kind = match error {
        BlobError::Source(error) if of_the_source(error).is_some_and(is_damage) => ErrorKind::Corrupt,
        BlobError::Source(error) | BlobError::Sink(error) => kind_of(error),
        error if error.is_full() => ErrorKind::Full,
        BlobError::Store { .. }
        | BlobError::StoreInconsistent(_)
        | BlobError::Entropy(_)
        | BlobError::Unknown { .. } => ErrorKind::Io,
        BlobError::Missing(_)
        | BlobError::Vanished(_)
        | BlobError::Removed
        | BlobError::NoVersion(_)
        | BlobError::NoTag(_)
        | BlobError::Expired(_) => ErrorKind::NotFound,
        BlobError::Exists(_) => ErrorKind::Exists,
        BlobError::Fenced { .. } | BlobError::Changed { .. } => ErrorKind::Conflict,
        BlobError::Damaged { .. } | BlobError::Lost { .. } => ErrorKind::Corrupt,
        BlobError::Newer { .. } => ErrorKind::Unsupported,
        BlobError::Refused(_) => ErrorKind::Invalid,
    };
    Error::new(kind, error.to_string())
}
