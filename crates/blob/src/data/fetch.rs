//! Reading packs: the object for a pack, how often a request is repeated, and verification of all
//! data. Owns the rule for damage: bytes that fail their checksum are fetched once more, because
//! the link may have corrupted them; then the error names the pack and the offset. Nothing is ever
//! replaced with zeroes. A fetcher has no mutable state, and any task may use it.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use format::FormatError;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::data::extent::{NodeHash, NodeRef, PackRef};
use crate::error::Error;
use crate::names::{BlobKey, Inc};
use crate::protocol::record::Record;
use crate::store::backend::{Backend, is_permanent};
use crate::store::cache::StoredCache;
use crate::store::store_errors::is_absent;

/// Tries of a data request: about 5 s with the pauses in between. The client below also repeats
/// requests that broke off.
const TRIES: u32 = 8;

/// Tries for an object that the store reports as missing: a store that has just lost a node may do
/// so for a moment.
const DENIED_TRIES: u32 = 4;
/// Try after which the object's size is checked: an object that is too short will not grow.
const SIZED_TRY: u32 = 2;

/// Longest range that is kept in an external cache: enough for a few small reads. Longer reads
/// would only evict the rest.
const CACHED_BYTES_MAX: u64 = 1 << 20;

/// Reads the packs of one blob.
#[derive(Debug, Clone)]
pub(crate) struct Fetcher {
    pub(crate) backend: Backend,
    /// The client for data: without a limit on the total time of a request.
    pub(crate) data: Arc<dyn ObjectStore>,
    pub(crate) key: BlobKey,
    pub(crate) inc: Inc,
    pub(crate) cache: Option<Arc<dyn StoredCache>>,
}

impl Fetcher {
    /// Returns the key of the object that holds a pack.
    pub(crate) fn path(&self, record: &Record, pack: &PackRef) -> Result<Path, Error> {
        let Some(index) = usize::from(pack.origin).checked_sub(1) else {
            return Ok(self.key.pack(self.inc, pack));
        };
        let unknown =
            || Error::damaged(format!("record {}", record.seq), format!("there is no origin {}", pack.origin));
        let origin = record.origins.get(index).ok_or_else(unknown)?;
        if origin.location.contains("://") {
            let why =
                format!("part of this version is in another store, at {}: copy it to this store", origin.location);
            return Err(Error::Refused(why));
        }
        Ok(BlobKey::new(Path::from(origin.location.as_str())).pack(origin.inc, pack))
    }

    /// Returns a range of an object, from the cache if it is there.
    pub(crate) async fn cached(&self, path: &Path, range: Range<u64>) -> Result<Bytes, Error> {
        let Some(cache) = self.cache.as_ref().filter(|_| range.end - range.start <= CACHED_BYTES_MAX) else {
            return self.range(path, range).await;
        };
        let name = format!("{path}#{}-{}", range.start, range.end);
        if let Some(bytes) = cache.get(&name).filter(|bytes| bytes.len() as u64 == range.end - range.start) {
            return Ok(bytes);
        }
        let bytes = self.range(path, range).await?;
        cache.put(&name, &bytes);
        Ok(bytes)
    }

    /// Returns a range of an object from the store, with exactly the requested length.
    pub(crate) async fn range(&self, path: &Path, range: Range<u64>) -> Result<Bytes, Error> {
        let mut tries = 0;
        loop {
            let error = match self.data.get_range(path, range.clone()).await {
                Ok(bytes) if bytes.len() as u64 == range.end - range.start => return Ok(bytes),
                Ok(bytes) => {
                    let detail = format!("received {} of {} bytes", bytes.len(), range.end - range.start);
                    object_store::Error::Generic { store: "blob", source: detail.into() }
                }
                Err(error) => error,
            };
            tries += 1;
            if is_absent(&error) {
                if tries >= DENIED_TRIES {
                    return Err(Error::Lost { path: path.to_string() });
                }
            } else if tries >= SIZED_TRY
                && let Ok(about) = self.data.head(path).await
                && about.size < range.end
            {
                let detail =
                    format!("it has {} bytes, but bytes {} to {} are needed", about.size, range.start, range.end);
                return Err(Error::damaged(path.to_string(), detail));
            } else if tries == TRIES || is_permanent(&error, tries) {
                return Err(Error::store(format!("reading {path}"), error));
            }
            self.backend.pause(tries).await;
        }
    }

    /// Returns a whole object, which is a pack: at most 64 MiB and a table.
    pub(crate) async fn whole(&self, path: &Path) -> Result<Bytes, Error> {
        let mut tries = 0;
        loop {
            let error = match self.data.get(path).await {
                Ok(found) => match found.bytes().await {
                    Ok(bytes) => return Ok(bytes),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            tries += 1;
            if tries >= DENIED_TRIES && is_absent(&error) {
                return Err(Error::Lost { path: path.to_string() });
            }
            if tries == TRIES || is_permanent(&error, tries) {
                return Err(Error::store(format!("reading {path}"), error));
            }
            self.backend.pause(tries).await;
        }
    }

    /// Returns the bytes of a node, whose hash has been verified.
    pub(crate) async fn node(&self, record: &Record, node: &NodeRef) -> Result<Bytes, Error> {
        let path = self.path(record, &node.pack)?;
        let range = u64::from(node.offset)..u64::from(node.offset) + u64::from(node.len);
        for is_again in [false, true] {
            let range = range.clone();
            let bytes = if is_again { self.range(&path, range).await? } else { self.cached(&path, range).await? };
            if NodeHash::of(&bytes) == node.hash {
                return Ok(bytes);
            }
        }
        Err(Error::damaged(format!("node at {} of {path}", node.offset), "its hash does not match, twice".into()))
    }
}

impl Error {
    /// Wraps a fault in the bytes of an object.
    pub(crate) fn damaged(what: String, detail: String) -> Self {
        Self::Damaged { what, source: FormatError::new("blob", detail) }
    }
}
