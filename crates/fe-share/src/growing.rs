//! Files that a request makes longer, for callers of `fstat`: the kernel learns a file's new end
//! with the answer, and sets its own size when the writer runs again. `fstat` shows the size that
//! GETATTR was answered with, and a read goes up to the kernel's own: with a size that the kernel
//! does not have yet, a program would meet the end of the file before that size.
//!
//! 1. Until the request is answered, GETATTR shows the file as of before the request. The answer is
//!    sent, and the entry removed, in one step for every GETATTR.
//! 2. From then on GETATTR shows the new size, because the writer may know it. The answer waits for
//!    the writer to run, as far as `/proc` shows that, and for some time at most.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use share::{Inode, Result, Time, Tree};

use crate::process;

/// Requests for different files seldom meet in one shard.
const SHARDS: usize = 64;

/// Answered requests that a shard remembers; of older ones the writer has run.
const ANSWERED_MAX: usize = 16;

/// How often, and how many microseconds apart, a GETATTR looks whether a writer has run: 200 ms. A
/// thread got a processor within 50 ms at a load of 15 for each processor, with exceptions.
const LOOKS: u32 = 400;
const LOOK_US: u64 = 500;

/// GETATTRs that wait at one time: of the four threads that take requests, one goes on.
const WAITING_MAX: usize = 3;

/// A file before a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Before {
    node: u64,
    size: u64,
    modified: Time,
    changed: Time,
}

#[derive(Default)]
struct Shard {
    /// Requests that are not answered.
    growing: Vec<Before>,
    /// Nodes of answered ones, each with the thread that waited for the answer.
    answered: Vec<(u64, u32)>,
}

/// Files that grow.
pub(crate) struct Growing {
    shards: [Mutex<Shard>; SHARDS],
    waiting: AtomicUsize,
}

impl Default for Growing {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), waiting: AtomicUsize::new(0) }
    }
}

impl Growing {
    fn shard(&self, node: u64) -> &Mutex<Shard> {
        &self.shards[node as usize % SHARDS]
    }

    /// Does a request of the thread `pid` that makes a file as long as `end`, if it is shorter, and
    /// sends its answer.
    pub(crate) fn through<T>(
        &self,
        tree: &Tree,
        (node, pid): (u64, u32),
        end: u64,
        work: impl FnOnce() -> T,
        answer: impl FnOnce(T),
    ) {
        if !self.begin(tree, node, end) {
            return answer(work());
        }
        let done = work();
        let mut shard = self.shard(node).lock();
        answer(done);
        // The kernel lets one request at a time make a file longer. If there were another one all
        // the same, the size before it would be too small now.
        shard.growing.retain(|file| file.node != node);
        shard.answered.retain(|(other, _)| *other != node);
        if shard.answered.len() >= ANSWERED_MAX {
            shard.answered.remove(0);
        }
        shard.answered.push((node, pid));
    }

    /// Notes a file that is shorter than `end`. Returns whether it is.
    fn begin(&self, tree: &Tree, node: u64, end: u64) -> bool {
        let grows = |inode: &Inode| (inode.is_file() && inode.size < end).then(|| Before::of(node, inode));
        let mut shard = self.shard(node).lock();
        let before = tree.look_at(node, grows).ok().flatten();
        shard.growing.extend(before);
        before.is_some()
    }

    /// Returns an inode as the kernel knows it, for the thread `pid`.
    ///
    /// # Errors
    /// Those of [`Tree::inode`].
    pub(crate) fn inode(&self, tree: &Tree, node: u64, pid: u32) -> Result<Inode> {
        let mut inode = tree.inode(node)?;
        let shard = self.shard(node).lock();
        let files = shard.growing.iter().filter(|file| file.node == node && file.size < inode.size);
        if let Some(&Before { size, modified, changed, .. }) = files.min_by_key(|file| file.size) {
            (inode.size, inode.modified, inode.changed) = (size, modified, changed);
            return Ok(inode);
        }
        let Some(answered) = shard.answered.iter().find(|(other, _)| *other == node).copied() else { return Ok(inode) };
        drop(shard);
        if answered.1 == pid || self.has_run(answered.1) {
            self.shard(node).lock().answered.retain(|other| *other != answered);
        }
        Ok(inode)
    }

    /// Waits until a writer has run, unless too many wait already. Returns whether it has.
    fn has_run(&self, writer: u32) -> bool {
        let may_wait = self.waiting.fetch_add(1, Ordering::AcqRel) < WAITING_MAX;
        let has_run = may_wait && wait_until_it_ran(|| process::run_time_if_runnable(writer));
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        has_run
    }
}

/// Waits until a thread has run since now, or sleeps. Returns whether that was seen.
fn wait_until_it_ran(run_time_if_runnable: impl Fn() -> Option<u64>) -> bool {
    let Some(before) = run_time_if_runnable() else { return true };
    (0..LOOKS).any(|_| {
        let has_run = run_time_if_runnable() != Some(before);
        if !has_run {
            thread::sleep(Duration::from_micros(LOOK_US));
        }
        has_run
    })
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

    /// Threads of which neither is there.
    const OWN: u32 = u32::MAX;
    const OTHER: u32 = u32::MAX - 1;

    const OPTIONS: Options = Options { now: || Time { seconds: 9, nanoseconds: 1 }, cache_bytes: 1 << 20 };

    fn tree() -> (Arc<Tree>, u64) {
        let tree = Tree::create(SimSpace::new(), 7, OPTIONS).unwrap();
        let node = tree.make(Tree::ROOT, b"f", Caller { uid: 0, gid: 0 }, libc::S_IFREG | 0o644, 0, 0).unwrap().0;
        (Arc::new(tree), node)
    }

    fn shown_size(growing: &Growing, tree: &Tree, node: u64) -> u64 {
        growing.inode(tree, node, OTHER).unwrap().size
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
            growing.through(&tree, (node, OWN), length as u64, work, |size| during = size);
            (during, shown_size(&growing, &tree, node))
        };
        assert_eq!(write(100), (0, 100));
        assert_eq!(write(5000), (100, 5000));
        // One that makes nothing longer is not noted.
        assert_eq!(write(300), (5000, 5000));
    }

    /// Else a program could get the new size before the kernel has it, from a thread that answers
    /// another request.
    #[test]
    fn no_getattr_shows_the_new_size_while_the_answer_is_sent() {
        let (growing, (tree, node)) = (Growing::default(), tree());
        let work = || tree.write(node, 0, Bytes::from_static(b"x"), false).unwrap();
        growing.through(&tree, (node, OWN), 1, work, |_| {
            assert!(growing.shard(node).try_lock().is_none());
        });
        assert!(growing.shard(node).try_lock().is_some_and(|shard| shard.growing.is_empty()));
    }

    #[test]
    fn a_request_that_fails_leaves_no_note() {
        let (growing, (tree, node)) = (Growing::default(), tree());
        growing.through(&tree, (node, OWN), 10, || (), drop);
        assert!(growing.shard(node).lock().growing.is_empty());
        growing.through(&tree, (999, OWN), 10, || (), drop);
        assert!(growing.shard(999).lock().growing.is_empty());
    }

    #[test]
    fn the_first_getattr_after_an_answer_looks_for_the_writer_and_the_next_does_not() {
        let (growing, (tree, node)) = (Growing::default(), tree());
        let work = || tree.write(node, 0, Bytes::from_static(b"x"), false).unwrap();
        growing.through(&tree, (node, OWN), 1, work, drop);
        assert_eq!(growing.shard(node).lock().answered, [(node, OWN)]);
        assert_eq!(shown_size(&growing, &tree, node), 1);
        assert!(growing.shard(node).lock().answered.is_empty());
        assert_eq!(growing.waiting.load(Ordering::Acquire), 0);
    }

    #[test]
    fn a_shard_remembers_the_newest_requests_only() {
        let (growing, (tree, node)) = (Growing::default(), tree());
        growing.shard(node).lock().answered = (0..20).map(|n| (1000 + n, OWN)).collect();
        let work = || tree.write(node, 0, Bytes::from_static(b"x"), false).unwrap();
        growing.through(&tree, (node, OWN), 1, work, drop);
        let answered = growing.shard(node).lock().answered.clone();
        assert_eq!((answered.len(), answered[19]), (20, (node, OWN)));
    }

    #[test]
    fn a_writer_is_waited_for_until_it_has_run_or_sleeps() {
        let looks = std::cell::Cell::new(0);
        let states = |states: &'static [Option<u64>]| {
            looks.set(0);
            let has_run = wait_until_it_ran(|| {
                looks.set(looks.get() + 1);
                states.get(looks.get() - 1).copied().unwrap_or(Some(7))
            });
            (has_run, looks.get())
        };
        assert_eq!(states(&[None]), (true, 1));
        assert_eq!(states(&[Some(7), Some(7), Some(8)]), (true, 3));
        assert_eq!(states(&[Some(7), Some(7), Some(7), None]), (true, 4));
        // For some time only.
        assert_eq!(states(&[]), (false, 1 + LOOKS as usize));
    }
}
