//! Loads: many threads that each fetch the next operation, because the engine's calls are
//! synchronous.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::Outcome;

/// Result of a load.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    /// Operations.
    pub count: u64,
    /// How long they took.
    pub seconds: f64,
}

impl Done {
    /// Operations per second.
    pub fn per_second(self) -> f64 {
        self.count as f64 / self.seconds
    }
}

/// Runs operations 0 to `count - 1` on `threads` threads, until they are done or `seconds` are
/// over.
///
/// # Errors
/// The first error of an operation; the rest is not done then.
pub fn drive<S>(
    threads: usize,
    count: u64,
    seconds: f64,
    state: impl Fn() -> S + Sync,
    operation: impl Fn(&mut S, u64) -> Outcome<()> + Sync,
) -> Outcome<Done> {
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let failure = Mutex::new(None);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut state = state();
                let mut mine = 0;
                while !stop.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count || began.elapsed().as_secs_f64() >= seconds {
                        break;
                    }
                    if let Err(error) = operation(&mut state, index) {
                        stop.store(true, Ordering::Relaxed);
                        if let Ok(mut failure) = failure.lock() {
                            failure.get_or_insert(error);
                        }
                        break;
                    }
                    mine += 1;
                }
                done.fetch_add(mine, Ordering::Relaxed);
            });
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    match failure.into_inner() {
        Ok(Some(error)) => Err(error),
        _ => Ok(Done { count: done.load(Ordering::Relaxed), seconds }),
    }
}

/// A number from 0 to `below - 1` that depends on `index` and `seed` only and looks random
/// (splitmix64).
pub fn scattered(index: u64, seed: u64, below: u64) -> u64 {
    let mut z = index.wrapping_add(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((u128::from(z ^ (z >> 31)) * u128::from(below)) >> 64) as u64
}

/// Number of cores.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, std::num::NonZero::get)
}
