//! Creating files, directories, links.

use super::directory::living_directory;
use super::mount_points::admit_name;
use super::{Caller, Tree};
use crate::acl::{self, Acl};
use crate::failure::{Failure, Result};
use crate::inode::{Flags, Inode};
use crate::names;
use crate::store::State;

/// The longest target of a symbolic link.
const TARGET_BYTES_MAX: usize = 4095;

/// Names that an inode can have.
const LINKS_MAX: u32 = i32::MAX.cast_unsigned();

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
        self.make_any(directory, Some(name), caller, mode, umask, device, &[])
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As [`Self::make`]; `ENAMETOOLONG` for its target too.
    pub fn make_link(&self, directory: u64, name: &[u8], caller: Caller, target: &[u8]) -> Result<(u64, Inode)> {
        if target.len() > TARGET_BYTES_MAX {
            return Err(Failure::new(libc::ENAMETOOLONG));
        }
        self.make_any(directory, Some(name), caller, libc::S_IFLNK | 0o777, 0, 0, target)
    }

    /// Makes a file without a name, which goes unless it is given one.
    ///
    /// # Errors
    /// As [`Self::make`].
    pub fn make_nameless(&self, directory: u64, caller: Caller, mode: u32, umask: u32) -> Result<(u64, Inode)> {
        self.make_any(directory, None, caller, libc::S_IFREG | mode & 0o7777, umask, 0, &[])
    }

    #[allow(clippy::too_many_arguments, reason = "one for each thing that a new inode has")]
    fn make_any(
        &self,
        directory: u64,
        name: Option<&[u8]>,
        caller: Caller,
        mode: u32,
        umask: u32,
        device: u32,
        target: &[u8],
    ) -> Result<(u64, Inode)> {
        if let Some(name) = name {
            names::check(name)?;
        }
        self.admit(name.map_or(0, <[u8]>::len) + target.len())?;
        let now = self.now();
        let mut state = self.change()?;
        let mut parent = living_directory(&state, directory)?;
        let place = name.map(|name| state.place_for(directory, name)).transpose()?;
        let is_directory = mode & libc::S_IFMT == libc::S_IFDIR;
        if let Some(name) = name {
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
        self.begin_compression(&parent, name, &mut inode);
        match name.zip(place) {
            Some((name, cookie)) => {
                if super::data::tried('b') {
                    state.set_entry(directory, cookie, name, number, inode.kind());
                } else {
                    state.add_entry(directory, name, number, inode.kind())?;
                }
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
        let cookie = state.place_for(directory, name)?;
        admit_name(&state, directory, name, false)?;
        state.set_entry(directory, cookie, name, node, inode.kind());
        if inode.links == 0 {
            state.set_orphan(node, false);
        }
        inode.links += u32::from(!crate::canary!("link-not-counted"));
        inode.changed = now;
        state.put(node, inode.clone());
        (parent.modified, parent.changed) = (now, now);
        state.put(directory, parent);
        state.result = node;
        Ok(inode)
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
