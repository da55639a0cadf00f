//! The map is gone, and the log has everything: volumes, snapshots and clones are restored, after
//! any history, cleaning and crashes; of a damaged log the rest is restored, and the loss is named.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::machine_env::env;
use crate::common::salvage::salvage;
use crate::common::{Campaign, Ended, Failure, Shape, Tally, World};
use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions, Properties};
use sim::{Machine, Rng};
use surface::{BlockDevice, WriteOptions};

/// Blocks that showed discarded data.
static REAPPEARED: AtomicU64 = AtomicU64::new(0);
/// Salvages that were compared.
static COMPARED: AtomicU64 = AtomicU64::new(0);

fn has_catalogue(world: &World) -> bool {
    world.pool.as_ref().is_some_and(|pool| pool.status().catalogue_bytes > 0)
}

fn verify(world: &mut World, had_catalogue: bool) -> Result<(), Failure> {
    let reappeared = world.verify_salvage(had_catalogue)?;
    REAPPEARED.fetch_add(reappeared, Ordering::Relaxed);
    COMPARED.fetch_add(u64::from(had_catalogue && !world.model.is_in_doubt()), Ordering::Relaxed);
    Ok(())
}

/// Works until the power fails or the operations end.
fn work(world: &mut World, ops: u64) -> Result<(), Failure> {
    for _ in 0..ops {
        match world.step()? {
            Ended::Dark => break,
            Ended::Full => {
                if world.relieve()? == Ended::Dark {
                    break;
                }
            }
            Ended::Well | Ended::Limited | Ended::Disturbed => {}
        }
    }
    Ok(())
}

fn without_map(seed: u64) -> Result<Tally, Failure> {
    let mut world = World::new(seed, Shape::small)?;
    without_map_with(&mut world)?;
    Ok(world.tally())
}

fn without_map_with(world: &mut World) -> Result<(), Failure> {
    for _ in 0..4 {
        let crashes = world.rng.coin();
        if crashes {
            world.plan_crash(60);
        }
        work(world, 40)?;
        let had_catalogue = has_catalogue(world);
        if crashes {
            // As the power failure left it, before any recovery: the end of the log may be torn.
            world.machine.power.cut();
            world.abandon();
            world.machine.power.clear_plan();
            world.machine.power_cycle();
            world.model.crashed();
            verify(world, had_catalogue)?;
            world.crash()?;
        }
        if world.pool().flush().is_ok() {
            world.model.flushed_all();
        } else {
            continue;
        }
        let had_catalogue = has_catalogue(world);
        verify(world, had_catalogue)?;
    }
    Ok(())
}

#[test]
fn everything_comes_out_of_the_log_alone() {
    let campaign = Campaign { file: "salvage", test: "everything_comes_out_of_the_log_alone", seeds: 200, soaks: true };
    campaign.run(without_map);
    let (compared, reappeared) = (COMPARED.load(Ordering::Relaxed), REAPPEARED.load(Ordering::Relaxed));
    println!("{compared} salvages compared, {reappeared} discarded blocks reappeared");
    campaign.demand(compared >= 800, "800 salvages compared");
}

/// Bits flip anywhere: all data in the result was once written, or is listed.
fn damaged(seed: u64) -> Result<Tally, Failure> {
    let mut world = World::new(seed, Shape::small)?;
    work(&mut world, 80)?;
    let _ = world.pool().flush();
    world.abandon();
    world.machine.restart();
    let bytes = world.shape.capacity_bytes;
    for round in 0..6 {
        let copy = world.fork(seed ^ round);
        let mut rng = Rng::new(seed * 7 + round);
        let superblock = 64 << 10;
        for _ in 0..1 + rng.below(20) {
            match rng.below(4) {
                0 => {
                    let noise: Vec<u8> = (0..4096).map(|_| rng.next_u64() as u8).collect();
                    let at = superblock + rng.below((bytes - superblock) / 4096 - 1) * 4096;
                    copy.machine.disk.poke(at, &noise);
                }
                1 => {
                    let at = superblock + rng.below(bytes - superblock - 65536);
                    copy.machine.disk.break_reads(at..at + 4096);
                }
                _ => copy.machine.disk.flip_bit(superblock + rng.below(bytes - superblock), rng.below(8) as u8),
            }
        }
        // One copy of the superblock is enough.
        copy.machine.disk.flip_bit([0, 16384][rng.index(2)] + rng.below(4096), 3);
        let salvaged = salvage(&copy.machine, bytes.next_multiple_of(4096), seed)
            .map_err(|e| world.fail(format!("salvage: {e}")))?;
        for told in &salvaged.report.volumes {
            let device = salvaged.pool.volume(&told.name).map_err(|e| world.fail(e))?;
            if told.size_bytes != device.size_bytes() || told.size_bytes > 2 << 20 {
                continue;
            }
            let mut content = vec![0; told.size_bytes as usize];
            device.read(0, &mut content).map_err(|e| world.fail(e))?;
            for (block, data) in content.chunks(4096).enumerate() {
                if data.len() == 4096 && !world.model.is_known(block as u64, data) {
                    return Err(world.fail(format!("{} block {block} holds what nobody wrote there", told.name)));
                }
            }
            for range in &told.damaged {
                let data = &content[range.offset as usize..(range.offset + range.length) as usize];
                if data.iter().any(|byte| *byte != 0) {
                    return Err(world.fail(format!("{} is said to be damaged at {}", told.name, range.offset)));
                }
            }
        }
    }
    Ok(Tally { ops: world.op_number, crashes: 0, fulls: world.fulls, faults: 0 })
}

#[test]
fn a_damaged_log_gives_what_was_written_or_says_what_is_missing() {
    let campaign = Campaign {
        file: "salvage",
        test: "a_damaged_log_gives_what_was_written_or_says_what_is_missing",
        seeds: 100,
        soaks: false,
    };
    campaign.run(damaged);
}

const EXTENT: usize = 64 << 10;
const VOLUME_BYTES: usize = 1 << 20;
const POOL_BYTES: u64 = 16 << 20;

/// The batches at the starts of extents, by their numbers: where they are.
fn heads(machine: &Machine, incarnation: u64) -> BTreeMap<u64, u64> {
    let mut head = vec![0; EXTENT];
    let mut found = BTreeMap::new();
    for at in (EXTENT as u64..).step_by(EXTENT).take(POOL_BYTES as usize / EXTENT - 1) {
        machine.disk.peek(at, &mut head);
        let header = format::decode_batch(&head).map(|batch| batch.header);
        if let Some(header) = header.ok().filter(|header| header.incarnation == incarnation) {
            found.insert(header.seq.0, at);
        }
    }
    found
}

/// The process dies with many batches in flight; the first is missing, the heads of the next
/// extents are torn, and after them, where recovery does not look, some are whole. They never
/// happened: no client that was served has seen them.
#[test]
fn what_recovery_dropped_behind_torn_heads_stays_dropped() {
    for is_closed in [false, true] {
        let mut machine = Machine::new(POOL_BYTES, 5);
        let properties = [("compression".to_owned(), "off".to_owned())].into();
        let format = FormatOptions { capacity_bytes: POOL_BYTES, extent_bytes: EXTENT as u32, properties };
        Pool::format(&env(&machine), &format).unwrap();
        let options = PoolOptions { memory_bytes: 1 << 20, workers: 0, ..PoolOptions::default() };
        let open = |machine: &Machine| Pool::open(env(machine), options.clone()).unwrap();
        let (mut old, mut new) = (vec![0; VOLUME_BYTES], vec![0; VOLUME_BYTES]);
        let mut rng = Rng::new(7);
        rng.fill(&mut old);
        rng.fill(&mut new);
        let pool = open(&machine);
        pool.create_volume("v", VOLUME_BYTES as u64, &Properties::new()).unwrap();
        pool.volume("v").unwrap().write(0, Bytes::from(old.clone()), WriteOptions::default()).unwrap();
        pool.close().unwrap();
        machine.restart();
        let pool = open(&machine);
        pool.volume("v").unwrap().write(0, Bytes::from(new), WriteOptions::default()).unwrap();
        drop(pool);
        machine.restart();
        let heads: Vec<u64> = heads(&machine, 2).into_values().collect();
        assert!(heads.len() > 12, "{heads:?}");
        for at in &heads[..10] {
            machine.disk.poke(*at, &[0; 4096]);
        }
        let pool = open(&machine);
        let mut block = [0; 4096];
        let shown = |pool: &Pool, at: u64, block: &mut [u8]| pool.volume("v").unwrap().read(at, block).unwrap();
        let is_old = |at: u64, block: &[u8]| block == &old[at as usize..at as usize + 4096];
        let dropped: Vec<u64> = (0..VOLUME_BYTES as u64)
            .step_by(4096)
            .filter(|at| {
                shown(&pool, *at, &mut block);
                is_old(*at, &block)
            })
            .collect();
        assert!(dropped.len() > 128);
        // Nothing is written any more.
        if is_closed {
            pool.close().unwrap()
        } else {
            drop(pool)
        }
        machine.restart();
        let salvaged = salvage(&machine, POOL_BYTES, 3).unwrap();
        assert!(salvaged.report.has_catalogue, "{:?}", salvaged.report);
        for at in dropped {
            shown(&salvaged.pool, at, &mut block);
            assert!(is_old(at, &block), "HARNESS: byte {at} shows what never happened");
        }
    }
}

/// Salvaging broke off where a volume came to a quota: its own, that of the volume that a clone
/// came from, or the pool's.
#[test]
fn what_is_over_its_quota_comes_out_whole() {
    let machine = Machine::new(POOL_BYTES, 6);
    let format =
        FormatOptions { capacity_bytes: POOL_BYTES, extent_bytes: EXTENT as u32, properties: Properties::new() };
    Pool::format(&env(&machine), &format).unwrap();
    let options = PoolOptions { memory_bytes: 1 << 20, workers: 0, ..PoolOptions::default() };
    let pool = Pool::open(env(&machine), options).unwrap();
    let mut data = vec![0; VOLUME_BYTES];
    Rng::new(1).fill(&mut data);
    let data = Bytes::from(data);
    let write = |name: &str| pool.volume(name).unwrap().write(0, data.clone(), WriteOptions::default()).unwrap();
    for name in ["limited", "inherits"] {
        pool.create_volume(name, VOLUME_BYTES as u64, &Properties::new()).unwrap();
        write(name);
    }
    pool.snapshot("limited", "s").unwrap();
    pool.clone_snapshot("limited@s", "clone", &Properties::new()).unwrap();
    write("clone");
    let set = |name: Option<&str>, key: &str, value: &str| {
        pool.set_properties(name, &[(key.to_owned(), Some(value.to_owned()))]).unwrap();
    };
    set(Some("limited"), "quota", "128K");
    set(Some("limited"), "reservation", "100K");
    set(Some("clone"), "quota", "none");
    set(None, "quota", "64K");
    pool.flush().unwrap();
    let told = |pool: &Pool| pool.volumes().into_iter().map(|v| (v.name, v.properties)).collect::<Vec<_>>();
    let expected = told(&pool);
    drop(pool);
    let salvaged = salvage(&machine, POOL_BYTES, 3).unwrap();
    assert_eq!(told(&salvaged.pool), expected, "{:?}", salvaged.report);
    for (name, _) in expected {
        let mut got = vec![0; VOLUME_BYTES];
        salvaged.pool.volume(&name).unwrap().read(0, &mut got).unwrap();
        assert!(got == data, "'{name}' is not what it was");
    }
}

/// A descriptor written by a later version: an object with a property that this one does not know
/// is restored without its properties, clones as well.
#[test]
fn volumes_and_clones_with_unknown_properties_are_salvaged_without_them() {
    const BYTES: u64 = 8 << 20;
    let machine = Machine::new(BYTES, 9);
    let format = FormatOptions { capacity_bytes: BYTES, extent_bytes: 64 << 10, properties: Properties::new() };
    Pool::format(&env(&machine), &format).unwrap();
    let options = PoolOptions { workers: 0, ..PoolOptions::default() };
    let pool = Pool::open(env(&machine), options.clone()).unwrap();
    pool.create_volume("v", 64 << 10, &Properties::new()).unwrap();
    let write = |pool: &Pool, name: &str, byte: u8| {
        let data = Bytes::from(vec![byte; 4096]);
        pool.volume(name).unwrap().write(u64::from(byte) * 4096, data, WriteOptions::default()).unwrap();
    };
    write(&pool, "v", 1);
    pool.snapshot("v", "s").unwrap();
    pool.clone_snapshot("v@s", "c", &Properties::new()).unwrap();
    write(&pool, "c", 2);
    pool.close().unwrap();
    for (key, value) in machine.store.dump().into_iter().filter(|(key, _)| key[0] == b'O') {
        let mut descriptor = format::ObjectDescriptor::decode(&value).unwrap();
        if descriptor.state == format::ObjectState::Volume {
            descriptor.properties.insert("from-the-future".to_owned(), "yes".to_owned());
            machine.store.poke(&key, Some(&descriptor.encode()));
        }
    }
    let pool = Pool::open(env(&machine), options).unwrap();
    // So that the log knows.
    pool.rename("v", "w").unwrap();
    pool.rename("c", "d").unwrap();
    pool.close().unwrap();
    let salvaged = salvage(&machine, BYTES, 1).unwrap();
    for (name, there) in [("w", [1, 0]), ("w@s", [1, 0]), ("d", [1, 2])] {
        let mut data = vec![0xee; 8192];
        salvaged.pool.volume(name).unwrap().read(4096, &mut data).unwrap();
        assert_eq!([data[0], data[4096]], there, "{name}");
    }
    let notes = salvaged.report.notes.iter().filter(|note| note.contains("without its properties"));
    assert_eq!(notes.count(), 2, "{:?}", salvaged.report.notes);
}

/// Salvaging broke off at a volume whose name had become too long for the snapshots that the pool
/// has taken of each.
#[test]
fn a_name_that_is_too_long_for_the_schedule_costs_the_volume_its_schedule() {
    const BYTES: u64 = 8 << 20;
    let own = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    for (of_pool, of_volume) in [("hourly", None), ("off", Some(("snapshots", "hourly")))] {
        let machine = Machine::new(BYTES, 9);
        let properties = own(&[("snapshots", of_pool)]);
        let format = FormatOptions { capacity_bytes: BYTES, extent_bytes: 64 << 10, properties };
        Pool::format(&env(&machine), &format).unwrap();
        let pool = Pool::open(env(&machine), PoolOptions { workers: 0, ..PoolOptions::default() }).unwrap();
        let mut properties: Properties = own(&[("unit", "8K")]);
        properties.extend(of_volume.map(|(key, value)| (key.to_owned(), value.to_owned())));
        pool.create_volume("v", 64 << 10, &properties).unwrap();
        pool.volume("v").unwrap().write(0, Bytes::from(vec![7; 4096]), WriteOptions::default()).unwrap();
        pool.snapshot("v", "s").unwrap();
        let names = ["v".repeat(250), "c".repeat(250)];
        pool.clone_snapshot("v@s", "c", &Properties::new()).unwrap();
        pool.rename("v", &names[0]).unwrap_err();
        pool.close().unwrap();
        // Such names are refused, but a descriptor can have them.
        for (key, value) in machine.store.dump().into_iter().filter(|(key, _)| key[0] == b'O') {
            let mut descriptor = format::ObjectDescriptor::decode(&value).unwrap();
            if descriptor.state == format::ObjectState::Volume {
                descriptor.name = descriptor.name.repeat(249);
                machine.store.poke(&key, Some(&descriptor.encode()));
            }
        }
        let pool = Pool::open(env(&machine), PoolOptions { workers: 0, ..PoolOptions::default() }).unwrap();
        // So that the log has it; and a previously valid state is not refused.
        pool.rename(&"v".repeat(249), &names[0]).unwrap();
        pool.rename(&"c".repeat(249), &names[1]).unwrap();
        pool.close().unwrap();
        let salvaged = salvage(&machine, BYTES, 1).unwrap();
        let told: BTreeMap<_, _> = salvaged.pool.volumes().into_iter().map(|v| (v.name, v.properties)).collect();
        for name in &names {
            assert_eq!(told[name], own(&[("snapshots", "off"), ("unit", "8K")]), "{:?}", salvaged.report.notes);
            let mut data = [0; 4096];
            salvaged.pool.volume(name).unwrap().read(0, &mut data).unwrap();
            assert_eq!(data, [7; 4096]);
        }
        let mut notes = salvaged.report.notes.iter();
        assert!(notes.any(|note| note.contains("without scheduled snapshots")), "{:?}", salvaged.report.notes);
    }
}

/// Blocks in each third of a volume: data that is rolled back is written to the first one, other
/// data to the second one, and the third one is full before any rollback.
const THIRD: u64 = 256;

fn block_of(byte: u8, number: u64) -> Bytes {
    let mut block = vec![byte; 4096];
    block[..8].copy_from_slice(&number.to_le_bytes());
    Bytes::from(block)
}

/// Rolls a volume back again and again, with data and discards in between, by snapshots that are
/// destroyed immediately.
fn take_back(pool: &Pool, times: u64) {
    pool.create_volume("v", 3 * THIRD * 4096, &Properties::new()).unwrap();
    let volume = pool.volume("v").unwrap();
    let write = |block: u64, data: Bytes| volume.write(block * 4096, data, WriteOptions::default()).unwrap();
    (0..THIRD).for_each(|n| write(2 * THIRD + n, block_of(b'o', n)));
    for n in 0..times {
        pool.snapshot("v", "s").unwrap();
        write(n, block_of(b'x', n));
        volume.discard((2 * THIRD + n) * 4096, 4096).unwrap();
        pool.flush().unwrap();
        pool.rollback("v@s", false).unwrap();
        write(THIRD + n, block_of(b'g', n));
        pool.destroy("v@s", false).unwrap();
        pool.checkpoint().unwrap();
        pool.checkpoint().unwrap();
    }
}

#[test]
fn what_more_rollbacks_took_back_than_are_remembered_is_not_called_certain() {
    for times in [40, 200] {
        let mut machine = Machine::new(POOL_BYTES, 5);
        let properties = [("compression", "off"), ("unit", "4K")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let format = FormatOptions { capacity_bytes: POOL_BYTES, extent_bytes: EXTENT as u32, properties };
        Pool::format(&env(&machine), &format).unwrap();
        let options = PoolOptions { memory_bytes: 1 << 20, workers: 0, ..PoolOptions::default() };
        let pool = Pool::open(env(&machine), options).unwrap();
        take_back(&pool, times);
        let read = |pool: &Pool| {
            let mut content = vec![0; 3 * THIRD as usize * 4096];
            pool.volume("v").unwrap().read(0, &mut content).unwrap();
            content
        };
        let truth = read(&pool);
        pool.close().unwrap();
        machine.restart();
        let salvaged = salvage(&machine, POOL_BYTES, 3).unwrap();
        let shown = read(&salvaged.pool);
        let differ = truth.chunks(4096).zip(shown.chunks(4096)).filter(|(was, is)| was != is).count() as u64;
        let uncertain = salvaged.report.uncertain_bytes / 4096;
        let forgotten = times.saturating_sub(format::UNDONE_MAX as u64);
        println!("{times} rollbacks: {differ} blocks differ, {uncertain} are uncertain");
        assert!(differ <= uncertain, "{differ} blocks are not what they were, and only {uncertain} uncertain");
        // Written blocks, rolled-back blocks, and blocks hidden by a discard.
        assert!(uncertain <= 3 * forgotten, "{uncertain} blocks are uncertain after {forgotten} forgotten rollbacks");
        assert!(forgotten == 0 || differ > 0, "HARNESS: nothing was forgotten");
    }
}

/// Batches with a valid header, and where they begin.
fn batches(machine: &Machine, pool_bytes: u64) -> Vec<(u64, format::Batch)> {
    let mut bytes = vec![0; EXTENT];
    let mut found = Vec::new();
    for start in (EXTENT as u64..pool_bytes).step_by(EXTENT) {
        machine.disk.peek(start, &mut bytes);
        let decoded = |at: usize| format::decode_batch(&bytes[at..]).ok().map(|batch| (start + at as u64, batch));
        found.extend((0..EXTENT).step_by(4096).filter_map(decoded));
    }
    found
}

/// Like `what_recovery_dropped_behind_torn_heads_stays_dropped`, with many openings since, a newer
/// catalogue, and the earlier record of them overwritten. Openings after an orderly end are not
/// remembered; after too many crashes the report says so.
#[test]
fn what_never_happened_is_not_called_certain_after_any_number_of_openings() {
    const BYTES: u64 = 4 << 20;
    const POOL: u64 = 64 << 20;
    for (openings, are_crashes) in [(150, false), (150, true)] {
        let mut machine = Machine::new(POOL, 5);
        let properties = [("compression".to_owned(), "off".to_owned())].into();
        let format = FormatOptions { capacity_bytes: POOL, extent_bytes: EXTENT as u32, properties };
        Pool::format(&env(&machine), &format).unwrap();
        let options = PoolOptions { memory_bytes: 4 << 20, workers: 0, ..PoolOptions::default() };
        let open = |machine: &Machine| Pool::open(env(machine), options.clone()).unwrap();
        let write = |pool: &Pool, seed: u64| {
            let mut content = vec![0; BYTES as usize];
            Rng::new(seed).fill(&mut content);
            pool.volume("v").unwrap().write(0, Bytes::from(content), WriteOptions::default()).unwrap();
        };
        let pool = open(&machine);
        pool.create_volume("v", BYTES, &Properties::new()).unwrap();
        write(&pool, 7);
        pool.close().unwrap();
        machine.restart();
        let pool = open(&machine);
        write(&pool, 8);
        drop(pool);
        machine.restart();
        let is_head =
            |at: u64, batch: &format::Batch| at.is_multiple_of(EXTENT as u64) && batch.header.incarnation == 2;
        let found = batches(&machine, POOL).into_iter().filter(|(at, batch)| is_head(*at, batch));
        let heads: BTreeMap<u64, u64> = found.map(|(at, batch)| (batch.header.seq.0, at)).collect();
        for at in heads.into_values().take(10) {
            machine.disk.poke(at, &[0; 4096]);
        }
        for _ in 0..openings {
            let pool = open(&machine);
            if are_crashes {
                drop(pool)
            } else {
                pool.close().unwrap()
            }
            machine.restart();
        }
        let pool = open(&machine);
        let rules = |n: u64| (0..120).map(move |k| (format!("rule.suffix{k}"), Some(format!("zstd-{}", 1 + n % 9))));
        for n in 0..40 {
            pool.set_properties(None, &rules(n).collect::<Vec<_>>()).unwrap();
        }
        pool.checkpoint().unwrap();
        pool.checkpoint().unwrap();
        let read = |pool: &Pool| {
            let mut content = vec![0; BYTES as usize];
            pool.volume("v").unwrap().read(0, &mut content).unwrap();
            content
        };
        let truth = read(&pool);
        pool.close().unwrap();
        machine.restart();
        let found = batches(&machine, POOL);
        let part = |batch: &format::Batch| match &batch.entries[..] {
            [format::Entry::Catalogue(part)] => Some(part.as_of),
            _ => None,
        };
        let as_of = found.iter().filter_map(|(_, batch)| part(batch)).max().unwrap();
        let tells_openings = |batch: &format::Batch| batch.entries.is_empty() || part(batch).is_some();
        for (at, _) in found.iter().filter(|(_, batch)| tells_openings(batch) && batch.header.seq < as_of) {
            machine.disk.poke(*at, &[0; 4096]);
        }
        let dead = found.iter().filter(|(_, batch)| batch.header.incarnation == 2).count();
        let salvaged = salvage(&machine, POOL, 3).unwrap();
        let differ = truth.chunks(4096).zip(read(&salvaged.pool).chunks(4096)).filter(|(was, is)| was != is).count();
        let uncertain = salvaged.report.uncertain_bytes / 4096;
        println!(
            "{openings} openings: {dead} batches of the second one, {differ} blocks differ, {uncertain} are uncertain"
        );
        assert!(dead > 10 && salvaged.report.has_catalogue, "HARNESS: {:?}", salvaged.report);
        assert!(differ as u64 <= uncertain, "{differ} blocks are not what they were, and only {uncertain} uncertain");
        assert_eq!(differ > 0, are_crashes, "{differ} blocks are not what they were");
    }
}
