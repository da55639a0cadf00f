//! Quotas, reservations, and the writes that a full pool still accepts, on a simulated machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::machine_env::env;
use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions, Properties};
use sim::{ContentKind, Machine, Rng, fill_content};
use surface::{BlockDevice, ErrorKind, Result, WriteOptions};
use units::{EXTENT_BYTES_MIN, OBJECT_BYTES_MAX};

const EXTENT_BYTES: u32 = 256 << 10;
const REQUEST_BYTES: u64 = 64 << 10;

fn options() -> PoolOptions {
    PoolOptions { memory_bytes: 2 << 20, workers: 0, checkpoint_log_bytes: 1 << 20, ..PoolOptions::default() }
}

fn pool(machine: &Machine, capacity_bytes: u64) -> Pool {
    let format = FormatOptions { capacity_bytes, extent_bytes: EXTENT_BYTES, properties: Properties::new() };
    Pool::format(&env(machine), &format).unwrap();
    Pool::open(env(machine), options()).unwrap()
}

fn set(pool: &Pool, volume: &str, key: &str, value: &str) -> Result<()> {
    pool.set_properties(Some(volume), &[(key.to_owned(), Some(value.to_owned()))])
}

fn write(pool: &Pool, volume: &str, offset: u64, len: u64, kind: ContentKind, seed: u64) -> Result<()> {
    let mut data = vec![0; len as usize];
    fill_content(&mut Rng::new(seed), kind, &mut data);
    pool.volume(volume).unwrap().write(offset, Bytes::from(data), WriteOptions::default())
}

/// Writes new data to a volume until it is refused; bytes taken, and why no more.
fn fill(pool: &Pool, volume: &str, size: u64) -> (u64, String) {
    for offset in (0..size).step_by(REQUEST_BYTES as usize) {
        if let Err(error) = write(pool, volume, offset, REQUEST_BYTES, ContentKind::Random, offset + 1) {
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            return (offset, error.to_string());
        }
    }
    (size, String::new())
}

fn stored(pool: &Pool, volume: &str) -> u64 {
    pool.checkpoint().unwrap();
    pool.volumes().iter().find(|v| v.name == volume).unwrap().stored_bytes
}

#[test]
fn a_quota_bounds_what_is_stored_and_overwriting_goes_on() {
    let machine = Machine::new(64 << 20, 1);
    let pool = pool(&machine, 64 << 20);
    pool.create_volume("v", 32 << 20, &Properties::new()).unwrap();
    pool.create_volume("w", 32 << 20, &Properties::new()).unwrap();
    set(&pool, "v", "quota", "4M").unwrap();
    let (taken, why) = fill(&pool, "v", 32 << 20);
    assert!(why.contains("quota of 4 MiB") && why.contains("'v'"), "{why}");
    assert!((3 << 20..=4 << 20).contains(&taken), "{taken} bytes of random data for a quota of 4 MiB");
    assert!(stored(&pool, "v") <= 4 << 20);
    // Existing data may change; other volumes are not affected.
    for round in 0..4 {
        for offset in (0..taken).step_by(REQUEST_BYTES as usize) {
            write(&pool, "v", offset, REQUEST_BYTES, ContentKind::Random, 1000 * round + offset).unwrap();
        }
    }
    assert!(stored(&pool, "v") <= 4 << 20);
    write(&pool, "w", 0, 1 << 20, ContentKind::Random, 5).unwrap();
    // Compressible data is counted at its stored size.
    pool.volume("v").unwrap().discard(0, 32 << 20).unwrap();
    for offset in (0..8 << 20).step_by(REQUEST_BYTES as usize) {
        write(&pool, "v", offset, REQUEST_BYTES, ContentKind::Text, offset).unwrap();
    }
    assert!(stored(&pool, "v") <= 4 << 20);
    // A higher quota holds at once, after a restart too.
    let (_, why) = fill(&pool, "v", 32 << 20);
    assert!(!why.is_empty());
    pool.close().unwrap();
    let pool = Pool::open(env(&machine), options()).unwrap();
    assert!(!fill(&pool, "v", 32 << 20).1.is_empty());
    set(&pool, "v", "quota", "none").unwrap();
    assert_eq!(fill(&pool, "v", 32 << 20).0, 32 << 20);
    pool.close().unwrap();
}

#[test]
fn snapshots_count_towards_the_quota() {
    let machine = Machine::new(64 << 20, 2);
    let pool = pool(&machine, 64 << 20);
    pool.create_volume("v", 2 << 20, &Properties::new()).unwrap();
    set(&pool, "v", "quota", "3M").unwrap();
    assert_eq!(fill(&pool, "v", 2 << 20).0, 2 << 20);
    pool.snapshot("v", "s").unwrap();
    let mut refused = None;
    for offset in (0..2 << 20).step_by(REQUEST_BYTES as usize) {
        if let Err(error) = write(&pool, "v", offset, REQUEST_BYTES, ContentKind::Random, 77 + offset) {
            refused = Some(error);
            break;
        }
    }
    assert_eq!(refused.expect("a snapshot keeps what is overwritten").kind(), ErrorKind::Full);
    assert!(stored(&pool, "v") <= 3 << 20);
    pool.destroy("v@s", false).unwrap();
    while stored(&pool, "v") > 2 << 20 {
        pool.tick().unwrap();
    }
    write(&pool, "v", 0, REQUEST_BYTES, ContentKind::Random, 3).unwrap();
    pool.close().unwrap();
}

#[test]
fn a_clone_takes_no_more_than_its_quota() {
    let machine = Machine::new(64 << 20, 2);
    let pool = pool(&machine, 64 << 20);
    pool.create_volume("v", 8 << 20, &Properties::new()).unwrap();
    assert_eq!(fill(&pool, "v", 8 << 20).0, 8 << 20);
    pool.snapshot("v", "s").unwrap();
    pool.clone_snapshot("v@s", "c", &Properties::new()).unwrap();
    set(&pool, "c", "quota", "2M").unwrap();
    // All of it holds data, but not the clone's own.
    let (taken, why) = fill(&pool, "c", 8 << 20);
    assert!(taken <= 2 << 20 && why.contains("quota of 2 MiB"), "{taken} bytes for a quota of 2 MiB: {why}");
    assert!(stored(&pool, "c") <= 2 << 20);
    // Its own it may change.
    assert_eq!(fill(&pool, "c", taken).0, taken);
    pool.close().unwrap();
}

#[test]
fn a_volume_at_its_quota_goes_on_when_its_snapshots_are_gone() {
    let machine = Machine::new(64 << 20, 2);
    let pool = pool(&machine, 64 << 20);
    pool.create_volume("v", 2 << 20, &Properties::new()).unwrap();
    assert_eq!(fill(&pool, "v", 2 << 20).0, 2 << 20);
    pool.snapshot("v", "s").unwrap();
    set(&pool, "v", "quota", "2M").unwrap();
    assert_eq!(fill(&pool, "v", 2 << 20).0, 0, "the snapshot keeps what is overwritten");
    pool.destroy("v@s", false).unwrap();
    assert_eq!(fill(&pool, "v", 2 << 20).0, 2 << 20);
    pool.close().unwrap();
}

#[test]
fn a_reservation_holds_against_overwriting_below_a_snapshot() {
    let machine = Machine::new(128 << 20, 3);
    let pool = pool(&machine, 128 << 20);
    pool.create_volume("vip", 16 << 20, &Properties::new()).unwrap();
    pool.create_volume("v", 40 << 20, &Properties::new()).unwrap();
    set(&pool, "vip", "reservation", "16M").unwrap();
    let mut why = String::new();
    for round in 0..4 {
        if !why.is_empty() {
            break;
        }
        why = fill(&pool, "v", 40 << 20).1;
        pool.snapshot("v", &format!("s{round}")).unwrap();
    }
    assert!(why.contains("full"), "{why}");
    assert_eq!(fill(&pool, "vip", 16 << 20).0, 16 << 20, "the reservation holds");
    pool.close().unwrap();
}

#[test]
fn a_reservation_is_there_when_everything_else_is_taken() {
    let machine = Machine::new(128 << 20, 3);
    let pool = pool(&machine, 128 << 20);
    pool.create_volume("vip", 4 << 20, &Properties::new()).unwrap();
    pool.create_volume("v", 256 << 20, &Properties::new()).unwrap();
    let error = set(&pool, "vip", "reservation", "400M").unwrap_err();
    assert!(error.kind() == ErrorKind::Full && error.to_string().contains("does not fit"), "{error}");
    set(&pool, "vip", "reservation", "4M").unwrap();
    let (taken, why) = fill(&pool, "v", 256 << 20);
    assert!(taken > 4 << 20 && why.contains("full"), "{taken}: {why}");
    assert_eq!(fill(&pool, "vip", 4 << 20).0, 4 << 20, "the reservation holds");
    pool.flush().unwrap();
    pool.close().unwrap();
}

#[test]
fn a_full_pool_goes_on_taking_changes_of_what_it_holds() {
    let machine = Machine::new(128 << 20, 4);
    let pool = pool(&machine, 128 << 20);
    pool.create_volume("v", 256 << 20, &Properties::new()).unwrap();
    let (taken, why) = fill(&pool, "v", 256 << 20);
    assert!(why.contains("full"), "{why}");
    let mut rng = Rng::new(9);
    let mut more = 0;
    for round in 0..2000 {
        let offset = rng.below(taken / 4096) * 4096;
        write(&pool, "v", offset, 4096, ContentKind::Random, round)
            .unwrap_or_else(|e| panic!("overwrite {round} in a full pool: {e}"));
        if round % 97 == 0 {
            let new = taken + (8 << 20) + round * REQUEST_BYTES;
            match write(&pool, "v", new, REQUEST_BYTES, ContentKind::Random, round) {
                // Draining packs existing data, and may leave room for a little more.
                Ok(()) => more += REQUEST_BYTES,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Full),
            }
        }
    }
    assert!(more < 4 << 20, "{more} bytes of new data found room in a full pool");
    pool.flush().unwrap();
    pool.volume("v").unwrap().discard(0, taken / 2).unwrap();
    write(&pool, "v", taken + (8 << 20), REQUEST_BYTES, ContentKind::Random, 1).unwrap();
    let report = pool.check(false, &mut |_, _| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    pool.close().unwrap();
}

#[test]
fn a_full_pool_grows_while_it_is_open() {
    let mut machine = Machine::new(64 << 20, 5);
    let pool = pool(&machine, 16 << 20);
    pool.create_volume("v", 256 << 20, &Properties::new()).unwrap();
    let (taken, _) = fill(&pool, "v", 256 << 20);
    pool.grow(16 << 20).unwrap();
    for (wanted, kind) in [(8 << 20, ErrorKind::Invalid), (65 << 20, ErrorKind::Full)] {
        let error = pool.grow(wanted).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    pool.grow(48 << 20).unwrap();
    assert_eq!(pool.status().capacity_bytes, 48 << 20);
    for offset in (taken..2 * taken).step_by(REQUEST_BYTES as usize) {
        write(&pool, "v", offset, REQUEST_BYTES, ContentKind::Random, offset + 1).unwrap();
    }
    pool.flush().unwrap();
    drop(pool);
    machine.power_cycle();
    let pool = Pool::open(env(&machine), options()).unwrap();
    assert_eq!(pool.status().capacity_bytes, 48 << 20);
    let (mut want, mut got) = (vec![0; REQUEST_BYTES as usize], vec![0; REQUEST_BYTES as usize]);
    for offset in (0..2 * taken).step_by(REQUEST_BYTES as usize) {
        fill_content(&mut Rng::new(offset + 1), ContentKind::Random, &mut want);
        pool.volume("v").unwrap().read(offset, &mut got).unwrap();
        assert!(want == got, "byte {offset} after growing and a crash");
    }
    let report = pool.check(false, &mut |_, _| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    pool.close().unwrap();
}

#[test]
fn the_cleaner_works_between_the_marks_that_are_set() {
    let machine = Machine::new(32 << 20, 11);
    let pool = pool(&machine, 32 << 20);
    let mark = |key: &str, value: Option<&str>| {
        pool.set_properties(None, &[(key.to_owned(), value.map(str::to_owned))]).map_err(|e| (e.kind(), e.to_string()))
    };
    let both = |low: &str, high: &str| {
        let change = |key: &str, value: &str| (key.to_owned(), Some(value.to_owned()));
        pool.set_properties(None, &[change("clean-low", low), change("clean-high", high)]).unwrap();
    };
    pool.create_volume("v", 16 << 20, &Properties::new()).unwrap();
    // Two thirds of each extent die: half of the pool is in use, and a sixth of it holds something.
    for offset in (0..15 << 20).step_by(REQUEST_BYTES as usize) {
        write(&pool, "v", offset, REQUEST_BYTES, ContentKind::Random, offset + 1).unwrap();
    }
    pool.checkpoint().unwrap();
    for offset in (0..15 << 20).step_by(3 * REQUEST_BYTES as usize) {
        pool.volume("v").unwrap().discard(offset, 2 * REQUEST_BYTES).unwrap();
    }
    pool.checkpoint().unwrap();
    let free = || {
        let status = pool.status();
        status.extents_free * 100 / status.extents_total
    };
    let work = || {
        for _ in 0..200 {
            pool.tick().unwrap();
        }
        pool.checkpoint().unwrap();
        free()
    };
    let before = free();
    assert!((40..60).contains(&before), "{before} %");
    assert_eq!(work(), before, "half of the pool is free: the default marks lie below");
    both("40", "45");
    assert_eq!(work(), before, "these, too");
    both("60", "70");
    let after = work();
    assert!((68..75).contains(&after), "{after} %: it goes on to the high mark, and not much further");
    assert_eq!(pool.clean(false, 100).unwrap().extents_cleaned, 0, "nor does cleaning on demand");
    assert_eq!(mark("clean-high", Some("60")).unwrap_err().0, ErrorKind::Invalid);
    assert_eq!(mark("clean-high", None).unwrap_err().0, ErrorKind::Invalid, "the default lies below what is set");
    assert!(mark("clean-low", Some("91")).unwrap_err().1.contains("from 0 to 90"));
    assert!(set(&pool, "v", "clean-low", "5").unwrap_err().to_string().contains("of the pool as a whole"));
    let shown = |volume| pool.properties(volume).unwrap().iter().filter(|p| p.key.starts_with("clean-")).count();
    assert_eq!((shown(None), shown(Some("v"))), (2, 0));
    drop(pool);
    let pool = Pool::open(env(&machine), options()).unwrap();
    let marks: Vec<_> = pool.properties(None).unwrap().into_iter().filter(|p| p.key.starts_with("clean-")).collect();
    assert_eq!(marks.iter().map(|p| p.value.as_str()).collect::<Vec<_>>(), ["60", "70"]);
}

#[test]
fn a_pool_is_no_larger_than_the_places_in_its_map_reach() {
    let most = 1 << 48;
    let check = |extent_bytes, capacity_bytes| {
        Pool::check_format(&FormatOptions { capacity_bytes, extent_bytes, properties: Properties::new() })
    };
    check(1 << 20, most).unwrap();
    for (extent_bytes, capacity_bytes) in [(1 << 20, most + (1 << 20)), (16 << 20, 1 << 55)] {
        let error = check(extent_bytes, capacity_bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("256 TiB"), "{error}");
    }
    // Smaller extents run out of numbers before.
    check(32 << 10, (1 << 47) - 1).unwrap();
    assert_eq!(check(32 << 10, 1 << 47).unwrap_err().kind(), ErrorKind::Invalid);
    let machine = Machine::new(64 << 20, 1);
    let error = pool(&machine, 64 << 20).grow(most + (1 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[test]
fn no_reservation_is_so_large_that_it_fits_again() {
    let machine = Machine::new(64 << 20, 1);
    let pool = pool(&machine, 64 << 20);
    pool.create_volume("v", 32 << 20, &Properties::new()).unwrap();
    pool.create_volume("w", 32 << 20, &Properties::new()).unwrap();
    set(&pool, "v", "reservation", "4M").unwrap();
    for bytes in [u64::MAX, u64::MAX - (4 << 20) + 1, u64::MAX - (2 << 20)] {
        let refused = set(&pool, "w", "reservation", &bytes.to_string()).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::Full | ErrorKind::Invalid), "{bytes}: {refused}");
    }
    // Space reserved for one volume is still kept from the other.
    let (taken, _) = fill(&pool, "w", 32 << 20);
    write(&pool, "v", 0, 2 << 20, ContentKind::Random, 1).unwrap();
    assert!(taken > 0);
}

/// Space that one volume had freed was counted as free for the other, and as used by the first.
#[test]
fn what_a_volume_gives_up_stays_reserved_for_it() {
    let machine = Machine::new(64 << 20, 1);
    let pool = pool(&machine, 64 << 20);
    let bytes = 24 << 20;
    let reservation = bytes.to_string();
    for name in ["a", "b"] {
        pool.create_volume(name, bytes, &Properties::new()).unwrap();
    }
    set(&pool, "a", "reservation", &reservation).unwrap();
    assert_eq!(
        set(&pool, "b", "reservation", &reservation).unwrap_err().kind(),
        ErrorKind::Full,
        "there is no room for both"
    );
    assert_eq!(fill(&pool, "a", bytes).0, bytes);
    pool.checkpoint().unwrap();
    assert!(stored(&pool, "a") >= bytes);
    pool.volume("a").unwrap().discard(0, bytes).unwrap();
    let pool_wide = pool.set_properties(None, &[("reservation".to_owned(), Some(reservation.clone()))]);
    assert_eq!(pool_wide.unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(fill(&pool, "a", bytes).0, bytes);
    pool.checkpoint().unwrap();
    pool.volume("a").unwrap().discard(0, bytes).unwrap();
    assert_eq!(set(&pool, "b", "reservation", &reservation).unwrap_err().kind(), ErrorKind::Full);
    set(&pool, "a", "reservation", "none").unwrap();
    set(&pool, "b", "reservation", &reservation).unwrap();
    pool.close().unwrap();
}

/// A reservation that all volumes inherit was accepted without a check, and then kept from all of
/// them.
#[test]
fn what_volumes_would_inherit_must_fit_too() {
    let machine = Machine::new(64 << 20, 1);
    let pool = pool(&machine, 64 << 20);
    let set_all = |key: &str, value: &str| pool.set_properties(None, &[(key.to_owned(), Some(value.to_owned()))]);
    for name in ["a", "b", "c"] {
        pool.create_volume(name, 32 << 20, &Properties::new()).unwrap();
    }
    set(&pool, "c", "reservation", "none").unwrap();
    set_all("reservation", "8M").unwrap();
    let error = set_all("reservation", "24M").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.to_string().contains("2 volumes"), "{error}");
    // Nothing was changed, and other properties of a pool that is full can be.
    set_all("unit", "8K").unwrap();
    assert!(pool.create_volume("d", 32 << 20, &Properties::new()).is_ok());
    assert!(fill(&pool, "c", 32 << 20).0 > 0);
    assert!(fill(&pool, "a", 32 << 20).0 >= 8 << 20, "what was promised holds");
    set_all("reservation", "4M").unwrap();
}

/// The batch with all holes of the cut did not fit in a small extent, and the volume could not be
/// shrunk at all.
#[test]
fn a_volume_of_a_petabyte_becomes_small_in_a_pool_with_small_extents() {
    let machine = Machine::new(8 << 20, 6);
    let format =
        FormatOptions { capacity_bytes: 8 << 20, extent_bytes: EXTENT_BYTES_MIN, properties: Properties::new() };
    Pool::format(&env(&machine), &format).unwrap();
    let pool = Pool::open(env(&machine), options()).unwrap();
    pool.create_volume("v", OBJECT_BYTES_MAX, &Properties::new()).unwrap();
    let offsets = [0, 1 << 20, 60 << 40, 300 << 40, OBJECT_BYTES_MAX - REQUEST_BYTES];
    for offset in offsets {
        write(&pool, "v", offset, REQUEST_BYTES, ContentKind::Text, offset).unwrap();
    }
    pool.resize_volume("v", 1 << 20).unwrap();
    pool.resize_volume("v", OBJECT_BYTES_MAX).unwrap();
    pool.close().unwrap();
    let pool = Pool::open(env(&machine), options()).unwrap();
    let mut data = vec![1; REQUEST_BYTES as usize];
    for offset in &offsets[1..] {
        pool.volume("v").unwrap().read(*offset, &mut data).unwrap();
        assert!(data.iter().all(|byte| *byte == 0), "what was cut off at {offset} came back");
    }
    let mut expected = data.clone();
    fill_content(&mut Rng::new(0), ContentKind::Text, &mut expected);
    pool.volume("v").unwrap().read(0, &mut data).unwrap();
    assert!(data == expected);
    assert!(pool.check(false, &mut |_, _| ()).unwrap().problems.is_empty());
    pool.close().unwrap();
}

/// The check whether a volume would shrink was done earlier, outside the lock: of two concurrent
/// enlargements, the second cut off the first one's addition.
#[test]
fn enlarging_never_cuts_anything_off() {
    let pool = pool(&Machine::new(8 << 20, 7), 8 << 20);
    for round in 0..50 {
        let name = format!("v{round}");
        pool.create_volume(&name, 1 << 20, &Properties::new()).unwrap();
        std::thread::scope(|threads| {
            threads.spawn(|| drop(pool.enlarge_volume(&name, 2 << 20)));
            threads.spawn(|| pool.enlarge_volume(&name, 3 << 20).unwrap());
        });
        assert_eq!(pool.volume(&name).unwrap().size_bytes(), 3 << 20);
    }
    let refused = pool.enlarge_volume("v0", 2 << 20).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.to_string().contains("volume 'v0' has 3 MiB"), "{refused}");
    pool.resize_volume("v0", 2 << 20).unwrap();
    pool.close().unwrap();
}
