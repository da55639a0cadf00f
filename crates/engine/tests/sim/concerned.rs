//! Damage is reported under the name of each volume that sees it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::lz4_pool::Lz4Pool;
use bytes::Bytes;
use engine::Properties;
use sim::ContentKind;
use surface::{BlockDevice, WriteOptions};

const CAPACITY: u64 = 64 << 20;
const BYTES: usize = 1 << 20;

/// Flips a bit of a block that is stored raw, at any location.
fn damage(made: &Lz4Pool, block: &[u8]) {
    let mut disk = vec![0; CAPACITY as usize];
    made.machine.disk.peek(0, &mut disk);
    let at = disk.windows(64).position(|bytes| bytes == &block[..64]).unwrap();
    made.machine.disk.flip_bit(at as u64, 3);
    made.pool().drop_caches();
}

type Named = Vec<(String, u64)>;

/// Results of scrub, check and its count by volume: of fragments, name and offset; and the first
/// one's detail.
fn reported(made: &Lz4Pool) -> (Named, Named, String) {
    let scrubbed = made.pool().scrub(u64::MAX, true).unwrap();
    let checked = made.pool().check(false, &mut |_, _| ()).unwrap();
    let place = |p: &engine::Problem| (p.volume.clone().unwrap(), p.offset.unwrap());
    let found: Vec<_> = checked.problems.iter().map(place).collect();
    assert_eq!(found, scrubbed.damages.iter().map(place).collect::<Vec<_>>());
    (found, checked.volumes.into_iter().collect(), checked.problems[0].detail.clone())
}

#[test]
fn damage_that_only_a_snapshot_sees_is_not_said_to_be_the_volumes() {
    let mut made = Lz4Pool::new(CAPACITY);
    let data = made.fill("o", ContentKind::Random, BYTES);
    made.check();
    made.pool().snapshot("o", "1").unwrap();
    made.pool().snapshot("o", "2").unwrap();
    let at = 7 * 4096;
    damage(&made, &data[at..at + 4096]);
    let (found, volumes, detail) = reported(&made);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, "o");
    let name = |name: &str| (name.to_owned(), 1);
    assert_eq!(volumes, [name("o"), name("o@1"), name("o@2")]);
    assert!(detail.ends_with("; also affects o@2, o@1"), "{detail}");
    // The volume has its own now; of the rest of the unit it still sees nothing that is whole.
    let volume = made.pool().volume("o").unwrap();
    volume.write(0, Bytes::from(vec![5; BYTES / 2]), WriteOptions::default()).unwrap();
    made.pool().checkpoint().unwrap();
    let (found, volumes, _) = reported(&made);
    assert_eq!((found[0].0.as_str(), volumes), ("o@2", vec![name("o@1"), name("o@2")]));
    made.pool().destroy("o@2", false).unwrap();
    made.pool().clone_snapshot("o@1", "c", &Properties::new()).unwrap();
    let (found, volumes, detail) = reported(&made);
    assert_eq!((found[0].0.as_str(), volumes), ("o@1", vec![name("c"), name("o@1")]));
    assert!(detail.ends_with("; also affects c"), "{detail}");
    drop(volume);
    made.pool().destroy("o", true).unwrap();
    let (found, volumes, detail) = reported(&made);
    assert_eq!((found[0].0.as_str(), volumes), ("c", vec![name("c")]));
    assert!(!detail.contains("also affects"), "{detail}");
    assert!(found[0].1 <= at as u64);
    let after = found[0].1 as usize + (32 << 10);
    made.pool().drop_caches();
    let mut rest = vec![0; BYTES - after];
    made.pool().volume("c").unwrap().read(after as u64, &mut rest).unwrap();
    assert!(rest == data[after..], "the rest of the clone");
    made.pool.take().unwrap().close().unwrap();
}
