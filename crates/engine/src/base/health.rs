//! Whether a pool still accepts writes, and why not. Owns that state. Fatal failures are recorded
//! here, after which only recovery can establish the state; every new operation checks first. Any
//! thread may call it.

use std::sync::atomic::{AtomicBool, Ordering};

use surface::{Error, ErrorKind};

use crate::base::ranked::Mutex;
use crate::base::ranks;

/// See the module.
#[derive(Default)]
pub(crate) struct Health {
    failed: Mutex<Option<String>, ranks::Failed>,
    /// Whether there is a reason, to be read without the lock.
    has_failed: AtomicBool,
    /// The data file has been deleted: it is gone when the pool closes it.
    is_deleted: AtomicBool,
    closed: AtomicBool,
}

impl Health {
    /// Refuses writes from now on, for this reason; the first one is kept.
    pub(crate) fn fail(&self, why: &Error) {
        self.failed.lock().get_or_insert_with(|| why.to_string());
        if is_deletion(why) {
            self.is_deleted.store(true, Ordering::Release);
        }
        self.has_failed.store(true, Ordering::Release);
    }

    /// Refuses all requests from now on.
    pub(crate) fn close(&self) {
        self.fail(&Error::new(ErrorKind::Io, "it has been closed"));
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Returns the reason, if there is one.
    pub(crate) fn why(&self) -> Option<String> {
        self.failed.lock().clone()
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Acquire)
    }
}

/// Returns whether an I/O error among the causes means that the data file is gone.
fn is_deletion(error: &Error) -> bool {
    let causes = std::iter::successors(std::error::Error::source(error), |error| error.source());
    let mut causes = causes.filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    causes.any(|cause| cause.kind() == std::io::ErrorKind::NotFound)
}
