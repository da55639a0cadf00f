//! The figures of each second, for the event streams of pages: rates from counters, computed once
//! for all streams, and only while there is a stream.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::PoolFigures;
use operations::{Caller, Reply, Request, Role, Who};
use parking_lot::Mutex;
use report::{JobReport, StatusReport, VolumeTraffic};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};
use surface::Result;

use crate::health;
use crate::service::Service;

/// Minimum time between two samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(900);
/// Maximum age of a sample as the base of a rate: before that no stream was open.
const SAMPLE_AGE_MAX: Duration = Duration::from_secs(10);
/// Intervals of reading health and sizes, which walks all volumes: after a change, and at rest.
const STATUS_EVERY: Duration = Duration::from_secs(5);
const STATUS_AT_REST_EVERY: Duration = Duration::from_secs(60);
/// Number of stored ticks for reconnecting clients, and of objects in each: about a megabyte.
const KEPT_TICKS: usize = 120;
const KEPT_OBJECTS: usize = 64;
/// Maximum number of objects in one stream.
pub(super) const OBJECTS_MAX: usize = 200;

/// Sums of an object or of the pool.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sums {
    operations: u64,
    read_bytes: u64,
    written_bytes: u64,
}

struct Sample {
    at: Instant,
    objects: BTreeMap<u64, Sums>,
    histogram: Vec<u64>,
    stored_by_codec: BTreeMap<String, u64>,
    codec_cpu_ns: u64,
    cpu_ns: u64,
    disk_written_bytes: u64,
}

/// Content of a stream for one second.
#[derive(Clone)]
struct Tick {
    unix_s: u64,
    generation: u64,
    pool: Value,
    objects: Arc<BTreeMap<u64, Value>>,
    jobs: Arc<Vec<JobReport>>,
    health: Value,
}

/// The part of a tick that is stored.
struct Kept {
    unix_s: u64,
    generation: u64,
    pool: Value,
    /// The first of the busy objects.
    objects: BTreeMap<u64, Value>,
}

/// State of the pool, with the time, the counters and the generation when it was read.
type Known = (Instant, Box<StatusReport>, PoolFigures, u64);

#[derive(Default)]
struct State {
    sample: Option<Sample>,
    status: Option<Known>,
    tick: Option<Tick>,
    kept: VecDeque<Kept>,
}

impl State {
    /// Returns the ticks after a second, and the generation at it; `None` if that tick is not
    /// stored.
    fn since(&self, second: u64) -> Option<(Vec<&Kept>, u64)> {
        let at = self.kept.iter().position(|kept| kept.unix_s == second)?;
        Some((self.kept.range(at + 1..).collect(), self.kept[at].generation))
    }

    fn keep(&mut self, kept: Kept) {
        // A tick within the same second replaces it.
        if self.kept.back().is_some_and(|last| last.unix_s >= kept.unix_s) {
            self.kept.pop_back();
        }
        self.kept.push_back(kept);
        while self.kept.len() > KEPT_TICKS {
            self.kept.pop_front();
        }
    }
}

/// See the module's text.
pub(super) struct Ticks {
    boot: String,
    state: Mutex<State>,
}

impl Sums {
    fn of(volume: &VolumeTraffic) -> Self {
        let mut sums = Self::default();
        // A share's reads and writes are counted at its door and again at its tree.
        for door in volume.doors.iter().filter(|door| door.door != crate::traffic::TREES) {
            for line in &door.operations {
                sums.operations += line.count;
                match line.operation.as_str() {
                    "read" => sums.read_bytes += line.bytes,
                    "write" => sums.written_bytes += line.bytes,
                    _ => {}
                }
            }
        }
        sums
    }

    fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
    }

    fn rates(self, before: Self, seconds: f64) -> Map<String, Value> {
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        Map::from_iter([
            ("ops_per_s".to_owned(), json!(rate(self.operations, before.operations))),
            ("read_bytes_per_s".to_owned(), json!(rate(self.read_bytes, before.read_bytes))),
            ("written_bytes_per_s".to_owned(), json!(rate(self.written_bytes, before.written_bytes))),
        ])
    }
}

impl Sample {
    fn of(volumes: &[VolumeTraffic], disk_written_bytes: u64) -> Self {
        let (mut objects, mut histogram) = (BTreeMap::new(), Vec::new());
        let (mut stored_by_codec, mut codec_cpu_ns) = (BTreeMap::new(), 0);
        for volume in volumes {
            objects.insert(volume.id, Sums::of(volume));
            for line in volume.doors.iter().flat_map(|door| &door.operations) {
                histogram.resize(histogram.len().max(line.histogram.len()), 0);
                histogram.iter_mut().zip(&line.histogram).for_each(|(sum, count)| *sum += count);
            }
            for line in &volume.codecs {
                *stored_by_codec.entry(line.codec.clone()).or_default() += line.stored_bytes;
                codec_cpu_ns += line.cpu_ns.unwrap_or_default();
            }
        }
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let cpu_ns = cpu.tv_sec.unsigned_abs() * 1_000_000_000 + cpu.tv_nsec.unsigned_abs();
        Self { at: Instant::now(), objects, histogram, stored_by_codec, codec_cpu_ns, cpu_ns, disk_written_bytes }
    }

    /// Returns the rates since another sample, of the pool and by object.
    fn since(&self, before: &Self, ends_ns: &[u64]) -> (Map<String, Value>, BTreeMap<u64, Value>) {
        let seconds = (self.at - before.at).as_secs_f64().max(1e-3);
        let (mut all, mut all_before) = (Sums::default(), Sums::default());
        let mut objects = BTreeMap::new();
        for (id, sums) in &self.objects {
            let earlier = before.objects.get(id).copied().unwrap_or_default();
            all.add(*sums);
            all_before.add(earlier);
            objects.insert(*id, Value::Object(sums.rates(earlier, seconds)));
        }
        let mut pool = all.rates(all_before, seconds);
        let counts: Vec<_> = self
            .histogram
            .iter()
            .enumerate()
            .map(|(number, count)| count.saturating_sub(before.histogram.get(number).copied().unwrap_or_default()))
            .collect();
        let by_codec: Map<_, _> = self
            .stored_by_codec
            .iter()
            .map(|(codec, bytes)| {
                let earlier = before.stored_by_codec.get(codec).copied().unwrap_or_default();
                (codec.clone(), json!(bytes.saturating_sub(earlier) as f64 / seconds))
            })
            .collect();
        let cores = |now: u64, before: u64| now.saturating_sub(before) as f64 / 1e9 / seconds;
        let disk = self.disk_written_bytes.saturating_sub(before.disk_written_bytes) as f64 / seconds;
        pool.insert("p99_ns".to_owned(), json!(quantile(&counts, ends_ns)));
        pool.insert("disk_written_by_codec".to_owned(), Value::Object(by_codec));
        pool.insert("disk_written_bytes_per_s".to_owned(), json!(disk));
        pool.insert("cpu_cores".to_owned(), json!(cores(self.cpu_ns, before.cpu_ns)));
        pool.insert("compress_cores".to_owned(), json!(cores(self.codec_cpu_ns, before.codec_cpu_ns)));
        (pool, objects)
    }
}

/// Returns the time that 99 of 100 operations did not exceed; `None` without operations.
fn quantile(counts: &[u64], ends_ns: &[u64]) -> Option<u64> {
    let all: u64 = counts.iter().sum();
    let wanted = all - all / 100;
    let mut passed = 0;
    let place = counts.iter().position(|count| {
        passed += count;
        passed >= wanted
    })?;
    ends_ns.get(place).or(ends_ns.last()).copied().filter(|_| all > 0)
}

impl Ticks {
    pub(super) fn new() -> Self {
        Self { boot: format!("{:x}", host::unix_s()), state: Mutex::default() }
    }

    /// Returns the identity of this start of the server.
    pub(super) fn boot(&self) -> &str {
        &self.boot
    }

    fn figures(&self, unix_s: u64, pool: &Value, objects: &Map<String, Value>) -> Value {
        json!({ "boot": self.boot, "unix_s": unix_s, "pool": pool, "objects": objects })
    }

    /// Returns the figures after a second, and the generation at it; null: they are not stored.
    fn missed(&self, objects: &[u64], second: u64, until: u64) -> (Value, Value) {
        let state = self.state.lock();
        let Some((kept, generation)) = state.since(second) else { return (Value::Null, Value::Null) };
        let figures = |kept: &&Kept| {
            let wanted = objects.iter().filter_map(|id| Some((id.to_string(), kept.objects.get(id)?.clone())));
            self.figures(kept.unix_s, &kept.pool, &wanted.collect())
        };
        let missed = kept.iter().filter(|kept| kept.unix_s < until).map(figures);
        (Value::Array(missed.collect()), json!(generation))
    }

    /// Returns the frames of this second: figures of the pool and of these objects, jobs, health,
    /// and a number that changes with every change of an object, as a caller of that role sees them.
    /// `since`: also those after a second.
    pub(super) fn frames(
        &self,
        service: &Arc<Service>,
        objects: &[u64],
        since: Option<u64>,
        role: Role,
    ) -> Result<Value> {
        let tick = self.tick(service)?;
        let jobs = Reply::Jobs(tick.jobs.to_vec()).seen_by(role).document()?;
        let wanted = objects.iter().take(OBJECTS_MAX);
        let of_objects: Map<_, _> =
            wanted.filter_map(|id| Some((id.to_string(), tick.objects.get(id)?.clone()))).collect();
        let (missed, generation_then) = match since {
            Some(second) => self.missed(objects, second, tick.unix_s),
            None => Default::default(),
        };
        Ok(json!({
            "figures": self.figures(tick.unix_s, &tick.pool, &of_objects),
            "jobs": jobs,
            "health": tick.health,
            "generation": tick.generation,
            "missed": missed,
            "generation_then": generation_then,
        }))
    }

    fn tick(&self, service: &Arc<Service>) -> Result<Tick> {
        let mut state = self.state.lock();
        let age = state.sample.as_ref().map(|sample| sample.at.elapsed());
        if let Some(tick) = state.tick.clone().filter(|_| age.is_some_and(|age| age < SAMPLE_EVERY)) {
            return Ok(tick);
        }
        let caller = Caller { who: Who::Server, from: "events".to_owned(), role: Role::Read };
        let ask = |request| service.handle(&caller, request);
        let traffic = match ask(Request::Traffic { object: None })? {
            Reply::Traffic(traffic) => *traffic,
            other => return Err(other.unexpected()),
        };
        // Each stream gets the part that its caller may see.
        let jobs = service.jobs().list();
        let (unix_s, generation) = (host::unix_s(), service.audit_log().changes());
        let figures = service.pool().figures();
        let is_current = |(at, _, then, was): &Known| {
            let is_at_rest = *then == figures && *was == generation;
            at.elapsed() < if is_at_rest { STATUS_AT_REST_EVERY } else { STATUS_EVERY }
        };
        let status = match state.status.take().filter(is_current) {
            Some(known) => known,
            None => match ask(Request::Status)? {
                Reply::Status(status) => (Instant::now(), status, figures.clone(), generation),
                other => return Err(other.unexpected()),
            },
        };
        let sample = Sample::of(&traffic.volumes, host::disk_written_bytes());
        let before = state.sample.take().filter(|before| before.at.elapsed() < SAMPLE_AGE_MAX);
        let (mut pool, objects) = sample.since(before.as_ref().unwrap_or(&sample), &traffic.bucket_ends_ns);
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        for (key, value) in [
            ("cpus", json!(cpus)),
            ("watts", Value::Null),
            ("energy_source", json!("none")),
            ("stored_bytes", json!(figures.live_bytes)),
            ("allocated_bytes", json!(status.1.allocated_bytes)),
            ("available_bytes", json!(figures.available_bytes)),
        ] {
            pool.insert(key.to_owned(), value);
        }
        let findings: Vec<_> = health::assess(&status.1)
            .into_iter()
            .map(|(kind, words)| json!({ "kind": kind.name(), "words": words, "advice": kind.advice() }))
            .collect();
        let health = json!({ "health": status.1.health, "findings": findings });
        let pool = Value::Object(pool);
        let is_busy = |figures: &Value| figures["ops_per_s"].as_f64().is_some_and(|rate| rate > 0.0);
        let busy = objects.iter().filter(|(_, figures)| is_busy(figures)).take(KEPT_OBJECTS);
        let objects_kept = busy.map(|(id, figures)| (*id, figures.clone())).collect();
        state.keep(Kept { unix_s, generation, pool: pool.clone(), objects: objects_kept });
        let (objects, jobs) = (Arc::new(objects), Arc::new(jobs));
        let tick = Tick { unix_s, generation, pool, objects, jobs, health };
        state.sample = Some(sample);
        state.status = Some(status);
        state.tick = Some(tick.clone());
        Ok(tick)
    }
}

#[cfg(test)]
mod tests {
    use report::{CodecLine, DoorTraffic, OperationLine};

    use super::*;

    fn volume(id: u64, count: u64, bytes: u64) -> VolumeTraffic {
        let line = |operation: &str| OperationLine {
            operation: operation.to_owned(),
            count,
            bytes,
            ns: 1,
            histogram: vec![count, 0],
        };
        let door = |door: &str| DoorTraffic { door: door.to_owned(), operations: vec![line("read"), line("write")] };
        VolumeTraffic {
            volume: format!("v{id}"),
            id,
            kind: report::ObjectKind::Share,
            doors: vec![door("share"), door(crate::traffic::TREES)],
            codecs: vec![CodecLine {
                codec: "lz4".to_owned(),
                units: 1,
                raw_bytes: 9,
                stored_bytes: bytes,
                cpu_ns: None,
            }],
            cache_hits: 0,
            cache_misses: 0,
        }
    }

    #[test]
    fn rates_are_differences_by_object_and_count_no_door_twice() {
        let mut before = Sample::of(&[volume(1, 10, 100)], 1000);
        let now = Sample::of(&[volume(1, 30, 500), volume(2, 5, 50)], 4000);
        before.at = now.at - Duration::from_secs(2);
        let (pool, objects) = now.since(&before, &[1000, 2000]);
        assert_eq!((&pool["ops_per_s"], &pool["read_bytes_per_s"]), (&json!(25.0), &json!(225.0)));
        assert_eq!(objects[&1]["written_bytes_per_s"], json!(200.0));
        assert_eq!(pool["disk_written_by_codec"]["lz4"], json!(225.0));
        assert_eq!((&pool["disk_written_bytes_per_s"], &pool["p99_ns"]), (&json!(1500.0), &json!(1000)));
    }

    #[test]
    fn ticks_are_kept_for_a_while_one_a_second() {
        let mut state = State::default();
        let kept = |unix_s, generation| Kept { unix_s, generation, pool: Value::Null, objects: BTreeMap::new() };
        (0..200).for_each(|second| state.keep(kept(second, second / 100)));
        state.keep(kept(199, 7));
        assert_eq!(state.kept.len(), KEPT_TICKS);
        assert!(state.since(79).is_none() && state.since(200).is_none());
        let (missed, generation) = state.since(197).unwrap();
        assert_eq!((missed.iter().map(|kept| kept.unix_s).collect::<Vec<_>>(), generation), (vec![198, 199], 1));
        assert_eq!(missed[1].generation, 7);
    }

    #[test]
    fn a_quantile_is_the_end_of_its_bucket_and_of_nothing_there_is_none() {
        assert_eq!(quantile(&[0, 0], &[1, 2]), None);
        assert_eq!(quantile(&[98, 2], &[1, 2]), Some(2));
        assert_eq!(quantile(&[99, 1], &[1, 2]), Some(1));
        assert_eq!(quantile(&[0, 0, 7], &[1, 2]), Some(2), "the last bucket has no end");
    }
}
