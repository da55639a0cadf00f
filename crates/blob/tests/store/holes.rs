//! Holes: they are uploaded as counts, take no space in packs, and all readers skip them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use blob::{At, Blob, BlobKey, Chunk, Connection, Encoding, Tally, UploadOptions, bytes};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use testkit::Rng;

const TIB: u64 = 1 << 40;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

async fn memory() -> (Blob, Arc<InMemory>) {
    let store = Arc::new(InMemory::new());
    let connection = Connection::new(store.clone(), store.clone());
    (Blob::open_or_create(&connection, BlobKey::new(Path::from("a/blob"))).await.unwrap(), store)
}

/// Bytes without a zero.
fn noise(rng: &mut Rng, len: u64) -> Bytes {
    (0..len).map(|_| rng.between(1, 255) as u8).collect::<Vec<u8>>().into()
}

fn stream(chunks: Vec<Chunk>) -> impl futures_util::Stream<Item = std::io::Result<Chunk>> {
    futures_util::stream::iter(chunks.into_iter().map(Ok))
}

/// One codec for all frames: the choice of `auto` depends on time.
fn fixed(codec: &str) -> UploadOptions {
    let encoding = Encoding::parse(&[("compression".to_owned(), codec.to_owned())].into()).unwrap();
    UploadOptions { encoding, pack_bytes: 1 << 20, ..UploadOptions::default() }
}

/// Puts chunks, and the bytes that they represent: both must give the same blob.
#[test]
fn zeroes_by_number_are_the_same_as_zeroes_in_bytes() {
    runtime().block_on(async {
        let mut rng = Rng::new(0x9e37_79b9_7f4a_7c15);
        let options = fixed("lz4");
        for round in 0..12 {
            let (blob, _) = memory().await;
            let (mut chunks, mut model) = (Vec::new(), Vec::new());
            for _ in 0..20 {
                let most = if rng.below(3) == 0 { 2 << 20 } else { 200_000 };
                let len = rng.below(most);
                if rng.below(2) == 0 {
                    chunks.push(Chunk::Zeroes(len));
                    model.resize(model.len() + len as usize, 0);
                } else {
                    let data = noise(&mut rng, len);
                    model.extend_from_slice(&data);
                    chunks.push(data.into());
                }
            }
            let options = UploadOptions { tally: Arc::default(), ..options.clone() };
            let made = blob.put(stream(chunks), "", &options).await.unwrap();
            assert_eq!(made.len, model.len() as u64);
            for counted in [&options.tally.raw, &options.tally.encoded_raw] {
                assert_eq!(counted.load(Ordering::Relaxed), made.len, "round {round}");
            }
            let one = blob.version(&At::Newest).await.unwrap();
            let read: Vec<Bytes> = blob.stream(&one, 0, one.size).try_collect().await.unwrap();
            assert!(read.concat() == model, "round {round}");
            let mut from_chunks = Vec::new();
            let mut parts = std::pin::pin!(blob.chunks(&one, 0, one.size));
            while let Some(part) = parts.next().await {
                match part.unwrap() {
                    Chunk::Data(data) => from_chunks.extend_from_slice(&data),
                    Chunk::Zeroes(len) => from_chunks.resize(from_chunks.len() + len as usize, 0),
                }
            }
            assert!(from_chunks == model, "round {round}");
            blob.put(bytes(model), "", &options).await.unwrap();
            let other = blob.version(&At::Newest).await.unwrap();
            assert_eq!(blob.usage(&one).await.unwrap(), blob.usage(&other).await.unwrap(), "round {round}");
        }
    });
}

#[test]
fn a_hole_of_terabytes_costs_nothing_and_hides_no_damage() {
    runtime().block_on(async {
        let (blob, store) = memory().await;
        let mut rng = Rng::new(7);
        let (first, last) = (noise(&mut rng, 300_000), noise(&mut rng, 200_000));
        let parts = vec![first.clone().into(), Chunk::Zeroes(7 * TIB + 1), last.clone().into(), Chunk::Zeroes(TIB)];
        blob.put(stream(parts), "", &fixed("off")).await.unwrap();
        let version = blob.version(&At::Newest).await.unwrap();
        let begins = 300_000 + 7 * TIB + 1;
        assert_eq!(version.size, begins + 200_000 + TIB);
        let chunks: Vec<Chunk> = blob.chunks(&version, 0, version.size).try_collect().await.unwrap();
        assert!(chunks.len() <= 6, "{} chunks", chunks.len());
        assert_eq!(chunks.iter().map(Chunk::len).sum::<u64>(), version.size);
        // A frame ends after each run of data.
        assert_eq!(blob.next_data(&version, 400_000, version.size).await.unwrap(), Some(begins - begins % 131_072));
        assert_eq!(blob.next_data(&version, 400_000, TIB).await.unwrap(), None);
        let tally = Tally::default();
        let verified = blob.verify(&version, &tally).await.unwrap();
        assert_eq!((verified.frames, verified.damaged), (3 + 2, Vec::new()));
        assert_eq!(tally.raw.load(Ordering::Relaxed), version.size);
        assert_eq!(blob.usage(&version).await.unwrap().stored, verified.stored);
        // A changed byte after the hole is found, although the blob has just read the frame.
        blob.read(&version, begins, begins + 200_000).await.unwrap();
        let objects: Vec<Path> = store.list(None).map_ok(|meta| meta.location).try_collect().await.unwrap();
        let pack = objects.iter().find(|path| path.as_ref().contains("/p/")).unwrap();
        let mut raw = store.get(pack).await.unwrap().bytes().await.unwrap().to_vec();
        let at = raw.windows(8).position(|window| window == &last[100_000..100_008]).unwrap();
        raw[at] ^= 1;
        store.put(pack, raw.into()).await.unwrap();
        let damaged = blob.verify(&version, &Tally::default()).await.unwrap().damaged;
        let byte = begins + 100_000;
        let frame = byte - byte % 131_072..byte - byte % 131_072 + 131_072;
        assert_eq!(damaged.iter().map(|one| one.at..one.at + one.len).collect::<Vec<_>>(), [frame], "{damaged:?}");
    });
}

/// More zeroes than the largest blob can have, and than a u64 can count.
#[test]
fn zeroes_behind_the_largest_blob_are_refused() {
    runtime().block_on(async {
        let (blob, _) = memory().await;
        for lengths in [vec![1 << 62, 1], vec![u64::MAX], vec![1, u64::MAX], vec![1 << 61, 1 << 61, 1]] {
            let chunks = lengths.iter().map(|len| Chunk::Zeroes(*len)).collect();
            let refused = blob.put(stream(chunks), "", &fixed("off")).await.unwrap_err().to_string();
            assert!(refused.contains("exceed the size of the largest blob"), "{lengths:?}: {refused}");
        }
        assert_eq!(blob.put(stream(vec![Chunk::Zeroes(1 << 62)]), "", &fixed("off")).await.unwrap().len, 1 << 62);
        let version = blob.version(&At::Newest).await.unwrap();
        let chunks: Vec<Chunk> = blob.chunks(&version, 0, version.size).try_collect().await.unwrap();
        assert_eq!(chunks, [Chunk::Zeroes(1 << 62)]);
    });
}

/// Writes at random offsets of a sparse blob, more than a record's list holds: from any offset, the
/// next byte of data is that of the writes.
#[test]
fn the_next_data_is_found_through_nodes() {
    runtime().block_on(async {
        let (blob, _) = memory().await;
        let (mut rng, mut written) = (Rng::new(99), std::collections::BTreeMap::new());
        for step in 0..300 {
            let (at, len) = (rng.below(4 * TIB), 1 + rng.below(3000));
            blob.write(at, bytes(noise(&mut rng, len)), "", &UploadOptions::default()).await.unwrap();
            written.insert(at, at + len);
            if step % 20 != 19 {
                continue;
            }
            let version = blob.version(&At::Newest).await.unwrap();
            for _ in 0..50 {
                let from = rng.below(version.size);
                let inside = written.range(..=from).any(|(_, end)| *end > from).then_some(from);
                let expected = inside.or_else(|| written.range(from..).next().map(|(at, _)| *at));
                assert_eq!(blob.next_data(&version, from, version.size).await.unwrap(), expected, "from {from}");
                let to = from + rng.below(TIB / 64);
                let within = expected.filter(|at| *at < to);
                assert_eq!(blob.next_data(&version, from, to).await.unwrap(), within, "from {from} to {to}");
            }
        }
        let version = blob.version(&At::Newest).await.unwrap();
        assert!(version.layout.pieces().iter().any(|piece| piece.level() > 0), "there are no nodes");
        assert_eq!(blob.verify(&version, &Tally::default()).await.unwrap().damaged, []);
    });
}
