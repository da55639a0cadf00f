//! Streams between two pools: after any history of the one, every snapshot that is sent arrives
//! byte for byte in the other. Either crashes on the way, the stream is lost, or damaged, and
//! continues; until the last chunk nothing of it is visible.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::machine_env::env;
use crate::common::{Campaign, Ended, Failure, Shape, Tally, World};
use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions, Sender};
use format::STREAM_HEAD_BYTES;
use sim::{Fault, Machine, Rng};
use surface::{BlockDevice, Error, ErrorKind, WriteOptions};

/// Snapshots that arrived, streams that were resumed, damaged chunks that were refused: of all
/// runs.
static ARRIVED: AtomicU64 = AtomicU64::new(0);
static INCREMENTS: AtomicU64 = AtomicU64::new(0);
static RESUMED: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static SOURCE_CRASHES: AtomicU64 = AtomicU64::new(0);

/// The receiving pool, and its expected content.
struct Copy {
    machine: Machine,
    options: PoolOptions,
    pool: Option<Pool>,
    /// By volume: its snapshots, oldest first, and their content.
    holds: BTreeMap<String, Vec<(String, Vec<u8>)>>,
    crashes: u64,
}

fn image(pool: &Pool, name: &str) -> Result<Vec<u8>, Error> {
    let device = pool.volume(name)?;
    let mut bytes = vec![0xee; device.size_bytes() as usize];
    for (index, part) in bytes.chunks_mut(256 << 10).enumerate() {
        device.read((index * (256 << 10)) as u64, part)?;
    }
    Ok(bytes)
}

fn told(what: &str) -> impl Fn(Error) -> Failure + '_ {
    move |error| Failure(format!("{what}: {error}"))
}

/// Gives a chunk to a receiver; the report of the last one.
fn give(receiver: &mut engine::Receiver, chunk: &[u8]) -> Result<Option<engine::ReceiveReport>, Error> {
    let (head, body) = chunk.split_first_chunk::<STREAM_HEAD_BYTES>().unwrap();
    receiver.take(head, body)
}

impl Copy {
    fn new(rng: &mut Rng) -> Self {
        let extent_bytes = *rng.pick(&[32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20]);
        let capacity_bytes = (24 << 20) + u64::from(extent_bytes) * 16;
        let machine = Machine::new(capacity_bytes, rng.next_u64());
        let format = FormatOptions { capacity_bytes, extent_bytes, properties: BTreeMap::new() };
        Pool::format(&env(&machine), &format).unwrap();
        let options = PoolOptions {
            memory_bytes: *rng.pick(&[512 << 10, 4 << 20]),
            workers: 0,
            checkpoint_log_bytes: *rng.pick(&[64 << 10, 1 << 20, 16 << 20]),
            ..PoolOptions::default()
        };
        let pool = Pool::open(env(&machine), options.clone()).unwrap();
        Self { machine, options, pool: Some(pool), holds: BTreeMap::new(), crashes: 0 }
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }

    /// The power fails and comes back.
    fn crash(&mut self) -> Result<(), Failure> {
        self.pool = None;
        self.machine.power.clear_plan();
        self.machine.power_cycle();
        self.crashes += 1;
        self.pool = Some(Pool::open(env(&self.machine), self.options.clone()).map_err(told("open after a crash"))?);
        Ok(())
    }

    /// Everything is as it must be: no snapshot is there that did not arrive, none is gone, none
    /// has changed.
    fn verify(&self) -> Result<(), Failure> {
        let names: Vec<String> = self.pool().volumes().into_iter().map(|v| v.name).collect();
        let expected: Vec<String> = self.holds.keys().cloned().collect();
        if names != expected {
            return Err(Failure(format!("the copy has volumes {names:?}, expected {expected:?}")));
        }
        for (volume, snapshots) in &self.holds {
            let there = self.pool().snapshots(Some(volume)).map_err(told("snapshots"))?;
            let there: Vec<String> = there.into_iter().map(|s| s.name).collect();
            let expected: Vec<&String> = snapshots.iter().map(|(name, _)| name).collect();
            if there.iter().collect::<Vec<_>>() != expected {
                return Err(Failure(format!("'{volume}' has snapshots {there:?}, expected {expected:?}")));
            }
            for (name, bytes) in snapshots {
                let title = format!("{volume}@{name}");
                if image(self.pool(), &title).map_err(told(&title))? != *bytes {
                    return Err(Failure(format!("'{title}' holds something else than was sent")));
                }
            }
            if let Some((_, newest)) = snapshots.last()
                && image(self.pool(), volume).map_err(told(volume))? != *newest
            {
                return Err(Failure(format!("'{volume}' is not what its newest snapshot is")));
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Failure> {
        let report = self.pool().check(false, &mut |_, _| ()).map_err(told("check"))?;
        if report.problems.is_empty() { Ok(()) } else { Err(Failure(format!("check: {:?}", report.problems))) }
    }
}

/// How one stream ended.
#[derive(Debug, PartialEq)]
enum Went {
    Whole,
    /// The receiver's power failed.
    Dark,
    /// The sender's did.
    SourceDark,
    /// The stream broke off, or was damaged and refused.
    Broken,
    /// The sender's snapshot went away.
    Gone,
}

/// Lets a stream run, with things happening to both sides on the way.
fn run_stream(source: &mut World, copy: &Copy, sender: &mut Sender, volume: &str) -> Result<Went, Failure> {
    // A volume brings its quota along, which may be less than its snapshots hold by now.
    let unlimited = [("quota".to_owned(), "none".to_owned())].into();
    let mut receiver = copy.pool().receive(volume, &unlimited);
    loop {
        if source.rng.percent(30) {
            let ended = source.step()?;
            if ended == Ended::Full {
                source.relieve()?;
            }
        }
        let next = sender.next_chunk();
        if source.machine.power.is_lost() {
            return Ok(Went::SourceDark);
        }
        let chunk = match next {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return Err(Failure("the stream ended, and there is no report".to_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Went::Gone),
            Err(error) => return Err(source.fail(format!("sending: {error}"))),
        };
        if source.rng.percent(8) {
            return Ok(Went::Broken);
        }
        if source.rng.percent(4) {
            let mut bad = chunk.clone();
            let bit = source.rng.index(bad.len() * 8);
            bad[bit / 8] ^= 1 << (bit % 8);
            return match give(&mut receiver, &bad) {
                Err(_) if copy.machine.power.is_lost() => Ok(Went::Dark),
                Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                    REFUSED.fetch_add(1, Ordering::Relaxed);
                    let error = give(&mut receiver, &chunk).unwrap_err();
                    if error.kind() != ErrorKind::Invalid {
                        return Err(Failure(format!("a receiver that had failed said {error}")));
                    }
                    Ok(Went::Broken)
                }
                other => Err(Failure(format!("bit {bit} of a chunk was flipped, and: {other:?}"))),
            };
        }
        match give(&mut receiver, &chunk) {
            Ok(Some(report)) => {
                if report.stream_bytes != sender.sent_bytes() || report.volume != volume {
                    return Err(Failure(format!("{report:?} of {} bytes", sender.sent_bytes())));
                }
                return Ok(Went::Whole);
            }
            Ok(None) => {}
            Err(_) if copy.machine.power.is_lost() => return Ok(Went::Dark),
            Err(error) => return Err(Failure(format!("receiving: {error}"))),
        }
        if source.rng.percent(20) {
            match source.rng.below(3) {
                0 => drop(copy.pool().tick()),
                1 => drop(copy.pool().clean(true, 5)),
                _ => drop(copy.pool().checkpoint()),
            }
            if copy.machine.power.is_lost() {
                return Ok(Went::Dark);
            }
        }
    }
}

/// Sends one snapshot until it has arrived, or cannot be sent any more.
fn bring(source: &mut World, copy: &mut Copy, volume: &str, snapshot: &str, from: Option<&str>) -> Result<(), Failure> {
    let bytes = image(source.pool(), snapshot).map_err(told(snapshot))?;
    let name = snapshot.split_once('@').unwrap().1.to_owned();
    let mut sender = Some(source.pool().send(snapshot, from).map_err(told("send"))?);
    for round in 0.. {
        if round == 60 {
            return Err(Failure(format!("'{snapshot}' does not arrive")));
        }
        let chunk_bytes = *source.rng.pick(&[4096, 4096, 20_000, 200_000, 1 << 20]);
        let Some(mut stream) = sender.take().map(|sender| sender.with_chunk_bytes(chunk_bytes)) else { break };
        if round < 20 && source.rng.percent(80) {
            let point = copy.machine.power.next_point() + source.rng.below(20);
            copy.machine.power.plan(point, Fault::Crash);
        }
        // Reads fail as well: a stream does little else in its source.
        source.machine.power.number_reads(true);
        if round < 20 && source.rng.percent(50) {
            source.plan_crash(30);
        }
        let went = run_stream(source, copy, &mut stream, volume)?;
        source.machine.power.number_reads(false);
        source.machine.power.clear_plan();
        if went != Went::Dark {
            copy.machine.power.clear_plan();
        }
        if went == Went::Whole {
            let (fragments, as_stored) = stream.fragments();
            assert!(as_stored <= fragments);
            copy.holds.entry(volume.to_owned()).or_default().push((name, bytes));
            ARRIVED.fetch_add(1, Ordering::Relaxed);
            INCREMENTS.fetch_add(from.is_some().into(), Ordering::Relaxed);
            return Ok(());
        }
        drop(stream);
        if went == Went::SourceDark || source.machine.power.is_lost() {
            source.crash()?;
            SOURCE_CRASHES.fetch_add(1, Ordering::Relaxed);
        } else if source.rng.percent(10) {
            source.reopen()?;
        }
        if went == Went::Dark || source.rng.percent(20) {
            copy.crash()?;
            let arrived = copy.pool().snapshots(None).map_err(told("snapshots"))?;
            // The power failed when all of it was there, before the client got the answer.
            if arrived.iter().any(|s| s.volume == volume && s.name == name) {
                copy.holds.entry(volume.to_owned()).or_default().push((name, bytes));
                ARRIVED.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
        }
        copy.verify()?;
        let left = copy.pool().receives();
        assert!(left.len() <= 1, "{left:?}");
        if source.rng.percent(30) {
            copy.check()?;
        }
        sender = match left.first() {
            _ if went == Went::Gone => None,
            Some(left) if source.rng.percent(80) => {
                assert_eq!((left.volume.as_str(), left.is_new), (volume, from.is_none()));
                RESUMED.fetch_add(1, Ordering::Relaxed);
                match source.pool().send_resumed(&left.token) {
                    Ok(sender) => Some(sender),
                    Err(error) if error.kind() == ErrorKind::NotFound => None,
                    Err(error) => return Err(Failure(format!("resuming: {error}"))),
                }
            }
            // From the beginning: existing data is skipped, or destroyed first.
            left => {
                if let Some(left) = left
                    && source.rng.coin()
                {
                    give_up(copy, left)?;
                }
                source.pool().send(snapshot, from).ok()
            }
        };
    }
    if let Some(left) = copy.pool().receives().first() {
        give_up(copy, left)?;
    }
    copy.verify()
}

fn give_up(copy: &Copy, left: &engine::ReceiveStatus) -> Result<(), Failure> {
    let name = if left.is_new { left.volume.clone() } else { format!("{}@{}", left.volume, left.snapshot) };
    copy.pool().destroy(&name, false).map_err(told("giving up"))?;
    assert!(copy.pool().receives().is_empty());
    copy.verify()?;
    copy.check()
}

/// A snapshot of the source to be sent, and the one before it that the copy has as its newest, if
/// there is one.
fn choose(source: &mut World, copy: &Copy) -> Option<(String, String, Option<String>)> {
    let all = source.model.all_names();
    let snapshots: Vec<&String> = all.iter().filter(|name| name.contains('@')).collect();
    if snapshots.is_empty() {
        return None;
    }
    let snapshot = (*source.rng.pick(&snapshots)).clone();
    let (volume, name) = snapshot.split_once('@').unwrap();
    let volume = format!("{volume}-copy");
    let Some(held) = copy.holds.get(&volume) else { return Some((volume, snapshot, None)) };
    if held.iter().any(|(held, _)| held == name) {
        return None;
    }
    // The same name does not mean the same snapshot: a foreign one is refused, which is tried here
    // too.
    let parent = format!("{}@{}", snapshot.split('@').next().unwrap(), held.last()?.0);
    all.contains(&parent).then_some((volume, snapshot, Some(parent)))
}

fn random_run(seed: u64) -> Result<Tally, Failure> {
    let small = |rng: &mut Rng| {
        let shape = Shape::small(rng);
        Shape { volume_bytes_max: shape.volume_bytes_max.min(1200 << 10), ..shape }
    };
    let mut source = World::new(seed, small)?;
    let mut copy = Copy::new(&mut source.rng);
    for _ in 0..12 {
        for _ in 0..source.rng.between(5, 40) {
            if source.step()? == Ended::Full {
                source.relieve()?;
            }
        }
        let Some((volume, snapshot, from)) = choose(&mut source, &copy) else { continue };
        if let Some(parent) = &from {
            // The copy's newest may be another snapshot of that name; or the names may have moved.
            let newest = copy.holds[&volume].last().unwrap().1.clone();
            let mut sender = source.pool().send(&snapshot, Some(parent)).map_err(told("send"))?;
            let first = sender.next_chunk().map_err(told("send"))?.unwrap();
            match give(&mut copy.pool().receive(&volume, &BTreeMap::new()), &first) {
                Ok(_) => {
                    if image(source.pool(), parent).map_err(told(parent))? != newest {
                        return Err(source.fail(format!("'{parent}' is taken for another snapshot")));
                    }
                }
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    copy.pool().destroy(&volume, true).map_err(told("destroy"))?;
                    copy.holds.remove(&volume);
                    copy.verify()?;
                    continue;
                }
                Err(error) => return Err(Failure(format!("a first chunk: {error}"))),
            }
        }
        bring(&mut source, &mut copy, &volume, &snapshot, from.as_deref())?;
        if source.rng.percent(20) {
            copy.crash()?;
        }
        copy.verify()?;
        // Too many volumes would fill the copy.
        if copy.holds.len() > 3 {
            let volume = copy.holds.keys().next().unwrap().clone();
            copy.pool().destroy(&volume, true).map_err(told("destroy"))?;
            copy.holds.remove(&volume);
        }
    }
    copy.check()?;
    source.verify_check()?;
    Ok(Tally { ops: source.op_number, crashes: copy.crashes, fulls: source.fulls, faults: 0 })
}

#[test]
fn random_streams() {
    let campaign = Campaign { file: "send", test: "random_streams", seeds: 400, soaks: true };
    let total = campaign.run(random_run);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (arrived, increments) = (count(&ARRIVED), count(&INCREMENTS));
    let (resumed, refused, of_source) = (count(&RESUMED), count(&REFUSED), count(&SOURCE_CRASHES));
    println!(
        "{arrived} snapshots arrived, {increments} as differences; {resumed} resumed, {refused} chunks refused, {of_source} crashes of the source"
    );
    let enough = arrived >= 800 && increments >= 150 && resumed >= 150 && refused >= 100;
    campaign.demand(enough, "800 snapshots, 150 differences, 150 resumed streams and 100 refused chunks");
    let crashed = total.crashes >= 500 && of_source >= 100;
    campaign.demand(crashed, "500 crashes of the receiver and 100 of the source");
}

/// Two pools without threads, and a volume with two snapshots in the first one.
struct Pair {
    machines: [Machine; 2],
    source: Pool,
    copy: Pool,
}

const OPTIONS: PoolOptions = PoolOptions {
    workers: 0,
    memory_bytes: 4 << 20,
    checkpoint_log_bytes: 1 << 20,
    settled_bytes_max: None,
    age_limit_ms: 5000,
    repair: false,
    accept_loss: false,
    training: engine::Training::USUAL,
    standby_bytes_max: 0,
};

fn new_pool(machine: &Machine, extent_bytes: u32) -> Pool {
    let properties = [("compression".to_owned(), "lz4".to_owned())].into();
    let format = FormatOptions { capacity_bytes: 48 << 20, extent_bytes, properties };
    Pool::format(&env(machine), &format).unwrap();
    Pool::open(env(machine), OPTIONS).unwrap()
}

/// Compressible bytes, other ones for each seed.
fn text(seed: u64, bytes: usize) -> Bytes {
    let mut rng = Rng::new(seed);
    let words: Vec<u64> = (0..64).map(|_| rng.next_u64()).collect();
    (0..bytes / 8).flat_map(|_| rng.pick(&words).to_le_bytes()).collect::<Vec<u8>>().into()
}

impl Pair {
    fn new(source_extents: u32, copy_extents: u32) -> Self {
        let machines = [Machine::new(48 << 20, 1), Machine::new(48 << 20, 2)];
        let source = new_pool(&machines[0], source_extents);
        let copy = new_pool(&machines[1], copy_extents);
        let own = [("unit".to_owned(), "128K".to_owned()), ("reservation".to_owned(), "1M".to_owned())].into();
        source.create_volume("v", 4 << 20, &own).unwrap();
        let device = source.volume("v").unwrap();
        device.write(0, text(1, 3 << 20), WriteOptions::default()).unwrap();
        source.snapshot("v", "a").unwrap();
        device.write(100 << 10, text(2, 300 << 10), WriteOptions::default()).unwrap();
        device.discard(1 << 20, 1 << 20).unwrap();
        source.resize_volume("v", 5 << 20).unwrap();
        device.write(4 << 20, text(3, 64 << 10), WriteOptions::default()).unwrap();
        source.snapshot("v", "b").unwrap();
        device.write(0, text(4, 4096), WriteOptions::default()).unwrap();
        Self { machines, source, copy }
    }

    fn chunks(&self, snapshot: &str, from: Option<&str>) -> Vec<Vec<u8>> {
        let mut sender = self.source.send(snapshot, from).unwrap().with_chunk_bytes(100_000);
        std::iter::from_fn(|| sender.next_chunk().unwrap()).collect()
    }

    fn receive(&self, volume: &str, chunks: &[Vec<u8>]) -> Result<Option<engine::ReceiveReport>, Error> {
        let mut receiver = self.copy.receive(volume, &BTreeMap::new());
        chunks.iter().try_fold(None, |_, chunk| give(&mut receiver, chunk))
    }

    fn same(&self, name: &str, there: &str) {
        assert_eq!(image(&self.source, name).unwrap(), image(&self.copy, there).unwrap(), "{name} and {there}");
    }

    fn check(&self) {
        let report = self.copy.check(false, &mut |_, _| ()).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

#[test]
fn a_volume_arrives_as_it_is_stored_with_its_history_and_properties() {
    let pair = Pair::new(1 << 20, 256 << 10);
    let (first, second) = (pair.chunks("v@a", None), pair.chunks("v@b", Some("a")));
    assert!(first.len() >= 10 && second.len() >= 4, "{} and {} chunks", first.len(), second.len());
    let report = pair.receive("w", &first).unwrap().unwrap();
    assert_eq!((report.volume.as_str(), report.snapshot.as_str(), report.is_new), ("w", "a", true));
    pair.same("v@a", "w@a");
    let report = pair.receive("w", &second).unwrap().unwrap();
    assert!(!report.is_new && report.hole_bytes >= 1 << 20, "{report:?}");
    assert_eq!(pair.copy.volume("w").unwrap().size_bytes(), 5 << 20);
    pair.same("v@a", "w@a");
    pair.same("v@b", "w@b");
    pair.same("v@b", "w");
    let properties = pair.copy.volumes().remove(0).properties;
    assert_eq!(properties, [("unit".to_owned(), "128K".to_owned())].into(), "no reservation");
    // From the copy on to a third one, and back: a snapshot is the same wherever it came from.
    pair.copy.volume("w").unwrap().write(8192, text(9, 4096), WriteOptions::default()).unwrap();
    pair.copy.snapshot("w", "c").unwrap();
    let mut back = pair.copy.send("w@c", Some("b")).unwrap();
    let mut receiver = pair.source.receive("v", &BTreeMap::new());
    let first = back.next_chunk().unwrap().unwrap();
    assert_eq!(give(&mut receiver, &first).unwrap_err().kind(), ErrorKind::Conflict, "v was written since");
    pair.source.rollback("v@b", false).unwrap();
    let mut receiver = pair.source.receive("v", &BTreeMap::new());
    give(&mut receiver, &first).unwrap();
    while let Some(chunk) = back.next_chunk().unwrap() {
        give(&mut receiver, &chunk).unwrap();
    }
    pair.same("v@c", "w@c");
    pair.same("v", "w");
    pair.check();
}

/// Nothing was ever written to it since it was made, so that its epoch was that of a volume without
/// history.
#[test]
fn a_promoted_clone_takes_a_difference() {
    let pair = Pair::new(1 << 20, 256 << 10);
    let (first, second) = (pair.chunks("v@a", None), pair.chunks("v@b", Some("a")));
    pair.receive("w", &first).unwrap();
    pair.copy.clone_snapshot("w@a", "c", &Default::default()).unwrap();
    pair.copy.promote("c").unwrap();
    pair.copy.destroy("w", true).unwrap();
    let mut receiver = pair.copy.receive("c", &BTreeMap::new());
    for chunk in &second {
        // The received part is in the store, and a reader looks at the volume at the same time.
        pair.copy.checkpoint().unwrap();
        pair.copy.drop_caches();
        image(&pair.copy, "c").unwrap();
        give(&mut receiver, chunk).unwrap();
    }
    for _ in 0..2 {
        pair.same("v@a", "c@a");
        pair.same("v@b", "c@b");
        pair.same("v@b", "c");
        pair.check();
        pair.copy.checkpoint().unwrap();
        pair.copy.drop_caches();
    }
}

#[test]
fn the_stream_is_as_large_as_what_is_stored() {
    let pair = Pair::new(1 << 20, 1 << 20);
    pair.source.checkpoint().unwrap();
    let mut sender = pair.source.send("v@a", None).unwrap();
    let expected = sender.begin().expected_bytes;
    while sender.next_chunk().unwrap().is_some() {}
    let (fragments, as_stored) = sender.fragments();
    assert_eq!(fragments, as_stored, "nothing was overwritten within an epoch");
    assert_eq!(sender.payload_bytes(), expected);
    assert!(sender.sent_bytes() < expected + expected / 100 + 1024, "{} for {expected}", sender.sent_bytes());
    // Units of b are partly those of a: data of a is not sent again.
    let mut sender = pair.source.send("v@b", Some("v@a")).unwrap();
    while sender.next_chunk().unwrap().is_some() {}
    assert!(sender.payload_bytes() < expected / 4, "{} of {expected}", sender.payload_bytes());
}

/// Work in the background rests while users are at work: a stream is their work, at either end.
#[test]
fn what_is_sent_and_received_counts_as_users_work() {
    let pair = Pair::new(1 << 20, 1 << 20);
    let foreground = |pool: &Pool| pool.scrub(0, false).unwrap().foreground_bytes;
    let before = [foreground(&pair.source), foreground(&pair.copy)];
    let mut sender = pair.source.send("v@a", None).unwrap();
    let chunks: Vec<_> = std::iter::from_fn(|| sender.next_chunk().unwrap()).collect();
    assert!(foreground(&pair.source) > before[0] + sender.payload_bytes());
    pair.receive("w", &chunks).unwrap().unwrap();
    assert!(foreground(&pair.copy) > before[1] + sender.payload_bytes());
}

#[test]
fn larger_units_are_divided_where_extents_are_small() {
    let pair = Pair::new(1 << 20, 32 << 10);
    pair.receive("w", &pair.chunks("v@a", None)).unwrap().unwrap();
    pair.receive("w", &pair.chunks("v@b", Some("a"))).unwrap().unwrap();
    pair.same("v@a", "w@a");
    pair.same("v@b", "w");
    pair.check();
}

#[test]
fn a_stream_that_is_cut_anywhere_shows_nothing_and_can_go_on() {
    let pair = Pair::new(1 << 20, 64 << 10);
    for (snapshot, from) in [("v@a", None), ("v@b", Some("a"))] {
        let chunks = pair.chunks(snapshot, from);
        for cut in 0..chunks.len() {
            assert!(pair.receive("w", &chunks[..cut]).unwrap().is_none());
            assert_eq!(pair.copy.volume("w").is_ok(), from.is_some());
            assert!(pair.copy.volume(&format!("w@{}", &snapshot[2..])).is_err());
            if from.is_some() {
                pair.same("v@a", "w");
            }
            let left = pair.copy.receives();
            assert_eq!(left.len(), usize::from(cut > 1), "cut {cut}: {left:?}");
            if let Some(left) = left.first() {
                // It cannot be mistaken for a volume or a snapshot, and nothing gets in its way.
                assert!(pair.copy.create_volume(&left.volume, 4096, &BTreeMap::new()).is_err());
                if !left.is_new {
                    assert_eq!(pair.copy.snapshot("w", "x").unwrap_err().kind(), ErrorKind::InUse);
                    assert_eq!(pair.copy.rollback("w@a", false).unwrap_err().kind(), ErrorKind::InUse);
                    assert_eq!(pair.copy.destroy("w", false).unwrap_err().kind(), ErrorKind::InUse);
                }
                let mut rest = pair.source.send_resumed(&left.token).unwrap().with_chunk_bytes(100_000);
                let first = rest.next_chunk().unwrap().unwrap();
                let other = give(&mut pair.copy.receive("other", &BTreeMap::new()), &first).unwrap_err();
                assert!(matches!(other.kind(), ErrorKind::Conflict), "{other}");
                let sent = rest.payload_bytes();
                let mut receiver = pair.copy.receive("w", &BTreeMap::new());
                give(&mut receiver, &first).unwrap();
                if cut == chunks.len() / 2 {
                    let title = if left.is_new { "w".to_owned() } else { format!("w@{}", left.snapshot) };
                    while let Some(chunk) = rest.next_chunk().unwrap() {
                        give(&mut receiver, &chunk).unwrap();
                    }
                    assert!(rest.payload_bytes() - sent < left.expected_bytes, "it began in the middle");
                    pair.same(snapshot, &format!("w@{}", &snapshot[2..]));
                    pair.copy.destroy(&format!("w@{}", &snapshot[2..]), false).unwrap();
                    if left.is_new {
                        pair.copy.destroy("w", true).unwrap();
                    } else {
                        pair.copy.rollback("w@a", false).unwrap();
                    }
                    assert!(pair.copy.destroy(&title, false).is_err());
                } else {
                    let title = if left.is_new { "w".to_owned() } else { format!("w@{}", left.snapshot) };
                    pair.copy.destroy(&title, false).unwrap();
                    assert!(give(&mut receiver, &rest.next_chunk().unwrap().unwrap()).is_err());
                }
                assert!(pair.copy.receives().is_empty());
            }
        }
        pair.receive("w", &chunks).unwrap().unwrap();
        pair.same(snapshot, "w");
        pair.check();
    }
}

/// Abandoning a new volume left a batch that could not be decoded: recovery ended there, and later
/// flushed data was gone.
#[test]
fn what_is_flushed_behind_a_stream_that_was_given_up_survives_a_crash() {
    for checkpoint in [false, true] {
        let pair = Pair::new(1 << 20, 256 << 10);
        let chunks = pair.chunks("v@a", None);
        assert!(pair.receive("w", &chunks[..4]).unwrap().is_none());
        pair.copy.destroy("w", false).unwrap();
        pair.copy.create_volume("x", 1 << 20, &BTreeMap::new()).unwrap();
        pair.copy.volume("x").unwrap().write(0, text(5, 4096), WriteOptions::default()).unwrap();
        if checkpoint {
            pair.copy.checkpoint().unwrap()
        } else {
            pair.copy.flush().unwrap()
        }
        let Pair { machines: [_, mut machine], copy, .. } = pair;
        drop(copy);
        machine.power.cut();
        machine.power_cycle();
        let copy = Pool::open(env(&machine), OPTIONS).unwrap();
        assert_eq!(image(&copy, "x").unwrap()[..4096], text(5, 4096)[..]);
        let check = copy.check(false, &mut |_, _| ()).unwrap();
        assert!(copy.receives().is_empty() && check.problems.is_empty(), "{:?}", check.problems);
    }
}

#[test]
fn what_does_not_fit_is_refused_with_what_to_do() {
    let pair = Pair::new(1 << 20, 256 << 10);
    let (first, second) = (pair.chunks("v@a", None), pair.chunks("v@b", Some("a")));
    let refused = |volume: &str, chunks: &[Vec<u8>], kind: ErrorKind, says: &str| {
        let error = pair.receive(volume, chunks).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "'{says}' is not in: {error}");
    };
    refused("w", &second, ErrorKind::NotFound, "needs the volume");
    pair.copy.create_volume("w", 4 << 20, &BTreeMap::new()).unwrap();
    refused("w", &first, ErrorKind::Exists, "under another name");
    refused("w", &second, ErrorKind::Conflict, "has no snapshot");
    pair.copy.snapshot("w", "x").unwrap();
    refused("w", &second, ErrorKind::Conflict, "a snapshot that both sides have");
    pair.copy.destroy("w", true).unwrap();
    pair.receive("w", &first).unwrap().unwrap();
    pair.copy.snapshot("w", "x").unwrap();
    refused("w", &second, ErrorKind::Conflict, "rollback -r");
    pair.copy.destroy("w@x", false).unwrap();
    let device = pair.copy.volume("w").unwrap();
    device.write(4096, text(7, 4096), WriteOptions::default()).unwrap();
    refused("w", &second, ErrorKind::Conflict, "written to (at byte 4096");
    pair.copy.rollback("w@a", false).unwrap();
    pair.copy.resize_volume("w", 8 << 20).unwrap();
    refused("w", &second, ErrorKind::Conflict, "resized");
    pair.copy.rollback("w@a", false).unwrap();
    // Written while the stream runs.
    let mut receiver = pair.copy.receive("w", &BTreeMap::new());
    let (last, others) = second.split_last().unwrap();
    others.iter().for_each(|chunk| drop(give(&mut receiver, chunk).unwrap()));
    device.write(4096, text(7, 4096), WriteOptions::default()).unwrap();
    assert_eq!(give(&mut receiver, last).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(image(&pair.copy, "w@a").unwrap(), image(&pair.source, "v@a").unwrap());
    // Another stream cannot go in between.
    let error = pair.receive("w", &first).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    pair.copy.destroy("w@b", false).unwrap();
    pair.copy.rollback("w@a", false).unwrap();
    pair.receive("w", &second).unwrap().unwrap();
    pair.same("v@b", "w");
    refused("w", &second, ErrorKind::Exists, "already");
    pair.check();
    // Senders refuse, too.
    let kind = |result: Result<Sender, Error>| result.unwrap_err().kind();
    assert_eq!(kind(pair.source.send("v", None)), ErrorKind::Invalid);
    assert_eq!(kind(pair.source.send("v@x", None)), ErrorKind::NotFound);
    assert_eq!(kind(pair.source.send("v@a", Some("x"))), ErrorKind::NotFound);
    assert_eq!(kind(pair.source.send("v@a", Some("v@a"))), ErrorKind::Invalid);
    assert_eq!(kind(pair.source.send_resumed("shale1-00")), ErrorKind::Invalid);
}

#[test]
fn a_volume_that_becomes_smaller_while_a_stream_comes_is_no_damage_of_the_stream() {
    let pair = Pair::new(1 << 20, 256 << 10);
    pair.receive("w", &pair.chunks("v@a", None)).unwrap().unwrap();
    // Data that is cut off here is sent as holes after the new end.
    pair.source.resize_volume("v", 2 << 20).unwrap();
    pair.source.snapshot("v", "c").unwrap();
    let chunks = pair.chunks("v@c", Some("a"));
    let (begin, others) = chunks.split_first().unwrap();
    let mut receiver = pair.copy.receive("w", &BTreeMap::new());
    assert!(give(&mut receiver, begin).unwrap().is_none());
    pair.copy.resize_volume("w", 1 << 20).unwrap();
    let error = others.iter().find_map(|chunk| give(&mut receiver, chunk).err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains("has been resized"), "{error}");
}

#[test]
fn a_volume_is_received_with_properties_that_hold_together() {
    let pair = Pair::new(1 << 20, 256 << 10);
    let chunks = pair.chunks("v@a", None);
    let own = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    for (name, properties) in [
        ("w".to_owned(), own(&[("reservation", "3M"), ("quota", "2M")])),
        ("w".repeat(250), own(&[("snapshots", "hourly")])),
    ] {
        let mut receiver = pair.copy.receive(&name, &properties);
        assert_eq!(give(&mut receiver, &chunks[0]).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[test]
fn a_snapshot_that_is_destroyed_while_it_is_sent_ends_the_stream() {
    let pair = Pair::new(1 << 20, 256 << 10);
    let mut sender = pair.source.send("v@a", None).unwrap().with_chunk_bytes(4096);
    for _ in 0..3 {
        sender.next_chunk().unwrap().unwrap();
    }
    pair.source.destroy("v@a", false).unwrap();
    pair.source.checkpoint().unwrap();
    let error = std::iter::from_fn(|| sender.next_chunk().transpose()).find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[test]
fn damage_in_the_source_is_not_sent() {
    let pair = Pair::new(1 << 20, 256 << 10);
    pair.source.checkpoint().unwrap();
    let Pair { machines, source, .. } = pair;
    drop(source);
    // Of every extent but the first, a byte where data stands.
    for extent in 1..10u64 {
        machines[0].disk.flip_bit((extent << 20) + 9000, 3);
    }
    let source = Pool::open(env(&machines[0]), OPTIONS).unwrap();
    let mut sender = source.send("v@a", None).unwrap();
    let error = std::iter::from_fn(|| sender.next_chunk().transpose()).find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("'v@a', byte"), "{error}");
}

#[test]
fn a_pool_that_is_full_says_so_and_goes_on_when_there_is_room() {
    let pair = Pair::new(1 << 20, 64 << 10);
    let small = Machine::new(32 << 20, 5);
    let format = FormatOptions { capacity_bytes: 1 << 20, extent_bytes: 32 << 10, properties: BTreeMap::new() };
    Pool::format(&env(&small), &format).unwrap();
    let pool = Pool::open(env(&small), OPTIONS).unwrap();
    let mut sender = pair.source.send("v@a", None).unwrap().with_chunk_bytes(64 << 10);
    let mut receiver = pool.receive("w", &BTreeMap::new());
    let error = loop {
        let chunk = sender.next_chunk().unwrap().unwrap();
        if let Err(error) = give(&mut receiver, &chunk) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    let left = pool.receives().remove(0);
    assert!(left.received_bytes > 0 && left.received_bytes < left.expected_bytes);
    pool.grow(32 << 20).unwrap();
    let mut rest = pair.source.send_resumed(&left.token).unwrap();
    let mut receiver = pool.receive("w", &BTreeMap::new());
    while let Some(chunk) = rest.next_chunk().unwrap() {
        give(&mut receiver, &chunk).unwrap();
    }
    assert_eq!(image(&pool, "w@a").unwrap(), image(&pair.source, "v@a").unwrap());
}
