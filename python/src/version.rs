//! A version of a blob: bytes that never change. A forked process opens it again by its number;
//! pickling passes the blob. Any thread of Python may read it.

use std::ops::Range;
use std::sync::Arc;

use blob::{At, Record};
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::answer::answer;
use crate::errors::{Failed, raise};
use crate::process::PerProcess;
use crate::reader::Reader;
use crate::shared::{Opened, Shared};
use crate::store::parse_at;

/// Bytes as a Python object: copied once, into the object itself.
pub struct Data(pub Bytes);

impl<'py> IntoPyObject<'py> for Data {
    type Target = PyBytes;
    type Output = Bound<'py, PyBytes>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.0))
    }
}

/// Results of several ranges: bytes, or the exception of a range.
pub struct Many(pub Vec<Result<Bytes, blob::Error>>);

impl<'py> IntoPyObject<'py> for Many {
    type Target = PyList;
    type Output = Bound<'py, PyList>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for result in self.0 {
            match result {
                Ok(bytes) => list.append(PyBytes::new(py, &bytes))?,
                Err(error) => list.append(raise(py, error.into()).into_value(py))?,
            }
        }
        Ok(list)
    }
}

/// A version of a blob.
#[pyclass(frozen)]
pub struct Version {
    shared: Arc<Shared>,
    key: String,
    record: Arc<Record>,
    opened: PerProcess<tokio::sync::OnceCell<(Arc<Opened>, Arc<Record>)>>,
}

impl Version {
    pub fn new(shared: Arc<Shared>, key: String, opened: Arc<Opened>, record: Arc<Record>) -> Self {
        let cell = PerProcess::new();
        cell.get(|| tokio::sync::OnceCell::new_with(Some((opened, record.clone()))));
        Self { shared, key, record, opened: cell }
    }
}

/// Opens the version again in a forked process.
pub async fn reopen(this: &Py<Version>) -> Result<(Arc<Opened>, Arc<Record>), Failed> {
    let version = this.get();
    let cell = version.opened.get(tokio::sync::OnceCell::new);
    let open = async {
        let opened = version.shared.open(&version.key).await?;
        let record = opened.blob.version(&At::Number(version.record.seq)).await?;
        if opened.blob.log().inc() != version.record.inc {
            return Err(Failed::Blob(blob::Error::Removed));
        }
        Ok((opened, record))
    };
    cell.get_or_try_init(|| open).await.cloned()
}

/// Resolves ranges in which a negative start or end counts from the end.
pub fn absolute(ranges: &[(i64, Option<i64>)], size: u64) -> Vec<Range<u64>> {
    let size = i64::try_from(size).unwrap_or(i64::MAX);
    let place = |at: i64| (if at < 0 { (size + at).max(0) } else { at.min(size) }) as u64;
    ranges
        .iter()
        .map(|(from, to)| {
            let (from, to) = (place(*from), to.map_or(size as u64, place));
            from..to.max(from)
        })
        .collect()
}

#[pymethods]
impl Version {
    /// The version number.
    #[getter]
    fn version(&self) -> u64 {
        self.record.seq
    }

    /// Bytes of data.
    #[getter]
    fn size(&self) -> u64 {
        self.record.size
    }

    /// The random name of the blob's incarnation.
    #[getter]
    fn incarnation(&self) -> String {
        self.record.inc.to_string()
    }

    /// Time of its commit, in seconds since 1970.
    #[getter]
    fn created(&self) -> u64 {
        self.record.unix_s
    }

    /// The key.
    #[getter]
    fn key(&self) -> &str {
        &self.key
    }

    /// Reads many ranges in one call, and returns a list of bytes and exceptions.
    #[pyo3(signature = (ranges, event_loop=None))]
    fn read_ranges<'py>(
        this: &Bound<'py, Self>,
        ranges: Vec<(i64, Option<i64>)>,
        event_loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, handle) = (this.py(), this.clone().unbind());
        answer(py, event_loop, async move {
            let (opened, record) = reopen(&handle).await?;
            Ok(Many(opened.blob.read_ranges(&record, &absolute(&ranges, record.size)).await))
        })
    }

    /// Reads one range.
    #[pyo3(signature = (start, end=None, event_loop=None))]
    fn read<'py>(
        this: &Bound<'py, Self>,
        start: i64,
        end: Option<i64>,
        event_loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, handle) = (this.py(), this.clone().unbind());
        answer(py, event_loop, async move {
            let (opened, record) = reopen(&handle).await?;
            let mut all = opened.blob.read_ranges(&record, &absolute(&[(start, end)], record.size)).await;
            all.pop().map_or_else(|| Ok(Data(Bytes::new())), |read| Ok(Data(read?)))
        })
    }

    /// Returns the first byte at or after `start` that is not in a hole; the size if there is none.
    #[pyo3(signature = (start, event_loop=None))]
    fn next_data<'py>(
        this: &Bound<'py, Self>,
        start: u64,
        event_loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, handle) = (this.py(), this.clone().unbind());
        answer(py, event_loop, async move {
            let (opened, record) = reopen(&handle).await?;
            Ok(opened.blob.next_data(&record, start, record.size).await?.unwrap_or(record.size))
        })
    }

    /// Creates a reader, which reads ahead up to `memory` bytes.
    fn reader(this: &Bound<'_, Self>, memory: u64) -> Reader {
        Reader::new(this.clone().unbind(), this.get().record.size, memory)
    }

    fn __repr__(&self) -> String {
        format!("<shale version {} of {}, {} bytes>", self.record.seq, self.shared.place(&self.key), self.record.size)
    }
}

/// Finds a version by its number or tag; the newest for an empty text.
pub async fn find(opened: &Opened, at: &str) -> Result<Arc<Record>, Failed> {
    if at.is_empty() {
        let head = opened.blob.refresh().await?;
        return if head.closed { Err(Failed::Blob(blob::Error::Removed)) } else { Ok(head) };
    }
    match opened.blob.version(&parse_at(at)?).await {
        // Tags and numbers that are newer than the newest record known here.
        Err(blob::Error::NoVersion(_) | blob::Error::NoTag(_)) => {
            opened.blob.refresh().await?;
            Ok(opened.blob.version(&parse_at(at)?).await?)
        }
        found => Ok(found?),
    }
}
