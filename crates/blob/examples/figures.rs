//! Measures figures that do not depend on a disk or a link: requests, bytes and round trips of the
//! protocol, on a store in memory whose requests take a fixed time. Prints one JSON object per
//! figure; `tools/bench-blobs` runs it. `--quick` makes it smaller.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "it measures, and prints")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use blob::{
    Action, At, Blob, BlobKey, Connection, ExpireRule, Extent, Frame, GcOptions, Op, OpId, PackRef, Piece, Place, Run,
    Session, UploadOptions, bytes, expire, frame_checksum, gc,
};
use codec::CodecId;
use futures_util::future::join_all;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{ObjectStore, ObjectStoreExt};
use testkit::noise;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Round trip of a store in the same region as its clients.
const ROUND_TRIP: Duration = Duration::from_millis(60);

fn slow(store: &Arc<InMemory>) -> Connection {
    let config = ThrottleConfig {
        wait_put_per_call: ROUND_TRIP,
        wait_get_per_call: ROUND_TRIP,
        wait_delete_per_call: ROUND_TRIP,
        wait_list_per_call: ROUND_TRIP,
        ..ThrottleConfig::default()
    };
    let slow: Arc<dyn ObjectStore> = Arc::new(ThrottledStore::new(store.clone(), config));
    Connection::new(slow.clone(), slow)
}

fn fast(store: &Arc<InMemory>) -> Connection {
    Connection::new(store.clone(), store.clone())
}

fn key() -> BlobKey {
    BlobKey::new(Path::from("k"))
}

/// G7: commits per second of many appenders, each a client of its own; nothing lost; requests.
async fn commits(appenders: u64, each: u64) -> Result<()> {
    let store = Arc::new(InMemory::new());
    Blob::open_or_create(&fast(&store), key()).await?.append(bytes("begin"), "", &UploadOptions::default()).await?;
    let began = Instant::now();
    let clients = (0..appenders).map(|number| {
        let connection = slow(&store);
        tokio::spawn(async move {
            let began = Instant::now();
            let blob = Blob::open(&connection, key()).await?;
            let opened = connection.requests().all();
            let mut done = Vec::new();
            for turn in 0..each {
                let data = noise(number << 32 | turn, 64 << 10);
                done.push(blob.append(bytes(data), "", &UploadOptions::default()).await?);
            }
            Ok::<_, blob::Error>((done, connection.requests().all() - opened, began.elapsed()))
        })
    });
    let mut done = Vec::new();
    let (mut requests, mut times) = (0, Vec::new());
    for client in join_all(clients).await {
        let (committed, asked, took) = client??;
        done.extend(committed);
        requests += asked;
        times.push(took.as_secs_f64());
    }
    let seconds = began.elapsed().as_secs_f64();
    let blob = Blob::open(&fast(&store), key()).await?;
    let size = blob.version(&At::Newest).await?.size;
    let mut places: Vec<u64> = done.iter().map(|committed| committed.at).collect();
    places.sort_unstable();
    places.dedup();
    let count = appenders * each;
    let lost = count - places.len() as u64 + u64::from(size != 5 + count * (64 << 10));
    times.sort_by(f64::total_cmp);
    let rate = count as f64 / seconds * ROUND_TRIP.as_secs_f64();
    let worst = times[times.len() - 1] / times[times.len() / 2];
    // The pack is one of the requests.
    let per_commit = requests as f64 / count as f64 - 1.0;
    println!(
        r#"{{"figure":"G7","appenders":{appenders},"commits":{count},"lost":{lost},"of_one_per_round_trip":{rate:.3},"worst_of_median":{worst:.2},"requests_per_commit":{per_commit:.2}}}"#
    );
    Ok(())
}

/// G7: appends of one process that share a record, compared with sequential ones.
async fn batching(count: u64) -> Result<()> {
    let store = Arc::new(InMemory::new());
    let blob = Arc::new(Blob::open_or_create(&slow(&store), key()).await?);
    let append = |number: u64| {
        let blob = blob.clone();
        let options = UploadOptions::default();
        async move { blob.append(bytes(format!("line {number}\n")), "", &options).await.map(|_| ()) }
    };
    let began = Instant::now();
    for number in 0..count / 32 {
        append(number).await?;
    }
    let alone = began.elapsed().as_secs_f64() / (count / 32) as f64;
    let began = Instant::now();
    for done in join_all((0..count).map(append)).await {
        done?;
    }
    let together = began.elapsed().as_secs_f64() / count as f64;
    println!(r#"{{"figure":"G7","batching":{:.1}}}"#, alone / together);
    Ok(())
}

/// G8: the overhead of a commit of 1 MiB into a sparse blob.
async fn metadata(size: u64, commits: u64) -> Result<()> {
    let store = Arc::new(InMemory::new());
    let connection = fast(&store);
    let blob = Blob::open_or_create(&connection, key()).await?;
    blob.write(size - 1, bytes("x"), "", &UploadOptions::default()).await?;
    let requests = connection.requests().clone();
    let (mut worst_bytes, mut worst_puts, mut all_bytes) = (0, 0, 0);
    for turn in 0..commits {
        let before = (requests.bytes_up.load(Ordering::Relaxed), requests.put.load(Ordering::Relaxed));
        let at = (turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (size >> 20)) << 20;
        blob.write(at, bytes(noise(turn, 1 << 20)), "", &UploadOptions::default()).await?;
        let sent = requests.bytes_up.load(Ordering::Relaxed) - before.0 - (1 << 20);
        let puts = requests.put.load(Ordering::Relaxed) - before.1;
        worst_bytes = worst_bytes.max(sent);
        worst_puts = worst_puts.max(puts);
        all_bytes += sent;
    }
    let mean = all_bytes / commits;
    println!(
        r#"{{"figure":"G8","size_bytes":{size},"commits":{commits},"mean_bytes":{mean},"worst_bytes":{worst_bytes},"worst_puts":{worst_puts}}}"#
    );
    Ok(())
}

/// G6: bytes and requests of random reads of 4 KiB, cold and with the version's nodes in memory.
async fn random_reads(what: &str, data: Vec<u8>, reads: u64) -> Result<()> {
    let store = Arc::new(InMemory::new());
    let size = data.len() as u64;
    let options = UploadOptions { pack_bytes: 64 << 20, memory_bytes: 256 << 20, ..UploadOptions::default() };
    Blob::open_or_create(&fast(&store), key()).await?.put(bytes(data), "", &options).await?;
    let (mut cold_requests, mut cold_bytes) = (0, 0);
    let (mut warm_requests, mut warm_bytes) = (0, 0);
    let connection = fast(&store);
    let requests = connection.requests().clone();
    let blob = Blob::open(&connection, key()).await?;
    let version = blob.version(&At::Newest).await?;
    for turn in 0..reads {
        let before = (requests.all(), requests.bytes_down.load(Ordering::Relaxed));
        let at = ((turn + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) % (size - 4096)) & !4095;
        blob.read(&version, at, at + 4096).await?;
        let asked = requests.all() - before.0;
        let came = requests.bytes_down.load(Ordering::Relaxed) - before.1;
        if turn == 0 {
            (cold_requests, cold_bytes) = (requests.all(), requests.bytes_down.load(Ordering::Relaxed));
        } else {
            (warm_requests, warm_bytes) = (warm_requests + asked, warm_bytes + came);
        }
    }
    let count = (reads - 1) as f64;
    println!(
        r#"{{"figure":"G6","data":"{what}","mean_bytes":{:.0},"mean_requests":{:.3},"cold_requests":{cold_requests},"cold_bytes":{cold_bytes}}}"#,
        warm_bytes as f64 / count,
        warm_requests as f64 / count,
    );
    Ok(())
}

/// An append of one frame in a pack of its own, made by hand.
async fn small_pack(blob: &Blob, store: &InMemory, number: u64) -> Result<()> {
    let born = blob.committer().head().await.seq;
    let pack = PackRef { origin: 0, born, session: Session(u128::from(number) + 1), number: 0 };
    let data = number.to_le_bytes();
    store.put(&key().pack(blob.log().inc(), &pack), data.to_vec().into()).await?;
    let crc = frame_checksum(CodecId::RAW, 8, &data);
    let frame = Frame { stored: 8, codec: CodecId::RAW, crc };
    let place = Place::Pack { pack, offset: 0 };
    let extent = Extent { start: 0, len: 8, skip: 0, tail: 8, place, frames: vec![frame] };
    let run = Run { pieces: vec![Piece::Extent(extent)], len: 8 };
    let id = OpId(u128::from(number) + 1);
    let op = Op { born, raw: 8, stored: 8, ..Op::without_data(id, Action::Append(run)) };
    blob.committer().commit(op).await?;
    Ok(())
}

/// G9: opening the newest of many versions. G13: requests of a collection.
async fn many_versions(count: u64) -> Result<()> {
    let store = Arc::new(InMemory::new());
    let connection = fast(&store);
    let blob = Blob::open_or_create(&connection, key()).await?;
    for number in 0..count {
        small_pack(&blob, &store, number).await?;
    }
    let cold = slow(&store);
    let began = Instant::now();
    let opened = Blob::open(&cold, key()).await?;
    let ms = began.elapsed().as_secs_f64() * 1e3;
    let newest = opened.version(&At::Newest).await?.seq;
    let requests = cold.requests().all();
    println!(
        r#"{{"figure":"G9","versions":{newest},"requests":{requests},"ms":{ms:.0},"round_trip_ms":{}}}"#,
        ROUND_TRIP.as_millis()
    );
    // One in a hundred dies.
    blob.write(0, bytes(vec![7; 8 * (count / 100) as usize]), "", &UploadOptions::default()).await?;
    let keep = ExpireRule { keep_last: Some(1), ..ExpireRule::default() };
    let options = GcOptions {
        upload_max: Duration::ZERO,
        grace: Duration::ZERO,
        requests_per_s: u32::MAX,
        ..GcOptions::default()
    };
    for (number, what) in ["first", "second", "third"].into_iter().enumerate() {
        if number > 0 {
            for turn in 0..16 {
                small_pack(&blob, &store, count + number as u64 * 100 + turn).await?;
            }
            blob.write(8 * number as u64, bytes(noise(1, 8 << 10)), "", &UploadOptions::default()).await?;
        }
        expire(blob.committer(), &keep).await?;
        // The version before each record is dead: the burials take several runs.
        let mut report = blob::GcReport::default();
        let (mut lists, mut gets, mut deleted) = (0, 0, 0);
        loop {
            let requests = connection.requests().clone();
            let before = (requests.list.load(Ordering::Relaxed), requests.get.load(Ordering::Relaxed));
            let run = gc(blob.committer(), &options).await?;
            lists += requests.list.load(Ordering::Relaxed) - before.0;
            gets += requests.get.load(Ordering::Relaxed) - before.1;
            deleted += run.deleted;
            report.packs = report.packs.max(run.packs);
            report.full |= run.full;
            if run.buried < 1000 {
                break;
            }
        }
        println!(
            r#"{{"figure":"G13","run":"{what}","full":{},"packs_looked_at":{},"deleted":{deleted},"lists":{lists},"reads":{gets}}}"#,
            report.full, report.packs
        );
    }
    let version = blob.version(&At::Newest).await?;
    blob.read(&version, 0, version.size.min(1 << 20)).await?;
    Ok(())
}

fn main() -> Result<()> {
    let quick = std::env::args().any(|argument| argument == "--quick" || argument == "--test");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        for appenders in if quick { vec![1, 4] } else { vec![1, 4, 16, 64] } {
            commits(appenders, if quick { 3 } else { (256 / appenders).max(8) }).await?;
        }
        batching(if quick { 64 } else { 1024 }).await?;
        for size in [10 << 30, 10 << 40] {
            metadata(size, if quick { 20 } else { 300 }).await?;
        }
        let (random, reads) = if quick { (8 << 20, 20) } else { (256 << 20, 200) };
        random_reads("random", noise(5, random), reads).await?;
        if let Some(text) = std::env::args().skip_while(|argument| argument != "--text").nth(1) {
            let mut text = std::fs::read(text)?;
            text.truncate(256 << 20);
            random_reads("text", text, reads).await?;
        }
        many_versions(if quick { 300 } else { 100_000 }).await
    })
}
