//! Clients on a lying store: the real code, in schedules chosen by a seed. Time is simulated, so
//! that a day passes in a millisecond and a run is repeatable. After each run, the oracle replays
//! the log.
//!
//! `SHALE_SCHEDULES` sets their number, `SHALE_SEED` the first seed (the soak takes a new one, and 200
//! schedules for each of its seconds).
#![allow(clippy::panic)]

mod client;
mod history;

use std::sync::Arc;
use std::time::Duration;

use crate::lying_store::LyingStore;
use blob::{Backend, BlobKey, Life, Log};
use client::Client;
use history::History;
use object_store::path::Path;
use sim::{Rng, SimClock, SimEntropy};

/// Schedules in the gate, of both kinds together.
const SCHEDULES: u64 = 20_000;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|number| number.parse().ok()).unwrap_or(default)
}

#[derive(Debug, Default)]
struct Ran {
    records: u64,
    requests: u64,
}

/// Runs one schedule, and returns the fault that it found.
fn schedule(seed: u64, collects: bool) -> Result<Ran, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let mut rng = Rng::new(seed);
        let faults = *rng.pick(&[0, 5, 15, 30]);
        let store = LyingStore::new(rng.next_u64(), faults);
        let backend = Backend {
            store: Arc::new(store.clone()),
            clock: Arc::new(SimClock::default()),
            entropy: Arc::new(SimEntropy::new(rng.next_u64())),
        };
        let key = BlobKey::new(Path::from("a/blob"));
        let history = Arc::new(History::default());
        let clients = rng.between(2, 3);
        let tasks: Vec<_> = (0..clients)
            .map(|_| {
                let (backend, store, key, history) = (backend.clone(), store.clone(), key.clone(), history.clone());
                let (rng, ops) = (rng.fork(), rng.between(1, if collects { 4 } else { 3 }));
                tokio::spawn(Client { backend, store, key, history, rng, ops, collects }.run())
            })
            .collect();
        for task in tasks {
            task.await.map_err(|error| format!("a client: {error}"))?;
        }
        // All late requests arrive.
        tokio::time::sleep(Duration::from_secs(1_000)).await;
        let life = store.truth(&key.life(1)).ok_or("no life")?;
        let Ok(Life::Born(inc)) = Life::decode(&life) else { return Err("the first life is no birth".into()) };
        let records = history.check(&store, &key, inc)?;
        // A client that opens the blob now finds the newest record, unless the store lies about it.
        if faults == 0 {
            let (_, head) = Log::open(backend, key).await.map_err(|error| error.to_string())?;
            if head.seq != records {
                return Err(format!("opened at record {} of {records}", head.seq));
            }
        }
        Ok(Ran { records, requests: store.requests() })
    })
}

/// Runs schedules, and fails with the seed of the first faulty one.
fn campaign(what: &str, schedules: u64, collects: bool) {
    let first = number("SHALE_SEED", 1);
    let (mut records, mut requests) = (0, 0);
    for seed in first..first + schedules {
        match schedule(seed, collects) {
            Ok(ran) => (records, requests) = (records + ran.records, requests + ran.requests),
            Err(why) => panic!("HARNESS: {what}, seed {seed}: {why}"),
        }
    }
    println!("{what}: {schedules} schedules from seed {first}, {records} records, {requests} requests");
    assert!(records > schedules, "clients that commit nothing test nothing");
}

#[test]
fn writers_on_a_store_that_lies() {
    campaign("writers", number("SHALE_SCHEDULES", SCHEDULES) / 2, false);
}

#[test]
fn writers_and_collectors_on_a_store_that_lies() {
    campaign("writers and collectors", number("SHALE_SCHEDULES", SCHEDULES) / 2, true);
}

#[test]
fn a_schedule_repeats_itself() {
    let run = || schedule(7, true).map(|ran| (ran.records, ran.requests));
    assert_eq!(run(), run());
}

#[cfg(feature = "canaries")]
mod canaries {
    use super::schedule;

    /// Schedules until a planted bug must show: the rarest takes a tenth of it.
    const BUDGET: u64 = 40_000;

    fn caught(name: &'static str, collects: bool, by: &[&str]) {
        blob::canary::plant(Some(name));
        let found = (1..=BUDGET).find_map(|seed| schedule(seed, collects).err().map(|why| (seed, why)));
        blob::canary::plant(None);
        let Some((seed, why)) = found else { panic!("HARNESS: {name} is not caught in {BUDGET} schedules") };
        assert!(by.iter().any(|by| why.contains(by)), "HARNESS: {name} is caught by something else: {why}");
        println!("{name}: caught at seed {seed}: {why}");
    }

    const HOLE: &str = "is not there";
    const TWICE: &str = "is in two records";

    #[test]
    fn a_conflict_is_taken_for_a_loss() {
        caught("412-taken-as-loss", false, &[TWICE]);
    }

    #[test]
    fn a_new_nonce_makes_the_old_one_forgotten() {
        caught("new-nonce-forgets-old", false, &[TWICE]);
    }

    #[test]
    fn a_process_that_resumes_does_not_look_behind() {
        caught("resume-gallops", false, &[TWICE]);
    }

    #[test]
    fn a_rewrite_covers_a_newer_write() {
        caught("rewrite-over-newer-write", false, &["that are not the", "a piece ends beyond"]);
    }

    #[test]
    fn a_fence_is_not_checked() {
        caught("fence-not-checked", true, &[HOLE]);
    }

    #[test]
    fn a_fence_is_not_inherited() {
        caught("fence-not-inherited", true, &["the fence falls"]);
    }

    #[test]
    fn an_expiry_is_not_inherited() {
        caught("expired-not-inherited", true, &[HOLE, "and a tombstone"]);
    }

    #[test]
    fn an_expired_version_is_named() {
        caught("expired-version-named", true, &[HOLE, "and a tombstone"]);
    }

    #[test]
    fn a_collector_does_not_fence() {
        caught("gc-without-fence", true, &[HOLE]);
    }

    #[test]
    fn a_collector_does_not_look_again() {
        caught("gc-without-second-look", true, &[HOLE]);
    }

    #[test]
    fn a_record_is_deleted() {
        caught("record-deleted", true, &[HOLE]);
    }
}
