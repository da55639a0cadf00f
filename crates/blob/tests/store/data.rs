//! Data through the whole library, on a store in memory and on a directory: every version byte for
//! byte, also after folds; damage is found and named; the number of requests is that of the design.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use blob::{At, Blob, BlobKey, Connection, Error, OpId, StagedAs, Tally, UploadOptions, bytes};
use bytes::Bytes;
use futures_util::StreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use testkit::{Rng, noise};

/// Bytes of which some compress, some do not, and some are zeroes.
fn mixed(rng: &mut Rng, len: usize) -> Bytes {
    let mut out = Vec::with_capacity(len + 4096);
    while out.len() < len {
        let kind = rng.below(4);
        let part = 1 + rng.index(200_000);
        match kind {
            0 => out.resize(out.len() + part, 0),
            1 => out.extend((0..part).map(|_| rng.next_u64() as u8)),
            _ => out.extend(format!("line {} of text; ", rng.below(50)).bytes().cycle().take(part)),
        }
    }
    out.truncate(len);
    out.into()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn memory() -> (Connection, Arc<InMemory>) {
    let store = Arc::new(InMemory::new());
    (Connection::new(store.clone(), store.clone()), store)
}

fn key() -> BlobKey {
    BlobKey::new(Path::from("a/blob"))
}

fn small_packs() -> UploadOptions {
    UploadOptions { pack_bytes: 1 << 20, ..UploadOptions::default() }
}

async fn all_of(blob: &Blob, at: At) -> Vec<u8> {
    let version = blob.version(&at).await.unwrap();
    let mut stream = std::pin::pin!(blob.stream(&version, 0, u64::MAX));
    let mut all = Vec::new();
    while let Some(part) = stream.next().await {
        all.extend_from_slice(&part.unwrap());
    }
    all
}

/// Of several clients that found no blob, one creates the first version; staged parts behave the
/// same.
#[test]
fn one_of_several_creators_makes_the_blob() {
    runtime().block_on(async {
        let (connection, store) = memory();
        let mut blobs = Vec::new();
        for _ in 0..4 {
            let connection = Connection::new(store.clone(), store.clone());
            blobs.push(Blob::open_or_create(&connection, key()).await.unwrap());
        }
        let id = || OpId::random(&env::SystemEntropy).unwrap();
        let options = UploadOptions::default();
        let part = blobs[0].stage(bytes("staged"), &options).await.unwrap();
        let creates = blobs.iter().flat_map(|blob| [blob, blob]).enumerate().map(|(number, blob)| {
            let (part, options) = (part.clone(), &options);
            async move {
                match number % 2 {
                    0 => blob.create(bytes(format!("creator {number}")), "", options).await,
                    _ => blob.commit_staged(vec![(0, part)], StagedAs::Create, "", id(), None).await,
                }
            }
        });
        let answers = futures_util::future::join_all(creates).await;
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "{answers:?}");
        for error in answers.into_iter().filter_map(Result::err) {
            assert!(matches!(&error, Error::Exists(place) if place == "a/blob"), "{error:?}");
        }
        let blob = Blob::open(&connection, key()).await.unwrap();
        assert_eq!(blob.refresh().await.unwrap().seq, 1);
        // After a removal the key can be used again.
        blob::remove(blob.committer()).await.unwrap();
        let blob = Blob::open_or_create(&connection, key()).await.unwrap();
        blob.create(bytes("again"), "", &options).await.unwrap();
        assert_eq!(all_of(&blob, At::Newest).await, b"again");
    });
}

/// Writes and appends at random, many more than a record's list holds, and reads every version.
#[test]
fn every_version_reads_as_it_was_written() {
    runtime().block_on(async {
        let (connection, _) = memory();
        let blob = Blob::open_or_create(&connection, key()).await.unwrap();
        let mut rng = Rng::new(0x2545_f491_4f6c_dd1d);
        let mut model: Vec<u8> = Vec::new();
        let mut versions: Vec<(u64, Vec<u8>)> = Vec::new();
        for step in 0..400u64 {
            let len = if step % 37 == 0 { rng.below(3 << 20) } else { 1 + rng.below(9000) } as usize;
            let data = mixed(&mut rng, len);
            let committed = match (step % 50, rng.below(3)) {
                (0, _) => {
                    model = data.to_vec();
                    blob.put(bytes(data), "put", &small_packs()).await.unwrap()
                }
                (_, 0) => {
                    let at = rng.below(model.len() as u64 + 300_000);
                    let end = at as usize + len;
                    model.resize(model.len().max(end), 0);
                    model[at as usize..end].copy_from_slice(&data);
                    blob.write(at, bytes(data), "", &small_packs()).await.unwrap()
                }
                _ => {
                    let at = model.len() as u64;
                    model.extend_from_slice(&data);
                    let committed = blob.append(bytes(data), "", &small_packs()).await.unwrap();
                    assert_eq!(committed.at, at);
                    committed
                }
            };
            assert_eq!(committed.len, len as u64);
            if step % 20 == 19 {
                versions.push((committed.seq, model.clone()));
            }
        }
        // Another client, with empty caches.
        let other = Blob::open(&connection, key()).await.unwrap();
        let head = other.version(&At::Newest).await.unwrap();
        assert!(head.layout.encoded_bytes() < 64 << 10);
        for (seq, expected) in &versions {
            assert!(all_of(&other, At::Number(*seq)).await == *expected, "version {seq}");
            let version = other.version(&At::Number(*seq)).await.unwrap();
            for _ in 0..20 {
                let from = rng.below(expected.len() as u64);
                let to = from + rng.below(5000);
                let part = &expected[from as usize..(to as usize).min(expected.len())];
                assert_eq!(other.read(&version, from, to).await.unwrap(), part, "{from} to {to} of version {seq}");
            }
        }
        let report = other.verify(&head, &Tally::default()).await.unwrap();
        assert!(report.damaged.is_empty() && report.frames > 0, "{report:?}");
    });
}

/// Only appends: the tree stays flat, and each record small.
#[test]
fn many_appends_fold_into_a_flat_tree() {
    runtime().block_on(async {
        let (connection, _) = memory();
        let blob = Blob::open_or_create(&connection, key()).await.unwrap();
        let mut rng = Rng::new(77);
        let mut model = Vec::new();
        let mut largest = 0;
        for _ in 0..1500 {
            let len = 5000 + rng.below(5000) as usize;
            let data: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
            model.extend_from_slice(&data);
            blob.append(bytes(data), "", &UploadOptions::default()).await.unwrap();
            let head = blob.version(&At::Newest).await.unwrap();
            largest = largest.max(head.layout.encoded_bytes());
            let depth = head.layout.pieces().iter().map(blob::Piece::level).max().unwrap();
            assert!(depth <= 2, "{depth} levels after {} appends", head.seq);
        }
        assert!(largest < 9 << 10, "a record's list grew to {largest} bytes");
        assert!(all_of(&Blob::open(&connection, key()).await.unwrap(), At::Newest).await == model);
    });
}

#[test]
fn zeroes_take_nothing_and_small_appends_stay_in_the_record() {
    runtime().block_on(async {
        let (connection, store) = memory();
        let blob = Blob::open_or_create(&connection, key()).await.unwrap();
        blob.put(bytes(vec![0; 50 << 20]), "", &UploadOptions::default()).await.unwrap();
        blob.append(bytes("a few words"), "", &UploadOptions::default()).await.unwrap();
        let packs = store.list(Some(&Path::from("a/blob"))).filter(|meta| {
            let is_pack = meta.as_ref().unwrap().location.as_ref().contains("/p/");
            async move { is_pack }
        });
        assert_eq!(packs.count().await, 0);
        let version = blob.version(&At::Newest).await.unwrap();
        let end = blob.read(&version, (50 << 20) - 3, u64::MAX).await.unwrap();
        assert_eq!(end, &b"\0\0\0a few words"[..]);
        // Zeroes over data hide it.
        blob.write((50 << 20) + 2, bytes(vec![0; 3]), "", &UploadOptions::default()).await.unwrap();
        let version = blob.version(&At::Newest).await.unwrap();
        assert_eq!(blob.read(&version, 50 << 20, u64::MAX).await.unwrap(), &b"a \0\0\0 words"[..]);
    });
}

/// The packs of the blob, by name.
async fn packs(store: &InMemory) -> Vec<Path> {
    let mut packs: Vec<Path> = store
        .list(Some(&Path::from("a/blob")))
        .map(|meta| meta.unwrap().location)
        .filter(|path| std::future::ready(path.as_ref().contains("/p/")))
        .collect()
        .await;
    packs.sort();
    packs
}

/// The pack of the blob whose name sorts first.
async fn first_pack(store: &InMemory) -> Path {
    packs(store).await.remove(0)
}

/// Damage of each kind is reported with its location, and never returned as data or zeroes.
#[test]
fn damage_is_found_named_and_never_read() {
    runtime().block_on(async {
        let (connection, store) = memory();
        let blob = Blob::open_or_create(&connection, key()).await.unwrap();
        let data = mixed(&mut Rng::new(5), 3 << 20);
        blob.put(bytes(data.clone()), "", &small_packs()).await.unwrap();
        let pack = &first_pack(&store).await;
        let mut stored = store.get(pack).await.unwrap().bytes().await.unwrap().to_vec();
        blob::verify_pack(&stored, &mut codec::Workspace::new()).unwrap();
        // A client that has all data in its cache.
        let warm = Blob::open(&connection, key()).await.unwrap();
        let version = warm.version(&At::Newest).await.unwrap();
        for at in (0..version.size).step_by(128 << 10) {
            warm.read(&version, at, at + 1).await.unwrap();
        }
        stored[5000] ^= 1;
        assert!(blob::verify_pack(&stored, &mut codec::Workspace::new()).is_err());
        store.put(pack, stored.into()).await.unwrap();
        let other = Blob::open(&connection, key()).await.unwrap();
        let version = other.version(&At::Newest).await.unwrap();
        let report = other.verify(&version, &Tally::default()).await.unwrap();
        assert_eq!(report.damaged.len(), 1, "{report:?}");
        assert_eq!(
            warm.verify(&version, &Tally::default()).await.unwrap(),
            report,
            "the cache proves nothing about the store"
        );
        let damage = &report.damaged[0];
        assert!(damage.len <= 128 << 10 && damage.what.contains(pack.as_ref()), "{damage:?}");
        let read = other.read(&version, damage.at, damage.at + 1).await;
        assert!(matches!(read, Err(Error::Damaged { .. })), "{read:?}");
        // The frame next to it can be read.
        let after = damage.at + damage.len;
        assert_eq!(other.read(&version, after, after + 9).await.unwrap(), data[after as usize..after as usize + 9]);
    });
}

/// A pack that is missing, truncated or replaced is reported quickly as damage, and an audit finds
/// it below old versions, too.
#[test]
fn a_pack_that_is_gone_cut_or_foreign_is_damage() {
    runtime().block_on(async {
        let (connection, store) = memory();
        let blob = Blob::open_or_create(&connection, key()).await.unwrap();
        let data = noise(6, 6 << 20);
        blob.put(bytes(data.clone()), "", &small_packs()).await.unwrap();
        let clean = blob.audit(&Tally::default()).await.unwrap();
        assert!(clean.wrong.is_empty() && clean.packs > 0 && clean.records == 1, "{clean:?}");
        let pack = &first_pack(&store).await;
        let whole = store.get(pack).await.unwrap().bytes().await.unwrap();
        let neighbour = packs(&store).await.pop().unwrap();
        assert_ne!(neighbour, *pack);
        for what in ["gone", "cut", "foreign", "neighbour"] {
            match what {
                "neighbour" => store.copy(&neighbour, pack).await.unwrap(),
                "gone" => store.delete(pack).await.unwrap(),
                "cut" => drop(store.put(pack, whole.slice(..whole.len() / 2).into()).await.unwrap()),
                _ => drop(store.put(pack, "nothing of ours".into()).await.unwrap()),
            }
            let other = Blob::open(&connection, key()).await.unwrap();
            let version = other.version(&At::Newest).await.unwrap();
            let report = other.verify(&version, &Tally::default()).await.unwrap();
            let bad: u64 = report.damaged.iter().map(|damage| damage.len).sum();
            assert!(bad > 0 && bad < data.len() as u64, "{what}: {report:?}");
            for damage in &report.damaged {
                assert!(damage.what.contains(pack.as_ref()), "{what}: {damage:?}");
                let read = other.read(&version, damage.at, damage.at + 1).await;
                assert!(matches!(read, Err(Error::Damaged { .. } | Error::Lost { .. })), "{what}: {read:?}");
            }
            let audited = other.audit(&Tally::default()).await.unwrap();
            assert_eq!(audited.wrong.len(), 1, "{what}: {audited:?}");
            assert_eq!(audited.wrong[0].0, pack.to_string(), "{what}");
        }
        // The newest version is intact again; an older record and an older version's pack are not.
        blob.put(bytes(mixed(&mut Rng::new(7), 1 << 20)), "", &small_packs()).await.unwrap();
        let record = key().record(blob.log().inc(), 1);
        let mut bytes = store.get(&record).await.unwrap().bytes().await.unwrap().to_vec();
        bytes[60] ^= 4;
        store.put(&record, bytes.into()).await.unwrap();
        let other = Blob::open(&connection, key()).await.unwrap();
        let version = other.version(&At::Newest).await.unwrap();
        assert!(other.verify(&version, &Tally::default()).await.unwrap().damaged.is_empty());
        let audited = other.audit(&Tally::default()).await.unwrap();
        assert_eq!(audited.wrong.len(), 1, "{audited:?}");
        assert_eq!(audited.wrong[0].0, record.to_string());
    });
}

#[test]
fn a_diff_shows_what_was_written_and_reads_only_what_is_not_shared() {
    runtime().block_on(async {
        let (connection, _) = memory();
        let blob = Blob::open_or_create(&connection, key()).await.unwrap();
        let data: Vec<u8> = (0..40u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let first = blob.put(bytes(data), "", &small_packs()).await.unwrap().seq;
        blob.write(7_000_000, bytes(vec![1; 5000]), "", &small_packs()).await.unwrap();
        blob.write(9_000_000, bytes(vec![0; 600_000]), "", &small_packs()).await.unwrap();
        let last = blob.append(bytes("more"), "", &small_packs()).await.unwrap();
        let (a, b) = (blob.version(&At::Number(first)).await.unwrap(), blob.version(&At::Newest).await.unwrap());
        let ranges = blob.diff(&a, &b).await.unwrap();
        assert_eq!(ranges, [7_000_000..7_005_000, 9_000_000..9_600_000, last.at..last.at + 4]);
        assert!(blob.diff(&b, &b).await.unwrap().is_empty());
    });
}
