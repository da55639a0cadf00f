//! A file system below the data that has less room than the pool: what was acknowledged can be flushed, space can be given back, and what was
//! given back can be written again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/machine_env.rs"]
mod machine_env;

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions, Properties};
use machine_env::env;
use sim::{ContentKind, Machine, Rng, fill_content};
use surface::{BlockDevice, ErrorKind, WriteOptions};

const EXTENT: u64 = 128 << 10;
const CAPACITY: u64 = 512 * EXTENT;
/// What the file system has for it.
const ROOM: u64 = 100 * EXTENT;
const REQUEST: u64 = 32 << 10;

fn open(machine: &Machine) -> Pool {
    let options =
        PoolOptions { memory_bytes: 8 << 20, workers: 0, checkpoint_log_bytes: 64 << 20, ..PoolOptions::default() };
    Pool::open(env(machine), options).unwrap()
}

fn pool(machine: &Machine) -> Pool {
    let format = FormatOptions { capacity_bytes: CAPACITY, extent_bytes: EXTENT as u32, properties: Properties::new() };
    Pool::format(&env(machine), &format).unwrap();
    machine.disk.limit_space(Some(ROOM));
    open(machine)
}

/// Writes until it is refused, and flushes; bytes taken.
fn fill(pool: &Pool, name: &str, seed: u64) -> u64 {
    let volume = pool.volume(name).unwrap();
    let mut data = vec![0; REQUEST as usize];
    for offset in (0..CAPACITY).step_by(REQUEST as usize) {
        fill_content(&mut Rng::new(seed + offset), ContentKind::Random, &mut data);
        if let Err(error) = volume.write(offset, Bytes::from(data.clone()), WriteOptions::default()) {
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            volume.flush().expect("what was acknowledged finds its place");
            return offset;
        }
    }
    panic!("more was taken than there is room for");
}

fn assert_content(pool: &Pool, name: &str, seed: u64, from: u64, to: u64) {
    let volume = pool.volume(name).unwrap();
    let (mut data, mut read) = (vec![0; REQUEST as usize], vec![0; REQUEST as usize]);
    for offset in (from..to).step_by(REQUEST as usize) {
        fill_content(&mut Rng::new(seed + offset), ContentKind::Random, &mut data);
        volume.read(offset, &mut read).unwrap();
        assert!(read == data, "byte {offset} of {name}");
    }
}

/// Nothing could be discarded, and what was destroyed did not come back, not even after a restart: the log's list was as long as the
/// pool, and began with extents without space.
#[test]
fn a_full_file_system_below_is_no_dead_end() {
    for restart in [false, true] {
        let machine = Machine::new(CAPACITY, 1);
        let mut pool = pool(&machine);
        for round in 0..12 {
            let seed = round << 32;
            pool.create_volume("v", CAPACITY, &Properties::new()).unwrap();
            let taken = fill(&pool, "v", seed);
            assert!(taken > ROOM / 2, "round {round}: {taken} of {ROOM}");
            assert!(pool.status().free_bytes < ROOM / 4, "{:?}", pool.status());
            assert_content(&pool, "v", seed, 0, taken);
            let volume = pool.volume("v").unwrap();
            // A small discard, a large one, and writes to what they have won.
            volume.discard(0, 1 << 20).unwrap();
            volume.discard(1 << 20, taken / 2 - (1 << 20)).unwrap();
            volume.flush().unwrap();
            pool.checkpoint().unwrap();
            drop(volume);
            if restart {
                pool.close().unwrap();
                pool = open(&machine);
            }
            pool.create_volume("w", CAPACITY, &Properties::new()).unwrap();
            let more = fill(&pool, "w", seed + 7);
            assert!(more > taken / 4, "round {round}: {more} after {taken}");
            assert_content(&pool, "v", seed, taken / 2 / REQUEST * REQUEST + REQUEST, taken);
            assert_content(&pool, "w", seed + 7, 0, more);
            pool.destroy("v", true).unwrap();
            pool.destroy("w", true).unwrap();
            pool.checkpoint().unwrap();
            pool.checkpoint().unwrap();
            let occupied = ::env::Disk::occupied_bytes(&*machine.disk.handle()).unwrap();
            assert!(occupied < ROOM / 2, "round {round}: {occupied} bytes are occupied by an empty pool");
        }
        assert_eq!(pool.check(false, &mut |_, _| ()).unwrap().problems, []);
        pool.close().unwrap();
    }
}
