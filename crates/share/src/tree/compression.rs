//! Compression of files: decisions on creation and at the first bytes, and values set by users.
//! Owns the timing of decisions; `compression.rs` and `policy` make them.
//!
//! 1. A new file or directory inherits the value of its directory. A file's name is looked up in
//!    the rules.
//! 2. If the name matches no rule, the first bytes are examined when they are written.
//! 3. The decision stays with the file when it is renamed, and applies to its data. A file that is
//!    emptied is examined again.

use std::sync::Arc;

use policy::{HEAD_BYTES, InForce, Origin, Resolved, RuleOutcome};
use surface::Hint;

use super::Tree;
use crate::compression::{Compression, Set, parse};
use crate::failure::{Failure, Result};
use crate::inode::Inode;

/// The extended attribute that shows and sets how a file is compressed.
pub(crate) const ATTRIBUTE: &[u8] = b"user.shale.compression";

/// Suffix of the attribute for a value set for the node itself.
const SET_HERE: &str = "(set here)";

/// `FS_COMPR_FL` and `FS_NOCOMP_FL` of `linux/fs.h`, set by `chattr +c` and `+m`.
const COMPRESS: u32 = 0x4;
const DO_NOT_COMPRESS: u32 = 0x400;

/// Examines the beginning of a file being written; `None` if that was done before.
pub(super) fn look(in_force: Option<&Resolved>, inode: &Inode, offset: u64, bytes: &[u8]) -> Option<RuleOutcome> {
    let compression = inode.compression();
    let is_wanted = compression.is_open() || crate::canary!("content-before-name");
    if offset > 0 || bytes.is_empty() || !is_wanted {
        return None;
    }
    let head = &bytes[..bytes.len().min(HEAD_BYTES)];
    in_force.map(|in_force| in_force.of_content(&compression.ruled.word, head))
}

/// A file was emptied: a decision by its first bytes is void.
pub(super) fn forget_content(inode: &mut Inode) {
    let mut compression = inode.compression();
    match compression.ruled.origin {
        Origin::Open | Origin::Name => return,
        Origin::Content => compression.ruled = RuleOutcome::default(),
        Origin::Properties => compression.ruled.origin = Origin::Open,
    }
    inode.set_compression(compression);
}

impl Tree {
    /// Makes the rules and properties of `in_force` decide the compression of files from now on.
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

    /// The compression of a file, or of new ones in a directory, and its origin: as text.
    ///
    /// # Errors
    /// `ESTALE`; `ENODATA` for nodes without data.
    pub fn compression(&self, node: u64) -> Result<String> {
        let inode = self.state.read().inode(node)?;
        if !inode.is_file() && !inode.is_directory() {
            return Err(Failure::new(libc::ENODATA));
        }
        Ok(inode.compression().describe(self.in_force().as_deref()))
    }

    /// The hint for data written to a file now.
    ///
    /// # Errors
    /// `ESTALE`.
    pub fn hint(&self, node: u64) -> Result<Hint> {
        let in_force = self.in_force();
        self.state.read().look_at(node, |inode| inode.compression().hint(in_force.as_deref()))
    }

    /// Looks a file up again under its name, with the given rules and properties, and returns the
    /// resulting hint for its data. With `keeps`, the decision is stored for future writes.
    ///
    /// # Errors
    /// `ESTALE`, those of the space.
    pub fn decide_again(&self, node: u64, name: &[u8], in_force: &Resolved, keeps: bool) -> Result<Hint> {
        let (before, compression) = self.looked_up(node, name, in_force)?;
        let hint = compression.hint(Some(in_force));
        if keeps && compression != before {
            let mut state = self.change()?;
            let mut inode = state.inode(node)?;
            // A value set by a user in the meantime stays.
            inode.set_compression(Compression { ruled: compression.ruled, ..inode.compression() });
            state.put(node, inode);
        }
        Ok(hint)
    }

    /// The decision and the hint, as text, that would result from looking a file up again under a
    /// name; `None` if nothing would change.
    ///
    /// # Errors
    /// `ESTALE`, those of the space.
    pub fn in_force_for(&self, node: u64, name: &[u8]) -> Result<Option<(String, Hint)>> {
        let Some(in_force) = self.in_force() else { return Ok(None) };
        let (before, compression) = self.looked_up(node, name, &in_force)?;
        let description = compression.describe(Some(&in_force));
        Ok((description != before.describe(Some(&in_force))).then(|| (description, compression.hint(Some(&in_force)))))
    }

    /// The settings of a file, and those that would result from looking it up again.
    fn looked_up(&self, node: u64, name: &[u8], in_force: &Resolved) -> Result<(Compression, Compression)> {
        let ruled = in_force.of_file(name, || self.head(node))?;
        let before = self.state.read().look_at(node, Inode::compression)?;
        Ok((before.clone(), Compression { ruled, ..before }))
    }

    /// The first bytes of a file, as many as identify its type.
    fn head(&self, node: u64) -> Result<Vec<u8>> {
        let mut head = vec![0; HEAD_BYTES];
        let length = self.read(node, 0, &mut head)?;
        head.truncate(length);
        Ok(head)
    }

    /// The type of a file, in letters, as far as its name or its first bytes have identified it.
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

    /// Sets the attribute. A value that states that it was not set here changes nothing: tools can
    /// thus write back the value that they read.
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

    /// The flags of a node, as returned by `FS_IOC_GETFLAGS`.
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
            // Refers to the one that is not set yet.
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
