//! The storage fails without dying: EIO, short writes, no space, unreadable places; and the pool
//! itself is full. The request gets an error, nothing that was acknowledged is lost, and the pool
//! continues, after a reopen at the latest.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::anatomy::Anatomy;
use crate::common::{Campaign, Ended, Failure, Op, Shape, Tally, World};
use bytes::Bytes;
use env::AlignedBuf;
use format::{Entry, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, decode_batch};
use sim::{ContentKind, Fault, Rng, TableOp, fill_content};
use surface::{ErrorKind, WriteOptions};

fn tally(world: &World, faults: u64) -> Tally {
    Tally { ops: world.op_number, crashes: world.crashes, fulls: world.fulls, faults }
}

/// Works until a fault has been noticed, and a little longer.
fn run_until_disturbed(world: &mut World, ops_max: u64) -> Result<(), Failure> {
    let mut left = ops_max;
    let after = *world.rng.pick(&[8, 40]);
    while left > 0 {
        left -= 1;
        match world.step()? {
            Ended::Well | Ended::Limited => {}
            Ended::Full => {
                world.relieve()?;
            }
            // A few more requests to the pool that has met the fault: its reads must still be
            // right.
            Ended::Disturbed => left = left.min(after),
            Ended::Dark => break,
        }
    }
    Ok(())
}

fn faults_run(seed: u64) -> Result<Tally, Failure> {
    let mut world = World::new(seed, Shape::small)?;
    let mut faults = 0;
    for _ in 0..8 {
        let fault = *world.rng.pick(&[Fault::Io, Fault::Io, Fault::ShortWrite, Fault::NoSpace]);
        // Half of the time reads of the disk and of the store fail too.
        let reads = world.rng.coin();
        world.machine.power.number_reads(reads);
        for _ in 0..world.rng.between(1, 3) {
            let point = world.machine.power.next_point() + world.rng.below(if reads { 120 } else { 40 });
            // One failure is tried again and passes; several in a row break the log, which must go
            // on elsewhere.
            let row = if world.rng.coin() { 1 } else { world.rng.between(3, 7) };
            for point in point..point + row {
                world.machine.power.plan(point, fault);
            }
            faults += row;
        }
        run_until_disturbed(&mut world, 50)?;
        world.machine.power.number_reads(false);
        if world.rng.coin() {
            world.crash()?;
        } else {
            world.restart()?;
        }
        // It goes on.
        run_until_disturbed(&mut world, 10)?;
    }
    world.crash()?;
    Ok(tally(&world, faults))
}

#[test]
fn faults_at_random_points() {
    Campaign { file: "faults", test: "faults_at_random_points", seeds: 250, soaks: true }.run(faults_run);
}

/// Reads each block: right, or an error of this kind.
fn read_blocks(world: &mut World, kind: ErrorKind) -> Result<u64, Failure> {
    let mut errors = 0;
    for name in world.model.all_names() {
        let device = world.device(&name)?;
        let size = world.model.size_bytes(&name);
        for offset in (0..size).step_by(4096) {
            let mut buf = vec![0xee; (size - offset).min(4096) as usize];
            match device.read(offset, &mut buf) {
                Ok(()) => {
                    let checked = world.model.check_read(&name, offset, &buf);
                    checked.map_err(|m| world.fail(m))?;
                }
                Err(e) if e.kind() == kind => errors += 1,
                Err(e) => {
                    return Err(world.fail(format!("read of {name} at {offset}: {:?}, not {kind:?}: {e}", e.kind())));
                }
            }
        }
    }
    Ok(errors)
}

/// Reads ranges whose blocks can be read one by one: they can be read at once.
fn read_ranges(world: &mut World) -> Result<(), Failure> {
    for name in world.model.names() {
        let device = world.device(&name)?;
        let size = world.model.size_bytes(&name);
        for _ in 0..16 {
            let offset = world.rng.below(size) / 4096 * 4096;
            let mut buf = vec![0xee; (4096 * world.rng.between(2, 24)).min(size - offset) as usize];
            let is_readable = (0..buf.len()).step_by(4096).all(|at| {
                world.pool().drop_caches();
                let end = buf.len().min(at + 4096);
                device.read(offset + at as u64, &mut buf[at..end]).is_ok()
            });
            world.pool().drop_caches();
            match device.read(offset, &mut buf) {
                Ok(()) => world.model.check_read(&name, offset, &buf).map_err(|m| world.fail(m))?,
                Err(e) if is_readable => {
                    return Err(world.fail(format!("each block of {name} from {offset} on can be read alone: {e}")));
                }
                Err(_) => {}
            }
        }
    }
    Ok(())
}

#[test]
fn unreadable_places() {
    let campaign = Campaign { file: "faults", test: "unreadable_places", seeds: 60, soaks: false };
    let total = campaign.run(|seed| {
        let mut world = World::new(seed, Shape::small)?;
        let mut faults = 0;
        for _ in 0..4 {
            run_until_disturbed(&mut world, 40)?;
            world.apply(&Op::FlushPool)?;
            let used = world.machine.disk.handle();
            let size = env::Disk::size_bytes(used.as_ref()).unwrap();
            for _ in 0..world.rng.between(1, 20) {
                let start = world.rng.below(size / 4096) * 4096;
                // Half of them fit between two fragments.
                let blocks = if world.rng.coin() { 1 } else { world.rng.between(1, 16) };
                world.machine.disk.break_reads(start..start + 4096 * blocks);
            }
            world.disturbed = Some("unreadable places".into());
            world.pool().drop_caches();
            faults += read_blocks(&mut world, ErrorKind::Io)?;
            read_ranges(&mut world)?;
            run_until_disturbed(&mut world, 10)?;
            world.machine.disk.heal();
            world.pool().drop_caches();
            if read_blocks(&mut world, ErrorKind::Io)? > 0 {
                return Err(world.fail("errors remain although every place can be read again"));
            }
            world.restart()?;
        }
        Ok(tally(&world, faults))
    });
    campaign.demand(total.faults > 0, "read errors");
}

fn is_readable(world: &World, at: u64) -> bool {
    env::Disk::read_at(&*world.machine.disk.handle(), at, &mut AlignedBuf::new(4096), 4096).is_ok()
}

/// It kept the pool shut, and could be neither repaired nor salvaged.
#[test]
fn a_copy_of_the_superblock_that_cannot_be_read_is_a_damaged_one() {
    let name = "a_copy_of_the_superblock_that_cannot_be_read_is_a_damaged_one";
    Campaign { file: "faults", test: name, seeds: 6, soaks: false }.run(|seed| {
        let mut world = World::new(seed, Shape::small)?;
        run_until_disturbed(&mut world, 30)?;
        world.apply(&Op::FlushPool)?;
        for copy in SUPERBLOCK_OFFSETS {
            world.machine.disk.break_reads(copy..copy + SUPERBLOCK_BYTES as u64);
            let disk_bytes = world.shape.capacity_bytes.next_multiple_of(4096);
            crate::common::salvage::salvage(&world.machine.duplicate(seed), disk_bytes, seed)
                .map_err(|e| world.fail(format!("salvage: {e}")))?;
            world.abandon();
            world.machine.restart();
            world.model.crashed();
            world.open()?;
            let problems = |world: &World, repair| {
                let report = world.pool().check(repair, &mut |_, _| ()).map_err(|e| world.fail(e))?;
                Ok::<_, Failure>(report.problems)
            };
            for repaired in [false, true] {
                let found = problems(&world, repaired)?;
                let place = format!("copy at byte {copy} of the data file");
                let is_told = |p: &engine::Problem| p.kind == "superblock" && p.detail.contains(&place);
                if found.len() != 1 || !found.iter().all(|p| is_told(p) && p.repaired == repaired) {
                    return Err(world.fail(format!("{place}: {found:?}")));
                }
            }
            if !is_readable(&world, copy) {
                return Err(world.fail(format!("the copy at byte {copy} cannot be read after it was repaired")));
            }
            world.verify()?;
        }
        world.machine.disk.break_reads(0..64 << 10);
        world.abandon();
        world.machine.restart();
        match engine::Pool::open(world.env(), world.pool_options()) {
            Err(error) if error.kind() == ErrorKind::Io => Ok(tally(&world, 3)),
            other => Err(world.fail(format!("both copies: {other:?}"))),
        }
    });
}

/// The older copy counted as soon as the other one was gone.
#[test]
fn a_copy_of_the_superblock_that_a_crash_left_behind_is_brought_up_to_date() {
    let mut world = World::new(3, Shape::small).unwrap_or_else(|f| panic!("HARNESS: {}", f.0));
    world.abandon();
    let copy = |world: &World, at| {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        world.machine.disk.peek(at, &mut bytes);
        Superblock::decode(&bytes).unwrap()
    };
    for (older, newer) in [(0, 1), (1, 0)].map(|(a, b)| (SUPERBLOCK_OFFSETS[a], SUPERBLOCK_OFFSETS[b])) {
        let next = Superblock { generation: copy(&world, newer).generation + 1, ..copy(&world, newer) };
        world.machine.disk.poke(newer, &next.encode());
        assert_ne!(copy(&world, older), next);
        world.machine.restart();
        world.open().unwrap_or_else(|f| panic!("HARNESS: {}", f.0));
        assert_eq!(copy(&world, older), next);
        world.abandon();
    }
}

/// A pool with batches after its checkpoint, all of them durable, that no process has open.
fn with_a_log(seed: u64) -> Result<World, Failure> {
    // The log must stay after the checkpoint.
    let mut world = World::new(seed, |rng: &mut Rng| Shape { checkpoint_log_bytes: 64 << 20, ..Shape::small(rng) })?;
    run_until_disturbed(&mut world, 40)?;
    world.apply(&Op::Checkpoint)?;
    run_until_disturbed(&mut world, 10)?;
    world.apply(&Op::FlushPool)?;
    world.abandon();
    world.machine.restart();
    Ok(world)
}

/// Positions of the log after the checkpoint, in bytes of the data file.
struct Ends {
    /// Where a stream goes on, but for the end of its extent.
    open: Vec<u64>,
    /// Before the place at which the checkpoint left a stream.
    before: Option<u64>,
    /// After the place at which a stream continues, in the same extent.
    behind: Vec<u64>,
    /// The first of the listed extents after the one that is opened next.
    ahead: Option<u64>,
    /// The last batch: where it begins, and its last block.
    last: Option<(u64, u64)>,
}

fn ends(world: &World) -> Ends {
    let anatomy = Anatomy::of(world);
    let extent_bytes = u64::from(world.shape.extent_bytes);
    let (checkpoint, tail) = (&anatomy.checkpoint, anatomy.tail());
    let mut open = checkpoint.open.map(|open| open.map(|o| u64::from(o.extent.0) * extent_bytes + u64::from(o.offset)));
    let before = checkpoint.open.iter().flatten().find(|o| o.offset > 0);
    for part in &tail {
        open[part.batch.header.stream as usize] = Some(part.offset + part.batch.batch_bytes as u64);
    }
    let opened = tail.iter().filter(|part| part.offset % extent_bytes == 0).count();
    let is_inside = |at: &u64| at % extent_bytes > 4096;
    Ends {
        open: open.iter().flatten().copied().filter(|at| at % extent_bytes != 0).collect(),
        before: before.map(|o| u64::from(o.extent.0) * extent_bytes + u64::from(o.offset) - 4096),
        behind: open.iter().flatten().map(|at| at + 4096).filter(is_inside).collect(),
        ahead: checkpoint.extents.get(opened + 1).map(|e| u64::from(e.0) * extent_bytes),
        last: tail.last().map(|part| (part.offset, part.offset + part.batch.batch_bytes as u64 - 4096)),
    }
}

/// It kept the pool shut, wherever in the extents of the log it was.
#[test]
fn what_cannot_be_read_beside_the_log_does_not_keep_a_pool_shut() {
    let name = "what_cannot_be_read_beside_the_log_does_not_keep_a_pool_shut";
    let total = Campaign { file: "faults", test: name, seeds: 30, soaks: false }.run(|seed| {
        let base = with_a_log(seed)?;
        let Ends { before, behind, ahead, .. } = ends(&base);
        let mut faults = 0;
        for (at, is_free) in
            before.map(|at| (at, false)).into_iter().chain(behind.into_iter().chain(ahead).map(|at| (at, true)))
        {
            let mut world = base.fork(seed);
            world.machine.disk.break_reads(at..at + 4096);
            world.model.crashed();
            world.open().map_err(|Failure(what)| world.fail(format!("unreadable at {at}: {what}")))?;
            if is_free && !is_readable(&world, at) {
                return Err(world.fail(format!("nothing is at {at}, and it still cannot be read")));
            }
            // The loss there is reported to a reader that asks for the data.
            world.machine.disk.heal();
            world.verify()?;
            faults += 1;
        }
        Ok(tally(&base, faults))
    });
    assert!(total.faults > 60, "{total:?}");
}

/// The first checkpoint of a pool that is short of space may move the catalogue there, and the
/// zeroes came after it.
#[test]
fn what_an_opening_appends_is_not_written_over() {
    let name = "what_an_opening_appends_is_not_written_over";
    let total = Campaign { file: "faults", test: name, seeds: 60, soaks: false }.run(|seed| {
        let mut world = World::new(seed, |rng: &mut Rng| Shape {
            capacity_bytes: 16 * (32 << 10),
            extent_bytes: 32 << 10,
            volume_bytes_max: 600 << 10,
            ..Shape::small(rng)
        })?;
        let mut faults = 0;
        for _ in 0..6 {
            // A full pool, with extents that only the catalogue keeps.
            for _ in 0..60 {
                if world.step()? == Ended::Full && world.rng.coin() {
                    world.relieve()?;
                }
            }
            world.apply(&Op::FlushPool)?;
            world.abandon();
            world.machine.restart();
            let Ends { open, .. } = ends(&world);
            for at in &open {
                world.machine.disk.break_reads(*at..at + 4096);
            }
            let options = engine::PoolOptions { repair: true, accept_loss: true, ..world.pool_options() };
            let pool = engine::Pool::open(world.env(), options).map_err(|e| world.fail(format!("open: {e}")))?;
            let report = pool.check(false, &mut |_, _| ()).map_err(|e| world.fail(format!("check: {e}")))?;
            if let Some(problem) = report.problems.iter().find(|problem| problem.kind == "catalogue") {
                return Err(world.fail(format!("{problem:?}")));
            }
            faults += open.iter().filter(|at| holds_catalogue(&world, **at)).count() as u64;
            drop(pool);
            world.machine.restart();
            world.model.crashed();
            world.open()?;
        }
        Ok(tally(&world, faults))
    });
    assert!(total.faults > 0, "{total:?}");
}

fn holds_catalogue(world: &World, at: u64) -> bool {
    let extent_bytes = u64::from(world.shape.extent_bytes);
    let mut bytes = vec![0; (extent_bytes - at % extent_bytes) as usize];
    world.machine.disk.peek(at, &mut bytes);
    decode_batch(&bytes).is_ok_and(|batch| matches!(batch.entries[..], [Entry::Catalogue(_)]))
}

fn loss_of(error: &surface::Error) -> Option<&engine::Loss> {
    std::error::Error::source(error)?.downcast_ref()
}

/// The log must not end before it in silence.
#[test]
fn a_batch_that_cannot_be_read_is_missed() {
    let name = "a_batch_that_cannot_be_read_is_missed";
    let total = Campaign { file: "faults", test: name, seeds: 30, soaks: false }.run(|seed| {
        let base = with_a_log(seed)?;
        let Some((first, last)) = ends(&base).last else { return Ok(tally(&base, 0)) };
        for at in [first, last] {
            let world = base.fork(seed);
            world.machine.disk.break_reads(at..at + 4096);
            match engine::Pool::open(world.env(), world.pool_options()) {
                Err(error) if error.kind() == ErrorKind::Io && error.to_string().contains("--repair") => {}
                // Nothing but zeroes was there.
                Ok(_) if at == last && last > first => continue,
                other => return Err(world.fail(format!("unreadable at {at}: {other:?}"))),
            }
            // Not without a report of the loss.
            let options = engine::PoolOptions { repair: true, ..world.pool_options() };
            match engine::Pool::open(world.env(), options.clone()) {
                Err(error) if loss_of(&error).is_some_and(|loss| loss.first_batch > 0) => {}
                other => return Err(world.fail(format!("unreadable at {at}: {other:?}"))),
            }
            let options = engine::PoolOptions { accept_loss: true, ..options };
            let pool = engine::Pool::open(world.env(), options).map_err(|e| world.fail(e))?;
            let report = pool.check(true, &mut |_, _| ()).map_err(|e| world.fail(e))?;
            if !report.problems.iter().any(|p| p.kind == "lost" && p.repaired) {
                return Err(world.fail(format!("unreadable at {at}: {report:?}")));
            }
            pool.close().map_err(|e| world.fail(e))?;
            engine::Pool::open(world.env(), world.pool_options()).map_err(|e| world.fail(e))?;
        }
        Ok(tally(&base, 2))
    });
    assert!(total.faults > 30, "{total:?}");
}

#[test]
fn no_space_below() {
    let campaign = Campaign { file: "faults", test: "no_space_below", seeds: 100, soaks: false };
    let total = campaign.run(|seed| {
        let mut world = World::new(seed, Shape::small)?;
        let mut faults = 0;
        for _ in 0..4 {
            let occupied = env::Disk::occupied_bytes(world.machine.disk.handle().as_ref()).unwrap();
            let room = world.rng.below(1 << 20);
            world.machine.disk.limit_space(Some(occupied + room));
            world.disturbed = Some(format!("{room} bytes of room below"));
            if world.rng.percent(40) {
                world.plan_crash(200);
            }
            let mut is_dark = false;
            for _ in 0..60 {
                match world.step()? {
                    Ended::Disturbed => faults += 1,
                    Ended::Dark => {
                        is_dark = true;
                        break;
                    }
                    Ended::Well | Ended::Full | Ended::Limited => {}
                }
            }
            if !is_dark && read_blocks(&mut world, ErrorKind::Io)? > 0 {
                return Err(world.fail("lack of space made reads fail"));
            }
            // Existing data can be opened and read without any room, too.
            if world.rng.percent(70) {
                world.machine.disk.limit_space(None);
            }
            if is_dark || world.rng.coin() {
                world.crash()?
            } else {
                world.restart()?
            }
            world.machine.disk.limit_space(None);
            run_until_disturbed(&mut world, 20)?;
        }
        Ok(tally(&world, faults))
    });
    campaign.demand(total.faults > 0, "requests refused");
}

/// A bit of some fragment flips at one of the next points, if there are that many. Returns its
/// content at that time.
fn plan_flip(world: &mut World) -> Option<(u64, Vec<u8>)> {
    let fragments = Anatomy::of(world).fragments;
    let fragment = (!fragments.is_empty()).then(|| world.rng.pick(&fragments).fragment)?;
    let (offset, len) = (fragment.location, u64::from(fragment.stored));
    let point = world.machine.power.next_point() + world.rng.below(12);
    world.machine.power.plan(point, Fault::FlipBit { offset, len });
    let mut bytes = vec![0; len as usize];
    world.machine.disk.peek(offset, &mut bytes);
    Some((offset, bytes))
}

/// Work that reads old data, and writes it elsewhere; mixed with other work.
fn move_data(world: &mut World) -> Result<(), Failure> {
    let name = world.rng.pick(&world.model.all_names()).clone();
    let volume = name.split('@').next().unwrap_or_default().to_owned();
    let op = match world.rng.below(6) {
        0 | 1 => Op::Clean { all: true },
        2 => Op::Sort { bytes: 4 << 20, restart: true },
        3 => {
            let mode = *world.rng.pick(&[Some("archive"), Some("energy"), None]);
            Op::Recompress { volume, mode, bytes: 4 << 20, restart: true }
        }
        4 => Op::LightCheckpoint,
        _ => return world.step().map(|_| ()),
    };
    world.apply(&op).map(|_| ())
}

/// Bits of data in the log flip while it is moved, recompressed and sorted: reading it stays an
/// error, and never returns different data.
fn flips_run(seed: u64) -> Result<Tally, Failure> {
    let mut world = World::new(seed, Shape::small)?;
    let mut errors = 0;
    for _ in 0..6 {
        run_until_disturbed(&mut world, 40)?;
        if world.model.all_names().is_empty() || world.apply(&Op::Checkpoint)? != Ended::Well {
            break;
        }
        let Some((offset, before)) = plan_flip(&mut world) else { continue };
        for _ in 0..world.rng.between(2, 8) {
            move_data(&mut world)?;
            if world.model.names().is_empty() {
                break;
            }
        }
        world.machine.power.clear_plan();
        world.notice_faults();
        // Its place may have been used again by then: in the log's end, damage would be the end of
        // the log.
        let mut now = vec![0; before.len()];
        world.machine.disk.peek(offset, &mut now);
        let is_whole_but_for_one = before.iter().zip(&now).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>() <= 1;
        if (!is_whole_but_for_one || world.rng.coin()) && world.apply(&Op::Checkpoint)? != Ended::Well {
            break;
        }
        world.pool().drop_caches();
        errors += read_blocks(&mut world, ErrorKind::Corrupt)?;
        world.abandon();
        if world.rng.coin() {
            world.machine.power_cycle()
        } else {
            world.machine.restart()
        }
        world.model.crashed();
        world.open()?;
        world.disturbed = Some("bits have turned over".into());
        world.verify_table()?;
        let found = read_blocks(&mut world, ErrorKind::Corrupt)?;
        let report = world.pool().check(false, &mut |_, _| ()).map_err(|e| world.fail(format!("check: {e}")))?;
        if found > 0 && report.problems.is_empty() {
            return Err(world.fail(format!("check does not see why {found} blocks cannot be read")));
        }
        errors += found;
    }
    Ok(tally(&world, errors))
}

#[test]
fn bits_turn_over_in_a_running_pool() {
    let campaign = Campaign { file: "faults", test: "bits_turn_over_in_a_running_pool", seeds: 120, soaks: false };
    let total = campaign.run(flips_run);
    campaign.demand(total.faults > 500, "500 errors");
}

/// Fills the pool with bytes that do not compress, until it says that it is full.
fn fill(world: &mut World, volume: &str, rng: &mut Rng) -> Result<(), Failure> {
    let size = world.model.size_bytes(volume);
    for round in 0..64 {
        let mut offset = 0;
        while offset < size {
            let len = rng.between(1, 24).min((size - offset) / 4096) * 4096;
            let op = Op::Write {
                volume: volume.into(),
                offset,
                len,
                kind: ContentKind::Random,
                seed: rng.next_u64(),
                fua: false,
            };
            match world.apply(&op)? {
                Ended::Well => {}
                Ended::Full => return Ok(()),
                ended => return Err(world.fail(format!("{ended:?} in round {round}"))),
            }
            offset += len;
        }
    }
    Err(world.fail("the pool never said that it is full"))
}

fn expect(world: &mut World, op: &Op) -> Result<(), Failure> {
    match world.apply(op)? {
        Ended::Well => Ok(()),
        ended => Err(world.fail(format!("{op:?} on a full pool: {ended:?}"))),
    }
}

#[test]
fn full_pool_reads_discards_and_destroys() {
    let campaign = Campaign { file: "faults", test: "full_pool_reads_discards_and_destroys", seeds: 40, soaks: false };
    campaign.run(|seed| {
        let mut world = World::new(seed, Shape::small)?;
        let mut rng = world.rng.fork();
        let size_bytes = world.shape.capacity_bytes * 2 / 4096 * 4096;
        let properties = [("compression".to_owned(), "off".to_owned())];
        for round in 0..4 {
            let name = format!("full{round}");
            let create = TableOp::Create { name: name.clone(), size_bytes, properties: properties.clone().into() };
            expect(&mut world, &Op::Table(create))?;
            fill(&mut world, &name, &mut rng)?;
            // Every acknowledgement holds: buffered data still finds its place.
            expect(&mut world, &Op::Flush { volume: name.clone() })?;
            world.verify()?;
            let write = Op::Write {
                volume: name.clone(),
                offset: 0,
                len: 64 << 10,
                kind: ContentKind::Random,
                seed,
                fua: true,
            };
            world.apply(&write)?;
            world.verify()?;
            match rng.below(3) {
                0 => world.crash()?,
                1 => world.reopen()?,
                _ => {}
            }
            if rng.coin() {
                // A full pool has room for a snapshot, and for giving it up with the rest.
                expect(&mut world, &Op::Table(TableOp::Snapshot { volume: name.clone(), name: "s".into() }))?;
                world.apply(&write)?;
                world.verify()?;
            }
            if rng.coin() {
                let len = size_bytes;
                expect(&mut world, &Op::Discard { volume: name.clone(), offset: 0, len })?;
                expect(&mut world, &Op::Flush { volume: name.clone() })?;
            }
            expect(&mut world, &Op::Table(TableOp::Destroy { name }))?;
            // Records of a large volume go in steps, checkpoint by checkpoint.
            for round in 0..400 {
                if round >= 6 && world.pool().status().reaping == 0 {
                    break;
                }
                expect(&mut world, &Op::Checkpoint)?;
            }
            let status = world.pool().status();
            // Each stream of copies has an open extent.
            if (status.extents_free + world.streams_of_copies()) * 10 < status.extents_total * 8 {
                return Err(world.fail(format!("space has not come back: {status:?}")));
            }
            if rng.coin() {
                world.crash()?;
            }
        }
        Ok(tally(&world, 0))
    });
}

/// A write that finds the pool full changes nothing half: each block is old or new.
#[test]
fn refused_writes_leave_blocks_whole() {
    let mut world = World::new(7, Shape::small).unwrap_or_else(|f| panic!("HARNESS: {}", f.0));
    let mut rng = Rng::new(7);
    let result = (|| {
        let size_bytes = world.shape.capacity_bytes * 2 / 4096 * 4096;
        let create = TableOp::Create { name: "v".into(), size_bytes, properties: Default::default() };
        expect(&mut world, &Op::Table(create))?;
        fill(&mut world, "v", &mut rng)?;
        for _ in 0..50 {
            let mut data = vec![0; 100 << 10];
            fill_content(&mut rng, ContentKind::Random, &mut data);
            let offset = rng.below(size_bytes - data.len() as u64);
            let result = world.device("v")?.write(offset, Bytes::from(data.clone()), WriteOptions::default());
            let outcome = if result.is_ok() { sim::Outcome::Done } else { sim::Outcome::Failed };
            world.model.write("v", offset, &data, outcome);
        }
        world.verify()?;
        world.crash()
    })();
    if let Err(Failure(what)) = result {
        panic!("HARNESS: {what}");
    }
}
