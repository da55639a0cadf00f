//! The last room of a pool: large new data is refused first, little new data later, the next
//! entries of a log later still, and overwriting not at all. So a file system above that has no
//! room for files has some for the deletion of files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions};
use sim::{ContentKind, Machine, Rng, fill_content};
use surface::{BlockDevice, ErrorKind, WriteOptions};

use crate::common::machine_env::env;

const EXTENT: u64 = 128 << 10;
/// Of so many extents, overwriting has a share of 18.
const POOL: u64 = 512 * EXTENT;
const LARGE: u64 = 1 << 20;
const LITTLE: u64 = 64 << 10;
const BLOCK: u64 = 4096;
/// Where the log and the little writes are.
const LOG: u64 = 150 << 20;
const FAR: u64 = 160 << 20;

struct Writer {
    volume: std::sync::Arc<engine::Volume>,
    rng: Rng,
}

impl Writer {
    /// Writes incompressible data; returns whether there was room.
    fn write(&mut self, offset: u64, len: u64) -> bool {
        let mut data = vec![0; len as usize];
        fill_content(&mut self.rng, ContentKind::Random, &mut data);
        match self.volume.write(offset, Bytes::from(data), WriteOptions::default()) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::Full => false,
            Err(error) => panic!("a write at {offset}: {error}"),
        }
    }

    /// Writes one after the other until there is no room; returns how many.
    fn until_full(&mut self, offset: u64, len: u64, flushes: bool) -> u64 {
        for count in 0..4096 {
            if !self.write(offset + count * len, len) {
                return count;
            }
            if flushes {
                self.volume.flush().unwrap();
            }
        }
        panic!("the pool was never full");
    }
}

#[test]
fn little_writes_find_room_where_large_ones_find_none() {
    for when in ["error", "wait:1"] {
        let machine = Machine::new(POOL, 11);
        let properties = [("compression", "off"), ("when-full", when)];
        let properties = properties.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let format = FormatOptions { capacity_bytes: POOL, extent_bytes: EXTENT as u32, properties };
        Pool::format(&env(&machine), &format).unwrap();
        let options = PoolOptions { memory_bytes: 4 << 20, workers: 0, ..PoolOptions::default() };
        let pool = Pool::open(env(&machine), options).unwrap();
        pool.create_volume("v", 256 << 20, &Default::default()).unwrap();
        let mut writer = Writer { volume: pool.volume("v").unwrap(), rng: Rng::new(5) };
        // A log that has begun: its last write came before a flush.
        assert!(writer.write(LOG, BLOCK));
        writer.volume.flush().unwrap();

        let large = writer.until_full(0, LARGE, false);
        assert!((40..64).contains(&large), "{large} MiB of 64 were taken");
        writer.volume.flush().unwrap();

        let little = writer.until_full(FAR, LITTLE, false);
        let half = 9 * EXTENT / LITTLE;
        // Data on its way counts in full, so that fewer get in than would fit.
        assert!((4..=2 * half).contains(&little), "{little} little writes, {half} at most have a claim");
        assert!(!writer.write(LARGE * large, LARGE), "little writes make no room for large ones");

        let log = writer.until_full(LOG + BLOCK, BLOCK, true);
        assert!(log >= 16, "{log} entries of the log");
        assert!(!writer.write(FAR + LITTLE * little, LITTLE), "a little write after the log's");
        assert!(!writer.write(FAR + (32 << 20), BLOCK), "one block that is no log's");

        // Repeatedly: each leaves as much dead.
        for round in 0..64 {
            assert!(writer.write(round % 8 * LARGE, LITTLE), "overwriting {round}");
            assert!(writer.write(LOG + round % log * BLOCK, BLOCK), "a log that begins anew, {round}");
            writer.volume.flush().unwrap();
        }
        assert_eq!(pool.status().available_bytes, 0, "{when}: new data has no room");

        // Deleted data is freed, and new data is accepted again.
        writer.volume.discard(0, 16 * LARGE).unwrap();
        assert!(writer.until_full(0, LARGE, false) >= 12);
        let report = pool.check(false, &mut |_, _| ()).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        drop(writer);
        pool.close().unwrap();
    }
}
