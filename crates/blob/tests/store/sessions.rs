//! Slow and interrupted uploads: packs are sent at an age, and a later process continues after the
//! finished packs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use blob::{At, Blob, BlobKey, Connection, DataHash, FRAME_BYTES, Finished, Journal, UploadOptions, Uploading, bytes};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use parking_lot::Mutex;

#[derive(Default)]
struct Kept(Mutex<Vec<Finished>>);

impl Journal for Kept {
    fn finished(&self, finished: &Finished) {
        self.0.lock().push(finished.clone());
    }
}

fn noise(len: usize) -> Bytes {
    testkit::noise(7, len).into()
}

async fn open(store: &Arc<InMemory>) -> (Connection, Blob) {
    let connection = Connection::new(store.clone(), store.clone());
    let blob = Blob::open_or_create(&connection, BlobKey::new(Path::from("k"))).await.unwrap();
    (connection, blob)
}

/// Returns pieces of 1 MiB, and fails after `end`.
fn pieces(data: &Bytes, from: usize, end: usize) -> impl Stream<Item = std::io::Result<Bytes>> {
    let mut all: Vec<std::io::Result<Bytes>> =
        (from..end).step_by(1 << 20).map(|at| Ok(data.slice(at..(at + (1 << 20)).min(end)))).collect();
    if end < data.len() {
        all.push(Err(std::io::Error::other("the source broke off")));
    }
    futures_util::stream::iter(all)
}

fn options(session: Option<Uploading>) -> UploadOptions {
    UploadOptions { pack_bytes: 2 << 20, memory_bytes: 8 << 20, session, ..UploadOptions::default() }
}

#[test]
fn a_later_process_uploads_only_the_rest() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Arc::new(InMemory::new());
        let (_, blob) = open(&store).await;
        // A hole in the middle: zeroes take no pack.
        let data: Bytes = [noise(9 << 20), Bytes::from(vec![0; 3 << 20]), noise(8 << 20)].concat().into();
        let kept = Arc::new(Kept::default());
        let first = Uploading::begin(&blob, kept.clone()).await.unwrap();
        // The source fails once something has been uploaded.
        let waits = kept.clone();
        let source = pieces(&data, 0, 14 << 20).then(move |piece| {
            let waits = waits.clone();
            async move {
                while piece.is_err() && waits.0.lock().len() < 2 {
                    tokio::task::yield_now().await;
                }
                piece
            }
        });
        let broken = blob.append(source, "", &options(Some(first.clone()))).await;
        assert!(matches!(broken, Err(blob::Error::Source(_))), "{broken:?}");
        // Packs in flight when the source failed may be finished, or not.
        let done = kept.0.lock().clone();
        assert!(done.len() >= 2, "{}", done.len());
        assert!(done.iter().enumerate().all(|(number, finished)| finished.number as usize == number));
        let mut at = 0;
        for finished in &done {
            let mut hash = DataHash::default();
            while at < finished.to as usize {
                let end = (at + FRAME_BYTES as usize).min(finished.to as usize);
                hash.add(DataHash::of_frame(&data[at..end]));
                at = end;
            }
            assert_eq!(hash.finish(), finished.hash);
            assert_eq!(Finished::decode(&finished.encode()).as_ref(), Some(finished));
        }

        let (connection, other) = open(&store).await;
        let count = done.len();
        let begin = done.last().unwrap().to as usize;
        let resume = |done| Uploading::resume(&other, first.born(), first.op(), data.slice(..64), done, kept.clone());
        let second = resume(done.clone()).unwrap();
        assert_ne!(second.session(), first.session(), "a late request of the first must not change the second's packs");
        let before = connection.requests().put.load(Ordering::Relaxed);
        let committed = other.append(pieces(&data, begin, data.len()), "", &options(Some(second))).await.unwrap();
        let puts = connection.requests().put.load(Ordering::Relaxed) - before;
        assert!(puts as usize <= 9 - count + 2 + 1, "{puts} objects were written, {count} packs were finished");
        assert_eq!((committed.at, committed.len), (0, data.len() as u64));
        assert_eq!(kept.0.lock().last().unwrap().to, data.len() as u64);

        // A third process, which does not know that the second has finished, changes nothing.
        let all = kept.0.lock().clone();
        let third = resume(all).unwrap();
        let again = other.append(bytes(Bytes::new()), "", &options(Some(third))).await.unwrap();
        assert_eq!(again, committed);
        let (_, reader) = open(&store).await;
        let version = reader.version(&At::Newest).await.unwrap();
        assert_eq!((version.seq, version.size), (committed.seq, data.len() as u64));
        assert_eq!(reader.read(&version, 0, version.size).await.unwrap(), data);
    });
}

#[test]
fn a_pack_is_sent_at_an_age() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let store = Arc::new(InMemory::new());
        let (_, blob) = open(&store).await;
        let data = noise(3 << 20);
        let slow = |pause: u64| {
            pieces(&data, 0, data.len()).then(move |piece| async move {
                tokio::time::sleep(Duration::from_secs(pause)).await;
                piece
            })
        };
        let quick = UploadOptions::default();
        blob.put(slow(0), "", &quick).await.unwrap();
        assert_eq!(quick.tally.packs.load(Ordering::Relaxed), 1, "one pack holds all");
        let options = UploadOptions::default();
        blob.put(slow(10), "", &options).await.unwrap();
        assert_eq!(options.tally.packs.load(Ordering::Relaxed), 3, "parts that came ten seconds apart");
        let version = blob.version(&At::Newest).await.unwrap();
        assert_eq!(blob.read(&version, 0, version.size).await.unwrap(), data);
    });
}
