//! The figures of `/metrics`: the objects listed by name, and the sums of the others.
//!
//! Owns the set of named objects, and the sums over all objects ([`Totals`]). An object is admitted
//! when it is first used, or first seen while there is space, and stays until it is destroyed: names
//! that disappear and return would break rates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use codec::Codec;
use doors::Door;
use fe_http::{Figures, ObjectFigures};
use operations::{Caller, Reply, Request, Role, Who};
use parking_lot::Mutex;
use report::{DoorTraffic, ObjectKind, StatusReport, VolumeReport, VolumeTraffic};
use surface::Result;

use super::totals::Totals;
use crate::service::Service;
use crate::traffic::{COMMANDS, OTHERS, OfVolume, SHARES, TREES};

/// Maximum number of named objects.
const NAMED_MAX: usize = 1000;
/// Common label of the others, and of snapshots.
const OTHER: &str = "(other)";
const SNAPSHOTS: &str = "(snapshots)";
/// Properties used as labels.
const LABELS: [&str; 3] = ["compression", "mode", "unit"];

/// Doors of volumes, as their clients name them ([`surface::Client::door`]).
const NBD: &str = "nbd";
const MOUNT: &str = "mount";

/// See the module's text.
#[derive(Default)]
pub(super) struct Named {
    admitted: Mutex<BTreeSet<u64>>,
    totals: Mutex<Totals>,
}

impl Named {
    /// Admits existing objects, used ones first.
    fn admit(&self, used: impl Iterator<Item = u64>, all: &BTreeSet<u64>) -> BTreeSet<u64> {
        let mut named = self.admitted.lock();
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
        let pool = service.pool();
        let power = pool.machine().power;
        let table = service.devices().traffics().list(None);
        let doors = known_doors(&status, service.devices().traffics().callers().doors(), &table);
        let mut codecs = codecs_of(&in_force(service, None));
        let properties_of = |name: &str| {
            let properties = in_force(service, Some(name));
            codecs.extend(codecs_of(&properties));
            properties
        };
        let objects = objects(volumes, &named, properties_of);
        let mut totals = self.totals.lock();
        totals.begin(codecs, doors.iter().copied().filter(|door| counts_failures(door)));
        totals.add_efforts(&traffic.volumes, power);
        totals.add_decompressed(&pool.figures().decoded, power);
        totals.add_failures(&table);
        totals.add_ended(&jobs, status.scrub.finished_unix_s);
        let [cache_hits, cache_misses] = totals.cache();
        Ok(Figures {
            status,
            objects,
            traffic: summed(traffic.volumes, label),
            doors: doors.into_iter().map(str::to_owned).collect(),
            failures: totals.failures(),
            codecs: totals.codecs(),
            cache_hits,
            cache_misses,
            energy_source: power.source().name().to_owned(),
            bucket_ends_ns: traffic.bucket_ends_ns,
            jobs,
            last_success_unix_s: totals.last_success_unix_s(),
            objects_unnamed,
        })
    }
}

/// Returns the doors that are served now, and those that were used.
fn known_doors(status: &StatusReport, of_network: Vec<&'static str>, table: &[OfVolume]) -> BTreeSet<&'static str> {
    let of_server = [
        (true, COMMANDS),
        (!status.nbd.is_empty(), NBD),
        (status.mount.is_some(), MOUNT),
        (status.shares.is_some(), SHARES),
        (status.shares.is_some(), TREES),
    ];
    let served = of_server.into_iter().filter(|(is_served, _)| *is_served).map(|(_, door)| door);
    let used = table.iter().flat_map(|(_, doors)| doors.iter().map(|(door, _)| *door));
    served.chain(of_network).chain(used).collect()
}

/// Returns whether failures are counted at a door. Those of data of shares are counted at the tree.
fn counts_failures(door: &str) -> bool {
    ![SHARES, OTHERS].contains(&door) && Door::of_property(door).is_none()
}

/// Returns the properties in force for an object or for the pool; none if the object was destroyed.
fn in_force(service: &Service, name: Option<&str>) -> BTreeMap<String, String> {
    let properties = service.pool().properties(name).unwrap_or_default();
    properties.into_iter().map(|property| (property.key, property.value)).collect()
}

/// Returns the codecs that can store new data with these properties, by their names in counts.
fn codecs_of(properties: &BTreeMap<String, String>) -> BTreeSet<String> {
    let value = |key: &str| properties.get(key).map_or("", String::as_str);
    let names = match value("compression") {
        "auto" => value("candidates"),
        fixed => fixed,
    };
    let codecs = names.split(',').filter_map(|name| name.parse::<Codec>().ok());
    // Data that does not become smaller is stored as it is.
    codecs.chain([Codec::Off]).map(|codec| codec.id().to_string()).collect()
}

fn objects(
    volumes: Vec<VolumeReport>,
    named: &BTreeSet<u64>,
    mut properties_of: impl FnMut(&str) -> BTreeMap<String, String>,
) -> Vec<ObjectFigures> {
    let mut other = ObjectFigures { object: OTHER.to_owned(), ..ObjectFigures::default() };
    let mut lines = Vec::new();
    for volume in volumes {
        if !named.contains(&volume.id) {
            other.size_bytes += volume.size_bytes;
            other.logical_bytes += volume.allocated_bytes;
            other.stored_bytes += volume.stored_bytes;
            continue;
        }
        let mut properties = properties_of(&volume.name);
        properties.retain(|key, _| LABELS.contains(&key.as_str()));
        lines.push(ObjectFigures {
            kind: if volume.share { "share" } else { "volume" }.to_owned(),
            folder: volume.name.rsplit_once('/').map_or_else(String::new, |(folder, _)| folder.to_owned()),
            object: volume.name,
            properties,
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
    fn doors_that_are_served_are_known_before_their_first_operation() {
        let known = |status: &StatusReport, of_network, table: &[OfVolume]| {
            known_doors(status, of_network, table).into_iter().collect::<Vec<_>>()
        };
        let mut status = StatusReport::default();
        assert_eq!(known(&status, Vec::new(), &[]), ["command"]);
        status.nbd = vec!["unix:/nbd.sock".to_owned()];
        status.shares = Some("/shares".to_owned());
        let traffic = Arc::new(surface::Traffic::new(|| 0));
        let table = [(surface::DeviceId(1), vec![("nbd", Arc::clone(&traffic)), ("ublk", traffic)])];
        assert_eq!(known(&status, vec!["smb"], &table), ["command", "nbd", "share", "smb", "tree", "ublk"]);
        let counting: Vec<_> =
            ["mount", "nfs", "other", "share", "tree"].into_iter().filter(|door| counts_failures(door)).collect();
        assert_eq!(counting, ["mount", "tree"]);
    }

    #[test]
    fn codecs_are_those_that_properties_allow() {
        let codecs = |compression: &str, candidates: &str| {
            let pairs = [("compression", compression), ("candidates", candidates)];
            let properties = BTreeMap::from(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())));
            codecs_of(&properties).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(codecs("gzip-9", "zstd-3,lz4"), ["gzip-9", "raw"]);
        assert_eq!(codecs("auto", "zstd-3,lz4"), ["lz4", "raw", "zstd-3"]);
        assert_eq!(codecs("off", ""), ["raw"]);
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
