//! Changes to a mounted tree that do not come from its mount, such as an import by the server. Owns
//! the notifications with which the kernel's cache follows them. Any thread that serves no requests
//! may use it.
//!
//! | cached by the kernel | follows by |
//! | --- | --- |
//! | attributes and ACLs of a node, names of a listed directory | a notification that drops them |
//! | a name that is absent, or means another node now | a look-up through the mount, by the caller |
//! | pages of a file | nothing: a file must be complete before it gets a name |
//!
//! The kernel has a notification that drops a name as well, but it waits for the directory's lock,
//! which a program holds while it waits for an answer. A server that is killed at that point could
//! not end before the next one answers that program. The notifications used here wait for no
//! program.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::mount::Mount;
use crate::served::Served;

/// The users of a mounted tree that change it without the mount. The tree is closed when the mount
/// ends, so their steps end before.
#[derive(Default)]
pub(crate) struct DirectUsers {
    count: AtomicUsize,
    steps: Mutex<Steps>,
    changed: Condvar,
}

#[derive(Default)]
struct Steps {
    running: usize,
    have_ended: bool,
}

impl DirectUsers {
    /// Returns whether there are any.
    pub(crate) fn are_there(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Waits for their current steps, and refuses later ones.
    pub(crate) fn end(&self) {
        let mut steps = self.steps.lock();
        steps.have_ended = true;
        while steps.running > 0 {
            self.changed.wait(&mut steps);
        }
    }
}

/// See the module's text.
pub struct DirectChanges {
    served: Arc<Served>,
}

impl Mount {
    /// Begins changes without the mount, which end when the result is dropped.
    pub fn direct_changes(&self) -> DirectChanges {
        self.served.direct.count.fetch_add(1, Ordering::SeqCst);
        DirectChanges { served: self.served.clone() }
    }
}

impl Drop for DirectChanges {
    fn drop(&mut self) {
        self.served.direct.count.fetch_sub(1, Ordering::SeqCst);
    }
}

impl DirectChanges {
    /// Begins a step, which may change the tree until [`Self::end_step`].
    ///
    /// # Errors
    /// `EROFS` while the mount refuses changes; `ENODEV` after it has ended.
    pub fn begin_step(&self) -> share::Result<()> {
        if self.served.is_read_only.load(Ordering::Relaxed) {
            return Err(share::Failure::new(libc::EROFS));
        }
        let mut steps = self.served.direct.steps.lock();
        if steps.have_ended {
            return Err(share::Failure::new(libc::ENODEV));
        }
        steps.running += 1;
        Ok(())
    }

    /// Ends a step.
    pub fn end_step(&self) {
        self.served.direct.steps.lock().running -= 1;
        self.served.direct.changed.notify_all();
    }

    /// Returns whether the mount has ended.
    pub fn have_ended(&self) -> bool {
        self.served.direct.steps.lock().have_ended
    }

    /// Returns the error number that a program gets for setting an extended attribute that the
    /// mount does not have.
    pub fn refusal_of_xattr(&self, name: &[u8]) -> Option<i32> {
        let setting = fuse::Operation::SetXattr { name, value: b"", flags: 0, clears_sgid: false };
        self.served.tree.xattrs.refusal(&setting).map(|_| libc::EOPNOTSUPP)
    }

    /// A name in a directory has been given to a node, perhaps in place of another. Returns whether
    /// the caller must look it up through the mount, so that programs find the node. `is_new`: the
    /// directory was made by these changes.
    #[must_use]
    pub fn named(&self, (directory, is_new): (u64, bool), name: &[u8], replaced: Option<u64>) -> bool {
        if !self.drop_listing(directory) {
            return false;
        }
        replaced.is_some_and(|node| self.changed(node)) || self.served.lookups.may_be_absent(directory, is_new, name)
    }

    /// Drops the cached attributes of a directory, and its names as `readdir` returns them. Returns
    /// whether the kernel knows the directory.
    pub fn drop_listing(&self, directory: u64) -> bool {
        self.drop_cached(directory, 0)
    }

    /// The attributes of a node have changed. Returns whether the kernel knows the node.
    pub fn changed(&self, node: u64) -> bool {
        self.drop_cached(node, -1)
    }

    fn drop_cached(&self, node: u64, offset: i64) -> bool {
        if !self.served.lookups.may_know(node) {
            return false;
        }
        let Some(notifier) = self.served.notifier.get() else { return true };
        notifier.inval_inode(node, offset, 0).unwrap_or_else(|error| {
            log::error!("inode {node} changed, but the kernel's cache keeps its old attributes: {error}");
            true
        })
    }

    /// A node has lost a name. It is removed if it has no other, now or when the kernel forgets it.
    ///
    /// # Errors
    /// Those of the namespace.
    pub fn lost_name(&self, node: u64) -> share::Result<()> {
        // A look-up that is being answered may still find it: then a program gets ESTALE.
        if self.changed(node) { Ok(()) } else { self.served.tree.forget(node) }
    }
}
