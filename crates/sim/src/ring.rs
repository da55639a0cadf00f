//! Concurrent reads that end in any order, on any disk.

use env::{AlignedBuf, Disk, EndedRead, ReadRing};

use crate::Rng;

/// A ring that executes a random one of the started reads whenever it is waited for.
pub struct SimRing<'a> {
    disk: &'a dyn Disk,
    rng: Rng,
    begun: Vec<(usize, u64, AlignedBuf, usize)>,
}

impl<'a> SimRing<'a> {
    /// A ring on a disk. The seed decides on the order.
    pub const fn new(disk: &'a dyn Disk, seed: u64) -> Self {
        Self { disk, rng: Rng::new(seed), begun: Vec::new() }
    }
}

impl ReadRing for SimRing<'_> {
    fn begin(&mut self, tag: usize, offset: u64, buf: AlignedBuf, len: usize) {
        assert!(self.begun.iter().all(|(other, ..)| *other != tag), "two reads of tag {tag} are under way");
        self.begun.push((tag, offset, buf, len));
    }

    fn wait(&mut self) -> Option<EndedRead> {
        if self.begun.is_empty() {
            return None;
        }
        let (tag, offset, mut buf, len) = self.begun.swap_remove(self.rng.index(self.begun.len()));
        let whole = self.disk.read_at(offset, &mut buf, len).is_ok();
        Some(EndedRead { tag, buf, whole })
    }
}
