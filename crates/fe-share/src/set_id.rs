//! Set-id bits, which a change of a file clears. The kernel says for writes and changes of the size
//! that the caller may not keep them. It does not say so for `fallocate` and `copy_file_range`, nor
//! whether the caller is in the file's group, which decides about the set-group-id bit of a file
//! that its group may not execute.

use fuse::{Errno, SetAttributes};
use share::Inode;

use crate::process::Process;
use crate::served::{Served, errno};

impl Served {
    /// Whether a file has a set-group-id bit that its group's right to execute does not decide, and
    /// a process that may not keep such bits is not in the group.
    pub(crate) fn is_of_other_group(&self, node: u64, process: Process) -> bool {
        let has_bit = |inode: &Inode| {
            let is_bare = inode.mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID;
            (is_bare && !inode.is_directory()).then_some(inode.gid)
        };
        let group = self.tree.look_at(node, has_bit).ok().flatten();
        group.is_some_and(|gid| !process.is_in_group(gid) && !process.keeps_set_id())
    }

    /// Whether a change of attributes clears set-id bits. One without any attribute comes for
    /// `chown(-1, -1)`, which another user than the owner may not do where it would clear such bits,
    /// and before `fallocate` and `copy_file_range`, which clear them themselves.
    pub(crate) fn kills_set_id(&self, node: u64, wanted: &SetAttributes, process: Process) -> Result<bool, Errno> {
        if *wanted != SetAttributes::default() {
            return Ok(wanted.kill_suid_sgid);
        }
        let look = |inode: &Inode| (inode.is_directory(), inode.uid, inode.mode);
        let (is_directory, uid, mode) = self.tree.look_at(node, look).map_err(errno)?;
        if is_directory || process.acts_for(uid) {
            return Ok(!is_directory);
        }
        let would_clear = mode & libc::S_ISUID != 0
            || mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID | libc::S_IXGRP
            || self.is_of_other_group(node, process);
        if would_clear && process.is_changing_owner() { Err(Errno::EPERM) } else { Ok(false) }
    }

    /// Clears set-id bits of a file that is about to change, for requests in which the kernel does
    /// not say whether they stay.
    pub(crate) fn clear_set_id_unless_kept(&self, node: u64, process: Process) -> share::Result<()> {
        let has_bits = |inode: &Inode| inode.is_file() && inode.mode & (libc::S_ISUID | libc::S_ISGID) != 0;
        if self.tree.look_at(node, has_bits)? && !process.keeps_set_id() {
            self.clear_set_id(node, self.is_of_other_group(node, process))?;
        }
        Ok(())
    }

    pub(crate) fn clear_set_id(&self, node: u64, every_sgid: bool) -> share::Result<()> {
        if self.tree.clear_set_id(node, every_sgid)? {
            self.forget_mode(node);
        }
        Ok(())
    }

    /// Has the kernel drop the mode that it has cached.
    pub(crate) fn forget_mode(&self, node: u64) {
        if let Some(notifier) = self.notifier.get()
            && let Err(error) = notifier.inval_inode(node, -1, 0)
        {
            log::error!("the kernel cannot be told of a changed mode: {error}");
        }
    }
}
