//! Reading files ahead. The front end chooses them; the space has them in memory.

use super::Tree;

/// The longest beginning of a file that is read ahead: the first read of a longer one begins a
/// stream.
const BEGINNING_BYTES_MAX: u64 = 128 << 10;

/// The beginning of a file that can be read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beginning {
    /// Its file of the object space.
    pub data: u64,
    /// Bytes from its start on.
    pub bytes: u64,
}

impl Tree {
    /// Bytes that may be read ahead before they are used; 0: none.
    pub fn read_ahead_max(&self) -> u64 {
        if super::data::tried('r') { self.space.read_ahead_max() } else { 0 }
    }

    /// Returns the beginning of a file; `None` if it has no content outside of its record.
    pub fn beginning(&self, node: u64) -> Option<Beginning> {
        let of = |inode: &crate::Inode| {
            let has_data = inode.is_file() && inode.content.is_none() && inode.size > 0;
            has_data.then(|| Beginning { data: inode.data, bytes: inode.size.min(BEGINNING_BYTES_MAX) })
        };
        self.state.read().look_at(node, of).ok()?
    }

    /// Loads beginnings of files into memory. Returns the bytes that were not there; may wait for a
    /// disk.
    pub fn read_ahead(&self, beginnings: &[Beginning]) -> u64 {
        let files: Vec<(u64, u64)> = beginnings.iter().map(|beginning| (beginning.data, beginning.bytes)).collect();
        self.space.read_ahead(&files)
    }
}
