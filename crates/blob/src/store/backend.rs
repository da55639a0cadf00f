//! The backend of a blob: its store, the clock and random numbers. Owns how often a request is
//! repeated, and the one rule about answers: an error of the store never decides the outcome of a
//! write; a read does. Cloned freely and used by any task.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::{Clock, Entropy};
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};

use crate::error::Error;
use crate::store::files::lacks_log;
use crate::store::store_errors::{
    io_kind, is_absent, is_in_other_region, is_path_conflict, is_refused, lacks_bucket, lacks_credentials,
};

/// Tries of a read: about 10 s with the pauses below, longer than the store needs to elect or
/// restart a node.
pub(crate) const READ_TRIES: u32 = 9;
/// The first pause between two tries; each pause is twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest pause, and so the rate of requests to an unreachable store.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Tries of a request whose keys the store refuses: expired keys are read again in between.
const REFUSED_TRIES: u32 = 5;

/// Tries of a request without credentials: a machine that provides them may have been too busy to
/// answer.
const KEYLESS_TRIES: u32 = 2;

/// Returns whether trying again is pointless: the store's disk is full or read-only, the store
/// refuses the keys permanently, there are no keys, the bucket is missing or in another region,
/// another object is in the place of a directory, a name is too long, or the log is gone.
pub(crate) fn is_permanent(error: &object_store::Error, tries: u32) -> bool {
    use std::io::ErrorKind;
    if lacks_bucket(error)
        || is_in_other_region(error)
        || is_path_conflict(error)
        || lacks_log(error)
        || has_file_for_directory(error)
        || (tries >= KEYLESS_TRIES && lacks_credentials(error))
    {
        return true;
    }
    if is_refused(error) {
        return tries >= REFUSED_TRIES;
    }
    matches!(
        io_kind(error),
        Some(
            ErrorKind::StorageFull
                | ErrorKind::QuotaExceeded
                | ErrorKind::PermissionDenied
                | ErrorKind::ReadOnlyFilesystem
                | ErrorKind::NotADirectory
                | ErrorKind::IsADirectory
                | ErrorKind::InvalidFilename
        )
    )
}

/// Returns whether a file is in the place of a directory; an existing object gives another kind of
/// error.
fn has_file_for_directory(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::Generic { store: "LocalFileSystem", .. })
        && io_kind(error) == Some(std::io::ErrorKind::AlreadyExists)
}

/// The store, the clock, and random numbers.
#[derive(Clone)]
pub struct Backend {
    /// The store. Its client must not repeat conditional requests by itself (`max_retries` 0):
    /// repeating one that took effect gives the answer that the object exists.
    pub store: Arc<dyn ObjectStore>,
    /// For timestamps in records, and round trips.
    pub clock: Arc<dyn Clock>,
    /// For names.
    pub entropy: Arc<dyn Entropy>,
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend").field("store", &self.store).finish_non_exhaustive()
    }
}

/// The outcome of a request to create an object, as far as its answer shows.
#[derive(Debug)]
pub(crate) enum Created {
    /// The object exists, with these bytes.
    Yes,
    /// Unknown; a read must decide.
    Ask(object_store::Error),
}

impl Backend {
    /// Returns an object's bytes; `None` if the store reports it missing.
    pub(crate) async fn get(&self, path: &Path) -> Result<Option<Bytes>, Error> {
        let mut tries = 0;
        loop {
            let error = match self.get_once(path).await {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(error) if is_absent(&error) => return Ok(None),
                Err(error) => error,
            };
            tries += 1;
            if tries == READ_TRIES || is_permanent(&error, tries) {
                return Err(Error::store(format!("reading {path}"), error));
            }
            self.pause(tries).await;
        }
    }

    async fn get_once(&self, path: &Path) -> object_store::Result<Bytes> {
        let result = self.store.get(path).await?;
        let size = result.meta.size;
        let bytes = result.bytes().await?;
        if bytes.len() as u64 == size {
            return Ok(bytes);
        }
        let detail = format!("received {} of {size} bytes", bytes.len());
        Err(object_store::Error::Generic { store: "blob", source: detail.into() })
    }

    /// Returns whether the store reports that there is an object.
    pub(crate) async fn exists(&self, path: &Path) -> Result<bool, Error> {
        let mut tries = 0;
        loop {
            let error = match self.store.head(path).await {
                Ok(_) => return Ok(true),
                Err(error) if is_absent(&error) => return Ok(false),
                Err(error) => error,
            };
            tries += 1;
            if tries == READ_TRIES || is_permanent(&error, tries) {
                return Err(Error::store(format!("checking for {path}"), error));
            }
            self.pause(tries).await;
        }
    }

    /// Lists the keys below a prefix: all of them, or those after a given key.
    pub(crate) async fn list(&self, prefix: &Path, after: Option<&Path>) -> Result<Vec<Path>, Error> {
        let mut tries = 0;
        loop {
            let objects = match after {
                None => self.store.list(Some(prefix)),
                Some(after) => self.store.list_with_offset(Some(prefix), after),
            };
            match objects.map_ok(|meta| meta.location).try_collect().await {
                Ok(paths) => return Ok(paths),
                Err(error) if tries + 1 == READ_TRIES || is_permanent(&error, tries + 1) => {
                    return Err(Error::store(format!("listing {prefix}"), error));
                }
                Err(_) => tries += 1,
            }
            self.pause(tries).await;
        }
    }

    /// Creates an object if there is none, in one request.
    pub(crate) async fn create(&self, path: &Path, bytes: Bytes) -> Created {
        let options = PutOptions::from(PutMode::Create);
        match self.store.put_opts(path, bytes.into(), options).await {
            Ok(_) => Created::Yes,
            Err(error) => Created::Ask(error),
        }
    }

    /// Writes an object, replacing an existing one.
    pub(crate) async fn put(&self, path: &Path, bytes: Bytes) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            let Err(error) = self.store.put(path, bytes.clone().into()).await else {
                return Ok(());
            };
            tries += 1;
            if tries == READ_TRIES || is_permanent(&error, tries) {
                return Err(Error::store(format!("writing {path}"), error));
            }
            self.pause(tries).await;
        }
    }

    /// Waits before try number `tries`, counted from 1: longer each time, with a random part.
    pub(crate) async fn pause(&self, tries: u32) {
        let longest = PAUSE_MIN.saturating_mul(1 << tries.min(12)).min(PAUSE_MAX);
        tokio::time::sleep(longest.mul_f64(0.5 + 0.5 * self.fraction())).await;
    }

    /// Returns a pseudorandom number in `0..1`, for pauses only.
    pub(crate) fn fraction(&self) -> f64 {
        let mut bytes = [0; 4];
        let _ = self.entropy.fill(&mut bytes);
        f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0)
    }
}
