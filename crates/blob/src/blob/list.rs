//! Listing the blobs below a prefix of a store. A blob is a directory of the store with a life log
//! in it. Owns nothing else, holds no state, and costs requests for each name.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use object_store::ObjectStore;
use object_store::path::Path;

use crate::error::Error;
use crate::names::BlobKey;
use crate::protocol::log::Log;
use crate::protocol::record::Record;
use crate::store::connect::Connection;
use crate::store::store_errors::is_absent;

/// Names examined at once.
const LOOKS_AT_ONCE: usize = 16;

/// A name below a prefix.
#[derive(Debug, Clone)]
pub enum Listed {
    /// A blob, and its newest record.
    Blob(Path, Arc<Record>),
    /// A directory that contains a blob at any depth.
    Directory(Path),
}

/// Returns the blobs and directories directly below a prefix, without blobs that have no version
/// yet or were removed.
///
/// # Errors
/// When the store fails.
pub async fn list(connection: &Connection, prefix: &Path) -> Result<Vec<Listed>, Error> {
    let names = names(connection, prefix).await?;
    let looks = names.into_iter().map(|name| look(connection, name));
    let mut looks = futures_util::stream::iter(looks).buffered(LOOKS_AT_ONCE);
    let mut all = Vec::new();
    while let Some(listed) = looks.next().await {
        all.extend(listed?);
    }
    Ok(all)
}

/// Returns whether there is a blob at any depth below a prefix.
///
/// # Errors
/// When the store fails.
pub fn has_blobs<'a>(connection: &'a Connection, prefix: &'a Path) -> BoxFuture<'a, Result<bool, Error>> {
    async move {
        for name in names(connection, prefix).await? {
            if look(connection, name).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
    .boxed()
}

/// Returns a blob directly below the key of a new blob. Only the first names are examined: an
/// unrelated directory tree may be below it.
pub(crate) async fn first_below(connection: &Connection, key: &Path) -> Result<Option<Path>, Error> {
    // Objects that an earlier blob left at the key.
    let is_own = |name: &Path| {
        let last = name.filename().unwrap_or_default();
        last == "life" || (last.len() == 32 && last.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    for name in names(connection, key).await?.into_iter().filter(|name| !is_own(name)).take(LOOKS_AT_ONCE) {
        let is_blob = names(connection, &name).await?.contains(&name.clone().join("life"));
        if is_blob && Log::open(connection.backend().clone(), BlobKey::new(name.clone())).await.is_ok() {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

async fn names(connection: &Connection, prefix: &Path) -> Result<Vec<Path>, Error> {
    let backend = connection.backend();
    let prefix_or_all = (!prefix.as_ref().is_empty()).then_some(prefix);
    let mut tries = 0;
    loop {
        let error = match backend.store.list_with_delimiter(prefix_or_all).await {
            Ok(listed) => return Ok(listed.common_prefixes),
            Err(error) if is_absent(&error) => return Ok(Vec::new()),
            Err(error) => error,
        };
        tries += 1;
        if tries == crate::store::backend::READ_TRIES || crate::store::backend::is_permanent(&error, tries) {
            let what = prefix_or_all.map_or("the bucket", Path::as_ref);
            return Err(Error::store(format!("listing {what}"), error));
        }
        backend.pause(tries).await;
    }
}

async fn look(connection: &Connection, name: Path) -> Result<Option<Listed>, Error> {
    let life = name.clone().join("life");
    let below = names(connection, &name).await?;
    if below.contains(&life) {
        return match Log::open(connection.backend().clone(), BlobKey::new(name.clone())).await {
            Ok((_, head)) if head.seq > 0 => Ok(Some(Listed::Blob(name, head))),
            Ok(_) | Err(Error::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        };
    }
    Ok(has_blobs(connection, &name).await?.then_some(Listed::Directory(name)))
}
