//! Files that a request in progress extends: their attributes as of before that request, for
//! `fstat`. Shared by all threads that serve.
//!
//! The kernel learns a file's new size from the answer to the write. `fstat` shows the size in the
//! answer to GETATTR, but a read ends at the kernel's own size. If GETATTR returned the size of a
//! write that is not answered yet, a program would reach the end of the file before that size. A
//! GETATTR that arrives before the write is answered must return the old size. So the answer is
//! sent and the entry removed in one step, as seen by every GETATTR.

use parking_lot::Mutex;
use share::{Inode, Time, Tree};

/// Shards, so that requests for different files rarely share a lock.
const SHARDS: usize = 64;

/// The state of a file before a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Before {
    node: u64,
    size: u64,
    modified: Time,
    changed: Time,
}

/// The files that are being extended.
pub(crate) struct Growing {
    shards: [Mutex<Vec<Before>>; SHARDS],
}

impl Default for Growing {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Growing {
    fn shard(&self, node: u64) -> &Mutex<Vec<Before>> {
        &self.shards[node as usize % SHARDS]
    }

    /// Runs a request that extends a file to `end`, if it is shorter, and sends its answer.
    pub(crate) fn through<T>(
        &self,
        tree: &Tree,
        node: u64,
        end: u64,
        work: impl FnOnce() -> T,
        answer: impl FnOnce(T),
    ) {
        if !self.begin(tree, node, end) {
            return answer(work());
        }
        let done = work();
        let mut files = self.shard(node).lock();
        answer(done);
        // The kernel allows one extending request at a time. If there were another one, the size
        // before it would be too small now.
        files.retain(|file| file.node != node);
    }

    /// Adds a file if it is shorter than `end`. Returns whether it is.
    fn begin(&self, tree: &Tree, node: u64, end: u64) -> bool {
        let grows = |inode: &Inode| (inode.is_file() && inode.size < end).then(|| Before::of(node, inode));
        let mut files = self.shard(node).lock();
        let before = tree.look_at(node, grows).ok().flatten();
        files.extend(before);
        before.is_some()
    }

    /// Changes an inode to the state that the kernel knows.
    pub(crate) fn show(&self, node: u64, inode: &mut Inode) {
        let files = self.shard(node).lock();
        let before =
            files.iter().filter(|file| file.node == node && file.size < inode.size).min_by_key(|file| file.size);
        if let Some(&Before { size, modified, changed, .. }) = before {
            (inode.size, inode.modified, inode.changed) = (size, modified, changed);
        }
    }
}

impl Before {
    const fn of(node: u64, inode: &Inode) -> Self {
        Self { node, size: inode.size, modified: inode.modified, changed: inode.changed }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use share::{Caller, Options};
    use sim::SimSpace;

    use super::*;

    const OPTIONS: Options = Options { now: || Time { seconds: 9, nanoseconds: 1 }, cache_bytes: 1 << 20 };

    fn tree() -> (Arc<Tree>, u64) {
        let tree = Tree::create(SimSpace::new(), 7, OPTIONS).unwrap();
        let node = tree.make(Tree::ROOT, b"f", Caller { uid: 0, gid: 0 }, libc::S_IFREG | 0o644, 0, 0).unwrap().0;
        (Arc::new(tree), node)
    }

    fn shown_size(growing: &Growing, tree: &Tree, node: u64) -> u64 {
        let mut inode = tree.inode(node).unwrap();
        growing.show(node, &mut inode);
        inode.size
    }

    #[test]
    fn the_size_of_a_write_shows_when_it_is_answered() {
        let (growing, (tree, node)) = (Growing::default(), tree());
        let write = |length: usize| {
            let work = || {
                tree.write(node, 0, Bytes::from(vec![1; length]), false).unwrap();
                shown_size(&growing, &tree, node)
            };
            let mut during = 0;
            growing.through(&tree, node, length as u64, work, |size| during = size);
            (during, shown_size(&growing, &tree, node))
        };
        assert_eq!(write(100), (0, 100));
        assert_eq!(write(5000), (100, 5000));
        // A write that does not extend the file is not added.
        assert_eq!(write(300), (5000, 5000));
    }

    /// Otherwise a program could get the new size before the kernel has it, from a thread that
    /// answers another request.
    #[test]
    fn no_getattr_shows_the_new_size_while_the_answer_is_sent() {
        let (growing, (tree, node)) = (Growing::default(), tree());
        let work = || tree.write(node, 0, Bytes::from_static(b"x"), false).unwrap();
        growing.through(&tree, node, 1, work, |_| {
            assert!(growing.shard(node).try_lock().is_none());
        });
        assert!(growing.shard(node).try_lock().is_some_and(|files| files.is_empty()));
    }

    #[test]
    fn a_request_that_fails_leaves_no_note() {
        let (growing, (tree, node)) = (Growing::default(), tree());
        growing.through(&tree, node, 10, || (), drop);
        assert!(growing.shard(node).lock().is_empty());
        growing.through(&tree, 999, 10, || (), drop);
        assert!(growing.shard(999).lock().is_empty());
    }
}
