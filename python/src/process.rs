//! State of one process: threads and connections do not survive a fork, so the child creates its
//! own at the first use, and never touches those of its parent. Owns the runtime.

use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

use pyo3::exceptions::PyOSError;
use pyo3::{PyResult, Python};
use tokio::runtime::{Builder, Runtime};

/// Threads of the runtime, which only move bytes: compression and files have threads of their own.
const THREADS_MAX: usize = 4;
/// Threads that compress, decompress, and wait for files: more than the CPUs, because some wait.
const BLOCKING_THREADS_MAX: usize = 32;

/// A value that each process creates for itself. It is a chain with one link for each fork between
/// the process that created the first value and the current one. There is no lock, which a fork
/// could copy in the locked state.
pub struct PerProcess<T> {
    first: OnceLock<Link<T>>,
}

struct Link<T> {
    pid: u32,
    value: T,
    next: OnceLock<Box<Link<T>>>,
}

impl<T> PerProcess<T> {
    /// Creates one without a value.
    pub const fn new() -> Self {
        Self { first: OnceLock::new() }
    }

    /// Returns the value of this process, creating it if there is none.
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

/// The number of runtime threads in the interpreter, and whether it is about to end. An interpreter
/// that ends kills a thread that returns to it, and the process with that thread.
#[derive(Default)]
struct Visits {
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

static VISITS: PerProcess<Visits> = PerProcess::new();

/// Permission of a runtime thread to be in the interpreter; dropped when it has left.
pub struct Visit(());

/// Lets a runtime thread enter the interpreter; `None` if that is about to end.
pub fn visit_interpreter() -> Option<Visit> {
    let mut state = VISITS.get(Visits::default).state.lock().unwrap_or_else(PoisonError::into_inner);
    if state.1 {
        return None;
    }
    state.0 += 1;
    Some(Visit(()))
}

impl Drop for Visit {
    fn drop(&mut self) {
        let visits = VISITS.get(Visits::default);
        visits.state.lock().unwrap_or_else(PoisonError::into_inner).0 -= 1;
        visits.changed.notify_all();
    }
}

/// Waits until no runtime thread is in the interpreter, and admits no others. Called before the
/// interpreter ends.
pub fn end_visits(py: Python<'_>) {
    py.detach(|| {
        let visits = VISITS.get(Visits::default);
        let mut state = visits.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 = true;
        while state.0 > 0 {
            state = visits.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    });
}
