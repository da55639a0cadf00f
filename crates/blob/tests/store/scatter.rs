//! Versions that are read in no order, into a destination that reads as zeroes: every byte once,
//! each frame verified, and many requests at the same time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::failing_store::{Failing, Failure, noise, run};
use blob::{
    At, Blob, BlobKey, Error, Extent, Frame, Group, Layout, Piece, Place, Tally, UploadOptions, bytes, frame_checksum,
};
use codec::CodecId;
use object_store::path::Path;
use parking_lot::Mutex;
use testkit::{Rng, mixed};

const FRAME: usize = blob::FRAME_BYTES as usize;

fn key() -> BlobKey {
    BlobKey::new(Path::from("a/blob"))
}

fn small_packs() -> UploadOptions {
    UploadOptions { pack_bytes: 1 << 20, ..UploadOptions::default() }
}

/// A blob with one version, opened by a client without anything in its caches.
async fn opened(store: &Arc<Failing>, data: Vec<u8>) -> Blob {
    let blob = Blob::open_or_create(&store.connect(), key()).await.unwrap();
    blob.put(bytes(data), "", &small_packs()).await.unwrap();
    store.reads.store(0, Ordering::SeqCst);
    store.busiest.store(0, Ordering::SeqCst);
    Blob::open(&store.connect(), key()).await.unwrap()
}

/// The bytes of a range, and how often each was passed to the sink.
async fn scattered(blob: &Blob, from: u64, to: u64) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let version = blob.version(&At::Newest).await?;
    let len = to.min(version.size).saturating_sub(from);
    let taken = Arc::new(Mutex::new((vec![0_u8; len as usize], vec![0_u8; len as usize])));
    let shared = taken.clone();
    let sink = move |at: u64, part: &[u8]| -> std::io::Result<()> {
        let (data, times) = &mut *shared.lock();
        let range = (at - from) as usize..(at - from) as usize + part.len();
        data[range.clone()].copy_from_slice(part);
        times[range].iter_mut().for_each(|times: &mut u8| *times += 1);
        Ok(())
    };
    let tally = Tally::default();
    blob.scatter(&version, from, to, Arc::new(sink), &tally).await?;
    assert_eq!(tally.raw.load(Ordering::SeqCst), len, "the progress of {from} to {to}");
    Ok(std::mem::take(&mut *taken.lock()))
}

/// Versions of many clipped, shifted and folded pieces, in packs and in records.
#[test]
fn every_byte_is_taken_once_and_zeroes_are_left_out() {
    run(async {
        let mut model = mixed(1, 9 << 20);
        model[3 << 20..5 << 20].fill(0);
        let blob = opened(&Failing::new(), model.clone()).await;
        let mut rng = Rng::new(0x5ca7_7e2d);
        for step in 0..120_usize {
            let len = if step % 40 == 0 { 3 << 20 } else { 1 + rng.index(40_000) };
            let data = if step % 3 == 0 { noise(step as u64, len).to_vec() } else { mixed(step as u64, len) };
            let at = rng.index(model.len() + 200_000);
            model.resize(model.len().max(at + len), 0);
            model[at..at + len].copy_from_slice(&data);
            blob.write(at as u64, bytes(data), "", &small_packs()).await.unwrap();
            let size = model.len() as u64;
            let from = rng.below(size);
            for (from, to) in [(0, u64::MAX), (from, from + rng.below(1 << 20)), (size, size + 9)] {
                if step % 10 > 0 && to == u64::MAX {
                    continue;
                }
                let (data, times) = scattered(&blob, from, to).await.unwrap();
                let expected = &model[from as usize..to.min(size) as usize];
                assert!(data == expected, "{from} to {to} after step {step}");
                assert!(times.iter().all(|times| *times <= 1), "a byte of {from} to {to} came twice after step {step}");
                let is_missing = |(times, byte): (&u8, &u8)| *times == 0 && *byte != 0;
                assert!(!times.iter().zip(expected).any(is_missing), "{from} to {to} after step {step}");
            }
        }
        let blob = opened(&Failing::new(), [vec![1; FRAME], vec![0; 3 * FRAME], vec![2; 5]].concat()).await;
        let (_, times) = scattered(&blob, 0, u64::MAX).await.unwrap();
        assert!(times[FRAME..4 * FRAME].iter().all(|times| *times == 0), "stored zeroes are no data");
    });
}

#[test]
fn what_the_link_corrupted_is_fetched_again_and_what_the_store_corrupted_is_damage() {
    run(async {
        for data in [mixed(2, 1 << 20), noise(2, 800 << 10).to_vec()] {
            let store = Failing::new();
            let blob = opened(&store, data.clone()).await;
            store.fail(Failure::Flipped(1));
            assert!(scattered(&blob, 0, u64::MAX).await.unwrap().0 == data);
            assert_eq!(store.reads.load(Ordering::SeqCst), 2, "the second request is for one frame");
            store.fail(Failure::Flipped(2));
            let damaged = scattered(&blob, 0, u64::MAX).await.unwrap_err();
            let text = damaged.to_string();
            assert!(matches!(damaged, Error::Damaged { .. }) && text.contains("frame at 8 of a/blob/"), "{text}");
            assert!(text.contains("checksum") && text.contains("twice"), "{text}");
            store.fail(Failure::Gone);
            assert!(matches!(scattered(&blob, 0, u64::MAX).await, Err(Error::Lost { .. })));
        }
    });
}

/// The end of the last frame was taken for the end of all: a layout that no upload makes, but that
/// is valid, ended the program, and so a server with an image of it.
#[test]
fn frames_that_lie_within_others_are_read() {
    run(async {
        const INNER: usize = 4096;
        let data = noise(6, 2 * FRAME);
        let store = Failing::new();
        let blob = opened(&store, data.to_vec()).await;
        let mut version = (*blob.version(&At::Newest).await.unwrap()).clone();
        let [Piece::Extent(extent)] = version.layout.pieces() else { panic!("{:?}", version.layout) };
        let Place::Pack { pack, offset } = extent.place else { panic!("{extent:?}") };
        let whole = extent.frames[0];
        assert_eq!(whole.codec, CodecId::RAW);
        let crc = frame_checksum(CodecId::RAW, INNER as u32, &data[100..100 + INNER]);
        let inner = Frame { stored: INNER as u32, codec: CodecId::RAW, crc };
        let piece = |number: usize, frame: Frame, offset| {
            let (start, len) = ((number * FRAME) as u64, u64::from(frame.stored));
            let place = Place::Pack { pack, offset };
            Piece::Extent(Extent { start, len, skip: 0, tail: frame.stored, place, frames: vec![frame] })
        };
        // A read of more than eight frames is scattered.
        for count in [2, 12] {
            let blob = Blob::open(&store.connect(), key()).await.unwrap();
            let outer = (0..count - 1).map(|number| piece(number, whole, offset));
            version.layout = Layout::of(outer.chain([piece(count - 1, inner, offset + 100)]).collect());
            version.size = ((count - 1) * FRAME + INNER) as u64;
            let mut expected = data[..FRAME].repeat(count - 1);
            expected.extend_from_slice(&data[100..100 + INNER]);
            assert!(blob.read(&version, 0, version.size).await.unwrap() == expected, "{count} frames");
            let numbers: Vec<u64> = (0..count as u64).collect();
            let groups = blob.groups(&version, &numbers).await;
            for (group, expected) in groups.into_iter().zip(expected.chunks(FRAME)) {
                assert!(matches!(group.unwrap(), Group::Stored(group) if group.bytes == expected));
            }
        }
    });
}

/// Stores limit the rate of a connection, and each request costs a round trip.
#[test]
fn many_requests_are_in_flight_and_no_more_than_memory_is_planned_for() {
    run(async {
        let store = Failing::new();
        let blob = opened(&store, noise(3, 24 << 20).to_vec()).await;
        assert!(scattered(&blob, 0, u64::MAX).await.unwrap().0 == noise(3, 24 << 20));
        assert!(store.reads.load(Ordering::SeqCst) >= 24, "one for each pack");
        assert_eq!(store.busiest.load(Ordering::SeqCst), 16);
    });
}

#[test]
fn a_destination_that_is_full_ends_the_read() {
    run(async {
        let store = Failing::new();
        let blob = opened(&store, noise(4, 48 << 20).to_vec()).await;
        let version = blob.version(&At::Newest).await.unwrap();
        let full = |_: u64, _: &[u8]| -> std::io::Result<()> { Err(std::io::ErrorKind::StorageFull.into()) };
        let read = blob.scatter(&version, 0, u64::MAX, Arc::new(full), &Tally::default()).await;
        assert!(
            matches!(&read, Err(Error::Sink(error)) if error.kind() == std::io::ErrorKind::StorageFull),
            "{read:?}"
        );
        let reads = store.reads.load(Ordering::SeqCst);
        assert!(reads < 40, "{reads} packs of 48 MiB were read after the error");
    });
}
