//! A disk that lies: a pool with volumes, snapshots, a clone and freed extents, some of whose bytes are changed. The batches' headers are put
//! right first (with the first byte even), because otherwise hardly any change would get past their checksums. Opening, reading, checking,
//! repairing and salvaging it may fail or find less; they may not crash, and a pool that was salvaged into has nothing to complain about.
//!
//! Input: byte 0 is what was said; then changes, each of them a place (3 bytes), a length (1 byte), and that many bytes.
#![cfg_attr(not(test), no_main)]

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolEnv, PoolOptions};
use libfuzzer_sys::fuzz_target;
use sim::{Machine, Rng};
use surface::{BlockDevice, WriteOptions};

const EXTENT_BYTES: u32 = 32 << 10;
const DISK_BYTES: u64 = 1 << 20;
const BATCH_ALIGN: usize = format::BATCH_ALIGN;
const BATCH_FIXED_BYTES: usize = format::BATCH_FIXED_BYTES;

fn env(machine: &Machine) -> PoolEnv {
    PoolEnv {
        standby: None,
        origins: None,
        disk: machine.disk.handle(),
        store: machine.store.handle(),
        clock: Arc::clone(&machine.clock) as _,
        entropy: Arc::clone(&machine.entropy) as _,
    }
}

fn options() -> PoolOptions {
    PoolOptions { memory_bytes: 1 << 20, workers: 0, checkpoint_log_bytes: 128 << 10, ..PoolOptions::default() }
}

/// A pool after some work, as its machine was left.
fn base() -> &'static Machine {
    static BASE: OnceLock<Machine> = OnceLock::new();
    BASE.get_or_init(|| {
        let machine = Machine::new(DISK_BYTES, 7);
        let format =
            FormatOptions { capacity_bytes: DISK_BYTES, extent_bytes: EXTENT_BYTES, properties: Default::default() };
        Pool::format(&env(&machine), &format).unwrap();
        let pool = Pool::open(env(&machine), options()).unwrap();
        let mut rng = Rng::new(7);
        for name in ["a", "b"] {
            pool.create_volume(name, 400 << 10, &Default::default()).unwrap();
        }
        for round in 0..6u64 {
            for name in ["a", "b"] {
                let device = pool.volume(name).unwrap();
                for _ in 0..8 {
                    let block = rng.below(100);
                    let text = format!("{name} {round} {block} {}", rng.below(1 << 40)).repeat(400);
                    device
                        .write(block * 4096, Bytes::from(text.into_bytes()[..4096].to_vec()), WriteOptions::default())
                        .unwrap();
                }
                device.discard(rng.below(90) * 4096, 5 * 4096).unwrap();
                device.flush().unwrap();
            }
            if round == 2 {
                pool.snapshot("a", "s").unwrap();
                pool.clone_snapshot("a@s", "c", &Default::default()).unwrap();
            }
        }
        pool.checkpoint().unwrap();
        drop(pool);
        machine
    })
}

/// Makes the header checksum of whatever begins like a batch right.
fn mend(disk: &mut [u8]) {
    for at in (0..disk.len()).step_by(BATCH_ALIGN) {
        if disk[at..].starts_with(b"SHBT") {
            let rest = &mut disk[at..];
            let header = u32::from_le_bytes([rest[8], rest[9], rest[10], rest[11]]) as usize;
            if (BATCH_FIXED_BYTES..=rest.len()).contains(&header) {
                let crc = crc32c::crc32c(&rest[8..header]);
                rest[4..8].copy_from_slice(&crc.to_le_bytes());
            }
        }
    }
}

/// Reads all volumes and snapshots; errors are answers.
fn read_all(pool: &Pool) {
    let mut names: Vec<_> = pool.volumes().into_iter().map(|volume| volume.name).collect();
    names.extend(pool.snapshots(None).unwrap_or_default().into_iter().map(|s| format!("{}@{}", s.volume, s.name)));
    let mut buf = vec![0; 64 << 10];
    for name in names {
        let Ok(device) = pool.volume(&name) else { continue };
        let size = device.size_bytes().min(1 << 20);
        for at in (0..size).step_by(buf.len()) {
            let length = usize::try_from(size - at).unwrap_or(buf.len()).min(buf.len());
            let _ = device.read(at, &mut buf[..length]);
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((how, mut changes)) = input.split_first() else { return };
    let mut disk = vec![0; DISK_BYTES as usize];
    let machine = base().duplicate(1);
    machine.disk.peek(0, &mut disk);
    while let Some((head, rest)) = changes.split_first_chunk::<4>() {
        let at = u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize % disk.len();
        let (bytes, rest) = rest.split_at(usize::from(head[3]).min(rest.len()));
        let room = bytes.len().min(disk.len() - at);
        disk[at..at + room].copy_from_slice(&bytes[..room]);
        changes = rest;
    }
    if how % 2 == 0 {
        mend(&mut disk);
    }
    machine.disk.poke(0, &disk);

    let salvaged = Machine::new(4 << 20, 2);
    let format = FormatOptions { capacity_bytes: 4 << 20, extent_bytes: 64 << 10, properties: Default::default() };
    Pool::format(&env(&salvaged), &format).unwrap();
    let into = Pool::open(env(&salvaged), options()).unwrap();
    let temporary = Machine::new(4096, 3);
    let old = PoolEnv { disk: machine.disk.handle(), ..env(&temporary) };
    let _ = into.salvage(&old, &options(), &mut |_, done, total| {
        assert!(done <= total);
        Ok(())
    });
    read_all(&into);
    let report = into.check(false, &mut |_, _| ()).expect("a pool that was salvaged into can be checked");
    assert!(report.problems.is_empty(), "{:?}", report.problems);

    for repair in [false, true] {
        let machine = machine.duplicate(4);
        if let Ok(pool) = Pool::open(env(&machine), PoolOptions { repair, ..options() }) {
            read_all(&pool);
            let _ = pool.check(repair, &mut |_, _| ());
            let _ = pool.close();
        }
    }
});
