//! The requests of each operation, counted at the store, against docs/BLOB-GUIDE.md.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use blob::{
    At, Blob, BlobKey, BlobRef, CommitOptions, Connection, ExpireRule, GcOptions, UploadOptions, bytes, clone_blob,
    expire, gc, remove, sweep_removed,
};
use futures_util::StreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use testkit::noise;

/// Objects written, objects read or checked for, lists, objects deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Cost {
    put: u64,
    get: u64,
    list: u64,
    delete: u64,
}

struct Client {
    connection: Connection,
    before: Cost,
}

impl Client {
    fn new(store: &Arc<InMemory>) -> Self {
        let connection = Connection::new(store.clone(), store.clone());
        Self { connection, before: Cost::default() }
    }

    /// The requests to the store since the previous call.
    fn cost(&mut self) -> Cost {
        let requests = self.connection.requests();
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let now = Cost {
            put: count(&requests.put),
            get: count(&requests.get),
            list: count(&requests.list),
            delete: count(&requests.delete),
        };
        let since = Cost {
            put: now.put - self.before.put,
            get: now.get - self.before.get,
            list: now.list - self.before.list,
            delete: now.delete - self.before.delete,
        };
        self.before = now;
        since
    }
}

#[test]
fn operations_cost_what_the_table_says() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Arc::new(InMemory::new());
        let key = || BlobKey::new(Path::from("k"));
        let options = UploadOptions::default();
        let mut one = Client::new(&store);
        let blob = Blob::open_or_create(&one.connection, key()).await.unwrap();
        blob.put(bytes(noise(1, 40 << 20)), "", &options).await.unwrap();
        one.cost();

        // 40 MiB that do not compress, in packs of 16 MiB, and the record.
        blob.put(bytes(noise(2, 40 << 20)), "", &options).await.unwrap();
        assert_eq!(one.cost(), Cost { put: 3 + 1, get: 0, list: 0, delete: 0 }, "put of 40 MiB");

        blob.append(bytes(noise(3, 1 << 20)), "", &options).await.unwrap();
        assert_eq!(one.cost(), Cost { put: 2, get: 0, list: 0, delete: 0 }, "append of 1 MiB");

        blob.append(bytes("a few words"), "", &options).await.unwrap();
        assert_eq!(one.cost(), Cost { put: 1, get: 0, list: 0, delete: 0 }, "append of a few bytes");

        blob.refresh().await.unwrap();
        assert_eq!(one.cost(), Cost { put: 0, get: 1, list: 0, delete: 0 }, "look for newer versions");

        for _ in blob.version(&At::Newest).await.unwrap().seq..16 {
            blob.append(bytes("to the next hint"), "", &options).await.unwrap();
        }
        let mut two = Client::new(&store);
        let other = Blob::open(&two.connection, key()).await.unwrap();
        let opened = two.cost();
        assert!(opened.get == 4 && opened.put == 0 && opened.list == 0, "open with a hint: {opened:?}");
        let version = other.version(&At::Newest).await.unwrap();
        assert_eq!(version.seq, 16);

        // The version's extents are in a node: one read for it, one for the frame.
        other.read(&version, 20 << 20, (20 << 20) + 4096).await.unwrap();
        let cold = two.cost();
        assert!(cold.get <= 3 && cold.put == 0 && cold.list == 0, "first read of 4 KiB: {cold:?}");
        other.read(&version, 30 << 20, (30 << 20) + 4096).await.unwrap();
        assert_eq!(two.cost(), Cost { put: 0, get: 1, list: 0, delete: 0 }, "read of 4 KiB");
        other.read(&version, 30 << 20, (30 << 20) + 4096).await.unwrap();
        assert_eq!(two.cost(), Cost { put: 0, get: 0, list: 0, delete: 0 }, "the same again");
        // Neighbours are read with one request.
        other.read(&version, 4 << 20, 5 << 20).await.unwrap();
        assert_eq!(two.cost(), Cost { put: 0, get: 1, list: 0, delete: 0 }, "read of 1 MiB");

        // The other client does not know this version.
        one.cost();
        blob.append(bytes("first"), "", &options).await.unwrap();
        one.cost();
        let committed = other.append(bytes(noise(4, 1 << 20)), "", &options).await.unwrap();
        assert_eq!(committed.seq, 18);
        let lost = two.cost();
        // The pack, the record that lost, the winner, a check for newer ones, the record.
        assert!(lost.put == 3 && lost.get <= 3 && lost.list == 0, "append that lost a race: {lost:?}");
    });
}

fn key(name: &str) -> BlobKey {
    BlobKey::new(Path::from(name))
}

/// Options of a collection that waits for no upload and no reader.
fn now() -> GcOptions {
    GcOptions { upload_max: Duration::ZERO, grace: Duration::ZERO, requests_per_s: u32::MAX, ..GcOptions::default() }
}

/// Opening a version, tags, clones and copies: their cost does not depend on the size of the blob.
#[test]
fn clones_and_copies_cost_what_the_table_says() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Arc::new(InMemory::new());
        let options = UploadOptions::default();
        let mut one = Client::new(&store);
        for (name, megabytes) in [("small", 1), ("large", 80)] {
            let blob = Blob::open_or_create(&one.connection, key(name)).await.unwrap();
            blob.put(bytes(noise(1, megabytes << 20)), "", &options).await.unwrap();
            for turn in 2..=20 {
                blob.append(bytes(format!("line {turn}")), "", &options).await.unwrap();
            }
            one.cost();

            blob.tag("first", 1).await.unwrap();
            // The record.
            assert_eq!(one.cost(), Cost { put: 1, ..Cost::default() }, "tag of {name}");

            let opened = Blob::open(&one.connection, key(name)).await.unwrap();
            let cold = one.cost();
            opened.version(&At::Number(1)).await.unwrap();
            assert_eq!(one.cost(), Cost { get: 1, ..Cost::default() }, "a version of {name}, once it is open");
            // The hint, and records after it by bisection.
            assert!(cold.get <= 5 && cold.put + cold.list + cold.delete == 0, "open of {name}: {cold:?}");

            // A pin, a birth, a record, a hint. Reads: a newer version, twice, the version, the
            // source's entry of the life log, the hint of the new key. Lists: the life log of the
            // new key, and the newer records of the source.
            let place = BlobRef { committer: blob.committer(), location: name };
            let (backend, to) = (one.connection.backend().clone(), format!("{name}-clone"));
            clone_blob(place, 1, &[], backend, key(&to), &to, CommitOptions::default()).await.unwrap();
            let cloned = one.cost();
            assert!(
                cloned.put == 4 && cloned.get <= 5 && cloned.list == 2 && cloned.delete == 0,
                "clone of {name}: {cloned:?}"
            );

            let target = Blob::open_or_create(&one.connection, key(&format!("{name}-copy"))).await.unwrap();
            let mut made = one.cost();
            // The birth; reads of a missing hint and a missing life log; a list of blobs below.
            assert!(made.put == 1 && made.get <= 6 && made.list <= 3, "a new blob: {made:?}");
            let version = blob.version(&At::Newest).await.unwrap();
            let data = blob.stream(&version, 0, version.size).map(|part| part.map_err(std::io::Error::other));
            target.put(data, "", &options).await.unwrap();
            made = one.cost();
            let packs = (megabytes as u64).div_ceil(16);
            // The packs, the record and a hint; each read of a stream has 8 MiB at most, takes two
            // requests, and may touch two packs.
            let reads = version.size.div_ceil(8 << 20) * 3 + 8;
            assert!(
                (packs + 2..=packs + 3).contains(&made.put) && made.get <= reads && made.list + made.delete == 0,
                "copy of {name}: {made:?}"
            );
        }
    });
}

/// Expiring, collecting, optimizing and removing.
#[test]
fn keeping_costs_what_the_table_says() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Arc::new(InMemory::new());
        let options = UploadOptions::default();
        let mut one = Client::new(&store);
        let blob = Blob::open_or_create(&one.connection, key("k")).await.unwrap();
        for turn in 0..40 {
            blob.put(bytes(noise(turn, 256 << 10)), "", &options).await.unwrap();
        }
        one.cost();

        // The record. Reads: a newer one, and from the newest on as many as are kept, and one more.
        // A list of the pins.
        let rule = ExpireRule { keep_last: Some(2), ..ExpireRule::default() };
        expire(blob.committer(), &rule).await.unwrap().unwrap();
        let expired = one.cost();
        assert!(
            expired.put == 1 && expired.get <= 4 && expired.list == 1 && expired.delete == 0,
            "expire: {expired:?}"
        );

        let planned = gc(blob.committer(), &GcOptions { dry_run: true, ..now() }).await.unwrap();
        let dry = one.cost();
        assert!(dry.put == 0 && dry.list == 2 && dry.delete == 0, "gc --dry-run: {dry:?}");

        // The fence, a tombstone for each dead version, the progress object. Reads: the record of
        // each live version and of each dead one. One list for each 1000 objects, one of the pins,
        // one of the offers, one request for each 1000 deletions.
        let report = gc(blob.committer(), &now()).await.unwrap();
        assert_eq!((report.deleted, report.buried), (planned.deleted, 38));
        let collected = one.cost();
        assert!(
            collected.put == 2 + 38 && collected.get <= 38 + 10 && collected.list == 3 && collected.delete == 38,
            "gc of 38 versions of 40: {collected:?}"
        );

        // Nothing died: live records are read, pins and new sessions listed, and the progress
        // object written.
        gc(blob.committer(), &now()).await.unwrap();
        let again = one.cost();
        assert!(again.put == 1 && again.get <= 8 && again.list == 2 && again.delete == 0, "gc of nothing: {again:?}");

        // One more version: its cost does not depend on the 40 before.
        blob.put(bytes(noise(77, 256 << 10)), "", &options).await.unwrap();
        expire(blob.committer(), &rule).await.unwrap().unwrap();
        one.cost();
        let report = gc(blob.committer(), &now()).await.unwrap();
        assert_eq!((report.deleted, report.buried), (1, 1));
        let one_more = one.cost();
        // A session that was born before the last collection has a list of its own.
        assert!(
            one_more.put == 3 && one_more.get <= 12 && one_more.list <= 3 && one_more.delete == 1,
            "gc of one version: {one_more:?}"
        );

        let log = Blob::open_or_create(&one.connection, key("log")).await.unwrap();
        for turn in 0..100 {
            log.append(bytes(noise(turn, 9000)), "", &options).await.unwrap();
        }
        one.cost();
        let done = log.optimize(false, &options).await.unwrap();
        assert_eq!((done.ranges, done.commits), (1, 1));
        let optimized = one.cost();
        // A pack and the record, and perhaps a node. Each small frame is in a pack of its own, so
        // each is read separately, once.
        assert!(
            (2..=3).contains(&optimized.put) && optimized.get <= 110 && optimized.list + optimized.delete == 0,
            "optimize of 100 appends: {optimized:?}"
        );
        log.optimize(false, &options).await.unwrap();
        let nothing = one.cost();
        assert!(nothing.put == 0 && nothing.get <= 2, "optimize of nothing: {nothing:?}");

        // The record that closes the log, the entry of the life log, the record that expires all
        // versions. One list for each 1000 objects, one of the offers, and two of the pins.
        let packs = 101;
        let removed = remove(log.committer()).await.unwrap();
        assert!(removed.deleted >= packs, "{removed:?}");
        let rm = one.cost();
        assert!(rm.put == 3 && rm.get <= 6 && rm.list == 4 && rm.delete == removed.deleted, "rm: {rm:?}");

        // For each ended life: its two entries, and the names of its records, packs, offers and
        // pins.
        let find = |_: &str| None;
        sweep_removed(one.connection.backend(), &key("log"), &find).await.unwrap();
        let swept = one.cost();
        assert!(
            swept.put == 0 && swept.get <= 16 && swept.list <= 7 && swept.delete == 0,
            "gc of a key whose blob was removed: {swept:?}"
        );
    });
}

/// A version that dies shares nearly all packs with its successor: these are not listed.
#[test]
fn a_collection_does_not_list_what_a_live_version_names() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Arc::new(InMemory::new());
        let options = UploadOptions::default();
        let mut one = Client::new(&store);
        let log = Blob::open_or_create(&one.connection, key("log")).await.unwrap();
        for turn in 0..60 {
            log.append(bytes(noise(turn, 9000)), "", &options).await.unwrap();
        }
        let rule = ExpireRule { keep_last: Some(1), ..ExpireRule::default() };
        // Two collections: from the second on the sessions of the appends are old.
        for turn in 0..3 {
            log.write(9000 * turn, bytes(noise(100 + turn, 9000)), "", &options).await.unwrap();
            expire(log.committer(), &rule).await.unwrap().unwrap();
            one.cost();
            let report = gc(log.committer(), &now()).await.unwrap();
            assert_eq!(report.deleted, 1, "the pack of the append that was written over");
            let cost = one.cost();
            assert!(turn < 2 || (cost.list <= 4 && report.packs <= 4), "gc {turn}: {cost:?}, {report:?}");
        }
    });
}

/// More versions die than one run buries: later runs continue, and then the cost of a run depends
/// only on new versions.
#[test]
fn a_collection_goes_on_where_the_last_one_ended() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Arc::new(InMemory::new());
        let options = UploadOptions::default();
        let mut one = Client::new(&store);
        let log = Blob::open_or_create(&one.connection, key("log")).await.unwrap();
        for turn in 0..1_200_u64 {
            log.put(bytes(turn.to_le_bytes().to_vec()), "", &options).await.unwrap();
        }
        let rule = ExpireRule { keep_last: Some(1), ..ExpireRule::default() };
        expire(log.committer(), &rule).await.unwrap().unwrap();
        let quick = GcOptions { requests_per_s: u32::MAX, ..now() };
        let mut buried = Vec::new();
        for _ in 0..3 {
            one.cost();
            buried.push(gc(log.committer(), &quick).await.unwrap().buried);
        }
        let last = one.cost();
        assert_eq!(buried, [1_000, 199, 0]);
        assert!(last.get <= 10, "{last:?}");
        log.put(bytes(vec![1; 9]), "", &options).await.unwrap();
        expire(log.committer(), &rule).await.unwrap().unwrap();
        one.cost();
        // The version before, the record that expired the others, and two fences.
        assert_eq!(gc(log.committer(), &quick).await.unwrap().buried, 4);
        let next = one.cost();
        assert!(next.get <= 24, "{next:?}");
    });
}

/// A tag keeps a version while younger ones die and are buried; after the tag is removed, the next
/// run deletes its objects.
#[test]
fn a_version_that_is_let_go_late_is_collected() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Arc::new(InMemory::new());
        let options = UploadOptions::default();
        let mut one = Client::new(&store);
        let log = Blob::open_or_create(&one.connection, key("log")).await.unwrap();
        let put = async |turn: u64| log.put(bytes(noise(turn, 9000)), "", &options).await.unwrap().seq;
        let rule = ExpireRule { keep_last: Some(1), ..ExpireRule::default() };
        let (tagged, alone, younger) = (put(1).await, put(2).await, put(3).await);
        log.tag("kept", tagged).await.unwrap();
        put(4).await;
        // One in the middle first: the older ones die later.
        expire(log.committer(), &ExpireRule { version: Some(younger), ..ExpireRule::default() })
            .await
            .unwrap()
            .unwrap();
        let report = gc(log.committer(), &now()).await.unwrap();
        assert_eq!(report.deleted, 1, "{report:?}");
        for turn in 5..9 {
            put(turn).await;
            expire(log.committer(), &rule).await.unwrap().unwrap();
            let report = gc(log.committer(), &now()).await.unwrap();
            let dead = if turn == 5 { 2 } else { 1 };
            assert_eq!(report.deleted, dead, "turn {turn}: {report:?}");
        }
        assert!(log.log().read(alone).await.unwrap().unwrap().tombstone);
        assert!(!log.log().read(tagged).await.unwrap().unwrap().tombstone);
        log.untag("kept").await.unwrap();
        expire(log.committer(), &rule).await.unwrap();
        let report = gc(log.committer(), &now()).await.unwrap();
        assert_eq!((report.full, report.deleted), (false, 1), "{report:?}");
        assert!(log.log().read(tagged).await.unwrap().unwrap().tombstone);
        let full = gc(log.committer(), &GcOptions { full: true, ..now() }).await.unwrap();
        assert_eq!((full.deleted, full.packs), (0, 1), "{full:?}");
        // Buried versions cost nothing from now on.
        one.cost();
        gc(log.committer(), &now()).await.unwrap();
        gc(log.committer(), &now()).await.unwrap();
        one.cost();
        gc(log.committer(), &now()).await.unwrap();
        assert!(one.cost().get <= 10);
    });
}
