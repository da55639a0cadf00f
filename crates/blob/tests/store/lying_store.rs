//! A lying store, driven by a seed: answers are lost before or after their effect, effects come
//! late or twice, conflicts are reported where there are none, reads find nothing, lists are stale,
//! bodies are truncated or damaged. It respects the assumptions of the protocol: a key is created
//! once, and a read that finds something finds the newest.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use sim::Rng;

/// The longest delay of an effect, in milliseconds: longer than any client waits.
const LATE_MS_MAX: u64 = 400_000;
/// How long a list may miss a new object, in milliseconds.
const STALE_MS_MAX: u64 = 2_000;

#[derive(Debug)]
struct Inner {
    objects: BTreeMap<Path, (Bytes, tokio::time::Instant)>,
    rng: Rng,
    /// Percent of requests with a fault.
    faults: u64,
    requests: u64,
    /// Checks whether an object exists, and creates it some time later, which violates the
    /// protocol's assumptions.
    racy: bool,
    /// No list shows a young object, not even a pin, which violates them as well.
    lists_late: bool,
    /// Each request takes the same time: 60 ms.
    steady: bool,
    /// Nothing is ever deleted, as under an object lock.
    keeping: bool,
    /// The disk below it is full.
    is_full: bool,
    /// The next write finds room nevertheless, and takes effect late.
    is_next_late: bool,
}

#[derive(Debug, Clone)]
pub struct LyingStore(Arc<Mutex<Inner>>);

impl std::fmt::Display for LyingStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a store that lies")
    }
}

enum Fate {
    Fine,
    LostBefore,
    LostAfter,
    Late,
    Twice,
    Conflict,
    ErrorThenConflict,
    Denied,
    NotThere,
    Cut,
    Damaged,
}

fn error(what: &str) -> object_store::Error {
    object_store::Error::Generic { store: "lying", source: what.into() }
}

fn conflict(path: &Path) -> object_store::Error {
    object_store::Error::AlreadyExists { path: path.to_string(), source: "conflict".into() }
}

fn missing(path: &Path) -> object_store::Error {
    object_store::Error::NotFound { path: path.to_string(), source: "no such key".into() }
}

impl Inner {
    fn put(&mut self, path: &Path, bytes: Bytes, create: bool) -> Result<PutResult> {
        if create && self.objects.contains_key(path) {
            return Err(conflict(path));
        }
        self.objects.insert(path.clone(), (bytes, tokio::time::Instant::now()));
        Ok(PutResult { e_tag: None, version: None, extensions: object_store::Extensions::default() })
    }

    fn fate(&mut self, among: &[fn() -> Fate]) -> Fate {
        self.requests += 1;
        if self.rng.percent(self.faults) { self.rng.pick(among)() } else { Fate::Fine }
    }
}

impl LyingStore {
    pub fn new(seed: u64, faults: u64) -> Self {
        let rng = Rng::new(seed);
        let (objects, requests) = (BTreeMap::new(), 0);
        let inner = Inner {
            objects,
            rng,
            faults,
            requests,
            racy: false,
            lists_late: false,
            steady: false,
            keeping: false,
            is_full: false,
            is_next_late: false,
        };
        Self(Arc::new(Mutex::new(inner)))
    }

    /// A store without faults that checks first, and then creates.
    pub fn racy(seed: u64) -> Self {
        let store = Self::new(seed, 0);
        store.0.lock().racy = true;
        store
    }

    /// A store without faults whose lists are stale.
    pub fn with_old_lists(seed: u64) -> Self {
        let store = Self::new(seed, 0);
        store.0.lock().lists_late = true;
        store
    }

    /// A store without faults, of which each request takes 60 ms.
    pub fn steady(seed: u64) -> Self {
        let store = Self::new(seed, 0);
        store.0.lock().steady = true;
        store
    }

    /// A steady store that refuses to delete.
    pub fn keeping(seed: u64) -> Self {
        let store = Self::steady(seed);
        store.0.lock().keeping = true;
        store
    }

    /// From now on there is room on the disk below it, or none.
    pub fn set_full(&self, is_full: bool) {
        self.0.lock().is_full = is_full;
    }

    /// The same, but the next write takes effect late, and only those after it are refused.
    pub fn set_full_behind_a_late_request(&self) {
        self.set_full(true);
        self.0.lock().is_next_late = true;
    }

    /// Returns the true content.
    pub fn truth(&self, path: &Path) -> Option<Bytes> {
        self.0.lock().objects.get(path).map(|object| object.0.clone())
    }

    pub fn requests(&self) -> u64 {
        self.0.lock().requests
    }

    async fn delay(&self) {
        let ms = {
            let mut inner = self.0.lock();
            match inner.rng.percent(5) {
                _ if inner.steady => 29 + inner.rng.below(3),
                true => inner.rng.below(3_000),
                false => inner.rng.between(1, 60),
            }
        };
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    /// Takes effect some time later, whether or not the client still exists.
    fn later(&self, effect: impl FnOnce(&mut Inner) + Send + 'static) {
        let ms = {
            let mut inner = self.0.lock();
            let max = *inner.rng.pick(&[100, 1_000, 20_000, LATE_MS_MAX]);
            inner.rng.below(max)
        };
        let store = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            effect(&mut store.0.lock());
        });
    }
}

#[async_trait::async_trait]
impl ObjectStore for LyingStore {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let create = matches!(options.mode, PutMode::Create);
        let bytes = Bytes::from(payload);
        self.delay().await;
        if std::mem::take(&mut self.0.lock().is_next_late) {
            let path = path.clone();
            self.later(move |inner| drop(inner.put(&path, bytes, create)));
            return Err(error("timed out"));
        }
        if self.0.lock().is_full {
            let source = std::io::Error::from(std::io::ErrorKind::StorageFull);
            return Err(object_store::Error::Generic { store: "lying", source: source.into() });
        }
        let looks = self.0.lock().racy && create;
        if looks {
            if self.0.lock().objects.contains_key(path) {
                return Err(conflict(path));
            }
            self.delay().await;
        }
        let create = create && !looks;
        let fate = self.0.lock().fate(&[
            || Fate::LostBefore,
            || Fate::LostAfter,
            || Fate::LostAfter,
            || Fate::Late,
            || Fate::Late,
            || Fate::Twice,
            || Fate::Conflict,
            || Fate::ErrorThenConflict,
            || Fate::Denied,
        ]);
        let put = |bytes: Bytes| self.0.lock().put(path, bytes, create);
        let result = match fate {
            Fate::LostBefore => Err(error("503 SlowDown")),
            Fate::Denied => {
                Err(object_store::Error::PermissionDenied { path: path.to_string(), source: "expired".into() })
            }
            Fate::LostAfter => put(bytes).and(Err(error("connection reset"))),
            Fate::Late => {
                let path = path.clone();
                self.later(move |inner| drop(inner.put(&path, bytes, create)));
                Err(error("timed out"))
            }
            Fate::Twice => {
                let (path, again) = (path.clone(), bytes.clone());
                self.later(move |inner| drop(inner.put(&path, again, create)));
                put(bytes)
            }
            Fate::Conflict if create => Err(conflict(path)),
            Fate::ErrorThenConflict if create => put(bytes).and(Err(conflict(path))),
            _ => put(bytes),
        };
        self.delay().await;
        result
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(error("no multipart uploads"))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.delay().await;
        let (fate, object) = {
            let mut inner = self.0.lock();
            let fate = inner.fate(&[
                || Fate::LostBefore,
                || Fate::NotThere,
                || Fate::NotThere,
                || Fate::Cut,
                || Fate::Damaged,
            ]);
            (fate, inner.objects.get(path).map(|object| object.0.clone()))
        };
        self.delay().await;
        let bytes = match (fate, object) {
            (Fate::LostBefore, _) => return Err(error("500")),
            (Fate::NotThere, _) | (_, None) => return Err(missing(path)),
            (fate, Some(bytes)) => {
                let mut sent = bytes.to_vec();
                match fate {
                    Fate::Cut => sent.truncate(sent.len() / 2),
                    Fate::Damaged if !sent.is_empty() => {
                        let at = self.0.lock().rng.index(sent.len());
                        sent[at] ^= 1 << (at % 8);
                    }
                    _ => {}
                }
                (bytes, Bytes::from(sent))
            }
        };
        let size = bytes.0.len() as u64;
        let range: Range<u64> = match &options.range {
            Some(range) => range.as_range(size).map_err(|bad| error(&bad.to_string()))?,
            None => 0..size,
        };
        let end = (range.end as usize).min(bytes.1.len());
        let body = if options.head { Bytes::new() } else { bytes.1.slice((range.start as usize).min(end)..end) };
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::iter([Ok(body)]).boxed()),
            meta: meta(path, size),
            range,
            attributes: object_store::Attributes::default(),
            extensions: object_store::Extensions::default(),
        })
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        paths
            .then(move |path| {
                let store = store.clone();
                async move {
                    let path = path?;
                    store.delay().await;
                    let fate = store.0.lock().fate(&[|| Fate::LostBefore, || Fate::LostAfter, || Fate::Late]);
                    let keeping = store.0.lock().keeping;
                    let result = match fate {
                        _ if keeping => Err(error("403 AccessDenied")),
                        Fate::LostBefore => Err(error("503 SlowDown")),
                        Fate::Late => {
                            let path = path.clone();
                            store.later(move |inner| drop(inner.objects.remove(&path)));
                            Err(error("timed out"))
                        }
                        fate => {
                            store.0.lock().objects.remove(&path);
                            if matches!(fate, Fate::Fine) { Ok(path) } else { Err(error("connection reset")) }
                        }
                    };
                    store.delay().await;
                    result
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, prefix) = (self.clone(), prefix.cloned());
        stream::once(async move {
            store.delay().await;
            let mut inner = store.0.lock();
            let fate = inner.fate(&[|| Fate::LostBefore, || Fate::NotThere]);
            // Lists of pins and of a log are never stale (A4).
            let is_sure = prefix.as_ref().is_some_and(|prefix| matches!(prefix.filename(), Some("pin" | "log")));
            let is_old = inner.lists_late || matches!(fate, Fate::NotThere) && !is_sure;
            let stale = if is_old { STALE_MS_MAX } else { 0 };
            let now = tokio::time::Instant::now();
            let known = |at: &tokio::time::Instant| now.duration_since(*at) >= Duration::from_millis(stale);
            let below = |path: &Path| prefix.as_ref().is_none_or(|prefix| path.prefix_matches(prefix));
            let objects = inner.objects.iter().filter(|(path, object)| below(path) && known(&object.1));
            let mut listed: Vec<Result<ObjectMeta>> =
                objects.map(|(path, object)| Ok(meta(path, object.0.len() as u64))).collect();
            if matches!(fate, Fate::LostBefore) {
                listed.truncate(listed.len() / 2);
                listed.push(Err(error("500")));
            }
            stream::iter(listed)
        })
        .flatten()
        .boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(error("no lists of directories"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(error("no copies"))
    }
}

fn meta(path: &Path, size: u64) -> ObjectMeta {
    ObjectMeta { location: path.clone(), last_modified: Default::default(), size, e_tag: None, version: None }
}
