//! Operations of clients are counted: each once, under its door, with its duration.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::support::{Dir, noise};
use operations::{Reply, Request, Which};
use report::{DoorTraffic, TrafficReport, VolumeTraffic};
use server::pool_dir::OpenPool;
use server::service::this_process;
use surface::{BlockDevice, NamedClient, PendingRead, Result, WriteOptions, ZeroOptions};

const BLOCK: usize = 4096;

fn pool() -> (OpenPool, Dir) {
    let dir = Dir::with_pool("256M");
    let open = dir.open();
    let properties = [("compression".to_owned(), "lz4".to_owned())].into();
    open.service.pool().create_volume("v", 1 << 20, &properties).unwrap();
    open.service.pool().create_volume("w", 1 << 20, &BTreeMap::new()).unwrap();
    (open, dir)
}

fn open_at(open: &OpenPool, volume: &str, door: &'static str) -> Arc<dyn BlockDevice> {
    open.service.devices().open(volume, &NamedClient::at(door, "a test")).unwrap()
}

fn report(open: &OpenPool, volume: Option<&str>) -> TrafficReport {
    match open.service.handle(&this_process(), Request::Traffic { object: volume.map(Which::from) }).unwrap() {
        Reply::Traffic(report) => *report,
        other => panic!("{other:?}"),
    }
}

fn door<'a>(volume: &'a VolumeTraffic, name: &str) -> &'a DoorTraffic {
    volume.doors.iter().find(|door| door.door == name).unwrap()
}

/// Returns the completed operations and bytes of each kind. The histograms have each once.
fn counts(door: &DoorTraffic) -> BTreeMap<&str, (u64, u64)> {
    for line in &door.operations {
        assert_eq!(line.histogram.iter().sum::<u64>(), line.count, "{line:?}");
        assert_eq!(line.count == 0, line.ns == 0, "{line:?}");
    }
    let done = door.operations.iter().filter(|line| line.count > 0);
    done.map(|line| (line.operation.as_str(), (line.count, line.bytes))).collect()
}

/// A batched read that keeps its result.
struct Pending {
    offset: u64,
    buf: Vec<u8>,
    done: Arc<Mutex<Vec<bool>>>,
}

impl PendingRead for Pending {
    fn offset(&self) -> u64 {
        self.offset
    }
    fn buf(&mut self) -> &mut [u8] {
        &mut self.buf
    }
    fn finish(self: Box<Self>, result: Result<()>) {
        self.done.lock().unwrap().push(result.is_ok());
    }
}

#[test]
fn each_operation_counts_once_at_its_door() {
    let (open, _dir) = pool();
    let device = open_at(&open, "v", "one");
    for block in 0..5 {
        device.write(block * BLOCK as u64, noise(BLOCK).into(), WriteOptions::default()).unwrap();
    }
    device.write(1 << 20, noise(BLOCK).into(), WriteOptions::default()).unwrap_err();
    device.flush().unwrap();
    device.flush().unwrap();
    device.discard(0, 2 * BLOCK as u64).unwrap();
    device.write_zeroes(0, BLOCK as u64, ZeroOptions::default()).unwrap();
    device.write_zeroes(0, BLOCK as u64, ZeroOptions { no_hole: true, ..ZeroOptions::default() }).unwrap();
    device.allocation(0, 1 << 20, 9).unwrap();
    device.read(0, &mut [0; 3 * BLOCK]).unwrap();
    let is_found = device.read_cached(2 * BLOCK as u64, &mut [0; BLOCK]).unwrap();
    let done = Arc::new(Mutex::new(Vec::new()));
    // The last of them reaches past the end.
    let mut offsets = [0, 8 * BLOCK as u64, 1 << 20].into_iter();
    device.read_many(&mut || {
        let offset = offsets.next()?;
        Some(Box::new(Pending { offset, buf: vec![0; BLOCK], done: done.clone() }))
    });
    assert_eq!(done.lock().unwrap().iter().filter(|is_ok| **is_ok).count(), 2);
    let other = open_at(&open, "v", "other");
    other.read(0, &mut [0; BLOCK]).unwrap();

    let found = report(&open, Some("v"));
    let [volume] = &found.volumes[..] else { panic!("{found:?}") };
    let cached = u64::from(is_found);
    let block = BLOCK as u64;
    let expected = BTreeMap::from([
        ("write", (7, 6 * block)),
        ("flush", (2, 0)),
        ("discard", (2, 3 * block)),
        ("look", (1, 0)),
        ("read", (4 + cached, (5 + cached) * block)),
    ]);
    assert_eq!(counts(door(volume, "one")), expected, "what failed counts, without bytes");
    assert_eq!(counts(door(volume, "other")), BTreeMap::from([("read", (1, block))]));
    assert_eq!((volume.kind.name(), found.bucket_ends_ns.len()), ("volume", 25));
    drop((device, other));
    open.close().unwrap();
}

#[test]
fn only_what_was_opened_and_is_there_is_told() {
    let (open, _dir) = pool();
    let names = |report: TrafficReport| report.volumes.into_iter().map(|volume| volume.volume).collect::<Vec<_>>();
    assert!(report(&open, None).volumes.is_empty());
    open_at(&open, "v", "one").write(0, noise(BLOCK).into(), WriteOptions::default()).unwrap();
    open.service.pool().snapshot("v", "s").unwrap();
    open_at(&open, "v@s", "one").read(0, &mut [0; BLOCK]).unwrap();
    let before = report(&open, None);
    assert_eq!(before.volumes.iter().map(|volume| volume.kind.name()).collect::<Vec<_>>(), ["volume", "snapshot"]);
    assert_eq!(names(before), ["v", "v@s"]);
    open.service.pool().rename("v", "x").unwrap();
    assert_eq!(names(report(&open, None)), ["x", "x@s"], "counts go on under the new name");
    assert_eq!(counts(door(&report(&open, Some("x")).volumes[0], "one"))["write"], (1, BLOCK as u64));
    open.service.devices().destroy("x", true, false).unwrap();
    assert!(report(&open, None).volumes.is_empty());
    let refused = open.service.handle(&this_process(), Request::Traffic { object: Some("x".into()) }).unwrap_err();
    assert_eq!(refused.kind(), surface::ErrorKind::NotFound);
    open.close().unwrap();
}

#[test]
fn what_was_written_is_told_by_codec_and_what_was_read_by_where_it_was() {
    let (open, _dir) = pool();
    let device = open_at(&open, "v", "one");
    // Half of them compress, and each unit lies in a group of its own.
    for unit in 0..8u64 {
        let data = if unit % 2 == 0 { noise(BLOCK) } else { vec![7; BLOCK] };
        device.write(unit << 17, data.into(), WriteOptions::default()).unwrap();
    }
    device.flush().unwrap();
    let found = report(&open, Some("v"));
    let codecs: BTreeMap<_, _> = found.volumes[0].codecs.iter().map(|line| (line.codec.as_str(), line)).collect();
    assert_eq!(codecs.keys().collect::<Vec<_>>(), [&"lz4", &"raw"]);
    let raw_bytes = 4 * BLOCK as u64;
    for (codec, line) in &codecs {
        assert_eq!((line.units, line.raw_bytes), (4, raw_bytes), "{codec}");
        assert_eq!(line.stored_bytes == raw_bytes, *codec == "raw", "{line:?}");
    }
    assert!(codecs["lz4"].stored_bytes < raw_bytes / 8 && codecs.values().any(|line| line.cpu_ns > Some(0)));
    let cache = || {
        let found = report(&open, Some("v"));
        (found.volumes[0].cache_hits, found.volumes[0].cache_misses)
    };
    assert_eq!(cache(), (0, 0), "nothing was read");
    device.read(1 << 17, &mut [0; BLOCK]).unwrap();
    assert_eq!(cache(), (0, 1));
    for _ in 0..3 {
        device.read(1 << 17, &mut [0; BLOCK]).unwrap();
    }
    assert_eq!(cache(), (3, 1));
    device.read(5000, &mut [0; BLOCK]).unwrap();
    assert_eq!(cache(), (3, 1), "holes are no units");
    drop(device);
    open.close().unwrap();
}

/// Counts of volumes that were destroyed stayed in memory until the server ended, unless a history
/// or a report looked at them.
#[test]
fn counts_of_destroyed_volumes_are_bounded_without_a_history() {
    const ROUNDS: usize = 300;
    let (open, _dir) = pool();
    let traffics = open.service.devices().traffics();
    open_at(&open, "v", "nbd");
    let listed = || traffics.list(None).len();
    let mut most = 0;
    for round in 0..ROUNDS {
        open.service.pool().create_volume("gone", 1 << 20, &BTreeMap::new()).unwrap();
        drop(open_at(&open, "gone", "nbd"));
        drop(open_at(&open, "gone", "command"));
        open.service.devices().destroy("gone", false, false).unwrap();
        most = most.max(listed());
        assert!(round > 0 || most == 2, "{most}");
    }
    assert!(most < ROUNDS && listed() == most, "{most}");
    assert_eq!(report(&open, None).volumes.len(), 1, "a report forgets the rest");
    assert_eq!(listed(), 1);
    open.close().unwrap();
}
