//! Pools in which the cleaner works all the time: nearly full, constantly overwritten, discarded
//! and filled again, with crashes at every kind of moment. Nothing is lost, nothing leaks (`check`
//! recounts every extent), and space never runs out while there is some.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::ops::choose_limits;
use crate::common::{Campaign, Ended, Failure, Op, Shape, Tally, World};
use sim::{ContentKind, Rng, TableOp};

/// Bytes moved by all runs of a test.
static MOVED: AtomicU64 = AtomicU64::new(0);
/// Bytes that the cleaner recompressed.
static RECODED: AtomicU64 = AtomicU64::new(0);

/// Few extents, so that each is cleaned again and again.
fn tight(rng: &mut Rng) -> Shape {
    let is_large = rng.percent(4);
    let extent_bytes = if is_large { 1 << 20 } else { *rng.pick(&[32 << 10, 64 << 10, 128 << 10, 256 << 10]) };
    let extents = 20 + rng.below(if is_large { 4 } else { 30 });
    let capacity_bytes = extents * u64::from(extent_bytes);
    Shape {
        capacity_bytes,
        extent_bytes,
        memory_bytes: *rng.pick(&[256 << 10, 1 << 20]),
        checkpoint_log_bytes: *rng.pick(&[64 << 10, 512 << 10, 4 << 20]),
        settled_bytes_max: *rng.pick(&[None, Some(3 << 10), Some(12 << 10), Some(40 << 10)]),
        age_limit_ms: *rng.pick(&[100, 5000]),
        volumes_max: 2,
        volume_bytes_max: capacity_bytes,
        request_bytes_max: 64 << 10,
        history: false,
        dictionaries: false,
        standby: false,
        shares: false,
        folders: false,
        copies: rng.percent(40),
    }
}

/// Bytes of any data that certainly fit into a pool: a raw unit may leave a tail of its size in
/// every extent. Of data in several copies: each copy needs one in the reserve, and one that is open.
fn usable(shape: &Shape, copies: u64) -> u64 {
    let extent = u64::from(shape.extent_bytes);
    let unit = (extent / 2).min(128 << 10);
    (shape.capacity_bytes / extent - 1 - 6 - 3 - 2 * (copies - 1)) * (extent - unit) / copies
}

fn create(world: &mut World, size_bytes: u64, properties: &[(&str, &str)]) -> Result<Ended, Failure> {
    let properties: BTreeMap<_, _> = properties.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    world.apply(&Op::Table(TableOp::Create { name: "v".into(), size_bytes, properties }))
}

fn write(world: &mut World, offset: u64, len: u64, kind: ContentKind) -> Result<Ended, Failure> {
    let seed = world.rng.next_u64();
    world.apply(&Op::Write { volume: "v".into(), offset, len, kind, seed, fua: false })
}

fn note_moved(world: &World) {
    if let Some(pool) = &world.pool {
        let status = pool.status();
        MOVED.fetch_add(status.moved_bytes, Ordering::Relaxed);
        RECODED.fetch_add(status.cold_before_bytes, Ordering::Relaxed);
    }
}

/// An operation on the volume `v`: mostly overwrites.
fn overwrite(world: &mut World) -> Result<Ended, Failure> {
    let volume = || "v".to_owned();
    let blocks = world.model.size_bytes("v") / 4096;
    let first = world.rng.below(blocks);
    // In small extents nothing but the smallest requests is sure of its room: see
    // `Geometry::usable_bytes_min`.
    let lengths: &[u64] = match world.shape.extent_bytes >> 10 {
        0..128 => &[1, 1, 2, 4],
        128..1024 => &[1, 1, 1, 2, 5, 16],
        _ => &[1, 5, 16, 64, 100],
    };
    let len = (*world.rng.pick(lengths)).min(blocks - first) * 4096;
    let offset = first * 4096;
    match world.rng.below(100) {
        0..78 => {
            let kind =
                *world.rng.pick(&[ContentKind::Random, ContentKind::Random, ContentKind::Text, ContentKind::Mixed]);
            write(world, offset, len, kind)
        }
        78..82 => world.apply(&Op::Discard { volume: volume(), offset, len }),
        82..86 => world.apply(&Op::Flush { volume: volume() }),
        86..90 => {
            if world.rng.percent(25) {
                let (bytes, restart) = (1 + world.rng.below(4 << 20), world.rng.coin());
                return world.apply(&Op::Sort { bytes, restart });
            }
            let all = world.rng.percent(30);
            world.apply(&Op::Clean { all })
        }
        90..95 => world.apply(&Op::Tick { ms: 6000 }),
        95..96 if world.rng.coin() => world.apply(&Op::LightCheckpoint),
        95..96 => world.apply(&Op::Checkpoint),
        96..97 => world.apply(&Op::Scrub { bytes: 1 << 20, restart: true }),
        _ => world.apply(&Op::Read { volume: volume(), offset, len, pieces: 3 }),
    }
}

/// A pool with one volume, as full as its data can always be.
fn full_world(seed: u64, percent: u64) -> Result<World, Failure> {
    let mut world = World::new(seed, tight)?;
    // Dirty data needs room in addition to live data.
    let copies = if world.shape.copies { 1 + world.rng.below(3) } else { 1 };
    let room = usable(&world.shape, copies).saturating_sub(128 << 10);
    let size = (room * percent / 100).max((32 << 10) / copies) / 4096 * 4096;
    let unit = *world.rng.pick(&["4K", "8K", "32K", "128K"]);
    let codec = *world.rng.pick(&["off", "lz4", "zstd-1"]);
    let cold = *world.rng.pick(&["auto", "balanced", "archive"]);
    let copies = copies.to_string();
    let properties = [("unit", unit), ("compression", codec), ("cold-mode", cold), ("copies", &copies)];
    create(&mut world, size, &properties)?;
    if world.shape.extent_bytes >= 1 << 20 {
        // The part that small requests would take too long to fill.
        for offset in (0..size).step_by(512 << 10) {
            write(&mut world, offset, (size - offset).min(512 << 10), ContentKind::Random)?;
        }
    }
    Ok(world)
}

fn crashes(seed: u64) -> Result<Tally, Failure> {
    let percent = 60 + seed % 5 * 10;
    let mut world = full_world(seed, percent)?;
    let name = ["v".to_owned()];
    world.apply(&Op::Flush { volume: "v".into() })?;
    for _ in 0..8 {
        let within = *world.rng.pick(&[10, 30, 100, 300]);
        world.plan_crash(within);
        for _ in 0..120 {
            // The crash may have come before the volume was there.
            if world.model.names() != name {
                break;
            }
            match overwrite(&mut world)? {
                Ended::Dark => break,
                Ended::Full | Ended::Limited => {
                    return Err(world.fail(format!("full, with {percent} % of what must fit")));
                }
                Ended::Well | Ended::Disturbed => {}
            }
        }
        note_moved(&world);
        world.crash()?;
        if world.rng.percent(20) {
            world.reopen()?;
        }
        if world.model.names() != name {
            break;
        }
    }
    world.verify_check()?;
    Ok(world.tally())
}

#[test]
fn crashes_while_extents_are_cleaned() {
    let campaign = Campaign { file: "cleaning", test: "crashes_while_extents_are_cleaned", seeds: 300, soaks: true };
    let total = campaign.run(crashes);
    let (moved, recoded) = (MOVED.load(Ordering::Relaxed), RECODED.load(Ordering::Relaxed));
    println!("{} MiB moved, {} MiB compressed anew", moved >> 20, recoded >> 20);
    campaign.demand(
        total.crashes >= 2000 && moved > 200 << 20 && recoded > 5 << 20,
        "2000 crashes, 200 MiB moved and 5 MiB compressed anew",
    );
}

/// Something with the history of the volume `v`, of which few snapshots are kept, and one clone.
fn change_history(world: &mut World) -> Result<Ended, Failure> {
    let snapshots = world.model.snapshots_of("v");
    let has_clone = world.model.names().contains(&"c".to_owned());
    let free = (0..4).map(|i| format!("s{i}")).find(|name| !snapshots.contains(&format!("v@{name}")));
    let take = |name| TableOp::Snapshot { volume: "v".into(), name };
    let change = match (snapshots.is_empty(), world.rng.below(10)) {
        (true, _) => take("s0".to_owned()),
        (_, 0..4) if snapshots.len() < 3 && free.is_some() => take(free.unwrap_or_default()),
        (_, 4) if world.model.can_roll_back(&snapshots[snapshots.len() - 1]) => {
            TableOp::Rollback { snapshot: world.rng.pick(&snapshots).clone() }
        }
        (_, 6) => {
            let name = (*world.rng.pick(&if has_clone { vec!["v", "c"] } else { vec!["v"] })).to_owned();
            TableOp::Set { name: Some(name), changes: choose_limits(&mut world.rng, 60) }
        }
        (_, 5) if has_clone => TableOp::Destroy { name: "c".into() },
        (_, 5) => TableOp::Clone {
            snapshot: world.rng.pick(&snapshots).clone(),
            name: "c".into(),
            properties: BTreeMap::new(),
        },
        _ => TableOp::Destroy { name: world.rng.pick(&snapshots).clone() },
    };
    world.apply(&Op::Table(change))
}

/// Data that only snapshots, clones and destroyed volumes hold moves as safely as data that heads
/// see.
fn crashes_with_history(seed: u64) -> Result<Tally, Failure> {
    let mut world = full_world(seed, 25 + seed % 4 * 10)?;
    world.apply(&Op::Flush { volume: "v".into() })?;
    'generations: for _ in 0..8 {
        let within = *world.rng.pick(&[10, 30, 100, 300]);
        world.plan_crash(within);
        for _ in 0..120 {
            if !world.model.names().contains(&"v".to_owned()) {
                break 'generations;
            }
            let ended = if world.rng.percent(8) { change_history(&mut world)? } else { overwrite(&mut world)? };
            match ended {
                Ended::Dark => break,
                // History keeps data that would be dead without it.
                Ended::Full => {
                    if world.relieve()? == Ended::Dark {
                        break;
                    }
                }
                Ended::Well | Ended::Limited | Ended::Disturbed => {}
            }
        }
        note_moved(&world);
        world.crash()?;
        if world.rng.percent(20) {
            world.reopen()?;
        }
    }
    world.verify_check()?;
    Ok(world.tally())
}

#[test]
fn crashes_while_history_is_cleaned() {
    let campaign = Campaign { file: "cleaning", test: "crashes_while_history_is_cleaned", seeds: 150, soaks: true };
    let total = campaign.run(crashes_with_history);
    campaign.demand(total.crashes >= 1000, "1000 crashes");
}

/// A volume that fills the pool to `percent` of its usable bytes, overwritten `times` times.
fn overwritten(seed: u64, percent: u64, times: u64) -> Result<Tally, Failure> {
    let mut world = World::new(seed, |rng| Shape {
        capacity_bytes: 24 << 20,
        extent_bytes: 256 << 10,
        memory_bytes: 1 << 20,
        copies: false,
        ..tight(rng)
    })?;
    // Blocks of 4 KiB as they are: all but headers, reserve, and the extent that the second stream
    // has open can be used.
    let extents = world.shape.capacity_bytes / u64::from(world.shape.extent_bytes) - 1 - 6 - 1;
    let size = extents * u64::from(world.shape.extent_bytes) * percent / 100 / 4096 * 4096;
    create(&mut world, size, &[("unit", "4K"), ("compression", "off")])?;
    let blocks = size / 4096;
    for offset in (0..size).step_by(256 << 10) {
        write(&mut world, offset, (size - offset).min(256 << 10), ContentKind::Random)?;
    }
    for number in 0..times * blocks {
        // The skew of the soak: four fifths of the writes go to a fifth of the volume.
        let hot = seed % 2 == 1 && world.rng.percent(80);
        let block = if hot { world.rng.below(blocks / 5) } else { world.rng.below(blocks) };
        match write(&mut world, block * 4096, 4096, ContentKind::Random)? {
            Ended::Well => {}
            ended => return Err(world.fail(format!("write {number} of {}: {ended:?}", times * blocks))),
        }
        if number % 1000 == 999 {
            world.apply(&Op::Tick { ms: 10 })?;
        }
    }
    let status = world.pool().status();
    let amplification = status.log_bytes as f64 / status.fragment_bytes as f64;
    println!("seed {seed}: {percent} % full, {times} times overwritten: write amplification {amplification:.2}");
    // A log that frees one byte for each that it writes, with so little to spare, cannot do without
    // cleaning.
    if status.moved_bytes < status.fragment_bytes / 4 {
        return Err(world.fail(format!("hardly anything was cleaned: {status:?}")));
    }
    world.verify()?;
    world.verify_check()?;
    Ok(Tally { ops: world.op_number, crashes: 0, fulls: world.fulls, faults: 0 })
}

#[test]
fn overwritten_for_ever_at_80_percent() {
    Campaign { file: "cleaning", test: "overwritten_for_ever_at_80_percent", seeds: 2, soaks: false }
        .run(|seed| overwritten(seed, 80, 6));
}

#[test]
fn overwritten_for_ever_at_95_percent() {
    Campaign { file: "cleaning", test: "overwritten_for_ever_at_95_percent", seeds: 2, soaks: false }
        .run(|seed| overwritten(seed, 95, 3));
}

/// Filled, trimmed and filled again a hundred times, with crashes: each time about as much fits in
/// as the first time.
fn cycles(seed: u64) -> Result<Tally, Failure> {
    let mut world = World::new(seed, tight)?;
    let size = 2 * world.shape.capacity_bytes;
    while world.model.names().is_empty() {
        create(&mut world, size, &[("compression", "off")])?;
    }
    let floor = usable(&world.shape, world.times("v")) / 2;
    for cycle in 0..100 {
        if cycle % 3 == 2 {
            world.plan_crash(400);
        }
        let mut written = 0;
        let mut dark = false;
        // Every block once, in an order that leaves partly dead units when the trim comes.
        let step = *world.rng.pick(&[4096, 12288, 40960, 65536]);
        for offset in (0..size).step_by(step as usize) {
            match write(&mut world, offset, step.min(size - offset), ContentKind::Random)? {
                Ended::Full => break,
                Ended::Dark => {
                    dark = true;
                    break;
                }
                _ => written += step,
            }
        }
        if dark {
            world.crash()?;
        } else {
            world.machine.power.clear_plan();
            if written < floor {
                return Err(world.fail(format!("cycle {cycle}: full after {written} bytes, {floor} must fit")));
            }
        }
        match cycle % 4 {
            // All at once, or most of it in pieces, so that the rest has to be cleaned.
            0 => drop(world.apply(&Op::Discard { volume: "v".into(), offset: 0, len: size })?),
            _ => {
                for offset in (0..size).step_by(64 << 10) {
                    let len = (60 << 10).min(size - offset);
                    world.apply(&Op::Discard { volume: "v".into(), offset, len })?;
                }
            }
        }
        world.apply(&Op::Flush { volume: "v".into() })?;
        if cycle % 10 == 9 {
            world.verify_check()?;
        }
    }
    note_moved(&world);
    world.verify()?;
    Ok(world.tally())
}

#[test]
fn a_hundred_fills_and_trims() {
    let campaign = Campaign { file: "cleaning", test: "a_hundred_fills_and_trims", seeds: 6, soaks: false };
    let total = campaign.run(cycles);
    campaign.demand(total.fulls >= 250, "250 full pools");
}

/// A pass has a target: the extents filled when it began. A writer that overwrites everything
/// between its rounds constantly adds extents to clean, but the pass ends.
#[test]
fn a_pass_ends_while_a_writer_goes_on() {
    let machine = sim::Machine::new(16 << 20, 3);
    let env = || crate::common::machine_env::env(&machine);
    let properties = [("compression".to_owned(), "off".to_owned())].into();
    let format = engine::FormatOptions { capacity_bytes: 16 << 20, extent_bytes: 128 << 10, properties };
    engine::Pool::format(&env(), &format).unwrap();
    let options = engine::PoolOptions { workers: 0, memory_bytes: 4 << 20, ..engine::PoolOptions::default() };
    let pool = engine::Pool::open(env(), options).unwrap();
    pool.create_volume("v", 8 << 20, &BTreeMap::new()).unwrap();
    let volume = pool.volume("v").unwrap();
    let mut rng = Rng::new(7);
    let mut overwrite = |blocks: u64| {
        for _ in 0..blocks {
            let (index, tag) = (rng.below(2048), rng.next_u64());
            let block = tag.to_le_bytes().repeat(512);
            surface::BlockDevice::write(&*volume, index * 4096, block.into(), surface::WriteOptions::default())
                .unwrap();
        }
        surface::BlockDevice::flush(&*volume).unwrap();
    };
    overwrite(6000);
    let extents = pool.status().extents_total;
    let mut report = pool.clean(true, 1).unwrap();
    assert!(report.extents_todo > 10, "nothing to clean: {report:?}");
    let (first, mut cleaned, mut rounds) = (report, report.extents_cleaned, 1);
    while !report.is_finished {
        // More than an extent becomes worth cleaning with each.
        overwrite(64);
        report = pool.clean_on(true, 1, first.mark).unwrap();
        assert_eq!(report.mark, first.mark);
        cleaned += report.extents_cleaned;
        rounds += 1;
        assert!(rounds <= 2 * extents, "HARNESS: no end after {rounds} rounds, {} extents to go", report.extents_todo);
    }
    assert!(cleaned >= first.extents_todo, "{cleaned} of {first:?}");
    // There is more by now, which is for another pass.
    assert!(pool.clean(true, 0).unwrap().extents_todo > 0);
    let problems = pool.check(false, &mut |_, _| ()).unwrap().problems;
    assert!(problems.is_empty(), "HARNESS: {problems:?}");
}
