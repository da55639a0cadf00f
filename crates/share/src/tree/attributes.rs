//! Changing attributes.

use std::sync::atomic::Ordering;

use super::data::note_hole;
use super::{Tree, compression, xattr};
use crate::acl::{self, Acl};
use crate::failure::{Failure, Result};
use crate::inode::{Flags, Inode, Time};

/// The largest file: 2^40 blocks of 4 KiB, less one byte, so that its end fits in a signed number
/// of the kernel.
pub(super) const FILE_BYTES_MAX: u64 = (1 << 52) - 1;

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeToSet {
    /// The present.
    Now,
    /// That one.
    At(Time),
}

/// Attributes to set; those that are `None` stay.
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs, reason = "as in `struct iattr`")]
pub struct SetAttributes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub accessed: Option<TimeToSet>,
    pub modified: Option<TimeToSet>,
    /// The caller may not keep set-user-id and set-group-id bits.
    pub kill_suid_sgid: bool,
}

/// Takes set-user-id and set-group-id bits away, the latter where it means execution. Returns
/// whether there was one.
pub(super) fn kill_privileges(inode: &mut Inode) -> bool {
    let before = inode.mode;
    inode.mode &= !libc::S_ISUID;
    if inode.mode & libc::S_IXGRP != 0 {
        inode.mode &= !libc::S_ISGID;
    }
    inode.mode != before
}

impl Tree {
    /// Sets attributes.
    ///
    /// # Errors
    /// `EISDIR` or `EINVAL` for the size of what is no file, `EFBIG`.
    pub fn set_attributes(&self, node: u64, wanted: &SetAttributes) -> Result<Inode> {
        let _passed = self.pass();
        if let Some(size) = wanted.size {
            self.set_size(node, size)?;
        }
        let now = self.now();
        let mut state = self.change_last()?;
        let mut inode = state.inode(node)?;
        let changes_content = wanted.size.is_some();
        let changes_owner = wanted.uid.is_some() || wanted.gid.is_some();
        if let Some(mode) = wanted.mode {
            inode.mode = inode.kind() | mode & 0o7777;
            if inode.flags.has(Flags::ACCESS_ACL)
                && let Some(bytes) = state.xattr(node, acl::ACCESS)?
            {
                let mut access = Acl::parse(&bytes)?;
                access.set_mode_bits(mode);
                state.set_xattr(node, acl::ACCESS, &access.encode());
            }
        }
        inode.uid = wanted.uid.unwrap_or(inode.uid);
        inode.gid = wanted.gid.unwrap_or(inode.gid);
        if changes_owner && !inode.is_directory() || wanted.kill_suid_sgid {
            kill_privileges(&mut inode);
        }
        if changes_owner || changes_content {
            xattr::drop_capability(&mut state, node, &mut inode)?;
        }
        let time = |wanted: TimeToSet| match wanted {
            TimeToSet::Now => now,
            TimeToSet::At(time) => time,
        };
        if let Some(accessed) = wanted.accessed {
            inode.accessed = time(accessed);
        }
        match wanted.modified {
            Some(modified) => inode.modified = time(modified),
            None if changes_content => inode.modified = now,
            None => {}
        }
        inode.changed = now;
        state.put(node, inode.clone());
        Ok(inode)
    }

    /// Cuts or extends a file. The caller has passed the gate.
    fn set_size(&self, node: u64, size: u64) -> Result<()> {
        let _alone = self.lock_of(node).write();
        let mut state = self.change_in_part()?;
        let mut inode = state.inode(node)?;
        match inode.kind() {
            libc::S_IFREG => {}
            libc::S_IFDIR => return Err(Failure::new(libc::EISDIR)),
            _ => return Err(Failure::new(libc::EINVAL)),
        }
        if size > FILE_BYTES_MAX {
            return Err(Failure::new(libc::EFBIG));
        }
        let (before, data) = (inode.size, inode.data);
        if size == before {
            return Ok(());
        }
        if size > before {
            self.tidy_end(&mut state, data, before)?;
        }
        note_hole(&mut inode, size);
        inode.size = size;
        if size == 0 {
            inode.flags.set(Flags::SPARSE, false);
            compression::forget_content(&mut inode);
            // The content goes once this is durable; what is written from now on lies elsewhere.
            state.trim(data, 0);
            inode.data = state.allocate();
        }
        state.put(node, inode);
        if size < before && size > 0 {
            // What is cut off must read as zeroes before the file can grow again, and must not go
            // before the cut is durable.
            state.note_trim(data, size);
            drop(state);
            if let Err(failure) = self.sync() {
                // It is not cut off: else the old bytes would show when the file grows.
                let mut state = self.change_anyway();
                let inode = state.inode(node)?;
                state.put(node, Inode { size: before, ..inode });
                state.trim_done(data);
                return Err(failure);
            }
            // If it fails, the old bytes would show when the file grows: the next opening sees to
            // it.
            let discarded = self.space.discard(data, size..u64::MAX);
            discarded.inspect_err(|_| self.has_failed.store(true, Ordering::Release))?;
            let mut state = self.change_anyway();
            state.must_flush_first = true;
            state.trim_done(data);
        }
        Ok(())
    }
}
