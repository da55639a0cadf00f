//! What became of the operations that were decided last, by name. A caller may be gone before it has
//! read its answer, and come back with the same operation: it must not be done again.

use std::collections::{HashMap, VecDeque};

use crate::commit::Committed;
use crate::names::OpId;

/// Operations that are remembered: as many as one record carries.
const ANSWERED_MAX: usize = 1024;

/// The operations that were decided last.
#[derive(Debug, Default)]
pub(crate) struct Answered {
    known: HashMap<OpId, Committed>,
    order: VecDeque<OpId>,
}

impl Answered {
    /// Returns what became of an operation.
    pub(crate) fn get(&self, op: OpId) -> Option<Committed> {
        self.known.get(&op).copied()
    }

    /// Remembers an operation, and forgets the oldest one if there are too many.
    pub(crate) fn note(&mut self, op: OpId, committed: Committed) {
        if self.known.insert(op, committed).is_none() {
            self.order.push_back(op);
        }
        if self.order.len() > ANSWERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}
