//! A store in memory that fails on command, and images to put there.
#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use blob::{Boxed, Connection, Encoder, Encoding, StoredGroup};
use bytes::Bytes;
use codec::Workspace;
use env::SystemClock;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

pub const GROUP: u64 = 128 << 10;

/// How reads of packs fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// They succeed.
    None,
    /// The store is unreachable.
    Away,
    /// It refuses the keys.
    Denied,
    /// It has no such object.
    Gone,
    /// This many of the next answers have a corrupted byte.
    Flipped(u64),
}

pub struct Failing {
    pub inner: InMemory,
    failure: Mutex<Failure>,
    /// Before the next pin is written, everything else is deleted.
    pub vanishes: AtomicBool,
    /// Runs before an object is written whose key contains this, after so many of them.
    before_write: Mutex<Option<(&'static str, usize, Boxed<'static, ()>)>>,
    /// Objects that lists have shown.
    pub listed: Arc<AtomicU64>,
    /// Packs read or checked for, and packs written.
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    /// Packs that are being read, and the most of them at once.
    under_way: AtomicU64,
    pub busiest: AtomicU64,
}

impl Failing {
    pub fn new() -> Arc<Self> {
        let failure = Mutex::new(Failure::None);
        let vanishes = AtomicBool::new(false);
        Arc::new(Self {
            inner: InMemory::new(),
            failure,
            vanishes,
            before_write: Mutex::default(),
            listed: Arc::default(),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            busiest: AtomicU64::new(0),
        })
    }

    pub fn fail(&self, failure: Failure) {
        *self.failure.lock() = failure;
    }

    /// Schedules a future before the write of an object: the one whose key contains `part`, after
    /// `skip` others.
    pub fn before_write(&self, part: &'static str, skip: usize, what: impl Future<Output = ()> + Send + 'static) {
        *self.before_write.lock() = Some((part, skip, Box::pin(what)));
    }

    /// Deletes all objects, as by hand.
    pub async fn clear(&self) {
        let all: Vec<ObjectMeta> = self.inner.list(None).try_collect().await.unwrap_or_default();
        for one in all {
            let _ = self.inner.delete(&one.location).await;
        }
    }

    pub fn connect(self: &Arc<Self>) -> Connection {
        Connection::new(self.clone(), self.clone())
    }

    async fn read_pack(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (path, is_head) = (location.to_string(), options.head);
        let failure = *self.failure.lock();
        match failure {
            Failure::Away => return Err(Error::Generic { store: "test", source: "connection refused".into() }),
            Failure::Denied => return Err(Error::PermissionDenied { path, source: "403".into() }),
            Failure::Gone => return Err(Error::NotFound { path, source: "404".into() }),
            Failure::None | Failure::Flipped(_) => {}
        }
        let result = self.inner.get_opts(location, options).await?;
        match failure {
            Failure::Flipped(left) if left > 0 && !is_head => {
                self.fail(Failure::Flipped(left - 1));
                let (meta, range, attributes) = (result.meta.clone(), result.range.clone(), result.attributes.clone());
                let mut bytes = result.bytes().await?.to_vec();
                bytes[0] ^= 1;
                let flipped = futures_util::stream::iter([Ok(Bytes::from(bytes))]);
                let payload = GetResultPayload::Stream(Box::pin(flipped));
                Ok(GetResult { payload, meta, range, attributes, extensions: Default::default() })
            }
            _ => Ok(result),
        }
    }
}

impl std::fmt::Debug for Failing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Failing").finish_non_exhaustive()
    }
}

impl std::fmt::Display for Failing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "failing store")
    }
}

fn is_pack(path: &Path) -> bool {
    path.as_ref().contains("/p/")
}

#[async_trait]
impl ObjectStore for Failing {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.writes.fetch_add(u64::from(is_pack(location)), Ordering::SeqCst);
        if location.as_ref().contains("/pin/") && self.vanishes.swap(false, Ordering::SeqCst) {
            self.clear().await;
        }
        let due = {
            let mut before_write = self.before_write.lock();
            match before_write.take() {
                Some((part, 0, what)) if location.as_ref().contains(part) => Some(what),
                Some((part, skip, what)) => {
                    *before_write = Some((part, skip - usize::from(location.as_ref().contains(part)), what));
                    None
                }
                None => None,
            }
        };
        if let Some(what) = due {
            what.await;
        }
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if !is_pack(location) {
            return self.inner.get_opts(location, options).await;
        }
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.busiest.fetch_max(self.under_way.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        // Requests that are made at the same time meet here.
        tokio::task::yield_now().await;
        let answer = self.read_pack(location, options).await;
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        answer
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed = self.listed.clone();
        self.inner.list(prefix).inspect(move |_| _ = listed.fetch_add(1, Ordering::SeqCst)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// Runs a future on one thread, whose clock advances when all tasks wait.
pub fn run<T>(what: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap().block_on(what)
}

/// A group of text that is distinct for each number.
pub fn text(number: u64) -> Bytes {
    let line = format!("group {number} of an image, line after line; ");
    line.bytes().cycle().take(GROUP as usize).collect::<Vec<u8>>().into()
}

/// Bytes that no codec compresses.
pub fn noise(seed: u64, len: usize) -> Bytes {
    testkit::noise(seed, len).into()
}

/// Encodes a group as a blob would.
pub fn stored(data: Bytes) -> StoredGroup {
    let encoding = Encoding::default();
    let clock = Arc::new(SystemClock::default());
    let encoder = Encoder::new(encoding.choose("", &[]), encoding.min_saving_permille(), clock);
    let data_len = data.len() as u32;
    let encoded = encoder.encode(vec![data]).pop().unwrap();
    StoredGroup { codec: encoded.frame.codec, data_len, crc: encoded.frame.crc, bytes: encoded.stored }
}

/// Decodes the group that a reader got.
pub fn data(group: &blob::Group, len: usize) -> Vec<u8> {
    match group {
        blob::Group::Zero => vec![0; len],
        blob::Group::Plain(data) => data.to_vec(),
        blob::Group::Stored(stored) if stored.codec == codec::CodecId::RAW => stored.bytes.to_vec(),
        blob::Group::Stored(stored) => {
            let mut data = vec![0; stored.data_len as usize];
            Workspace::new().decompress(stored.codec, &stored.bytes, &mut data).unwrap();
            data
        }
    }
}
