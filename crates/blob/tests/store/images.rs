//! Blobs as images: groups are returned as stored, a change of thousands of groups becomes one
//! version based on a known one, and a boot profile reorders frames.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod pins;

use std::sync::atomic::Ordering;

use crate::failing_store::{Failing, Failure, GROUP, data, noise, run, stored, text};
use blob::{
    At, Blob, BlobKey, BlobRef, Cause, Change, CommitOptions, Committed, Error, ExpireRule, GcOptions, Group, OpId,
    Profile, PushOptions, UploadOptions, bytes, clone_blob, expire, gc,
};
use futures_util::{Stream, StreamExt};
use object_store::path::Path;

fn key(name: &str) -> BlobKey {
    BlobKey::new(Path::from(name))
}

fn pushing(id: u128) -> PushOptions {
    PushOptions { upload: UploadOptions::default(), id: OpId(id), message: String::new(), replace: false }
}

fn changes(all: Vec<(u64, Change)>) -> impl Stream<Item = std::io::Result<(u64, Change)>> {
    futures_util::stream::iter(all.into_iter().map(Ok))
}

async fn newest(blob: &Blob) -> std::sync::Arc<blob::Record> {
    blob.refresh().await.unwrap()
}

/// Reads a whole version, group by group.
async fn image(blob: &Blob, version: &blob::Record) -> Vec<u8> {
    let numbers: Vec<u64> = (0..version.size.div_ceil(GROUP)).collect();
    let mut all = Vec::new();
    for (number, group) in numbers.iter().zip(blob.groups(version, &numbers).await) {
        let len = GROUP.min(version.size - number * GROUP) as usize;
        let part = data(&group.unwrap(), len);
        assert_eq!(part.len(), len, "group {number}");
        all.extend_from_slice(&part);
    }
    all
}

#[test]
fn groups_come_as_they_are_stored_and_others_decoded() {
    run(async {
        let store = Failing::new();
        let blob = Blob::open_or_create(&store.connect(), key("image")).await.unwrap();
        let mut model = Vec::new();
        for number in 0..40 {
            match number % 4 {
                0 => model.extend_from_slice(&text(number)),
                1 => model.extend_from_slice(&noise(number, GROUP as usize)),
                _ => model.extend_from_slice(&vec![0; GROUP as usize]),
            }
        }
        model.extend_from_slice(&text(40)[..5000]);
        blob.put(bytes(model.clone()), "", &UploadOptions::default()).await.unwrap();
        // One that lies across two groups, one within a group, one small enough for the record.
        for (at, len) in [(5 * GROUP - 70, 20_000), (8 * GROUP + 4096, 8192), (12 * GROUP, 100)] {
            let part = noise(at, len);
            model[at as usize..at as usize + len].copy_from_slice(&part);
            blob.write(at, bytes(part), "", &UploadOptions::default()).await.unwrap();
        }
        let version = newest(&blob).await;
        let numbers: Vec<u64> = (0..43).collect();
        let before = store.reads.load(Ordering::SeqCst);
        let groups = blob.groups(&version, &numbers).await;
        let reads = store.reads.load(Ordering::SeqCst) - before;
        assert!(reads <= 14, "{reads} requests for 41 groups of one pack");
        for (number, group) in numbers.iter().zip(&groups) {
            let group = group.as_ref().unwrap();
            let is_mixed = [4, 5, 8, 12].contains(number);
            let is_hole = number % 4 > 1 || *number > 40;
            assert_eq!(matches!(group, Group::Plain(_)), is_mixed, "group {number}");
            assert_eq!(*group == Group::Zero, is_hole && !is_mixed, "group {number}");
            if let Group::Stored(stored) = group {
                assert_eq!(u64::from(stored.data_len), if *number == 40 { 5000 } else { GROUP }, "group {number}");
                assert!(*number % 4 == 1 || stored.bytes.len() < 20_000, "text is compressed: group {number}");
            }
        }
        assert!(image(&blob, &version).await == model);
        // In any order, and with duplicates.
        let some = blob.groups(&version, &[40, 1, 8, 1]).await;
        for (number, group) in [40, 1, 8, 1].into_iter().zip(some) {
            assert_eq!(group.unwrap(), *groups[number].as_ref().unwrap());
        }
    });
}

#[test]
fn errors_of_groups_are_told_apart() {
    run(async {
        let store = Failing::new();
        let blob = Blob::open_or_create(&store.connect(), key("image")).await.unwrap();
        let model = [text(0), noise(3, GROUP as usize), text(2), text(3)].concat();
        blob.put(bytes(model.clone()), "", &UploadOptions::default()).await.unwrap();
        let version = newest(&blob).await;
        for (failure, cause) in [
            (Failure::Away, Cause::Unreachable),
            (Failure::Denied, Cause::Denied),
            (Failure::Gone, Cause::Gone),
            (Failure::Flipped(u64::MAX), Cause::Damaged),
        ] {
            store.fail(failure);
            for group in blob.groups(&version, &[1]).await {
                assert_eq!(group.map_err(|error| error.cause()), Err(cause), "{failure:?}");
            }
        }
        // The first frame of a request is corrupted, once and twice: the others are returned.
        store.fail(Failure::Flipped(1));
        assert!(image(&blob, &version).await == model);
        store.fail(Failure::Flipped(2));
        let groups = blob.groups(&version, &[0, 1, 2, 3]).await;
        let failed: Vec<bool> = groups.iter().map(Result::is_err).collect();
        assert_eq!(failed, [true, false, false, false]);
        store.fail(Failure::None);
        let gone = Blob::open(&store.connect(), key("other")).await.map(|_| ()).map_err(|error| error.cause());
        assert_eq!(gone, Err(Cause::Gone));
    });
}

/// A change of 3,000 groups, no two of them adjacent, on an image of 6,000 groups that were also
/// written in 3,000 places.
#[test]
fn three_thousand_scattered_groups_are_one_small_record() {
    run(async {
        let store = Failing::new();
        let blob = Blob::open_or_create(&store.connect(), key("image")).await.unwrap();
        let kinds: Vec<_> = (0..7).map(|kind| stored(text(kind))).collect();
        let size = 6000 * GROUP;
        let of = |group: u64, round: u64| ((group * 31 + round * 17) % 7) as usize;
        let genesis = newest(&blob).await;
        let all = (0..6000).map(|group| (group, Change::Stored(kinds[of(group, 1)].clone()))).collect();
        let first = blob.push(&genesis, size, changes(all), &pushing(1)).await.unwrap();
        assert_eq!((first.committed.seq, first.groups, first.as_stored), (1, 6000, 6000));
        for round in 2..4 {
            let base = newest(&blob).await;
            let all = (0..3000u64).map(|at| 2 * at + round % 2);
            let all = all.map(|group| {
                let change =
                    if group % 100 == 7 { Change::Zero } else { Change::Stored(kinds[of(group, round)].clone()) };
                (group, change)
            });
            let before = store.writes.load(Ordering::SeqCst);
            let pushed = blob.push(&base, size, changes(all.collect()), &pushing(round.into())).await.unwrap();
            assert_eq!((pushed.committed.seq, pushed.groups, pushed.is_earlier), (round, 3000, false));
            let writes = store.writes.load(Ordering::SeqCst) - before;
            assert!(writes <= 4, "{writes} packs for 3,000 small frames and their nodes");
        }
        let other = Blob::open(&store.connect(), key("image")).await.unwrap();
        let head = newest(&other).await;
        assert!(head.layout.encoded_bytes() <= 8 << 10, "{} bytes of layout", head.layout.encoded_bytes());
        let numbers: Vec<u64> = (0..6000).collect();
        for (number, group) in numbers.iter().zip(other.groups(&head, &numbers).await) {
            let round = if number % 2 == 0 { 2 } else { 3 };
            let expected =
                if number % 100 == 7 { Group::Zero } else { Group::Stored(kinds[of(*number, round)].clone()) };
            assert!(group.unwrap() == expected, "group {number}");
        }
        // Earlier versions are unchanged.
        let older = other.version(&At::Number(1)).await.unwrap();
        for group in [0, 7, 2999, 5999] {
            let got = other.groups(&older, &[group]).await.remove(0).unwrap();
            assert!(got == Group::Stored(kinds[of(group, 1)].clone()), "group {group} of version 1");
        }
    });
}

#[test]
fn a_push_names_its_base_and_is_done_once() {
    run(async {
        let store = Failing::new();
        let blob = Blob::open_or_create(&store.connect(), key("image")).await.unwrap();
        let mut model = [text(0), text(1), text(2)].concat();
        blob.put(bytes(model.clone()), "", &UploadOptions::default()).await.unwrap();
        let base = newest(&blob).await;
        // Records that make no version may come in between.
        blob.tag("first", 1).await.unwrap();
        let change = |seed| vec![(1, Change::Plain(noise(seed, GROUP as usize)))];
        let pushed = blob.push(&base, base.size, changes(change(5)), &pushing(7)).await.unwrap();
        model[GROUP as usize..2 * GROUP as usize].copy_from_slice(&noise(5, GROUP as usize));
        assert!(image(&blob, &*newest(&blob).await).await == model);
        // The same operation again, as after a kill; then another one on the same base.
        let again = blob.push(&base, base.size, changes(change(5)), &pushing(7)).await.unwrap();
        assert_eq!((again.committed, again.is_earlier), (pushed.committed, true));
        let writes = store.writes.load(Ordering::SeqCst);
        let refused = blob.push(&base, base.size, changes(change(6)), &pushing(8)).await;
        assert!(matches!(refused, Err(Error::Changed { base: 1, newest: 3 })), "{refused:?}");
        assert_eq!(store.writes.load(Ordering::SeqCst), writes, "refused before the upload");
        let on_purpose = PushOptions { replace: true, ..pushing(8) };
        blob.push(&base, base.size, changes(change(6)), &on_purpose).await.unwrap();
        model[GROUP as usize..2 * GROUP as usize].copy_from_slice(&noise(6, GROUP as usize));
        assert!(image(&blob, &*newest(&blob).await).await == model);
        // Damaged groups, and groups out of order or beyond the end, are refused.
        let head = newest(&blob).await;
        let mut bad = stored(text(9));
        bad.crc ^= 1;
        for all in [
            vec![(0, Change::Stored(bad))],
            vec![(1, Change::Zero), (0, Change::Zero)],
            vec![(3, Change::Zero)],
            vec![(0, Change::Plain(text(1).slice(..9)))],
        ] {
            assert!(blob.push(&head, head.size, changes(all), &pushing(9)).await.is_err());
        }
        assert_eq!(newest(&blob).await.seq, head.seq);
        // Longer and shorter, with a partial group at the end.
        let size = 4 * GROUP + 1000;
        let longer = vec![(3, Change::Stored(stored(text(3)))), (4, Change::Stored(stored(text(4))))];
        blob.push(&head, size, changes(longer), &pushing(10)).await.unwrap();
        model.extend_from_slice(&text(3));
        model.extend_from_slice(&text(4)[..1000]);
        let head = newest(&blob).await;
        assert!(image(&blob, &head).await == model);
        blob.push(&head, GROUP + 5, changes(Vec::new()), &pushing(11)).await.unwrap();
        assert!(image(&blob, &*newest(&blob).await).await == model[..GROUP as usize + 5]);
    });
}

/// Another client makes a version between the check and the commit.
async fn rival(store: &std::sync::Arc<Failing>) -> (Result<Committed, Error>, Vec<u8>) {
    let blob = Blob::open_or_create(&store.connect(), key("image")).await.unwrap();
    blob.put(bytes([text(0), text(1)].concat()), "", &UploadOptions::default()).await.unwrap();
    let base = newest(&blob).await;
    let other = Blob::open(&store.connect(), key("image")).await.unwrap();
    let late = futures_util::stream::once(async move {
        other.write(0, bytes(noise(1, 9000)), "", &UploadOptions::default()).await.unwrap();
        Ok((1, Change::Plain(noise(2, GROUP as usize))))
    });
    let pushed = blob.push(&base, base.size, Box::pin(late), &pushing(1)).await;
    let head = newest(&blob).await;
    (pushed.map(|pushed| pushed.committed), blob.read(&head, 0, 9000).await.unwrap().to_vec())
}

#[test]
fn a_rival_version_is_never_overwritten() {
    run(async {
        let (pushed, read) = rival(&Failing::new()).await;
        assert!(matches!(pushed, Err(Error::Changed { base: 1, newest: 2 })), "{pushed:?}");
        assert!(read == noise(1, 9000));
    });
}

#[test]
fn a_clone_takes_the_change_and_shares_the_rest() {
    run(async {
        let store = Failing::new();
        let connection = store.connect();
        let source = Blob::open_or_create(&connection, key("image")).await.unwrap();
        let kinds: Vec<_> = (0..5).map(|kind| stored(text(kind))).collect();
        let all = (0..2000).map(|group| (2 * group, Change::Stored(kinds[group as usize % 5].clone()))).collect();
        let genesis = newest(&source).await;
        source.push(&genesis, 4000 * GROUP, changes(all), &pushing(1)).await.unwrap();
        let version = newest(&source).await;
        let (from, to) = ("image".to_owned(), "copy".to_owned());
        let place = BlobRef { committer: source.committer(), location: &from };
        let backend = connection.backend().clone();
        clone_blob(place, 1, &[], backend, key("copy"), &to, CommitOptions::default()).await.unwrap();
        let clone = Blob::open(&connection, key("copy")).await.unwrap();
        let base = newest(&clone).await;
        assert!(base.is_clone_of(source.log().inc(), &version));
        let all = (0..1500).map(|group| (group + 300, Change::Stored(kinds[4].clone()))).collect();
        clone.push(&base, 4000 * GROUP, changes(all), &pushing(2)).await.unwrap();
        assert!(!newest(&clone).await.is_clone_of(source.log().inc(), &version));
        // The source expires all that it may.
        source.put(bytes(text(1)), "", &UploadOptions::default()).await.unwrap();
        let rule = ExpireRule { keep_last: Some(1), ..ExpireRule::default() };
        expire(source.committer(), &rule).await.unwrap();
        let now = GcOptions {
            upload_max: std::time::Duration::ZERO,
            grace: std::time::Duration::ZERO,
            ..GcOptions::default()
        };
        gc(source.committer(), &now).await.unwrap();
        let clone = Blob::open(&store.connect(), key("copy")).await.unwrap();
        let head = newest(&clone).await;
        let numbers: Vec<u64> = (0..4000).collect();
        for (number, group) in numbers.iter().zip(clone.groups(&head, &numbers).await) {
            let expected = match number {
                300..1800 => Group::Stored(kinds[4].clone()),
                number if number % 2 == 0 => Group::Stored(kinds[*number as usize / 2 % 5].clone()),
                _ => Group::Zero,
            };
            assert!(group.unwrap() == expected, "group {number}");
        }
    });
}

#[test]
fn a_profile_puts_frames_in_the_order_of_a_boot() {
    run(async {
        let store = Failing::new();
        let blob = Blob::open_or_create(&store.connect(), key("image")).await.unwrap();
        let all: Vec<_> = (0..600).map(|group| (group, Change::Plain(noise(group, GROUP as usize)))).collect();
        let genesis = newest(&blob).await;
        blob.push(&genesis, 600 * GROUP, changes(all), &pushing(1)).await.unwrap();
        blob.write(5 * GROUP + 9, bytes(noise(77, 5000)), "", &UploadOptions::default()).await.unwrap();
        let version = newest(&blob).await;
        // Every third group, back and forth, with one mixed group, a duplicate, and one beyond the
        // end.
        let mut order: Vec<u64> = (0..100u64).map(|at| if at % 2 == 0 { 3 * at } else { 599 - 3 * at }).collect();
        order.extend([5, 0, 9999]);
        let arranged = blob.arrange(&order, &UploadOptions::default()).await.unwrap();
        assert_eq!((arranged.groups, arranged.moved), (101, 101));
        let head = newest(&blob).await;
        assert_eq!((arranged.seq, head.is_version()), (head.seq, false));
        let profile = blob.profile().await.unwrap().unwrap();
        assert_eq!(profile, Profile { seq: head.seq, groups: order[..101].to_vec() });
        let mut cost = Vec::new();
        for record in [&version, &head] {
            let other = Blob::open(&store.connect(), key("image")).await.unwrap();
            let before = store.reads.load(Ordering::SeqCst);
            let groups = other.groups(record, &profile.groups).await;
            for (number, group) in profile.groups.iter().zip(&groups) {
                let mut expected = noise(*number, GROUP as usize).to_vec();
                if *number == 5 {
                    expected[9..5009].copy_from_slice(&noise(77, 5000));
                }
                assert!(data(group.as_ref().unwrap(), GROUP as usize) == expected, "group {number}");
            }
            cost.push(store.reads.load(Ordering::SeqCst) - before);
        }
        assert!(cost[1] <= 4 && cost[0] > 60, "requests before and after: {cost:?}");
        assert!(image(&blob, &head).await == image(&blob, &version).await);
    });
}

#[test]
fn arranging_leaves_alone_what_others_change() {
    run(async {
        let store = Failing::new();
        let blob = Blob::open_or_create(&store.connect(), key("image")).await.unwrap();
        let model = [text(0), text(1), text(2), text(3)].concat();
        blob.put(bytes(model.clone()), "", &UploadOptions::default()).await.unwrap();
        blob.arrange(&[3, 1], &UploadOptions::default()).await.unwrap();
        let other = Blob::open(&store.connect(), key("image")).await.unwrap();
        other.write(GROUP, bytes(noise(3, 10)), "", &UploadOptions::default()).await.unwrap();
        let arranged = blob.arrange(&[2, 1, 0], &UploadOptions::default()).await.unwrap();
        assert_eq!(arranged.moved, 3);
        let head = newest(&blob).await;
        let mut expected = model;
        expected[GROUP as usize..GROUP as usize + 10].copy_from_slice(&noise(3, 10));
        assert!(image(&blob, &head).await == expected);
        let whole: Vec<u8> =
            blob.stream(&head, 0, u64::MAX).map(|part| part.unwrap()).collect::<Vec<_>>().await.concat();
        assert!(whole == expected);
    });
}

/// With the bug planted, the rival's version is lost: the test above would see it.
#[cfg(feature = "canaries")]
#[test]
fn a_push_over_a_newer_version_is_caught() {
    run(async {
        blob::canary::plant(Some("push-over-newer-version"));
        let (pushed, read) = rival(&Failing::new()).await;
        blob::canary::plant(None);
        assert!(pushed.is_ok() || read != noise(1, 9000), "HARNESS: push-over-newer-version is not caught");
        println!("push-over-newer-version: caught by a concurrent version of another client");
    });
}
