//! Recompression: which data it makes smaller, which it leaves alone, and that it continues where
//! it stopped.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::lz4_pool::{EXTENT, Lz4Pool as World};
use bytes::Bytes;
use engine::{Properties, RecompressReport};
use sim::ContentKind;
use surface::{BlockDevice, ErrorKind, WriteOptions};

impl World {
    fn all(&self, name: &str, mode: Option<&str>) -> RecompressReport {
        let mut report = self.pool().recompress(name, mode, 1 << 20, true).unwrap();
        while !report.is_finished {
            report = self.pool().recompress(name, mode, 1 << 20, false).unwrap();
        }
        report
    }

    fn stored(&self, name: &str) -> u64 {
        self.pool().checkpoint().unwrap();
        self.pool().volumes().into_iter().find(|v| v.name == name).unwrap().stored_bytes
    }
}

#[test]
fn archive_makes_text_smaller_and_leaves_the_rest_alone() {
    let world = World::new(64 << 20);
    let data = world.fill("v", ContentKind::Text, 4 << 20);
    let other = world.fill("w", ContentKind::Text, 1 << 20);
    let (before, other_before) = (world.stored("v"), world.stored("w"));
    let report = world.all("v", Some("archive"));
    assert_eq!(report.fragments, 128);
    assert!(report.rewritten > 60 && report.after_bytes < report.before_bytes, "{report:?}");
    let after = world.stored("v");
    assert!(after < before * 9 / 10, "{before} to {after}");
    assert_eq!(before - after, report.before_bytes - report.after_bytes);
    assert_eq!(world.stored("w"), other_before);
    assert!(world.content("v", data.len()) == data && world.content("w", other.len()) == other);
    world.check();
    // Times come from the simulated clock, so that a second run may choose differently, but never a
    // larger result.
    let again = world.all("v", Some("archive"));
    assert!(again.rewritten < report.rewritten && again.after_bytes <= again.before_bytes, "{again:?}");
    assert!(world.stored("v") <= after);
    world.check();
}

#[test]
fn what_would_become_larger_is_not_touched() {
    let world = World::new(64 << 20);
    let data = world.fill("v", ContentKind::Text, 2 << 20);
    world.all("v", Some("archive"));
    let before = world.stored("v");
    // By the property: lz4 makes it larger.
    assert_eq!(world.all("v", None).rewritten, 0);
    world.pool().set_properties(Some("v"), &[("compression".to_owned(), Some("off".to_owned()))]).unwrap();
    assert_eq!(world.all("v", None).rewritten, 0);
    assert_eq!(world.stored("v"), before);
    assert!(world.content("v", data.len()) == data);
    let random = world.fill("r", ContentKind::Random, 1 << 20);
    assert_eq!(world.all("r", Some("archive")).rewritten, 0);
    assert!(world.content("r", random.len()) == random);
}

#[test]
fn units_become_as_small_as_the_property_has_them_where_nothing_grows() {
    let world = World::new(64 << 20);
    let set = |key: &str, value: &str| {
        world.pool().set_properties(None, &[(key.to_owned(), Some(value.to_owned()))]).unwrap();
    };
    set("unit", "128K");
    let data = world.fill("v", ContentKind::Text, 4 << 20);
    let random = world.fill("r", ContentKind::Random, 1 << 20);
    let units = |name: &str| -> u64 {
        world.pool().flush().unwrap();
        let (regions, _) = world.pool().explain(name, 0, 100).unwrap();
        regions.iter().flat_map(|region| &region.codecs).map(|used| used.units).sum()
    };
    let before = world.stored("v");
    assert_eq!((units("v"), units("r")), (32, 8));
    // At the same codec small units take more: they stay.
    set("unit", "16K");
    assert_eq!((world.all("v", None).rewritten, units("v")), (0, 32));
    // A stronger one makes up for it.
    set("compression", "zstd-9");
    assert_eq!((world.all("v", None).rewritten, units("v")), (32, 256));
    assert_eq!((world.all("r", None).rewritten, units("r")), (0, 8));
    assert!(world.stored("v") < before);
    assert!(world.content("v", data.len()) == data && world.content("r", random.len()) == random);
    world.check();
}

#[test]
fn empty_extents_do_not_count_against_the_rate() {
    let world = World::new(64 << 20);
    let data = world.fill("v", ContentKind::Text, 1 << 20);
    // A slice of a sixteenth of the pool, which holds less than that.
    let report = world.pool().recompress("v", Some("archive"), 4 << 20, false).unwrap();
    assert!(report.is_finished && report.rewritten > 0, "{report:?}");
    assert_eq!(report.extents_done, report.extents_total);
    assert!(world.content("v", data.len()) == data);
}

#[test]
fn it_goes_on_after_a_restart_and_newer_writes_win() {
    let mut world = World::new(64 << 20);
    let mut data = world.fill("v", ContentKind::Text, 4 << 20);
    let half = world.pool().recompress("v", Some("archive"), 1 << 20, false).unwrap();
    assert!(!half.is_finished && half.extents_done > 0 && half.rewritten > 0, "{half:?}");
    // Overwritten, not flushed, while it goes on.
    let patch = vec![0xa5u8; 40 << 10];
    let volume = world.pool().volume("v").unwrap();
    volume.write(300 << 10, Bytes::from(patch.clone()), WriteOptions::default()).unwrap();
    data[300 << 10..340 << 10].copy_from_slice(&patch);
    drop(volume);
    world.pool.take().unwrap().close().unwrap();
    world.machine.restart();
    world.open();
    let known = world.pool().recompress("v", Some("archive"), 0, false).unwrap();
    assert_eq!(
        (known.extents_done, known.rewritten, known.started_unix_s),
        (half.extents_done, half.rewritten, half.started_unix_s)
    );
    let mut report = known;
    while !report.is_finished {
        report = world.pool().recompress("v", Some("archive"), 1 << 20, false).unwrap();
    }
    assert!(report.rewritten > half.rewritten, "{report:?}");
    assert!(world.content("v", data.len()) == data);
    world.check();
    // Another mode is another recompression.
    let other = world.pool().recompress("v", Some("balanced"), 0, false).unwrap();
    assert!(other.bytes_total > 0, "{other:?}");
    assert_eq!(
        other,
        RecompressReport {
            bytes_total: other.bytes_total,
            extents_total: report.extents_total,
            extent_bytes: report.extent_bytes,
            foreground_bytes: world.pool().recompress("v", None, 0, false).unwrap().foreground_bytes,
            ..RecompressReport::default()
        }
    );
}

#[test]
fn snapshots_see_what_they_saw() {
    let world = World::new(64 << 20);
    let old = world.fill("v", ContentKind::Text, 2 << 20);
    world.pool().snapshot("v", "s").unwrap();
    let volume = world.pool().volume("v").unwrap();
    volume.write(0, Bytes::from(vec![7; 1 << 20]), WriteOptions::default()).unwrap();
    world.pool().checkpoint().unwrap();
    let report = world.all("v", Some("archive"));
    assert!(report.rewritten > 50, "{report:?}");
    let mut seen = vec![0; old.len()];
    world.pool().drop_caches();
    world.pool().clone_snapshot("v@s", "c", &Properties::new()).unwrap();
    world.pool().volume("c").unwrap().read(0, &mut seen).unwrap();
    assert!(seen == old);
    assert!(world.content("v", 1 << 20) == vec![7; 1 << 20]);
    world.check();
}

#[test]
fn refusals() {
    let world = World::new(16 << 20);
    world.fill("v", ContentKind::Text, 1 << 20);
    assert_eq!(world.pool().recompress("x", None, 1, false).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(world.pool().recompress("v", Some("best"), 1, false).unwrap_err().kind(), ErrorKind::Invalid);
}

/// Nothing was said of it.
#[test]
fn what_is_damaged_or_cannot_be_read_is_counted_and_stays() {
    let world = World::new(64 << 20);
    let data = world.fill("v", ContentKind::Text, 4 << 20);
    let mut disk = vec![0; 64 << 20];
    world.machine.disk.peek(0, &mut disk);
    // In an extent of the volume's, of which all the rest is whole.
    let used = (1..disk.len() as u64 / EXTENT).find(|n| disk[(n * EXTENT) as usize + 100_000] != 0).unwrap();
    world.machine.disk.flip_bit(used * EXTENT + 100_000, 2);
    world.pool().drop_caches();
    let report = world.all("v", Some("archive"));
    assert!(report.is_finished && report.rewritten > 60 && report.damaged == 1, "{report:?}");
    let world = World::new(64 << 20);
    assert!(world.fill("v", ContentKind::Text, 4 << 20) == data);
    world.machine.disk.break_reads(used * EXTENT..(used + 1) * EXTENT);
    let report = world.all("v", Some("archive"));
    assert!(report.is_finished && report.rewritten > 60 && report.damaged > 1, "{report:?}");
    world.machine.disk.heal();
    assert!(world.content("v", data.len()) == data);
}
