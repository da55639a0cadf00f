//! The cost of cleaning a full log, on a simulated machine without threads, so that each figure is
//! the same in every run: bytes of log per byte that users write, compared with the theoretical
//! optimum for a log with that much free space.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::machine_env::env;
use bytes::Bytes;
use engine::{FormatOptions, Pool, PoolOptions, Properties};
use sim::{ContentKind, Machine, Rng, fill_content};
use surface::{BlockDevice, WriteOptions};

const BLOCK: u64 = 4096;
const EXTENT_BYTES: u32 = 256 << 10;
/// Enough extents that a share is kept for overwriting.
const CAPACITY_BYTES: u64 = 512 * EXTENT_BYTES as u64;
/// Live share of the pool.
const FULL_PERMILLE: u64 = 800;
/// Writes between two looks of the keeper.
const TICK_WRITES: u64 = 256;

/// As `bench`'s `theory`: `1 / (1 - u)` with `u = exp(-(1 - u) / share)` (Desnoyers, "Analytic
/// modeling of SSD write performance", 2012).
fn theory(share: f64) -> f64 {
    let mut live: f64 = 0.0;
    for _ in 0..10_000 {
        live = (-(1.0 - live) / share).exp();
    }
    1.0 / (1.0 - live)
}

/// A pool of which four fifths are live, overwritten by blocks at positions that `place` chooses;
/// of each hundred, `holes` are zeroes. Returns the final cost in the log of a byte of users'
/// fragments, and the share of the pool that is live.
fn steady(holes: u64, place: impl Fn(&mut Rng, u64) -> u64) -> (f64, f64) {
    let machine = Machine::new(CAPACITY_BYTES, 1);
    let properties: Properties = [("compression".into(), "off".into()), ("unit".into(), "4K".into())].into();
    let format = FormatOptions { capacity_bytes: CAPACITY_BYTES, extent_bytes: EXTENT_BYTES, properties };
    Pool::format(&env(&machine), &format).unwrap();
    let options =
        PoolOptions { memory_bytes: 16 << 20, workers: 0, checkpoint_log_bytes: 16 << 20, ..PoolOptions::default() };
    let pool = Pool::open(env(&machine), options).unwrap();
    let blocks = CAPACITY_BYTES * FULL_PERMILLE / 1000 / BLOCK * 100 / (100 - holes);
    pool.create_volume("v", blocks * BLOCK, &Properties::new()).unwrap();
    let volume = pool.volume("v").unwrap();
    let mut rng = Rng::new(2);
    let mut data = vec![0; 1 << 20];
    fill_content(&mut rng, ContentKind::Random, &mut data);
    let data = Bytes::from(data);
    let mut write = |block: u64| {
        let zero = rng.below(100) < holes;
        let at = rng.below(255) as usize * BLOCK as usize;
        let content = if zero { Bytes::from_static(&[0; BLOCK as usize]) } else { data.slice(at..at + BLOCK as usize) };
        volume.write(block * BLOCK, content, WriteOptions::default()).unwrap();
        rng.next_u64()
    };
    let mut seeds = Rng::new(3);
    for block in 0..blocks {
        write(block);
    }
    let mut overwrite = |count: u64| {
        for index in 0..count {
            write(place(&mut seeds, blocks));
            if index.is_multiple_of(TICK_WRITES) {
                pool.tick().unwrap();
            }
        }
        pool.status()
    };
    let before = overwrite(2 * blocks);
    let after = overwrite(blocks);
    let amplification =
        (after.log_bytes - before.log_bytes) as f64 / (after.fragment_bytes - before.fragment_bytes) as f64;
    pool.checkpoint().unwrap();
    let status = pool.status();
    let share = status.live_bytes as f64 / (status.extents_total * status.extent_bytes) as f64;
    (amplification, share)
}

/// Upper bound of the log's writes over theory: in so small a pool, reserved space and space that
/// waits for a checkpoint are a few per cent of it.
const FACTOR_MAX: f64 = 1.5;
/// The same, relative to the figure without holes.
const HOLES_FACTOR_MAX: f64 = 1.08;

/// Overwrites that make holes and fill them again cost no more than others: space kept for
/// overwriting in a pool that gets full must not lie idle in one that is not.
#[test]
fn uniform_overwrites_cost_what_theory_says() {
    let factor = |holes| {
        let (amplification, share) = steady(holes, |rng, blocks| rng.below(blocks));
        let factor = amplification / theory(share);
        println!("{holes} % holes, {share:.3} of the pool live: {amplification:.3}, {factor:.3} x theory");
        factor
    };
    let without = factor(0);
    assert!(without < FACTOR_MAX, "HARNESS: {without:.3} x theory");
    let with = factor(5);
    assert!(with < HOLES_FACTOR_MAX * without, "HARNESS: {with:.3} x theory with holes, {without:.3} without");
}
