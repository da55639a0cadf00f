//! What a blob's code reaches outside: the store, the clock, random numbers. Owns how often a
//! request is repeated, and the one rule about answers: an error of the store never decides what
//! became of a write, a read does.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::{Clock, Entropy};
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};

use crate::error::Error;
use crate::files::is_without_log;
use crate::told::{is_absent, is_elsewhere, is_in_way, is_refused, is_without_bucket, is_without_credentials};

/// How often a read is asked again: with the pauses below about 10 s, longer than the store needs
/// to elect or restart a node.
pub(crate) const READ_TRIES: u32 = 9;
/// The first pause between two tries; each is twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest pause: a store that is away is asked once in that time.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How often a request is made whose keys the store refuses: keys that have just ended are read
/// anew meanwhile.
const REFUSED_TRIES: u32 = 5;

/// How often a request is made when no credentials are found: a machine that has some may have been
/// too busy to answer.
const KEYLESS_TRIES: u32 = 2;

/// Tells whether asking again is in vain: the store's disk is full, it is only to be read, it
/// refuses the keys for good, there are no keys, there is no bucket, or it is in another region;
/// something else is where a directory must be; a name is too long; the log is gone.
pub(crate) fn is_in_vain(error: &object_store::Error, tries: u32) -> bool {
    use std::io::ErrorKind;
    if is_without_bucket(error)
        || is_elsewhere(error)
        || is_in_way(error)
        || is_without_log(error)
        || has_file_in_way(error)
        || (tries >= KEYLESS_TRIES && is_without_credentials(error))
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

/// Tells whether a file is where a directory is to be made: that an object exists is told by
/// another kind of error.
fn has_file_in_way(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::Generic { store: "LocalFileSystem", .. })
        && io_kind(error) == Some(std::io::ErrorKind::AlreadyExists)
}

/// Returns what the file system below a store said, if that is why the store failed.
pub(crate) fn io_kind(error: &object_store::Error) -> Option<std::io::ErrorKind> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return Some(error.kind());
        }
        cause = error.source();
    }
    None
}

/// The store, the clock, and random numbers.
#[derive(Clone)]
pub struct World {
    /// The store. Its client must not repeat conditional requests by itself (`max_retries` 0): a
    /// repeated one that had an effect answers that the object exists.
    pub store: Arc<dyn ObjectStore>,
    /// For wall-clock seconds in records, and round trips.
    pub clock: Arc<dyn Clock>,
    /// For names.
    pub entropy: Arc<dyn Entropy>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("store", &self.store).finish_non_exhaustive()
    }
}

/// What became of a request to create an object, as far as its answer tells.
#[derive(Debug)]
pub(crate) enum Created {
    /// It is there, with these bytes.
    Yes,
    /// Only a read can tell.
    Ask(object_store::Error),
}

impl World {
    /// Returns an object's bytes; `None` if the store says that there is none.
    pub(crate) async fn get(&self, path: &Path) -> Result<Option<Bytes>, Error> {
        let mut tries = 0;
        loop {
            let error = match self.get_once(path).await {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(error) if is_absent(&error) => return Ok(None),
                Err(error) => error,
            };
            tries += 1;
            if tries == READ_TRIES || is_in_vain(&error, tries) {
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
        let detail = format!("{} bytes came of {size}", bytes.len());
        Err(object_store::Error::Generic { store: "blob", source: detail.into() })
    }

    /// Tells whether the store says that there is an object.
    pub(crate) async fn exists(&self, path: &Path) -> Result<bool, Error> {
        let mut tries = 0;
        loop {
            let error = match self.store.head(path).await {
                Ok(_) => return Ok(true),
                Err(error) if is_absent(&error) => return Ok(false),
                Err(error) => error,
            };
            tries += 1;
            if tries == READ_TRIES || is_in_vain(&error, tries) {
                return Err(Error::store(format!("asking for {path}"), error));
            }
            self.pause(tries).await;
        }
    }

    /// Lists the keys below a prefix: all of them, or those after a key.
    pub(crate) async fn list(&self, prefix: &Path, after: Option<&Path>) -> Result<Vec<Path>, Error> {
        let mut tries = 0;
        loop {
            let objects = match after {
                None => self.store.list(Some(prefix)),
                Some(after) => self.store.list_with_offset(Some(prefix), after),
            };
            match objects.map_ok(|meta| meta.location).try_collect().await {
                Ok(paths) => return Ok(paths),
                Err(error) if tries + 1 == READ_TRIES || is_in_vain(&error, tries + 1) => {
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

    /// Writes an object, whether there is one or not.
    pub(crate) async fn put(&self, path: &Path, bytes: Bytes) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            let Err(error) = self.store.put(path, bytes.clone().into()).await else {
                return Ok(());
            };
            tries += 1;
            if tries == READ_TRIES || is_in_vain(&error, tries) {
                return Err(Error::store(format!("writing {path}"), error));
            }
            self.pause(tries).await;
        }
    }

    /// Waits before try number `tries`, which counts from 1, longer each time and never twice the
    /// same.
    pub(crate) async fn pause(&self, tries: u32) {
        let longest = PAUSE_MIN.saturating_mul(1 << tries.min(12)).min(PAUSE_MAX);
        tokio::time::sleep(longest.mul_f64(0.5 + 0.5 * self.fraction())).await;
    }

    /// Returns a number from 0 to below 1 that looks random: for pauses only.
    pub(crate) fn fraction(&self) -> f64 {
        let mut bytes = [0; 4];
        let _ = self.entropy.fill(&mut bytes);
        f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0)
    }
}
