//! The kernel's references: the number of look-ups of each node. A node without a name is deleted
//! when the kernel has forgotten it; with opens that need no message there is no other sign that it
//! is closed. Also the names that the kernel may have cached as absent, for changes that do not
//! come from it. Shared by all threads that serve.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use parking_lot::Mutex;
use share::Tree;

/// Counts of look-ups, some 20 bytes for each node that the kernel has cached.
#[derive(Default)]
pub(crate) struct LookupCounts {
    counts: Mutex<HashMap<u64, u64>>,
    /// By directory, a bit for the hash of each name that a look-up did not find: few directories
    /// have any. An entry goes with the last look-up of its directory, as the cached names do.
    absent: Mutex<HashMap<u64, u64>>,
    /// Another program has answered look-ups for this mount as well, and its counts are not known.
    is_taken_over: bool,
}

impl LookupCounts {
    /// Creates the counts for a mount that another program has served. The kernel drops all
    /// look-ups of a node at once, so the last one known here counts as the last.
    pub(crate) fn taken_over() -> Self {
        Self { is_taken_over: true, ..Self::default() }
    }

    /// Adds a look-up of a node.
    pub(crate) fn add(&self, node: u64) {
        *self.counts.lock().entry(node).or_default() += 1;
    }

    /// Drops look-ups of a node. Returns whether the kernel no longer refers to it.
    pub(crate) fn forget(&self, node: u64, lookups: u64) -> bool {
        let is_forgotten = {
            let mut counts = self.counts.lock();
            match counts.get_mut(&node) {
                Some(count) if *count > lookups => {
                    *count -= lookups;
                    false
                }
                Some(_) => counts.remove(&node).is_some(),
                None => self.is_taken_over,
            }
        };
        if is_forgotten {
            self.absent.lock().remove(&node);
        }
        is_forgotten
    }

    /// Notes that a look-up of a name is answered with its absence.
    pub(crate) fn add_absent(&self, directory: u64, name: &[u8]) {
        *self.absent.lock().entry(directory).or_default() |= bit_of(name);
    }

    /// Returns whether the kernel may have cached a name as absent. `is_new`: the directory is
    /// younger than this server.
    pub(crate) fn may_be_absent(&self, directory: u64, is_new: bool, name: &[u8]) -> bool {
        let found = self.absent.lock().get(&directory).is_some_and(|bits| bits & bit_of(name) != 0);
        found || self.is_taken_over && !is_new
    }

    /// Returns whether the kernel may have a node in its cache.
    pub(crate) fn may_know(&self, node: u64) -> bool {
        node == Tree::ROOT || self.is_taken_over || self.counts.lock().contains_key(&node)
    }
}

fn bit_of(name: &[u8]) -> u64 {
    1 << (BuildHasherDefault::<DefaultHasher>::default().hash_one(name) % u64::from(u64::BITS))
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

    #[test]
    fn absent_names_are_known_as_long_as_their_directory_is() {
        let references = LookupCounts::default();
        references.add(5);
        references.add_absent(5, b"a");
        assert!(references.may_be_absent(5, true, b"a") && !references.may_be_absent(6, false, b"a"));
        let others = (0..200_u32).filter(|n| references.may_be_absent(5, true, &n.to_le_bytes())).count();
        assert!(others < 50, "{others} of 200 names that were not looked up");
        assert!(references.may_know(5) && !references.may_know(6) && references.may_know(Tree::ROOT));
        references.forget(5, 1);
        assert!(!references.may_be_absent(5, true, b"a") && !references.may_know(5));
        let references = LookupCounts::taken_over();
        assert!(references.may_know(5));
        assert!(references.may_be_absent(5, false, b"a") && !references.may_be_absent(5, true, b"a"));
    }
}
