//! Slows writers down while the cleaner is pressed, and holds them at the soft wall. Owns the walls
//! before the reserve, the rate at which cleaning gains space, and the places where writers wait.
//! The cleaner's threads set walls and rate (`clean::pacing`); writers take turns.
//!
//! *Soft wall*: some extents before the wall, in pools that have some to spare. A writer that
//! reaches it waits for the cleaner; only if cleaning gains nothing may it continue, up to the
//! wall. The cleaner needs this room to work in. With the last extents alone it gains one or two at
//! a time, and needs a checkpoint each time before they can be used.
//!
//! **No cliff.** Once the pool is pressed, writers are slowed down smoothly towards the rate at
//! which cleaning has been winning space, so that they meet that rate instead of the wall.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use env::Clock;

use crate::base::ranked::{Condvar, Mutex};
use crate::base::ranks;

/// Longest wait of a writer for its turn: a bound on latency; the wall itself still holds.
pub const BRAKE_NS_MAX: u64 = 50_000_000;
/// Shorter waits than this cost more than they regulate; they add up in `next_ns`.
const BRAKE_LEAST: Duration = Duration::from_millis(10);
/// Rounds for which extents kept back from new data stay kept.
const KEPT_ROUNDS: u64 = 16;

/// See the module.
#[derive(Debug, Default)]
pub struct Brake {
    /// Extents left below which it brakes, and below which it does so fully.
    pub from: AtomicU64,
    /// Distance of the soft wall from the wall, in extents.
    pub soft: AtomicU64,
    /// Extents before the soft wall that new data at that wall must not use, and the remaining
    /// rounds for which this applies.
    kept: AtomicU64,
    kept_rounds: AtomicU64,
    /// Nanoseconds that cleaning takes for a MiB that it gains; 0 if it gains none.
    pub ns_per_mib: AtomicU64,
    /// When the next write may proceed. Changed by every write, so without a lock: the holder of a
    /// lock may lose its core.
    next_ns: AtomicU64,
    /// Writers that wait for their turn.
    easing: Mutex<(), ranks::Easing>,
    eased: Condvar,
    /// Writers that wait at the soft wall.
    pub waiting: AtomicU64,
    /// Writers have been slowed down or stopped since the last round.
    pub has_braked: AtomicBool,
    /// Rounds of the cleaners' threads that are under way.
    pub rounds: AtomicU64,
    /// Number of cleanings without gain.
    pub futile: Mutex<u64, ranks::Futile>,
    pub room: Condvar,
}

impl Brake {
    /// Keeps `extents` before the soft wall free from new data for a while.
    pub fn keep(&self, extents: u64) {
        self.kept.store(extents, Ordering::Relaxed);
        self.kept_rounds.store(KEPT_ROUNDS, Ordering::Relaxed);
    }

    /// Called before each round: extents that were kept for long are not kept any more.
    pub fn age_kept(&self) {
        let rounds = self.kept_rounds.load(Ordering::Relaxed);
        self.kept_rounds.store(rounds.saturating_sub(1), Ordering::Relaxed);
        if rounds == 0 {
            self.kept.store(0, Ordering::Relaxed);
        }
    }

    /// Distance of the wall that paces writers from the wall, in extents.
    pub(super) fn before_wall(&self) -> u64 {
        self.soft.load(Ordering::Relaxed) + self.kept.load(Ordering::Relaxed)
    }

    /// Returns how near the wall is with `left` extents left: 0 where the brake begins, 1 at the
    /// wall.
    pub(super) fn urgency(&self, left: u64, wall: u64) -> f64 {
        let from = self.from.load(Ordering::Relaxed);
        if left >= from || from <= wall {
            return 0.0;
        }
        // Past the soft wall the urgency cannot grow further.
        ((from - left) as f64 / (from - wall) as f64).min(1.0)
    }

    /// Delays a write of so many bytes until its turn, if space is gained more slowly than it is
    /// used; with `left` extents left before the `wall`. Bounded. Returns whether it has waited.
    pub(super) fn delay(&self, bytes: u64, (left, wall): (u64, u64), clock: &dyn Clock) -> bool {
        let ns_per_mib = self.ns_per_mib.load(Ordering::Relaxed);
        if ns_per_mib == 0 || left >= self.from.load(Ordering::Relaxed) {
            return false;
        }
        let urgency = self.urgency(left, wall).min(1.0);
        let cost = (bytes as f64 / f64::from(1 << 20) * ns_per_mib as f64 * urgency) as u64;
        if cost == 0 {
            return false;
        }
        let now = clock.now_ns();
        let after = |next: u64| Some((next.max(now) + cost).min(now + BRAKE_NS_MAX));
        let turn = self.next_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).unwrap_or(0).max(now);
        let wait = Duration::from_nanos((turn - now).min(BRAKE_NS_MAX));
        self.has_braked.store(true, Ordering::Relaxed);
        if wait < BRAKE_LEAST {
            return false;
        }
        let mut easing = self.easing.lock();
        // It may have been eased by now.
        if self.next_ns.load(Ordering::Relaxed) > 0 {
            self.eased.wait_for(&mut easing, wait);
        }
        true
    }

    /// Lets all writers proceed that wait for their turn.
    pub(super) fn ease(&self) {
        self.next_ns.store(0, Ordering::Relaxed);
        // A writer that saw the urgency before is waiting by now, and gets the wake-up below.
        drop(self.easing.lock());
        self.eased.notify_all();
    }
}
