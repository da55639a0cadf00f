//! The part of a block that was cut off a volume is invisible when the volume grows: immediately,
//! after a power failure, and in a clone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions, Properties};
use sim::{Machine, Rng};
use surface::{BlockDevice, WriteOptions};

use crate::common::machine_env::env;

const POOL: u64 = 16 << 20;
const BLOCK: u64 = 4096;

fn open(machine: &Machine) -> Pool {
    let options = PoolOptions { memory_bytes: 1 << 20, workers: 0, ..PoolOptions::default() };
    Pool::open(env(machine), options).unwrap()
}

/// Returns the first byte of a volume that is neither as written before the cut nor zero after it.
fn wrong(pool: &Pool, name: &str, cut: u64) -> Option<u64> {
    let device = pool.volume(name).unwrap();
    let mut bytes = vec![0xee; device.size_bytes() as usize];
    device.read(0, &mut bytes).unwrap();
    (0..).zip(bytes).find(|(at, byte)| *byte != if *at < cut { 0xab } else { 0 }).map(|(at, _)| at)
}

#[test]
fn nothing_of_what_was_cut_off_shows_when_a_volume_grows() {
    let mut rng = Rng::new(7);
    for round in 0..40 {
        let mut machine = Machine::new(POOL, round);
        let format = FormatOptions { capacity_bytes: POOL, extent_bytes: 256 << 10, properties: Properties::new() };
        Pool::format(&env(&machine), &format).unwrap();
        let pool = open(&machine);
        let size = rng.between(2, 20) * BLOCK;
        pool.create_volume("v", size, &Properties::new()).unwrap();
        let volume = pool.volume("v").unwrap();
        volume.write(0, Bytes::from(vec![0xab; size as usize]), WriteOptions::default()).unwrap();
        if rng.coin() {
            pool.flush().unwrap();
        }
        let cut = rng.between(1, size - 1);
        pool.resize_volume("v", cut).unwrap();
        pool.snapshot("v", "s").unwrap();
        pool.clone_snapshot("v@s", "c", &Properties::new()).unwrap();
        // To the end of the block that was cut, or further.
        let grown = (cut.next_multiple_of(BLOCK) + rng.below(3) * BLOCK).max(cut + 1);
        for name in ["v", "c"] {
            pool.resize_volume(name, grown).unwrap();
            let found = wrong(&pool, name, cut);
            assert!(found.is_none(), "HARNESS: '{name}', cut to {cut} and grown to {grown}, is wrong at {found:?}");
        }
        drop((volume, pool));
        machine.power_cycle();
        let pool = open(&machine);
        for name in ["v", "c"] {
            let found = wrong(&pool, name, cut);
            assert!(found.is_none(), "HARNESS: '{name}', cut to {cut}, is wrong at {found:?} after the power failed");
        }
        pool.close().unwrap();
    }
}
