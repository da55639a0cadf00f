//! Clones, clones of clones, removals, pins and collectors, in the real code on a lying store:
//! everything that a live blob names exists, and a clone reads like its source.
#![allow(clippy::panic)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::lying_store::LyingStore;
use blob::{
    Action, Backend, BlobKey, BlobRef, CommitOptions, Committer, Error, ExpireRule, Extent, Frame, GcOptions, Inc,
    Life, Log, Op, OpId, PackRef, Piece, Place, Record, Run, Session, clone_blob, drop_dead_pins, expire, gc, remove,
    sweep_removed,
};
use bytes::Bytes;
use codec::Workspace;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use parking_lot::Mutex;
use sim::{Rng, SimClock, SimEntropy};

/// Schedules in the gate.
const SCHEDULES: u64 = 3_000;
/// Times that a client tries one thing.
const TRIES_MAX: usize = 4;

fn key(name: &str) -> BlobKey {
    BlobKey::new(Path::from(name))
}

/// Contents put into any blob: each version of a clone must read as one of these.
type Contents = Arc<Mutex<BTreeSet<Vec<u8>>>>;

struct Actor {
    backend: Backend,
    rng: Rng,
    contents: Contents,
}

impl Actor {
    async fn pause(&mut self) {
        tokio::time::sleep(Duration::from_millis(self.rng.below(1_500))).await;
    }

    async fn open(&self, name: &str) -> Option<Committer> {
        let (log, head) = Log::open(self.backend.clone(), key(name)).await.ok()?;
        Some(Committer::new(log, head, CommitOptions::default()))
    }

    async fn put(&mut self, committer: &Committer) {
        let mut data = vec![0; self.rng.between(1, 24) as usize];
        self.rng.fill(&mut data);
        self.contents.lock().insert(data.clone());
        let born = committer.head().await.seq;
        let pack = PackRef { origin: 0, born, session: Session(u128::from(self.rng.next_u64())), number: 0 };
        let path = committer.log().key().pack(committer.log().inc(), &pack);
        while self.backend.store.put(&path, Bytes::copy_from_slice(&data).into()).await.is_err() {}
        let len = data.len() as u32;
        let frame = Frame { stored: len, codec: codec::CodecId::RAW, crc: 0 };
        let place = Place::Pack { pack, offset: 0 };
        let extent = Extent { start: 0, len: u64::from(len), skip: 0, tail: len, place, frames: vec![frame] };
        let run = Run { pieces: vec![Piece::Extent(extent)], len: u64::from(len) };
        let id = OpId(u128::from(self.rng.next_u64()));
        let op = Op { id, born, raw: 0, stored: 0, message: String::new(), action: Action::Put(run) };
        // Fenced, removed, unknown: the oracle checks the result.
        let _ = committer.commit(op).await;
    }

    async fn tidy(&mut self, committer: &Committer) {
        let rule = ExpireRule { keep_last: Some(1), ..ExpireRule::default() };
        let _ = expire(committer, &rule).await;
        let backend = self.backend.clone();
        let find = move |holder: &str| Some((backend.clone(), key(holder)));
        let _ = drop_dead_pins(committer, &find).await;
        let _ = gc(committer, &GcOptions { upload_max: Duration::ZERO, grace: Duration::ZERO, ..GcOptions::default() })
            .await;
    }

    /// Puts, expires and collects, and may remove the blob in the end.
    async fn own(mut self, name: &'static str) {
        for _ in 0..4 {
            if let Some(committer) = self.open(name).await {
                if self.rng.coin() {
                    self.put(&committer).await;
                }
                self.tidy(&committer).await;
                if self.rng.percent(25) {
                    let _ = remove(&committer).await;
                }
            }
            let backend = self.backend.clone();
            let find = move |holder: &str| Some((backend.clone(), key(holder)));
            let _ = sweep_removed(&self.backend, &key(name), &find).await;
            self.pause().await;
        }
    }

    /// Clones a blob, including its packs of other blobs.
    async fn clone(mut self, from: &'static str, to: &'static str) {
        for _ in 0..TRIES_MAX {
            self.pause().await;
            match self.clone_once(from, to).await {
                Ok(()) => return,
                Err(_) => continue,
            }
        }
    }

    async fn clone_once(&mut self, from: &'static str, to: &'static str) -> Result<(), Error> {
        let (log, head) = Log::open(self.backend.clone(), key(from)).await?;
        let mut origins = Vec::new();
        for origin in &head.origins {
            let opened = Log::open_incarnation(self.backend.clone(), key(&origin.location), origin.inc).await?;
            origins.push((Committer::new(opened.0, opened.1, CommitOptions::default()), origin.location.clone()));
        }
        let version = head.seq;
        let source = Committer::new(log, head, CommitOptions::default());
        let places: Vec<BlobRef<'_>> =
            origins.iter().map(|(committer, location)| BlobRef { committer, location }).collect();
        let source = BlobRef { committer: &source, location: from };
        let options = CommitOptions::default();
        clone_blob(source, version, &places, self.backend.clone(), key(to), to, options).await.map(drop)
    }
}

/// Returns the newest record of a live blob, from the true state.
fn head(store: &LyingStore, name: &str) -> Result<Option<Record>, String> {
    let mut newest = None;
    for number in 1.. {
        let Some(bytes) = store.truth(&key(name).life(number)) else { break };
        newest = Some(Life::decode(&bytes).map_err(|error| error.to_string())?);
    }
    let Some(Life::Born(inc)) = newest else { return Ok(None) };
    let mut head = None;
    for seq in 1.. {
        let Some(record) = record(store, name, inc, seq)? else { break };
        head = Some(record);
    }
    Ok(head.filter(|head| !head.closed))
}

fn record(store: &LyingStore, name: &str, inc: Inc, seq: u64) -> Result<Option<Record>, String> {
    let Some(bytes) = store.truth(&key(name).record(inc, seq)) else { return Ok(None) };
    Record::decode(&bytes, &mut Workspace::new()).map(Some).map_err(|error| error.to_string())
}

fn check(store: &LyingStore, name: &str, contents: &Contents) -> Result<u64, String> {
    let Some(head) = head(store, name)? else { return Ok(0) };
    for seq in head.live() {
        let record = record(store, name, head.inc, seq)?.ok_or("a record is not there")?;
        let mut bytes = vec![0; record.size as usize];
        for piece in record.layout.pieces() {
            let Piece::Extent(extent) = piece else { return Err("a node".into()) };
            let Place::Pack { pack, .. } = &extent.place else { return Err("bytes in the record".into()) };
            let (key, inc) = match usize::from(pack.origin).checked_sub(1) {
                None => (key(name), head.inc),
                Some(origin) => (key(&head.origins[origin].location), head.origins[origin].inc),
            };
            let path = key.pack(inc, pack);
            let stored = store
                .truth(&path)
                .ok_or_else(|| format!("version {seq} of {name} is live, and {path} is not there"))?;
            bytes[extent.start as usize..][..stored.len()].copy_from_slice(&stored);
        }
        if !bytes.is_empty() && !contents.lock().contains(&bytes) {
            return Err(format!("version {seq} of {name} has content that no client put there"));
        }
    }
    Ok(u64::from(!head.origins.is_empty()) + u64::from(head.origins.len() > 1))
}

/// Runs one schedule; returns the depth of the clones that are live in the end.
fn schedule(seed: u64) -> Result<u64, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let mut rng = Rng::new(seed);
        let faults = *rng.pick(&[0, 5, 15]);
        let store = LyingStore::new(rng.next_u64(), faults);
        let backend = Backend {
            store: Arc::new(store.clone()),
            clock: Arc::new(SimClock::default()),
            entropy: Arc::new(SimEntropy::new(rng.next_u64())),
        };
        let contents = Contents::default();
        let mut actor = || Actor { backend: backend.clone(), rng: rng.fork(), contents: contents.clone() };
        let mut first = actor();
        let Ok((log, head)) = Log::open_or_create(backend.clone(), key("a")).await else { return Ok(0) };
        let committer = Committer::new(log, head, CommitOptions::default());
        first.put(&committer).await;
        let tasks = [
            tokio::spawn(actor().own("a")),
            tokio::spawn(actor().own("b")),
            tokio::spawn(actor().clone("a", "b")),
            tokio::spawn(actor().clone("a", "b")),
            tokio::spawn(actor().clone("b", "c")),
        ];
        for task in tasks {
            task.await.map_err(|error| format!("a client: {error}"))?;
        }
        tokio::time::sleep(Duration::from_secs(1_000)).await;
        let mut depth = 0;
        for name in ["a", "b", "c"] {
            depth = depth.max(check(&store, name, &contents)?);
        }
        Ok(depth)
    })
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|number| number.parse().ok()).unwrap_or(default)
}

#[test]
fn clones_and_removals_on_a_store_that_lies() {
    let (first, schedules) = (number("SHALE_SEED", 1), number("SHALE_SCHEDULES", SCHEDULES));
    let mut depths = [0u64; 3];
    for seed in first..first + schedules {
        match schedule(seed) {
            Ok(depth) => depths[depth as usize] += 1,
            Err(why) => panic!("HARNESS: clones and removals, seed {seed}: {why}"),
        }
    }
    println!("clones and removals: {schedules} schedules from seed {first}, by depth of clones that live: {depths:?}");
    assert!(depths[1] > 0 && depths[2] > 0, "no clone, or no clone of a clone, lived: {depths:?}");
}

#[cfg(feature = "canaries")]
fn caught(name: &'static str) {
    blob::canary::plant(Some(name));
    let found = (1..=SCHEDULES * 4).find_map(|seed| schedule(seed).err().map(|why| (seed, why)));
    blob::canary::plant(None);
    let Some((seed, why)) = found else { panic!("HARNESS: {name} is not caught") };
    assert!(why.contains("is not there"), "HARNESS: {name} is caught by something else: {why}");
    println!("{name}: caught at seed {seed}: {why}");
}

#[cfg(feature = "canaries")]
#[test]
fn a_clone_that_pins_nothing_is_caught() {
    caught("pin-after-birth");
}

#[cfg(feature = "canaries")]
#[test]
fn a_removal_that_ignores_pins_is_caught() {
    caught("rm-ignores-pins");
}
