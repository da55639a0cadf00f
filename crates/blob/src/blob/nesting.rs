//! Refuses a blob below another one: a blob's key is a directory of the store, so a blob below it
//! would appear in no list, and could use the names of the outer blob's objects. Checked once,
//! before a blob is created; two clients that create both at the same moment are not detected.
//! Holds no state.

use futures_util::future::join_all;
use object_store::path::Path;

use crate::blob::list;
use crate::error::Error;
use crate::names::BlobKey;
use crate::protocol::log::Log;
use crate::store::connect::Connection;

/// Refuses a key below a blob, and one with blobs below it. If the store does not let this client
/// list there, nothing is refused.
///
/// # Errors
/// [`Error::Refused`] with the names of both.
pub async fn refuse_nested(connection: &Connection, key: &BlobKey) -> Result<(), Error> {
    let prefix = connection.url_prefix();
    let parts: Vec<String> = key.path().parts().map(|part| part.as_ref().to_owned()).collect();
    let above = (1..parts.len()).map(|depth| Path::from_iter(parts[..depth].iter().map(String::as_str)));
    let opened = above.map(|path| async move {
        let is_blob = Log::open(connection.backend().clone(), BlobKey::new(path.clone())).await.is_ok();
        is_blob.then_some(path)
    });
    if let Some(path) = join_all(opened).await.into_iter().flatten().next() {
        let why = format!(
            "there is a blob at {prefix}{path}, and {prefix}{} would be inside it: choose another key",
            key.path()
        );
        return Err(Error::Refused(why));
    }
    if let Ok(Some(below)) = list::first_below(connection, key.path()).await {
        let why =
            format!("there is a blob at {prefix}{below}, which is below {prefix}{}: choose another key", key.path());
        return Err(Error::Refused(why));
    }
    Ok(())
}
