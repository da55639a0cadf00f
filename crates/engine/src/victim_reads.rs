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

/// Extents read ahead at the same time.
const AHEAD: usize = 4;

type Outcome = io::Result<AlignedBuf>;

/// The victims of a round, in order, with their bytes.
pub(crate) struct VictimReads<'a> {
    core: &'a Core,
    rest: std::vec::IntoIter<Victim>,
    ahead: VecDeque<(Victim, Receiver<Outcome>)>,
}

impl<'a> VictimReads<'a> {
    pub(crate) fn new(core: &'a Core, victims: Vec<Victim>) -> Self {
        Self { core, rest: victims.into_iter(), ahead: VecDeque::new() }
    }

    /// The next victim, and its extent's bytes or why they cannot be read.
    pub(crate) fn next(&mut self) -> Option<(Victim, Outcome)> {
        if self.core.is_inline() {
            let victim = self.rest.next()?;
            return Some((victim, self.core.read_extent(victim.extent)));
        }
        while self.ahead.len() < AHEAD {
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

impl Core {
    /// All bytes of an extent, in a buffer of the pool's that may be longer.
    pub(crate) fn read_extent(&self, extent: ExtentIndex) -> Outcome {
        self.counters.read_disk_bytes.add(u64::from(self.geometry.extent_bytes));
        Source { disk: &*self.env.disk, geometry: &self.geometry, buffers: &self.buffers }.read(extent)
    }
}
