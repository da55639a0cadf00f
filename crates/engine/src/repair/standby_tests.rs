//! Standby memory that is stale, foreign or torn; full rings; changes to volumes that bypass the
//! buffer.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use env::{MapError, MapStore, ScanStep, StoreLayer};
use format::{
    STANDBY_DURABLE_OFFSET, STANDBY_HEAD_OFFSET, STANDBY_HEADER_BYTES, STANDBY_RING_OFFSET, STANDBY_SEQ_OFFSET,
    STANDBY_TAIL_OFFSET, StandbyHeader, journal_key_range, word_stores,
};
use sim::Machine;
use store::base::loss::Loss;
use store::base::options::{FormatOptions, PoolEnv, PoolOptions};
use store::base::status::StandbyStatus;
use surface::{BlockDevice, ErrorKind, WriteOptions};
use units::{BLOCK_BYTES, GROUP_BYTES};

use crate::pool::Pool;
use crate::pool::testing::env_on;
use crate::volume::Volume;

const BLOCK: u64 = BLOCK_BYTES as u64;

fn options(workers: usize) -> PoolOptions {
    PoolOptions { workers, memory_bytes: 4 << 20, standby_bytes_max: usize::MAX, ..PoolOptions::default() }
}

fn open(machine: &Machine) -> Pool {
    Pool::open(env_on(machine, machine.disk.handle()), options(0)).unwrap()
}

/// A new pool with a volume `v` of 64 MiB.
fn new_pool(machine: &Machine) -> Pool {
    let format = FormatOptions { capacity_bytes: 64 << 20, extent_bytes: 64 << 10, properties: Default::default() };
    Pool::format(&env_on(machine, machine.disk.handle()), &format).unwrap();
    let pool = open(machine);
    assert!(pool.status().standby.place.is_some());
    pool.create_volume("v", 64 << 20, &Default::default()).unwrap();
    pool
}

fn write(volume: &Volume, block: u64, value: u8) {
    volume.write(block * BLOCK, Bytes::from(vec![value; BLOCK_BYTES]), WriteOptions::default()).unwrap();
}

fn read(pool: &Pool, block: u64) -> u8 {
    let mut bytes = vec![0; BLOCK_BYTES];
    pool.volume("v").unwrap().read(block * BLOCK, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

/// The program dies.
fn die(machine: &mut Machine, pool: Pool) {
    machine.power.cut();
    drop(pool);
    machine.restart();
}

/// A pool whose program died with a block flushed as 1, and then written as 2.
fn died() -> (Machine, [u8; 16]) {
    let mut machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    let volume = pool.volume("v").unwrap();
    write(&volume, 5, 1);
    volume.flush().unwrap();
    write(&volume, 5, 2);
    write(&volume, 6, 3);
    drop(volume);
    die(&mut machine, pool);
    let id = machine.standby.pools()[0];
    (machine, id)
}

/// The notes of journals in it cannot be read.
struct NoNotes(Arc<dyn MapStore>);

impl StoreLayer for NoNotes {
    fn below(&self) -> &dyn MapStore {
        &*self.0
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> ScanStep,
    ) -> std::result::Result<(), MapError> {
        if from == journal_key_range().0 {
            return Err(MapError { corrupt: false, full: false, message: "the cable is out".to_owned() });
        }
        self.0.scan(from, to, visit)
    }
}

/// Its threads held the files, and so the lock of the pool, until the process ended.
#[test]
fn an_opening_that_fails_when_threads_run_ends_them() {
    let (machine, _) = died();
    let store: Arc<dyn MapStore> = Arc::new(NoNotes(machine.store.handle()));
    let env = PoolEnv { store: store.clone(), ..env_on(&machine, machine.disk.handle()) };
    let error = Pool::open(env, options(2)).unwrap_err();
    assert!(error.to_string().contains("the cable is out"), "{error}");
    assert_eq!(Arc::strong_count(&store), 1);
    assert_eq!(opened(&machine).1, 2, "the next opening replays");
}

fn opened(machine: &Machine) -> (StandbyStatus, u8) {
    let pool = open(machine);
    let value = read(&pool, 5);
    let status = pool.status().standby;
    assert!(status.place.is_some(), "a new one is made in any case: {status:?}");
    pool.close().unwrap();
    assert!(machine.standby.pools().is_empty(), "an orderly end leaves nothing");
    (status, value)
}

/// Opens the pool with its standby memory changed; returns the notes, and the content of block 5.
fn changed(change: impl FnOnce(&mut Vec<u8>)) -> (String, u8) {
    let (machine, id) = died();
    let mut bytes = machine.standby.peek(&id).unwrap();
    change(&mut bytes);
    machine.standby.poke(&id, bytes);
    let (status, value) = opened(&machine);
    (status.notes.join("; "), value)
}

/// Changes a word of standby memory as a server does.
fn set_word(bytes: &mut [u8], offset: usize, change: impl FnOnce(u64) -> u64) {
    let session = StandbyHeader::decode(&bytes[..STANDBY_HEADER_BYTES]).unwrap().session;
    let value = change(u64::from_le_bytes(std::array::from_fn(|i| bytes[offset + i])));
    for (at, value) in word_stores(session, offset, value) {
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
}

/// Like [`changed`], where the change loses data: that is reported, and remembered.
fn lossy(change: impl FnOnce(&mut Vec<u8>)) -> (String, u8, u8) {
    let (machine, id) = died();
    let mut bytes = machine.standby.peek(&id).unwrap();
    change(&mut bytes);
    machine.standby.poke(&id, bytes);
    let pool = open(&machine);
    let losses = pool.losses();
    assert_eq!(losses.len(), 1, "{losses:?}");
    assert!(pool.status().standby.notes.contains(&losses[0].1), "{:?}", pool.status().standby);
    let values = (read(&pool, 5), read(&pool, 6));
    pool.close().unwrap();
    (losses[0].1.clone(), values.0, values.1)
}

#[test]
fn what_was_acknowledged_is_there_when_the_program_died() {
    let (machine, _) = died();
    let (status, value) = opened(&machine);
    assert_eq!((value, status.replayed, status.replayed_bytes), (2, 2, 2 * BLOCK));
    assert!(status.notes.is_empty(), "{status:?}");
}

/// A pad at the ring's end blocked the tail when nothing older was before it. All writers then
/// waited without end.
#[test]
fn a_ring_that_was_empty_at_its_end_is_empty_again() {
    let machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    let volume = pool.volume("v").unwrap();
    let ring = Arc::clone(pool.core.buffer.standby().unwrap());
    // Three times around: a record of a block does not end where the ring does.
    for count in 0..3 * ring.bytes() / BLOCK_BYTES {
        write(&volume, count as u64 % 8, count as u8);
        volume.flush().unwrap();
        assert_eq!(ring.used(), 0, "after {count} writes and flushes");
    }
}

#[test]
fn what_was_left_is_taken_over_by_whatever_opens_the_pool() {
    let (mut machine, _) = died();
    let env = env_on(&machine, machine.disk.handle());
    let pool = Pool::open(env, PoolOptions { standby_bytes_max: 0, ..options(0) }).unwrap();
    assert_eq!((read(&pool, 5), read(&pool, 6)), (2, 3));
    assert_eq!(pool.status().standby.place, None);
    assert!(machine.standby.pools().is_empty());
    let volume = pool.volume("v").unwrap();
    write(&volume, 5, 9);
    volume.flush().unwrap();
    drop(volume);
    die(&mut machine, pool);
    assert_eq!(opened(&machine).1, 9);
}

#[test]
fn what_another_boot_left_is_not_replayed() {
    for seed in 0..8 {
        let (mut machine, _) = died();
        machine.reseed(seed);
        machine.power_cycle();
        let is_left = !machine.standby.pools().is_empty();
        let (status, value) = opened(&machine);
        let note = status.notes.join("; ");
        assert!(value != 2 || status.replayed == 0, "{status:?}");
        assert_eq!(note.contains("before the machine was started"), is_left, "{note}");
    }
}

#[test]
fn what_belongs_to_another_pool_is_not_replayed() {
    let with = |change: fn(&mut StandbyHeader)| {
        changed(|bytes| {
            let mut header = StandbyHeader::decode(&bytes[..STANDBY_HEADER_BYTES]).unwrap();
            change(&mut header);
            bytes[..STANDBY_HEADER_BYTES].copy_from_slice(&header.encode());
        })
    };
    let (note, value) = with(|header| header.pool[3] ^= 1);
    assert!(note.contains("another pool") && value == 1, "{note}");
    let (note, value) = with(|header| header.ring_bytes += 64);
    assert!(note.contains("length") && value == 1, "{note}");
    let (note, value) = with(|header| header.incarnation += 1);
    assert!(note.contains("another copy") && value == 1, "{note}");
    let (note, value) = with(|header| header.session ^= 1);
    assert!(note.contains("words") && value == 1, "no record is of that file: {note}");
}

#[test]
fn what_is_torn_is_not_replayed() {
    let (note, value) = changed(|bytes| bytes[20] ^= 1);
    assert!(note.contains("checksum") && value == 1, "{note}");
    let (note, value) = changed(|bytes| bytes.truncate(100));
    assert!(note.contains("cut off") && value == 1, "{note}");
    let (note, value) = changed(|bytes| bytes[..STANDBY_HEADER_BYTES].fill(0));
    assert!(note.contains("may be missing") && value == 1, "the map knows that there were requests: {note}");
}

/// A damaged record may have been acknowledged: it is reported, and all others are replayed.
#[test]
fn what_is_damaged_is_told_and_nothing_else_is_lost() {
    // The file's first records are those of block 5 as 1, then as 2, then of block 6.
    let record = |index: usize| STANDBY_RING_OFFSET + index * (64 + BLOCK_BYTES);
    let (loss, five, six) = lossy(|bytes| bytes[record(1) + 64 + 7] ^= 1);
    assert!(loss.contains("4 KiB at 20 KiB of 'v'") && (five, six) == (1, 3), "its blocks: {loss}");
    let (loss, five, six) = lossy(|bytes| bytes[record(1) + 3] ^= 1);
    assert!(loss.contains("all requests in 4.06 KiB") && (five, six) == (1, 3), "its head: {loss}");
    let (loss, five, six) = lossy(|bytes| bytes[record(1) + 50] ^= 1);
    assert!(loss.contains("4 KiB at 20 KiB of 'v'") && (five, six) == (1, 3), "its commit: {loss}");
    let (loss, five, six) = lossy(|bytes| bytes[record(2)..record(2) + 64].fill(0));
    assert!(loss.contains("all requests in") && (five, six) == (2, 0), "the last one: {loss}");
    let (loss, five, six) = lossy(|bytes| bytes[record(1)..].fill(0));
    assert!(loss.contains("all requests in 8.1") && (five, six) == (1, 0), "all of them: {loss}");
    let (loss, five, six) = lossy(|bytes| bytes[STANDBY_TAIL_OFFSET..STANDBY_TAIL_OFFSET + 32].fill(7));
    assert!(loss.contains("their positions are unknown") && (five, six) == (1, 0), "where they begin: {loss}");
    let (loss, five, six) = lossy(|bytes| set_word(bytes, STANDBY_HEAD_OFFSET, |_| 1 << 40));
    assert!(loss.contains("their positions are unknown") && (five, six) == (1, 0), "where they end: {loss}");
}

#[test]
fn a_word_that_is_damaged_once_does_no_harm() {
    for at in (STANDBY_TAIL_OFFSET..STANDBY_HEAD_OFFSET + 32).step_by(3) {
        let (note, value) = changed(|bytes| bytes[at] ^= 0x10);
        assert_eq!((note.as_str(), value), ("", 2), "byte {at}");
    }
}

/// A request that was never acknowledged is no loss.
#[test]
fn what_was_not_finished_is_not_missed() {
    let (note, value) = changed(|bytes| {
        let record = STANDBY_RING_OFFSET + 2 * (64 + BLOCK_BYTES);
        bytes[record + 48..record + 56].fill(0);
        bytes[record + 64..record + 100].fill(9);
    });
    assert_eq!((note.as_str(), value), ("", 2));
}

/// The file of a running server is removed: the ring moves to another one, and all acknowledged
/// blocks are there.
#[test]
fn memory_that_is_gone_is_made_again() {
    let mut machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    let volume = pool.volume("v").unwrap();
    write(&volume, 5, 2);
    machine.standby.empty();
    let status = pool.status().standby;
    assert!(status.place.is_none() && status.notes[0].contains("it has been removed"), "{status:?}");
    assert!(!pool.keeps_acknowledged());
    write(&volume, 6, 3);
    pool.tick().unwrap();
    let status = pool.status().standby;
    assert!(status.place.is_some() && status.notes[0].contains("was recreated"), "{status:?}");
    write(&volume, 7, 4);
    drop(volume);
    die(&mut machine, pool);
    let pool = open(&machine);
    assert_eq!((read(&pool, 5), read(&pool, 6), read(&pool, 7)), (2, 3, 4));
    assert_eq!((pool.losses(), pool.status().standby.replayed), (Vec::new(), 1), "the others were drained");
    pool.close().unwrap();
}

/// Another file in the place of the ring is kept, and the ring moves to a new one.
#[test]
fn memory_whose_place_was_taken_is_made_again() {
    let mut machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    let volume = pool.volume("v").unwrap();
    write(&volume, 5, 2);
    machine.standby.poke(&pool.id(), vec![1; 8192]);
    pool.tick().unwrap();
    assert!(pool.keeps_acknowledged() && machine.standby.aside() == 1, "{:?}", pool.status().standby);
    write(&volume, 6, 3);
    drop(volume);
    die(&mut machine, pool);
    let pool = open(&machine);
    assert_eq!((read(&pool, 5), read(&pool, 6), pool.losses().len()), (2, 3, 0));
    pool.close().unwrap();
}

/// There is no room for the ring at the opening, or for a new one later: that is reported, until
/// there is.
#[test]
fn memory_without_room_is_made_when_there_is_some() {
    let later = |machine: &Machine, pool: &Pool| {
        machine.clock.advance_ms(3000);
        pool.tick().unwrap();
    };
    let mut machine = Machine::new(64 << 20, 1);
    machine.standby.limit(1000);
    let format = FormatOptions { capacity_bytes: 64 << 20, extent_bytes: 64 << 10, properties: Default::default() };
    Pool::format(&env_on(&machine, machine.disk.handle()), &format).unwrap();
    let pool = open(&machine);
    pool.create_volume("v", 64 << 20, &Default::default()).unwrap();
    let volume = pool.volume("v").unwrap();
    write(&volume, 5, 2);
    later(&machine, &pool);
    assert!(!pool.keeps_acknowledged());
    machine.standby.limit(usize::MAX);
    later(&machine, &pool);
    assert!(pool.keeps_acknowledged() && pool.status().standby.notes.is_empty(), "{:?}", pool.status().standby);
    write(&volume, 6, 3);
    // And now it goes.
    machine.standby.empty();
    machine.standby.limit(1000);
    later(&machine, &pool);
    let status = pool.status().standby;
    assert!(status.place.is_none() && status.notes[0].contains("it has been removed"), "{status:?}");
    write(&volume, 7, 4);
    drop(volume);
    die(&mut machine, pool);
    machine.standby.limit(usize::MAX);
    let pool = open(&machine);
    let losses = pool.losses();
    assert!(losses.len() == 1 && losses[0].1.contains("may be missing"), "{losses:?}");
    assert_eq!((read(&pool, 5), read(&pool, 7)), (2, 0), "the ring was there first, and then it was not");
    pool.close().unwrap();
}

#[test]
fn a_log_that_has_become_shorter_is_not_continued() {
    let (loss, value, _) = lossy(|bytes| set_word(bytes, STANDBY_SEQ_OFFSET, |seq| seq + (1 << 32)));
    assert!(loss.contains("the log ends before") && value == 1, "{loss}");
}

#[test]
fn a_log_that_lost_what_was_flushed_is_damaged() {
    let (machine, id) = died();
    let mut bytes = machine.standby.peek(&id).unwrap();
    set_word(&mut bytes, STANDBY_DURABLE_OFFSET, |durable| durable + 2);
    machine.standby.poke(&id, bytes.clone());
    let open = |repair, accept_loss| {
        let options = PoolOptions { repair, accept_loss, ..options(0) };
        Pool::open(env_on(&machine, machine.disk.handle()), options)
    };
    let error = open(false, false).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("had been flushed"), "{error}");
    let error = open(true, false).unwrap_err();
    let loss = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<Loss>()).unwrap();
    assert_eq!((loss.batches, loss.batches_unknown), (0, 2), "{loss}");
    assert!(loss.what.contains("2 acknowledged writes and discards (8 KiB)"), "{loss}");
    assert_eq!(machine.standby.peek(&id), Some(bytes), "nothing is changed before it is accepted");
    let pool = open(true, true).unwrap();
    assert_eq!((read(&pool, 5), pool.losses().len(), machine.standby.aside()), (1, 1, 1));
    assert!(pool.accepted_loss().is_some());
    pool.close().unwrap();
    let pool = open(false, false).unwrap();
    assert_eq!(pool.losses().len(), 1, "it is remembered");
    pool.close().unwrap();
}

#[test]
fn a_copy_leaves_what_the_server_of_the_original_left() {
    let (machine, _) = died();
    for standby_bytes_max in [0, usize::MAX] {
        let copy = machine.copy(7);
        let options = PoolOptions { standby_bytes_max, ..options(0) };
        let pool = Pool::open(env_on(&copy, copy.disk.handle()), options).unwrap();
        let note = pool.status().standby.notes.join("; ");
        assert!(note.contains("this is a copy") && note.contains("is left alone"), "{note}");
        assert_eq!((read(&pool, 5), pool.losses().len()), (1, 0), "the original lost nothing");
        pool.close().unwrap();
    }
    let (status, value) = opened(&machine);
    assert_eq!((value, status.replayed, status.notes), (2, 2, Vec::new()));
}

#[test]
fn what_is_not_replayed_is_kept_and_what_may_be_lost_is_remembered() {
    let (machine, id) = died();
    let mut bytes = machine.standby.peek(&id).unwrap();
    bytes[20] ^= 1;
    machine.standby.poke(&id, bytes);
    let pool = open(&machine);
    let losses = pool.losses();
    assert!(losses.len() == 1 && losses[0].1.contains("may be missing"), "{losses:?}");
    assert_eq!(machine.standby.aside(), 1);
    pool.acknowledge_losses().unwrap();
    pool.close().unwrap();
    let pool = open(&machine);
    assert!(pool.losses().is_empty() && pool.status().standby.notes.is_empty());
    pool.close().unwrap();
}

#[test]
fn what_an_opening_without_standby_memory_passed_over_is_stale() {
    let (machine, _) = died();
    let env = store::base::options::PoolEnv { standby: None, ..env_on(&machine, machine.disk.handle()) };
    let pool = Pool::open(env, PoolOptions { standby_bytes_max: 0, ..options(0) }).unwrap();
    pool.close().unwrap();
    let pool = open(&machine);
    let losses = pool.losses();
    assert!(losses.len() == 1 && losses[0].1.contains("opened without it") && read(&pool, 5) == 1, "{losses:?}");
    pool.close().unwrap();
}

/// The ring is overwritten many times, and writers wait for drains.
#[test]
fn a_small_ring_goes_round_and_round() {
    let mut machine = Machine::new(64 << 20, 1);
    machine.standby.limit(1100 << 10);
    let pool = new_pool(&machine);
    let volume = pool.volume("v").unwrap();
    for round in 0..6u8 {
        for at in 0..40 {
            let data = vec![round * 40 + at + 1; GROUP_BYTES - BLOCK_BYTES];
            volume.write(u64::from(at) * GROUP_BYTES as u64, Bytes::from(data), WriteOptions::default()).unwrap();
        }
    }
    let (bytes, used) = (pool.status().standby.bytes, pool.core.buffer.standby().unwrap().used() as u64);
    assert!(bytes <= 1100 << 10 && used > 0 && used <= bytes, "{used} of {bytes}");
    drop(volume);
    die(&mut machine, pool);
    let pool = open(&machine);
    for at in 0..40 {
        assert_eq!(read(&pool, u64::from(at) * 32), 5 * 40 + at + 1);
    }
    assert!(pool.status().standby.replayed > 0);
    pool.close().unwrap();
}

#[test]
fn without_room_there_is_no_standby_memory_and_that_is_said() {
    let machine = Machine::new(64 << 20, 1);
    machine.standby.limit(1000);
    let format = FormatOptions { capacity_bytes: 64 << 20, extent_bytes: 64 << 10, properties: Default::default() };
    Pool::format(&env_on(&machine, machine.disk.handle()), &format).unwrap();
    let pool = open(&machine);
    let status = pool.status().standby;
    assert!(status.place.is_none() && status.notes[0].contains("no standby memory"), "{status:?}");
    pool.close().unwrap();
}

/// A block that is written again and again takes room of the ring each time, and none of the write
/// buffer.
#[test]
fn one_block_over_and_over_does_not_fill_the_ring_for_ever() {
    let mut machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    let volume = pool.volume("v").unwrap();
    write(&volume, 900, 7);
    for round in 0..2000u64 {
        write(&volume, 3, round as u8);
    }
    drop(volume);
    die(&mut machine, pool);
    let pool = open(&machine);
    assert_eq!((read(&pool, 3), read(&pool, 900)), (1999_u64 as u8, 7));
    pool.close().unwrap();
}

/// Data older than a rollback, a cut or a large discard does not reappear, although the records of
/// other volumes hold the tail.
#[test]
fn what_changes_a_volume_past_the_buffer_is_not_undone() {
    type Change = fn(&Pool);
    let changes: [(Change, u8); 3] = [
        (|pool| pool.rollback("v@s", true).unwrap(), 1),
        (
            |pool| {
                pool.resize_volume("v", BLOCK).unwrap();
                pool.resize_volume("v", 64 << 20).unwrap();
            },
            0,
        ),
        (|pool| pool.volume("v").unwrap().discard(0, 32 << 20).unwrap(), 0),
    ];
    for (change, expected) in changes {
        let mut machine = Machine::new(64 << 20, 1);
        let pool = new_pool(&machine);
        pool.create_volume("other", 1 << 20, &Default::default()).unwrap();
        let volume = pool.volume("v").unwrap();
        write(&volume, 40, 1);
        pool.snapshot("v", "s").unwrap();
        write(&pool.volume("other").unwrap(), 1, 8);
        write(&volume, 40, 2);
        change(&pool);
        write(&pool.volume("other").unwrap(), 2, 9);
        drop(volume);
        die(&mut machine, pool);
        let pool = open(&machine);
        assert_eq!(read(&pool, 40), expected);
        assert!(pool.status().standby.replayed >= 1, "the block of the other volume");
        pool.close().unwrap();
    }
}

/// The tail moves only when the oldest record is drained, whichever others have been.
#[test]
fn the_tail_waits_for_the_oldest_record() {
    let mut machine = Machine::new(64 << 20, 1);
    let pool = new_pool(&machine);
    let volume = pool.volume("v").unwrap();
    let tail = |machine: &Machine| {
        let id = machine.standby.pools()[0];
        let bytes = machine.standby.peek(&id).unwrap();
        u64::from_le_bytes(std::array::from_fn(|i| bytes[STANDBY_TAIL_OFFSET + i]))
    };
    write(&volume, 1, 1);
    let held = pool.core.buffer.take(usize::MAX, u64::MAX);
    write(&volume, 100, 2);
    let generation = pool.core.buffer.begin_flush();
    while pool.core.writes.drain(generation).unwrap() {}
    assert_eq!(tail(&machine), 0);
    pool.core.buffer.failed(&held);
    drop(held);
    pool.flush().unwrap();
    assert_eq!(tail(&machine), 2 * (64 + BLOCK));
    drop(volume);
    die(&mut machine, pool);
    assert_eq!(read(&open(&machine), 1), 1);
}

/// Threads write, flush and discard; the program dies in the midst of it, and each of them finds
/// its acknowledged data.
#[test]
fn threads_find_what_was_acknowledged_to_them() {
    for seed in 0..6u64 {
        let mut machine = Machine::new(64 << 20, seed);
        drop(new_pool(&machine));
        machine.restart();
        let pool = Pool::open(env_on(&machine, machine.disk.handle()), options(2)).unwrap();
        machine.power.number_standby(true);
        machine.power.plan(machine.power.next_point() + 3000 + 977 * seed, sim::Fault::Crash);
        let answered: Vec<Vec<(u8, u8)>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4u64)
                .map(|thread| {
                    let (volume, power) = (pool.volume("v").unwrap(), Arc::clone(&machine.power));
                    scope.spawn(move || {
                        // For each block the last acknowledged content, and the last requested one.
                        let mut answered = vec![(0, 0); 64];
                        for round in 1.. {
                            let at = (round * 7 + round / 64) % 64;
                            let value = (round % 250) as u8 + 1;
                            let offset = (thread * 64 + at as u64) * 8 * BLOCK;
                            answered[at].1 = if round % 5 == 0 { 0 } else { value };
                            let done = if round % 5 == 0 {
                                volume.discard(offset, BLOCK)
                            } else {
                                let fua = round % 97 == 0;
                                volume.write(offset, vec![value; BLOCK_BYTES].into(), WriteOptions { fua })
                            };
                            // An answer after the program's death never reached the client.
                            if power.is_lost() || done.is_err() {
                                break;
                            }
                            answered[at].0 = answered[at].1;
                        }
                        answered
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        die(&mut machine, pool);
        let pool = open(&machine);
        assert!(pool.status().standby.notes.is_empty(), "{:?}", pool.status().standby);
        for (thread, answered) in answered.iter().enumerate() {
            for (at, (acknowledged, asked)) in answered.iter().enumerate() {
                let found = read(&pool, (thread * 64 + at) as u64 * 8);
                assert!(found == *acknowledged || found == *asked, "{found}, not {acknowledged} or {asked}");
            }
        }
        pool.close().unwrap();
    }
}
