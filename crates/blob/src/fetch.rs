//! Reading packs: which object a pack is, how often a request is repeated, and that nothing leaves here unverified. Owns the one rule of
//! damage: bytes whose checksum does not match are fetched once more, because the link may have turned them over; then the error
//! names the pack and the place. Nothing is ever replaced by zeroes.

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
use crate::world::World;

/// How often a request of data is made: with the pauses in between about 5 s, and the client below repeats those that broke off.
const TRIES: u32 = 8;

/// Reads the packs of one blob.
#[derive(Debug, Clone)]
pub(crate) struct Fetcher {
    pub(crate) world: World,
    /// The client for data: without a limit on the whole time of a request.
    pub(crate) data: Arc<dyn ObjectStore>,
    pub(crate) key: BlobKey,
    pub(crate) inc: Inc,
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

    /// Returns bytes of an object, as many as were asked for.
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
            let hopeless = matches!(error, object_store::Error::NotFound { .. }) && tries > 3;
            if tries == TRIES || hopeless {
                return Err(Error::store(format!("reading {path}"), error));
            }
            self.world.pause(tries).await;
        }
    }

    /// Returns the bytes of a node, whose hash matches.
    pub(crate) async fn node(&self, record: &Record, node: &NodeRef) -> Result<Bytes, Error> {
        let path = self.path(record, &node.pack)?;
        let range = u64::from(node.offset)..u64::from(node.offset) + u64::from(node.len);
        for _ in 0..2 {
            let bytes = self.range(&path, range.clone()).await?;
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
