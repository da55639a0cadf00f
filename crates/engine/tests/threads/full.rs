//! Many threads fill a pool at once: data acknowledged before one of them found it full can be
//! flushed, read, and found again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions};
use sim::{ContentKind, Machine, Rng, fill_content};
use surface::{BlockDevice, ErrorKind, WriteOptions};
use testkit::until;

use crate::common::machine_env::env;

const THREADS: u64 = 8;
const REQUEST_BYTES: u64 = 512 << 10;
/// Bytes of the volume for each thread: together twice the pool.
const REGION_BYTES: u64 = 8 << 20;
const CAPACITY_BYTES: u64 = 32 << 20;

fn content(seed: u64) -> Vec<u8> {
    let mut data = vec![0; REQUEST_BYTES as usize];
    fill_content(&mut Rng::new(seed), ContentKind::Random, &mut data);
    data
}

/// Writes a region until the pool is full; returns the seeds of the acknowledged writes, in order.
fn fill(device: &dyn BlockDevice, region: u64, seed: u64, full: &AtomicBool) -> Vec<u64> {
    let mut acknowledged = Vec::new();
    for i in 0..REGION_BYTES / REQUEST_BYTES {
        let seed = seed + i;
        let written =
            device.write(region + i * REQUEST_BYTES, Bytes::from(content(seed)), WriteOptions { fua: i % 7 == 6 });
        match written {
            Ok(()) => acknowledged.push(seed),
            Err(e) if e.kind() == ErrorKind::Full => {
                full.store(true, Ordering::Relaxed);
                break;
            }
            Err(e) => panic!("HARNESS: write: {:?}: {e}", e.kind()),
        }
    }
    acknowledged
}

fn verify(pool: &Pool, acknowledged: &[Vec<u64>]) {
    let device = pool.volume("v").unwrap();
    let mut data = vec![0; REQUEST_BYTES as usize];
    for (thread, seeds) in acknowledged.iter().enumerate() {
        for (i, seed) in seeds.iter().enumerate() {
            device.read(thread as u64 * REGION_BYTES + i as u64 * REQUEST_BYTES, &mut data).unwrap();
            assert!(
                data == content(*seed),
                "HARNESS: request {i} of thread {thread} was acknowledged and is not there"
            );
        }
    }
}

fn run(seed: u64) {
    println!("threads fill a pool: seed {seed}");
    let mut machine = Machine::new(CAPACITY_BYTES, seed);
    let options =
        FormatOptions { capacity_bytes: CAPACITY_BYTES, extent_bytes: 256 << 10, properties: Default::default() };
    Pool::format(&env(&machine), &options).unwrap();
    let options = PoolOptions { memory_bytes: 24 << 20, checkpoint_log_bytes: 4 << 20, ..PoolOptions::default() };
    let pool = Pool::open(env(&machine), options.clone()).unwrap();
    pool.create_volume("v", THREADS * REGION_BYTES, &Default::default()).unwrap();
    let full = AtomicBool::new(false);
    let acknowledged: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (device, full) = (pool.volume("v").unwrap(), &full);
                scope.spawn(move || fill(device.as_ref(), thread * REGION_BYTES, (seed << 32) + (thread << 16), full))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(full.into_inner(), "HARNESS: a pool of {CAPACITY_BYTES} bytes took twice as many");
    pool.flush().unwrap_or_else(|e| panic!("HARNESS: what was acknowledged cannot be flushed: {:?}: {e}", e.kind()));
    verify(&pool, &acknowledged);
    // Its threads end, and do nothing more.
    machine.power.cut();
    let _ = pool.close();
    machine.power_cycle();
    let pool = Pool::open(env(&machine), options).unwrap();
    verify(&pool, &acknowledged);
    // Space comes back.
    pool.volume("v").unwrap().discard(0, THREADS * REGION_BYTES).unwrap();
    pool.checkpoint().unwrap();
    pool.checkpoint().unwrap();
    let status = pool.status();
    assert!(status.extents_free * 10 > status.extents_total * 8, "HARNESS: space has not come back: {status:?}");
    pool.close().unwrap();
}

#[test]
fn threads_fill_a_pool() {
    let runs = crate::common::campaign::variable("SHALE_RUNS").unwrap_or(1);
    match crate::common::campaign::variable("SHALE_SEED") {
        Some(seed) => run(seed),
        None => (0..4 * runs).for_each(run),
    }
}

/// Bytes of the overwritten volume: four fifths of the pool's usable bytes.
const OVERWRITTEN_BYTES: u64 = 48 << 20;

/// Many threads overwrite a pool that is nearly full, faster than it is cleaned: none ever finds it
/// full.
#[test]
fn threads_overwrite_a_full_pool() {
    let machine = Machine::new(OVERWRITTEN_BYTES * 5 / 4, 1);
    let env = env(&machine);
    let properties = [("compression".to_owned(), "off".to_owned()), ("unit".to_owned(), "4K".to_owned())].into();
    let options = FormatOptions { capacity_bytes: OVERWRITTEN_BYTES * 5 / 4, extent_bytes: 256 << 10, properties };
    Pool::format(&env, &options).unwrap();
    let options = PoolOptions { memory_bytes: 32 << 20, checkpoint_log_bytes: 32 << 20, ..PoolOptions::default() };
    let pool = Pool::open(env, options).unwrap();
    pool.create_volume("v", OVERWRITTEN_BYTES, &Default::default()).unwrap();
    let blocks = OVERWRITTEN_BYTES / 4096;
    std::thread::scope(|scope| {
        for thread in 0..4 * THREADS {
            let device = pool.volume("v").unwrap();
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                let block = Bytes::from(content(thread)).slice(..4096);
                // Once in order, so that all is live, then three times at random.
                let part = blocks / (4 * THREADS);
                for i in 0..4 * part {
                    let at = if i < part { thread * part + i } else { rng.below(blocks) };
                    let written = device.write(at * 4096, block.clone(), WriteOptions::default());
                    written.unwrap_or_else(|e| panic!("HARNESS: overwriting, write {i} of {}: {e}", 4 * part));
                }
            });
        }
    });
    pool.flush().unwrap();
    let status = pool.status();
    assert!(status.moved_bytes > status.fragment_bytes / 4, "HARNESS: hardly anything was cleaned: {status:?}");
    let report = pool.check(false, &mut |_, _| ()).unwrap();
    assert!(report.problems.is_empty(), "HARNESS: check: {:?}", report.problems);
}

/// Bytes that become free again in a full pool, the bytes that one writer puts there piece by
/// piece, and the bytes that others request without success at the same time.
const FREED_BYTES: u64 = 6 << 20;
const SMALL_BYTES: u64 = 1 << 20;
const LARGE_BYTES: usize = 16 << 20;

/// Requests that are too large for the rest of a pool are refused, in any number; small ones that
/// fit are not.
#[test]
fn large_requests_that_are_refused_refuse_no_small_one() {
    let machine = Machine::new(CAPACITY_BYTES, 1);
    let options =
        FormatOptions { capacity_bytes: CAPACITY_BYTES, extent_bytes: 256 << 10, properties: Default::default() };
    Pool::format(&env(&machine), &options).unwrap();
    let options = PoolOptions { memory_bytes: 24 << 20, checkpoint_log_bytes: 4 << 20, ..PoolOptions::default() };
    let pool = Pool::open(env(&machine), options).unwrap();
    pool.create_volume("v", 4 * CAPACITY_BYTES, &Default::default()).unwrap();
    let device = pool.volume("v").unwrap();
    let mut end = 0;
    while device.write(end, Bytes::from(content(end)), WriteOptions::default()).is_ok() {
        end += REQUEST_BYTES;
    }
    assert!((CAPACITY_BYTES / 2..CAPACITY_BYTES).contains(&end), "HARNESS: {end} bytes were taken");
    device.discard(0, FREED_BYTES).unwrap();
    pool.checkpoint().unwrap();
    pool.checkpoint().unwrap();
    let large = Bytes::from((0..LARGE_BYTES as u64 / REQUEST_BYTES).flat_map(content).collect::<Vec<_>>());
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 1..=3 {
            let (device, large, is_done) = (pool.volume("v").unwrap(), large.clone(), &is_done);
            scope.spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    let taken = device.write(thread * CAPACITY_BYTES, large.clone(), WriteOptions::default());
                    let error = taken.expect_err("HARNESS: a request larger than what is free was taken");
                    assert_eq!(error.kind(), ErrorKind::Full, "HARNESS: {error}");
                }
            });
        }
        let block = Bytes::from(content(1)).slice(..4096);
        let refused = (0..SMALL_BYTES)
            .step_by(4096)
            .map(|at| device.write(at, block.clone(), WriteOptions { fua: at % (64 << 10) == 0 }))
            .find_map(|written| written.err());
        is_done.store(true, Ordering::Relaxed);
        assert!(refused.is_none(), "HARNESS: refused with {FREED_BYTES} bytes free: {refused:?}");
    });
    pool.close().unwrap();
}

/// New data among threads that constantly overwrite a pool nine tenths full gets its turn: it
/// waited for room while those others took all gained space, for as long as they ran.
#[test]
fn new_data_gets_its_turn_among_overwriters() {
    const EXTENTS: u64 = 1024;
    const EXTENT: u64 = 128 << 10;
    const NEW: u64 = 32;
    let machine = Machine::new(EXTENTS * EXTENT, 1);
    let env = env(&machine);
    let properties = [("compression".to_owned(), "off".to_owned()), ("unit".to_owned(), "4K".to_owned())].into();
    let options = FormatOptions { capacity_bytes: EXTENTS * EXTENT, extent_bytes: EXTENT as u32, properties };
    Pool::format(&env, &options).unwrap();
    let options = PoolOptions { memory_bytes: 32 << 20, checkpoint_log_bytes: 32 << 20, ..PoolOptions::default() };
    let pool = Pool::open(env, options).unwrap();
    let blocks = EXTENTS * EXTENT / 4096 * 9 / 10 / 32 * 32;
    pool.create_volume("v", (blocks + NEW) * 4096, &Default::default()).unwrap();
    let device = pool.volume("v").unwrap();
    let write = |at: u64, block: &Bytes| {
        device
            .write(at * 4096, block.clone(), WriteOptions::default())
            .unwrap_or_else(|e| panic!("HARNESS: write: {e}"));
    };
    let block = Bytes::from(content(1)).slice(..4096);
    (0..blocks).for_each(|at| write(at, &block));
    pool.checkpoint().unwrap();
    let (overwritten, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut longest = 0;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (overwritten, is_done, write, block) = (&overwritten, &is_done, &write, &block);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                while !is_done.load(Ordering::Relaxed) && overwritten.fetch_add(1, Ordering::Relaxed) < 6 * blocks {
                    write(rng.below(blocks), block);
                }
            });
        }
        // Where all that is free has been used up for the first time.
        until("all free space was used", || overwritten.load(Ordering::Relaxed) >= blocks / 12);
        for at in 0..NEW {
            let before = overwritten.load(Ordering::Relaxed);
            write(blocks + at, &block);
            longest = longest.max(overwritten.load(Ordering::Relaxed) - before);
        }
        is_done.store(true, Ordering::Relaxed);
    });
    println!("new data waited for {longest} overwrites of {blocks} blocks");
    assert!(longest < 2 * blocks, "HARNESS: new data waited for {longest} overwrites of {blocks} blocks");
    let report = pool.check(false, &mut |_, _| ()).unwrap();
    assert!(report.problems.is_empty(), "HARNESS: check: {:?}", report.problems);
}
