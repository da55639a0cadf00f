//! Samples of the pool: bytes of the disk by cause, work, choices, decompression, space. Owns the
//! counts of the last sample.

use std::collections::BTreeMap;

use analytics::Dataset;

use super::{Row, grown};
use crate::service::Service;

/// Ticks between two measurements of the map, which list its files.
const MAP_EVERY: u64 = 60;

/// See the module's text.
#[derive(Default)]
pub(super) struct PoolCounters {
    before: BTreeMap<(Dataset, String), u64>,
    map_bytes: u64,
    /// Bytes written to disk: all of them, and those of moved data.
    written: (u64, u64),
    /// Bytes of new data by codec, as they were sampled.
    stored: BTreeMap<String, u64>,
}

impl PoolCounters {
    fn put(&mut self, row: &mut Row, dataset: Dataset, labels: &[&str], now: u64) {
        let before = self.before.entry((dataset, labels.join("/"))).or_default();
        // Differences of counters, and estimates, may decrease temporarily. No counter restarts.
        row.put(dataset, labels, 0, grown(before, now.max(*before)));
    }

    pub(super) fn sample(&mut self, service: &Service, tick: u64, row: &mut Row) {
        let figures = service.pool().figures();
        let written = service.disk_written_bytes();
        let moved = figures.cleaner_log_bytes + figures.recompress_log_bytes + figures.sort_log_bytes;
        let causes = [
            ("clients", figures.client_log_bytes),
            ("cleaner", figures.cleaner_log_bytes),
            ("recompress", figures.recompress_log_bytes),
            ("sort", figures.sort_log_bytes),
            ("headers", figures.log_bytes.saturating_sub(figures.client_log_bytes + moved)),
            // The server writes only to the log and the map, and its history.
            ("map", written.saturating_sub(figures.log_bytes)),
        ];
        causes.into_iter().for_each(|(cause, now)| self.put(row, Dataset::DISK_WRITTEN, &[cause], now));
        self.written = (written, moved);
        let clients = figures.disk_read_bytes.saturating_sub(figures.cleaner_read_bytes);
        let causes = [("clients", clients), ("cleaner", figures.cleaner_read_bytes)];
        causes.into_iter().for_each(|(cause, now)| self.put(row, Dataset::DISK_READ, &[cause], now));
        let work = [
            ("checkpoint", figures.checkpoints),
            ("light-checkpoint", figures.light_checkpoints),
            ("flush", figures.flushes),
            ("sync", figures.syncs),
            ("cleaned-extent", figures.cleaned_extents),
            ("refused-write", figures.refused_writes),
        ];
        work.into_iter().for_each(|(kind, now)| self.put(row, Dataset::WORK, &[kind], now));
        for (why, now) in figures.choices {
            self.put(row, Dataset::CHOICES, &[why], now);
        }
        for (codec, effort) in figures.decoded {
            let codec = codec.to_string();
            self.put(row, Dataset::DECODED_RAW, &[&codec], effort.raw_bytes);
            self.put(row, Dataset::DECODED_STORED, &[&codec], effort.stored_bytes);
            self.put(row, Dataset::CODEC_CPU, &[&codec, "decompress"], effort.cpu_ns);
        }
        if tick.is_multiple_of(MAP_EVERY) {
            self.map_bytes = service.pool().map_bytes();
        }
        let parts = [
            ("total", figures.capacity_bytes),
            ("live", figures.live_bytes),
            ("available", figures.available_bytes),
            ("reserved", figures.reserved_bytes),
            ("map", self.map_bytes),
        ];
        parts.into_iter().for_each(|(part, now)| row.put(Dataset::CAPACITY, &[part], 0, now));
    }

    /// Divides the bytes written to disk by the codecs of the new data in `row`.
    pub(super) fn sample_disk_bytes(&mut self, row: &mut Row) {
        let of_codecs = row.0.iter().filter(|sample| sample.key.dataset == Dataset::CODEC_STORED);
        for sample in of_codecs {
            let codec = sample.key.label("codec").unwrap_or_default();
            *self.stored.entry(codec.to_owned()).or_default() += sample.value;
        }
        let (written, moved) = self.written;
        let stored = std::mem::take(&mut self.stored);
        // Data is compressed before it is written: until then, it is missing in `other`.
        let other = written.saturating_sub(moved + stored.values().sum::<u64>());
        for (codec, now) in
            stored.iter().map(|(codec, now)| (codec.as_str(), *now)).chain([("moved", moved), ("other", other)])
        {
            self.put(row, Dataset::DISK_BYTES, &[codec], now);
        }
        self.stored = stored;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_that_falls_for_a_moment_counts_once() {
        let (mut counters, mut sum) = (PoolCounters::default(), 0);
        for now in [0, 100, 70, 100, 130] {
            let mut row = Row::default();
            counters.put(&mut row, Dataset::DISK_WRITTEN, &["map"], now);
            sum += row.0.iter().map(|sample| sample.value).sum::<u64>();
        }
        assert_eq!(sum, 130);
    }

    #[test]
    fn bytes_by_codec_add_up_to_those_of_the_disk() {
        let mut counters = PoolCounters::default();
        let mut sums = BTreeMap::new();
        // Compressed in one second and written in the next.
        for (written, moved, zstd, lz4) in [(1000, 0, 600, 0), (1000, 0, 0, 500), (2200, 300, 100, 0)] {
            counters.written = (written, moved);
            let mut row = Row::default();
            row.put(Dataset::CODEC_STORED, &["zstd-3"], 1, zstd);
            row.put(Dataset::CODEC_STORED, &["lz4"], 2, lz4);
            row.put(Dataset::CODEC_RAW, &["lz4"], 2, 9999);
            counters.sample_disk_bytes(&mut row);
            for sample in row.0.iter().filter(|sample| sample.key.dataset == Dataset::DISK_BYTES) {
                *sums.entry(sample.key.label("codec").unwrap().to_owned()).or_insert(0) += sample.value;
            }
        }
        let expected = [("lz4", 500), ("moved", 300), ("other", 700), ("zstd-3", 700)];
        assert_eq!(sums, expected.map(|(codec, bytes)| (codec.to_owned(), bytes)).into());
        assert_eq!(sums.values().sum::<u64>(), 2200);
    }
}
