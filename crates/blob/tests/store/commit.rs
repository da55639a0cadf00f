//! One committer and the log: one record carries all waiting operations, requests are few, and a
//! store that does not create atomically is refused.
#![allow(clippy::panic)]

use std::sync::Arc;

use std::time::Duration;

use crate::lying_store::LyingStore;
use blob::{
    Action, Backend, Blob, BlobKey, CommitOptions, Committer, Error, ExpireRule, GcOptions, Log, Op, OpId, Run, Tally,
    UploadOptions, bytes, expire, gc, probe, remove,
};
use env::Clock;
use futures_util::future::join_all;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use sim::{SimClock, SimEntropy};

fn backend(store: Arc<dyn ObjectStore>, seed: u64) -> Backend {
    Backend { store, clock: Arc::new(SimClock::default()), entropy: Arc::new(SimEntropy::new(seed)) }
}

fn hole(id: u128, len: u64) -> Op {
    // An append of zeroes: it needs no pack.
    let action = Action::Append(Run { pieces: Vec::new(), len });
    Op { id: OpId(id), born: u64::MAX, raw: len, stored: 0, message: String::new(), action }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap_or_else(|error| panic!("{error}")).block_on(future)
}

#[test]
fn operations_that_wait_are_carried_by_one_record() {
    run(async {
        let store = LyingStore::new(1, 0);
        let (log, head) =
            Log::open_or_create(backend(Arc::new(store), 2), BlobKey::new(Path::from("a"))).await.unwrap();
        let committer = Committer::new(log, head, CommitOptions::default());
        let all = join_all((1..=100).map(|id| committer.commit(hole(id, 10)))).await;
        let mut offsets: Vec<u64> = all.iter().map(|done| done.as_ref().unwrap().at).collect();
        offsets.sort_unstable();
        assert_eq!(offsets, (0..100).map(|append| append * 10).collect::<Vec<_>>());
        // The first goes alone, or with those that were already there; the rest waits for it and
        // goes together.
        assert!(committer.head().await.seq <= 2, "{} records for 100 appends", committer.head().await.seq);
        assert_eq!(committer.head().await.size, 1_000);
    });
}

#[test]
fn a_commit_is_one_request_and_an_open_two_to_five() {
    run(async {
        let store = LyingStore::new(1, 0);
        let backend = backend(Arc::new(store.clone()), 2);
        let key = BlobKey::new(Path::from("a"));
        let (log, head) = Log::open_or_create(backend.clone(), key.clone()).await.unwrap();
        let committer = Committer::new(log, head, CommitOptions::default());
        let mut open = Vec::new();
        for id in 1..=24 {
            let before = store.requests();
            committer.commit(hole(id, 1)).await.unwrap();
            // The first and each eighth leave a hint.
            let hints = u64::from(id == 1 || id % 8 == 0);
            assert_eq!(store.requests() - before, 1 + hints, "commit {id}");
            let before = store.requests();
            let (_, head) = Log::open(backend.clone(), key.clone()).await.unwrap();
            assert_eq!(u128::from(head.seq), id);
            open.push(store.requests() - before);
        }
        // A blob that was written once: the hint, which contains the record, and the next record.
        assert_eq!(open[0], 2);
        // The hint, and the three or four records after it.
        assert!(open[7..].iter().all(|requests| (4..=5).contains(requests)), "{open:?}");
        assert!(open.iter().all(|requests| *requests <= 5), "{open:?}");
    });
}

/// A store that refuses each write has not applied any: the caller is informed at once, and not
/// with an unknown outcome.
#[test]
fn a_full_store_refuses_commits_at_once() {
    run(async {
        let store = LyingStore::new(1, 0);
        let (log, head) =
            Log::open_or_create(backend(Arc::new(store.clone()), 2), BlobKey::new(Path::from("a"))).await.unwrap();
        let committer = Committer::new(log, head, CommitOptions::default());
        committer.commit(hole(1, 10)).await.unwrap();
        store.set_full(true);
        let began = tokio::time::Instant::now();
        let all = join_all((2..=9).map(|id| committer.commit(hole(id, 10)))).await;
        for refused in all {
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::Store { .. }) && error.is_full(), "{error}");
        }
        let took = began.elapsed();
        assert!(took < CommitOptions::default().timeout / 4, "{took:?} of simulated time");
        store.set_full(false);
        // Once there is room, the same operations are applied, each once.
        for id in 2..=9 {
            let done = committer.commit(hole(id, 10)).await.unwrap();
            assert_eq!(done.at, (id as u64 - 1) * 10);
        }
        assert_eq!(committer.head().await.size, 90);
    });
}

/// A request that may still have an effect is followed by refusals: then the outcome is unknown,
/// and never "not done".
#[test]
fn a_commit_that_may_come_yet_is_not_refused() {
    let mut unknown = 0;
    for seed in 0..20 {
        run(async {
            let store = LyingStore::new(seed, 0);
            let (log, head) =
                Log::open_or_create(backend(Arc::new(store.clone()), 2), BlobKey::new(Path::from("a"))).await.unwrap();
            let committer = Committer::new(log, head, CommitOptions::default());
            committer.commit(hole(1, 10)).await.unwrap();
            store.set_full_behind_a_late_request();
            match committer.commit(hole(2, 10)).await {
                Ok(done) => assert_eq!(done.at, 10, "seed {seed}"),
                Err(Error::Unknown { .. }) => unknown += 1,
                Err(error) => panic!("seed {seed}: {error}"),
            }
            tokio::time::sleep(Duration::from_secs(500)).await;
            store.set_full(false);
            assert_eq!(committer.commit(hole(2, 10)).await.unwrap().at, 10, "seed {seed}");
            assert_eq!(committer.refresh().await.unwrap().size, 20, "seed {seed}");
        });
    }
    assert!(unknown > 0, "each late request came in time");
}

/// A key that was reused after a removal: the hint of the old life leads to its closed log, and
/// from there to the new life.
#[test]
fn a_hint_of_a_removed_blob_misleads_no_client() {
    run(async {
        let store = LyingStore::new(1, 0);
        let backend = backend(Arc::new(store.clone()), 2);
        let key = BlobKey::new(Path::from("a"));
        let (log, head) = Log::open_or_create(backend.clone(), key.clone()).await.unwrap();
        let old = log.inc();
        let committer = Committer::new(log, head, CommitOptions::default());
        for id in 1..=8 {
            committer.commit(hole(id, 1)).await.unwrap();
        }
        let hint = store.truth(&key.hint()).unwrap();
        remove(&committer).await.unwrap();
        assert!(matches!(Log::open(backend.clone(), key.clone()).await, Err(Error::Missing(_))));
        let (log, head) = Log::open_or_create(backend.clone(), key.clone()).await.unwrap();
        assert_ne!(log.inc(), old);
        Committer::new(log, head, CommitOptions::default()).commit(hole(100, 5)).await.unwrap();
        // A late request of the old life.
        backend.store.put(&key.hint(), hint.into()).await.unwrap();
        let (log, head) = Log::open(backend, key).await.unwrap();
        assert_ne!(log.inc(), old);
        assert_eq!((head.seq, head.size), (1, 5));
    });
}

fn text_of(error: Error) -> String {
    error.to_string()
}

/// A process appends, gets no answer and ends; its version expires, and a collector buries the
/// record; then another process resumes the operation.
async fn resumed_behind_a_tombstone() -> Result<(), String> {
    let backend = backend(Arc::new(LyingStore::new(1, 0)), 2);
    let key = BlobKey::new(Path::from("a"));
    let (log, head) = Log::open_or_create(backend.clone(), key.clone()).await.map_err(text_of)?;
    let committer = Committer::new(log, head, CommitOptions::default());
    let born = committer.commit(hole(1, 1)).await.map_err(text_of)?.seq;
    let first = committer.commit(hole(2, 1)).await.map_err(text_of)?;
    committer.commit(hole(3, 1)).await.map_err(text_of)?;
    expire(&committer, &ExpireRule { keep_last: Some(1), ..ExpireRule::default() }).await.map_err(text_of)?;
    let now = GcOptions { upload_max: Duration::ZERO, grace: Duration::ZERO, ..GcOptions::default() };
    assert!(gc(&committer, &now).await.map_err(text_of)?.buried >= 2);
    assert!(committer.log().read(first.seq).await.map_err(text_of)?.is_some_and(|record| record.tombstone));
    let (log, head) = Log::open(backend, key).await.map_err(text_of)?;
    let again = Committer::new(log, head, CommitOptions::default()).resume(hole(2, 1), born).await.map_err(text_of)?;
    if again == first { Ok(()) } else { Err(format!("operation 2 is in two records: {first:?}, {again:?}")) }
}

#[test]
fn an_operation_is_found_in_a_tombstone() {
    run(resumed_behind_a_tombstone()).unwrap();
}

#[cfg(feature = "canaries")]
#[test]
fn a_tombstone_without_operations_is_caught() {
    blob::canary::plant(Some("tombstone-without-ops"));
    let caught = run(resumed_behind_a_tombstone());
    blob::canary::plant(None);
    let why = caught.expect_err("HARNESS: tombstone-without-ops is not caught");
    assert!(why.contains("is in two records"), "HARNESS: tombstone-without-ops is caught by something else: {why}");
    println!("tombstone-without-ops: caught: {why}");
}

/// The clock of a machine whose time is off.
#[derive(Debug)]
struct Skewed(u64);

impl Clock for Skewed {
    fn now_ns(&self) -> u64 {
        self.0 * 1_000_000_000
    }
    fn unix_s(&self) -> u64 {
        self.0
    }
    fn thread_cpu_ns(&self) -> u64 {
        0
    }
}

/// A client whose clock is two days behind appends after a version has expired and before it is
/// collected.
#[test]
fn a_late_clock_does_not_end_the_grace() {
    const NOW: u64 = 2_000_000_000;
    run(async {
        let store = LyingStore::new(1, 0);
        let at = |unix_s: u64, seed: u64| Backend {
            store: Arc::new(store.clone()),
            clock: Arc::new(Skewed(unix_s)),
            entropy: Arc::new(SimEntropy::new(seed)),
        };
        let key = BlobKey::new(Path::from("a"));
        let open = async |unix_s: u64, seed: u64| {
            let (log, head) = Log::open_or_create(at(unix_s, seed), key.clone()).await.unwrap();
            Committer::new(log, head, CommitOptions::default())
        };
        let right = open(NOW, 2).await;
        let given_up = right.commit(hole(1, 10)).await.unwrap().seq;
        right.commit(hole(2, 10)).await.unwrap();
        expire(&right, &ExpireRule { keep_last: Some(1), ..ExpireRule::default() }).await.unwrap().unwrap();
        let behind = open(NOW - 200_000, 3).await.commit(hole(3, 10)).await.unwrap().seq;
        let collector = open(NOW + 60, 4).await;
        let before = collector.log().read(behind - 1).await.unwrap().unwrap();
        let record = collector.log().read(behind).await.unwrap().unwrap();
        assert_eq!((before.unix_s, record.unix_s), (NOW, NOW), "a record is of no time before that of the one before");
        let report = gc(&collector, &GcOptions::default()).await.unwrap();
        assert_eq!((report.buried, report.in_grace > 0), (0, true), "{report:?}");
        assert!(!collector.log().read(given_up).await.unwrap().unwrap().tombstone);
        assert_eq!(collector.head().await.fence, 0, "no upload is fenced");
    });
}

/// A record of a newer program: its checksum matches.
#[test]
fn a_record_of_a_newer_program_is_no_damage_and_nothing_is_written_over_it() {
    run(async {
        let store = LyingStore::new(1, 0);
        let key = BlobKey::new(Path::from("a"));
        let (log, head) = Log::open_or_create(backend(Arc::new(store.clone()), 2), key.clone()).await.unwrap();
        let committer = Committer::new(log, head, CommitOptions::default());
        let first = committer.commit(hole(1, 10)).await.unwrap().seq;
        let inc = committer.log().inc();
        let body = store.get(&key.record(inc, first)).await.unwrap().bytes().await.unwrap();
        let mut newer = body[..body.len() - 4].to_vec();
        newer[8] = 2;
        newer.extend_from_slice(&format::crc32c(&newer).to_le_bytes());
        let path = key.record(inc, first + 1);
        store.put(&path, newer.clone().into()).await.unwrap();
        let began = tokio::time::Instant::now();
        let refused = committer.commit(hole(2, 10)).await;
        assert!(matches!(refused, Err(Error::Newer { .. })), "{refused:?}");
        assert!(began.elapsed() < CommitOptions::default().timeout / 4, "the error comes at once");
        let opened = Log::open(backend(Arc::new(store.clone()), 3), key).await;
        assert!(matches!(opened, Err(Error::Newer { .. })), "{opened:?}");
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), newer);
    });
}

/// Numbers of tags, pins and fences are not versions.
#[test]
fn versions_are_counted_and_numbered_by_what_makes_them() {
    run(async {
        let store = LyingStore::new(1, 0);
        let connection = blob::Connection::new(Arc::new(store.clone()), Arc::new(store.clone()));
        let blob = Blob::open_or_create(&connection, BlobKey::new(Path::from("a"))).await.unwrap();
        let options = UploadOptions::default();
        let append = async |text: &'static str| blob.append(bytes(text), "", &options).await.unwrap().seq;
        let counted = async || {
            let head = blob.refresh().await.unwrap();
            (head.version, blob.live_versions(&head).await.unwrap(), blob.newest_version().await.unwrap().seq)
        };
        let first = append("one").await;
        blob.tag("one", first).await.unwrap();
        let second = append("two").await;
        let third = append("three").await;
        blob.tag("third", third).await.unwrap();
        assert_eq!(counted().await, (third, 3, third));
        expire(blob.committer(), &ExpireRule { version: Some(second), ..ExpireRule::default() })
            .await
            .unwrap()
            .unwrap();
        assert_eq!(counted().await, (third, 2, third));
        // The first one stays because of its tag.
        expire(blob.committer(), &ExpireRule { keep_last: Some(1), ..ExpireRule::default() }).await.unwrap().unwrap();
        assert_eq!(counted().await, (third, 2, third));
        let now = GcOptions { upload_max: Duration::ZERO, grace: Duration::ZERO, ..GcOptions::default() };
        gc(blob.committer(), &now).await.unwrap();
        blob.untag("one").await.unwrap();
        expire(blob.committer(), &ExpireRule { keep_last: Some(1), ..ExpireRule::default() }).await.unwrap();
        gc(blob.committer(), &now).await.unwrap();
        assert_eq!(counted().await, (third, 1, third));
        let audited = blob.audit(&Tally::default()).await.unwrap();
        assert_eq!((audited.versions, audited.wrong.len()), (1, 0));
    });
}

#[test]
fn a_store_that_creates_atomically_is_taken_and_one_that_looks_first_is_not() {
    run(async {
        let good = backend(Arc::new(LyingStore::new(3, 0)), 4);
        probe(&[good], &Path::from("probe")).await.unwrap();
        let racy = backend(Arc::new(LyingStore::racy(5)), 6);
        let refused = probe(&[racy], &Path::from("probe")).await;
        assert!(matches!(refused, Err(Error::StoreInconsistent(_))), "{refused:?}");
        let old_lists = backend(Arc::new(LyingStore::with_old_lists(7)), 8);
        let refused = probe(&[old_lists], &Path::from("probe")).await;
        assert!(matches!(&refused, Err(Error::StoreInconsistent(why)) if why.contains("list")), "{refused:?}");
    });
}
