//! A blob is never created inside or around another one, in memory or in a directory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use blob::{Blob, BlobKey, Connection, Error, UploadOptions, bytes};
use object_store::memory::InMemory;
use object_store::path::Path;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn memory() -> Connection {
    let store = Arc::new(InMemory::new());
    Connection::new(store.clone(), store)
}

#[test]
fn a_blob_is_made_neither_inside_another_nor_around_one() {
    runtime().block_on(async {
        let directory = testkit::TempDir::new("blob-nested");
        let root = directory.path().display().to_string();
        let location = format!("file://{root}/x").parse().unwrap();
        for (connection, root) in [(memory(), String::new()), (Connection::open(&location).unwrap(), root)] {
            let key = |name: &str| BlobKey::new(Path::from(format!("{root}/{name}")));
            let make = async |name: &str| {
                let blob = Blob::open_or_create(&connection, key(name)).await?;
                blob.put(bytes(name.to_owned()), "", &UploadOptions::default()).await?;
                Ok::<_, Error>(blob)
            };
            let outer = make("a").await.unwrap();
            for below in ["a/b", "a/b/c", "a/life"] {
                let refused = make(below).await.map(|_| ()).unwrap_err().to_string();
                assert!(refused.contains("there is a blob at") && refused.contains("inside it"), "{below}: {refused}");
            }
            make("d/e/f").await.unwrap();
            make("d/e/g").await.unwrap();
            let refused = make("d/e").await.map(|_| ()).unwrap_err().to_string();
            assert!(refused.contains("below") && refused.contains("choose another key"), "{refused}");
            // A key with the same beginning is unrelated; a blob that exists is opened as before.
            make("ab").await.unwrap();
            make("a").await.unwrap();
            // A key that is free again may be a directory, and may become a blob again once that is
            // empty.
            blob::remove(outer.committer()).await.unwrap();
            let inner = make("a/b").await.unwrap();
            assert!(matches!(make("a").await.map(|_| ()), Err(Error::Refused(_))));
            blob::remove(inner.committer()).await.unwrap();
            make("a").await.unwrap();
        }
    });
}
