//! How near the walls a pool is, and the pace of its writers by that (`brake`). Owns no state.

use std::sync::atomic::Ordering;

use crate::space::Space;
use crate::space::admission::Free;

impl Space {
    /// Extents left at which writers wait for the cleaner.
    #[inline]
    pub fn soft_wall(&self) -> u64 {
        self.geometry.reserve_extents() + self.brake.soft.load(Ordering::Relaxed)
    }

    /// The wall used for pacing.
    pub fn paced_wall(&self) -> u64 {
        self.geometry.reserve_extents() + self.brake.before_wall()
    }

    /// Whether the cleaner is at work because little space is left.
    pub fn is_pressed(&self) -> bool {
        self.extents_left() < self.brake.from.load(Ordering::Relaxed)
    }

    /// Returns whether a writer waits for space from the cleaner, or soon will.
    #[inline]
    pub fn is_needed_soon(&self) -> bool {
        self.brake.waiting.load(Ordering::Acquire) > 0 || self.urgency() > 0.0
    }

    /// Returns how near the wall is: 0 where the brake begins, 1 at the wall.
    #[inline]
    pub fn urgency(&self) -> f64 {
        self.brake.urgency(self.extents_left(), self.paced_wall())
    }

    /// Whether a write that finds this much free space is slowed down.
    pub(super) fn is_braking(&self, free: Free) -> bool {
        self.brake.ns_per_mib.load(Ordering::Relaxed) > 0 && self.brake.urgency(free.extents, self.paced_wall()) > 0.0
    }

    /// Delays a write of so many bytes until its turn, if space is gained more slowly than it is
    /// used. Bounded. Returns whether it has waited.
    pub(super) fn brake(&self, bytes: u64, free: Free) -> bool {
        self.brake.delay(bytes, (free.extents, self.paced_wall()), &*self.vitals.env.clock)
    }

    /// Lets waiting writers check again: a checkpoint may have freed the space that they wait for.
    pub fn ease_brake(&self) {
        self.brake.room.notify_all();
        if self.urgency() == 0.0 {
            self.brake.ease();
        }
    }
}
