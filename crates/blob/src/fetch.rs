//! Reading packs: which object a pack is, how often a request is repeated, and that nothing leaves
//! here unverified. Owns the one rule of damage: bytes whose checksum does not match are fetched
//! once more, because the link may have turned them over; then the error names the pack and the
//! place. Nothing is ever replaced by zeroes.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use format::FormatError;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::error::Error;
use crate::extent::{NodeHash, NodeRef, PackRef};
use crate::names::{BlobKey, Inc};
use crate::record::Record;
use crate::told::is_absent;
use crate::world::{World, is_in_vain};

/// How often a request of data is made: with the pauses in between about 5 s, and the client below
/// repeats those that broke off.
const TRIES: u32 = 8;

/// How often an object is asked for that the store denies: a store that has just lost a node may
/// deny one for a moment.
const DENIED_TRIES: u32 = 4;
/// Try after which the object's size is asked for: one that is too short will not grow.
const SIZED_TRY: u32 = 2;

/// Bytes of a range up to which it is kept in a cache outside: what a few small reads need. A long
/// read would only drive out the rest.
const CACHED_BYTES_MAX: u64 = 1 << 20;

/// Keeps parts of packs outside of memory, by name. Packs never change, so nothing is ever taken
/// back; what comes out is verified as what comes from the store is.
pub trait StoredCache: Send + Sync + std::fmt::Debug {
    /// Returns the bytes that were kept under a name.
    fn get(&self, name: &str) -> Option<Bytes>;
    /// Keeps bytes; a cache that fails only costs asking again.
    fn put(&self, name: &str, bytes: &Bytes);
}

/// Reads the packs of one blob.
#[derive(Debug, Clone)]
pub(crate) struct Fetcher {
    pub(crate) world: World,
    /// The client for data: without a limit on the whole time of a request.
    pub(crate) data: Arc<dyn ObjectStore>,
    pub(crate) key: BlobKey,
    pub(crate) inc: Inc,
    pub(crate) cache: Option<Arc<dyn StoredCache>>,
}

impl Fetcher {
    /// Returns the key of the object that a pack is.
    pub(crate) fn path(&self, record: &Record, pack: &PackRef) -> Result<Path, Error> {
        let Some(index) = usize::from(pack.origin).checked_sub(1) else {
            return Ok(self.key.pack(self.inc, pack));
        };
        let unknown = || Error::damaged(format!("record {}", record.seq), format!("it has no origin {}", pack.origin));
        let origin = record.origins.get(index).ok_or_else(unknown)?;
        if origin.location.contains("://") {
            let why = format!("part of this version is in another store, at {}: copy it here", origin.location);
            return Err(Error::Refused(why));
        }
        Ok(BlobKey::new(Path::from(origin.location.as_str())).pack(origin.inc, pack))
    }

    /// Returns bytes of an object, from the cache if they are there.
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

    /// Returns bytes of an object, as many as were asked for, from the store.
    pub(crate) async fn range(&self, path: &Path, range: Range<u64>) -> Result<Bytes, Error> {
        let mut tries = 0;
        loop {
            let error = match self.data.get_range(path, range.clone()).await {
                Ok(bytes) if bytes.len() as u64 == range.end - range.start => return Ok(bytes),
                Ok(bytes) => {
                    let detail = format!("{} bytes came of {}", bytes.len(), range.end - range.start);
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
                let detail = format!("it has {} bytes, and {} to {} are needed", about.size, range.start, range.end);
                return Err(Error::damaged(path.to_string(), detail));
            } else if tries == TRIES || is_in_vain(&error, tries) {
                return Err(Error::store(format!("reading {path}"), error));
            }
            self.world.pause(tries).await;
        }
    }

    /// Returns all bytes of an object, which is a pack and so of 64 MiB and a table at most.
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
            if tries == TRIES || is_in_vain(&error, tries) {
                return Err(Error::store(format!("reading {path}"), error));
            }
            self.world.pause(tries).await;
        }
    }

    /// Returns the bytes of a node, whose hash matches.
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
    /// Names an object whose bytes are not what they should be.
    pub(crate) fn damaged(what: String, detail: String) -> Self {
        Self::Damaged { what, source: FormatError::new("blob", detail) }
    }
}
