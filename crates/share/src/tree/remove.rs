//! Removing names, and nodes without names.

use super::Tree;
use super::directory::living_directory;
use crate::failure::{Failure, Result};
use crate::inode::{Inode, Time};
use crate::names;
use crate::store::State;

impl Tree {
    /// Removes a name that is not a directory. Returns its node, which is removed by
    /// [`Self::forget`] if it has no other name.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`.
    pub fn unlink(&self, directory: u64, name: &[u8]) -> Result<u64> {
        self.remove(directory, name, false)
    }

    /// Takes an empty directory away.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`.
    pub fn remove_directory(&self, directory: u64, name: &[u8]) -> Result<u64> {
        self.remove(directory, name, true)
    }

    fn remove(&self, directory: u64, name: &[u8], is_directory: bool) -> Result<u64> {
        if name.len() > names::NAME_BYTES_MAX {
            return Err(Failure::new(libc::ENAMETOOLONG));
        }
        let now = self.now();
        let mut state = self.change()?;
        let mut parent = living_directory(&state, directory)?;
        let (cookie, named) = state.find(directory, name)?.ok_or(Failure::new(libc::ENOENT))?;
        let inode = state.inode(named.inode)?;
        match (is_directory, inode.is_directory()) {
            (true, false) => return Err(Failure::new(libc::ENOTDIR)),
            (false, true) => return Err(Failure::new(libc::EISDIR)),
            (true, true) if !state.is_empty(named.inode)? => return Err(Failure::new(libc::ENOTEMPTY)),
            _ => {}
        }
        state.remove_entry(directory, cookie);
        state.mount_points.unnamed(directory, name, named.inode);
        parent.links -= u32::from(is_directory);
        (parent.modified, parent.changed) = (now, now);
        state.put(directory, parent);
        lose_name(&mut state, named.inode, inode, now);
        Ok(named.inode)
    }

    /// The kernel has no more references to a node: removes it if it has no name.
    ///
    /// # Errors
    /// Those of the namespace.
    pub fn forget(&self, node: u64) -> Result<()> {
        // Most that is forgotten has a name.
        if !matches!(self.state.read().look_at(node, |inode| inode.links), Ok(0)) {
            return Ok(());
        }
        let _passed = self.pass();
        // Also if there is no space for a commit: the kernel forgets a node only once.
        let mut state = self.change_anyway();
        match state.inode(node) {
            Ok(inode) if inode.links == 0 => reap(&mut state, node),
            _ => Ok(()),
        }
    }
}

/// An inode loses a name; a directory is empty and has none afterwards.
pub(super) fn lose_name(state: &mut State, node: u64, mut inode: Inode, now: Time) {
    inode.links = if inode.is_directory() { 0 } else { inode.links.saturating_sub(1) };
    inode.changed = now;
    if inode.links == 0 {
        state.set_orphan(node, true);
    }
    state.put(node, inode);
}

/// Removes an orphan with all that belongs to it.
pub(super) fn reap(state: &mut State, node: u64) -> Result<()> {
    let inode = state.inode(node)?;
    for name in state.xattr_names(node)? {
        state.remove_xattr(node, &name);
    }
    if inode.data != 0 {
        state.trim(inode.data, 0);
    }
    state.set_orphan(node, false);
    state.remove_inode(node);
    Ok(())
}
