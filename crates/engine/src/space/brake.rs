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

use crate::base::ranked::{Condvar, Mutex};
use crate::base::ranks;
use crate::space::Space;
use crate::space::admission::Free;

/// Longest wait of a writer for its turn: a bound on latency; the wall itself still holds.
pub(crate) const BRAKE_NS_MAX: u64 = 50_000_000;
/// Shorter waits than this cost more than they regulate; they add up in `next_ns`.
const BRAKE_LEAST: Duration = Duration::from_millis(10);
/// Rounds for which extents kept back from new data stay kept.
const KEPT_ROUNDS: u64 = 16;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Brake {
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
    pub(crate) fn keep(&self, extents: u64) {
        self.kept.store(extents, Ordering::Relaxed);
        self.kept_rounds.store(KEPT_ROUNDS, Ordering::Relaxed);
    }

    /// Called before each round: extents that were kept for long are not kept any more.
    pub(crate) fn age_kept(&self) {
        let rounds = self.kept_rounds.load(Ordering::Relaxed);
        self.kept_rounds.store(rounds.saturating_sub(1), Ordering::Relaxed);
        if rounds == 0 {
            self.kept.store(0, Ordering::Relaxed);
        }
    }
}

impl Space {
    /// Extents left at which writers wait for the cleaner.
    pub(crate) fn soft_wall(&self) -> u64 {
        self.geometry.reserve_extents() + self.brake.soft.load(Ordering::Relaxed)
    }

    /// The wall used for pacing.
    pub(crate) fn paced_wall(&self) -> u64 {
        self.soft_wall() + self.brake.kept.load(Ordering::Relaxed)
    }

    /// Whether the cleaner is at work because little space is left.
    pub(crate) fn is_pressed(&self) -> bool {
        self.extents_left() < self.brake.from.load(Ordering::Relaxed)
    }

    /// Returns whether a writer waits for space from the cleaner, or soon will.
    pub(crate) fn is_needed_soon(&self) -> bool {
        self.brake.waiting.load(Ordering::Acquire) > 0 || self.urgency() > 0.0
    }

    /// Returns how near the wall is: 0 where the brake begins, 1 at the wall.
    pub(crate) fn urgency(&self) -> f64 {
        self.urgency_at(self.extents_left())
    }

    /// The same with so many extents left.
    fn urgency_at(&self, left: u64) -> f64 {
        let (from, wall) = (self.brake.from.load(Ordering::Relaxed), self.paced_wall());
        if left >= from || from <= wall {
            return 0.0;
        }
        // Past the soft wall the urgency cannot grow further.
        ((from - left) as f64 / (from - wall) as f64).min(1.0)
    }

    /// Whether a write that finds this much free space is slowed down.
    pub(super) fn is_braking(&self, free: Free) -> bool {
        self.brake.ns_per_mib.load(Ordering::Relaxed) > 0 && self.urgency_at(free.extents) > 0.0
    }

    /// Delays a write of so many bytes until its turn, if space is gained more slowly than it is
    /// used. Bounded. Returns whether it has waited.
    pub(super) fn brake(&self, bytes: u64, free: Free) -> bool {
        let ns_per_mib = self.brake.ns_per_mib.load(Ordering::Relaxed);
        if ns_per_mib == 0 || free.extents >= self.brake.from.load(Ordering::Relaxed) {
            return false;
        }
        let urgency = self.urgency_at(free.extents).min(1.0);
        let cost = (bytes as f64 / f64::from(1 << 20) * ns_per_mib as f64 * urgency) as u64;
        if cost == 0 {
            return false;
        }
        let now = self.vitals.env.clock.now_ns();
        let after = |next: u64| Some((next.max(now) + cost).min(now + BRAKE_NS_MAX));
        let turn = self.brake.next_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).unwrap_or(0).max(now);
        let wait = Duration::from_nanos((turn - now).min(BRAKE_NS_MAX));
        self.brake.has_braked.store(true, Ordering::Relaxed);
        if wait < BRAKE_LEAST {
            return false;
        }
        let mut easing = self.brake.easing.lock();
        // It may have been eased by now.
        if self.brake.next_ns.load(Ordering::Relaxed) > 0 {
            self.brake.eased.wait_for(&mut easing, wait);
        }
        true
    }

    /// Lets waiting writers check again: a checkpoint may have freed the space that they wait for.
    pub(crate) fn ease_brake(&self) {
        self.brake.room.notify_all();
        if self.urgency() == 0.0 {
            self.brake.next_ns.store(0, Ordering::Relaxed);
            // A writer that saw the urgency before is waiting by now, and gets the wake-up below.
            drop(self.brake.easing.lock());
            self.brake.eased.notify_all();
        }
    }
}
