//! What a file or a directory takes: the extended attribute `user.shale.usage`, which can be read
//! only, and which no listing shows.

use std::collections::HashSet;

use surface::{ErrorKind, Taken};

use super::Tree;
use crate::failure::{Failure, Result};
use crate::names::COOKIE_DOT_DOT;

/// The attribute.
pub(crate) const ATTRIBUTE: &[u8] = b"user.shale.usage";

/// Nodes that are gone through for one answer: a second or so. `shale usage` has no such limit.
const NODES_MAX: usize = 100_000;

/// Sums of a directory.
#[derive(Default)]
struct Found {
    files: u64,
    size_bytes: u64,
    taken: Taken,
}

impl Tree {
    /// What a file takes, or all below a directory, in words: `files=3 size=9000 data=16384
    /// stored=2100`, all but the first in bytes.
    ///
    /// # Errors
    /// `ENODATA` for what has no data, or where it cannot be told; `EOVERFLOW` for a directory with
    /// too many files; those of the space.
    pub(super) fn usage(&self, node: u64) -> Result<String> {
        let top = self.inode(node)?;
        if !top.is_file() && !top.is_directory() {
            return Err(Failure::new(libc::ENODATA));
        }
        // Once for all files: each time costs a drain of the pool's write buffer.
        match self.space.settle() {
            // The last writes of a full pool stay in memory, and are not counted.
            Err(error) if error.kind() == ErrorKind::Full => {}
            settled => settled?,
        }
        let (mut open, mut seen, mut met) = (vec![(node, top)], HashSet::new(), 0);
        let mut found = Found::default();
        while let Some((node, inode)) = open.pop() {
            met += 1;
            if met > NODES_MAX {
                return Err(Failure::new(libc::EOVERFLOW));
            }
            if inode.is_directory() {
                self.list(node, COOKIE_DOT_DOT, |listed, inode| {
                    open.push((listed.node, inode));
                    open.len() <= NODES_MAX
                })?;
            }
            if inode.is_file() && (inode.links < 2 || seen.insert(node)) {
                let taken = match inode.content() {
                    Some(content) => Taken { raw_bytes: content.len() as u64, stored_bytes: content.len() as u64 },
                    None => self.space.stored(inode.data)?.ok_or(Failure::new(libc::ENODATA))?,
                };
                found.files += 1;
                found.size_bytes += inode.size;
                found.taken.raw_bytes += taken.raw_bytes;
                found.taken.stored_bytes += taken.stored_bytes;
            }
        }
        let Found { files, size_bytes, taken: Taken { raw_bytes, stored_bytes } } = found;
        Ok(format!("files={files} size={size_bytes} data={raw_bytes} stored={stored_bytes}"))
    }
}
