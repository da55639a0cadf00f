//! How a future of the library becomes a Python result: a caller waits for it without the
//! interpreter's lock and can be interrupted, or gets an `asyncio` future of its loop. Called on
//! threads of Python.

use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

use crate::errors::{Failed, raise};
use crate::process::{runtime, visit_interpreter};

/// Interval at which a wait checks for Ctrl-C.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs a future to its end, or returns it as an `asyncio` future of `event_loop`.
pub fn answer<'py, T>(
    py: Python<'py>,
    event_loop: Option<&Bound<'py, PyAny>>,
    future: impl Future<Output = Result<T, Failed>> + Send + 'static,
) -> PyResult<Bound<'py, PyAny>>
where
    T: for<'a> IntoPyObject<'a> + Send + 'static,
{
    match event_loop {
        None => wait(py, future)?.into_bound_py_any(py),
        Some(event_loop) => promise(py, event_loop, future),
    }
}

/// Waits for a future on the runtime's threads; a signal cancels it.
pub fn wait<T: Send + 'static>(
    py: Python<'_>,
    future: impl Future<Output = Result<T, Failed>> + Send + 'static,
) -> PyResult<T> {
    let runtime = runtime()?;
    let mut task = runtime.spawn(future);
    loop {
        let turn = py.detach(|| runtime.block_on(async { tokio::time::timeout(LOOK_EVERY, &mut task).await }));
        match turn {
            Ok(Ok(done)) => return done.map_err(|failed| raise(py, failed)),
            Ok(Err(error)) => return Err(raise(py, Failed::Internal(error.to_string()))),
            Err(_) => {
                if let Err(signal) = py.check_signals() {
                    task.abort();
                    return Err(signal);
                }
            }
        }
    }
}

fn promise<'py, T>(
    py: Python<'py>,
    event_loop: &Bound<'py, PyAny>,
    future: impl Future<Output = Result<T, Failed>> + Send + 'static,
) -> PyResult<Bound<'py, PyAny>>
where
    T: for<'a> IntoPyObject<'a> + Send + 'static,
{
    let promise = event_loop.call_method0("create_future")?;
    let (answers, asker) = (promise.clone().unbind(), event_loop.clone().unbind());
    let task = runtime()?.spawn(async move {
        let done = future.await;
        // No callers are left when the interpreter ends.
        let Some(_visit) = visit_interpreter() else { return };
        Python::attach(|py| {
            let settled = match done.map_err(|failed| raise(py, failed)).and_then(|value| value.into_py_any(py)) {
                Ok(value) => ("set_result", value),
                Err(error) => ("set_exception", error.into_value(py).into_any()),
            };
            let settle = Settle { promise: answers, method: settled.0, value: settled.1 };
            // If the loop has been closed in the meantime, its callers are gone as well.
            let _ = Py::new(py, settle).and_then(|settle| asker.call_method1(py, "call_soon_threadsafe", (settle,)));
        });
    });
    promise.call_method1("add_done_callback", (Py::new(py, Abort { task: task.abort_handle() })?,))?;
    Ok(promise)
}

/// Sets the result of a future, on the loop's own thread, unless it was cancelled.
#[pyclass]
struct Settle {
    promise: Py<PyAny>,
    method: &'static str,
    value: Py<PyAny>,
}

#[pymethods]
impl Settle {
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        if !self.promise.call_method0(py, "done")?.is_truthy(py)? {
            self.promise.call_method1(py, self.method, (self.value.clone_ref(py),))?;
        }
        Ok(())
    }
}

/// Aborts the work of a cancelled future.
#[pyclass]
struct Abort {
    task: tokio::task::AbortHandle,
}

#[pymethods]
impl Abort {
    fn __call__(&self, promise: &Bound<'_, PyAny>) -> PyResult<()> {
        if promise.call_method0("cancelled")?.is_truthy()? {
            self.task.abort();
        }
        Ok(())
    }
}
