//! A file's reads: a program that reads on where it was finds the next bytes here already. Owns what
//! is read ahead and when it is dropped; a program that jumps gets what it asks for and no more.
//!
//! A read that goes on where the last one ended reads ahead in the background: twice as much as the
//! program has read since it jumped, up to a bound in bytes. A jump drops what was read
//! ahead. Windows are fetched and decoded at the same time as each other and as the program runs.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::task::JoinHandle;

use crate::answer::wait;
use crate::errors::Failed;
use crate::process::{PerProcess, runtime};
use crate::version::{Version, reopen};

/// Bytes of a frame of a blob: windows end with one.
const FRAME_BYTES: u64 = 128 << 10;
/// Bytes of a window: several are under way, so that one is decoded while others come.
const WINDOW_BYTES_MAX: u64 = 4 << 20;
/// The least that is read ahead, once a program reads on.
const AHEAD_MIN: u64 = 256 << 10;

/// Bytes that are held, or on their way.
struct Window {
    start: u64,
    end: u64,
    data: Held,
}

enum Held {
    Ready(Bytes),
    Coming(JoinHandle<Result<Bytes, Failed>>),
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Held::Coming(task) = &self.data {
            task.abort();
        }
    }
}

#[derive(Default)]
struct State {
    /// Neighbours, in order.
    windows: VecDeque<Window>,
    /// The byte behind the last window.
    edge: u64,
    /// The byte behind the last read.
    last: u64,
    /// Bytes that were read since the last jump.
    run: u64,
    /// Bytes that are read ahead.
    ahead: u64,
}

impl State {
    /// Drops what a read from `start` to `end` does not go on from, and decides how far ahead to read.
    fn turn_to(&mut self, start: u64, end: u64, memory: u64) {
        let goes_on = start == self.last && self.last > 0;
        let is_here = self.windows.front().is_some_and(|first| first.start <= start) && start <= self.edge;
        self.run = if goes_on || is_here { self.run + (end - start) } else { end - start };
        self.ahead = if goes_on || is_here { (2 * self.run).max(AHEAD_MIN).min(memory) } else { 0 };
        if is_here {
            self.drop_before(start);
        } else {
            self.windows.clear();
        }
        if self.windows.is_empty() {
            self.edge = start;
        }
    }

    fn drop_before(&mut self, start: u64) {
        while self.windows.front().is_some_and(|first| first.end <= start) {
            self.windows.pop_front();
        }
    }

    fn held(&self) -> u64 {
        self.windows.iter().map(|window| window.end - window.start).sum()
    }
}

/// Reads a version from place to place.
#[pyclass(frozen)]
pub struct Reader {
    version: Py<Version>,
    size: u64,
    /// Bytes that may be read ahead.
    memory: u64,
    state: PerProcess<Mutex<State>>,
}

impl Reader {
    pub const fn new(version: Py<Version>, size: u64, memory: u64) -> Self {
        Self { version, size, memory, state: PerProcess::new() }
    }

    /// Returns the state, and leaves an empty one: another thread that reads meanwhile reads for
    /// itself. A forked process has its own.
    fn take(&self) -> State {
        let state = self.state.get(Mutex::default);
        std::mem::take(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, state: State) {
        *self.state.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Begins to read windows up to `end` and what is to be read ahead of it; at least what byte `at`
    /// is in, and no more than may be held.
    fn fill(&self, py: Python<'_>, state: &mut State, at: u64, end: u64) -> PyResult<()> {
        let goal = end.saturating_add(state.ahead).min(self.size);
        while state.edge < goal {
            let start = state.edge;
            if start >= end && goal - start < (state.ahead / 4).min(WINDOW_BYTES_MAX) && goal < self.size {
                break;
            }
            let longest = start + WINDOW_BYTES_MAX;
            // What is read ahead ends with a frame, what is asked for where it ends.
            let stop = if state.ahead > 0 { goal.div_ceil(FRAME_BYTES) * FRAME_BYTES } else { goal };
            let stop = stop.min(longest / FRAME_BYTES * FRAME_BYTES).max(start + 1).min(self.size);
            if start > at && state.held() + (stop - start) > self.memory.max(WINDOW_BYTES_MAX) {
                break;
            }
            let version = self.version.clone_ref(py);
            let read = async move {
                let (opened, record) = reopen(&version).await?;
                Ok(opened.blob.read(&record, start, stop).await?)
            };
            state.windows.push_back(Window { start, end: stop, data: Held::Coming(runtime()?.spawn(read)) });
            state.edge = stop;
        }
        Ok(())
    }

    /// Waits for the first window, and returns its bytes and where they begin.
    fn first(&self, py: Python<'_>, state: &mut State) -> PyResult<(u64, Bytes)> {
        let none = || PyRuntimeError::new_err("nothing is read");
        let window = state.windows.front_mut().ok_or_else(none)?;
        if let Held::Ready(bytes) = &window.data {
            return Ok((window.start, bytes.clone()));
        }
        let Held::Coming(task) = std::mem::replace(&mut window.data, Held::Ready(Bytes::new())) else {
            return Err(none());
        };
        let start = window.start;
        let bytes = wait(py, async move { task.await.map_err(|error| Failed::Internal(error.to_string()))? })?;
        window.data = Held::Ready(bytes.clone());
        Ok((start, bytes))
    }

    fn copy(&self, py: Python<'_>, state: &mut State, start: u64, out: &mut [u8]) -> PyResult<()> {
        let end = start + out.len() as u64;
        let mut at = start;
        while at < end {
            state.drop_before(at);
            self.fill(py, state, at, end)?;
            let (from, bytes) = self.first(py, state)?;
            let part = bytes.get((at - from) as usize..).unwrap_or_default();
            let len = part.len().min((end - at) as usize);
            if len == 0 {
                return Err(PyRuntimeError::new_err("a read came back short"));
            }
            out[(at - start) as usize..][..len].copy_from_slice(&part[..len]);
            at += len as u64;
        }
        Ok(())
    }
}

#[pymethods]
impl Reader {
    /// Returns the bytes from `start` to before `end`; the end of the version cuts them.
    fn read<'py>(&self, py: Python<'py>, start: u64, end: u64) -> PyResult<Bound<'py, PyBytes>> {
        let end = end.min(self.size);
        if start >= end {
            return Ok(PyBytes::new(py, b""));
        }
        let mut state = self.take();
        state.turn_to(start, end, self.memory);
        // What fails drops the state: the next read begins anew.
        let bytes = PyBytes::new_with(py, (end - start) as usize, |out| self.copy(py, &mut state, start, out))?;
        state.last = end;
        state.drop_before(end);
        if state.ahead > 0 {
            self.fill(py, &mut state, end, end)?;
        } else if state.windows.is_empty() {
            state.edge = end;
        }
        self.put(state);
        Ok(bytes)
    }

    /// Bytes that are held or on their way.
    #[getter]
    fn held(&self) -> u64 {
        self.state.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner).held()
    }

    /// Drops what was read ahead.
    fn close(&self) {
        self.put(State::default());
    }
}
