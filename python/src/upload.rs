//! An upload of data from the program: bytes go into a short queue, and become a staged part.
//! Nothing is committed here; an upload that is dropped leaves garbage for `gc`, and the blob
//! unchanged. Any thread may write, one at a time.

use std::sync::Mutex;

use blob::{Chunk, Staged};
use bytes::Bytes;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;

use crate::answer::wait;
use crate::errors::{Failed, raise};
use crate::version::Data;

/// Pieces that wait for the uploader, which compresses while the program produces the next ones.
const PIECES_AHEAD: usize = 4;
/// Bytes of a piece: a larger write is split, so that the queue has a limit in bytes, too.
const PIECE_BYTES: usize = 4 << 20;

type Piece = std::io::Result<Chunk>;
type Work = JoinHandle<Result<Staged, Failed>>;

/// An upload under way.
#[pyclass(frozen)]
pub struct Upload {
    pid: u32,
    state: Mutex<Option<(Sender<Piece>, Work)>>,
}

impl Upload {
    /// Creates the queue, and passes its receiver to the uploader.
    pub fn start(work: impl FnOnce(Receiver<Piece>) -> PyResult<Work>) -> PyResult<Self> {
        let (sender, receiver) = channel(PIECES_AHEAD);
        let work = work(receiver)?;
        Ok(Self { pid: std::process::id(), state: Mutex::new(Some((sender, work))) })
    }

    fn take(&self) -> PyResult<(Sender<Piece>, Work)> {
        if self.pid != std::process::id() {
            return Err(PyRuntimeError::new_err("the upload belongs to the parent of this forked process"));
        }
        let taken = self.state.lock().map_or(None, |mut state| state.take());
        taken.ok_or_else(|| {
            PyValueError::new_err("the upload is finished or aborted, or another thread is writing to it")
        })
    }
}

/// Copies a Python buffer, whose bytes may change as soon as the call has returned.
pub fn copied(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    let buffer = PyBuffer::<u8>::get(data)?;
    Ok(buffer.to_vec(py)?.into())
}

#[pymethods]
impl Upload {
    /// Adds bytes; waits when the store is slower than the program.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut data = copied(py, data)?;
        let mut pieces = Vec::with_capacity(data.len() / PIECE_BYTES + 1);
        while !data.is_empty() {
            pieces.push(data.split_to(data.len().min(PIECE_BYTES)).into());
        }
        self.send(py, pieces)
    }

    /// Adds this many zeroes, which become a hole in the blob.
    fn zeroes(&self, py: Python<'_>, len: u64) -> PyResult<()> {
        self.send(py, vec![Chunk::Zeroes(len)])
    }

    /// Ends the data, waits until the store has it, and returns the staged part.
    fn finish(&self, py: Python<'_>) -> PyResult<Data> {
        let (sender, work) = self.take()?;
        drop(sender);
        let staged = wait(py, joined(work))?;
        Ok(Data(staged.encode().into()))
    }

    /// Aborts the upload.
    fn abort(&self) {
        if let Ok((sender, work)) = self.take() {
            work.abort();
            drop(sender);
        }
    }

    fn __del__(&self) {
        if self.pid == std::process::id() {
            self.abort();
        }
    }
}

impl Upload {
    /// Puts pieces into the queue; waits when the store is slower than the program.
    fn send(&self, py: Python<'_>, pieces: Vec<Chunk>) -> PyResult<()> {
        let (sender, work) = self.take()?;
        for piece in pieces {
            let queue = sender.clone();
            let sent =
                wait(py, async move { queue.send(Ok(piece)).await.map_err(|_| Failed::Internal(String::new())) });
            if let Err(error) = sent {
                if !work.is_finished() {
                    work.abort();
                    return Err(error);
                }
                // The upload has failed: its own error gives the reason.
                drop(sender);
                let failed = wait(py, async move { joined(work).await.map(|_| ()) });
                return failed.and(Err(error));
            }
        }
        if let Ok(mut state) = self.state.lock() {
            *state = Some((sender, work));
        }
        Ok(())
    }
}

async fn joined(work: Work) -> Result<Staged, Failed> {
    work.await.map_err(|error| Failed::Internal(error.to_string()))?
}

/// Decodes a staged part that the program passed.
pub fn decoded(py: Python<'_>, bytes: &[u8]) -> PyResult<Staged> {
    Staged::decode(bytes).map_err(|error| raise(py, Failed::Argument(format!("not a staged part: {error}"))))
}
