//! Small files: the content is in the inode's record, and takes no block of its own.
//!
//! A file starts there, and moves to blocks before it becomes too long:
//!
//! 1. Data that a power loss may have left in the blocks is discarded.
//! 2. The content is written. Nothing refers to it yet: if the power fails, the record applies.
//! 3. The content is removed from the record. As with a size, the data must be durable before that.
//!
//! A write that finds an empty content with nothing to discard has nothing to write in step 2, and
//! makes step 3 part of its own change: a new file takes one change for its first write.
//!
//! The file moves back when it is emptied. A change of a content in a record is one change of the
//! namespace: the log and the journal contain it with the record.

use bytes::Bytes;

use super::Tree;
use crate::failure::Result;

/// The longest content that stays in a record.
pub const RECORD_CONTENT_BYTES_MAX: u64 = 512;

/// A content with its end at `size`, padded with zeroes.
pub(super) fn resized(content: &[u8], size: u64) -> Box<[u8]> {
    let mut resized = content.to_vec();
    // No content is longer than the bound.
    resized.resize(size.min(RECORD_CONTENT_BYTES_MAX) as usize, 0);
    resized.into()
}

/// Writes into a content, from `offset` on, and makes it longer where it must be. The end is within
/// the bound.
pub(super) fn write(content: &[u8], offset: u64, bytes: &[u8]) -> Box<[u8]> {
    let end = offset + bytes.len() as u64;
    let mut changed = resized(content, end.max(content.len() as u64));
    if let Some(range) = changed.get_mut(offset as usize..end as usize) {
        range.copy_from_slice(bytes);
    }
    changed
}

impl Tree {
    /// Moves the content of a file to its blocks, if the record has it. The caller has the file's
    /// lock for itself.
    pub(super) fn move_out(&self, node: u64) -> Result<()> {
        let Some((data, content)) =
            self.state.read().look_at(node, |inode| inode.content.clone().map(|c| (inode.data, c)))?
        else {
            return Ok(());
        };
        self.check_health()?;
        if self.state.read().has_loose_end(data) {
            self.tidy_end(&mut self.state.write(), data, 0)?;
        }
        if !content.is_empty() && !crate::canary!("content-stays-behind") {
            let hint = self.hint(node)?;
            let bytes = Bytes::from(content.into_vec());
            let written = self.or_after_giving_back(|| self.space.write_hinted(data, 0, bytes.clone(), hint));
            // A part that was written must not appear past the end of a later content there.
            written.inspect_err(|_| self.state.write().end_is_loose(data))?;
        }
        let mut state = self.change_anyway();
        let mut inode = state.inode(node).inspect_err(|_| state.end_is_loose(data))?;
        inode.content = None;
        state.must_order_first = true;
        state.put(node, inode);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_grows_with_zeroes_and_is_cut() {
        assert_eq!(&*write(b"", 2, b"ab"), b"\0\0ab");
        assert_eq!(&*write(b"12345", 1, b"ab"), b"1ab45");
        assert_eq!(&*write(b"123", 2, b"ab"), b"12ab");
        assert_eq!(&*write(b"123", 5, b""), b"123\0\0");
        assert_eq!((&*resized(b"123", 2), &*resized(b"12", 4)), (&b"12"[..], &b"12\0\0"[..]));
        assert_eq!(write(&[1; 512], 511, b"x").len() as u64, RECORD_CONTENT_BYTES_MAX);
    }
}
