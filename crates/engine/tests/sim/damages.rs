//! Damage stays known until it is repaired or acknowledged, over restarts; and the progress of a
//! scrub is counted in data.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::lz4_pool::{EXTENT, Lz4Pool};
use bytes::Bytes;
use engine::{CheckReport, DamageReport, Properties};
use format::{RecordKey, parse_record_key};
use sim::ContentKind;
use surface::{BlockDevice, WriteOptions};

const CAPACITY: u64 = 64 << 20;
const BYTES: usize = 1 << 20;
const BLOCK: usize = 4096;

/// Returns the location of the block `index`, which is stored raw.
pub fn location(made: &Lz4Pool, data: &[u8], index: usize) -> u64 {
    let mut disk = vec![0; CAPACITY as usize];
    made.machine.disk.peek(0, &mut disk);
    let wanted = &data[index * BLOCK..index * BLOCK + 64];
    disk.windows(64).position(|bytes| bytes == wanted).unwrap() as u64
}

/// Flips a bit of the block `index`, which is stored raw; returns its location.
pub fn damage(made: &Lz4Pool, data: &[u8], index: usize) -> u64 {
    let at = location(made, data, index);
    made.machine.disk.flip_bit(at, 3);
    made.pool().drop_caches();
    at
}

/// Flips a bit in the head of each batch of an extent.
pub fn damage_heads(made: &Lz4Pool, extent: u64) {
    let mut bytes = vec![0; EXTENT as usize];
    made.machine.disk.peek(extent * EXTENT, &mut bytes);
    // The extent begins with one.
    let magic = bytes[..4].to_vec();
    let heads = (0..bytes.len()).step_by(512).filter(|at| bytes[*at..].starts_with(&magic));
    heads.for_each(|at| made.machine.disk.flip_bit(extent * EXTENT + at as u64 + 9, 1));
}

/// A pool with a volume `v` of noise, of which two blocks far from each other are damaged.
fn damaged() -> (Lz4Pool, Vec<u8>) {
    let made = Lz4Pool::new(CAPACITY);
    let data = made.fill("v", ContentKind::Random, BYTES);
    damage(&made, &data, 7);
    damage(&made, &data, 200);
    (made, data)
}

fn restart(made: &mut Lz4Pool) {
    made.pool.take().unwrap().close().unwrap();
    made.open();
}

fn read(made: &Lz4Pool, index: usize) -> bool {
    let mut block = vec![0; BLOCK];
    made.pool().volume("v").unwrap().read((index * BLOCK) as u64, &mut block).is_ok()
}

fn overwrite(made: &Lz4Pool, from: usize, blocks: usize) {
    let volume = made.pool().volume("v").unwrap();
    volume.write((from * BLOCK) as u64, Bytes::from(vec![7; blocks * BLOCK]), WriteOptions::default()).unwrap();
    made.pool().checkpoint().unwrap();
}

fn places(report: &DamageReport) -> Vec<u64> {
    let mut places: Vec<_> = report.damages.iter().map(|damage| damage.offset.unwrap() / BLOCK as u64).collect();
    places.sort_unstable();
    places
}

#[test]
fn what_a_reader_meets_is_known_until_it_is_overwritten() {
    let (mut made, _) = damaged();
    assert_eq!(made.pool().damage_report().damages, [], "nobody has met it");
    assert!(!made.pool().suspects_damage());
    assert!(!read(&made, 7));
    assert!(made.pool().suspects_damage());
    assert_eq!(places(&made.pool().damage_report()).len(), 1);
    restart(&mut made);
    let known = places(&made.pool().damage_report());
    assert_eq!(known.len(), 1, "a restart forgets nothing");
    assert!(made.pool().damage_report().damages[0].detail.contains("checksum"));
    // All of the unit: a part of it would leave the rest unreadable.
    overwrite(&made, 0, 32);
    assert_eq!(made.pool().damage_report().damages, []);
    restart(&mut made);
    assert_eq!(made.pool().damage_report().damages, []);
}

/// A pool with a volume `v` of noise that was flushed, which no checkpoint has counted; block 7 is
/// damaged.
fn recently_damaged() -> Lz4Pool {
    let made = Lz4Pool::new(CAPACITY);
    made.fill("other", ContentKind::Random, BLOCK);
    made.pool().create_volume("v", BYTES as u64, &Properties::new()).unwrap();
    made.pool().checkpoint().unwrap();
    let mut data = vec![0; BYTES];
    sim::fill_content(&mut sim::Rng::new(9), ContentKind::Random, &mut data);
    let volume = made.pool().volume("v").unwrap();
    volume.write(0, Bytes::from(data.clone()), WriteOptions::default()).unwrap();
    made.pool().flush().unwrap();
    damage(&made, &data, 7);
    made
}

#[test]
fn a_scrub_covers_what_no_checkpoint_has_counted() {
    let made = recently_damaged();
    let found = made.pool().scrub(u64::MAX, true).unwrap();
    assert!(found.is_finished && found.found == 1, "HARNESS: {found:?}");
    assert!(found.bytes >= BYTES as u64 && found.bytes_total >= BYTES as u64, "HARNESS: {found:?}");
    assert_eq!(made.pool().damage_report().damages.len(), 1, "HARNESS");
}

#[test]
fn a_scrub_covers_what_is_in_the_write_buffer() {
    let made = Lz4Pool::new(CAPACITY);
    made.pool().create_volume("v", BYTES as u64, &Properties::new()).unwrap();
    let mut data = vec![0; 64 << 10];
    sim::fill_content(&mut sim::Rng::new(9), ContentKind::Random, &mut data);
    made.pool().volume("v").unwrap().write(0, Bytes::from(data), WriteOptions::default()).unwrap();
    let found = made.pool().scrub(u64::MAX, true).unwrap();
    assert!(found.is_finished && found.bytes >= 64 << 10, "{found:?}");
}

#[test]
fn what_a_reader_meets_is_known_if_no_checkpoint_has_counted_it() {
    let mut made = recently_damaged();
    assert!(!read(&made, 7));
    let report = made.pool().damage_report();
    assert_eq!(places(&report).len(), 1, "{report:?}");
    restart(&mut made);
    assert_eq!(made.pool().damage_report().damages.len(), 1);
}

/// As a command does that opens the pool for itself.
#[test]
fn what_a_reader_meets_is_known_if_nobody_asks_before_the_end() {
    for made in [recently_damaged(), damaged().0] {
        let mut made = made;
        assert!(!read(&made, 7));
        restart(&mut made);
        assert!(!made.pool().suspects_damage());
        assert_eq!(made.pool().damage_report().damages.len(), 1);
    }
}

#[test]
fn what_a_sender_meets_is_known() {
    let made = recently_damaged();
    made.pool().take_snapshot("v", "s", false).unwrap();
    let mut sender = made.pool().send("v@s", None).unwrap();
    let end = std::iter::from_fn(|| sender.next_chunk().transpose()).find(Result::is_err);
    assert!(end.is_some(), "the stream was sent whole");
    assert_eq!(made.pool().damage_report().damages.len(), 1);
}

#[test]
fn half_of_a_damaged_unit_that_is_overwritten_leaves_the_other_half_damaged() {
    let (made, _) = damaged();
    assert!(!read(&made, 7));
    let first = places(&made.pool().damage_report())[0];
    overwrite(&made, first as usize, 1);
    let left = made.pool().damage_report();
    assert_eq!(places(&left), [first + 1], "{left:?}");
}

#[test]
fn what_a_scrub_found_stays_while_the_next_one_has_not_come_there() {
    let (mut made, _) = damaged();
    let found = made.pool().scrub(u64::MAX, true).unwrap();
    assert_eq!((found.found, found.unacknowledged, found.is_finished), (2, 2, true));
    let report = made.pool().damage_report();
    assert_eq!((report.damages.len(), report.found, report.finished_unix_s > 0), (2, 2, true));
    // Restarted, and interrupted immediately.
    let begun = made.pool().scrub(EXTENT, true).unwrap();
    assert!(!begun.is_finished && begun.damages.len() == 2, "{begun:?}");
    assert_eq!(made.pool().damage_report().damages.len(), 2);
    restart(&mut made);
    let report = made.pool().damage_report();
    assert_eq!((report.damages.len(), report.finished_unix_s), (2, 0));
    made.pool().destroy("v", false).unwrap();
    made.pool().checkpoint().unwrap();
    while !made.pool().damage_report().damages.is_empty() {
        assert!(made.pool().status().reaping > 0, "{:?}", made.pool().damage_report());
        made.pool().checkpoint().unwrap();
    }
    let end = made.pool().scrub(u64::MAX, false).unwrap();
    assert!(end.is_finished && end.unacknowledged == 0, "{end:?}");
}

/// A damaged record of the map hid all else in the extents where its group has data, and the scrub
/// said that it was finished.
#[test]
fn a_damaged_record_of_the_map_hides_no_other_damage() {
    for are_headers_whole in [true, false] {
        let made = Lz4Pool::new(CAPACITY);
        let data = made.fill("v", ContentKind::Random, BYTES);
        // The log moves to other extents: its open ones are not in the map yet.
        made.fill("w", ContentKind::Random, BYTES + EXTENT as usize);
        // The first or the last block of group 1 lies in an extent with a block of another group.
        let extent_of = |block: usize| location(&made, &data, block) / EXTENT;
        let other = if extent_of(32) == extent_of(31) { 31 } else { 64 };
        let extent = extent_of(other);
        assert!([32, 63].map(extent_of).contains(&extent));
        damage(&made, &data, other);
        if !are_headers_whole {
            damage_heads(&made, extent);
        }
        let object = made.pool().volume("v").unwrap().id().0;
        let of_group_1 = |key: &RecordKey| key.object.0 == object && key.group.0 == 1;
        let keys = made.machine.store.dump().into_iter().map(|(key, _)| key);
        let key = keys.into_iter().find(|key| parse_record_key(key).as_ref().is_some_and(of_group_1)).unwrap();
        made.machine.store.flip_bit(&key, 3, 1);
        made.pool().drop_caches();
        let found = made.pool().scrub(u64::MAX, true).unwrap();
        assert!(found.is_finished, "{found:?}");
        let of_data = found.damages.iter().filter(|damage| damage.kind == "fragment");
        let told: Vec<_> = of_data.map(|damage| (damage.offset.unwrap() / BLOCK as u64, &damage.detail)).collect();
        assert_eq!(told.len(), 2, "each once: {told:?}");
        assert!(told.iter().any(|(block, detail)| *block == 32 && detail.contains("128 KiB")), "{told:?}");
        let is_other = |block: u64| block / 32 == other as u64 / 32;
        assert!(told.iter().any(|(block, detail)| is_other(*block) && detail.contains("checksum")), "{told:?}");
        assert_eq!(found.found, 2 + u64::from(!are_headers_whole), "{found:?}");
        // All blocks but those of group 1 have been read.
        assert!(found.bytes >= (2 * BYTES + EXTENT as usize - 32 * BLOCK) as u64, "{found:?}");
        assert_eq!(made.pool().damage_report().damages.len() as u64, found.found);
    }
}

#[test]
fn what_was_acknowledged_raises_no_alarm_and_new_damage_does() {
    let (mut made, data) = damaged();
    made.pool().scrub(u64::MAX, true).unwrap();
    assert_eq!(made.pool().acknowledge_damage().unwrap(), 2);
    restart(&mut made);
    let report = made.pool().damage_report();
    assert_eq!((report.damages.len(), report.acknowledged), (0, 2));
    damage(&made, &data, 100);
    let again = made.pool().scrub(u64::MAX, true).unwrap();
    assert_eq!((again.found, again.damages.len(), again.unacknowledged), (3, 3, 1), "{again:?}");
    let report = made.pool().damage_report();
    assert_eq!((report.damages.len(), report.acknowledged), (1, 2));
}

#[test]
fn check_tells_what_it_found_to_those_who_ask_later() {
    let (mut made, _) = damaged();
    let report = made.pool().check(false, &mut |_, _| ()).unwrap();
    assert_eq!(report.problems_left, 2);
    restart(&mut made);
    assert_eq!(made.pool().damage_report().damages.len(), 2);
}

/// A damaged block keeps nothing that can be read from being moved, and a second repair finds
/// nothing that the first one has promised.
#[test]
fn a_repair_moves_what_can_be_read_beside_damage() {
    let made = Lz4Pool::new(CAPACITY);
    let data = made.fill("v", ContentKind::Random, BYTES);
    // The log moves to other extents: its open ones cannot be emptied.
    made.fill("w", ContentKind::Random, BYTES + EXTENT as usize);
    let extent = damage(&made, &data, 100) / EXTENT;
    // That of the damaged block is among them.
    damage_heads(&made, extent);
    let check = |repair: bool| made.pool().check(repair, &mut |_, _| ()).unwrap();
    let of_kind = |report: &CheckReport, kind: &str| {
        let mut found = report.problems.iter().filter(|problem| problem.kind == kind);
        found.next().map(|first| (first.repaired, first.detail.clone(), found.count()))
    };
    let (_, told, more) = of_kind(&check(false), "header").unwrap();
    assert!(told.contains("--repair moves") && more == 0, "{told}");
    let first = check(true);
    let (is_moved, told, _) = of_kind(&first, "header").unwrap();
    assert!(is_moved && told.contains("was moved") && !told.contains("--repair"), "{told}");
    assert!(matches!(of_kind(&first, "fragment"), Some((false, _, 0))), "{:?}", first.problems);
    for repair in [true, false] {
        let next = check(repair);
        assert!(of_kind(&next, "header").is_none(), "{:?}", next.problems);
        assert_eq!(next.problems_left, 1, "{:?}", next.problems);
    }
    assert!(made.pool().damage_report().damages.iter().all(|damage| damage.kind == "fragment"));
    for index in (0..BYTES / BLOCK).filter(|index| index / 32 != 100 / 32) {
        assert!(read(&made, index), "block {index}");
    }
}

#[test]
fn a_scrub_counts_data_and_not_capacity() {
    let made = Lz4Pool::new(CAPACITY);
    made.fill("v", ContentKind::Random, BYTES);
    let mut slice = made.pool().scrub(EXTENT, true).unwrap();
    let mut before = 0;
    loop {
        assert!(slice.bytes_done >= before && slice.bytes_done <= slice.bytes_total, "{slice:?}");
        assert!((BYTES as u64..2 * BYTES as u64).contains(&slice.bytes_total), "{slice:?}");
        before = slice.bytes_done;
        if slice.is_finished {
            break;
        }
        slice = made.pool().scrub(EXTENT, false).unwrap();
    }
    assert_eq!(slice.bytes_done, slice.bytes_total);
    let report = made.pool().damage_report();
    assert_eq!((report.bytes_done, report.bytes_total), (slice.bytes_done, slice.bytes_total));
}

#[test]
fn recompressing_counts_data_and_not_capacity() {
    let made = Lz4Pool::new(CAPACITY);
    made.fill("v", ContentKind::Text, BYTES);
    let slice = made.pool().recompress("v", Some("archive"), EXTENT, true).unwrap();
    assert!(slice.bytes_total < 2 * BYTES as u64 && slice.bytes_done > 0, "{slice:?}");
    let end = made.pool().recompress("v", Some("archive"), u64::MAX, false).unwrap();
    assert!(end.is_finished && end.bytes_done == end.bytes_total, "{end:?}");
}

#[test]
fn what_is_available_is_what_can_be_written() {
    let made = Lz4Pool::new(CAPACITY);
    let empty = made.pool().status();
    assert!((CAPACITY * 8 / 10..CAPACITY).contains(&empty.available_bytes), "{empty:?}");
    assert!(empty.is_exact && !empty.is_full);
    made.pool().create_volume("r", 8 << 20, &Properties::from([("reservation".to_owned(), "8M".to_owned())])).unwrap();
    let reserved = made.pool().status();
    assert_eq!(reserved.reserved_bytes, 8 << 20);
    assert!(empty.available_bytes - reserved.available_bytes >= 8 << 20);
    made.pool().create_volume("w", CAPACITY, &Properties::new()).unwrap();
    let volume = made.pool().volume("w").unwrap();
    let mut rng = sim::Rng::new(3);
    let mut block = vec![0; 128 << 10];
    let mut written = 0;
    loop {
        sim::fill_content(&mut rng, ContentKind::Random, &mut block);
        if volume.write(written, Bytes::copy_from_slice(&block), WriteOptions::default()).is_err() {
            break;
        }
        written += block.len() as u64;
    }
    let full = made.pool().status();
    assert!(full.is_full, "{full:?}");
    // In these small extents headers and tails take a tenth and more.
    let told = reserved.available_bytes;
    assert!(written >= told * 8 / 10 && written <= told * 11 / 10, "{written} of {told}");
    assert!(full.available_bytes < told / 10, "{full:?}");
    made.pool().destroy("w", false).unwrap();
    made.pool().checkpoint().unwrap();
    assert!(!made.pool().status().is_full);
}
