//! The document behind `shale iostat --json`, which also crosses the control socket: operations by
//! volume, door and kind, and stored bytes by codec.

use crate::ObjectKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use surface::{BUCKETS, OpCounts, OpKind, bucket_end_ns};

/// The form of [`TrafficReport`]: raised when a field changes its meaning or goes.
pub const TRAFFIC_VERSION: u32 = 1;

/// Client traffic since a server began, or in an interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrafficReport {
    /// Version of this document.
    pub version: u32,
    /// Directory of the pool.
    pub pool: String,
    /// Number of the volume that was asked for; null for all.
    pub only: Option<u64>,
    /// Interval of the counts, in seconds.
    pub seconds: f64,
    /// Upper bounds of the histogram buckets, in nanoseconds; the last bucket has none.
    pub bucket_ends_ns: Vec<u64>,
    /// Traffic by volume, share and snapshot, ordered by name.
    pub volumes: Vec<VolumeTraffic>,
}

/// Client traffic of a volume, a share or a snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeTraffic {
    /// Name.
    pub volume: String,
    /// Permanent number.
    pub id: u64,
    /// `volume`, `share` or `snapshot`.
    pub kind: ObjectKind,
    /// Traffic by door.
    pub doors: Vec<DoorTraffic>,
    /// Data written, by the codec that stores it.
    pub codecs: Vec<CodecLine>,
    /// Units that reads found decoded in memory.
    pub cache_hits: u64,
    /// Units that reads had to fetch and decode.
    pub cache_misses: u64,
}

/// Client traffic through one door.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DoorTraffic {
    /// Such as `nbd`, `mount`, `share`, `smb`, `tree` or `command`.
    pub door: String,
    /// Counts by kind of operation.
    pub operations: Vec<OperationLine>,
}

/// Counts of one kind of operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OperationLine {
    /// `read`, `write`, `flush`, `discard`, `look` or `change`.
    pub operation: String,
    /// Number of operations.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Sum of their durations, in nanoseconds.
    pub ns: u64,
    /// Number of operations in each bucket of duration.
    pub histogram: Vec<u64>,
}

/// Data stored with one codec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CodecLine {
    /// Name of the codec.
    pub codec: String,
    /// Units.
    pub units: u64,
    /// Bytes before compression.
    pub raw_bytes: u64,
    /// Stored bytes.
    pub stored_bytes: u64,
    /// Estimated CPU time of compression, in nanoseconds; null if it is not known.
    pub cpu_ns: Option<u64>,
}

/// Ends of the buckets of all histograms.
pub fn bucket_ends_ns() -> Vec<u64> {
    (0..BUCKETS).filter_map(bucket_end_ns).collect()
}

impl OperationLine {
    /// From the counts.
    pub fn new(kind: OpKind, counts: &OpCounts) -> Self {
        Self {
            operation: kind.name().to_owned(),
            count: counts.count(),
            bytes: counts.bytes,
            ns: counts.ns,
            histogram: counts.buckets.to_vec(),
        }
    }

    /// The end of the bucket in which this part of the operations has been done, in nanoseconds:
    /// that many took less. `None`: there were none, or the bucket has no end.
    pub fn quantile_ns(&self, part: f64) -> Option<u64> {
        let wanted = (self.count as f64 * part).ceil() as u64;
        let mut passed = 0;
        let reaches = |count: &u64| {
            passed += count;
            passed >= wanted
        };
        let bucket = self.histogram.iter().position(reaches).filter(|_| self.count > 0)?;
        bucket_end_ns(bucket)
    }

    fn less(&mut self, before: &Self) {
        self.count = self.count.saturating_sub(before.count);
        self.bytes = self.bytes.saturating_sub(before.bytes);
        self.ns = self.ns.saturating_sub(before.ns);
        for (count, before) in self.histogram.iter_mut().zip(&before.histogram) {
            *count = count.saturating_sub(*before);
        }
    }
}

impl DoorTraffic {
    /// The operations of a kind.
    pub fn of(&self, kind: OpKind) -> Option<&OperationLine> {
        self.operations.iter().find(|line| line.operation == kind.name())
    }
}

impl TrafficReport {
    /// The operations since another report of the same server. A volume that was opened meanwhile
    /// counts from its beginning.
    #[must_use]
    pub fn since(mut self, before: &Self) -> Self {
        self.seconds = (self.seconds - before.seconds).max(0.0);
        for volume in &mut self.volumes {
            let Some(before) = before.volumes.iter().find(|old| old.id == volume.id) else { continue };
            volume.cache_hits = volume.cache_hits.saturating_sub(before.cache_hits);
            volume.cache_misses = volume.cache_misses.saturating_sub(before.cache_misses);
            for door in &mut volume.doors {
                let Some(before) = before.doors.iter().find(|old| old.door == door.door) else { continue };
                for line in &mut door.operations {
                    let old = before.operations.iter().find(|old| old.operation == line.operation);
                    old.into_iter().for_each(|old| line.less(old));
                }
            }
            for line in &mut volume.codecs {
                let Some(old) = before.codecs.iter().find(|old| old.codec == line.codec) else { continue };
                line.units = line.units.saturating_sub(old.units);
                line.raw_bytes = line.raw_bytes.saturating_sub(old.raw_bytes);
                line.stored_bytes = line.stored_bytes.saturating_sub(old.stored_bytes);
                line.cpu_ns = line.cpu_ns.map(|ns| ns.saturating_sub(old.cpu_ns.unwrap_or(0)));
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(histogram: [u64; 3], bytes: u64) -> OperationLine {
        let mut buckets = [0; BUCKETS];
        buckets[..3].copy_from_slice(&histogram);
        OperationLine::new(OpKind::Write, &OpCounts { bytes, ns: 10 * bytes, buckets })
    }

    fn report(seconds: f64, line: OperationLine, units: u64) -> TrafficReport {
        let codec = CodecLine {
            codec: "lz4".to_owned(),
            units,
            raw_bytes: 4096 * units,
            stored_bytes: 1000 * units,
            cpu_ns: (units > 0).then_some(7 * units),
        };
        let doors = vec![DoorTraffic { door: "nbd".to_owned(), operations: vec![line] }];
        let volume = VolumeTraffic {
            volume: "v".to_owned(),
            id: 7,
            kind: ObjectKind::Volume,
            doors,
            codecs: vec![codec],
            cache_hits: units,
            cache_misses: 2 * units,
        };
        let pool = "p".to_owned();
        let volumes = vec![volume];
        TrafficReport { version: TRAFFIC_VERSION, pool, only: None, seconds, bucket_ends_ns: bucket_ends_ns(), volumes }
    }

    #[test]
    fn an_interval_is_the_difference_of_two_reports() {
        let (before, after) = (report(10.0, line([1, 0, 2], 5), 1), report(12.5, line([1, 3, 4], 11), 4));
        assert_eq!(after.clone().since(&before), report(2.5, line([0, 3, 2], 6), 3));
        let nothing = TrafficReport { volumes: Vec::new(), ..before };
        assert_eq!(after.clone().since(&nothing).volumes, after.volumes, "it was opened meanwhile");
    }

    #[test]
    fn a_quantile_is_the_end_of_its_bucket() {
        let line = line([98, 1, 1], 0);
        assert_eq!((line.count, line.quantile_ns(0.5), line.quantile_ns(0.98)), (100, Some(1024), Some(1024)));
        assert_eq!((line.quantile_ns(0.99), line.quantile_ns(1.0)), (Some(2048), Some(4096)));
        assert_eq!(OperationLine::new(OpKind::Read, &OpCounts::default()).quantile_ns(0.5), None);
        let mut last = OpCounts::default();
        last.buckets[BUCKETS - 1] = 1;
        assert_eq!(OperationLine::new(OpKind::Read, &last).quantile_ns(0.5), None, "longer than any bound");
    }
}
