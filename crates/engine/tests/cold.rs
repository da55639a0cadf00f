//! Cold data in the cleaner's hands: with `cold-mode` it is compressed anew on its way, and nothing of it changes for those who read it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/machine_env.rs"]
mod machine_env;

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions, PoolStatus, Properties};
use sim::{ContentKind, Machine, Rng, fill_content};
use surface::{BlockDevice, WriteOptions};

const EXTENT: u64 = 256 << 10;
const CAPACITY: u64 = 64 << 20;
const BYTES: usize = 8 << 20;
const UNIT: usize = 32 << 10;

struct World {
    machine: Machine,
    pool: Option<Pool>,
    data: Vec<u8>,
}

fn text(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut data = vec![0; bytes];
    data.chunks_mut(4096).for_each(|block| fill_content(&mut rng, ContentKind::Text, block));
    data
}

impl World {
    /// A volume of text, written with lz4.
    fn new() -> Self {
        let machine = Machine::new(CAPACITY, 5);
        let mut world = Self { machine, pool: None, data: text(1, BYTES) };
        let properties = Properties::from([("compression".to_owned(), "lz4".to_owned())]);
        let format = FormatOptions { capacity_bytes: CAPACITY, extent_bytes: EXTENT as u32, properties };
        Pool::format(&machine_env::env(&world.machine), &format).unwrap();
        world.open();
        world.pool().create_volume("v", BYTES as u64, &Properties::new()).unwrap();
        for at in (0..BYTES).step_by(UNIT) {
            world.write(at, &world.data[at..at + UNIT]);
        }
        world.pool().checkpoint().unwrap();
        world
    }

    fn open(&mut self) {
        let options = PoolOptions { memory_bytes: 16 << 20, workers: 0, ..PoolOptions::default() };
        self.pool = Some(Pool::open(machine_env::env(&self.machine), options).unwrap());
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }

    fn set(&self, key: &str, value: &str) {
        let change = (key.to_owned(), Some(value.to_owned()));
        self.pool().set_properties(Some("v"), &[change]).unwrap();
    }

    fn write(&self, at: usize, data: &[u8]) {
        let volume = self.pool().volume("v").unwrap();
        volume.write(at as u64, Bytes::copy_from_slice(data), WriteOptions::default()).unwrap();
    }

    /// Overwrites every other unit, so that the extents are half dead.
    fn overwrite_half(&mut self) {
        for at in (0..BYTES).step_by(2 * UNIT) {
            let new = text(at as u64 + 7, UNIT);
            self.write(at, &new);
            self.data[at..at + UNIT].copy_from_slice(&new);
        }
        self.pool().checkpoint().unwrap();
    }

    fn clean(&self) -> PoolStatus {
        while !self.pool().clean(true, 4).unwrap().is_finished {}
        self.pool().status()
    }

    fn content(&self, name: &str) -> Vec<u8> {
        self.pool().drop_caches();
        let mut data = vec![0; BYTES];
        self.pool().volume(name).unwrap().read(0, &mut data).unwrap();
        data
    }

    fn check(&self) {
        let report = self.pool().check(false, &mut |_, _| ()).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

#[test]
fn what_the_cleaner_moves_becomes_smaller_and_reads_as_before() {
    let mut world = World::new();
    world.set("cold-mode", "archive");
    world.overwrite_half();
    world.pool().snapshot("v", "new").unwrap();
    world.pool().checkpoint().unwrap();
    let before = world.pool().status();
    let after = world.clean();
    // The half that was not overwritten has moved. What was written last had no reason to.
    let (from, to) = (after.cold_before_bytes, after.cold_after_bytes);
    assert!(from > before.live_bytes / 3 && to < from * 9 / 10, "{from} to {to} of {}", before.live_bytes);
    assert_eq!(before.live_bytes - after.live_bytes, from - to, "and nothing else became smaller");
    assert!(world.content("v") == world.data && world.content("v@new") == world.data);
    world.check();
    world.pool = None;
    world.open();
    assert!(world.content("v") == world.data);
}

#[test]
fn nothing_is_compressed_anew_unless_somebody_wants_it() {
    for (properties, wanted) in [
        (&[("cold-mode", "auto")][..], false),
        (&[("cold-mode", "off"), ("compression", "auto"), ("mode", "archive")], false),
        (&[("compression", "auto"), ("mode", "archive")], true),
        (&[("cold-mode", "balanced")], true),
    ] {
        let mut world = World::new();
        world.overwrite_half();
        properties.iter().for_each(|(key, value)| world.set(key, value));
        let before = world.pool().status().live_bytes;
        let status = world.clean();
        assert!(status.moved_bytes > before / 4, "{properties:?}: {status:?}");
        assert_eq!(status.cold_before_bytes > 0, wanted, "{properties:?}");
        assert_eq!(status.live_bytes < before, wanted, "{properties:?}");
        assert!(world.content("v") == world.data, "{properties:?}");
        world.check();
    }
}

#[test]
fn what_was_tried_before_is_tried_seldom() {
    let mut world = World::new();
    world.overwrite_half();
    // All that is cold has been moved once now, as it is.
    let first = world.clean();
    assert_eq!(first.cold_before_bytes, 0);
    world.set("cold-mode", "archive");
    // Half of what was moved dies, so that the rest of it moves again.
    for at in (UNIT..BYTES).step_by(4 * UNIT) {
        let new = text(at as u64 + 11, UNIT);
        world.write(at, &new);
        world.data[at..at + UNIT].copy_from_slice(&new);
    }
    world.pool().checkpoint().unwrap();
    let second = world.clean();
    let moved = second.moved_bytes - first.moved_bytes;
    assert!(moved > 1 << 20, "{moved}");
    // What was just written moves beside it, for the first time.
    let recoded = second.cold_before_bytes;
    assert!(recoded > 0 && recoded < moved / 2, "{recoded} of {moved}");
    assert!(world.content("v") == world.data);
    world.check();
}
