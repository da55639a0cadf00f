//! Snapshots of everything in a folder while its volumes are written: they are of one moment.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions, Properties};
use sim::Machine;
use surface::{BlockDevice, WriteOptions};
use testkit::until;

use crate::common::machine_env::env;

const BLOCK: u64 = 4096;
const SNAPSHOTS: usize = 40;
const VOLUMES: usize = 6;

fn stamp(device: &impl BlockDevice) -> u64 {
    let mut found = [0; 8];
    device.read(0, &mut found).unwrap();
    u64::from_le_bytes(found)
}

/// Ends the writer, also when an assertion fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A writer writes a number to the first volume, and when that was acknowledged to the second one,
/// and so on. So at each moment a volume is at most as far as the one before it, and at most one
/// step late.
#[test]
fn snapshots_of_a_folder_are_of_one_moment() {
    let machine = Machine::new(64 << 20, 1);
    let format = FormatOptions { capacity_bytes: 64 << 20, extent_bytes: 256 << 10, properties: Properties::new() };
    Pool::format(&env(&machine), &format).unwrap();
    let options = PoolOptions { memory_bytes: 8 << 20, workers: 2, ..PoolOptions::default() };
    let pool = Pool::open(env(&machine), options).unwrap();
    pool.create_folder("f", &Properties::new()).unwrap();
    pool.create_folder("f/inner", &Properties::new()).unwrap();
    // In an order that is neither that of names nor that of numbers.
    let name = |index: usize| match index % 2 {
        0 => format!("f/v{}", VOLUMES - index),
        _ => format!("f/inner/v{index}"),
    };
    for index in (0..VOLUMES).rev() {
        pool.create_volume(&name(index), 1 << 20, &Properties::new()).unwrap();
    }
    let volumes: Vec<_> = (0..VOLUMES).map(|index| pool.volume(&name(index)).unwrap()).collect();
    let is_over = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let _end = End(&is_over);
        let writer = scope.spawn(|| {
            for number in 1_u64.. {
                for volume in &volumes {
                    let mut block = vec![0; BLOCK as usize];
                    block[..8].copy_from_slice(&number.to_le_bytes());
                    volume.write(0, Bytes::from(block), WriteOptions::default()).unwrap();
                }
                rounds.store(number, Ordering::Relaxed);
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut moved = 0;
        let mut last = 0;
        for n in 0..SNAPSHOTS {
            let snapshot = format!("s{n}");
            // Between two snapshots the writer goes on.
            let before = rounds.load(Ordering::Relaxed);
            until("the writer has come on", || rounds.load(Ordering::Relaxed) > before || writer.is_finished());
            assert_eq!(pool.snapshot_folder("f", &snapshot).unwrap().len(), VOLUMES);
            let held = |index: usize| stamp(&*pool.volume(&format!("{}@{snapshot}", name(index))).unwrap());
            let held: Vec<_> = (0..VOLUMES).map(held).collect();
            let is_one_moment = held.windows(2).all(|pair| pair[0] >= pair[1]) && held[0] - held[VOLUMES - 1] <= 1;
            assert!(is_one_moment, "HARNESS: snapshot {n} of several moments: {held:?}");
            moved += u64::from(held[0] != last);
            last = held[0];
        }
        assert!(moved > 1, "the writer stood still");
    });
    pool.close().unwrap();
}
