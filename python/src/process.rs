//! What belongs to one process: threads and connections do not survive a fork, so the child makes
//! its own at the first use, and never touches those of its parent. Owns the runtime.

use std::sync::OnceLock;

use pyo3::PyResult;
use pyo3::exceptions::PyOSError;
use tokio::runtime::{Builder, Runtime};

/// Threads of the runtime that only move bytes: compression and files have threads of their own.
const THREADS_MAX: usize = 4;
/// Threads that compress, decompress, and wait for files: more than the processors, for some wait.
const BLOCKING_THREADS_MAX: usize = 32;

/// A value that each process makes anew. A chain, one link for each fork between the process that
/// made the first one and the one that asks: nothing is locked that a fork could find locked for
/// ever.
pub struct PerProcess<T> {
    first: OnceLock<Link<T>>,
}

struct Link<T> {
    pid: u32,
    value: T,
    next: OnceLock<Box<Link<T>>>,
}

impl<T> PerProcess<T> {
    /// Makes one without a value.
    pub const fn new() -> Self {
        Self { first: OnceLock::new() }
    }

    /// Returns the value of this process, made if there is none.
    pub fn get(&self, make: impl FnOnce() -> T) -> &T {
        let pid = std::process::id();
        let mut make = Some(make);
        let mut fresh = || make.take().map(|make| Link { pid, value: make(), next: OnceLock::new() });
        let mut link = match self.first.get() {
            Some(link) => link,
            None => match fresh() {
                Some(made) => self.first.get_or_init(|| made),
                None => unreachable!("made at most once on each path"),
            },
        };
        while link.pid != pid {
            link = match link.next.get() {
                Some(next) => next,
                None => match fresh() {
                    Some(made) => link.next.get_or_init(|| Box::new(made)),
                    None => unreachable!("a link of this process ends the walk"),
                },
            };
        }
        &link.value
    }
}

static RUNTIME: PerProcess<Result<Runtime, String>> = PerProcess::new();

/// Returns the runtime of this process.
pub fn runtime() -> PyResult<&'static Runtime> {
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get).min(THREADS_MAX);
    let make = || {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(threads).max_blocking_threads(BLOCKING_THREADS_MAX).thread_name("shale").enable_all();
        builder.build().map_err(|error| error.to_string())
    };
    RUNTIME.get(make).as_ref().map_err(|error| PyOSError::new_err(format!("cannot start threads: {error}")))
}
