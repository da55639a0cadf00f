//! Runs many seeds on two threads, counts, and prints how to repeat a failed one.
//!
//! `SHALE_SEED=n` runs only seed n. `SHALE_RUNS=n` multiplies the number of seeds.
//! `SHALE_SOAK_SECONDS=n` runs new seeds for that long. `SHALE_CANARY_BUDGET=n` bounds the number
//! of crash points, for builds with a planted bug.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use env::{Clock, SystemClock};

use super::Failure;

/// Counts of the work done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    pub ops: u64,
    pub crashes: u64,
    pub fulls: u64,
    pub faults: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.ops += other.ops;
        self.crashes += other.crashes;
        self.fulls += other.fulls;
        self.faults += other.faults;
    }
}

/// Threads: as many as the smallest machine that runs these tests has cores.
const THREADS: usize = 2;

/// A number from the environment.
pub fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let parsed = text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
    Some(parsed.unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

/// Many runs of one test.
#[derive(Debug, Clone, Copy)]
pub struct Campaign {
    /// The file of the test and the test, for the command that repeats a failure.
    pub file: &'static str,
    pub test: &'static str,
    /// Seeds run by default.
    pub seeds: u64,
    /// Whether it goes on for `SHALE_SOAK_SECONDS`.
    pub soaks: bool,
}

impl Campaign {
    /// Runs `run` for every seed.
    ///
    /// # Panics
    /// When a run fails, with the seed, its message, and the command that repeats it.
    pub fn run(self, run: impl Fn(u64) -> Result<Tally, Failure> + Sync) -> Tally {
        let clock = SystemClock::default();
        let soak_ns = variable("SHALE_SOAK_SECONDS").filter(|_| self.soaks).map(|s| s * 1_000_000_000);
        let budget = variable("SHALE_CANARY_BUDGET").unwrap_or(u64::MAX);
        // Soaks begin where no run has been; tests always begin at the same place.
        let first = if soak_ns.is_some() { clock.unix_s() << 24 } else { 0 };
        let (first, count) = match variable("SHALE_SEED") {
            Some(seed) => (seed, 1),
            None => (first, self.seeds * variable("SHALE_RUNS").unwrap_or(1)),
        };
        let next = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        let total = Mutex::new(Tally::default());
        let failed: Mutex<Option<(u64, String)>> = Mutex::new(None);
        let work = || {
            while !stop.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let over = match soak_ns {
                    Some(limit) => clock.now_ns() >= limit,
                    None => index >= count,
                };
                if over {
                    break;
                }
                let seed = first + index;
                match catch_unwind(AssertUnwindSafe(|| run(seed))) {
                    Ok(Ok(tally)) => {
                        let mut total = total.lock().unwrap();
                        total.add(tally);
                        if total.crashes >= budget {
                            stop.store(true, Ordering::Relaxed);
                        }
                    }
                    Ok(Err(Failure(what))) => {
                        failed.lock().unwrap().get_or_insert((seed, what));
                        stop.store(true, Ordering::Relaxed);
                    }
                    Err(panic) => {
                        let text = panic.downcast_ref::<String>().cloned();
                        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                        let what = format!("panic: {}", text.unwrap_or_else(|| "(no text)".into()));
                        failed.lock().unwrap().get_or_insert((seed, what));
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(work);
            }
        });
        let Self { file, test, .. } = self;
        if let Some((seed, what)) = failed.into_inner().unwrap() {
            panic!(
                "HARNESS: {test}, seed {seed}: {what}\n  repeat: SHALE_SEED={seed} cargo test -p engine --test sim {file}::{test} -- --exact --nocapture"
            );
        }
        let total = total.into_inner().unwrap();
        println!(
            "{test}: {} seeds from {first}, {} operations, {} crash points, {} faults, {} times full, {:.1} s",
            next.into_inner().saturating_sub(THREADS as u64).max(1),
            total.ops,
            total.crashes,
            total.faults,
            total.fulls,
            clock.now_ns() as f64 / 1e9,
        );
        total
    }

    /// A total that must be reached, unless the number of runs was set from outside.
    ///
    /// # Panics
    /// When it is not reached.
    pub fn demand(self, reached: bool, what: &str) {
        let set =
            ["SHALE_SEED", "SHALE_SOAK_SECONDS", "SHALE_CANARY_BUDGET"].iter().any(|name| variable(name).is_some());
        assert!(reached || set, "{}: {what} were asked for", self.test);
    }
}
