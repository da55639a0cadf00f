//! Sums of `/metrics` over all objects: work of codecs and its energy, reads from memory, failures
//! by door, and when jobs of each kind last ended well. Owns them, and the counts of each object at the last reading.
//!
//! A counter that falls is taken for one that began anew, and counts once more as a whole. But the
//! counts of an object go with it when it is destroyed, estimates of CPU time fall for moments, and
//! a calibration changes the power of a CPU. So only what each object has gained since the last
//! reading is added, at the power of that moment.

use std::collections::{BTreeMap, BTreeSet};

use codec::CodecId;
use engine::DecodeEffort;
use fe_http::{CodecFigures, CodecWork};
use policy::Power;
use report::{JobReport, VolumeTraffic};
use surface::ErrorKind;

use crate::traffic::OfVolume;

/// Bytes before compression and as stored, and nanoseconds of CPU time.
type Effort = [u64; 3];
/// Failed operations, in the order of [`ErrorKind::ALL`].
type Failures = [u64; ErrorKind::ALL.len()];

/// Counts of an object at the last reading.
#[derive(Default)]
struct Seen {
    codecs: BTreeMap<String, Effort>,
    cache: [u64; 2],
    failures: BTreeMap<&'static str, Failures>,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Totals {
    codecs: BTreeMap<String, CodecFigures>,
    /// Units that reads found decoded in memory, and others.
    cache: [u64; 2],
    failures: BTreeMap<&'static str, Failures>,
    last_success_unix_s: BTreeMap<&'static str, u64>,
    seen: BTreeMap<u64, Seen>,
    seen_decoded: BTreeMap<CodecId, Effort>,
}

/// Returns how much counts have gained since they were seen, and notes them.
fn gained<const N: usize>(seen: &mut [u64; N], now: [u64; N]) -> [u64; N] {
    let mut gains = [0; N];
    for ((gain, seen), now) in gains.iter_mut().zip(seen).zip(now) {
        *gain = now.saturating_sub(*seen);
        *seen = now.max(*seen);
    }
    gains
}

fn add(sum: &mut CodecWork, [raw_bytes, stored_bytes, cpu_ns]: Effort, power: Power) {
    sum.raw_bytes += raw_bytes;
    sum.stored_bytes += stored_bytes;
    sum.cpu_ns += cpu_ns;
    sum.joules += power.joules(cpu_ns);
}

impl Totals {
    /// Begins the sums of these codecs and doors with zeroes.
    pub(super) fn begin(&mut self, codecs: BTreeSet<String>, doors: impl Iterator<Item = &'static str>) {
        for codec in codecs {
            self.codecs.entry(codec).or_default();
        }
        for door in doors {
            self.failures.entry(door).or_default();
        }
    }

    /// Adds what was compressed, and what reads found in memory.
    pub(super) fn add_efforts(&mut self, volumes: &[VolumeTraffic], power: Power) {
        for volume in volumes {
            let seen = self.seen.entry(volume.id).or_default();
            let gains = gained(&mut seen.cache, [volume.cache_hits, volume.cache_misses]);
            self.cache.iter_mut().zip(gains).for_each(|(sum, gain)| *sum += gain);
            for line in &volume.codecs {
                let now = [line.raw_bytes, line.stored_bytes, line.cpu_ns.unwrap_or_default()];
                let gains = gained(seen.codecs.entry(line.codec.clone()).or_default(), now);
                add(&mut self.codecs.entry(line.codec.clone()).or_default().compressed, gains, power);
            }
        }
    }

    /// Adds what reads decompressed.
    pub(super) fn add_decompressed(&mut self, decoded: &[(CodecId, DecodeEffort)], power: Power) {
        for (codec, effort) in decoded {
            let now = [effort.raw_bytes, effort.stored_bytes, effort.cpu_ns];
            let gains = gained(self.seen_decoded.entry(*codec).or_default(), now);
            add(&mut self.codecs.entry(codec.to_string()).or_default().decompressed, gains, power);
        }
    }

    /// Adds the failures in the table of all objects, and forgets the counts of those that are no
    /// longer in it.
    pub(super) fn add_failures(&mut self, table: &[OfVolume]) {
        for (id, doors) in table {
            for (door, traffic) in doors {
                let now = traffic.failures();
                if now.iter().all(|count| *count == 0) {
                    continue;
                }
                let seen = self.seen.entry(id.0).or_default();
                let gains = gained(seen.failures.entry(*door).or_default(), now);
                let sums = self.failures.entry(*door).or_default();
                sums.iter_mut().zip(gains).for_each(|(sum, gain)| *sum += gain);
            }
        }
        let ids: BTreeSet<u64> = table.iter().map(|(id, _)| id.0).collect();
        self.seen.retain(|id, _| ids.contains(id));
    }

    /// Notes the jobs that ended well, which the server itself forgets after a while.
    pub(super) fn add_ended(&mut self, jobs: &[JobReport], scrubbed_unix_s: u64) {
        let well = jobs.iter().filter(|job| job.error.is_none());
        let ended = well.filter_map(|job| Some((job.kind.name(), job.ended_unix_s?)));
        for (kind, unix_s) in ended.chain([("scrub", scrubbed_unix_s)]) {
            let last = self.last_success_unix_s.entry(kind).or_default();
            *last = unix_s.max(*last);
        }
    }

    /// Returns the work by codec.
    pub(super) fn codecs(&self) -> BTreeMap<String, CodecFigures> {
        self.codecs.clone()
    }

    /// Returns how many units reads found decoded in memory, and how many they did not.
    pub(super) const fn cache(&self) -> [u64; 2] {
        self.cache
    }

    /// Returns the failures by door.
    pub(super) fn failures(&self) -> BTreeMap<String, Vec<u64>> {
        self.failures.iter().map(|(door, counts)| ((*door).to_owned(), counts.to_vec())).collect()
    }

    /// Returns when work last ended well, by kind of job.
    pub(super) fn last_success_unix_s(&self) -> BTreeMap<String, u64> {
        self.last_success_unix_s.iter().map(|(kind, unix_s)| ((*kind).to_owned(), *unix_s)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use report::{CodecLine, JobFault, JobKind, JobState, ObjectKind};
    use surface::{DeviceId, Traffic};

    use super::*;

    fn volume(id: u64, raw_bytes: u64, cpu_ns: u64) -> VolumeTraffic {
        let line = CodecLine {
            codec: "lz4".to_owned(),
            units: 1,
            raw_bytes,
            stored_bytes: raw_bytes / 2,
            cpu_ns: Some(cpu_ns),
        };
        VolumeTraffic {
            volume: format!("v{id}"),
            id,
            kind: ObjectKind::Volume,
            doors: Vec::new(),
            codecs: vec![line],
            cache_hits: raw_bytes / 100,
            cache_misses: 1,
        }
    }

    #[test]
    fn work_of_codecs_never_falls() {
        let (mut totals, power) = (Totals::default(), Power::NOMINAL);
        totals.begin(BTreeSet::from(["raw".to_owned(), "lz4".to_owned()]), std::iter::empty());
        assert_eq!(totals.codecs()["lz4"], CodecFigures::default(), "zero before the first unit");
        totals.add_efforts(&[volume(1, 1000, 70), volume(2, 500, 30)], power);
        // One was destroyed, and the estimate of the other's time fell for a moment.
        for cpu_ns in [20, 30, 40] {
            totals.add_efforts(&[volume(2, 600, cpu_ns)], power);
        }
        assert_eq!(totals.cache(), [16, 2]);
        let work = totals.codecs()["lz4"].compressed;
        assert_eq!((work.raw_bytes, work.stored_bytes, work.cpu_ns), (1600, 800, 110));
        assert!((work.joules - power.joules(110)).abs() < 1e-12, "{}", work.joules);
        let decoded = |raw_bytes, cpu_ns| [(CodecId::LZ4, DecodeEffort { raw_bytes, stored_bytes: 9, cpu_ns })];
        totals.add_decompressed(&decoded(4096, 50), power);
        // A calibration found twice the power: what was used before keeps its joules.
        let twice = Power::measured(20, 1000).unwrap();
        totals.add_decompressed(&decoded(8192, 80), twice);
        let work = totals.codecs()["lz4"].decompressed;
        assert_eq!((work.raw_bytes, work.stored_bytes, work.cpu_ns), (8192, 9, 80));
        assert!((work.joules - power.joules(50) - twice.joules(30)).abs() < 1e-12, "{}", work.joules);
    }

    #[test]
    fn failures_stay_when_their_object_is_gone() {
        let mut totals = Totals::default();
        totals.begin(BTreeSet::new(), ["mount", "nbd"].into_iter());
        let (one, other) = (Arc::new(Traffic::new(|| 0)), Arc::new(Traffic::new(|| 0)));
        one.fail(ErrorKind::Io);
        other.fail(ErrorKind::Io);
        other.fail(ErrorKind::Full);
        let of = |id, traffic: &Arc<Traffic>| (DeviceId(id), vec![("nbd", Arc::clone(traffic))]);
        totals.add_failures(&[of(1, &one), of(2, &other)]);
        totals.add_failures(&[of(2, &other)]);
        assert_eq!(totals.seen.keys().copied().collect::<Vec<_>>(), [2]);
        other.fail(ErrorKind::Full);
        totals.add_failures(&[of(2, &other)]);
        let failures = totals.failures();
        let of_kind = |door: &str, kind: ErrorKind| failures[door][kind as usize];
        assert_eq!((of_kind("nbd", ErrorKind::Io), of_kind("nbd", ErrorKind::Full)), (2, 2));
        assert!(failures["mount"].len() == ErrorKind::ALL.len() && failures["mount"].iter().all(|count| *count == 0));
    }

    #[test]
    fn the_last_success_of_a_kind_stays_when_its_job_is_forgotten() {
        let mut totals = Totals::default();
        let fault = JobFault { kind: "io".to_owned(), message: "no".to_owned() };
        let ended = |unix_s| JobReport {
            kind: JobKind::Clean,
            state: JobState::Done,
            ended_unix_s: Some(unix_s),
            ..JobReport::sample()
        };
        let failed = JobReport { state: JobState::Failed, error: Some(fault), ..ended(90) };
        totals.add_ended(&[JobReport::sample(), ended(50), failed], 0);
        totals.add_ended(&[ended(40)], 70);
        totals.add_ended(&[], 0);
        let expected = [("clean".to_owned(), 50), ("scrub".to_owned(), 70)];
        assert_eq!(totals.last_success_unix_s(), BTreeMap::from(expected));
    }
}
