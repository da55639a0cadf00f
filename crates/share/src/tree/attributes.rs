//! Changing attributes.

use std::sync::atomic::Ordering;

use super::data::note_hole;
use super::in_record::{self, RECORD_CONTENT_BYTES_MAX};
use super::{Tree, compression, xattr};
use crate::acl::{self, Acl};
use crate::failure::{Failure, Result};
use crate::inode::{Flags, Inode, Time};
use crate::store::State;

/// The largest file: 2^40 blocks of 4 KiB, less one byte, so that its end fits in a signed number
/// of the kernel.
pub(super) const FILE_BYTES_MAX: u64 = (1 << 52) - 1;

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeToSet {
    /// The current time.
    Now,
    /// That one.
    At(Time),
}

/// Attributes to set; `None` leaves one unchanged.
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
    /// Nor the set-group-id bit of a file that its group may not execute.
    pub kill_every_sgid: bool,
}

/// An access time this old is updated by the next read in any case.
const ACCESS_SECONDS_MAX: i64 = 24 * 60 * 60;

fn has_old_access(inode: &Inode, now: Time) -> bool {
    let last = inode.accessed;
    let is_old = now.seconds.saturating_sub(last.seconds) >= ACCESS_SECONDS_MAX;
    now != last && (last <= inode.modified || last <= inode.changed || is_old)
}

/// Whether a change of a file's content clears its set-id bits. A change that is refused does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetId {
    /// The caller may keep them, or there are none.
    Kept,
    /// They are cleared. `every_sgid`: the caller is not in the file's group.
    #[allow(missing_docs, reason = "it is said above")]
    Cleared { every_sgid: bool },
}

/// Clears the set-user-id bit, and the set-group-id bit of a file that its group may execute, or
/// with `every_sgid` of any file. Returns whether one was set.
pub(super) fn kill_privileges(inode: &mut Inode, every_sgid: bool) -> bool {
    let before = inode.mode;
    inode.mode &= !libc::S_ISUID;
    if every_sgid || inode.mode & libc::S_IXGRP != 0 {
        inode.mode &= !libc::S_ISGID;
    }
    inode.mode != before
}

impl Tree {
    /// Moves the access time of a node that is read, by the rule of `relatime`: if the node has
    /// changed since the last access, or that is a day ago.
    ///
    /// # Errors
    /// Those of the namespace.
    pub fn note_access(&self, node: u64) -> Result<()> {
        let now = self.now();
        if !self.look_at(node, |inode| has_old_access(inode, now))? {
            return Ok(());
        }
        let _passed = self.pass();
        let mut state = self.change_in_part()?;
        let inode = state.inode(node)?;
        state.put(node, Inode { accessed: now, ..inode });
        Ok(())
    }

    /// Whether a read of a node would update its access time.
    ///
    /// # Errors
    /// `ESTALE` if it does not exist.
    pub fn has_old_access(&self, node: u64) -> Result<bool> {
        let now = self.now();
        self.look_at(node, |inode| has_old_access(inode, now))
    }

    /// Clears set-id bits of a file that is about to change, as a separate change: if the server
    /// dies in between, the content is the old one. `every_sgid`: the caller is not in the file's
    /// group. Returns whether the mode has changed.
    ///
    /// # Errors
    /// Those of the namespace.
    pub fn clear_set_id(&self, node: u64, every_sgid: bool) -> Result<bool> {
        let _passed = self.pass();
        self.clear_set_id_in_part(node, every_sgid)
    }

    /// The same for a caller that has passed the gate.
    pub(super) fn clear_set_id_in_part(&self, node: u64, every_sgid: bool) -> Result<bool> {
        let mut state = self.change_in_part()?;
        let mut inode = state.inode(node)?;
        let has_changed = !crate::canary!("set-id-stays") && kill_privileges(&mut inode, every_sgid);
        if has_changed {
            inode.changed = self.now();
            state.put(node, inode);
        }
        Ok(has_changed)
    }

    /// Sets attributes.
    ///
    /// # Errors
    /// `EISDIR` or `EINVAL` for the size of anything other than a file, `EFBIG`.
    pub fn set_attributes(&self, node: u64, wanted: &SetAttributes) -> Result<Inode> {
        let _passed = self.pass();
        let _alone = wanted.size.map(|_| self.lock_of(node).write());
        if wanted.size.is_some_and(|size| size > RECORD_CONTENT_BYTES_MAX) {
            self.move_out(node)?;
        }
        let now = self.now();
        // Size and attributes are one change: if the request is repeated, it was done completely or
        // not at all.
        let mut state = self.change_last()?;
        let mut inode = state.inode(node)?;
        let before = inode.size;
        if let Some(size) = wanted.size {
            self.set_size(&mut state, &mut inode, size)?;
        }
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
            kill_privileges(&mut inode, wanted.kill_every_sgid);
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
        if wanted.size.is_some_and(|size| size < before && size > 0) && inode.content.is_none() {
            state.note_trim(inode.data, inode.size, node);
            drop(state);
            self.cut_off(node, &inode, before)?;
        }
        Ok(inode)
    }

    /// Changes the size of a file. The caller has exclusive access to it, and cuts the data off
    /// afterwards.
    fn set_size(&self, state: &mut State, inode: &mut Inode, size: u64) -> Result<()> {
        match inode.kind() {
            libc::S_IFREG => {}
            libc::S_IFDIR => return Err(Failure::new(libc::EISDIR)),
            _ => return Err(Failure::new(libc::EINVAL)),
        }
        if size > FILE_BYTES_MAX {
            return Err(Failure::new(libc::EFBIG));
        }
        if size == inode.size {
            return Ok(());
        }
        // One that does not stay there was moved out before.
        if let Some(content) = &inode.content {
            inode.content = Some(in_record::resized(content, size));
            inode.size = size;
            if size == 0 {
                compression::forget_content(inode);
            }
            return Ok(());
        }
        if size > inode.size {
            self.tidy_end(state, inode.data, inode.size)?;
        }
        note_hole(inode, size);
        inode.size = size;
        if size == 0 {
            inode.flags.set(Flags::SPARSE, false);
            compression::forget_content(inode);
            // The content is dropped once this is durable; later writes go to another place.
            state.trim(inode.data, 0);
            inode.data = state.allocate();
            inode.content = Some(Box::default());
        }
        Ok(())
    }

    /// Makes the remains past the end of a cut file read as zeroes, before the file can grow again,
    /// and not before the cut is durable.
    fn cut_off(&self, node: u64, cut: &Inode, before: u64) -> Result<()> {
        if let Err(failure) = self.sync() {
            // Not cut off yet: otherwise the old bytes would appear when the file grows.
            let mut state = self.change_anyway();
            let inode = state.inode(node)?;
            state.put(node, Inode { size: before, ..inode });
            state.trim_done(cut.data);
            return Err(failure);
        }
        // If it fails, the old bytes would show when the file grows: the next opening sees to it.
        let discarded = self.space.discard(cut.data, cut.size..u64::MAX);
        discarded.inspect_err(|_| self.has_failed.store(true, Ordering::Release))?;
        let mut state = self.change_anyway();
        state.must_order_first = true;
        state.trim_done(cut.data);
        Ok(())
    }
}
