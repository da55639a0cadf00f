//! A store that counts requests by kind, and bytes in both directions, because requests cost money.
//! It wraps every store that a blob uses, and also detects refused keys. Any number of tasks may
//! use it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

use crate::store::credentials::ProfileProvider;
use crate::store::store_errors::{describe, is_refused};

/// Counts of requests; each only grows. A request that the client repeats internally counts once.
#[derive(Debug, Default)]
pub struct Requests {
    /// Objects written.
    pub put: AtomicU64,
    /// Requests for objects, for parts of them, or for their size.
    pub get: AtomicU64,
    /// Requests for the size only, which are part of `get`.
    pub head: AtomicU64,
    /// Lists; each may take one request for every 1000 names.
    pub list: AtomicU64,
    /// Objects deleted.
    pub delete: AtomicU64,
    /// Bytes written.
    pub bytes_up: AtomicU64,
    /// Bytes read.
    pub bytes_down: AtomicU64,
    /// Reason for the failure of the last request; `None` if it succeeded.
    fault: Mutex<Option<String>>,
}

impl Requests {
    /// Returns the reason if the last request failed: it explains why an operation that retries
    /// takes long.
    pub fn fault(&self) -> Option<String> {
        self.fault.lock().clone()
    }

    /// Returns the number of requests of all kinds.
    pub fn all(&self) -> u64 {
        [&self.put, &self.get, &self.list, &self.delete].iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

/// A store whose requests are counted.
#[derive(Debug)]
pub(crate) struct CountingStore {
    inner: Arc<dyn ObjectStore>,
    requests: Arc<Requests>,
    /// The profile whose keys are read again when the store refuses them. The caller repeats the
    /// request.
    profile: Option<Arc<ProfileProvider>>,
}

impl CountingStore {
    pub(crate) fn new(
        inner: Arc<dyn ObjectStore>,
        requests: Arc<Requests>,
        profile: Option<Arc<ProfileProvider>>,
    ) -> Self {
        Self { inner, requests, profile }
    }

    fn look<T>(&self, result: Result<T>) -> Result<T> {
        if let (Some(profile), Err(error)) = (&self.profile, &result)
            && is_refused(error)
        {
            profile.refuse();
        }
        // "No such object" and "already exists" are answers, not faults.
        let fault = result.as_ref().err().filter(|error| !is_answer(error));
        *self.requests.fault.lock() = fault.map(describe);
        result
    }
}

fn is_answer(error: &Error) -> bool {
    use Error::{AlreadyExists, NotFound, NotModified, Precondition};
    matches!(error, NotFound { .. } | AlreadyExists { .. } | Precondition { .. } | NotModified { .. })
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl std::fmt::Display for CountingStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for CountingStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        count(&self.requests.put, 1);
        count(&self.requests.bytes_up, payload.content_length() as u64);
        self.look(self.inner.put_opts(location, payload, opts).await)
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        count(&self.requests.get, 1);
        let is_head = options.head;
        count(&self.requests.head, u64::from(is_head));
        let result = self.look(self.inner.get_opts(location, options).await)?;
        if !is_head {
            count(&self.requests.bytes_down, result.range.end - result.range.start);
        }
        Ok(result)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        count(&self.requests.get, ranges.len() as u64);
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let requests = self.requests.clone();
        self.inner.delete_stream(locations).inspect(move |_| count(&requests.delete, 1)).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        count(&self.requests.list, 1);
        self.inner.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        count(&self.requests.list, 1);
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        count(&self.requests.list, 1);
        self.look(self.inner.list_with_delimiter(prefix).await)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        count(&self.requests.put, 1);
        self.inner.copy_opts(from, to, options).await
    }
}
