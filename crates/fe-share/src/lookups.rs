//! The kernel's references: the number of look-ups of each node. A node without a name is deleted
//! when the kernel has forgotten it; with opens that need no message there is no other sign that it
//! is closed. Shared by all threads that serve.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Counts of look-ups, some 20 bytes for each node that the kernel has cached.
#[derive(Default)]
pub(crate) struct LookupCounts {
    counts: Mutex<HashMap<u64, u64>>,
    /// Another program has answered look-ups for this mount as well, and its counts are not known.
    is_taken_over: bool,
}

impl LookupCounts {
    /// Creates the counts for a mount that another program has served. The kernel drops all
    /// look-ups of a node at once, so the last one known here counts as the last.
    pub(crate) fn taken_over() -> Self {
        Self { counts: Mutex::default(), is_taken_over: true }
    }

    /// Adds a look-up of a node.
    pub(crate) fn add(&self, node: u64) {
        *self.counts.lock().entry(node).or_default() += 1;
    }

    /// Drops look-ups of a node. Returns whether the kernel no longer refers to it.
    pub(crate) fn forget(&self, node: u64, lookups: u64) -> bool {
        let mut counts = self.counts.lock();
        let Some(count) = counts.get_mut(&node) else { return self.is_taken_over };
        *count = count.saturating_sub(lookups);
        if *count > 0 {
            return false;
        }
        counts.remove(&node);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_held_until_all_look_ups_are_taken_back() {
        let references = LookupCounts::default();
        references.add(5);
        references.add(5);
        assert!(!references.forget(5, 1) && !references.forget(6, 1));
        assert!(references.forget(5, 1));
        assert!(!references.forget(5, 1));
        let references = LookupCounts::taken_over();
        references.add(5);
        assert!(references.forget(5, 3) && references.forget(6, 1));
    }
}
