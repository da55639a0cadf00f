//! Lookup and listing of names.

use super::Tree;
use crate::failure::{Failure, Result};
use crate::inode::Inode;
use crate::names::{self, COOKIE_DOT, COOKIE_DOT_DOT};
use crate::store::State;

/// A name of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Position after this entry in a listing.
    pub cookie: u64,
    /// Its inode.
    pub node: u64,
    /// Its type, as `S_IFMT` masks it.
    pub kind: u32,
    /// The name.
    pub name: Vec<u8>,
}

/// A directory that can have names.
///
/// # Errors
/// `ENOTDIR`; `ENOENT` for one that was removed.
pub(super) fn living_directory(state: &State, node: u64) -> Result<Inode> {
    let inode = state.inode(node)?;
    match (inode.is_directory(), inode.links) {
        (false, _) => Err(Failure::new(libc::ENOTDIR)),
        (true, 0) => Err(Failure::new(libc::ENOENT)),
        _ => Ok(inode),
    }
}

impl Tree {
    /// Attributes of a node.
    ///
    /// # Errors
    /// `ESTALE` if it does not exist.
    pub fn inode(&self, node: u64) -> Result<Inode> {
        self.state.read().inode(node)
    }

    /// Returns a part of a node's attributes without copying all of them.
    ///
    /// # Errors
    /// `ESTALE` if it does not exist.
    pub fn look_at<T>(&self, node: u64, look: impl FnOnce(&Inode) -> T) -> Result<T> {
        self.state.read().look_at(node, look)
    }

    /// The node of a name, `.` and `..` among them.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`.
    pub fn lookup(&self, directory: u64, name: &[u8]) -> Result<(u64, Inode)> {
        let state = self.state.read();
        let inode = state.inode(directory)?;
        if name == b"." {
            return Ok((directory, inode));
        }
        if !inode.is_directory() {
            return Err(Failure::new(libc::ENOTDIR));
        }
        if name == b".." {
            return Ok((inode.parent, state.inode(inode.parent)?));
        }
        if name.len() > names::NAME_BYTES_MAX {
            return Err(Failure::new(libc::ENAMETOOLONG));
        }
        let (_, named) = state.find(directory, name)?.ok_or(Failure::new(libc::ENOENT))?;
        Ok((named.inode, state.inode(named.inode)?))
    }

    /// Names of a directory after the cookie `after` (0: all), until `wants_more` returns false.
    /// The attributes are the current ones.
    ///
    /// # Errors
    /// `ENOTDIR`, `ESTALE`.
    pub fn list(&self, directory: u64, after: u64, mut wants_more: impl FnMut(Listed, Inode) -> bool) -> Result<()> {
        let mut read = Ok(());
        let listed = self.list_names(directory, after, |listed, inode| match inode {
            Ok(inode) => wants_more(listed, inode),
            Err(failure) => {
                read = Err(failure);
                false
            }
        });
        listed.and(read)
    }

    /// The same, including names whose attributes cannot be read.
    ///
    /// # Errors
    /// `ENOTDIR`, `ESTALE`.
    pub fn list_names(
        &self,
        directory: u64,
        after: u64,
        mut wants_more: impl FnMut(Listed, Result<Inode>) -> bool,
    ) -> Result<()> {
        let state = self.state.read();
        let inode = state.inode(directory)?;
        if !inode.is_directory() {
            return Err(Failure::new(libc::ENOTDIR));
        }
        for (cookie, name, node) in [(COOKIE_DOT, &b"."[..], directory), (COOKIE_DOT_DOT, b"..", inode.parent)] {
            if after < cookie {
                // The parent of a removed directory may not exist any more.
                let inode =
                    if node == directory { inode.clone() } else { state.inode(node).unwrap_or_else(|_| inode.clone()) };
                let listed = Listed { cookie, node, kind: libc::S_IFDIR, name: name.to_vec() };
                if !wants_more(listed, Ok(inode)) {
                    return Ok(());
                }
            }
        }
        // In steps, so that the inodes can be looked up between them.
        const STEP: usize = 256;
        let mut after = after.max(COOKIE_DOT_DOT);
        loop {
            let mut step = Vec::with_capacity(STEP);
            let read = state.list(directory, after, |cookie, named| {
                step.push((cookie, named));
                step.len() < STEP
            });
            let is_last = step.len() < STEP;
            for (cookie, named) in step {
                after = cookie;
                let inode = state.inode(named.inode);
                let listed = Listed { cookie, node: named.inode, kind: named.kind, name: named.name };
                if !wants_more(listed, inode) {
                    return Ok(());
                }
            }
            // After the preceding names.
            read?;
            if is_last {
                return Ok(());
            }
        }
    }

    /// Names of a directory, without their inodes: the most that can be read in a share with
    /// damaged names. Also returns the failure that hides other names, if there is one.
    pub fn names(&self, directory: u64) -> (Vec<Listed>, Option<Failure>) {
        let (mut names, mut lost) = (Vec::new(), None);
        let mut after = COOKIE_DOT_DOT;
        loop {
            let listed = self.state.read().list(directory, after, |cookie, named| {
                names.push(Listed { cookie, node: named.inode, kind: named.kind, name: named.name });
                true
            });
            let Err(failure) = listed else { return (names, lost) };
            lost = lost.or(Some(failure));
            after = names.last().map_or(after, |last: &Listed| after.max(last.cookie));
            match self.cookie_after_damage(directory, after) {
                Some(behind) => after = behind,
                None => return (names, lost),
            }
        }
    }

    /// A cookie after `after` from which a listing can continue, where the names immediately after
    /// `after` cannot be read.
    fn cookie_after_damage(&self, directory: u64, after: u64) -> Option<u64> {
        let is_whole = |after| self.state.read().list(directory, after, |_, _| false).is_ok();
        let mut step = names::TWINS_MAX;
        let mut bad = after;
        let mut good = loop {
            let next = after.saturating_add(step);
            if next >= names::COOKIES_END {
                return None;
            }
            if is_whole(next) {
                break next;
            }
            (bad, step) = (next, step * 2);
        };
        while good - bad > 1 {
            let middle = bad.midpoint(good);
            if is_whole(middle) {
                good = middle;
            } else {
                bad = middle;
            }
        }
        Some(good)
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL` if it is not one.
    pub fn read_link(&self, node: u64) -> Result<Vec<u8>> {
        let inode = self.state.read().inode(node)?;
        if inode.kind() == libc::S_IFLNK { Ok(inode.target.into()) } else { Err(Failure::new(libc::EINVAL)) }
    }
}
