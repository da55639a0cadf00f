//! The outcomes of the operations that were decided last, by name. A caller may be gone before it
//! reads its answer, and retry the same operation: it must not be applied twice. Owned by the
//! committer's state, and used only by the task that leads.

use std::collections::{HashMap, VecDeque};

use crate::names::OpId;
use crate::protocol::commit::Committed;

/// Outcomes that are remembered: as many operations as one record carries.
const ANSWERED_MAX: usize = 1024;

/// The outcomes of the latest operations.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    known: HashMap<OpId, Committed>,
    order: VecDeque<OpId>,
}

impl Outcomes {
    /// Returns the outcome of an operation, if it is remembered.
    pub(crate) fn get(&self, op: OpId) -> Option<Committed> {
        self.known.get(&op).copied()
    }

    /// Remembers an outcome, and drops the oldest one beyond the limit.
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
