//! A tree as a mount shows it: its inodes in the kernel's form, with the extended attributes that
//! the mount has. The current share and each snapshot is one.

use std::ops::Deref;
use std::sync::Arc;

use fuse::{Attributes, Entry};
use share::{Inode, Time, Tree};

use crate::process::Process;
use crate::served::TTL;
use crate::xattr_support::XattrSupport;

/// `st_blksize`: the size of programs' reads and writes.
const PREFERRED_BYTES: u32 = 128 << 10;

/// See the module's text.
#[derive(Clone)]
pub(crate) struct ShownTree {
    tree: Arc<Tree>,
    /// Which extended attributes files have.
    pub(crate) xattrs: XattrSupport,
}

impl Deref for ShownTree {
    type Target = Tree;

    fn deref(&self) -> &Tree {
        &self.tree
    }
}

fn time(time: Time) -> fuse::Time {
    fuse::Time { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

impl ShownTree {
    pub(crate) fn new(tree: Arc<Tree>, xattrs: XattrSupport) -> Self {
        Self { tree, xattrs }
    }

    /// Returns whether both are the same tree.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.tree, &other.tree)
    }

    /// Returns the attributes of an inode; `node` is its number for the kernel.
    pub(crate) fn attributes(&self, node: u64, inode: &Inode) -> Attributes {
        Attributes {
            inode: node,
            size: inode.size,
            blocks: self.tree.blocks(inode),
            accessed: time(inode.accessed),
            modified: time(inode.modified),
            changed: time(inode.changed),
            mode: self.xattrs.mode(inode),
            links: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            device: inode.device,
            block_bytes: PREFERRED_BYTES,
        }
    }

    /// Returns the entry of an inode, which the kernel may cache.
    pub(crate) fn entry(&self, node: u64, inode: &Inode) -> Entry {
        let generation = self.tree.generation(node, inode).into();
        let attributes = self.attributes(node, inode);
        Entry { node, generation, name_valid: TTL, attributes_valid: TTL, attributes }
    }

    /// Returns the names of an inode's extended attributes that the mount has and the process may
    /// see, each terminated by a zero byte.
    pub(crate) fn xattr_names_shown(&self, inode: u64, process: Process) -> share::Result<Vec<u8>> {
        let mut names = self.tree.xattr_names(inode)?;
        names.retain(|name| self.xattrs.shows(name));
        let is_trusted = |name: &Vec<u8>| name.starts_with(b"trusted.");
        if names.iter().any(is_trusted) && !process.is_administrator() {
            names.retain(|name| !is_trusted(name));
        }
        Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }
}
