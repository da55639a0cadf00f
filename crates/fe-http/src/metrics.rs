//! `/metrics`: the figures of the server as text of Prometheus (0.0.4). Keeps nothing: every family
//! is made from the counters of one answer.
//!
//! Labels come from closed sets and from names of objects, of which the server names a bounded
//! number ([`Figures`]): never from clients, paths or ports.
//!
//! A series that begins with its first event hides that event from a rate. So each series of closed
//! sets is there from the start, as zero. Series of objects begin with their first operation: their
//! doors have a zero without an object.

use std::collections::BTreeMap;

use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, TextEncoder};
use report::{JobKind, JobReport, JobState, StatusReport, VolumeTraffic};
use serde::{Deserialize, Serialize};
use surface::{ErrorKind, OpKind};

/// Nanoseconds of a second.
const SECOND_NS: f64 = 1e9;

/// An object with a name of its own, or the sum of those that have none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ObjectFigures {
    /// Name, or `(other)`.
    pub object: String,
    /// `volume`, `share`, or empty for a sum.
    pub kind: String,
    /// Folder that it lies in; empty: none.
    pub folder: String,
    /// Properties in force: compression, mode, unit; empty for a sum.
    pub properties: BTreeMap<String, String>,
    /// Size of a volume.
    pub size_bytes: u64,
    /// Data before compression.
    pub logical_bytes: u64,
    /// Data as stored.
    pub stored_bytes: u64,
}

/// Work of a codec in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CodecWork {
    /// Data before compression.
    pub raw_bytes: u64,
    /// The same data as stored.
    pub stored_bytes: u64,
    /// CPU time, estimated from a part of the units.
    pub cpu_ns: u64,
    /// CPU time by the power of a busy CPU.
    pub joules: f64,
}

/// Work of a codec since the server began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CodecFigures {
    /// For data written.
    pub compressed: CodecWork,
    /// For data read.
    pub decompressed: CodecWork,
}

/// The figures of `/metrics`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Figures {
    /// The pool.
    pub status: Box<StatusReport>,
    /// Its objects, a bounded number.
    pub objects: Vec<ObjectFigures>,
    /// Traffic of the same objects.
    pub traffic: Vec<VolumeTraffic>,
    /// The doors that are served, and those that were used.
    pub doors: Vec<String>,
    /// Failed operations by door, in the order of [`ErrorKind::ALL`].
    pub failures: BTreeMap<String, Vec<u64>>,
    /// Work by codec, with zeroes for those that an object can use and did not.
    pub codecs: BTreeMap<String, CodecFigures>,
    /// Units that reads found decoded in memory.
    pub cache_hits: u64,
    /// Units that reads had to fetch and decode.
    pub cache_misses: u64,
    /// Source of the power of a busy CPU.
    pub energy_source: String,
    /// Upper bounds of the buckets of durations, in nanoseconds.
    pub bucket_ends_ns: Vec<u64>,
    /// The jobs that are known.
    pub jobs: Vec<JobReport>,
    /// When work last ended well, by kind of job.
    pub last_success_unix_s: BTreeMap<String, u64>,
    /// Objects without a name of their own.
    pub objects_unnamed: u64,
}

struct Families(Vec<MetricFamily>);

fn labels(pairs: &[(&str, &str)]) -> Vec<LabelPair> {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    pairs.iter().map(pair).collect()
}

fn counted(pairs: &[(&str, &str)], value: f64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(value);
    let mut metric = Metric::from_label(labels(pairs));
    metric.set_counter(counter);
    metric
}

fn measured(pairs: &[(&str, &str)], value: f64) -> Metric {
    let mut gauge = Gauge::default();
    gauge.set_value(value);
    let mut metric = Metric::from_label(labels(pairs));
    metric.set_gauge(gauge);
    metric
}

impl Families {
    fn add(&mut self, name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) {
        // A family without a metric is no text.
        if metrics.is_empty() {
            return;
        }
        let mut family = MetricFamily::default();
        family.set_name(format!("shale_{name}"));
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        family.set_metric(metrics);
        self.0.push(family);
    }

    fn gauges(&mut self, name: &str, help: &str, metrics: Vec<Metric>) {
        self.add(name, help, MetricType::GAUGE, metrics);
    }

    fn counters(&mut self, name: &str, help: &str, metrics: Vec<Metric>) {
        self.add(name, help, MetricType::COUNTER, metrics);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.gauges(name, help, vec![measured(&[], value)]);
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.counters(name, help, vec![counted(&[], value)]);
    }

    fn pool(&mut self, status: &StatusReport) {
        self.gauge("capacity_bytes", "Capacity of the pool.", status.capacity_bytes as f64);
        self.gauge("available_bytes", "Room for new data as stored.", status.available_bytes as f64);
        self.gauge("pool_stored_bytes", "Data as stored.", status.stored_bytes as f64);
        self.gauge("pool_logical_bytes", "Data before compression.", status.allocated_bytes as f64);
        self.gauge(
            "dead_bytes",
            "Stored data that nothing needs and the cleaner can reclaim.",
            status.dead_bytes as f64,
        );
        self.gauge("map_bytes", "Size of the map store.", status.map_bytes as f64);
        self.gauge("reserved_bytes", "Room reserved for volumes.", status.reserved_bytes as f64);
        self.gauge("used_ratio", "Used part of the room, 0 to 1.", status.used_percent / 100.0);
        self.gauge("full", "1 while the pool refuses writes for want of room.", f64::from(u8::from(status.full)));
        self.gauge(
            "failed",
            "1 after a failure that made the pool read-only.",
            f64::from(u8::from(status.failed.is_some())),
        );
        let damages = status.damages.len() as u64 + status.damages_unlisted;
        self.gauge("damages", "Known damages that were not acknowledged.", damages as f64);
        self.gauge("losses", "Losses of repairs that were not acknowledged.", status.losses.len() as f64);
        self.gauge("memory_resident_bytes", "Resident memory of the server.", status.memory_resident_bytes as f64);
        self.gauge("memory_budget_bytes", "Memory that the server may use.", status.memory_budget_bytes as f64);
        self.gauge("nbd_connections", "Open NBD connections.", status.nbd_connections as f64);
        self.counter("uptime_seconds_total", "Seconds since the pool was opened.", status.uptime_s as f64);
        self.counter("refused_writes_total", "Writes refused for want of room.", status.refused_writes as f64);
        self.counter("written_by_clients_bytes_total", "Bytes written by clients.", status.written_bytes as f64);
        self.counter("fragment_bytes_total", "Bytes of stored units written.", status.fragment_bytes as f64);
        self.counter("log_bytes_total", "Bytes appended to the log.", status.log_bytes as f64);
        self.counter("disk_written_bytes_total", "Bytes written to disks.", status.disk_written_bytes as f64);
        self.counter(
            "disk_read_bytes_total",
            "Bytes read from the data file for clients.",
            status.read_disk_bytes as f64,
        );
        self.counter("read_ahead_bytes_total", "Decoded bytes read ahead.", status.read_ahead_bytes as f64);
        self.counter(
            "read_ahead_used_bytes_total",
            "Bytes read ahead that a client has read.",
            status.read_ahead_used_bytes as f64,
        );
        self.counter(
            "rewritten_bytes_total",
            "Bytes rewritten by the cleaner and by jobs.",
            status.rewritten_bytes as f64,
        );
        self.counter("cleaned_extents_total", "Extents emptied by the cleaner.", status.cleaned_extents as f64);
        self.counter("copies_read_total", "Damaged fragments read from another copy.", status.copies_read as f64);
        self.counter(
            "repaired_fragments_total",
            "Damaged fragments replaced by another copy.",
            status.repaired_fragments as f64,
        );
        self.counter("cleaning_seconds_total", "Time spent cleaning.", status.cleaning_ms / 1e3);
        self.counter("checkpoints_total", "Checkpoints.", status.checkpoints as f64);
        self.counter("light_checkpoints_total", "Light checkpoints.", status.light_checkpoints as f64);
        self.counter("flushes_total", "Flushes asked for by clients.", status.flushes as f64);
        self.counter("syncs_total", "Syncs of the data file.", status.syncs as f64);
    }

    fn objects(&mut self, figures: &Figures) {
        let each = |value: fn(&ObjectFigures) -> u64| {
            let metric = |line: &ObjectFigures| measured(&[("object", &line.object)], value(line) as f64);
            figures.objects.iter().map(metric).collect::<Vec<_>>()
        };
        self.gauges("logical_bytes", "Data of an object before compression.", each(|line| line.logical_bytes));
        self.gauges("stored_bytes", "Data of an object as stored.", each(|line| line.stored_bytes));
        self.gauges("size_bytes", "Size of a volume.", each(|line| line.size_bytes));
        let info = |line: &ObjectFigures| {
            let property = |key: &str| line.properties.get(key).map_or("", String::as_str);
            let pairs = [
                ("object", line.object.as_str()),
                ("kind", &line.kind),
                ("folder", &line.folder),
                ("compression", property("compression")),
                ("mode", property("mode")),
                ("unit", property("unit")),
            ];
            measured(&pairs, 1.0)
        };
        let named = figures.objects.iter().filter(|line| !line.kind.is_empty());
        self.gauges("object_info", "Properties of an object as labels.", named.map(info).collect());
        self.gauge("objects_unnamed", "Objects summed as (other).", figures.objects_unnamed as f64);
    }

    fn traffic(&mut self, figures: &Figures) {
        let (mut counts, mut bytes) = (Vec::new(), Vec::new());
        let mut durations: BTreeMap<(&str, &str), (u64, Vec<u64>)> = BTreeMap::new();
        let known = figures.doors.iter().flat_map(|door| OpKind::ALL.map(|kind| (door.as_str(), kind.name())));
        for (door, operation) in known {
            let pairs = [("door", door), ("object", ""), ("operation", operation)];
            counts.push(counted(&pairs, 0.0));
            bytes.push(counted(&pairs, 0.0));
            durations.insert((door, operation), (0, vec![0; figures.bucket_ends_ns.len() + 1]));
        }
        for volume in &figures.traffic {
            for (door, line) in
                volume.doors.iter().flat_map(|door| door.operations.iter().map(move |line| (door, line)))
            {
                let (ns, buckets) = durations.entry((&door.door, &line.operation)).or_default();
                *ns += line.ns;
                buckets.resize(buckets.len().max(line.histogram.len()), 0);
                buckets.iter_mut().zip(&line.histogram).for_each(|(sum, count)| *sum += count);
                if line.count == 0 {
                    continue;
                }
                let pairs = [("door", door.door.as_str()), ("object", &volume.volume), ("operation", &line.operation)];
                counts.push(counted(&pairs, line.count as f64));
                bytes.push(counted(&pairs, line.bytes as f64));
            }
        }
        self.counters("operations_total", "Operations of clients.", counts);
        self.counters("operation_bytes_total", "Bytes of the operations of clients.", bytes);
        let metrics = durations.iter().map(|((door, operation), (ns, buckets))| {
            duration(&[("door", door), ("operation", operation)], *ns, buckets, &figures.bucket_ends_ns)
        });
        self.add(
            "operation_duration_seconds",
            "Durations of the operations of clients.",
            MetricType::HISTOGRAM,
            metrics.collect(),
        );
        self.counter("cache_hits_total", "Units that reads found decoded in memory.", figures.cache_hits as f64);
        self.counter("cache_misses_total", "Units that reads fetched and decoded.", figures.cache_misses as f64);
    }

    fn failures(&mut self, figures: &Figures) {
        let of_door = |(door, counts): (&String, &Vec<u64>)| {
            let metric = |(kind, count): (&ErrorKind, &u64)| {
                counted(&[("door", door.as_str()), ("kind", kind.name())], *count as f64)
            };
            ErrorKind::ALL.iter().zip(counts).map(metric).collect::<Vec<_>>()
        };
        let help = "Operations of clients that failed; those on files of shares have the door of their tree.";
        self.counters("errors_total", help, figures.failures.iter().flat_map(of_door).collect());
    }

    fn codecs(&mut self, figures: &Figures) {
        let bytes = |value: fn(&CodecFigures) -> u64| {
            let metric =
                |(codec, work): (&String, &CodecFigures)| counted(&[("codec", codec.as_str())], value(work) as f64);
            figures.codecs.iter().map(metric).collect::<Vec<_>>()
        };
        self.counters(
            "written_bytes_total",
            "Data written, by codec, before compression.",
            bytes(|work| work.compressed.raw_bytes),
        );
        self.counters(
            "stored_written_bytes_total",
            "Data written, by codec, as stored.",
            bytes(|work| work.compressed.stored_bytes),
        );
        self.counters(
            "read_bytes_total",
            "Data that reads decompressed, by codec, before compression.",
            bytes(|work| work.decompressed.raw_bytes),
        );
        self.counters(
            "stored_read_bytes_total",
            "Data that reads decompressed, by codec, as stored.",
            bytes(|work| work.decompressed.stored_bytes),
        );
        let both = |value: fn(&CodecWork) -> f64| {
            let of_codec = |(codec, work): (&String, &CodecFigures)| {
                [("compress", work.compressed), ("decompress", work.decompressed)].map(|(direction, work)| {
                    counted(&[("codec", codec.as_str()), ("direction", direction)], value(&work))
                })
            };
            figures.codecs.iter().flat_map(of_codec).collect::<Vec<_>>()
        };
        self.counters(
            "cpu_seconds_total",
            "CPU time of codecs, estimated from one unit in eight.",
            both(|work| work.cpu_ns as f64 / SECOND_NS),
        );
        self.counters(
            "joules_total",
            "Nominal energy of codecs: CPU time by the power of a busy CPU; its source is in shale_joules_source_info.",
            both(|work| work.joules),
        );
        let source = [("source", figures.energy_source.as_str())];
        self.gauges(
            "joules_source_info",
            "Source of the power of a busy CPU: rapl, as counted by a calibration; cpu-time, an assumed power.",
            vec![measured(&source, 1.0)],
        );
    }

    fn jobs(&mut self, figures: &Figures) {
        let known = JobKind::ALL.into_iter().flat_map(|kind| JobState::ALL.map(|state| (kind.name(), state.name())));
        let mut states: BTreeMap<(&str, &str), u64> = known.map(|labels| (labels, 0)).collect();
        for job in &figures.jobs {
            *states.entry((job.kind.name(), job.state.name())).or_default() += 1;
        }
        let each =
            states.iter().map(|((kind, state), count)| measured(&[("kind", kind), ("state", state)], *count as f64));
        self.gauges("jobs", "Jobs that the server knows, by kind and state.", each.collect());
        let each = JobKind::ALL.into_iter().map(|kind| {
            let unix_s = figures.last_success_unix_s.get(kind.name()).copied().unwrap_or_default();
            measured(&[("kind", kind.name())], unix_s as f64)
        });
        let help = "When work of a kind last ended well, in seconds since 1970; 0: never since the server began, or \
                    for a scrub never.";
        self.gauges("last_success_timestamp_seconds", help, each.collect());
    }
}

/// Every second bucket: half of the precision, and half of the series.
fn duration(pairs: &[(&str, &str)], ns: u64, buckets: &[u64], ends_ns: &[u64]) -> Metric {
    let mut passed = 0;
    let mut bounds = Vec::new();
    for (number, (count, end)) in buckets.iter().zip(ends_ns).enumerate() {
        passed += count;
        if number % 2 == 1 {
            let mut bucket = Bucket::default();
            bucket.set_cumulative_count(passed);
            bucket.set_upper_bound(*end as f64 / SECOND_NS);
            bounds.push(bucket);
        }
    }
    let mut histogram = Histogram::default();
    histogram.set_sample_count(buckets.iter().sum());
    histogram.set_sample_sum(ns as f64 / SECOND_NS);
    histogram.set_bucket(bounds);
    let mut metric = Metric::from_label(labels(pairs));
    metric.set_histogram(histogram);
    metric
}

/// The text.
///
/// # Errors
/// When it cannot be encoded.
pub(crate) fn text(figures: &Figures) -> Result<Vec<u8>, prometheus::Error> {
    let mut families = Families(Vec::new());
    families.pool(&figures.status);
    families.objects(figures);
    families.traffic(figures);
    families.failures(figures);
    families.codecs(figures);
    families.jobs(figures);
    let mut text = Vec::new();
    TextEncoder::new().encode(&families.0, &mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use report::{DoorTraffic, OperationLine};

    use super::*;

    fn figures() -> Figures {
        let operation = |operation: &str, histogram: &[u64]| OperationLine {
            operation: operation.to_owned(),
            count: histogram.iter().sum(),
            bytes: 8192,
            ns: 3_000_000_000,
            histogram: histogram.to_vec(),
        };
        let doors = vec![DoorTraffic {
            door: "nbd".to_owned(),
            operations: vec![operation("read", &[1, 2, 0, 4, 1]), operation("write", &[0; 5])],
        }];
        let traffic = |volume: &str| VolumeTraffic {
            volume: volume.to_owned(),
            id: 1,
            kind: report::ObjectKind::Volume,
            doors: doors.clone(),
            codecs: Vec::new(),
            cache_hits: 1,
            cache_misses: 2,
        };
        let object = ObjectFigures {
            object: "a\"b\\c\nd".to_owned(),
            kind: "volume".to_owned(),
            properties: BTreeMap::from([("compression".to_owned(), "lz4".to_owned())]),
            logical_bytes: 8192,
            stored_bytes: 100,
            ..ObjectFigures::default()
        };
        let work = |raw_bytes, stored_bytes, cpu_ns, joules| CodecWork { raw_bytes, stored_bytes, cpu_ns, joules };
        let lz4 =
            CodecFigures { compressed: work(16384, 200, 10, 0.5), decompressed: work(4096, 100, 2_000_000_000, 20.0) };
        let mut failures = vec![0; ErrorKind::ALL.len()];
        failures[ErrorKind::Io as usize] = 3;
        let other = ObjectFigures { object: "(other)".to_owned(), ..ObjectFigures::default() };
        Figures {
            status: Box::new(StatusReport { capacity_bytes: 1 << 40, ..StatusReport::default() }),
            objects: vec![object, other],
            traffic: vec![traffic("vm"), traffic("(other)")],
            doors: vec!["command".to_owned(), "nbd".to_owned()],
            failures: BTreeMap::from([("nbd".to_owned(), failures)]),
            codecs: BTreeMap::from([("lz4".to_owned(), lz4)]),
            cache_hits: 2,
            cache_misses: 4,
            energy_source: "cpu-time".to_owned(),
            bucket_ends_ns: vec![1000, 2000, 4000, 8000],
            jobs: vec![JobReport::sample()],
            last_success_unix_s: BTreeMap::from([("clean".to_owned(), 77)]),
            objects_unnamed: 3,
        }
    }

    #[test]
    fn figures_become_text_with_escaped_names_and_cumulative_buckets() {
        let text = String::from_utf8(text(&figures()).unwrap()).unwrap();
        for line in [
            "# TYPE shale_capacity_bytes gauge",
            "shale_capacity_bytes 1099511627776",
            "shale_stored_bytes{object=\"a\\\"b\\\\c\\nd\"} 100",
            "shale_operations_total{door=\"nbd\",object=\"vm\",operation=\"read\"} 8",
            "shale_operation_duration_seconds_bucket{door=\"nbd\",operation=\"read\",le=\"0.000002\"} 6",
            "shale_operation_duration_seconds_bucket{door=\"nbd\",operation=\"read\",le=\"0.000008\"} 14",
            "shale_operation_duration_seconds_bucket{door=\"nbd\",operation=\"read\",le=\"+Inf\"} 16",
            "shale_operation_duration_seconds_sum{door=\"nbd\",operation=\"read\"} 6",
            "shale_written_bytes_total{codec=\"lz4\"} 16384",
            "shale_cpu_seconds_total{codec=\"lz4\",direction=\"compress\"} 0.00000001",
            "shale_stored_written_bytes_total{codec=\"lz4\"} 200",
            "shale_read_bytes_total{codec=\"lz4\"} 4096",
            "shale_stored_read_bytes_total{codec=\"lz4\"} 100",
            "shale_cpu_seconds_total{codec=\"lz4\",direction=\"decompress\"} 2",
            "shale_joules_total{codec=\"lz4\",direction=\"compress\"} 0.5",
            "shale_joules_total{codec=\"lz4\",direction=\"decompress\"} 20",
            "shale_joules_source_info{source=\"cpu-time\"} 1",
            "shale_errors_total{door=\"nbd\",kind=\"io\"} 3",
            "shale_errors_total{door=\"nbd\",kind=\"corrupt\"} 0",
            "shale_jobs{kind=\"recompress\",state=\"running\"} 1",
            "shale_last_success_timestamp_seconds{kind=\"clean\"} 77",
            "shale_last_success_timestamp_seconds{kind=\"scrub\"} 0",
            "shale_cache_misses_total 4",
            "shale_objects_unnamed 3",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
        assert!(
            text.contains(
                "shale_object_info{object=\"a\\\"b\\\\c\\nd\",kind=\"volume\",folder=\"\",compression=\"lz4\""
            )
        );
        let unused = "shale_operations_total{door=\"nbd\",object=\"vm\",operation=\"write\"}";
        assert!(!text.contains(unused), "an object without such operations has no series");
    }

    #[test]
    fn before_the_first_operation_known_series_are_zero_and_have_no_object() {
        let text_of = |figures: &Figures| String::from_utf8(text(figures).unwrap()).unwrap();
        let fresh = Figures { traffic: Vec::new(), jobs: Vec::new(), codecs: BTreeMap::new(), ..figures() };
        let count = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
        let text = text_of(&fresh);
        assert!(count(&text) >= 150, "{} samples\n{text}", count(&text));
        for line in [
            "shale_operations_total{door=\"nbd\",object=\"\",operation=\"change\"} 0",
            "shale_operation_bytes_total{door=\"command\",object=\"\",operation=\"read\"} 0",
            "shale_operation_duration_seconds_bucket{door=\"nbd\",operation=\"write\",le=\"0.000008\"} 0",
            "shale_operation_duration_seconds_count{door=\"nbd\",operation=\"write\"} 0",
            "shale_jobs{kind=\"scrub\",state=\"failed\"} 0",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
        // A hundred idle objects more have no series but those of their sizes and properties.
        let idle = |number: u32| ObjectFigures { object: format!("v{number}"), ..fresh.objects[0].clone() };
        let many = Figures { objects: (0..100).map(idle).collect(), ..fresh.clone() };
        assert_eq!(count(&text_of(&many)) - count(&text), 98 * 4 + 1);
    }

    #[test]
    fn each_family_has_help_and_a_type_and_stands_once() {
        let text = String::from_utf8(text(&figures()).unwrap()).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
            let (name, help) = line.split_once(' ').unwrap();
            assert!(seen.insert(name) && help.ends_with('.'), "{line}");
            assert!(text.contains(&format!("# TYPE {name} ")), "{name}");
        }
        assert!(seen.len() > 40, "{}", seen.len());
    }
}
