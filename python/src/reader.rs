//! The reads of a file: a program that reads sequentially finds the next bytes already in memory.
//! Owns the read-ahead and its memory; a program that seeks gets the requested bytes and no more.
//! Any thread may read; concurrent reads do not share the read-ahead.
//!
//! A read that continues where the last one ended reads ahead in the background: twice as much as
//! the program has read since its last seek, up to a limit in bytes. A seek drops the read-ahead.
//! Windows are fetched and decoded concurrently, while the program runs.

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

/// Bytes of a frame of a blob: windows end at frame boundaries.
const FRAME_BYTES: u64 = 128 << 10;
/// Bytes of a window: several are in flight, so that one is decoded while others arrive.
const WINDOW_BYTES_MAX: u64 = 4 << 20;
/// The least that is read ahead, once a program reads sequentially.
const AHEAD_MIN: u64 = 256 << 10;

/// Bytes in memory or in flight.
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
    /// Adjacent windows, in order.
    windows: VecDeque<Window>,
    /// The end of the last window.
    edge: u64,
    /// The end of the last read.
    last: u64,
    /// Bytes read since the last seek.
    run: u64,
    /// Bytes to read ahead.
    ahead: u64,
}

impl State {
    /// Drops the windows that a read from `start` to `end` does not need, and decides how far to
    /// read ahead.
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

/// Reads a version at given offsets.
#[pyclass(frozen)]
pub struct Reader {
    version: Py<Version>,
    size: u64,
    /// Limit of the read-ahead in bytes.
    memory: u64,
    state: PerProcess<Mutex<State>>,
}

impl Reader {
    pub const fn new(version: Py<Version>, size: u64, memory: u64) -> Self {
        Self { version, size, memory, state: PerProcess::new() }
    }

    /// Takes the state, and leaves an empty one: another thread that reads at the same time has no
    /// read-ahead. A forked process has its own state.
    fn take(&self) -> State {
        let state = self.state.get(Mutex::default);
        std::mem::take(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, state: State) {
        *self.state.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Starts reads of windows up to `end`, and of the read-ahead after it. Covers at least byte
    /// `at`, and stays within the memory limit.
    fn fill(&self, py: Python<'_>, state: &mut State, at: u64, end: u64) -> PyResult<()> {
        let goal = end.saturating_add(state.ahead).min(self.size);
        while state.edge < goal {
            let start = state.edge;
            if start >= end && goal - start < (state.ahead / 4).min(WINDOW_BYTES_MAX) && goal < self.size {
                break;
            }
            let longest = start + WINDOW_BYTES_MAX;
            // Read-ahead ends at a frame boundary, a requested range at its own end.
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

    /// Waits for the first window, and returns its offset and its bytes.
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
                return Err(PyRuntimeError::new_err("a read returned too few bytes"));
            }
            out[(at - start) as usize..][..len].copy_from_slice(&part[..len]);
            at += len as u64;
        }
        Ok(())
    }
}

#[pymethods]
impl Reader {
    /// Returns the bytes from `start` to before `end`, clipped to the end of the version.
    fn read<'py>(&self, py: Python<'py>, start: u64, end: u64) -> PyResult<Bound<'py, PyBytes>> {
        let end = end.min(self.size);
        if start >= end {
            return Ok(PyBytes::new(py, b""));
        }
        let mut state = self.take();
        state.turn_to(start, end, self.memory);
        // An error drops the state: the next read starts from scratch.
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

    /// Bytes in memory or in flight.
    #[getter]
    fn held(&self) -> u64 {
        self.state.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner).held()
    }

    /// Drops the read-ahead.
    fn close(&self) {
        self.put(State::default());
    }
}
