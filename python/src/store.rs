//! The handle of a store in Python: a bucket with its settings. Owns the methods and their
//! arguments; `shared` has the connection. Any thread of Python may call it.

use std::collections::BTreeMap;
use std::sync::Arc;

use blob::{At, Committed, Encoding, ExpireRule, Listed, OpId, Staged, StagedAs, StoreSettings, Tally, UploadOptions};
use futures_util::StreamExt;
use object_store::path::Path;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

use crate::answer::answer;
use crate::described::{Checked, Info, entry};
use crate::errors::{Failed, raise};
use crate::process::runtime;
use crate::shared::{Opened, Shared};
use crate::upload::{Upload, copied, decoded};
use crate::version::{Data, Many, Version, absolute, find};

/// Parses the text after an `@`.
pub fn parse_at(at: &str) -> Result<At, Failed> {
    if at.bytes().all(|byte| byte.is_ascii_digit()) {
        let number = at.parse().map_err(|_| Failed::Argument(format!("the version number {at} is too large")))?;
        return Ok(At::Number(number));
    }
    Ok(At::Tag(at.to_owned()))
}

type Place = (u64, u64, u64);

const fn place(committed: &Committed) -> Place {
    (committed.seq, committed.at, committed.len)
}

fn upload_options(key: &str, properties: &BTreeMap<String, String>) -> Result<UploadOptions, Failed> {
    let encoding = Encoding::parse(properties).map_err(|error| Failed::Argument(error.to_string()))?;
    let name = key.rsplit('/').next().unwrap_or(key).to_owned();
    Ok(UploadOptions { encoding, name, ..UploadOptions::default() })
}

fn prefix(text: &str) -> Result<Path, Failed> {
    Path::parse(text).map_err(|error| Failed::Argument(error.to_string()))
}

fn op_id(text: Option<&str>, opened: &Opened) -> Result<OpId, Failed> {
    match text {
        None => Ok(OpId::random(&*opened.blob.log().backend().entropy)?),
        Some(text) => {
            let wrong = || Failed::Argument(format!("{text} is not the name of an operation"));
            Ok(OpId(u128::from_str_radix(text, 16).map_err(|_| wrong())?))
        }
    }
}

/// A store, by kind, bucket and settings.
#[pyclass(frozen)]
pub struct Store {
    shared: Arc<Shared>,
}

impl Store {
    fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }
}

#[pymethods]
impl Store {
    #[new]
    fn new(scheme: String, bucket: String, options: BTreeMap<String, String>, profile: Option<String>) -> Self {
        let settings = StoreSettings { options: options.into_iter().collect(), profile };
        Self { shared: Arc::new(Shared::new(scheme, bucket, settings)) }
    }

    /// Describes a version.
    #[pyo3(signature = (key, at, event_loop=None))]
    fn info<'py>(
        &self,
        py: Python<'py>,
        key: String,
        at: String,
        event_loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.shared();
        answer(py, event_loop, async move {
            let (_, record) = shared.version(&key, &at).await?;
            Ok(Info::of(key, &record))
        })
    }

    /// Opens a version, which never changes, regardless of later writes.
    #[pyo3(signature = (key, at, event_loop=None))]
    fn version<'py>(
        &self,
        py: Python<'py>,
        key: String,
        at: String,
        event_loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.shared();
        answer(py, event_loop, async move {
            let (opened, record) = shared.version(&key, &at).await?;
            Ok(Version::new(shared, key, opened, record))
        })
    }

    /// Opens a version and reads ranges of it.
    #[pyo3(signature = (key, at, ranges, event_loop=None))]
    fn read_ranges<'py>(
        &self,
        py: Python<'py>,
        key: String,
        at: String,
        ranges: Vec<(i64, Option<i64>)>,
        event_loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.shared();
        answer(py, event_loop, async move {
            let (opened, record) = shared.version(&key, &at).await?;
            Ok(Many(opened.blob.read_ranges(&record, &absolute(&ranges, record.size)).await))
        })
    }

    /// Lists the blobs (with descriptions) and directories (names only) below a prefix.
    #[pyo3(signature = (below, event_loop=None))]
    fn list<'py>(
        &self,
        py: Python<'py>,
        below: String,
        event_loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.shared();
        answer(py, event_loop, async move {
            let (mut blobs, mut directories) = (Vec::new(), Vec::new());
            for listed in blob::list(shared.connection()?, &prefix(&below)?).await? {
                match listed {
                    Listed::Blob(key, record) => blobs.push(Info::of(key.to_string(), &record)),
                    Listed::Directory(key) => directories.push(key.to_string()),
                }
            }
            Ok((blobs, directories))
        })
    }

    /// Returns whether there is a blob below a prefix.
    #[pyo3(signature = (below, event_loop=None))]
    fn has_blobs<'py>(
        &self,
        py: Python<'py>,
        below: String,
        event_loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.shared();
        answer(py, event_loop, async move { Ok(blob::has_blobs(shared.connection()?, &prefix(&below)?).await?) })
    }

    /// Writes bytes: `how` is `put`, `create`, `append` or `write`.
    #[pyo3(signature = (key, how, offset, data, message, properties, event_loop=None))]
    #[allow(clippy::too_many_arguments, reason = "they are those of one operation")]
    fn write<'py>(
        &self,
        py: Python<'py>,
        key: String,
        how: String,
        offset: u64,
        data: &Bound<'py, PyAny>,
        message: String,
        properties: BTreeMap<String, String>,
        event_loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (shared, data) = (self.shared(), copied(py, data)?);
        answer(py, event_loop, async move {
            let options = upload_options(&key, &properties)?;
            let opened = shared.to_write(&key, true).await?;
            let (blob, source) = (&opened.blob, blob::bytes(data));
            let committed = match how.as_str() {
                "put" => blob.put(source, &message, &options).await?,
                "create" => blob.create(source, &message, &options).await?,
                "append" => blob.append(source, &message, &options).await?,
                _ => blob.write(offset, source, &message, &options).await?,
            };
            Ok(place(&committed))
        })
    }

    /// Begins an upload of data from the program; it becomes a staged part.
    fn upload(&self, py: Python<'_>, key: String, properties: BTreeMap<String, String>) -> PyResult<Upload> {
        let shared = self.shared();
        let options = upload_options(&key, &properties).map_err(|failed| raise(py, failed))?;
        Upload::start(move |receiver| {
            Ok(runtime()?.spawn(async move {
                let opened = shared.to_write(&key, true).await?;
                let pieces = futures_util::stream::unfold(receiver, |mut receiver| async move {
                    let piece = receiver.recv().await?;
                    Some((piece, receiver))
                });
                Ok(opened.blob.stage(pieces, &options).await?)
            }))
        })
    }

    /// Stages a range of a version again, with other properties, without passing the data through
    /// Python.
    #[pyo3(signature = (key, at, start, end, properties, target=None, target_key=None, event_loop=None))]
    #[allow(clippy::too_many_arguments, reason = "they are those of one operation")]
    fn restage<'py>(
        &self,
        py: Python<'py>,
        key: String,
        at: String,
        start: u64,
        end: u64,
        properties: BTreeMap<String, String>,
        target: Option<PyRef<'py, Self>>,
        target_key: Option<String>,
        event_loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.shared();
        let to = target.map_or_else(|| shared.clone(), |target| target.shared());
        answer(py, event_loop, async move {
            let (opened, record) = shared.version(&key, &at).await?;
            let options = upload_options(&key, &properties)?;
            let into = match target_key {
                Some(target_key) => to.to_write(&target_key, true).await?,
                None => opened.clone(),
            };
            let chunks = opened.blob.chunks(&record, start, end);
            let source = chunks.map(|chunk| chunk.map_err(std::io::Error::other));
            Ok(Data(into.blob.stage(source, &options).await?.encode().into()))
        })
    }

    /// Begins a job of several stages: returns the blob's incarnation and newest record, and a name
    /// for the commit.
    #[pyo3(signature = (key, event_loop=None))]
    fn begin<'py>(
        &self,
        py: Python<'py>,
        key: String,
        event_loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.shared();
        answer(py, event_loop, async move {
            let opened = shared.to_write(&key, true).await?;
            let head = opened.blob.refresh().await?;
            Ok((head.inc.to_string(), head.seq, head.fence, op_id(None, &opened)?.to_string()))
        })
    }

    /// Commits staged parts as one version: `how` is `put`, `create`, `append`, `write`, or
    /// `rewrite` of version `base`.
    #[pyo3(signature = (key, how, parts, message, base=None, op=None, again=None, event_loop=None))]
    #[allow(clippy::too_many_arguments, reason = "they are those of one operation")]
    fn commit<'py>(
        &self,
        py: Python<'py>,
        key: String,
        how: String,
        parts: Vec<(u64, Vec<u8>)>,
        message: String,
        base: Option<u64>,
        op: Option<String>,
        again: Option<u64>,
        event_loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let staged: PyResult<Vec<(u64, Staged)>> =
            parts.into_iter().map(|(at, bytes)| Ok((at, decoded(py, &bytes)?))).collect();
        let (shared, staged) = (self.shared(), staged?);
        answer(py, event_loop, async move {
            let opened = shared.to_write(&key, true).await?;
            let id = op_id(op.as_deref(), &opened)?;
            let record = match base {
                Some(base) => Some(opened.blob.version(&At::Number(base)).await?),
                None => None,
            };
            let how = match (how.as_str(), &record) {
                ("put", _) => StagedAs::Put,
                ("create", _) => StagedAs::Create,
                ("append", _) => StagedAs::Append,
                ("write", _) => StagedAs::Write,
                ("rewrite", Some(record)) => StagedAs::Rewrite(record),
                _ => return Err(Failed::Argument(format!("`{how}` is not a kind of commit, or lacks its base"))),
            };
            Ok(place(&opened.blob.commit_staged(staged, how, &message, id, again).await?))
        })
    }

    /// Removes a blob.
    #[pyo3(signature = (key, event_loop=None))]
    fn remove<'py>(
        &self,
        py: Python<'py>,
        key: String,
        event_loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.shared();
        answer(py, event_loop, async move {
            let opened = shared.to_write(&key, false).await?;
            let removed = blob::remove(opened.blob.committer()).await;
            shared.forget(&key).await?;
            Ok(removed?.deleted)
        })
    }

    /// Returns records of the log, oldest first.
    #[pyo3(signature = (key, first, last=None, event_loop=None))]
    fn log<'py>(
        &self,
        py: Python<'py>,
        key: String,
        first: u64,
        last: Option<u64>,
        event_loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.shared();
        answer(py, event_loop, async move {
            let (opened, head) = shared.version(&key, "").await?;
            let records = opened.blob.records(first, last.unwrap_or(head.seq).min(head.seq)).await?;
            Ok(records.iter().map(|record| entry(record, &head)).collect::<Vec<_>>())
        })
    }

    /// Adds a tag to a version, or removes it.
    #[pyo3(signature = (key, name, at=None, event_loop=None))]
    fn tag<'py>(
        &self,
        py: Python<'py>,
        key: String,
        name: String,
        at: Option<String>,
        event_loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.shared();
        answer(py, event_loop, async move {
            let opened = shared.to_write(&key, false).await?;
            let committed = match at {
                Some(at) => {
                    let found = find(&opened, &at).await?;
                    let named = if at.is_empty() { opened.blob.newest_version().await? } else { found };
                    opened.blob.tag(&name, named.seq).await?
                }
                None => opened.blob.untag(&name).await?,
            };
            Ok(place(&committed))
        })
    }

    /// Expires versions; returns whether there were any.
    #[pyo3(signature = (key, keep=None, version=None, event_loop=None))]
    fn expire<'py>(
        &self,
        py: Python<'py>,
        key: String,
        keep: Option<u64>,
        version: Option<u64>,
        event_loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.shared();
        answer(py, event_loop, async move {
            let opened = shared.to_write(&key, false).await?;
            let rule = ExpireRule { keep_last: keep, older_than: None, version };
            Ok(blob::expire(opened.blob.committer(), &rule).await?.is_some())
        })
    }

    /// Reads, verifies and decodes the frames of a range.
    #[pyo3(signature = (key, at, start=0, end=None, event_loop=None))]
    fn verify<'py>(
        &self,
        py: Python<'py>,
        key: String,
        at: String,
        start: u64,
        end: Option<u64>,
        event_loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.shared();
        answer(py, event_loop, async move {
            let (opened, record) = shared.version(&key, &at).await?;
            let tally = Tally::default();
            let found = opened.blob.verify_range(&record, start, end.unwrap_or(record.size), &tally).await?;
            let damaged = found.damaged.into_iter().map(|damage| (damage.at, damage.len, damage.what)).collect();
            Ok(Checked { frames: found.frames, stored: found.stored, damaged })
        })
    }

    /// Copies a version to a key of another store, as one version.
    #[pyo3(signature = (key, at, target, target_key, properties, event_loop=None))]
    #[allow(clippy::too_many_arguments, reason = "they are those of one operation")]
    fn copy<'py>(
        &self,
        py: Python<'py>,
        key: String,
        at: String,
        target: PyRef<'py, Self>,
        target_key: String,
        properties: BTreeMap<String, String>,
        event_loop: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (shared, to) = (self.shared(), target.shared());
        answer(py, event_loop, async move {
            let (opened, record) = shared.version(&key, &at).await?;
            let into = to.to_write(&target_key, true).await?;
            let message = blob::copy_message(&shared.place(&key), record.seq);
            let chunks = opened.blob.chunks(&record, 0, record.size);
            let source = chunks.map(|chunk| chunk.map_err(std::io::Error::other));
            let options = upload_options(&key, &properties)?;
            Ok(place(&into.blob.put(source, &message, &options).await?))
        })
    }

    /// Returns counts of requests of this process, by kind.
    fn requests<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let requests = self.shared.connection().map_err(|failed| raise(py, failed))?.requests();
        let counts = [
            ("put", &requests.put),
            ("get", &requests.get),
            ("list", &requests.list),
            ("delete", &requests.delete),
            ("bytes_up", &requests.bytes_up),
            ("bytes_down", &requests.bytes_down),
        ];
        let counts = counts.map(|(name, count)| (name, count.load(std::sync::atomic::Ordering::Relaxed)));
        BTreeMap::from(counts).into_bound_py_any(py)
    }
}
