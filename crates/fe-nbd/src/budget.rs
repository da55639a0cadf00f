//! Memory limit for all connections together. Each has a small allowance; anything in flight beyond
//! that comes from one shared budget, so that many clients that do not read replies use no more
//! memory than a few would.
//!
//! No connection may hold more than it leaves for others: a single client gets half of the budget,
//! two that alternate a third each, and of several that never release memory each gets half of the
//! remainder left by the previous one. A request larger than its share waits until most of the
//! budget is free.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Bytes that a connection may have in flight outside the budget: a client that sends ordinary
/// requests one at a time never waits for others.
pub const OWN_BYTES: usize = 1 << 20;
/// Divisor for the part of the budget that may be in use when a request larger than its share is
/// admitted.
const NEARLY_FREE_DIVISOR: usize = 4;
/// Divisor for the part of the budget that may be held by buffers retained for later reads.
const SPARE_DIVISOR: usize = 4;

/// See the module's text.
pub struct Budget {
    max: usize,
    used: Mutex<usize>,
    /// Signals that memory was returned.
    freed: Condvar,
    spare: AtomicUsize,
}

impl Budget {
    /// Creates a budget of that many bytes.
    pub fn new(max: usize) -> Self {
        Self { max, used: Mutex::new(0), freed: Condvar::new(), spare: AtomicUsize::new(0) }
    }

    /// Takes `more` bytes for a connection that holds `held`, if permitted now. `is_alone`: it has
    /// nothing else in flight.
    pub fn take(&self, held: usize, more: usize, is_alone: bool) -> bool {
        let mut used = self.used.lock();
        let after = *used + more;
        let leaves_enough = held + more <= self.max.saturating_sub(after);
        let is_nearly_free = *used <= self.max / NEARLY_FREE_DIVISOR && after <= self.max;
        // An admitted request must be possible, however small the budget.
        let may = leaves_enough || is_alone && (is_nearly_free || *used == 0);
        if may {
            *used = after;
        }
        may
    }

    /// Gives bytes back.
    pub fn release(&self, bytes: usize) {
        if bytes > 0 {
            *self.used.lock() -= bytes;
            self.freed.notify_all();
        }
    }

    /// Waits until memory is returned, at most for the given time.
    pub fn wait(&self, most: Duration) {
        self.freed.wait_for(&mut self.used.lock(), most);
    }

    /// Whether a buffer of this size may be retained; it is charged until [`unkeep`](Self::unkeep).
    pub fn keep(&self, bytes: usize) -> bool {
        let grown = |spare: usize| Some(spare + bytes).filter(|after| *after <= self.max / SPARE_DIVISOR);
        self.spare.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok()
    }

    /// Releases the charge for retained buffers.
    pub fn unkeep(&self, bytes: usize) {
        self.spare.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_next_finds_some() {
        let budget = Budget::new(128 << 20);
        let fill = |has: &mut usize| {
            while budget.take(*has, 64 << 10, false) {
                *has += 64 << 10;
            }
        };
        let mut held = [0; 7];
        held.iter_mut().for_each(fill);
        assert_eq!(held.map(|bytes| bytes >> 20), [64, 32, 16, 8, 4, 2, 1]);
        held.iter_mut().for_each(|bytes| budget.release(std::mem::take(bytes)));
        // Two that take turns.
        let (mut one, mut two) = (0, 0);
        while budget.take(one, 64 << 10, false) && budget.take(two, 64 << 10, false) {
            (one, two) = (one + (64 << 10), two + (64 << 10));
        }
        assert_eq!((one >> 20, two >> 20), (42, 42));
    }

    #[test]
    fn a_large_request_waits_until_most_is_free_but_any_is_possible() {
        let budget = Budget::new(40 << 20);
        assert!(budget.take(0, 12 << 20, true));
        assert!(!budget.take(0, 32 << 20, true), "more than there is");
        assert!(!budget.take(0, 24 << 20, true), "more than a quarter is taken");
        budget.release(2 << 20);
        assert!(!budget.take(0, 24 << 20, false), "he has others in flight");
        assert!(budget.take(0, 24 << 20, true));
        budget.release(34 << 20);
        assert!(budget.take(0, 99 << 20, true), "larger than the budget");
    }

    #[test]
    fn buffers_are_kept_up_to_a_part() {
        let budget = Budget::new(16 << 20);
        assert!(budget.keep(3 << 20) && budget.keep(1 << 20) && !budget.keep(1));
        budget.unkeep(1 << 20);
        assert!(budget.keep(1));
    }
}
