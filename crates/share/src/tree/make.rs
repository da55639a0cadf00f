//! Creating files, directories, links.

use super::directory::living_directory;
use super::mount_points::admit_name;
use super::{Caller, Tree, remove};
use crate::acl::{self, Acl};
use crate::failure::{Failure, Result};
use crate::inode::{Flags, Inode};
use crate::names;
use crate::store::State;

/// The longest target of a symbolic link.
const TARGET_BYTES_MAX: usize = 4095;

/// Names that an inode can have.
const LINKS_MAX: u32 = i32::MAX.cast_unsigned();

/// The name of a new node.
#[derive(Debug, Clone, Copy)]
enum Name<'a> {
    None,
    /// Given by [`Tree::place`].
    Later(&'a [u8]),
    Now(&'a [u8]),
}

impl Tree {
    /// Makes a file, directory, fifo, socket or device node with the type and permissions of
    /// `mode`. `umask` counts where the directory has no default ACL.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT` for a directory that was removed, `EINVAL`, `ENAMETOOLONG`.
    pub fn make(
        &self,
        directory: u64,
        name: &[u8],
        caller: Caller,
        mode: u32,
        umask: u32,
        device: u32,
    ) -> Result<(u64, Inode)> {
        self.make_any(directory, Name::Now(name), caller, mode, umask, device, &[])
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As [`Self::make`]; `ENAMETOOLONG` for its target too.
    pub fn make_link(&self, directory: u64, name: &[u8], caller: Caller, target: &[u8]) -> Result<(u64, Inode)> {
        if target.len() > TARGET_BYTES_MAX {
            return Err(Failure::new(libc::ENAMETOOLONG));
        }
        self.make_any(directory, Name::Now(name), caller, libc::S_IFLNK | 0o777, 0, 0, target)
    }

    /// Makes a file without a name, which goes unless it is given one.
    ///
    /// # Errors
    /// As [`Self::make`].
    pub fn make_nameless(&self, directory: u64, caller: Caller, mode: u32, umask: u32) -> Result<(u64, Inode)> {
        self.make_any(directory, Name::None, caller, libc::S_IFREG | mode & 0o7777, umask, 0, &[])
    }

    /// Makes anything but a directory without a name, for [`Self::place`]: nothing else sees it
    /// before it is complete. It is compressed as a file of the name that it will have. `target` is
    /// that of a symbolic link.
    ///
    /// # Errors
    /// As [`Self::make_link`].
    pub fn make_unplaced(
        &self,
        directory: u64,
        name: &[u8],
        caller: Caller,
        mode: u32,
        device: u32,
        target: &[u8],
    ) -> Result<(u64, Inode)> {
        if target.len() > TARGET_BYTES_MAX {
            return Err(Failure::new(libc::ENAMETOOLONG));
        }
        if mode & libc::S_IFMT == libc::S_IFDIR {
            return Err(Failure::new(libc::EINVAL));
        }
        self.make_any(directory, Name::Later(name), caller, mode, 0, device, target)
    }

    #[allow(clippy::too_many_arguments, reason = "one for each thing that a new inode has")]
    fn make_any(
        &self,
        directory: u64,
        named: Name<'_>,
        caller: Caller,
        mode: u32,
        umask: u32,
        device: u32,
        target: &[u8],
    ) -> Result<(u64, Inode)> {
        let (name, known) = match named {
            Name::Now(name) => (Some(name), Some(name)),
            Name::Later(name) => (None, Some(name)),
            Name::None => (None, None),
        };
        if let Some(name) = known {
            names::check(name)?;
        }
        self.admit(name.map_or(0, <[u8]>::len) + target.len())?;
        let now = self.now();
        let mut state = self.change()?;
        let mut parent = living_directory(&state, directory)?;
        if let Some(name) = name
            && state.find(directory, name)?.is_some()
        {
            return Err(Failure::new(libc::EEXIST));
        }
        let is_directory = mode & libc::S_IFMT == libc::S_IFDIR;
        if let Some(name) = known {
            admit_name(&state, directory, name, is_directory)?;
        }
        if is_directory && parent.links >= LINKS_MAX {
            return Err(Failure::new(libc::EMLINK));
        }
        let number = state.allocate_inode()?;
        let inherits_group = parent.mode & libc::S_ISGID != 0;
        let mut inode = Inode {
            mode,
            uid: caller.uid,
            gid: if inherits_group { parent.gid } else { caller.gid },
            links: if is_directory { 2 } else { u32::from(name.is_some()) },
            device,
            generation: state.generation(),
            size: target.len() as u64,
            data: if mode & libc::S_IFMT == libc::S_IFREG { number } else { 0 },
            parent: if is_directory { directory } else { 0 },
            accessed: now,
            modified: now,
            changed: now,
            born: now,
            target: target.into(),
            flags: Flags::default(),
            content: (mode & libc::S_IFMT == libc::S_IFREG).then(Box::default),
            compression: None,
        };
        if inherits_group && is_directory {
            inode.mode |= libc::S_ISGID;
        }
        inherit_acl(&mut state, directory, &parent, number, &mut inode, umask)?;
        self.begin_compression(&parent, known, &mut inode);
        match name {
            Some(name) => {
                state.add_entry(directory, name, number, inode.kind())?;
                state.mount_points.named(directory, name, number);
                parent.links += u32::from(is_directory);
                (parent.modified, parent.changed) = (now, now);
                state.put(directory, parent);
            }
            None => state.set_orphan(number, true),
        }
        state.put(number, inode.clone());
        state.result = number;
        Ok((number, inode))
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// `EPERM` for a directory, `EEXIST`, `EMLINK`, `ENOENT`.
    pub fn link(&self, node: u64, directory: u64, name: &[u8]) -> Result<Inode> {
        self.link_or_place(node, directory, name, false).map(|(inode, _)| inode)
    }

    /// Gives a node that is not a directory a name, in place of another node, unless that is a
    /// directory. Returns the other node, which [`Self::forget`] removes if it has no other name.
    ///
    /// # Errors
    /// `EPERM` for a directory, `EISDIR` if one has the name, `EMLINK`, `ENOENT`.
    pub fn place(&self, node: u64, directory: u64, name: &[u8]) -> Result<Option<u64>> {
        self.link_or_place(node, directory, name, true).map(|(_, replaced)| replaced)
    }

    fn link_or_place(&self, node: u64, directory: u64, name: &[u8], replaces: bool) -> Result<(Inode, Option<u64>)> {
        names::check(name)?;
        self.admit(name.len())?;
        let now = self.now();
        let mut state = self.change()?;
        let mut inode = state.inode(node)?;
        if inode.is_directory() {
            return Err(Failure::new(libc::EPERM));
        }
        if inode.links >= LINKS_MAX {
            return Err(Failure::new(libc::EMLINK));
        }
        let mut parent = living_directory(&state, directory)?;
        let there = state.find(directory, name)?;
        if there.is_some() && !replaces {
            return Err(Failure::new(libc::EEXIST));
        }
        // Two names of one file stay as they are.
        if there.as_ref().is_some_and(|(_, other)| other.inode == node) {
            return Ok((inode, None));
        }
        admit_name(&state, directory, name, false)?;
        let replaced = match there {
            Some((cookie, other)) => {
                let other_inode = state.inode(other.inode)?;
                if other_inode.is_directory() {
                    return Err(Failure::new(libc::EISDIR));
                }
                state.set_entry(directory, cookie, name, node, inode.kind());
                remove::lose_name(&mut state, other.inode, other_inode, now);
                Some(other.inode)
            }
            None => {
                state.add_entry(directory, name, node, inode.kind())?;
                None
            }
        };
        if inode.links == 0 {
            state.set_orphan(node, false);
        }
        inode.links += u32::from(!crate::canary!("link-not-counted"));
        inode.changed = now;
        state.put(node, inode.clone());
        (parent.modified, parent.changed) = (now, now);
        state.put(directory, parent);
        state.result = node;
        Ok((inode, replaced))
    }
}

/// Gives a new inode the default ACL of its directory, or else applies the umask.
fn inherit_acl(
    state: &mut State,
    directory: u64,
    parent: &Inode,
    number: u64,
    inode: &mut Inode,
    umask: u32,
) -> Result<()> {
    if inode.kind() == libc::S_IFLNK {
        return Ok(());
    }
    if !parent.flags.has(Flags::DEFAULT_ACL) {
        inode.mode &= !(umask & 0o777);
        return Ok(());
    }
    // If it is lost, it may have granted rights to the owner alone.
    let bytes = state.xattr(directory, acl::DEFAULT)?.unwrap_or_else(|| Acl::of_owner(0o7).encode());
    let mut access = Acl::parse(&bytes)?;
    access.restrict(inode.mode);
    inode.mode = inode.mode & !0o777 | access.mode_bits();
    if !access.is_minimal() {
        state.set_xattr(number, acl::ACCESS, &access.encode());
        inode.flags.set(Flags::ACCESS_ACL, true);
    }
    if inode.is_directory() {
        state.set_xattr(number, acl::DEFAULT, &bytes);
        inode.flags.set(Flags::DEFAULT_ACL, true);
    }
    Ok(())
}
