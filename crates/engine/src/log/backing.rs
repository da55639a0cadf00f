//! Which extents have their space below for certain, because it was set aside and not given back
//! since. File systems wait for all I/O under way on the file, and hold up what comes, when they
//! set space aside or take it back; so neither is done for extents that are filled again and again
//! in a pool that is short of space.

use std::ops::Range;

use units::ExtentIndex;

use crate::base::ranked::Mutex;
use crate::base::ranks;

const BITS: usize = u64::BITS as usize;

/// A bit for each extent; none is known of those that the pool had when it was opened.
#[derive(Debug, Default)]
pub(crate) struct Backing {
    bits: Mutex<Vec<u64>, ranks::Backing>,
}

fn range(first: ExtentIndex, count: usize) -> Range<usize> {
    first.0 as usize..first.0 as usize + count
}

impl Backing {
    /// Whether `count` extents from `first` on have their space.
    pub(crate) fn has(&self, first: ExtentIndex, count: usize) -> bool {
        let bits = self.bits.lock();
        range(first, count).all(|at| bits.get(at / BITS).is_some_and(|word| word >> (at % BITS) & 1 == 1))
    }

    /// Space was set aside for them.
    pub(crate) fn gained(&self, first: ExtentIndex, count: usize) {
        let mut bits = self.bits.lock();
        for at in range(first, count) {
            if bits.len() <= at / BITS {
                bits.resize(at / BITS + 1, 0);
            }
            bits[at / BITS] |= 1 << (at % BITS);
        }
    }

    /// It is about to be given back.
    pub(crate) fn loses(&self, first: ExtentIndex, count: usize) {
        let mut bits = self.bits.lock();
        for at in range(first, count) {
            if let Some(word) = bits.get_mut(at / BITS) {
                *word &= !(1 << (at % BITS));
            }
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
}
