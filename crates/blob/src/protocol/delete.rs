//! Deleting objects of a blob, many with one request and at a limited rate. Owns how often a
//! deletion is repeated. Any task may call it; callers make sure that nothing names the objects.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt;
use object_store::ObjectStoreExt;
use object_store::path::Path;

use crate::protocol::log::Log;
use crate::store::backend::{READ_TRIES, is_permanent};
use crate::store::store_errors::is_absent;

/// Objects deleted by one request where the store supports that: the limit of S3.
const BULK: usize = 1000;
/// Default rate of deletions and burials, in requests per second.
pub(crate) const PER_SECOND: u32 = 100;

/// The result of a sweep.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    pub(crate) deleted: u64,
    pub(crate) bytes: u64,
    pub(crate) refused: u64,
    /// The first refusal.
    pub(crate) refusal: Option<(Path, object_store::Error)>,
}

/// Deletes objects: many with one request where the store supports that, and one by one those that
/// it refused.
pub(crate) async fn sweep(log: &Log, all: Vec<(Path, u64)>, requests_per_s: u32) -> Sweep {
    let pace = Duration::from_secs(1) / requests_per_s.max(1);
    let mut sweep = Sweep::default();
    for chunk in all.chunks(BULK) {
        let paths: Vec<_> = chunk.iter().map(|(path, _)| Ok(path.clone())).collect();
        let answers = log.backend.store.delete_stream(futures_util::stream::iter(paths).boxed());
        let gone: BTreeSet<Path> = answers.filter_map(|answer| async move { answer.ok() }).collect().await;
        tokio::time::sleep(pace).await;
        for (path, bytes) in chunk {
            if !gone.contains(path) {
                tokio::time::sleep(pace).await;
                if let Err(error) = delete(log, path).await {
                    sweep.refused += 1;
                    sweep.refusal.get_or_insert((path.clone(), error));
                    continue;
                }
            }
            sweep.deleted += 1;
            sweep.bytes += bytes;
        }
    }
    sweep
}

/// Deletes an object. A missing object counts as deleted.
pub(crate) async fn delete(log: &Log, path: &Path) -> object_store::Result<()> {
    let mut tries = 0;
    loop {
        let error = match log.backend.store.delete(path).await {
            Ok(()) => return Ok(()),
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => error,
        };
        tries += 1;
        let is_final = matches!(error, object_store::Error::PermissionDenied { .. });
        if tries == READ_TRIES || is_final || is_permanent(&error, tries) {
            return Err(error);
        }
        log.backend.pause(tries).await;
    }
}
