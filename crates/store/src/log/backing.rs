//! Tracks which extents certainly have space allocated by the file system. Preallocation and hole
//! punching make a file system wait for all I/O in flight on the file and hold up new I/O; so
//! neither is done for extents that are filled again and again in a pool short of space.
//!
//! Space is preallocated without a lock, and may be punched out at the same time: then the order of
//! the two is unknown, and nothing is noted ([`Backing::gained_since`]).

use std::ops::Range;

use units::ExtentIndex;

use crate::base::ranked::Mutex;
use crate::base::ranks;

const BITS: usize = u64::BITS as usize;

#[derive(Debug, Default)]
struct Known {
    /// A bit for each extent.
    bits: Vec<u64>,
    /// Number of punches so far.
    losses: u64,
}

/// See the module. Nothing is known of the extents that the pool had when it was opened.
#[derive(Debug, Default)]
pub struct Backing {
    known: Mutex<Known, ranks::Backing>,
}

fn range(first: ExtentIndex, count: usize) -> Range<usize> {
    first.0 as usize..first.0 as usize + count
}

impl Backing {
    /// Whether `count` extents from `first` on have their space.
    #[inline]
    pub fn has(&self, first: ExtentIndex, count: usize) -> bool {
        let known = self.known.lock();
        range(first, count).all(|at| known.bits.get(at / BITS).is_some_and(|word| word >> (at % BITS) & 1 == 1))
    }

    /// Returns the number of punches so far. Read it before preallocating.
    pub fn losses(&self) -> u64 {
        self.known.lock().losses
    }

    /// Notes that space was preallocated for these extents, if no punch happened since `losses` was
    /// read. Returns `false` otherwise: the punch may have hit these extents.
    pub(crate) fn gained_since(&self, losses: u64, first: ExtentIndex, count: usize) -> bool {
        let mut known = self.known.lock();
        let is_certain = known.losses == losses;
        if is_certain {
            known.gained(first, count);
        }
        is_certain
    }

    /// Notes that space was preallocated for them.
    pub fn gained(&self, first: ExtentIndex, count: usize) {
        self.known.lock().gained(first, count);
    }

    /// Notes that these extents are about to be punched out.
    pub fn loses(&self, first: ExtentIndex, count: usize) {
        let mut known = self.known.lock();
        known.losses += 1;
        for at in range(first, count) {
            if let Some(word) = known.bits.get_mut(at / BITS) {
                *word &= !(1 << (at % BITS));
            }
        }
    }
}

impl Known {
    fn gained(&mut self, first: ExtentIndex, count: usize) {
        for at in range(first, count) {
            if self.bits.len() <= at / BITS {
                self.bits.resize(at / BITS + 1, 0);
            }
            self.bits[at / BITS] |= 1 << (at % BITS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_known_between_gain_and_loss() {
        let backing = Backing::default();
        assert!(!backing.has(ExtentIndex(70), 1));
        backing.gained(ExtentIndex(60), 10);
        assert!(backing.has(ExtentIndex(60), 10) && backing.has(ExtentIndex(63), 2));
        assert!(!backing.has(ExtentIndex(59), 2) && !backing.has(ExtentIndex(69), 2));
        backing.loses(ExtentIndex(64), 1);
        backing.loses(ExtentIndex(9_999), 3);
        assert!(
            !backing.has(ExtentIndex(60), 10) && backing.has(ExtentIndex(60), 4) && backing.has(ExtentIndex(65), 5)
        );
    }

    #[test]
    fn space_that_was_given_back_while_it_was_set_aside_is_not_known() {
        let backing = Backing::default();
        let losses = backing.losses();
        backing.loses(ExtentIndex(7), 1);
        assert!(!backing.gained_since(losses, ExtentIndex(7), 1) && !backing.has(ExtentIndex(7), 1));
        assert!(backing.gained_since(backing.losses(), ExtentIndex(7), 1) && backing.has(ExtentIndex(7), 1));
    }
}
