//! Several kinds of damage at once: payloads, headers, unreadable sectors, values of the map store,
//! or all of them. In any combination, a read returns data that was once written there or an error,
//! `check` and `check --repair` come to an end, and data that salvage takes out of the log is as
//! written, or is listed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::anatomy::Anatomy;
use crate::common::salvage::salvage;
use crate::common::verify::uncertain;
use crate::common::{Campaign, Ended, Failure, Op, Shape, Tally, World};
use engine::{Pool, PoolOptions};
use format::{ObjectDescriptor, ObjectState, Record, SUPERBLOCK_OFFSETS, parse_record_key};
use sim::{ContentKind, Rng, TableOp};
use surface::{BlockDevice, Error, ErrorKind};
use units::ObjectId;

const SECTOR: u64 = 4096;
/// Most damages of each kind at once.
const EACH_MAX: u64 = 4;
/// Combinations for each pool.
const ROUNDS: u64 = 8;

static OPENED: AtomicU64 = AtomicU64::new(0);
static REPAIRED: AtomicU64 = AtomicU64::new(0);
/// Repaired pools whose log was not damaged: of these every block was compared.
static WHOLE: AtomicU64 = AtomicU64::new(0);

/// A pool with history, data on both sides of its last checkpoint, that no process has open.
fn prepare(seed: u64) -> Result<World, Failure> {
    let mut world = World::new(seed, |rng: &mut Rng| Shape { volumes_max: 3, ..Shape::small(rng) })?;
    let work = |world: &mut World, ops: u64| -> Result<(), Failure> {
        for _ in 0..ops {
            if world.step()? == Ended::Full {
                world.relieve()?;
            }
        }
        Ok(())
    };
    work(&mut world, 60)?;
    world.apply(&Op::Checkpoint)?;
    work(&mut world, 12)?;
    let _ = world.apply(&Op::FlushPool)?;
    world.abandon();
    world.machine.restart();
    world.model.crashed();
    Ok(world)
}

/// The damage that was done.
#[derive(Debug, Default)]
struct Damage {
    what: Vec<String>,
    /// Sectors cannot be read.
    unreadable: bool,
    /// The log is damaged, not only the map store.
    log: bool,
    /// Holes in lost records that nothing misses: the records consist of holes only, by themselves
    /// or, at most, below the changes in deltas. The checkpoint counts the bytes that records refer
    /// to, and these refer to none; and the batches that made the holes may be gone legitimately,
    /// because they have no live data. So the store and the log look as if these had never been
    /// made: a reader may see, in each of these blocks, older data of an epoch or an origin below,
    /// and no report can count it.
    holes_forgotten: u64,
}

impl Damage {
    /// Two to four kinds of damage at once.
    fn inflict(world: &World, anatomy: &Anatomy, rng: &mut Rng) -> Self {
        let mut damage = Self::default();
        let superblocks = 64 << 10;
        let bytes = world.shape.capacity_bytes / SECTOR * SECTOR;
        for _ in 0..2 + rng.below(3) {
            let count = 1 + rng.below(EACH_MAX);
            let kind = rng.below(9);
            damage.log |= kind < 6;
            match kind {
                0..=2 if !anatomy.fragments.is_empty() => {
                    for _ in 0..count {
                        let fragment = &anatomy.fragments[rng.index(anatomy.fragments.len())].fragment;
                        let at = fragment.location + rng.below(fragment.stored.into());
                        world.machine.disk.flip_bit(at, rng.below(8) as u8);
                        damage.what.push(format!("a payload's bit at {at}"));
                    }
                }
                3 => {
                    let at = superblocks + rng.below((bytes - superblocks) / SECTOR) * SECTOR;
                    let noise: Vec<u8> = (0..SECTOR).map(|_| rng.next_u64() as u8).collect();
                    world.machine.disk.poke(at, &noise);
                    damage.what.push(format!("noise at {at}"));
                }
                4 if rng.percent(20) => {
                    // Always the same one: without either there is no pool.
                    let at = SUPERBLOCK_OFFSETS[anatomy.fragments.len() % 2];
                    world.machine.disk.break_reads(at..at + SECTOR);
                    damage.what.push(format!("a superblock unreadable at {at}"));
                }
                4 => {
                    let at = superblocks + rng.below((bytes - superblocks) / SECTOR) * SECTOR;
                    world.machine.disk.break_reads(at..at + SECTOR);
                    damage.unreadable = true;
                    damage.what.push(format!("unreadable at {at}"));
                }
                5 => {
                    for _ in 0..count {
                        let at = superblocks + rng.below(bytes - superblocks);
                        world.machine.disk.flip_bit(at, rng.below(8) as u8);
                        damage.what.push(format!("a bit at {at}"));
                    }
                }
                kind => {
                    let removes = rng.percent(33);
                    let tables: &[u8] = if kind == 6 { b"U" } else { b"RRUODL" };
                    let table = *rng.pick(tables);
                    let values = world.machine.store.dump();
                    let has_deltas = values.iter().any(|(key, _)| key[0] == b'D');
                    let mut values: Vec<_> = values.into_iter().filter(|(key, _)| key[0] == table).collect();
                    for _ in 0..count {
                        if values.is_empty() {
                            break;
                        }
                        let (key, value) = values.swap_remove(rng.index(values.len()));
                        if removes {
                            damage.holes_forgotten += unmissed_holes(&key, &value, has_deltas);
                            world.machine.store.poke(&key, None);
                            damage.what.push(format!("{key:02x?} is gone"));
                        } else {
                            world.machine.store.flip_bit(&key, rng.index(value.len()), rng.below(8) as u8);
                            damage.what.push(format!("a bit of {key:02x?}"));
                        }
                    }
                }
            }
        }
        damage
    }

    fn is_expected(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::Corrupt || self.unreadable && error.kind() == ErrorKind::Io
    }
}

/// Holes of a value of the map store that is a record which may not be missed.
fn unmissed_holes(key: &[u8], value: &[u8], has_deltas: bool) -> u64 {
    let record = parse_record_key(key).and_then(|_| Record::decode(value).ok());
    record.filter(|record| has_deltas || record.fragments.is_empty()).map_or(0, |record| record.holes.count().into())
}

/// All data that a volume or snapshot of the pool returns was once written there, or is zeroes;
/// other blocks are reported as damaged.
fn honest(world: &World, pool: &Pool, damage: &Damage) -> Result<(), Failure> {
    for name in pool.volumes().into_iter().map(|volume| volume.name) {
        let device = pool.volume(&name).map_err(|e| world.fail(format!("{name}: {e}; {damage:?}")))?;
        let mut at = 0;
        let size = device.size_bytes();
        while at < size {
            let runs = match device.allocation(at, size - at, 64) {
                Ok(runs) => runs,
                // A record that does not decode: read the unaffected blocks one by one.
                Err(error) if damage.is_expected(&error) => {
                    let length = size.min(at + (128 << 10)) - at;
                    vec![surface::Run { length, allocation: surface::Allocation::Data }]
                }
                Err(error) => return Err(world.fail(format!("{name} at {at}: {error}; {damage:?}"))),
            };
            for run in runs {
                if run.allocation == surface::Allocation::Data {
                    for offset in (at..at + run.length).step_by(SECTOR as usize) {
                        let mut buf = [0xee; SECTOR as usize];
                        let buf = &mut buf[..(size - offset).min(SECTOR) as usize];
                        match device.read(offset, buf) {
                            Ok(()) if buf.len() < SECTOR as usize => {}
                            Ok(()) if world.model.is_known(offset / SECTOR, buf) => {}
                            Ok(()) => {
                                return Err(
                                    world.fail(format!("{name} at {offset} holds what nobody wrote there; {damage:?}"))
                                );
                            }
                            Err(error) if damage.is_expected(&error) => {}
                            Err(error) => {
                                return Err(world.fail(format!("{name} at {offset}: {error}; {damage:?}")));
                            }
                        }
                    }
                }
                at += run.length;
            }
        }
    }
    Ok(())
}

/// Volumes and snapshots in the map store of a world.
fn readable_objects(world: &World) -> BTreeSet<ObjectId> {
    let values = world.machine.store.dump().into_iter().filter(|(key, _)| key[0] == b'O');
    let descriptors = values.map(|(_, value)| ObjectDescriptor::decode(&value).unwrap());
    descriptors.filter(|d| matches!(d.state, ObjectState::Volume | ObjectState::Snapshot)).map(|d| d.id).collect()
}

/// Volumes and snapshots that the last checkpoint knew, and that exist when the undamaged pool is
/// opened: they survive any loss of the log after the checkpoint.
fn lasting(base: &World, seed: u64) -> Result<BTreeSet<ObjectId>, Failure> {
    let before = readable_objects(base);
    let world = base.fork(seed);
    let pool = Pool::open(world.env(), world.pool_options()).map_err(|e| world.fail(format!("open: {e}")))?;
    pool.close().map_err(|e| world.fail(format!("close: {e}")))?;
    Ok(before.intersection(&readable_objects(&world)).copied().collect())
}

fn combined(seed: u64) -> Result<Tally, Failure> {
    let base = prepare(seed)?;
    let anatomy = Anatomy::of(&base);
    let lasting = lasting(&base, seed)?;
    let mut tally = Tally { ops: base.op_number, ..Tally::default() };
    for round in 0..ROUNDS {
        let mut rng = Rng::new(seed << 8 | round);
        let broken = base.fork(seed ^ round);
        let damage = Damage::inflict(&broken, &anatomy, &mut rng);
        tally.faults += damage.what.len() as u64;
        // Without repair.
        let world = broken.fork(seed);
        match Pool::open(world.env(), world.pool_options()) {
            Ok(pool) => {
                OPENED.fetch_add(1, Ordering::Relaxed);
                honest(&world, &pool, &damage)?;
                pool.check(false, &mut |_, _| ()).map_err(|e| world.fail(format!("check: {e}; {damage:?}")))?;
                honest(&world, &pool, &damage)?;
            }
            Err(error) if damage.is_expected(&error) => {}
            Err(error) => return Err(world.fail(format!("open: {error}; {damage:?}"))),
        }
        // Repaired: after that it opens, and is as honest.
        let mut world = broken.fork(seed);
        let repair = PoolOptions { repair: true, ..world.pool_options() };
        let opened = match Pool::open(world.env(), repair.clone()) {
            // It is said before anything is dropped, and remembered after that.
            Err(error) if std::error::Error::source(&error).is_some_and(|source| source.is::<engine::Loss>()) => {
                let opened = Pool::open(world.env(), PoolOptions { accept_loss: true, ..repair });
                let is_told =
                    opened.as_ref().is_ok_and(|pool| pool.losses().len() == 1 && pool.accepted_loss().is_some());
                if opened.is_ok() && !is_told {
                    return Err(world.fail(format!("a loss was accepted and forgotten: {error}; {damage:?}")));
                }
                opened
            }
            Ok(pool) if !pool.losses().is_empty() => {
                return Err(world.fail(format!("lost without asking: {:?}; {damage:?}", pool.losses())));
            }
            other => other,
        };
        match opened {
            Ok(pool) => {
                let report =
                    pool.check(true, &mut |_, _| ()).map_err(|e| world.fail(format!("repair: {e}; {damage:?}")))?;
                pool.close().map_err(|e| world.fail(format!("close after {report:?}: {e}; {damage:?}")))?;
                let lost: Vec<_> = lasting.difference(&readable_objects(&world)).copied().collect();
                if !lost.is_empty() {
                    return Err(world.fail(format!("repair lost {lost:?}: {report:?}; {damage:?}")));
                }
                world.machine.restart();
                let pool = Pool::open(world.env(), world.pool_options())
                    .map_err(|e| world.fail(format!("open after {report:?}: {e}; {damage:?}")))?;
                honest(&world, &pool, &damage)?;
                let again = pool.check(false, &mut |_, _| ()).map_err(|e| world.fail(format!("check: {e}")))?;
                // Only lost payloads, and headers next to them, cannot be repaired; the first
                // report named them.
                let left = again.problems.iter().find(|p| p.kind != "fragment" && p.kind != "header");
                if let Some(left) = left {
                    return Err(world.fail(format!("left by repair: {left:?}; by it {report:?}; {damage:?}")));
                }
                drop(pool);
                REPAIRED.fetch_add(1, Ordering::Relaxed);
                if !damage.log {
                    // Then nothing is lost, and nothing is forgotten.
                    world.machine.restart();
                    let whole = |Failure(text)| Failure(format!("{text}; by repair {report:?}; {damage:?}"));
                    let reappeared = world.verify_mended().map_err(whole)?;
                    if reappeared > uncertain(&report) + damage.holes_forgotten {
                        return Err(world.fail(format!("{reappeared} discarded blocks show: {report:?}; {damage:?}")));
                    }
                    WHOLE.fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(error) if damage.is_expected(&error) => {}
            Err(error) => return Err(world.fail(format!("open for repair: {error}; {damage:?}"))),
        }
        // The map is lost on top of it.
        let world = broken;
        let bytes = world.shape.capacity_bytes.next_multiple_of(SECTOR);
        let salvaged =
            salvage(&world.machine, bytes, seed).map_err(|e| world.fail(format!("salvage: {e}; {damage:?}")))?;
        honest(&world, &salvaged.pool, &Damage { unreadable: false, ..Damage::default() })?;
        let check = salvaged.pool.check(false, &mut |_, _| ()).map_err(|e| world.fail(format!("check: {e}")))?;
        if !check.problems.is_empty() {
            return Err(world.fail(format!("the pool that was salvaged into: {:?}; {damage:?}", check.problems)));
        }
    }
    Ok(tally)
}

#[test]
fn several_damages_at_once_never_show_wrong_data() {
    let campaign = Campaign {
        file: "combined_damage",
        test: "several_damages_at_once_never_show_wrong_data",
        seeds: 40,
        soaks: true,
    };
    let total = campaign.run(combined);
    let (opened, repaired) = (OPENED.load(Ordering::Relaxed), REPAIRED.load(Ordering::Relaxed));
    let whole = WHOLE.load(Ordering::Relaxed);
    println!("{opened} pools opened as they were, {repaired} repaired, {whole} of them compared");
    campaign.demand(
        total.faults > 1000 && opened > 50 && repaired > 50 && whole > 10,
        "1000 damages, 50 pools opened, 50 repaired, 10 compared",
    );
}

/// The catalogue has the cut of a rollback, which was reaped since then; the descriptor that the log
/// has after the checkpoint no longer has it. A record that is rebuilt meanwhile must not bring the
/// holes of the cut's epochs back.
#[test]
fn a_rebuilt_group_shows_nothing_of_a_reaped_rollback() {
    let all = |mut world: World| -> Result<(), Failure> {
        let volume = || "v".to_owned();
        let write =
            |offset, seed| Op::Write { volume: volume(), offset, len: 4096, kind: ContentKind::Text, seed, fua: false };
        let take = |name: &str| Op::Table(TableOp::Snapshot { volume: volume(), name: name.into() });
        for op in [
            Op::Table(TableOp::Create { name: volume(), size_bytes: 64 << 10, properties: Default::default() }),
            write(0, 1),
            take("before"),
            Op::Zero { volume: volume(), offset: 0, len: 8192, no_hole: false, fua: false },
            write(4096, 2),
            Op::FlushPool,
            Op::Table(TableOp::Rollback { snapshot: "v@before".into() }),
            write(8192, 3),
            Op::LightCheckpoint,
            Op::Checkpoint,
            write(12288, 4),
            take("after"),
            Op::FlushPool,
        ] {
            world.apply(&op)?;
        }
        world.abandon();
        world.machine.restart();
        world.model.crashed();
        let head = |key: &[u8]| key[0] == b'O';
        let descriptors = world.machine.store.dump().into_iter().filter(|(key, _)| head(key));
        let descriptors: Vec<_> =
            descriptors.map(|(key, value)| (key, ObjectDescriptor::decode(&value).unwrap())).collect();
        let (key, of_volume) = descriptors.iter().find(|(_, d)| d.state == ObjectState::Volume).unwrap();
        assert!(
            of_volume.cuts.is_empty() && !of_volume.undone.cuts.is_empty(),
            "the cut was not reaped: {of_volume:?}"
        );
        world.machine.store.poke(key, None);
        let records = world
            .machine
            .store
            .dump()
            .into_iter()
            .filter_map(|(key, _)| parse_record_key(&key).map(|at| (at.epoch, key)));
        world.machine.store.flip_bit(&records.max().unwrap().1, 5, 3);
        let options = PoolOptions { repair: true, ..world.pool_options() };
        let pool = Pool::open(world.env(), options).map_err(|e| world.fail(format!("open for repair: {e}")))?;
        let report = pool.check(true, &mut |_, _| ()).map_err(|e| world.fail(format!("repair: {e}")))?;
        assert!(report.problems.iter().any(|p| p.kind == "record" && p.repaired), "no record was rebuilt: {report:?}");
        pool.close().map_err(|e| world.fail(format!("close: {e}")))?;
        world.machine.restart();
        world.verify_mended().map(|_| ())
    };
    let world = World::new(1, |rng: &mut Rng| Shape { history: true, standby: false, ..Shape::small(rng) });
    if let Err(Failure(text)) = world.and_then(all) {
        panic!("{text}");
    }
}
