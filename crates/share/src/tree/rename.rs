//! Renaming.

use super::directory::living_directory;
use super::mount_points::{admit_name, refuse_kept_name};
use super::{Tree, remove};
use crate::failure::{Failure, Result};
use crate::inode::{Flags, Inode, Time};
use crate::names::{self, Named};
use crate::store::State;

/// Directory and name of an entry.
#[derive(Debug, Clone, Copy)]
struct EntryRef<'a> {
    directory: u64,
    name: &'a [u8],
}

impl Tree {
    /// Renames, with the flags of `renameat2`. An existing target is replaced, or moved to the old
    /// name with `RENAME_EXCHANGE`. `RENAME_WHITEOUT` leaves a device node 0:0 at the old name.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST` with `RENAME_NOREPLACE` and for the name of the snapshots, `ENOTDIR`,
    /// `EISDIR`, `ENOTEMPTY`, `EINVAL` for moving a directory into itself.
    pub fn rename(&self, from: u64, name: &[u8], to: u64, new_name: &[u8], flags: u32) -> Result<()> {
        const KNOWN: u32 = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT;
        let (no_replace, exchange) = (flags & libc::RENAME_NOREPLACE != 0, flags & libc::RENAME_EXCHANGE != 0);
        if flags & !KNOWN != 0 || exchange && flags != libc::RENAME_EXCHANGE {
            return Err(Failure::new(libc::EINVAL));
        }
        names::check(name)?;
        names::check(new_name)?;
        refuse_kept_name(to, new_name)?;
        let now = self.now();
        let mut state = self.change()?;
        living_directory(&state, from)?;
        living_directory(&state, to)?;
        let old = EntryRef { directory: from, name };
        let new = EntryRef { directory: to, name: new_name };
        let (old_cookie, moved) = state.find(from, name)?.ok_or(Failure::new(libc::ENOENT))?;
        let there = state.find(to, new_name)?;
        let moved_inode = state.inode(moved.inode)?;
        if no_replace && there.is_some() {
            return Err(Failure::new(libc::EEXIST));
        }
        if moved_inode.is_directory() && is_within(&state, to, moved.inode)? {
            return Err(Failure::new(libc::EINVAL));
        }
        if exchange {
            let (new_cookie, other) = there.ok_or(Failure::new(libc::ENOENT))?;
            return exchange_names(&mut state, (old, old_cookie, moved), (new, new_cookie, other), now);
        }
        // Two names of one file stay as they are.
        if there.as_ref().is_some_and(|(_, other)| other.inode == moved.inode) {
            return Ok(());
        }
        admit_name(&state, to, new_name, is_empty_directory(&state, &moved)?)?;
        if flags & libc::RENAME_WHITEOUT != 0 {
            admit_name(&state, from, name, false)?;
        }
        match &there {
            Some((cookie, other)) => {
                let other_inode = state.inode(other.inode)?;
                match (moved_inode.is_directory(), other_inode.is_directory()) {
                    (true, false) => return Err(Failure::new(libc::ENOTDIR)),
                    (false, true) => return Err(Failure::new(libc::EISDIR)),
                    (true, true) if !state.is_empty(other.inode)? => return Err(Failure::new(libc::ENOTEMPTY)),
                    _ => {}
                }
                state.set_entry(to, *cookie, new_name, moved.inode, moved.kind);
                state.mount_points.unnamed(to, new_name, other.inode);
                if other_inode.is_directory() {
                    change_directory(&mut state, to, now, |directory| directory.links -= 1)?;
                }
                remove::lose_name(&mut state, other.inode, other_inode, now);
            }
            None => state.add_entry(to, new_name, moved.inode, moved.kind)?,
        }
        if flags & libc::RENAME_WHITEOUT != 0 {
            let whiteout = self.whiteout(&mut state, &moved_inode, now);
            state.set_entry(from, old_cookie, name, whiteout, libc::S_IFCHR);
        } else {
            state.remove_entry(from, old_cookie);
        }
        state.mount_points.unnamed(from, name, moved.inode);
        state.mount_points.named(to, new_name, moved.inode);
        move_inode(&mut state, moved.inode, from, to, now)?;
        #[cfg(feature = "canaries")]
        if crate::canary!("rename-not-logged") {
            state.forget_unlogged_names();
        }
        change_directory(&mut state, from, now, |_| {})?;
        change_directory(&mut state, to, now, |_| {})
    }

    fn whiteout(&self, state: &mut State, like: &Inode, now: Time) -> u64 {
        let number = state.allocate();
        let inode = Inode {
            mode: libc::S_IFCHR,
            links: 1,
            device: 0,
            generation: state.generation(),
            size: 0,
            data: 0,
            parent: 0,
            accessed: now,
            modified: now,
            changed: now,
            born: now,
            target: Box::default(),
            content: None,
            flags: Flags::default(),
            compression: None,
            ..*like
        };
        state.put(number, inode);
        number
    }
}

/// Whether `directory` is `ancestor` or lies below it.
fn is_within(state: &State, mut directory: u64, ancestor: u64) -> Result<bool> {
    loop {
        if directory == ancestor {
            return Ok(true);
        }
        if directory == Tree::ROOT {
            return Ok(false);
        }
        directory = state.inode(directory)?.parent;
    }
}

fn is_empty_directory(state: &State, named: &Named) -> Result<bool> {
    Ok(named.kind == libc::S_IFDIR && state.is_empty(named.inode)?)
}

fn change_directory(state: &mut State, node: u64, now: Time, change: impl FnOnce(&mut Inode)) -> Result<()> {
    let mut directory = state.inode(node)?;
    (directory.modified, directory.changed) = (now, now);
    change(&mut directory);
    state.put(node, directory);
    Ok(())
}

/// An inode has moved from one directory to another, which may be the same.
fn move_inode(state: &mut State, node: u64, from: u64, to: u64, now: Time) -> Result<()> {
    let mut inode = state.inode(node)?;
    inode.changed = now;
    if crate::canary!("hint-lost-on-rename") {
        inode.compression = None;
    }
    if inode.is_directory() && from != to {
        inode.parent = to;
        change_directory(state, from, now, |directory| directory.links -= 1)?;
        change_directory(state, to, now, |directory| directory.links += 1)?;
    }
    state.put(node, inode);
    Ok(())
}

fn exchange_names(
    state: &mut State,
    (old, old_cookie, moved): (EntryRef<'_>, u64, Named),
    (new, new_cookie, other): (EntryRef<'_>, u64, Named),
    now: Time,
) -> Result<()> {
    let other_is_directory = other.kind == libc::S_IFDIR;
    if other_is_directory && is_within(state, old.directory, other.inode)? {
        return Err(Failure::new(libc::EINVAL));
    }
    admit_name(state, new.directory, new.name, is_empty_directory(state, &moved)?)?;
    admit_name(state, old.directory, old.name, is_empty_directory(state, &other)?)?;
    for (place, was, is) in [(old, &moved, &other), (new, &other, &moved)] {
        state.mount_points.unnamed(place.directory, place.name, was.inode);
        state.mount_points.named(place.directory, place.name, is.inode);
    }
    state.set_entry(new.directory, new_cookie, new.name, moved.inode, moved.kind);
    state.set_entry(old.directory, old_cookie, old.name, other.inode, other.kind);
    move_inode(state, moved.inode, old.directory, new.directory, now)?;
    move_inode(state, other.inode, new.directory, old.directory, now)?;
    change_directory(state, old.directory, now, |_| {})?;
    change_directory(state, new.directory, now, |_| {})
}
