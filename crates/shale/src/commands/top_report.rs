//! Activity of a pool in an interval: the document of `shale top`, from two reports of its server.
//! Pure.

use serde::Serialize;

use report::{DoorTraffic, JobReport, ObjectKind, StatusReport, TrafficReport, VolumeTraffic};
use surface::OpKind;

/// Version of [`TopReport`].
const VERSION: u32 = 1;
/// Fraction of the operations within the time given for long ones.
const MOST: f64 = 0.99;

/// An object at one door.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TopObject {
    pub object: String,
    pub id: u64,
    pub kind: ObjectKind,
    pub door: String,
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub read_p99_ns: Option<u64>,
    pub write_p99_ns: Option<u64>,
}

/// Data written with one codec.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TopCodec {
    pub codec: String,
    pub raw_bytes: u64,
    pub stored_bytes: u64,
    pub compress_ns: u64,
}

/// A job under way.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TopJob {
    pub id: u64,
    pub kind: String,
    pub target: Option<String>,
    pub bytes_done: u64,
    pub bytes_total: Option<u64>,
}

/// See the module's text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TopReport {
    pub version: u32,
    pub pool: String,
    pub seconds: f64,
    pub objects: Vec<TopObject>,
    pub codecs: Vec<TopCodec>,
    pub capacity_bytes: u64,
    pub stored_bytes: u64,
    pub available_bytes: u64,
    pub ratio: Option<f64>,
    pub saving_percent: Option<f64>,
    pub disk_written_bytes: u64,
    pub jobs: Vec<TopJob>,
}

/// State of a server at one moment.
pub struct Moment {
    pub traffic: TrafficReport,
    pub status: StatusReport,
    pub jobs: Vec<JobReport>,
}

fn object_of(volume: &VolumeTraffic, door: &DoorTraffic) -> TopObject {
    let of = |kind| door.of(kind);
    let (read, write) = (of(OpKind::Read), of(OpKind::Write));
    TopObject {
        object: volume.volume.clone(),
        id: volume.id,
        kind: volume.kind,
        door: door.door.clone(),
        reads: read.map_or(0, |line| line.count),
        writes: write.map_or(0, |line| line.count),
        read_bytes: read.map_or(0, |line| line.bytes),
        written_bytes: write.map_or(0, |line| line.bytes),
        read_p99_ns: read.and_then(|line| line.quantile_ns(MOST)),
        write_p99_ns: write.and_then(|line| line.quantile_ns(MOST)),
    }
}

impl TopReport {
    /// Returns the interval between two moments of one server.
    pub fn between(before: &Moment, now: Moment) -> Self {
        let Moment { traffic, status, jobs } = now;
        let traffic = traffic.since(&before.traffic);
        let mut objects = Vec::new();
        let mut codecs: Vec<TopCodec> = Vec::new();
        for volume in &traffic.volumes {
            let used = |door: &&DoorTraffic| door.operations.iter().any(|line| line.count > 0);
            objects.extend(volume.doors.iter().filter(used).map(|door| object_of(volume, door)));
            for line in volume.codecs.iter().filter(|line| line.units > 0) {
                let place = codecs.iter().position(|known| known.codec == line.codec).unwrap_or_else(|| {
                    codecs.push(TopCodec { codec: line.codec.clone(), ..TopCodec::default() });
                    codecs.len() - 1
                });
                let sum = &mut codecs[place];
                sum.raw_bytes += line.raw_bytes;
                sum.stored_bytes += line.stored_bytes;
                sum.compress_ns += line.cpu_ns.unwrap_or(0);
            }
        }
        objects.sort_by_key(|object| std::cmp::Reverse(object.read_bytes + object.written_bytes));
        codecs.sort_by_key(|codec| std::cmp::Reverse(codec.raw_bytes));
        let job = |job: JobReport| TopJob {
            id: job.id,
            kind: job.kind.name().to_owned(),
            target: job.target,
            bytes_done: job.bytes_done,
            bytes_total: job.bytes_total,
        };
        Self {
            version: VERSION,
            pool: traffic.pool,
            seconds: traffic.seconds,
            objects,
            codecs,
            capacity_bytes: status.capacity_bytes,
            stored_bytes: status.stored_bytes,
            available_bytes: status.available_bytes,
            ratio: status.ratio,
            saving_percent: status.saving_percent,
            disk_written_bytes: status.disk_written_bytes.saturating_sub(before.status.disk_written_bytes),
            jobs: jobs.into_iter().filter(|job| job.ended_unix_s.is_none()).map(job).collect(),
        }
    }
}
