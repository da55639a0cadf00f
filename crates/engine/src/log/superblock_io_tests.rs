//! Tests of a pool without features: none is in its superblock, and no record of its map is
//! compact.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use format::{INCOMPAT_KNOWN, Record, decode_delta, record_key};
use sim::{ContentKind, Fault, Machine, Rng, fill_content};
use surface::{BlockDevice, WriteOptions};
use units::BLOCK_BYTES;

use super::*;
use crate::base::options::PoolOptions;
use crate::base::testing::{env_on, pool_on};
use crate::pool::Pool;

const CAPACITY_BYTES: u64 = 8 << 20;
const BLOCKS: u64 = 100;

fn write(pool: &Pool, blocks: impl Iterator<Item = u64>) {
    for block in blocks {
        pool.volume("v").unwrap().write(block * BLOCK_BYTES as u64, content(block), WriteOptions::default()).unwrap();
    }
    pool.flush().unwrap();
}

fn content(block: u64) -> Bytes {
    let mut data = vec![0; BLOCK_BYTES];
    fill_content(&mut Rng::new(block), ContentKind::Random, &mut data);
    data.into()
}

fn expect_all_there(pool: &Pool) {
    let volume = pool.volume("v").unwrap();
    for block in 0..BLOCKS {
        let mut data = vec![0; BLOCK_BYTES];
        volume.read(block * BLOCK_BYTES as u64, &mut data).unwrap();
        assert!(data == content(block), "block {block}");
    }
}

/// Bit by bit: the engine has no use for the sum itself.
fn crc32c(bytes: &[u8]) -> [u8; 4] {
    let step = |crc: u32, _| if crc & 1 == 0 { crc >> 1 } else { (crc >> 1) ^ 0x82f6_3b78 };
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step));
    (!crc).to_le_bytes()
}

fn sealed(body: &[u8]) -> Vec<u8> {
    [body, &crc32c(body)].concat()
}

/// Encodes in the long form. Blocks that are units of their own leave no masks and no holes.
fn encode_old(record: &Record) -> Vec<u8> {
    let mut out = vec![record.fragments.len() as u8];
    for fragment in &record.fragments {
        assert_eq!(fragment.live, fragment.unit());
        out.extend_from_slice(&[fragment.first, fragment.count - 1, fragment.codec]);
        out.extend_from_slice(&fragment.stored.to_le_bytes()[..3]);
        out.extend_from_slice(&fragment.checksum.to_le_bytes());
        out.extend_from_slice(&fragment.location.to_le_bytes()[..6]);
    }
    sealed(&out)
}

/// The records and the deltas in the store.
fn records(machine: &Machine) -> Vec<(Vec<u8>, Vec<u8>)> {
    machine.store.dump().into_iter().filter(|(key, _)| matches!(key[0], b'R' | b'D')).collect()
}

/// A record's first byte says whether it is compact; in a delta it follows a key and a length.
fn is_compact((key, value): &(Vec<u8>, Vec<u8>)) -> bool {
    value[if key[0] == b'R' { 0 } else { 21 + 2 }] & 0x40 != 0
}

/// A pool without features as a crash leaves it: with records, with deltas, and with a log that is
/// newer than both.
fn older_pool() -> Machine {
    let machine = Machine::new(CAPACITY_BYTES, 1);
    let pool = pool_on(&machine, machine.disk.handle(), CAPACITY_BYTES, 0);
    let properties = [("unit".to_owned(), "4K".to_owned())].into();
    pool.create_volume("v", BLOCKS * BLOCK_BYTES as u64, &properties).unwrap();
    write(&pool, 0..50);
    pool.checkpoint().unwrap();
    write(&pool, 40..80);
    pool.light_checkpoint().unwrap();
    write(&pool, 70..BLOCKS);
    drop(pool);
    assert!([b'R', b'D'].iter().all(|kind| records(&machine).iter().any(|(key, _)| key[0] == *kind)));
    for (key, value) in records(&machine) {
        let old = if key[0] == b'R' {
            encode_old(&Record::decode(&value).unwrap())
        } else {
            let changes = decode_delta(&value).unwrap().into_iter().map(|(key, change)| {
                let change = encode_old(&change);
                [&record_key(&key)[..], &(change.len() as u16).to_le_bytes(), &change].concat()
            });
            sealed(&changes.collect::<Vec<_>>().concat())
        };
        machine.store.poke(&key, Some(&old));
    }
    poke(&machine, |superblock| superblock.features_incompat = 0);
    machine.duplicate(2)
}

/// Changes both copies, past all faults.
fn poke(machine: &Machine, change: impl Fn(&mut Superblock)) {
    for (copy, offset) in copies(machine).into_iter().zip(SUPERBLOCK_OFFSETS) {
        let mut superblock = copy.unwrap();
        change(&mut superblock);
        machine.disk.poke(offset, &superblock.encode());
    }
}

fn copies(machine: &Machine) -> Copies {
    SUPERBLOCK_OFFSETS.map(|offset| {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        machine.disk.peek(offset, &mut bytes);
        Superblock::decode(&bytes)
    })
}

fn open(machine: &Machine, repair: bool) -> Result<Pool> {
    let options = PoolOptions { workers: 0, repair, ..PoolOptions::default() };
    Pool::open(env_on(machine, machine.disk.handle()), options)
}

/// For any point at which the changing opening ends, also where a record is repaired first.
#[test]
fn both_copies_keep_older_programs_off_before_there_is_a_compact_record() {
    let is_marked = |copy: &_| matches!(copy, Ok(Superblock { features_incompat: INCOMPAT_COMPACT_RECORDS, .. }));
    let (mut ended, mut between) = (0, 0);
    for (repair, fault) in [(false, Fault::Crash), (false, Fault::Io), (true, Fault::Crash), (true, Fault::Io)] {
        let base = older_pool();
        if repair {
            let (key, _) = records(&base).into_iter().find(|(key, _)| key[0] == b'R').unwrap();
            base.store.flip_bit(&key, 3, 1);
        }
        for point in 0.. {
            let mut machine = base.duplicate(point);
            machine.power.plan(point, fault);
            drop(open(&machine, repair));
            machine.power.clear_plan();
            let is_whole = machine.power.take_fired().is_empty();
            if fault == Fault::Crash {
                machine.power_cycle()
            } else {
                machine.restart()
            }
            let left = copies(&machine);
            assert!(left.iter().any(std::result::Result::is_ok), "{fault:?} at {point}: no copy is whole");
            if records(&machine).iter().any(is_compact) {
                assert!(
                    left.iter().all(is_marked),
                    "{fault:?} at {point}: an older program would read compact records"
                );
            }
            between += usize::from(left.iter().any(is_marked) && !left.iter().all(is_marked));
            let pool = open(&machine, repair).unwrap();
            expect_all_there(&pool);
            drop(pool);
            assert!(copies(&machine).iter().filter(|copy| copy.is_ok()).all(is_marked));
            if is_whole {
                assert_eq!(left.each_ref().map(|copy| copy.as_ref().unwrap().generation), [2; 2]);
                // Records that an opening does not change keep their form, and were read.
                let compact = records(&machine).iter().filter(|record| is_compact(record)).count();
                assert!(left.iter().all(is_marked) && compact > 0);
                assert_eq!(compact < records(&machine).len(), !repair);
                break;
            }
            ended += 1;
        }
    }
    assert!(ended > 40 && between > 4, "{ended} openings have ended early, {between} of them between the copies");
}

#[test]
fn a_new_pool_says_at_once_that_records_are_compact() {
    let machine = Machine::new(CAPACITY_BYTES, 3);
    drop(pool_on(&machine, machine.disk.handle(), CAPACITY_BYTES, 0));
    for copy in copies(&machine).map(std::result::Result::unwrap) {
        assert_eq!((copy.features_incompat, copy.generation), (INCOMPAT_COMPACT_RECORDS, 1));
    }
}

#[test]
fn a_pool_that_is_only_read_does_not_get_the_mark() {
    let (older, new) = (older_pool(), Machine::new(CAPACITY_BYTES, 4));
    let scratch = Machine::new(CAPACITY_BYTES, 5);
    let pool = pool_on(&new, new.disk.handle(), CAPACITY_BYTES, 0);
    let before = copies(&older);
    let from = crate::base::options::PoolEnv { store: scratch.store.handle(), ..env_on(&older, older.disk.handle()) };
    pool.salvage(&from, &PoolOptions::default(), &mut |_, _, _| Ok(())).unwrap();
    expect_all_there(&pool);
    assert_eq!(copies(&older), before);
}

#[test]
fn a_pool_with_a_feature_that_is_not_known_is_left_as_it_is() {
    for features in [INCOMPAT_KNOWN + 1, 1 << 63] {
        let machine = older_pool();
        poke(&machine, |superblock| superblock.features_incompat = features);
        let before = (machine.store.dump(), machine.power.next_point());
        for repair in [false, true] {
            assert_eq!(open(&machine, repair).unwrap_err().kind(), ErrorKind::Unsupported);
        }
        assert!((machine.store.dump(), machine.power.next_point()) == before, "something was written");
    }
}
