//! Samples of volumes, shares and snapshots: operations by door, data by codec, space. Owns the
//! counts of each object's last sample.
//!
//! An object is sampled each second while it changed within the last ten, and each tenth second
//! otherwise. Sampling an unchanged object is a few loads.

use std::collections::BTreeMap;
use std::sync::Arc;

use analytics::Dataset;
use codec::CodecId;
use engine::{CodecEffort, Volume};
use surface::{DeviceId, ErrorKind, OpCounts, OpKind, Traffic};

use super::{Row, grown};
use crate::service::Service;
use crate::traffic::OfVolume;

/// Ticks during which an object counts as active after a change.
const MOVING_TICKS: u64 = 10;
/// Maximum number of objects whose space is sampled: the list of opened ones may be long, and space
/// is sampled each second.
const SPACES_MAX: usize = 256;

/// Current counts of one object at a door, and those of the last sample.
struct Door {
    name: &'static str,
    traffic: Arc<Traffic>,
    operations: Vec<OpCounts>,
    failures: [u64; ErrorKind::ALL.len()],
}

/// The counts of one object at its doors.
struct Watched {
    doors: Vec<Door>,
    /// Sum of the doors' counts at the last sample.
    touched: u64,
    /// Tick of the last change.
    moved: u64,
    /// With the recorded CPU time, of which the effort has an estimate.
    codecs: BTreeMap<CodecId, (CodecEffort, u64)>,
    cache: [u64; 2],
    space: Option<(u64, u64)>,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Objects {
    /// Generation of the table of doors when it was read.
    generation: Option<u64>,
    watched: BTreeMap<DeviceId, Watched>,
}

impl Objects {
    /// Samples the objects that are due; all of them if `is_last`.
    pub(super) fn sample(&mut self, service: &Service, tick: u64, is_last: bool, row: &mut Row) {
        self.refresh(service);
        let mut gone = Vec::new();
        for (number, (id, watched)) in self.watched.iter_mut().enumerate() {
            let is_due = is_last || (tick + number as u64).is_multiple_of(MOVING_TICKS);
            let has_space = number < SPACES_MAX;
            if is_due || tick - watched.moved.min(tick) < MOVING_TICKS {
                match service.pool().volume_of(*id) {
                    Ok(volume) => {
                        watched.look(&volume, id.0, tick, row);
                        if has_space && (is_due || watched.space.is_none()) {
                            watched.space = Some(volume.space());
                        }
                    }
                    Err(error) => {
                        if error.kind() == ErrorKind::NotFound {
                            // It was destroyed after its clients' last operations.
                            watched.count_operations(id.0, tick, row);
                            gone.push(*id);
                        }
                        continue;
                    }
                }
            }
            let (logical, stored) = watched.space.unwrap_or_default();
            row.put(Dataset::OBJECTS, &["logical"], id.0, logical);
            row.put(Dataset::OBJECTS, &["stored"], id.0, stored);
        }
        gone.into_iter().for_each(|id| service.devices().traffics().forget(id));
    }

    /// Adds new objects and doors, and drops those that are gone.
    fn refresh(&mut self, service: &Service) {
        let traffics = service.devices().traffics();
        let generation = traffics.generation();
        if self.generation == Some(generation) {
            return;
        }
        let list = traffics.list(None);
        self.add(list);
        self.generation = Some(generation);
    }

    fn add(&mut self, list: Vec<OfVolume>) {
        self.watched.retain(|id, _| list.iter().any(|(listed, _)| listed == id));
        for (id, doors) in list {
            let watched = self.watched.entry(id).or_insert_with(|| Watched {
                doors: Vec::new(),
                touched: 0,
                moved: 0,
                codecs: BTreeMap::new(),
                cache: [0; 2],
                space: None,
            });
            for (door, traffic) in doors {
                // Counts that were forgotten and then begun again are others of the same name.
                if !watched.doors.iter().any(|known| known.name == door && Arc::ptr_eq(&known.traffic, &traffic)) {
                    let operations = vec![OpCounts::default(); OpKind::ALL.len()];
                    watched.doors.push(Door { name: door, traffic, operations, failures: Default::default() });
                    watched.moved = u64::MAX;
                }
            }
        }
    }
}

impl Watched {
    /// Records what clients did since the last sample.
    fn count_operations(&mut self, object: u64, tick: u64, row: &mut Row) {
        let touched = self.doors.iter().fold(0u64, |sum, door| sum.wrapping_add(door.traffic.touched()));
        let has_moved = touched != self.touched;
        self.touched = touched;
        if has_moved {
            self.moved = tick;
            for Door { name, traffic, operations: before, failures } in &mut self.doors {
                for (kind, before) in OpKind::ALL.into_iter().zip(before) {
                    operations(kind, name, traffic, before, object, row);
                }
                for ((kind, before), now) in ErrorKind::ALL.into_iter().zip(failures).zip(traffic.failures()) {
                    row.put(Dataset::ERRORS, &[kind.name(), *name], object, grown(before, now));
                }
            }
        }
    }

    fn look(&mut self, volume: &Volume, object: u64, tick: u64, row: &mut Row) {
        self.count_operations(object, tick, row);
        if self.moved == u64::MAX {
            self.moved = tick;
        }
        let effort = volume.effort();
        for (codec, effort) in effort.codecs {
            let (before, cpu) = self.codecs.entry(codec).or_default();
            if *before == effort {
                continue;
            }
            // Data is compressed some time after it was written.
            self.moved = tick;
            let name = codec.to_string();
            let values = [
                (Dataset::CODEC_UNITS, grown(&mut before.units, effort.units)),
                (Dataset::CODEC_RAW, grown(&mut before.raw_bytes, effort.raw_bytes)),
                (Dataset::CODEC_STORED, grown(&mut before.stored_bytes, effort.stored_bytes)),
            ];
            values.into_iter().for_each(|(dataset, value)| row.put(dataset, &[&name], object, value));
            // The estimate may decrease temporarily.
            let now = effort.cpu_ns().unwrap_or(0).max(*cpu);
            row.put(Dataset::CODEC_CPU, &[&name, "compress"], object, grown(cpu, now));
            *before = effort;
        }
        let cache = [effort.cache_hits, effort.cache_misses];
        for ((result, before), now) in ["hit", "miss"].into_iter().zip(&mut self.cache).zip(cache) {
            row.put(Dataset::CACHE, &[result], object, grown(before, now));
        }
    }
}

/// Records the increments of operations of one kind.
fn operations(kind: OpKind, door: &str, traffic: &Traffic, before: &mut OpCounts, object: u64, row: &mut Row) {
    let now = traffic.counts(kind);
    let labels = [kind.name(), door];
    let mut count = 0;
    for (bucket, (before, now)) in before.buckets.iter().zip(now.buckets).enumerate() {
        let more = now.saturating_sub(*before);
        count += more;
        row.put(Dataset::LATENCY, &[labels[0], labels[1], &bucket.to_string()], 0, more);
    }
    row.put(Dataset::OPS, &labels, object, count);
    row.put(Dataset::BYTES, &labels, object, now.bytes.saturating_sub(before.bytes));
    row.put(Dataset::TIME, &labels, object, now.ns.saturating_sub(before.ns));
    *before = now;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(objects: &mut Objects, tick: u64) -> u64 {
        let mut row = Row::default();
        objects.watched.iter_mut().for_each(|(id, watched)| watched.count_operations(id.0, tick, &mut row));
        row.0.iter().filter(|sample| sample.key.dataset == Dataset::BYTES).map(|sample| sample.value).sum()
    }

    #[test]
    fn a_door_that_appears_between_two_samples_counts_from_zero() {
        let (mut objects, traffic) = (Objects::default(), Arc::new(Traffic::new(|| 0)));
        let write = |traffic: &Traffic, bytes| traffic.end(OpKind::Write, traffic.begin(), bytes);
        write(&traffic, 100);
        objects.add(vec![(DeviceId(7), vec![("share", Arc::clone(&traffic))])]);
        assert_eq!(bytes_of(&mut objects, 0), 100);
        let ftp = Arc::new(Traffic::new(|| 0));
        write(&ftp, 2000);
        objects.add(vec![(DeviceId(7), vec![("share", traffic), ("ftp", Arc::clone(&ftp))])]);
        assert_eq!((bytes_of(&mut objects, 1), bytes_of(&mut objects, 2)), (2000, 0));
        // The table forgot the counts, and a client that had the object open began others.
        let again = Arc::new(Traffic::new(|| 0));
        write(&again, 30);
        write(&ftp, 4);
        objects.add(vec![(DeviceId(7), vec![("ftp", again)])]);
        assert_eq!((bytes_of(&mut objects, 3), bytes_of(&mut objects, 4)), (34, 0));
    }
}
