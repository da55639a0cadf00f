//! Light checkpoints one after the other, their changes folded into the records slice by slice, and
//! crashes at every kind of moment between.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Campaign, Ended, Failure, Op, Shape, Tally, World};
use sim::{ContentKind, Rng, TableOp};

/// Total of all runs.
static FOLDED: AtomicU64 = AtomicU64::new(0);
static LIGHT: AtomicU64 = AtomicU64::new(0);

/// Groups of the volume `v`, in which all happens, and of `w`, which gets snapshots.
const GROUPS: u64 = 40;
const GROUP_BYTES: u64 = 128 << 10;

/// Room for everything, and little memory for light checkpoints: from some groups to a third of
/// them.
fn roomy(rng: &mut Rng) -> Shape {
    Shape {
        capacity_bytes: 16 << 20,
        extent_bytes: *rng.pick(&[64 << 10, 128 << 10]),
        memory_bytes: 1 << 20,
        checkpoint_log_bytes: 64 << 20,
        settled_bytes_max: Some(*rng.pick(&[2 << 10, 4 << 10, 8 << 10])),
        volumes_max: 2,
        ..Shape::small(rng)
    }
}

fn create(world: &mut World, name: &str) -> Result<Ended, Failure> {
    let properties =
        BTreeMap::from([("unit".to_owned(), "4K".to_owned()), ("compression".to_owned(), "lz4".to_owned())]);
    world.apply(&Op::Table(TableOp::Create { name: name.into(), size_bytes: GROUPS * GROUP_BYTES, properties }))
}

/// A block or a few of some group; now and then holes.
fn change(world: &mut World, has_history: bool) -> Result<Ended, Failure> {
    let volume = if has_history && world.rng.percent(20) { "w" } else { "v" }.to_owned();
    let offset = world.rng.below(GROUPS * GROUP_BYTES / 4096 - 32) * 4096;
    let len = 4096 * (1 + world.rng.below(4));
    match world.rng.below(100) {
        0..55 => {
            let seed = world.rng.next_u64();
            world.apply(&Op::Write { volume, offset, len, kind: ContentKind::Text, seed, fua: false })
        }
        55..62 => world.apply(&Op::Discard { volume, offset, len: len * 8 }),
        62..88 => world.apply(&Op::LightCheckpoint),
        88..90 if has_history => {
            let snapshots = world.model.snapshots_of("w");
            let change = if snapshots.is_empty() {
                TableOp::Snapshot { volume: "w".into(), name: "s".into() }
            } else {
                TableOp::Destroy { name: snapshots[0].clone() }
            };
            world.apply(&Op::Table(change))
        }
        90..91 => world.apply(&Op::Clean { all: false }),
        _ => world.apply(&Op::Read { volume, offset, len, pieces: 2 }),
    }
}

fn folded_between_crashes(seed: u64) -> Result<Tally, Failure> {
    let mut world = World::new(seed, roomy)?;
    let has_history = seed.is_multiple_of(3);
    create(&mut world, "v")?;
    if has_history {
        create(&mut world, "w")?;
    }
    let names = world.model.names();
    world.apply(&Op::Checkpoint)?;
    for _ in 0..8 {
        let within = *world.rng.pick(&[30, 100, 300, 600]);
        world.plan_crash(within);
        for _ in 0..250 {
            if change(&mut world, has_history)? == Ended::Dark {
                break;
            }
        }
        if let Some(pool) = &world.pool {
            let status = pool.status();
            FOLDED.fetch_add(status.folded_groups, Ordering::Relaxed);
            LIGHT.fetch_add(status.light_checkpoints, Ordering::Relaxed);
        }
        world.crash()?;
        if !names.iter().all(|name| world.model.names().contains(name)) {
            break;
        }
    }
    world.verify_check()?;
    Ok(world.tally())
}

#[test]
fn crashes_between_slices() {
    let campaign = Campaign { file: "folding", test: "crashes_between_slices", seeds: 200, soaks: true };
    let total = campaign.run(folded_between_crashes);
    let (folded, light) = (FOLDED.load(Ordering::Relaxed), LIGHT.load(Ordering::Relaxed));
    println!("{folded} groups folded behind {light} light checkpoints");
    campaign.demand(
        total.crashes >= 1500 && folded > 10_000,
        "1500 crashes, and 10,000 groups folded behind light checkpoints",
    );
}

/// Repeated overwrites in a pool that only light checkpoints keep going: no full one is needed,
/// however much is written.
#[test]
fn light_checkpoints_need_no_full_one() {
    let run = || -> Result<(), Failure> {
        let mut world = World::new(7, |rng| Shape { settled_bytes_max: Some(10 << 10), ..roomy(rng) })?;
        create(&mut world, "v")?;
        world.apply(&Op::Checkpoint)?;
        let before = world.pool().status();
        let mut deltas_most = 0;
        for _ in 0..600 {
            for _ in 0..2 {
                let offset = world.rng.below(GROUPS * GROUP_BYTES / 4096) * 4096;
                let (kind, seed) = (ContentKind::Text, world.rng.next_u64());
                let write = Op::Write { volume: "v".into(), offset, len: 4096, kind, seed, fua: false };
                world.apply(&write)?;
            }
            world.apply(&Op::LightCheckpoint)?;
            deltas_most = deltas_most.max(world.machine.store.dump().iter().filter(|(key, _)| key[0] == b'D').count());
        }
        let after = world.pool().status();
        let full = after.checkpoints - before.checkpoints;
        assert_eq!(full, 0, "HARNESS: full checkpoints");
        assert!(after.folded_groups > 300, "HARNESS: {} groups folded", after.folded_groups);
        assert!(deltas_most < 150, "HARNESS: {deltas_most} deltas lay over the records at a time");
        world.crash()?;
        world.verify_check()
    };
    run().unwrap_or_else(|Failure(text)| panic!("HARNESS: {text}"));
}
