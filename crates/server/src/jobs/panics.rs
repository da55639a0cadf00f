//! Turns a panic in the work of a job into its error, so that the job ends as failed.

use std::panic::AssertUnwindSafe;

use surface::{Error, ErrorKind};

/// Runs a piece of work. Whatever the work holds is dropped after a panic; state that it shares is
/// under locks, which a panic releases.
///
/// # Errors
/// Those of the work, and `Io` after a panic.
pub(crate) fn or_panicked<T, E: From<Error>>(work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
        Err(panicked(message.unwrap_or("no message")).into())
    })
}

/// Error of a job whose work has panicked.
pub(super) fn panicked(message: &str) -> Error {
    let text = format!(
        "the work ended with an internal error ({message}), which is a bug: start the job again; if it fails again, \
         report it with the log of the server"
    );
    Error::new(ErrorKind::Io, text)
}
