//! Progress of work that goes from extent to extent, in live data done and left: capacity without
//! data takes no time, so it is not included.

use store::space::extents::Extents;
use units::ExtentIndex;

/// Extents passed between two recounts of the rest: others write and free during the work. A
/// recount looks at each extent, some 5 ms where there are ten million.
const PASSED_MAX: u32 = 256;

/// Progress of the work, in live bytes.
#[derive(Debug, Default, Clone)]
pub(crate) struct Walked {
    next: ExtentIndex,
    done_bytes: u64,
    left_bytes: u64,
    passed: u32,
}

impl Walked {
    /// Notes the current position: the work continues with the extent `next`. Recounts the rest if
    /// that is due, and everything if the work has moved elsewhere.
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

    /// Notes that an extent with so many live bytes is done; the next one is `next`.
    pub(crate) fn pass(&mut self, live_bytes: u64, next: ExtentIndex) {
        self.done_bytes += live_bytes;
        self.left_bytes = self.left_bytes.saturating_sub(live_bytes);
        self.passed += 1;
        self.next = next;
    }

    /// Returns the bytes done, and the total of bytes done and left.
    pub(crate) const fn bytes(&self) -> (u64, u64) {
        (self.done_bytes, self.done_bytes + self.left_bytes)
    }
}

fn live(extents: &Extents, extent: u32) -> u64 {
    extents.live_of(ExtentIndex(extent)).into()
}
