//! Runs of allocation, in the form that clients get.

use surface::{Allocation, Run};

/// Collects runs of allocation, joining neighbours of the same kind.
pub(crate) struct Runs {
    runs: Vec<Run>,
    max: usize,
}

impl Runs {
    pub(crate) fn new(max: usize) -> Self {
        Self { runs: Vec::new(), max: max.max(1) }
    }

    /// Appends a run; returns `false` if there is no more room.
    pub(crate) fn push(&mut self, length: u64, allocation: Allocation) -> bool {
        if length == 0 {
            return true;
        }
        let full = self.runs.len() == self.max;
        match self.runs.last_mut() {
            Some(last) if last.allocation == allocation => last.length += length,
            _ if full => return false,
            _ => self.runs.push(Run { length, allocation }),
        }
        true
    }

    pub(crate) fn finish(self) -> Vec<Run> {
        self.runs
    }
}
