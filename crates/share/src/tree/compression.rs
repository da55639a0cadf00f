//! How files are compressed: decisions when they are made and when their first bytes come, and
//! values that users set. Owns when a decision is taken; `compression.rs` and `policy` take it.
//!
//! 1. A new file or directory inherits the value of its directory. A file's name is looked up in
//!    the rules.
//! 2. Where the name tells nothing, the first bytes are looked at when they are written.
//! 3. The decision goes with the file, whatever it is called later, and its data is written by it.
//!    A file that is emptied is looked at again.

use std::sync::Arc;

use policy::{HEAD_BYTES, InForce, Origin, Resolved, Ruled};
use surface::Hint;

use super::Tree;
use crate::compression::{Compression, Set, parse};
use crate::failure::{Failure, Result};
use crate::inode::Inode;

/// The extended attribute that shows and sets how a file is compressed.
pub(crate) const ATTRIBUTE: &[u8] = b"user.shale.compression";

/// What the attribute says behind a value that was set for the node itself.
const SET_HERE: &str = "(set here)";

/// `FS_COMPR_FL` and `FS_NOCOMP_FL` of `linux/fs.h`: what `chattr +c` and `+m` set.
const COMPRESS: u32 = 0x4;
const DO_NOT_COMPRESS: u32 = 0x400;

/// Looks at the beginning of a file that is written to; `None` if that was done.
pub(super) fn look(in_force: Option<&Resolved>, inode: &Inode, offset: u64, bytes: &[u8]) -> Option<Ruled> {
    let compression = inode.compression();
    let is_wanted = compression.is_open() || crate::canary!("content-before-name");
    if offset > 0 || bytes.is_empty() || !is_wanted {
        return None;
    }
    let head = &bytes[..bytes.len().min(HEAD_BYTES)];
    in_force.map(|in_force| in_force.of_content(&compression.ruled.word, head))
}

/// A file was emptied: what its first bytes said does not hold any more.
pub(super) fn forget_content(inode: &mut Inode) {
    let mut compression = inode.compression();
    match compression.ruled.origin {
        Origin::Open | Origin::Name => return,
        Origin::Content => compression.ruled = Ruled::default(),
        Origin::Properties => compression.ruled.origin = Origin::Open,
    }
    inode.set_compression(compression);
}

impl Tree {
    /// Has the rules and properties that `in_force` tells decide how files are compressed that are
    /// written from now on.
    pub fn follow(&self, in_force: Arc<dyn InForce>) {
        let _ = self.in_force.set(in_force);
    }

    pub(super) fn in_force(&self) -> Option<Arc<Resolved>> {
        self.in_force.get().map(|in_force| in_force.in_force())
    }

    /// Step 1.
    pub(super) fn begin_compression(&self, parent: &Inode, name: Option<&[u8]>, inode: &mut Inode) {
        if !inode.is_file() && !inode.is_directory() {
            return;
        }
        let mut compression = parent.compression().inherited();
        if crate::canary!("parent-ignored") {
            compression = Compression::default();
        }
        if inode.is_file()
            && let Some(name) = name
            && let Some(in_force) = self.in_force()
        {
            compression.ruled = in_force.of_name(name);
        }
        inode.set_compression(compression);
    }

    /// How a file, or a new one in a directory, is compressed, and why: in words.
    ///
    /// # Errors
    /// `ESTALE`; `ENODATA` for what has no data.
    pub fn compression(&self, node: u64) -> Result<String> {
        let inode = self.state.read().inode(node)?;
        if !inode.is_file() && !inode.is_directory() {
            return Err(Failure::new(libc::ENODATA));
        }
        Ok(inode.compression().told(self.in_force().as_deref()))
    }

    /// What goes with data that is written to a file now.
    ///
    /// # Errors
    /// `ESTALE`.
    pub fn hint(&self, node: u64) -> Result<Hint> {
        let in_force = self.in_force();
        self.state.read().look_at(node, |inode| inode.compression().hint(in_force.as_deref()))
    }

    /// Looks a file up again under the name that it has, by the rules and properties given, and
    /// returns what goes with its data then. With `keeps` the file is written by that from now on.
    ///
    /// # Errors
    /// `ESTALE`, those of the space.
    pub fn decide_again(&self, node: u64, name: &[u8], in_force: &Resolved, keeps: bool) -> Result<Hint> {
        let (before, compression) = self.looked_up(node, name, in_force)?;
        let hint = compression.hint(Some(in_force));
        if keeps && compression != before {
            let mut state = self.change()?;
            let mut inode = state.inode(node)?;
            // What a user sets meanwhile stays.
            inode.set_compression(Compression { ruled: compression.ruled, ..inode.compression() });
            state.put(node, inode);
        }
        Ok(hint)
    }

    /// What would count for a file if it were looked up again under a name, in words, and what
    /// would go with its data then; `None` if it is what counts for it.
    ///
    /// # Errors
    /// `ESTALE`, those of the space.
    pub fn in_force_for(&self, node: u64, name: &[u8]) -> Result<Option<(String, Hint)>> {
        let Some(in_force) = self.in_force() else { return Ok(None) };
        let (before, compression) = self.looked_up(node, name, &in_force)?;
        let told = compression.told(Some(&in_force));
        Ok((told != before.told(Some(&in_force))).then(|| (told, compression.hint(Some(&in_force)))))
    }

    /// What a file says of its compression, and what it would say if it were looked up again.
    fn looked_up(&self, node: u64, name: &[u8], in_force: &Resolved) -> Result<(Compression, Compression)> {
        let ruled = in_force.of_file(name, || self.head(node))?;
        let before = self.state.read().look_at(node, Inode::compression)?;
        Ok((before.clone(), Compression { ruled, ..before }))
    }

    /// The first bytes of a file, as many as tell its type.
    fn head(&self, node: u64) -> Result<Vec<u8>> {
        let mut head = vec![0; HEAD_BYTES];
        let length = self.read(node, 0, &mut head)?;
        head.truncate(length);
        Ok(head)
    }

    /// The type of a file, in letters, as far as its name or its first bytes have told it.
    ///
    /// # Errors
    /// `ESTALE`.
    pub fn type_of(&self, node: u64) -> Result<String> {
        self.state.read().look_at(node, |inode| inode.compression().ruled.word)
    }

    /// Whether something was set for the node itself.
    pub(super) fn has_own_compression(&self, node: u64) -> Result<bool> {
        let is_own = |inode: &Inode| {
            inode.compression.as_ref().and_then(|compression| compression.set).is_some_and(|set| !set.is_inherited)
        };
        self.state.read().look_at(node, is_own)
    }

    /// Sets what the attribute says. A value that says of itself that it was not set here changes
    /// nothing: so what tools read they can write back.
    pub(super) fn set_compression(&self, node: u64, value: &[u8], flags: i32) -> Result<()> {
        let text = String::from_utf8_lossy(value);
        let text = text.trim_end_matches(['\0', '\n']).trim();
        let (word, source) = text.split_once(' ').unwrap_or((text, SET_HERE));
        let choice = parse(word.as_bytes()).ok_or(Failure::new(libc::EINVAL))?;
        if source != SET_HERE {
            return Ok(());
        }
        self.change_set(node, |before| match before {
            Some(_) if flags & libc::XATTR_CREATE != 0 => Err(Failure::new(libc::EEXIST)),
            None if flags & libc::XATTR_REPLACE != 0 => Err(Failure::new(libc::ENODATA)),
            _ => Ok(Some(Set { choice, is_inherited: false })),
        })
    }

    /// Lets rules and properties count again.
    pub(super) fn unset_compression(&self, node: u64) -> Result<()> {
        self.change_set(node, |before| before.map(|_| None).ok_or(Failure::new(libc::ENODATA)))
    }

    /// The flags of a node as `FS_IOC_GETFLAGS` tells them.
    ///
    /// # Errors
    /// `ESTALE`.
    pub fn flags(&self, node: u64) -> Result<u32> {
        let set = self.state.read().look_at(node, |inode| inode.compression().set)?;
        Ok(set.map_or(0, |set| if is_off(set) { DO_NOT_COMPRESS } else { COMPRESS }))
    }

    /// Sets flags as `FS_IOC_SETFLAGS` does: `c` compresses unit by unit, `m` does not compress.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for other flags, `EINVAL` for both.
    pub fn set_flags(&self, node: u64, flags: u32) -> Result<()> {
        if flags & !(COMPRESS | DO_NOT_COMPRESS) != 0 {
            return Err(Failure::new(libc::EOPNOTSUPP));
        }
        let of = |choice| Some(Set { choice, is_inherited: false });
        self.change_set(node, |before| match (flags & COMPRESS != 0, flags & DO_NOT_COMPRESS != 0) {
            // The one that it has not got yet is meant.
            (true, true) => match before {
                Some(set) if is_off(set) => Ok(of(policy::FileChoice::Auto)),
                Some(_) => Ok(of(policy::FileChoice::Codec(codec::Codec::Off))),
                None => Err(Failure::new(libc::EINVAL)),
            },
            // A codec that was named does.
            (true, false) => Ok(before.filter(|set| !is_off(*set)).or(of(policy::FileChoice::Auto))),
            (false, true) => Ok(of(policy::FileChoice::Codec(codec::Codec::Off))),
            (false, false) => Ok(None),
        })
    }

    fn change_set(&self, node: u64, change: impl FnOnce(Option<Set>) -> Result<Option<Set>>) -> Result<()> {
        let now = self.now();
        let mut state = self.change()?;
        let mut inode = state.inode(node)?;
        if !inode.is_file() && !inode.is_directory() {
            return Err(Failure::new(libc::EPERM));
        }
        let mut compression = inode.compression();
        compression.set = change(compression.set)?;
        inode.set_compression(compression);
        inode.changed = now;
        state.put(node, inode);
        Ok(())
    }
}

fn is_off(set: Set) -> bool {
    set.choice == policy::FileChoice::Codec(codec::Codec::Off)
}
