//! Corrupt media: bits flip in every kind of structure. A read returns the right bytes or an error,
//! never other bytes; `check` names the damage and its location; an undecodable pool is not opened.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};

use crate::common::anatomy::{Anatomy, BatchPart};
use crate::common::together::read_together;
use crate::common::{Campaign, Ended, Failure, Shape, Tally, World};
use engine::{CheckReport, Pool, Problem};
use format::{OPENING_NOTE_OFFSETS, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use sim::{ContentKind, Rng};
use surface::{BlockDevice, Error, ErrorKind};
use units::ObjectId;

/// A block of a volume.
type Place = (String, u64);

/// Behaviour of a damaged pool.
struct Seen {
    /// The volumes that there are.
    volumes: BTreeSet<ObjectId>,
    errors: BTreeMap<Place, Error>,
    /// Blocks that read as something else, and whether that is at least something that was written
    /// there once.
    wrong: BTreeMap<Place, bool>,
    /// Volumes that differ from the expected ones.
    table: Result<(), String>,
    report: Result<CheckReport, Error>,
}

impl Seen {
    fn names(&self, kind: &str) -> bool {
        self.report.as_ref().is_ok_and(|report| report.problems.iter().any(|p| p.kind == kind))
    }

    /// Whether `check` says that something of this kind is wrong in this part of this volume.
    fn names_place(&self, kind: &str, volume: &str, range: std::ops::Range<u64>) -> bool {
        self.report.as_ref().is_ok_and(|report| {
            report.problems.iter().any(|p| {
                p.kind == kind
                    && p.volume.as_deref() == Some(volume)
                    && p.offset.is_some_and(|offset| range.contains(&offset))
            })
        })
    }

    fn is_clean(&self) -> bool {
        self.errors.is_empty()
            && self.wrong.is_empty()
            && self.table.is_ok()
            && self.report.as_ref().is_ok_and(|report| report.problems.is_empty())
    }

    fn tell(&self) -> String {
        format!(
            "errors {:?}; wrong {:?}; table {:?}; check {:?}",
            self.errors.iter().take(3).map(|(place, e)| format!("{place:?}: {e}")).collect::<Vec<_>>(),
            self.wrong.iter().take(3).collect::<Vec<_>>(),
            self.table,
            self.report.as_ref().map(|report| report.problems.iter().take(4).collect::<Vec<_>>()),
        )
    }
}

/// A pool with data on both sides of its last checkpoint, which no process has open.
fn prepare(seed: u64) -> Result<World, Failure> {
    prepare_with_tail(seed, 25)
}

/// The same with so many operations after the checkpoint.
fn prepare_with_tail(seed: u64, tail_ops: u64) -> Result<World, Failure> {
    let mut world = World::new(seed, |rng: &mut Rng| Shape {
        volumes_max: 2,
        volume_bytes_max: 400 << 10,
        // The tail must stay after the requested checkpoint.
        checkpoint_log_bytes: 64 << 20,
        // A damaged place must affect one volume only.
        history: false,
        dictionaries: false,
        standby: false,
        shares: false,
        // The damage must show.
        copies: false,
        ..Shape::small(rng)
    })?;
    let work = |world: &mut World, ops: u64| -> Result<(), Failure> {
        for _ in 0..ops {
            match world.step()? {
                Ended::Full => drop(world.relieve()?),
                _ => continue,
            }
        }
        Ok(())
    };
    work(&mut world, 60)?;
    world.apply(&crate::common::Op::Checkpoint)?;
    work(&mut world, tail_ops)?;
    if world.apply(&crate::common::Op::FlushPool)? != Ended::Well {
        return Err(world.fail("flush"));
    }
    world.abandon();
    world.machine.restart();
    Ok(world)
}

/// Repeats the single-block reads with many blocks at the same time: the same blocks fail, and no
/// others.
fn read_again_together(world: &mut World, pool: &Pool, name: &str, seen: &Seen) -> Result<(), String> {
    pool.drop_caches();
    let device = pool.volume(name).map_err(|e| e.to_string())?;
    let size = world.model.size_bytes(name).min(device.size_bytes());
    let ranges: Vec<_> = (0..size).step_by(4096).map(|offset| (offset, (size - offset).min(4096) as usize)).collect();
    for ((offset, _), result) in ranges.iter().zip(read_together(&*device, &ranges)) {
        let place = (name.to_owned(), offset / 4096);
        match (result, seen.errors.get(&place)) {
            (Ok(data), None) => {
                let is_wrong = world.model.check_read(name, *offset, &data).is_err();
                if is_wrong != seen.wrong.contains_key(&place) {
                    return Err(format!("{place:?} is another when it is read together with others"));
                }
            }
            (Err(error), Some(alone)) if error.to_string() == alone.to_string() => {}
            (result, alone) => {
                let together = result.map(|_| ());
                return Err(format!("{place:?}: {alone:?} when read alone, {together:?} together with others"));
            }
        }
    }
    Ok(())
}

/// Damages a copy, opens it, reads everything, checks it.
fn look(base: &World, damage: impl FnOnce(&mut World)) -> Result<Seen, Error> {
    let mut world = base.fork(base.op_number);
    damage(&mut world);
    let pool = Pool::open(world.env(), world.pool_options())?;
    let expected = world.model.names();
    let found: Vec<String> = pool.volumes().into_iter().map(|v| v.name).collect();
    let mut table = if found == expected { Ok(()) } else { Err(format!("expected {expected:?}, found {found:?}")) };
    let mut seen = Seen {
        volumes: pool.volumes().into_iter().map(|v| ObjectId(v.id.0)).collect(),
        errors: BTreeMap::new(),
        wrong: BTreeMap::new(),
        table: Ok(()),
        report: Ok(CheckReport::default()),
    };
    for name in expected.into_iter().filter(|name| found.contains(name)) {
        let size = world.model.size_bytes(&name);
        let device = pool.volume(&name)?;
        if device.size_bytes() != size {
            table = Err(format!("{name}: {} bytes instead of {size}", device.size_bytes()));
        }
        for offset in (0..size.min(device.size_bytes())).step_by(4096) {
            let mut buf = [0xee; 4096];
            let buf = &mut buf[..(size - offset).min(4096) as usize];
            let block = offset / 4096;
            match device.read(offset, buf) {
                Err(e) => drop(seen.errors.insert((name.clone(), block), e)),
                Ok(()) => {
                    if world.model.check_read(&name, offset, buf).is_err() {
                        seen.wrong.insert((name.clone(), block), world.model.is_known(block, buf));
                    }
                }
            }
        }
        if let Err(text) = read_again_together(&mut world, &pool, &name, &seen) {
            table = Err(text);
        }
    }
    seen.table = table;
    seen.report = pool.check(false, &mut |_, _| ());
    if let (Ok(report), Ok(scrubbed)) = (&seen.report, pool.scrub(u64::MAX, true)) {
        let fragments = |problems: &[Problem]| -> BTreeSet<_> {
            problems.iter().filter(|p| p.kind == "fragment").map(|p| (p.volume.clone(), p.offset)).collect()
        };
        let (checked, found) = (fragments(&report.problems), fragments(&scrubbed.damages));
        // Where records are damaged, each finds its own problems.
        if report.problems.iter().all(|p| p.kind == "fragment") && checked != found && seen.table.is_ok() {
            seen.table = Err(format!("check finds {checked:?}, scrub {scrubbed:?}"));
        }
    }
    Ok(seen)
}

fn fail(base: &World, what: impl std::fmt::Display) -> Failure {
    Failure(format!("{what}\n  pool: {:?}", base.shape))
}

/// Nothing wrong was read, and errors are of the kind that says so.
fn honest(base: &World, what: &str, seen: &Seen) -> Result<(), Failure> {
    if !seen.wrong.is_empty() || seen.table.is_err() {
        return Err(fail(base, format!("{what}: wrong bytes were returned: {}", seen.tell())));
    }
    if let Some((place, e)) = seen.errors.iter().find(|(_, e)| e.kind() != ErrorKind::Corrupt) {
        return Err(fail(base, format!("{what}: {place:?} fails with {:?}, not Corrupt: {e}", e.kind())));
    }
    Ok(())
}

/// A refusal to open names the damage.
fn refusal(base: &World, what: &str, e: &Error, kind: ErrorKind, word: &str) -> Result<(), Failure> {
    if e.kind() != kind || !e.to_string().contains(word) {
        return Err(fail(base, format!("{what}: expected {kind:?} with '{word}', got {:?}: {e}", e.kind())));
    }
    Ok(())
}

fn campaign(test: &'static str, seeds: u64, run: impl Fn(u64) -> Result<u64, Failure> + Sync) {
    let campaign = Campaign { file: "corruption", test, seeds, soaks: false };
    let total = campaign.run(|seed| run(seed).map(|faults| Tally { faults, ..Tally::default() }));
    campaign.demand(total.faults > 0, "damages");
}

#[test]
fn undamaged_pools_are_clean() {
    campaign("undamaged_pools_are_clean", 10, |seed| {
        let base = prepare(seed)?;
        let seen = look(&base, |_| ()).map_err(|e| fail(&base, format!("open: {e}")))?;
        if !seen.is_clean() {
            return Err(fail(&base, seen.tell()));
        }
        Ok(1)
    });
}

#[test]
fn superblock_copies() {
    campaign("superblock_copies", 20, |seed| {
        let base = prepare(seed)?;
        let mut rng = Rng::new(seed);
        for copy in SUPERBLOCK_OFFSETS {
            let (at, bit) = (copy + rng.below(SUPERBLOCK_BYTES as u64), rng.below(8) as u8);
            let what = format!("superblock copy at {copy}, byte {at}");
            let seen = look(&base, |world| world.machine.disk.flip_bit(at, bit))
                .map_err(|e| fail(&base, format!("{what}: open: {e}")))?;
            honest(&base, &what, &seen)?;
            if !seen.errors.is_empty() || !seen.names("superblock") {
                return Err(fail(&base, format!("{what}: not named: {}", seen.tell())));
            }
        }
        let both = look(&base, |world| {
            for copy in SUPERBLOCK_OFFSETS {
                world.machine.disk.flip_bit(copy + 8 + rng.below(SUPERBLOCK_BYTES as u64 - 8), rng.below(8) as u8);
            }
        });
        match both {
            Ok(_) => Err(fail(&base, "opened without a whole superblock")),
            Err(e) => refusal(&base, "both superblocks", &e, ErrorKind::Corrupt, "superblock").map(|()| 3),
        }
    });
}

#[test]
fn unknown_versions_and_features_do_not_open() {
    campaign("unknown_versions_and_features_do_not_open", 5, |seed| {
        let base = prepare(seed)?;
        let rewrite = |change: fn(&mut Superblock)| {
            look(&base, |world| {
                for copy in SUPERBLOCK_OFFSETS {
                    let mut bytes = [0; SUPERBLOCK_BYTES];
                    world.machine.disk.peek(copy, &mut bytes);
                    let mut superblock = Superblock::decode(&bytes).expect("a whole superblock");
                    change(&mut superblock);
                    world.machine.disk.poke(copy, &superblock.encode());
                }
            })
        };
        for (what, word, change) in [
            ("a newer version", "version", (|s| s.version += 1) as fn(&mut Superblock)),
            ("an unknown incompatible feature", "feature", |s| s.features_incompat |= 1 << 40),
        ] {
            match rewrite(change) {
                Ok(_) => return Err(fail(&base, format!("{what}: opened"))),
                Err(e) => refusal(&base, what, &e, ErrorKind::Unsupported, word)?,
            }
        }
        match rewrite(|s| s.features_compat |= 1 << 40) {
            Ok(seen) if seen.is_clean() => Ok(3),
            Ok(seen) => Err(fail(&base, format!("a compatible feature: {}", seen.tell()))),
            Err(e) => Err(fail(&base, format!("a compatible feature: {e}"))),
        }
    });
}

/// It was opened, and read data from places that later openings had overwritten.
#[test]
fn a_map_that_is_older_than_the_log_is_not_opened() {
    campaign("a_map_that_is_older_than_the_log_is_not_opened", 20, |seed| {
        let mut world = prepare(seed)?;
        let older = world.machine.store.dump();
        // From one that was only opened to one whose old extents have all been used again.
        for _ in 0..seed * 20 {
            if world.pool.is_none() {
                world.model.crashed();
                world.open()?;
            }
            if world.step()? == Ended::Full {
                world.relieve()?;
            }
        }
        world.abandon();
        world.machine.restart();
        drop(Pool::open(world.env(), world.pool_options()).map_err(|e| fail(&world, format!("open: {e}")))?);
        world.machine.restart();
        put_back_map(&world, &older);
        expect_refusal(&world, "an older map")?;
        // The log also shows the traces of later openings.
        for offset in OPENING_NOTE_OFFSETS {
            world.machine.disk.poke(offset, &[0; 4096]);
        }
        expect_refusal(&world, "an older map without a note").map(|()| 2)
    });
}

fn put_back_map(world: &World, older: &[(Vec<u8>, Vec<u8>)]) {
    for (key, _) in world.machine.store.dump() {
        world.machine.store.poke(&key, None);
    }
    older.iter().for_each(|(key, value)| world.machine.store.poke(key, Some(value)));
}

/// Nothing helps but salvage, so repair does not open it either.
fn expect_refusal(world: &World, what: &str) -> Result<(), Failure> {
    for repair in [false, true] {
        let options = engine::PoolOptions { repair, ..world.pool_options() };
        match Pool::open(world.env(), options) {
            Ok(_) => return Err(fail(world, format!("{what}: opened, with repair: {repair}"))),
            Err(e) => refusal(world, what, &e, ErrorKind::Corrupt, "salvage")?,
        }
    }
    Ok(())
}

/// Works on through two openings.
fn go_on(world: &mut World, ops: u64) -> Result<(), Failure> {
    for _ in 0..2 {
        if world.pool.is_none() {
            world.model.crashed();
            world.open()?;
        }
        for _ in 0..ops {
            if world.pool.is_some() && world.step()? == Ended::Full {
                world.relieve()?;
            }
        }
        world.abandon();
        world.machine.restart();
    }
    Ok(())
}

/// It was opened when all traces of later openings had been freed and punched where it looked for
/// them; then everything that was free by the older map was punched out.
#[test]
fn a_map_that_is_older_than_the_log_is_told_without_the_log() {
    campaign("a_map_that_is_older_than_the_log_is_told_without_the_log", 20, |seed| {
        let mut world = prepare(seed)?;
        let older = world.machine.store.dump();
        let log: Vec<_> = Anatomy::of(&world).checkpoint.log_extents().collect();
        go_on(&mut world, seed * 5)?;
        let extent_bytes = u64::from(world.shape.extent_bytes);
        for extent in log {
            world.machine.disk.poke(u64::from(extent.0) * extent_bytes, &vec![0; extent_bytes as usize]);
        }
        put_back_map(&world, &older);
        expect_refusal(&world, "an older map without traces in the log")?;
        // One copy of the note is enough.
        let copy = *Rng::new(seed).pick(&OPENING_NOTE_OFFSETS);
        world.machine.disk.break_reads(copy..copy + 4096);
        expect_refusal(&world, "an older map and one copy of the note").map(|()| 2)
    });
}

/// It was opened, and read older data from places where the map had newer data; also if the last
/// session was killed before it had taken a second checkpoint.
#[test]
fn data_that_is_older_than_the_map_is_not_opened() {
    campaign("data_that_is_older_than_the_map_is_not_opened", 10, |seed| {
        let mut world = prepare(seed)?;
        let mut older = vec![0; world.shape.capacity_bytes as usize / 4096 * 4096];
        world.machine.disk.peek(0, &mut older);
        if !seed.is_multiple_of(3) {
            go_on(&mut world, seed * 5)?;
        }
        world.model.crashed();
        world.open()?;
        if seed.is_multiple_of(2) && world.apply(&crate::common::Op::Checkpoint)? != Ended::Well {
            return Err(world.fail("checkpoint"));
        }
        world.abandon();
        // Killed, or without power: the map's records are durable by now.
        if seed % 4 < 2 {
            world.machine.restart()
        } else {
            world.machine.power_cycle()
        }
        world.machine.disk.poke(0, &older);
        expect_refusal(&world, "older data").map(|()| 1)
    });
}

/// A medium may lose the note: then it proves nothing.
#[test]
fn a_pool_without_the_note_of_its_newest_opening_is_opened() {
    campaign("a_pool_without_the_note_of_its_newest_opening_is_opened", 5, |seed| {
        let mut world = prepare(seed)?;
        for offset in OPENING_NOTE_OFFSETS {
            world.machine.disk.poke(offset, &[0; 4096]);
        }
        go_on(&mut world, 10)?;
        world.model.crashed();
        world.open()?;
        world.verify()?;
        Ok(1)
    });
}

#[test]
fn values_of_the_store() {
    campaign("values_of_the_store", 10, |seed| {
        let base = prepare(seed)?;
        let anatomy = Anatomy::of(&base);
        let mut rng = Rng::new(seed);
        // The position of scrubbing is no loss: a damaged state means that it starts over. Recovery
        // finds the log's end itself. Without the map's record of the note of openings, older data
        // is not noticed; without the note of standby memory, its loss is not noticed. The copy of
        // the superblock is corrected by each opening.
        let harmless = [
            format::KEY_SCRUB,
            format::KEY_RECOMPRESS,
            format::KEY_SORT,
            format::KEY_END,
            format::KEY_NOTED,
            format::KEY_STANDBY,
            format::KEY_SUPERBLOCK,
        ];
        for key in anatomy.keys.iter().filter(|key| !harmless.contains(&key.as_slice())) {
            let len = base.machine.store.dump().iter().find(|(k, _)| k == key).map_or(0, |(_, v)| v.len());
            let (byte, bit) = (rng.index(len), rng.below(8) as u8);
            let what = format!("byte {byte} of the value of {:?}", String::from_utf8_lossy(key));
            let result = look(&base, |world| world.machine.store.flip_bit(key, byte, bit));
            let (kind, word) = match key[0] {
                b'C' => ("checkpoint", "checkpoint"),
                b'O' => ("object", "descriptor"),
                b'U' => ("usage", "usage"),
                b'L' => ("costs", "costs"),
                b'D' => ("delta", "delta"),
                _ => ("record", "record"),
            };
            let seen = match result {
                Err(e) => {
                    refusal(&base, &what, &e, ErrorKind::Corrupt, word)?;
                    continue;
                }
                Ok(seen) => seen,
            };
            honest(&base, &what, &seen)?;
            let named = match format::parse_record_key(key).and_then(|k| Some((anatomy.volumes.get(&k.object)?, k))) {
                // Destroyed after the checkpoint, and perhaps replaced by another one of the same
                // name: it goes unread, and only its extents' bytes do not add up.
                Some((_, k)) if !seen.volumes.contains(&k.object) => seen.names(kind) || seen.names("usage"),
                Some((volume, k)) => {
                    let start = k.group.first_block().offset_bytes();
                    seen.names_place(kind, volume, start..start + units::GROUP_BYTES as u64)
                }
                // Destroyed before it: the same.
                None if key[0] == b'R' => seen.names(kind) || seen.names("usage"),
                None => seen.names(kind),
            };
            // A change after the checkpoint may have replaced the whole record.
            let replaced = key[0] == b'R' && seen.is_clean();
            if !named && !replaced {
                return Err(fail(&base, format!("{what}: not named as {kind}: {}", seen.tell())));
            }
        }
        Ok(anatomy.keys.len() as u64)
    });
}

#[test]
fn payloads_before_the_checkpoint() {
    campaign("payloads_before_the_checkpoint", 14, |seed| {
        let base = prepare(seed)?;
        let anatomy = Anatomy::of(&base);
        let mut rng = Rng::new(seed);
        let mut damages = 0;
        for part in &anatomy.fragments {
            let fragment = &part.fragment;
            let at = fragment.location + rng.below(u64::from(fragment.stored));
            let bit = rng.below(8) as u8;
            let what =
                format!("byte {at} in a fragment of {}, group at {}: {fragment:?}", part.volume, part.group_offset);
            let seen = look(&base, |world| world.machine.disk.flip_bit(at, bit))
                .map_err(|e| fail(&base, format!("{what}: open: {e}")))?;
            honest(&base, &what, &seen)?;
            damages += 1;
            // A write after the checkpoint may have replaced it; then nothing is wrong any more.
            if seen.is_clean() {
                continue;
            }
            let start = part.group_offset + u64::from(fragment.first) * 4096;
            if seen.errors.is_empty()
                || !seen.names_place("fragment", &part.volume, start..start + u64::from(fragment.count) * 4096)
            {
                return Err(fail(&base, format!("{what}: not named: {}", seen.tell())));
            }
            let inside = |(volume, block): &Place| {
                *volume == part.volume && (start..start + u64::from(fragment.count) * 4096).contains(&(block * 4096))
            };
            if !seen.errors.keys().all(inside) {
                return Err(fail(&base, format!("{what}: others suffer: {}", seen.tell())));
            }
            let (_, error) = seen.errors.first_key_value().expect("an error");
            if !error.to_string().contains(&part.volume) {
                return Err(fail(&base, format!("{what}: the message does not name the volume: {error}")));
            }
        }
        Ok(damages)
    });
}

/// Headers of batches that the map knows are only needed to find the live data of an extent:
/// without them it is still found, by cleaning as well as by scrub, which reports the damage.
#[test]
fn headers_before_the_checkpoint() {
    let campaign = Campaign { file: "corruption", test: "headers_before_the_checkpoint", seeds: 14, soaks: false };
    let total = campaign.run(|seed| {
        let base = prepare(seed)?;
        let anatomy = Anatomy::of(&base);
        let mut rng = Rng::new(seed);
        let mut tally = Tally::default();
        // Extents without live data are not examined.
        let holds_data = |part: &&BatchPart| {
            let end = part.offset + part.batch.batch_bytes as u64;
            anatomy.fragments.iter().any(|f| (part.offset..end).contains(&f.fragment.location))
        };
        for part in anatomy.batches.iter().filter(|part| !part.tail).filter(holds_data).take(12) {
            let at = part.offset + rng.below(part.batch.header_bytes as u64);
            let mut world = base.fork(base.op_number);
            world.machine.disk.flip_bit(at, rng.below(8) as u8);
            world.open()?;
            let tell = |world: &World, what: String| world.fail(format!("byte {at} in a header: {what}"));
            let scrubbed = world.pool().scrub(u64::MAX, true).map_err(|e| tell(&world, e.to_string()))?;
            if scrubbed.damages.iter().any(|p| p.kind != "header") || scrubbed.found > 1 {
                return Err(tell(&world, format!("{scrubbed:?}")));
            }
            // `check` sees the same.
            let check = |world: &World, repair| world.pool().check(repair, &mut |_, _| ());
            let checked = check(&world, false).map_err(|e| tell(&world, e.to_string()))?;
            if checked.kinds.get("header").copied().unwrap_or(0) != scrubbed.found {
                return Err(tell(&world, format!("scrub {scrubbed:?}, check {:?}", checked.problems)));
            }
            // With repair it moves the live data there.
            let repaired = check(&world, true).map_err(|e| tell(&world, e.to_string()))?;
            let left = check(&world, false).map_err(|e| tell(&world, e.to_string()))?;
            let is_mended = repaired.problems.iter().any(|p| p.kind == "header" && p.repaired);
            if is_mended == left.kinds.contains_key("header") && scrubbed.found > 0 {
                return Err(tell(&world, format!("repaired {:?}, left {:?}", repaired.problems, left.problems)));
            }
            tally.ops += 1;
            tally.faults += scrubbed.found;
            world.pool().clean(true, 1000).map_err(|e| tell(&world, e.to_string()))?;
            let status = world.pool().status();
            if !status.damages.is_empty() {
                return Err(tell(&world, format!("{:?}", status.damages)));
            }
            for name in world.model.names() {
                world.verify_volume(&name)?;
            }
            // Data that only the log has may be damaged, and `check` reports it.
            let report = world.pool().check(false, &mut |_, _| ()).map_err(|e| tell(&world, e.to_string()))?;
            if report.problems.iter().any(|p| !["catalogue", "header"].contains(&p.kind)) {
                return Err(tell(&world, format!("{:?}", report.problems)));
            }
        }
        Ok(tally)
    });
    let (tried, found) = (total.ops, total.faults);
    println!("{found} of {tried} damaged headers hid something");
    campaign.demand(found * 3 >= tried && found > 0, "a third of the damaged headers");
}

/// Damage after the checkpoint. If a later batch records that the damaged one was durable, it must
/// not pass for the end of the log. If nothing records that, it looks like a write torn by the last
/// crash: then the log ends there, and reads return the data from before.
#[test]
fn batches_behind_the_checkpoint() {
    campaign("batches_behind_the_checkpoint", 20, |seed| {
        let base = prepare(seed)?;
        let anatomy = Anatomy::of(&base);
        let mut rng = Rng::new(seed);
        let mut damages = 0;
        for part in anatomy.tail() {
            let (header, whole) = (part.batch.header_bytes as u64, part.batch.batch_bytes as u64);
            let payload: u64 =
                part.batch.entries.iter().flat_map(format::Entry::payloads).map(|(_, _, f)| u64::from(f.stored)).sum();
            let mut places =
                vec![("fixed header", rng.below(format::BATCH_FIXED_BYTES as u64)), ("header", rng.below(header))];
            if payload > 0 {
                places.push(("payload", header + rng.below(payload)));
            }
            if header + payload < whole {
                places.push(("padding", header + payload + rng.below(whole - header - payload)));
            }
            for (name, within) in places {
                damages += 1;
                let at = part.offset + within;
                let what = format!(
                    "{name} of batch {:?} at {} (vouched for: {})",
                    part.batch.header.seq, part.offset, part.vouched
                );
                let seen = match look(&base, |world| world.machine.disk.flip_bit(at, 3)) {
                    Ok(seen) => seen,
                    Err(e) if e.kind() == ErrorKind::Corrupt && part.vouched && name != "padding" => continue,
                    Err(e) => return Err(fail(&base, format!("{what}: open: {:?}: {e}", e.kind()))),
                };
                match name {
                    "padding" if !seen.is_clean() => {
                        return Err(fail(&base, format!("{what}: padding matters: {}", seen.tell())));
                    }
                    _ if part.vouched => honest(&base, &what, &seen)?,
                    // The end of the log: older content, whole.
                    _ => {
                        if let Some((place, _)) = seen.wrong.iter().find(|(_, known)| !**known) {
                            return Err(fail(&base, format!("{what}: {place:?} was never like that: {}", seen.tell())));
                        }
                    }
                }
            }
        }
        Ok(damages)
    });
}

/// A bit anywhere.
#[test]
fn bits_anywhere() {
    campaign("bits_anywhere", 24, |seed| {
        let base = prepare(seed)?;
        let anatomy = Anatomy::of(&base);
        let mut rng = Rng::new(seed);
        let tail = anatomy.tail();
        const FLIPS: u64 = 40;
        for _ in 0..FLIPS {
            let at = rng.below(base.shape.capacity_bytes / 4096 * 4096);
            let bit = rng.below(8) as u8;
            let what = format!("bit {bit} of byte {at}");
            let in_tail = tail.iter().any(|t| (t.offset..t.offset + t.batch.batch_bytes as u64).contains(&at));
            match look(&base, |world| world.machine.disk.flip_bit(at, bit)) {
                Err(e) if e.kind() == ErrorKind::Corrupt => {}
                Err(e) => return Err(fail(&base, format!("{what}: open: {:?}: {e}", e.kind()))),
                Ok(seen) if in_tail => {
                    if seen.wrong.values().any(|known| !known) {
                        return Err(fail(&base, format!("{what}, in the tail: {}", seen.tell())));
                    }
                }
                Ok(seen) => honest(&base, &what, &seen)?,
            }
        }
        Ok(FLIPS)
    });
}

/// Repair removes a damaged record: its blocks, which it names, read as zeroes, and everything else
/// is unchanged.
#[test]
fn damaged_records_are_repaired() {
    campaign("damaged_records_are_repaired", 16, |seed| {
        let base = prepare_with_tail(seed, 0)?;
        let anatomy = Anatomy::of(&base);
        let mut rng = Rng::new(seed);
        let mut damages = 0;
        for key in &anatomy.keys {
            let Some(record) = format::parse_record_key(key) else { continue };
            let Some(volume) = anatomy.volumes.get(&record.object) else { continue };
            let mut world = base.fork(seed);
            world.machine.store.flip_bit(key, 0, rng.below(8) as u8);
            world.open()?;
            let start = record.group.first_block().offset_bytes();
            let group = start..start + units::GROUP_BYTES as u64;
            let report = world.pool().check(true, &mut |_, _| ()).map_err(|e| world.fail(format!("repair: {e}")))?;
            let named = |p: &engine::Problem| {
                p.kind == "record"
                    && p.repaired
                    && p.volume.as_deref() == Some(volume)
                    && p.offset.is_some_and(|at| group.contains(&at))
            };
            if !report.problems.iter().any(named) {
                return Err(world.fail(format!("not repaired: {:?}", report.problems)));
            }
            damages += 1;
            world.pool.take().map_or(Ok(()), Pool::close).map_err(|e| base.fail(e))?;
            world.machine.power_cycle();
            world.open()?;
            world.verify_check()?;
            let device = world.device(volume)?;
            for offset in (0..world.model.size_bytes(volume)).step_by(4096) {
                let mut buf = [0xee; 4096];
                let left = world.model.size_bytes(volume) - offset;
                let buf = &mut buf[..left.min(4096) as usize];
                device.read(offset, buf).map_err(|e| world.fail(format!("after repair: {e}")))?;
                let lost = group.contains(&offset) && buf.iter().all(|b| *b == 0);
                if !lost {
                    let checked = world.model.check_read(volume, offset, buf);
                    checked.map_err(|m| world.fail(format!("after repair: {m}")))?;
                }
            }
        }
        Ok(damages)
    });
}

/// Payloads that are stored raw have no decoder that might stumble: only the checksum stands before
/// wrong bytes.
#[test]
fn raw_payloads_are_verified() {
    campaign("raw_payloads_are_verified", 6, |seed| {
        let mut base = World::new(seed, |rng| Shape { copies: false, ..Shape::small(rng) })?;
        let create = sim::TableOp::Create {
            name: "raw".into(),
            size_bytes: 256 << 10,
            properties: [("compression".to_owned(), "off".to_owned())].into(),
        };
        base.apply(&crate::common::Op::Table(create))?;
        for i in 0..8 {
            let (volume, offset) = ("raw".to_owned(), i * (32 << 10));
            let write = crate::common::Op::Write {
                volume,
                offset,
                len: 32 << 10,
                kind: ContentKind::Random,
                seed: seed + i,
                fua: true,
            };
            base.apply(&write)?;
        }
        base.apply(&crate::common::Op::Checkpoint)?;
        base.abandon();
        base.machine.restart();
        let anatomy = Anatomy::of(&base);
        let mut rng = Rng::new(seed);
        let mut damages = 0;
        for part in anatomy.fragments.iter().filter(|part| part.fragment.codec == 0) {
            damages += 1;
            let at = part.fragment.location + rng.below(part.fragment.stored.into());
            let seen = look(&base, |world| world.machine.disk.flip_bit(at, 1)).map_err(|e| fail(&base, e))?;
            honest(&base, "a raw fragment", &seen)?;
            if seen.errors.is_empty() {
                return Err(fail(&base, format!("a raw fragment at {at}: no error: {}", seen.tell())));
            }
        }
        Ok(damages)
    });
}
