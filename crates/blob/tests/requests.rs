//! What operations cost in requests, as docs/BLOB-GUIDE.md says, counted at the store.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use blob::{At, Blob, BlobKey, Connection, UploadOptions, bytes};
use object_store::memory::InMemory;
use object_store::path::Path;

/// Objects written, objects read or asked for, lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    put: u64,
    get: u64,
    list: u64,
}

struct Client {
    connection: Connection,
    before: Cost,
}

impl Client {
    fn new(store: &Arc<InMemory>) -> Self {
        let connection = Connection::new(store.clone(), store.clone());
        Self { connection, before: Cost { put: 0, get: 0, list: 0 } }
    }

    /// What was asked of the store since the last call.
    fn cost(&mut self) -> Cost {
        let requests = self.connection.requests();
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let now = Cost { put: count(&requests.put), get: count(&requests.get), list: count(&requests.list) };
        let since =
            Cost { put: now.put - self.before.put, get: now.get - self.before.get, list: now.list - self.before.list };
        self.before = now;
        since
    }
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(next).collect()
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
        blob.put(bytes(noise(40 << 20, 1)), "", &options).await.unwrap();
        one.cost();

        // 40 MiB that do not shrink, in packs of 16 MiB, and the record.
        blob.put(bytes(noise(40 << 20, 2)), "", &options).await.unwrap();
        assert_eq!(one.cost(), Cost { put: 3 + 1, get: 0, list: 0 }, "put of 40 MiB");

        blob.append(bytes(noise(1 << 20, 3)), "", &options).await.unwrap();
        assert_eq!(one.cost(), Cost { put: 2, get: 0, list: 0 }, "append of 1 MiB");

        blob.append(bytes("a few words"), "", &options).await.unwrap();
        assert_eq!(one.cost(), Cost { put: 1, get: 0, list: 0 }, "append of a few bytes");

        blob.refresh().await.unwrap();
        assert_eq!(one.cost(), Cost { put: 0, get: 1, list: 0 }, "look for newer versions");

        for _ in blob.version(&At::Newest).await.unwrap().seq..16 {
            blob.append(bytes("to the next hint"), "", &options).await.unwrap();
        }
        let mut two = Client::new(&store);
        let other = Blob::open(&two.connection, key()).await.unwrap();
        let opened = two.cost();
        assert!(opened.get <= 5 && opened.put == 0 && opened.list == 0, "open with a hint: {opened:?}");
        let version = other.version(&At::Newest).await.unwrap();
        assert_eq!(version.seq, 16);

        // The version's extents are in a node: one read for it, one for the frame.
        other.read(&version, 20 << 20, (20 << 20) + 4096).await.unwrap();
        let cold = two.cost();
        assert!(cold.get <= 3 && cold.put == 0 && cold.list == 0, "first read of 4 KiB: {cold:?}");
        other.read(&version, 30 << 20, (30 << 20) + 4096).await.unwrap();
        assert_eq!(two.cost(), Cost { put: 0, get: 1, list: 0 }, "read of 4 KiB");
        other.read(&version, 30 << 20, (30 << 20) + 4096).await.unwrap();
        assert_eq!(two.cost(), Cost { put: 0, get: 0, list: 0 }, "the same again");
        // Neighbours come with one request.
        other.read(&version, 4 << 20, 5 << 20).await.unwrap();
        assert_eq!(two.cost(), Cost { put: 0, get: 1, list: 0 }, "read of 1 MiB");

        // The other client does not know of this version.
        one.cost();
        blob.append(bytes("first"), "", &options).await.unwrap();
        one.cost();
        let committed = other.append(bytes(noise(1 << 20, 4)), "", &options).await.unwrap();
        assert_eq!(committed.seq, 18);
        let lost = two.cost();
        // The pack, the record that lost, what won and whether there is a newer one, the record.
        assert!(lost.put == 3 && lost.get <= 3 && lost.list == 0, "append that lost a race: {lost:?}");
    });
}
