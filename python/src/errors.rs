//! Maps errors of the library to the exceptions that users of fsspec expect; `shale.errors` defines
//! those that Python has no class for. Owns the mapping, but no texts.

use blob::{Cause, Error as BlobError};
use object_store::Error as StoreError;
use pyo3::exceptions::{PyFileExistsError, PyFileNotFoundError, PyPermissionError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// Why an operation failed.
#[derive(Debug)]
pub enum Failed {
    /// The library failed.
    Blob(BlobError),
    /// An argument is invalid.
    Argument(String),
    /// The writer of an upload, or its thread, has ended.
    Internal(String),
}

impl From<BlobError> for Failed {
    fn from(error: BlobError) -> Self {
        Self::Blob(error)
    }
}

/// Returns the Python exception.
pub fn raise(py: Python<'_>, failed: Failed) -> PyErr {
    let error = match failed {
        Failed::Blob(error) => error,
        Failed::Argument(text) => return PyValueError::new_err(text),
        Failed::Internal(text) => return PyRuntimeError::new_err(text),
    };
    // The source of a copy may fail, too: then its own error is the cause.
    let inner = match &error {
        BlobError::Source(source) => source.get_ref().and_then(|inner| inner.downcast_ref::<BlobError>()),
        _ => None,
    };
    raise_blob(py, inner.unwrap_or(&error))
}

fn raise_blob(py: Python<'_>, error: &BlobError) -> PyErr {
    let text = error.to_string();
    match error {
        BlobError::Missing(_) | BlobError::Vanished(_) | BlobError::Removed => PyFileNotFoundError::new_err((2, text)),
        BlobError::NoVersion(_) | BlobError::NoTag(_) | BlobError::Expired(_) => {
            own(py, "VersionNotFoundError", (2, text))
        }
        BlobError::Exists(_) => PyFileExistsError::new_err((17, text)),
        BlobError::Refused(_) => PyValueError::new_err(text),
        BlobError::Store { source, .. } => match error.cause() {
            Cause::Denied => PyPermissionError::new_err((13, text)),
            Cause::Gone => PyFileNotFoundError::new_err((2, text)),
            _ if matches!(source, StoreError::NotFound { .. }) => PyFileNotFoundError::new_err((2, text)),
            _ if error.is_full() => own(py, "StoreError", (28, text)),
            _ => own(py, "StoreError", (5, text)),
        },
        BlobError::Damaged { .. } | BlobError::Lost { .. } => own(py, "DamagedError", (5, text)),
        BlobError::Unknown { op, .. } => own(py, "OutcomeUnknownError", (5, text, op.to_string())),
        BlobError::Fenced { .. } => own(py, "UploadTooOldError", (5, text)),
        BlobError::StoreInconsistent(_) => own(py, "UnsafeStoreError", (5, text)),
        BlobError::Source(_)
        | BlobError::Sink(_)
        | BlobError::Entropy(_)
        | BlobError::Changed { .. }
        | BlobError::Newer { .. } => own(py, "ShaleError", (5, text)),
    }
}

/// Creates an exception of a class of `shale.errors`.
fn own<'py>(py: Python<'py>, class: &str, arguments: impl pyo3::call::PyCallArgs<'py>) -> PyErr {
    let made = py.import("shale.errors").and_then(|module| module.getattr(class)?.call1(arguments));
    made.map_or_else(|error| error, PyErr::from_value)
}
