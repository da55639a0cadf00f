//! Dictionaries through the whole engine: when a volume gets one, how much it saves, how long it
//! lives, and that no data is ever read with the wrong one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolEnv, PoolOptions, Properties, SalvageReport, Training};
use sim::{ContentKind, Machine, Rng, fill_content};
use surface::{BlockDevice, DeviceSet, ErrorKind, WriteOptions};

const EXTENT: u32 = 256 << 10;
const MIB: usize = 1 << 20;

struct World {
    machine: Machine,
    training: Training,
    memory_bytes: u64,
    pool: Option<Pool>,
}

fn properties(pairs: &[(&str, &str)]) -> Properties {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

impl World {
    /// A pool of units of 4 KiB and a volume `v`.
    fn new(pairs: &[(&str, &str)]) -> Self {
        let training = Training { sample_bytes: 256 << 10, pause_bytes: 0, ..Training::default() };
        let mut world = Self { machine: Machine::new(96 << 20, 11), training, memory_bytes: 64 << 20, pool: None };
        let mut all = properties(&[("unit", "4K"), ("candidates", "zstd-1,zstd-3")]);
        all.extend(properties(pairs));
        let format = FormatOptions { capacity_bytes: 96 << 20, extent_bytes: EXTENT, properties: all };
        Pool::format(&world.env(), &format).unwrap();
        world.open();
        world.pool().create_volume("v", 16 << 20, &Properties::new()).unwrap();
        world
    }

    fn env(&self) -> PoolEnv {
        crate::common::machine_env::env(&self.machine)
    }

    fn open(&mut self) {
        let options = PoolOptions {
            memory_bytes: self.memory_bytes,
            workers: 0,
            training: self.training,
            ..PoolOptions::default()
        };
        self.pool = Some(Pool::open(self.env(), options).unwrap());
    }

    fn reopen(&mut self) {
        self.pool.take().unwrap().close().unwrap();
        self.machine.restart();
        self.open();
    }

    /// The power fails and comes back.
    fn crash(&mut self) {
        self.machine.power.cut();
        self.pool = None;
        self.machine.power_cycle();
        self.open();
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }

    /// Writes, flushes, takes a checkpoint; the bytes of fragments that it made.
    fn write(&self, volume: &str, at: usize, data: &[u8]) -> u64 {
        let before = self.pool().status().fragment_bytes;
        let device = self.pool().volume(volume).unwrap();
        for (index, chunk) in data.chunks(128 << 10).enumerate() {
            let at = at + index * (128 << 10);
            device.write(at as u64, Bytes::copy_from_slice(chunk), WriteOptions::default()).unwrap();
        }
        self.pool().checkpoint().unwrap();
        self.pool().status().fragment_bytes - before
    }

    fn expect(&self, volume: &str, at: usize, data: &[u8]) {
        self.pool().drop_caches();
        let mut back = vec![0; data.len()];
        self.pool().volume(volume).unwrap().read(at as u64, &mut back).unwrap();
        assert!(back == data, "{volume} at byte {at} reads back");
    }

    fn check(&self) {
        let report = self.pool().check(false, &mut |_, _| ()).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }

    fn dictionaries(&self) -> u64 {
        self.pool().status().dictionaries
    }

    /// Returns the number of units stored with a dictionary.
    fn helped(&self, volume: &str) -> u64 {
        self.pool().flush().unwrap();
        let (regions, _) = self.pool().explain(volume, 0, 100).unwrap();
        regions.iter().flat_map(|r| &r.codecs).filter(|c| c.codec == "zstd-dictionary").map(|c| c.units).sum()
    }

    fn settle(&self) {
        for _ in 0..6 {
            self.pool().checkpoint().unwrap();
        }
    }

    /// All that was destroyed is gone, and the pool is whole.
    fn expect_nothing_left(&self, when: &str) {
        self.settle();
        let status = self.pool().status();
        assert_eq!((status.dictionaries, status.live_bytes, status.reaping), (0, 0, 0), "{when}: {status:?}");
        self.check();
    }

    /// A world whose volume has a dictionary for kind 1, and no data.
    fn trained() -> Self {
        let world = Self::new(&[]);
        world.write("v", 0, &records(1, 0, 2 * MIB));
        assert_eq!(world.pool().train().unwrap(), 1);
        world
    }
}

/// Records of a kind: those of one kind share their words, not their values.
fn records(kind: u64, seed: u64, len: usize) -> Vec<u8> {
    let mut words = Rng::new(1000 + kind);
    let word = |rng: &mut Rng| (0..6 + rng.index(12)).map(|_| b'a' + rng.below(26) as u8).collect::<Vec<_>>();
    let vocabulary: Vec<Vec<u8>> = (0..400).map(|_| word(&mut words)).collect();
    let mut rng = Rng::new(seed ^ kind << 32);
    let mut bytes = Vec::with_capacity(len + 64);
    while bytes.len() < len {
        let index = rng.index(vocabulary.len());
        bytes.extend_from_slice(&vocabulary[index]);
        bytes.push(b'=');
        bytes.extend_from_slice(format!("{:06x}\n", rng.below(1 << 24)).as_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn content(seed: u64, kind: ContentKind, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes = vec![0; len];
    bytes.chunks_mut(4096).for_each(|block| fill_content(&mut rng, kind, block));
    bytes
}

#[test]
fn a_volume_trains_a_dictionary_and_saves_with_it() {
    let mut world = World::new(&[]);
    let first = records(1, 0, 2 * MIB);
    let without = world.write("v", 0, &first);
    assert_eq!((world.dictionaries(), world.helped("v")), (0, 0));
    // In the background; the samples were complete after 1 MiB.
    world.pool().tick().unwrap();
    assert_eq!(world.dictionaries(), 1);
    let second = records(1, 5, 2 * MIB);
    let with = world.write("v", 4 * MIB, &second);
    assert!(with * 10 < without * 9, "{without} without, {with} with");
    assert!(world.helped("v") > 400, "{} of 512", world.helped("v"));
    let status = world.pool().status();
    assert!(status.dictionary_bytes > 1000 && status.dictionary_bytes < 64 << 10, "{status:?}");
    assert_eq!(status.unlisted_bytes, 0);
    assert!((with as f64) < without as f64 - 2.0 * status.dictionary_bytes as f64, "it has paid for itself");
    let detail = world.pool().explain_region("v", 5 << 20).unwrap();
    assert!(detail.dictionary.is_some());
    assert!(detail.trials.iter().all(|trial| trial.stored_bytes.is_some_and(|bytes| bytes < 2200)), "{detail:?}");
    // No user sees it.
    assert_eq!(world.pool().volumes().len(), 1);
    assert_eq!(world.pool().list().unwrap().len(), 1);
    for round in 0..3 {
        world.expect("v", 0, &first);
        world.expect("v", 4 * MIB, &second);
        world.check();
        if round == 0 {
            world.reopen()
        } else {
            world.crash()
        }
        assert_eq!(world.dictionaries(), 1);
    }
    // It is in force after a restart, too.
    let again = world.write("v", 8 * MIB, &records(1, 6, 2 * MIB));
    assert!(again * 10 < without * 9, "{without} without, {again} with");
}

#[test]
fn it_is_not_adopted_where_it_does_not_pay() {
    for (why, pairs, data) in [
        ("nothing repeats", &[][..], content(1, ContentKind::Random, 2 * MIB)),
        ("every unit has all that it needs", &[], content(2, ContentKind::Constant, 2 * MIB)),
        ("units are large", &[("unit", "32K")], records(1, 0, 2 * MIB)),
        ("it is switched off", &[("dictionary", "off")], records(1, 0, 2 * MIB)),
        ("no codec takes one", &[("candidates", "lz4,gzip-1")], records(1, 0, 2 * MIB)),
        ("the codec is named", &[("compression", "zstd-3")], records(1, 0, 2 * MIB)),
        ("there is too little data to pay its size", &[], records(1, 0, 40 << 10)),
    ] {
        let world = World::new(pairs);
        world.write("v", 0, &data);
        assert_eq!(world.pool().train().unwrap(), 0, "{why}");
        assert_eq!(world.dictionaries(), 0, "{why}");
        world.expect("v", 0, &data);
    }
}

/// Each region uses the dictionary that suits its data, not just the newest one.
#[test]
fn a_volume_of_several_kinds_has_several_dictionaries() {
    let world = World::new(&[("candidates", "zstd-3")]);
    let region = 4 * MIB;
    let mut best = Vec::new();
    for kind in 0..2 {
        world.write("v", kind as usize * region, &records(kind, 0, MIB));
        assert_eq!((world.pool().train().unwrap(), world.dictionaries()), (1, kind + 1));
        // Alone it has no choice.
        let alone = World::new(&[("candidates", "zstd-3")]);
        alone.write("v", 0, &records(kind, 0, MIB));
        assert_eq!(alone.pool().train().unwrap(), 1);
        best.push(alone.write("v", region, &records(kind, 7, MIB)));
    }
    let mut used = Vec::new();
    for (round, kind) in [1, 0, 1, 0].into_iter().enumerate() {
        let (at, new) = ((kind as usize + 2) * region - MIB, records(kind, 7, MIB));
        let (stored, best) = (world.write("v", at, &new), best[kind as usize]);
        // A region begins with its neighbour's until it has been compared a few times; then it
        // knows.
        let factor = if round < 2 { 1.1 } else { 1.01 };
        assert!(stored as f64 <= best as f64 * factor, "kind {kind}: {stored} beside another, {best} alone");
        let detail = world.pool().explain_region("v", at as u64).unwrap();
        assert_eq!(detail.dictionaries, 2);
        used.push(detail.dictionary.unwrap());
        world.expect("v", at, &new);
    }
    assert!(used[0] == used[2] && used[1] == used[3] && used[0] > used[1], "{used:?}");
    world.check();
}

#[test]
fn the_property_holds_for_what_is_written_afterwards() {
    let world = World::trained();
    let set =
        |value: &str| world.pool().set_properties(Some("v"), &[("dictionary".into(), Some(value.into()))]).unwrap();
    let (one, two) = (records(1, 1, MIB), records(1, 2, MIB));
    world.write("v", 4 * MIB, &one);
    let before = world.helped("v");
    set("off");
    world.write("v", 6 * MIB, &two);
    assert!(before > 200 && world.helped("v") == before);
    world.expect("v", 4 * MIB, &one);
    set("auto");
    world.write("v", 6 * MIB, &two);
    assert!(world.helped("v") > before + 200);
}

#[test]
fn data_that_changes_gets_another_one_and_recompression_gives_up_the_old() {
    let mut world = World::trained();
    let old = records(1, 1, MIB);
    world.write("v", 0, &old);
    // The same kind again: another dictionary would save no more.
    assert_eq!((world.pool().train().unwrap(), world.dictionaries()), (0, 1));
    let new = records(2, 1, 2 * MIB);
    world.write("v", 4 * MIB, &new);
    assert_eq!((world.pool().train().unwrap(), world.dictionaries()), (1, 2));
    world.write("v", 4 * MIB, &new);
    world.expect("v", 0, &old);
    world.expect("v", 4 * MIB, &new);

    let recompress = |world: &World| {
        let mut report = world.pool().recompress("v", None, 1 << 20, true).unwrap();
        while !report.is_finished {
            report = world.pool().recompress("v", None, 1 << 20, false).unwrap();
        }
    };
    // Data that only the old one makes small stays unchanged, and so does the old one.
    recompress(&world);
    assert_eq!(world.dictionaries(), 2);
    world.expect("v", 0, &old);
    // A snapshot needs it as the volume did.
    world.pool().snapshot("v", "s").unwrap();
    // All of the old kind, including data from before there was a dictionary: it is compressed with
    // the old one by now.
    world.write("v", 0, &new);
    recompress(&world);
    assert_eq!(world.dictionaries(), 2);
    world.expect("v@s", 0, &old);
    world.pool().destroy("v@s", false).unwrap();
    world.settle();
    recompress(&world);
    assert_eq!(world.dictionaries(), 1, "nothing needs it any more");
    world.expect("v", 0, &new[..MIB]);
    world.expect("v", 4 * MIB, &new);
    world.check();
    world.crash();
    assert_eq!(world.dictionaries(), 1);
    world.expect("v", 4 * MIB, &new);
    world.check();
}

#[test]
fn a_clone_uses_its_origins_and_keeps_it() {
    let mut world = World::trained();
    let data = records(1, 1, 2 * MIB);
    world.write("v", 0, &data);
    world.pool().snapshot("v", "s").unwrap();
    world.pool().clone_snapshot("v@s", "c", &Properties::new()).unwrap();
    let own = records(1, 2, MIB);
    let stored = world.write("c", 4 * MIB, &own);
    assert!(stored < (MIB / 2) as u64 && world.helped("c") > world.helped("v"), "{stored}");
    assert_eq!(world.dictionaries(), 1);
    world.pool().promote("c").unwrap();
    world.pool().destroy("v", true).unwrap();
    world.settle();
    for _ in 0..2 {
        assert_eq!(world.dictionaries(), 1);
        world.expect("c", 0, &data);
        world.expect("c", 4 * MIB, &own);
        world.check();
        world.crash();
    }
    world.pool().destroy("c", true).unwrap();
    world.expect_nothing_left("after the last volume");
}

/// The volume's last records go with one checkpoint, its dictionary with a later one; a crash comes
/// between any two steps.
#[test]
fn a_destroyed_volume_takes_its_dictionary_with_it_at_every_crash_point() {
    for point in 0..24 {
        let mut world = World::trained();
        world.pool().destroy("v", false).unwrap();
        let next = world.machine.power.next_point();
        world.machine.power.plan(next + point, sim::Fault::Crash);
        for _ in 0..6 {
            let _ = world.pool().checkpoint();
        }
        world.machine.power.clear_plan();
        world.crash();
        world.expect_nothing_left(&format!("point {point}"));
    }
}

/// A clone writes over all that it had of its origin, with the origin's dictionary. Then the origin is destroyed, and nothing is left of it but this dictionary.
#[test]
fn a_destroyed_origin_stays_for_the_dictionary_that_its_clones_use() {
    let mut world = World::trained();
    world.pool().snapshot("v", "s").unwrap();
    world.pool().clone_snapshot("v@s", "c", &Properties::new()).unwrap();
    let own = records(1, 1, 2 * MIB);
    world.write("c", 0, &own);
    assert!(world.helped("c") > 200, "{}", world.helped("c"));
    world.pool().destroy("v", true).unwrap();
    let expect_all = |world: &World, when: &str| {
        let (mut back, device) = (vec![0; own.len()], world.pool().volume("c").unwrap());
        world.pool().drop_caches();
        let read = device.read(0, &mut back);
        assert!(read.is_ok() && back == own, "HARNESS: {when}, the clone does not read back: {read:?}");
        assert_eq!(world.dictionaries(), 1, "HARNESS: {when}, the dictionary is gone");
        let problems = world.pool().check(false, &mut |_, _| ()).unwrap().problems;
        assert!(problems.is_empty(), "HARNESS: {when}: {problems:?}");
    };
    world.settle();
    expect_all(&world, "once reaping is done");
    world.crash();
    world.settle();
    expect_all(&world, "after a crash");
    world.pool().destroy("c", false).unwrap();
    world.expect_nothing_left("the clone is destroyed, too");
}

#[test]
fn partly_dead_units_with_a_dictionary_are_cut() {
    let world = World::trained();
    world.pool().set_properties(Some("v"), &[("unit".into(), Some("16K".into()))]).unwrap();
    let mut data = records(1, 1, 4 * MIB);
    world.write("v", 0, &data);
    assert!(world.helped("v") > 200);
    // Three of the four blocks of most units are overwritten.
    let patch = content(3, ContentKind::Random, 12 << 10);
    for unit in (0..data.len()).step_by(16 << 10).filter(|at| !at.is_multiple_of(5)) {
        data[unit..unit + patch.len()].copy_from_slice(&patch);
        let device = world.pool().volume("v").unwrap();
        device.write(unit as u64, Bytes::from(patch.clone()), WriteOptions::default()).unwrap();
    }
    world.pool().checkpoint().unwrap();
    while !world.pool().clean(true, 100).unwrap().is_finished {}
    world.pool().checkpoint().unwrap();
    let records = world.machine.store.dump();
    let records = records.iter().filter(|(key, _)| format::parse_record_key(key).is_some());
    let fragments = records.flat_map(|(_, record)| format::Record::decode(record).unwrap().fragments);
    // All of them were four blocks long.
    let cut = fragments.filter(|f| f.codec == 120 && f.count == 1).count();
    assert!(cut > 100, "{cut} pieces with a dictionary");
    world.expect("v", 0, &data);
    world.check();
}

#[test]
fn a_dictionary_that_cannot_be_read_for_a_while_is_used_again() {
    let world = World::trained();
    world.write("v", 0, &records(1, 1, 2 * MIB));
    let helped = world.helped("v");
    let dump = world.machine.store.dump();
    let record =
        dump.iter().find(|(key, _)| format::parse_record_key(key).is_some_and(|key| key.object.0 == 2)).unwrap();
    let fragment = format::Record::decode(&record.1).unwrap().fragments[0];
    world.machine.disk.break_reads(fragment.location..fragment.location + 1);
    world.pool().drop_caches();
    world.write("v", 8 * MIB, &records(1, 9, 2 * MIB));
    assert_eq!(world.helped("v"), helped, "what is written meanwhile does without");
    world.machine.disk.heal();
    world.write("v", 10 * MIB, &records(1, 11, 2 * MIB));
    assert_eq!(world.helped("v"), helped, "not every batch waits for it anew");
    world.machine.clock.advance_ms(60_000);
    let more = records(1, 10, 2 * MIB);
    world.write("v", 12 * MIB, &more);
    assert!(world.helped("v") > helped, "{helped} units had it before");
    world.expect("v", 12 * MIB, &more);
    world.check();
}

#[test]
fn a_damaged_dictionary_gives_errors_that_name_it_and_never_wrong_bytes() {
    let mut world = World::trained();
    let data = records(1, 1, 2 * MIB);
    world.write("v", 0, &data);
    let helped = world.helped("v");
    world.reopen();
    // The dictionary is the only object that is no volume: its fragment is found by its record.
    let dump = world.machine.store.dump();
    let record =
        dump.iter().find(|(key, _)| format::parse_record_key(key).is_some_and(|key| key.object.0 == 2)).unwrap();
    let fragment = format::Record::decode(&record.1).unwrap().fragments[0];
    world.machine.disk.flip_bit(fragment.location + 100, 3);
    let mut block = vec![0; 4096];
    let read = |world: &World, block: &mut Vec<u8>| {
        world.pool().drop_caches();
        let volume = world.pool().volume("v").unwrap();
        let blocks = (0..data.len()).step_by(4096);
        let failed = blocks.filter_map(|at| match volume.read(at as u64, block) {
            Ok(()) => {
                assert!(*block == data[at..at + 4096]);
                None
            }
            Err(error) => Some(error),
        });
        failed.collect::<Vec<_>>()
    };
    let failed = read(&world, &mut block);
    assert_eq!(failed.len() as u64, helped);
    assert!(
        failed.iter().all(|e| e.kind() == ErrorKind::Corrupt && e.to_string().contains("dictionary 2")),
        "{}",
        failed[0]
    );
    let report = world.pool().check(false, &mut |_, _| ()).unwrap();
    assert!(
        report.problems.iter().any(|p| p.volume.as_deref() == Some("v (dictionary 2)")),
        "{:?}",
        report.problems[0]
    );
    // Nothing more is written with it, and a new one takes its place.
    let more = records(1, 9, 2 * MIB);
    world.write("v", 8 * MIB, &more);
    assert_eq!(world.helped("v"), helped);
    world.expect("v", 8 * MIB, &more);
    assert_eq!(world.pool().train().unwrap(), 1);
    world.write("v", 8 * MIB, &more);
    assert!(world.helped("v") > helped + 400);
    world.expect("v", 8 * MIB, &more);
    // Its record is lost: it reads as zeroes, which is no dictionary.
    world.pool.take().unwrap().close().unwrap();
    world.machine.restart();
    world.machine.store.poke(&record.0, None);
    world.open();
    assert_eq!(read(&world, &mut block).len() as u64, helped);
}

/// Rebuilds the world's pool, which is closed, from its disk alone; with the machine that the new
/// pool lives on.
fn salvage(world: &World) -> (SalvageReport, Pool, Machine) {
    let (temporary, machine) = (Machine::new(4096, 3), Machine::new(192 << 20, 4));
    let env =
        |disk: &Machine, rest: &Machine| PoolEnv { disk: disk.disk.handle(), ..crate::common::machine_env::env(rest) };
    let format = FormatOptions { capacity_bytes: 192 << 20, extent_bytes: EXTENT, properties: Properties::new() };
    Pool::format(&env(&machine, &machine), &format).unwrap();
    let options = PoolOptions { memory_bytes: 64 << 20, workers: 0, ..PoolOptions::default() };
    let pool = Pool::open(env(&machine, &machine), options.clone()).unwrap();
    let report = pool.salvage(&env(&world.machine, &temporary), &options, &mut |_, _, _| Ok(())).unwrap();
    (report, pool, machine)
}

fn assert_reads(pool: &Pool, volume: &str, at: usize, data: &[u8]) {
    let mut back = vec![0; data.len()];
    pool.volume(volume).unwrap().read(at as u64, &mut back).unwrap();
    assert!(back == data, "{volume} at byte {at} was salvaged");
}

/// The dictionary of the volume itself, and that of a volume that has been destroyed since. A
/// snapshot may be called as they are.
#[test]
fn salvage_reads_what_needs_a_dictionary() {
    for destroyed in [false, true] {
        let mut world = World::trained();
        let data = records(1, 1, 2 * MIB);
        world.write("v", 0, &data);
        world.pool().snapshot("v", "dictionary").unwrap();
        world.pool().clone_snapshot("v@dictionary", "c", &Properties::new()).unwrap();
        let own = records(1, 2, MIB);
        world.write("c", 4 * MIB, &own);
        assert!(world.helped("c") > 200);
        if destroyed {
            world.pool().promote("c").unwrap();
            world.pool().destroy("v", true).unwrap();
            world.settle();
        }
        world.pool.take().unwrap().close().unwrap();
        world.machine.restart();
        let (report, pool, _machine) = salvage(&world);
        assert!(!report.is_lossy() && report.notes.is_empty(), "{report:?}");
        let names: Vec<_> = report.volumes.iter().map(|volume| volume.name.as_str()).collect();
        let expected: &[&str] = if destroyed { &["c@dictionary", "c"] } else { &["v@dictionary", "v", "c"] };
        assert_eq!(names, expected);
        assert_reads(&pool, "c", 0, &data);
        assert_reads(&pool, "c", 4 * MIB, &own);
        if !destroyed {
            assert_reads(&pool, "v", 0, &data);
        }
        let check = pool.check(false, &mut |_, _| ()).unwrap();
        assert!(check.problems.is_empty(), "{:?}", check.problems);
    }
}

#[test]
fn salvage_lists_what_needs_a_dictionary_that_is_damaged() {
    let mut world = World::trained();
    let data = records(1, 1, 2 * MIB);
    world.write("v", 0, &data);
    let helped = world.helped("v");
    world.reopen();
    let dump = world.machine.store.dump();
    let is_dictionary = |key: &[u8]| format::parse_record_key(key).is_some_and(|key| key.object.0 == 2);
    let (_, record) = dump.iter().find(|(key, _)| is_dictionary(key)).unwrap();
    let location = format::Record::decode(record).unwrap().fragments[0].location;
    world.machine.disk.flip_bit(location + 100, 3);
    world.pool.take().unwrap().close().unwrap();
    world.machine.restart();
    let (report, pool, _machine) = salvage(&world);
    let told = &report.volumes[0];
    assert!(report.is_lossy() && report.volumes.len() == 1, "{report:?}");
    assert_eq!((told.name.as_str(), told.damaged_bytes), ("v", helped * 4096));
    assert!(told.damaged.iter().all(|range| range.detail.contains("dictionary 2")), "{:?}", told.damaged[0]);
    let mut block = vec![0; 4096];
    for (index, expected) in data.chunks(4096).enumerate() {
        let at = index as u64 * 4096;
        pool.volume("v").unwrap().read(at, &mut block).unwrap();
        let is_damaged = told.damaged.iter().any(|range| at >= range.offset && at < range.offset + range.length);
        assert!(if is_damaged { block.iter().all(|byte| *byte == 0) } else { block == expected }, "byte {at}");
    }
}

/// A reader is in the middle of a read when it turns out to need a dictionary, while a checkpoint
/// waits for the reader.
#[test]
fn readers_load_dictionaries_while_checkpoints_are_taken() {
    let world = World::trained();
    let data = records(1, 1, 2 * MIB);
    world.write("v", 0, &data);
    drop(world.pool().volume("v").unwrap());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            for round in 0..400usize {
                world.pool().drop_caches();
                let at = round * 37 % 500 * 4096;
                let mut block = vec![0; 8192];
                world.pool().volume("v").unwrap().read(at as u64, &mut block).unwrap();
                assert!(block == data[at..at + 8192]);
            }
        });
        while !reader.is_finished() {
            world.pool().checkpoint().unwrap();
        }
    });
}

#[test]
fn one_training_adopts_a_dictionary_for_each_kind_and_each_region_uses_its_own() {
    const KIND: usize = 4 * MIB;
    let train = |kinds: &[u64]| {
        // One candidate: which of two is chosen hangs on how long they seem to take.
        let mut world = World::new(&[("candidates", "zstd-3")]);
        // Some hundred samples: fewer are not divided.
        (world.training.sample_bytes, world.memory_bytes) = (2 * MIB, 512 << 20);
        world.reopen();
        // Each kind in a region of its own, by which they are distinguished.
        for (region, kind) in kinds.iter().enumerate() {
            world.write("v", region * KIND, &records(*kind, 1, 2 * MIB));
        }
        let adopted = world.pool().train().unwrap();
        (world, adopted)
    };
    let (one, adopted) = train(&[1, 1, 1]);
    assert_eq!(adopted, 1, "one kind needs one, wherever it lies");
    let (world, adopted) = train(&[1, 2, 3]);
    assert!((2..=3).contains(&adopted), "{adopted} dictionaries for three kinds");
    assert_eq!(world.dictionaries(), adopted);
    // New data benefits, in every region: about as much as with a single kind.
    let fresh = |kind: u64| records(kind, 2, MIB);
    let least = one.write("v", 2 * MIB, &fresh(1));
    for (region, kind) in [1, 2, 3].into_iter().enumerate() {
        let before = world.helped("v");
        let stored = world.write("v", region * KIND + 2 * MIB, &fresh(kind));
        assert!(world.helped("v") - before >= 240, "kind {kind}: {} units of 256", world.helped("v") - before);
        assert!(stored < least * 5 / 4, "kind {kind}: {stored} bytes, {least} where it is alone");
    }
    for (region, kind) in [1, 2, 3].into_iter().enumerate() {
        world.expect("v", region * KIND, &records(kind, 1, 2 * MIB));
        world.expect("v", region * KIND + 2 * MIB, &fresh(kind));
    }
    world.check();
}

#[test]
fn the_number_of_dictionaries_of_a_volume_is_bounded() {
    let world = World::new(&[]);
    let mut parts = Vec::new();
    for kind in 0..20 {
        let data = records(kind, 0, MIB / 2);
        world.write("v", kind as usize * MIB / 2, &data);
        world.pool().train().unwrap();
        // Written again, with it.
        world.write("v", kind as usize * MIB / 2, &data);
        parts.push(data);
    }
    assert_eq!(world.dictionaries(), 16);
    for (kind, data) in parts.iter().enumerate() {
        world.expect("v", kind * MIB / 2, data);
    }
    world.check();
}

/// Returns the offsets of batches with entries of a kind in the data file, of any opening.
fn batches_with(world: &World, is_meant: impl Fn(&format::Entry) -> bool) -> Vec<u64> {
    let mut bytes = vec![0; 96 * MIB];
    world.machine.disk.peek(0, &mut bytes);
    let places = (EXTENT as usize..bytes.len()).step_by(4096);
    let has = |at: &usize| format::decode_batch(&bytes[*at..]).is_ok_and(|batch| batch.entries.iter().any(&is_meant));
    places.filter(has).map(|at| at as u64).collect()
}

/// No descriptor is left anywhere, and the cleaner has moved the dictionary: data of volumes shows
/// under other names, read with the dictionary; the dictionary itself is no volume, be it used,
/// unused or damaged.
#[test]
fn salvage_takes_no_dictionary_without_a_descriptor_for_a_volume() {
    for case in ["used", "unused", "damaged"] {
        let mut world = World::trained();
        let data = records(1, 1, 2 * MIB);
        if case != "unused" {
            world.write("v", 0, &data);
            assert!(world.helped("v") > 200);
        } else {
            world.write("v", 0, &content(3, ContentKind::Random, 2 * MIB));
        }
        world.pool().clean(true, 100).unwrap();
        world.pool.take().unwrap().close().unwrap();
        world.machine.restart();
        let is_move = |entry: &format::Entry| matches!(entry, format::Entry::Moves { object, .. } if object.0 == 2);
        assert!(!batches_with(&world, is_move).is_empty(), "the dictionary was moved");
        let describes = |entry: &format::Entry| matches!(entry, format::Entry::Object(_) | format::Entry::Catalogue(_));
        for at in batches_with(&world, describes) {
            world.machine.disk.poke(at, &[0; 4096]);
        }
        if case == "damaged" {
            let dump = world.machine.store.dump();
            let is_dictionary = |key: &[u8]| format::parse_record_key(key).is_some_and(|key| key.object.0 == 2);
            let (_, record) = dump.iter().find(|(key, _)| is_dictionary(key)).unwrap();
            let location = format::Record::decode(record).unwrap().fragments[0].location;
            world.machine.disk.flip_bit(location + 100, 3);
        }
        let (report, pool, _machine) = salvage(&world);
        let names: Vec<_> = report.volumes.iter().map(|volume| volume.name.as_str()).collect();
        assert_eq!(names, ["lost-1"], "{case}");
        assert!(report.is_lossy() && report.volumes[0].is_lost && !report.has_catalogue);
        assert_eq!(report.volumes[0].damaged_bytes > 0, case == "damaged");
        if case == "used" {
            assert_reads(&pool, "lost-1", 0, &data);
        }
    }
}
