//! Set-id bits, which a change of a file clears. For writes and changes of the size, the kernel
//! says whether the caller may keep them. It does not for `fallocate` and `copy_file_range`, nor
//! does it say whether the caller is in the file's group, which decides about the set-group-id bit
//! of a file that its group may not execute. Called by any thread that serves.

use fuse::{Errno, SetAttributes};
use share::{Inode, SetId};

use crate::process::Process;
use crate::served::{Served, errno};

impl Served {
    /// Returns whether a file has a set-group-id bit without execute permission for the group, and
    /// a process that may not keep such bits is not in the group.
    pub(crate) fn is_of_other_group(&self, node: u64, process: Process) -> bool {
        let has_bit = |inode: &Inode| {
            let is_bare = inode.mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID;
            (is_bare && !inode.is_directory()).then_some(inode.gid)
        };
        let group = self.tree.look_at(node, has_bit).ok().flatten();
        group.is_some_and(|gid| !process.is_in_group(gid) && !process.keeps_set_id())
    }

    /// Returns whether a change of attributes clears set-id bits. A change without any attribute is
    /// sent for `chown(-1, -1)`, and before writes of any kind to a file that has such bits or
    /// capabilities.
    pub(crate) fn kills_set_id(&self, node: u64, wanted: &SetAttributes, process: Process) -> Result<bool, Errno> {
        if *wanted != SetAttributes::default() {
            return Ok(wanted.kill_suid_sgid);
        }
        if self.is_refused_to_clear(node, process) {
            return Err(Errno::EPERM);
        }
        let (is_directory, uid) = self.tree.look_at(node, |inode| (inode.is_directory(), inode.uid)).map_err(errno)?;
        // Another user's write clears them with the content. If the system call is not known, they
        // are cleared: a missing bit is safe.
        let may_change_owner = || process.changes_owner() != Some(false);
        Ok(!is_directory && process.acts_for(uid) && (!process.keeps_set_id() || may_change_owner()))
    }

    /// Returns whether a process may not change owners to the same ones: that would clear set-id
    /// bits, and it may not change the mode. The kernel does not see that the mode would change.
    pub(crate) fn is_refused_to_clear(&self, node: u64, process: Process) -> bool {
        let Ok((uid, mode)) = self.tree.look_at(node, |inode| (inode.uid, inode.mode)) else { return false };
        let has_bits = mode & libc::S_ISUID != 0
            || mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID | libc::S_IXGRP
            || self.is_of_other_group(node, process);
        let is_file = mode & libc::S_IFMT != libc::S_IFDIR;
        is_file && has_bits && !process.acts_for(uid) && process.changes_owner() == Some(true)
    }

    /// Runs `change`, which changes a file's content and is passed whether to clear set-id bits,
    /// for requests in which the kernel does not say so.
    pub(crate) fn with_set_id<T>(
        &self,
        node: u64,
        process: Process,
        change: impl FnOnce(SetId) -> share::Result<T>,
    ) -> share::Result<T> {
        let has_bits = |inode: &Inode| inode.is_file() && inode.mode & (libc::S_ISUID | libc::S_ISGID) != 0;
        if !self.tree.look_at(node, has_bits)? || process.keeps_set_id() {
            return change(SetId::Kept);
        }
        let changed = change(SetId::Cleared { every_sgid: self.is_of_other_group(node, process) });
        // After a failure, too: a part of it may be done.
        self.forget_mode(node);
        changed
    }

    pub(crate) fn clear_set_id(&self, node: u64, every_sgid: bool) -> share::Result<()> {
        if self.tree.clear_set_id(node, every_sgid)? {
            self.forget_mode(node);
        }
        Ok(())
    }

    /// Makes the kernel drop the cached mode.
    pub(crate) fn forget_mode(&self, node: u64) {
        if let Some(notifier) = self.notifier.get()
            && let Err(error) = notifier.inval_inode(node, -1, 0)
        {
            log::error!("the mode of inode {node} changed, but the kernel's cache keeps the old one: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};
    use std::thread;

    use share::{Caller, Options, Time, Tree};
    use sim::SimSpace;

    use super::*;
    use crate::lookups::LookupCounts;
    use crate::mount::MountOptions;
    use crate::shown_tree::ShownTree;
    use crate::xattr_support::XattrSupport;

    const OPTIONS: Options = Options { now: || Time { seconds: 9, nanoseconds: 1 }, cache_bytes: 1 << 20 };

    /// The kernel does not show the system call of a running process.
    #[test]
    fn a_call_that_is_not_known_clears_bits_and_is_not_refused() {
        let tree = Arc::new(Tree::create(SimSpace::new(), 7, OPTIONS).unwrap());
        let owner = Caller { uid: rustix::process::geteuid().as_raw(), gid: 0 };
        let node = tree.make(Tree::ROOT, b"f", owner, libc::S_IFREG | 0o6777, 0, 0).unwrap().0;
        let served = Served::new(
            ShownTree::new(tree, XattrSupport::All),
            LookupCounts::default(),
            None,
            &MountOptions::default(),
        )
        .unwrap();
        let (ends, (tell, told)) = (AtomicBool::new(false), mpsc::channel());
        thread::scope(|threads| {
            threads.spawn(|| {
                tell.send(Process::of_this_thread()).unwrap();
                while !ends.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let process = told.recv().unwrap();
            // It may still be waking the receiver.
            while process.changes_owner().is_some() {
                thread::yield_now();
            }
            let killed = served.kills_set_id(node, &SetAttributes::default(), process);
            let is_refused = served.is_refused_to_clear(node, process);
            ends.store(true, Ordering::Relaxed);
            assert_eq!((killed, is_refused), (Ok(true), false));
        });
    }
}
