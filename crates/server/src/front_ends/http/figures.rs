//! The figures of `/metrics`: the objects listed by name, and the sums of the others.
//!
//! Owns the set of named objects. An object is admitted when it is first used, or first seen while
//! there is space, and stays until it is destroyed: names that disappear and return would break
//! rates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fe_http::{Figures, ObjectFigures};
use operations::{Caller, Reply, Request, Role, Who};
use parking_lot::Mutex;
use report::{DoorTraffic, ObjectKind, VolumeReport, VolumeTraffic};
use surface::Result;

use crate::service::Service;

/// Maximum number of named objects.
const NAMED_MAX: usize = 1000;
/// Common label of the others, and of snapshots.
const OTHER: &str = "(other)";
const SNAPSHOTS: &str = "(snapshots)";
/// Properties used as labels.
const LABELS: [&str; 3] = ["compression", "mode", "unit"];

/// See the module's text.
#[derive(Default)]
pub(super) struct Named(Mutex<BTreeSet<u64>>);

impl Named {
    /// Admits existing objects, used ones first.
    fn admit(&self, used: impl Iterator<Item = u64>, all: &BTreeSet<u64>) -> BTreeSet<u64> {
        let mut named = self.0.lock();
        named.retain(|id| all.contains(id));
        for id in used.filter(|id| all.contains(id)).chain(all.iter().copied()) {
            if named.len() >= NAMED_MAX {
                break;
            }
            named.insert(id);
        }
        named.clone()
    }

    /// Returns the current figures.
    pub(super) fn figures(&self, service: &Arc<Service>) -> Result<Figures> {
        let caller = Caller { who: Who::Server, from: "metrics".to_owned(), role: Role::Read };
        let ask = |request| service.handle(&caller, request);
        let Reply::Status(status) = ask(Request::Status)? else { return Err(Reply::Done.unexpected()) };
        let Reply::Volumes(volumes) = ask(Request::List)? else { return Err(Reply::Done.unexpected()) };
        let traffic = match ask(Request::Traffic { object: None })? {
            Reply::Traffic(traffic) => *traffic,
            other => return Err(other.unexpected()),
        };
        let Reply::Jobs(jobs) = ask(Request::Jobs)? else { return Err(Reply::Done.unexpected()) };
        let all = volumes.iter().map(|volume| volume.id).collect();
        let named = self.admit(traffic.volumes.iter().map(|volume| volume.id), &all);
        let objects_unnamed = (all.len() - named.len()) as u64;
        let label = |volume: &VolumeTraffic| match (named.contains(&volume.id), volume.kind) {
            (_, ObjectKind::Snapshot) => SNAPSHOTS.to_owned(),
            (true, _) => volume.volume.clone(),
            (false, _) => OTHER.to_owned(),
        };
        Ok(Figures {
            status,
            objects: objects(volumes, &named),
            traffic: summed(traffic.volumes, label),
            bucket_ends_ns: traffic.bucket_ends_ns,
            jobs,
            objects_unnamed,
        })
    }
}

fn objects(volumes: Vec<VolumeReport>, named: &BTreeSet<u64>) -> Vec<ObjectFigures> {
    let mut other = ObjectFigures { object: OTHER.to_owned(), ..ObjectFigures::default() };
    let mut lines = Vec::new();
    for volume in volumes {
        if !named.contains(&volume.id) {
            other.size_bytes += volume.size_bytes;
            other.logical_bytes += volume.allocated_bytes;
            other.stored_bytes += volume.stored_bytes;
            continue;
        }
        lines.push(ObjectFigures {
            kind: if volume.share { "share" } else { "volume" }.to_owned(),
            folder: volume.name.rsplit_once('/').map_or_else(String::new, |(folder, _)| folder.to_owned()),
            object: volume.name,
            properties: volume.properties.into_iter().filter(|(key, _)| LABELS.contains(&key.as_str())).collect(),
            size_bytes: volume.size_bytes,
            logical_bytes: volume.allocated_bytes,
            stored_bytes: volume.stored_bytes,
        });
    }
    lines.push(other);
    lines
}

/// Sums the traffic of objects with the same label.
fn summed(volumes: Vec<VolumeTraffic>, label: impl Fn(&VolumeTraffic) -> String) -> Vec<VolumeTraffic> {
    let mut sums: BTreeMap<String, VolumeTraffic> = BTreeMap::new();
    for mut volume in volumes {
        volume.volume = label(&volume);
        match sums.get_mut(&volume.volume) {
            None => drop(sums.insert(volume.volume.clone(), volume)),
            Some(sum) => add(sum, volume),
        }
    }
    sums.into_values().collect()
}

fn add(sum: &mut VolumeTraffic, more: VolumeTraffic) {
    sum.cache_hits += more.cache_hits;
    sum.cache_misses += more.cache_misses;
    for door in more.doors {
        match sum.doors.iter_mut().find(|known| known.door == door.door) {
            None => sum.doors.push(door),
            Some(known) => add_door(known, &door),
        }
    }
    for line in more.codecs {
        let Some(known) = sum.codecs.iter_mut().find(|known| known.codec == line.codec) else {
            sum.codecs.push(line);
            continue;
        };
        known.units += line.units;
        known.raw_bytes += line.raw_bytes;
        known.stored_bytes += line.stored_bytes;
        known.cpu_ns = known.cpu_ns.zip(line.cpu_ns).map(|(a, b)| a + b).or(known.cpu_ns).or(line.cpu_ns);
    }
}

fn add_door(sum: &mut DoorTraffic, more: &DoorTraffic) {
    for line in &more.operations {
        let Some(known) = sum.operations.iter_mut().find(|known| known.operation == line.operation) else {
            sum.operations.push(line.clone());
            continue;
        };
        known.count += line.count;
        known.bytes += line.bytes;
        known.ns += line.ns;
        known.histogram.iter_mut().zip(&line.histogram).for_each(|(sum, count)| *sum += count);
    }
}

#[cfg(test)]
mod tests {
    use report::OperationLine;

    use super::*;

    #[test]
    fn a_name_stays_until_its_object_is_destroyed() {
        let named = Named::default();
        let all: BTreeSet<u64> = (1..=1500).collect();
        let first = named.admit([1400, 1401].into_iter(), &all);
        assert!(first.len() == NAMED_MAX && first.contains(&1400) && first.contains(&1) && !first.contains(&1300));
        // An object used later finds no space, and displaces none.
        assert_eq!(named.admit([1300].into_iter(), &all), first);
        let fewer: BTreeSet<u64> = (2..=1500).collect();
        let next = named.admit([1300].into_iter(), &fewer);
        assert!(!next.contains(&1) && next.contains(&1300) && next.len() == NAMED_MAX);
    }

    #[test]
    fn traffic_of_the_same_label_is_summed_by_door_operation_and_codec() {
        let line = |operation: &str| OperationLine {
            operation: operation.to_owned(),
            count: 2,
            bytes: 10,
            ns: 5,
            histogram: vec![1, 1],
        };
        let door = |door: &str| DoorTraffic { door: door.to_owned(), operations: vec![line("read")] };
        let volume = |id, doors| VolumeTraffic {
            volume: format!("v{id}"),
            id,
            kind: ObjectKind::Volume,
            doors,
            codecs: Vec::new(),
            cache_hits: 1,
            cache_misses: 0,
        };
        let volumes = vec![volume(1, vec![door("nbd")]), volume(2, vec![door("nbd"), door("mount")])];
        let sums = summed(volumes, |_| OTHER.to_owned());
        let [sum] = &sums[..] else { panic!("{sums:?}") };
        assert_eq!((sum.volume.as_str(), sum.cache_hits, sum.doors.len()), (OTHER, 2, 2));
        let nbd = &sum.doors[0].operations[0];
        assert_eq!((nbd.count, nbd.bytes, nbd.ns, &nbd.histogram[..]), (4, 20, 10, &[2, 2][..]));
    }
}
