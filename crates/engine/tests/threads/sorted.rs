//! A volume is sorted over and over while others write to it and punch holes of every size, whole
//! megabytes past the write buffer among them: each sees its last change, never older data.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions};
use sim::{ContentKind, Machine, Rng, fill_content};
use surface::{BlockDevice, WriteOptions};

use crate::common::machine_env::env;

const CAPACITY_BYTES: u64 = 96 << 20;
/// Bytes of the volume for each thread: more than a discard that goes through the write buffer.
const REGION_BYTES: u64 = 12 << 20;
const THREADS: u64 = 2;
const ROUNDS: u64 = 12;
const BLOCK: u64 = 4096;

/// Writes scattered blocks, punches a part of them, and looks at all, round after round.
fn write(device: &dyn BlockDevice, region: u64, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut model = vec![0u8; REGION_BYTES as usize];
    let mut seen = model.clone();
    for round in 0..ROUNDS {
        for _ in 0..200 {
            let at = rng.below(REGION_BYTES / BLOCK) * BLOCK;
            let mut block = vec![0; BLOCK as usize];
            fill_content(&mut rng, ContentKind::Text, &mut block);
            device.write(region + at, Bytes::from(block.clone()), WriteOptions::default()).unwrap();
            model[at as usize..][..block.len()].copy_from_slice(&block);
        }
        if round % 2 == 0 {
            device.flush().unwrap();
        }
        // Every second time more than goes through the write buffer.
        let len = if round % 2 == 0 { (9 << 20) + rng.below(512) * BLOCK } else { (1 + rng.below(64)) * BLOCK };
        let at = rng.below((REGION_BYTES - len) / BLOCK) * BLOCK;
        device.discard(region + at, len).unwrap();
        model[at as usize..][..len as usize].fill(0);
        device.read(region, &mut seen).unwrap();
        let wrong = seen.chunks(BLOCK as usize).zip(model.chunks(BLOCK as usize)).position(|(a, b)| a != b);
        assert_eq!(
            wrong, None,
            "HARNESS: round {round} of seed {seed}: a block is not what was written or punched last"
        );
    }
}

#[test]
fn threads_write_and_punch_what_is_sorted() {
    let machine = Machine::new(CAPACITY_BYTES, 3);
    let options =
        FormatOptions { capacity_bytes: CAPACITY_BYTES, extent_bytes: 256 << 10, properties: Default::default() };
    Pool::format(&env(&machine), &options).unwrap();
    let options = PoolOptions { memory_bytes: 16 << 20, checkpoint_log_bytes: 8 << 20, ..PoolOptions::default() };
    let pool = Pool::open(env(&machine), options).unwrap();
    pool.create_volume("v", THREADS * REGION_BYTES, &Default::default()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sorter = scope.spawn(|| {
            let mut rewritten = 0;
            while !done.load(Ordering::Acquire) {
                let report = pool.sort(REGION_BYTES, false).unwrap();
                if report.is_finished {
                    rewritten += report.rewritten_bytes;
                    pool.sort(1, true).unwrap();
                }
            }
            rewritten + pool.sort(0, false).unwrap().rewritten_bytes
        });
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let device = pool.volume("v").unwrap();
                scope.spawn(move || write(device.as_ref(), thread * REGION_BYTES, 77 + thread))
            })
            .collect();
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join().is_ok()).collect();
        done.store(true, Ordering::Release);
        let rewritten = sorter.join().unwrap();
        println!("{rewritten} bytes were sorted meanwhile");
        assert!(ended.into_iter().all(|ended| ended), "HARNESS: a writer saw what it should not");
    });
    let report = pool.check(false, &mut |_, _| ()).unwrap();
    assert!(report.problems.is_empty(), "HARNESS: {:?}", report.problems);
    pool.close().unwrap();
}
