//! Reads the extents that are to be cleaned, scrubbed or checked, a few ahead of who looks at them, so that the device works meanwhile.
//!
//! The reader threads do it. What they drop because they have too much to do, or where there are none, is read by whoever wants it.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, sync_channel};

use env::AlignedBuf;
use units::ExtentIndex;

use crate::core::Core;
use crate::extents::Victim;
use crate::log_reads::Source;

/// Most extents of a round in memory at the same time: the one that is looked at, and those that are read meanwhile.
const EXTENTS_MAX: u64 = 4;
/// The part of the memory budget that they may take, if there are two at least.
const MEMORY_DIVISOR: u64 = 32;

type Outcome = io::Result<AlignedBuf>;

/// The victims of a round, in order, with their bytes.
pub(crate) struct VictimReads<'a> {
    core: &'a Core,
    rest: std::vec::IntoIter<Victim>,
    extents_max: usize,
    ahead: VecDeque<(Victim, Receiver<Outcome>)>,
}

impl<'a> VictimReads<'a> {
    pub(crate) fn new(core: &'a Core, victims: Vec<Victim>) -> Self {
        let extents_max = extents_max(core.options.memory_bytes, core.geometry.extent_bytes);
        Self { core, rest: victims.into_iter(), extents_max, ahead: VecDeque::new() }
    }

    /// The next victim, and its extent's bytes or why they cannot be read.
    pub(crate) fn next(&mut self) -> Option<(Victim, Outcome)> {
        if self.core.is_inline() {
            let victim = self.rest.next()?;
            return Some((victim, self.core.read_extent(victim.extent)));
        }
        while self.ahead.len() < self.extents_max {
            let Some(victim) = self.rest.next() else { break };
            let (send, receive) = sync_channel(1);
            self.core.workers.submit(Box::new(move |core| drop(send.send(core.read_extent(victim.extent)))));
            self.ahead.push_back((victim, receive));
        }
        let (victim, receive) = self.ahead.pop_front()?;
        let outcome = receive.recv().unwrap_or_else(|_| self.core.read_extent(victim.extent));
        Some((victim, outcome))
    }
}

/// How many extents of so many bytes may be in memory.
fn extents_max(memory_bytes: u64, extent_bytes: u32) -> usize {
    (memory_bytes / MEMORY_DIVISOR / u64::from(extent_bytes)).clamp(1, EXTENTS_MAX) as usize
}

impl Core {
    /// All bytes of an extent, in a buffer of the pool's that may be longer.
    pub(crate) fn read_extent(&self, extent: ExtentIndex) -> Outcome {
        self.counters.read_disk_bytes.add(u64::from(self.geometry.extent_bytes));
        Source { disk: &*self.env.disk, geometry: &self.geometry, buffers: &self.buffers }.read(extent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_extents_in_little_memory_are_read_one_by_one() {
        let many = |memory_mib: u64, extent_mib: u32| extents_max(memory_mib << 20, extent_mib << 20);
        assert_eq!([many(512, 1), many(256, 1), many(128, 1)], [4; 3], "the usual extents");
        assert_eq!([many(64, 1), many(512, 4), many(512, 8), many(512, 16), many(64, 16)], [2, 4, 2, 1, 1]);
    }
}
