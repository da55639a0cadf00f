//! The figures of `status` between two checkpoints, compared with the count of the next one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::machine_env::env;
use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions, Properties};
use sim::{ContentKind, Machine, Rng, fill_content};
use surface::{BlockDevice, DeviceSet, WriteOptions};

const REQUEST_BYTES: u64 = 64 << 10;
const VOLUME_BYTES: u64 = 16 << 20;

struct Figures {
    pool: Pool,
    machine: Machine,
}

impl Figures {
    /// A pool that takes no checkpoint by itself.
    fn new() -> Self {
        let machine = Machine::new(64 << 20, 1);
        let format = FormatOptions { capacity_bytes: 64 << 20, extent_bytes: 256 << 10, properties: Properties::new() };
        Pool::format(&env(&machine), &format).unwrap();
        let options =
            PoolOptions { memory_bytes: 16 << 20, workers: 0, checkpoint_log_bytes: 1 << 30, ..PoolOptions::default() };
        let pool = Pool::open(env(&machine), options).unwrap();
        pool.create_volume("v", VOLUME_BYTES, &Properties::new()).unwrap();
        pool.checkpoint().unwrap();
        Self { pool, machine }
    }

    fn write(&self, from: u64, to: u64, kind: ContentKind) {
        for offset in (from..to).step_by(REQUEST_BYTES as usize) {
            let mut data = vec![0; REQUEST_BYTES as usize];
            fill_content(&mut Rng::new(offset + kind as u64), kind, &mut data);
            self.pool.volume("v").unwrap().write(offset, Bytes::from(data), WriteOptions::default()).unwrap();
        }
    }

    /// Stored bytes of the volume and live bytes of the pool, as they are said to be and as a
    /// checkpoint then counts them.
    fn said_and_counted(&self) -> [(u64, u64); 2] {
        self.pool.flush().unwrap();
        let taken = self.pool.status().checkpoints + self.pool.status().light_checkpoints;
        let said = (self.pool.volumes()[0].stored_bytes, self.pool.status().live_bytes);
        self.pool.checkpoint().unwrap();
        assert_eq!(
            self.pool.status().checkpoints + self.pool.status().light_checkpoints,
            taken + 1,
            "HARNESS: none was taken before"
        );
        let counted = (self.pool.volumes()[0].stored_bytes, self.pool.status().live_bytes);
        [(said.0, counted.0), (said.1, counted.1)]
    }
}

/// A volume that was just written had no blocks in use, and `tar -S` kept nothing of it.
#[test]
fn what_is_dirty_is_allocated() {
    let figures = Figures::new();
    let allocated = || figures.pool.volume("v").unwrap().allocated_bytes();
    let volume = figures.pool.volume("v").unwrap();
    volume.write(0, Bytes::from(vec![0; 4096]), WriteOptions::default()).unwrap();
    assert_eq!(allocated(), 0, "zeroes are a hole");
    volume.write(8192, Bytes::from(vec![1; 4096]), WriteOptions::default()).unwrap();
    assert_eq!(allocated(), 4096);
    assert_eq!(figures.pool.list().unwrap()[0].allocated_bytes, 4096);
    volume.write(8192, Bytes::from(vec![2; 8192]), WriteOptions::default()).unwrap();
    assert_eq!(allocated(), 8192);
    figures.pool.flush().unwrap();
    assert_eq!(allocated(), 8192);
    volume.write(8192, Bytes::from(vec![3; 8192]), WriteOptions::default()).unwrap();
    assert_eq!(allocated(), 8192, "an overwrite takes no more");
    volume.discard(8192, 8192).unwrap();
    figures.pool.checkpoint().unwrap();
    assert_eq!(allocated(), 0);
}

#[test]
fn what_was_written_since_the_last_checkpoint_is_stored() {
    let figures = Figures::new();
    figures.write(0, VOLUME_BYTES / 2, ContentKind::Text);
    let counted = figures.said_and_counted();
    assert!(counted[0].1 > VOLUME_BYTES / 16, "{counted:?}");
    for (said, counted) in counted {
        assert_eq!(said, counted, "new data is known exactly");
    }
    // New data over itself is known exactly, too.
    figures.write(VOLUME_BYTES / 2, VOLUME_BYTES, ContentKind::Random);
    figures.write(VOLUME_BYTES / 2, VOLUME_BYTES, ContentKind::Text);
    for (said, counted) in figures.said_and_counted() {
        assert_eq!(said, counted);
    }
    // Data that a checkpoint has counted and memory does not know is assumed to be new, but a
    // volume holds no more than its size.
    figures.write(0, VOLUME_BYTES, ContentKind::Text);
    for (said, counted) in figures.said_and_counted() {
        assert!(said.abs_diff(counted) < counted / 20, "said {said}, counted {counted}");
    }
}

#[test]
fn what_was_discarded_since_the_last_checkpoint_is_not_stored() {
    let figures = Figures::new();
    figures.write(0, VOLUME_BYTES, ContentKind::Text);
    figures.pool.checkpoint().unwrap();
    figures.pool.volume("v").unwrap().discard(VOLUME_BYTES / 4, VOLUME_BYTES * 5 / 8).unwrap();
    for (said, counted) in figures.said_and_counted() {
        assert!(said.abs_diff(counted) < counted / 20, "said {said}, counted {counted}");
    }
    figures.pool.volume("v").unwrap().discard(0, VOLUME_BYTES).unwrap();
    figures.pool.flush().unwrap();
    let stored = figures.pool.volumes()[0].stored_bytes;
    assert!(stored < VOLUME_BYTES / 1000, "all was discarded, and {stored} bytes are said to be stored");
}

#[test]
fn a_pool_that_rests_takes_a_checkpoint_by_itself() {
    let figures = Figures::new();
    figures.write(0, VOLUME_BYTES, ContentKind::Random);
    figures.pool.flush().unwrap();
    let taken = || figures.pool.status().checkpoints + figures.pool.status().light_checkpoints;
    let before = taken();
    for second in 0..30 {
        assert!(second > 5 || taken() == before, "not while data may still come");
        figures.machine.clock.advance_ms(1000);
        figures.pool.tick().unwrap();
    }
    assert_eq!(taken(), before + 1, "one, and no more while nothing comes");
}

/// After a large discard nothing was stored, and there was no room: the one as of now, the other as
/// of the last checkpoint.
#[test]
fn what_comes_back_with_the_next_checkpoint_is_told() {
    let figures = Figures::new();
    figures.write(0, VOLUME_BYTES, ContentKind::Random);
    figures.pool.checkpoint().unwrap();
    let before = figures.pool.status();
    assert_eq!(before.returning_bytes, 0);
    figures.pool.volume("v").unwrap().discard(0, VOLUME_BYTES).unwrap();
    figures.pool.flush().unwrap();
    let between = figures.pool.status();
    assert_eq!(between.live_bytes + between.returning_bytes, before.live_bytes);
    assert!(between.returning_bytes > VOLUME_BYTES / 2 && between.available_bytes <= before.available_bytes);
    figures.pool.checkpoint().unwrap();
    let after = figures.pool.status();
    assert_eq!(after.returning_bytes, 0);
    assert!(after.available_bytes > before.available_bytes + VOLUME_BYTES / 2, "{after:?}");
}
