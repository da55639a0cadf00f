//! The sampler: once a second it reads the counters of the pool, its objects, the jobs and the
//! machine, and records their increments. Owns the store of the history and the sampler's thread.
//!
//! 1. At each full second of the wall clock the thread reads counters: loads, and a lock on an
//!    object's codec counts that no client waits for.
//! 2. It records the differences since the previous second.
//!    Those of a late tick, or of a second one within a second, add to the recorded ones.
//! 3. Every 10 s it commits, which may wait for the disk. Ticks that are missed meanwhile count as
//!    late.
//!
//! Requests lock the store while they read frames, and the thread waits for them: neither waits for
//! a client of the pool, nor does a client wait for them. A fault of the store is one line in the
//! log.

mod machine;
mod objects;
mod pool;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use analytics::{Dataset, Key, Sample, Store};
use env::{FilePlace, HostPlace};
use parking_lot::{Condvar, Mutex, MutexGuard};
use surface::{DeviceId, Error, ErrorKind, Result};

use self::machine::Machine;
use self::objects::Objects;
use self::pool::PoolCounters;
use crate::service::Service;

/// Database file in the directory of the pool.
pub const FILE_NAME: &str = "analytics.redb";
/// Seconds between two commits.
const COMMIT_EVERY_S: u64 = 10;
/// Default size limit of the history.
pub const BUDGET_BYTES: u64 = 128 << 20;
/// A smaller history has no space for two hours of a busy pool.
pub const BUDGET_BYTES_MIN: u64 = 16 << 20;
/// The history uses at most this fraction of the pool's capacity, unless that is less than
/// [`BUDGET_BYTES_MIN`].
const CAPACITY_PARTS: u64 = 100;

/// Maximum number of marks that wait for the store: those of a few seconds.
const MARKS_WAITING_MAX: usize = 1024;

/// Parses the option `--analytics`: a size, or `off`.
///
/// # Errors
/// `Invalid` for anything else, and for less than [`BUDGET_BYTES_MIN`].
pub fn parse_budget(text: &str) -> Result<Option<u64>> {
    if text == "off" {
        return Ok(None);
    }
    match units::parse_size(text) {
        Ok(bytes) if bytes >= BUDGET_BYTES_MIN => Ok(Some(bytes)),
        _ => {
            let least = units::format_size(BUDGET_BYTES_MIN);
            let text = format!("invalid --analytics '{text}': use a size of at least {least}, such as 128M, or off");
            Err(Error::new(ErrorKind::Invalid, text))
        }
    }
}

/// Returns the store of the pool in that directory, without opening it.
pub(crate) fn store_of(pool: &Path, budget_bytes: u64) -> Store {
    Store::new(Box::new(HostPlace::new(&pool.join(FILE_NAME))), budget_bytes)
}

/// Deletes the history of the pool in that directory.
///
/// # Errors
/// When the file cannot be deleted.
pub fn remove(pool: &Path) -> Result<()> {
    let place = HostPlace::new(&pool.join(FILE_NAME));
    place.remove().map_err(|error| Error::from_io(format!("cannot delete {}", place.name()), error))
}

/// Returns the increment of a counter since the last read; after a reset, its whole value.
fn grown(before: &mut u64, now: u64) -> u64 {
    let amount = if now >= *before { now - *before } else { now };
    *before = now;
    amount
}

/// A list of samples that leaves out zeros.
#[derive(Default)]
struct Row(Vec<Sample>);

impl Row {
    fn put(&mut self, dataset: Dataset, labels: &[&str], object: u64, value: u64) {
        if value > 0 {
            self.0.push(Sample { key: Key::new(dataset, labels, object), value });
        }
    }
}

#[derive(Default)]
struct Stopping {
    is_wanted: Mutex<bool>,
    changed: Condvar,
}

/// All counts of the last sample. A sampler that follows another one needs them: else it would
/// record everything since the start of the server once more.
pub(crate) struct Counters {
    objects: Objects,
    pool: PoolCounters,
    machine: Machine,
    jobs: BTreeMap<u64, String>,
    /// Samples so far.
    ticks: u64,
}

impl Counters {
    /// Zero counts, and those of the machine.
    pub(crate) fn new(service: &Service) -> Self {
        let machine = Machine::new(&service.facts().data);
        Self { objects: Objects::default(), pool: PoolCounters::default(), machine, jobs: BTreeMap::new(), ticks: 0 }
    }
}

/// See the module's text.
pub struct Sampler {
    store: Mutex<Store>,
    /// Marks on their way to the store, so that operations do not wait for a commit.
    marks: Mutex<Vec<(u64, String)>>,
    stopping: Stopping,
    thread: Mutex<Option<JoinHandle<Counters>>>,
}

impl Sampler {
    /// Begins to sample a served pool, with a store of at most `budget_bytes`. `counters`: those of
    /// the sampler before.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(service: &Arc<Service>, budget_bytes: u64, counters: Counters) -> Result<Arc<Self>> {
        let most = (service.pool().figures().capacity_bytes / CAPACITY_PARTS).max(BUDGET_BYTES_MIN);
        let store = Mutex::new(store_of(&service.facts().pool, budget_bytes.min(most)));
        let sampler =
            Arc::new(Self { store, marks: Mutex::default(), stopping: Stopping::default(), thread: Mutex::default() });
        let (of_thread, service) = (Arc::clone(&sampler), Arc::clone(service));
        let body = move || of_thread.run(&service, counters);
        let thread = std::thread::Builder::new().name("analytics".to_owned()).spawn(body);
        let thread = thread.map_err(|error| Error::from_io("cannot start the thread of the history", error))?;
        *sampler.thread.lock() = Some(thread);
        Ok(sampler)
    }

    /// Ends the thread, and returns its counts. All recorded seconds are then durable, if there is
    /// space.
    pub(crate) fn stop(&self) -> Option<Counters> {
        *self.stopping.is_wanted.lock() = true;
        self.stopping.changed.notify_all();
        let thread = self.thread.lock().take();
        // It ends by itself: a panic ends the process.
        thread.and_then(|thread| thread.join().ok())
    }

    /// Passes the store to `work`.
    pub(crate) fn with_store<T>(&self, work: impl FnOnce(&mut Store) -> T) -> T {
        let mut store = self.store.lock();
        self.take_marks(&mut store);
        work(&mut store)
    }

    /// Adds a mark at the current time.
    pub(crate) fn mark(&self, text: &str) {
        let mut marks = self.marks.lock();
        if marks.len() < MARKS_WAITING_MAX {
            marks.push((host::unix_s(), text.to_owned()));
        }
    }

    fn take_marks(&self, store: &mut Store) {
        let marks = std::mem::take(&mut *self.marks.lock());
        marks.into_iter().for_each(|(unix_s, text)| store.mark(unix_s, &text));
    }

    /// Waits for the next full second. `false`: the sampler ends.
    fn wait(&self) -> bool {
        let (_, past_ns) = env::wall_time();
        let rest = Duration::from_nanos(1_000_000_000 - u64::from(past_ns.min(999_999_999)));
        let mut is_wanted = self.stopping.is_wanted.lock();
        if !*is_wanted {
            let _ = self.stopping.changed.wait_for(&mut is_wanted, rest);
        }
        !*is_wanted
    }

    fn run(&self, service: &Arc<Service>, mut counters: Counters) -> Counters {
        let (mut said, mut replaced) = (None, None);
        {
            let mut store = self.store.lock();
            store.open(host::unix_s());
            store.mark(host::unix_s(), "server started");
        }
        let mut committed = host::unix_s();
        while self.wait() {
            let now = host::unix_s();
            let mut store = self.record(service, &mut counters, now, false);
            // The clock may be set back.
            if now.abs_diff(committed) >= COMMIT_EVERY_S {
                committed = now;
                store.commit(now);
                let fault = store.health().fault.clone();
                if fault != said {
                    match &fault {
                        Some(fault) => log::warn!("the history of the pool is currently not stored: {fault}"),
                        None => log::info!("the history of the pool is stored again"),
                    }
                    said = fault;
                }
                let why = store.health().set_aside_why.clone();
                if why != replaced {
                    let why_words = why.as_deref().unwrap_or_default();
                    log::warn!(
                        "the history of the pool restarts; the old file is kept under another name: \
                     {why_words}"
                    );
                    replaced = why;
                }
            }
        }
        // The part of a second since the last tick.
        let now = host::unix_s();
        let mut store = self.record(service, &mut counters, now, true);
        store.mark(now, "server stopped");
        store.commit(now);
        drop(store);
        counters
    }

    /// Records the increments of all counters since the last time, and returns the locked store.
    fn record(
        &self,
        service: &Arc<Service>,
        counters: &mut Counters,
        now: u64,
        is_last: bool,
    ) -> MutexGuard<'_, Store> {
        let mut row = Row::default();
        counters.objects.sample(service, counters.ticks, is_last, &mut row);
        counters.pool.sample(service, counters.ticks, &mut row);
        counters.pool.sample_disk_bytes(&mut row);
        counters.machine.sample(&mut row);
        counters.ticks += 1;
        let marks = sample_jobs(service, &mut counters.jobs, &mut row);
        let mut store = self.store.lock();
        self.take_marks(&mut store);
        marks.iter().for_each(|text| store.mark(now, text));
        store.record(now, &row.0, &|object| name_of(service, object));
        store
    }
}

fn name_of(service: &Service, object: u64) -> Option<String> {
    service.pool().volume_of(DeviceId(object)).ok().map(|volume| volume.name())
}

/// Samples jobs under way by kind, and marks those that began or ended.
fn sample_jobs(service: &Service, known: &mut BTreeMap<u64, String>, row: &mut Row) -> Vec<String> {
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    let (mut now, mut marks) = (BTreeMap::new(), Vec::new());
    for job in service.jobs().under_way() {
        let kind = job.kind.name();
        *kinds.entry(kind.to_owned()).or_default() += 1;
        let words = job.target.as_ref().map_or_else(|| kind.to_owned(), |target| format!("{kind} of '{target}'"));
        if !known.contains_key(&job.id) {
            marks.push(format!("{words} started"));
        }
        now.insert(job.id, words);
    }
    let ended = known.iter().filter(|(id, _)| !now.contains_key(id));
    marks.extend(ended.map(|(_, words)| format!("{words} ended")));
    *known = now;
    kinds.iter().for_each(|(kind, count)| row.put(Dataset::JOBS, &[kind], 0, *count));
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_a_size_or_off() {
        assert_eq!(parse_budget("off").unwrap(), None);
        assert_eq!(parse_budget("64M").unwrap(), Some(64 << 20));
        for wrong in ["", "on", "1M", "-1", "16"] {
            let said = parse_budget(wrong).unwrap_err().to_string();
            assert!(said.contains("at least 16 MiB"), "{said}");
        }
    }

    #[test]
    fn a_counter_that_begins_again_counts_from_zero() {
        let mut before = 0;
        assert_eq!([7, 7, 9, 2].map(|now| grown(&mut before, now)), [7, 0, 2, 2]);
    }
}
