//! How much of the pool's live data work that goes from extent to extent has gone through, and how
//! much is left: capacity without data takes no time, so that it does not count.

use units::ExtentIndex;

use crate::space::extents::Extents;

/// Extents passed between two counts of what is left: others write and free meanwhile. A count
/// looks at each extent, some 5 ms where there are ten million.
const PASSED_MAX: u32 = 256;

/// How far the work is, in live bytes.
#[derive(Debug, Default, Clone)]
pub(crate) struct Walked {
    next: ExtentIndex,
    done_bytes: u64,
    left_bytes: u64,
    passed: u32,
}

impl Walked {
    /// Takes over where the work is: it goes on with the extent `next`. Counts what is left if that
    /// is due, and all if the work is not where it was left.
    pub(crate) fn at(&mut self, extents: &Extents, next: ExtentIndex) {
        let is_where_it_was = self.next == next && next.0 > 0;
        if !is_where_it_was {
            self.done_bytes = (1..next.0).map(|extent| live(extents, extent)).sum();
        }
        if !is_where_it_was || self.passed >= PASSED_MAX {
            self.left_bytes = (next.0..extents.count()).map(|extent| live(extents, extent)).sum();
            self.passed = 0;
        }
        self.next = next;
    }

    /// An extent with so many live bytes is done; the next one is `next`.
    pub(crate) fn pass(&mut self, live_bytes: u64, next: ExtentIndex) {
        self.done_bytes += live_bytes;
        self.left_bytes = self.left_bytes.saturating_sub(live_bytes);
        self.passed += 1;
        self.next = next;
    }

    /// Bytes done, and done and left together.
    pub(crate) const fn bytes(&self) -> (u64, u64) {
        (self.done_bytes, self.done_bytes + self.left_bytes)
    }
}

fn live(extents: &Extents, extent: u32) -> u64 {
    extents.live_of(ExtentIndex(extent)).into()
}
