//! Cold data in the cleaner: with `cold-mode` it is recompressed on its way, and its readers see no
//! change.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::lz4_pool::Lz4Pool;
use bytes::Bytes;
use engine::PoolStatus;
use sim::{ContentKind, Rng, fill_content};
use surface::{BlockDevice, WriteOptions};

const BYTES: usize = 8 << 20;
const UNIT: usize = 32 << 10;

fn text(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut data = vec![0; UNIT];
    data.chunks_mut(4096).for_each(|block| fill_content(&mut rng, ContentKind::Text, block));
    data
}

/// A volume of text, with its expected content.
struct World {
    pool: Lz4Pool,
    data: Vec<u8>,
}

impl World {
    fn new() -> Self {
        let pool = Lz4Pool::new(64 << 20);
        let data = pool.fill("v", ContentKind::Text, BYTES);
        Self { pool, data }
    }

    fn set(&self, key: &str, value: &str) {
        let change = (key.to_owned(), Some(value.to_owned()));
        self.pool.pool().set_properties(Some("v"), &[change]).unwrap();
    }

    /// Overwrites one unit of so many, from `first` on, so that the extents are partly dead.
    fn overwrite(&mut self, first: usize, one_in: usize, seed: u64) {
        let volume = self.pool.pool().volume("v").unwrap();
        for at in (first * UNIT..BYTES).step_by(one_in * UNIT) {
            let new = text(at as u64 + seed);
            self.data[at..at + UNIT].copy_from_slice(&new);
            volume.write(at as u64, Bytes::from(new), WriteOptions::default()).unwrap();
        }
        self.pool.pool().checkpoint().unwrap();
    }

    fn clean(&self) -> PoolStatus {
        while !self.pool.pool().clean(true, 4).unwrap().is_finished {}
        self.pool.pool().status()
    }

    fn is_read_back(&self) -> bool {
        self.pool.content("v", BYTES) == self.data
    }
}

#[test]
fn what_the_cleaner_moves_becomes_smaller_and_reads_as_before() {
    let mut world = World::new();
    world.set("cold-mode", "archive");
    world.overwrite(0, 2, 7);
    world.pool.pool().snapshot("v", "new").unwrap();
    world.pool.pool().checkpoint().unwrap();
    let before = world.pool.pool().status();
    let after = world.clean();
    // The half that was not overwritten has moved. The data written last had no reason to.
    let (from, to) = (after.cold_before_bytes, after.cold_after_bytes);
    assert!(from > before.live_bytes / 3 && to < from * 9 / 10, "{from} to {to} of {}", before.live_bytes);
    assert_eq!(before.live_bytes - after.live_bytes, from - to, "and nothing else became smaller");
    assert!(world.is_read_back() && world.pool.content("v@new", BYTES) == world.data);
    world.pool.check();
    world.pool.pool = None;
    world.pool.open();
    assert!(world.is_read_back());
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
        world.overwrite(0, 2, 7);
        properties.iter().for_each(|(key, value)| world.set(key, value));
        let before = world.pool.pool().status().live_bytes;
        let status = world.clean();
        // Its size before it moved.
        let moved = status.moved_bytes + status.cold_before_bytes - status.cold_after_bytes;
        assert!(moved > before / 4, "{properties:?}: {status:?}");
        assert_eq!(status.cold_before_bytes > 0, wanted, "{properties:?}");
        assert_eq!(status.live_bytes < before, wanted, "{properties:?}");
        assert!(world.is_read_back(), "{properties:?}");
        world.pool.check();
    }
}

#[test]
fn what_was_tried_before_is_tried_seldom() {
    let mut world = World::new();
    world.overwrite(0, 2, 7);
    // All cold data has been moved once now, unchanged.
    let first = world.clean();
    assert_eq!(first.cold_before_bytes, 0);
    world.set("cold-mode", "archive");
    // Half of the moved data dies, so that the rest of it moves again.
    world.overwrite(1, 4, 11);
    let second = world.clean();
    let moved = second.moved_bytes - first.moved_bytes;
    assert!(moved > 1 << 20, "{moved}");
    // Newly written data moves along with it, for the first time.
    let recoded = second.cold_before_bytes;
    assert!(recoded > 0 && recoded < moved / 2, "{recoded} of {moved}");
    assert!(world.is_read_back());
    world.pool.check();
}
