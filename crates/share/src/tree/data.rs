//! Content of files.

use bytes::Bytes;
use surface::Allocation;

use super::attributes::{FILE_BYTES_MAX, kill_privileges};
use super::{Tree, xattr};
use crate::failure::{Failure, Result};
use crate::inode::Inode;
use crate::store::State;

/// Bytes that a copy within the share has in memory.
const COPY_BYTES: u64 = 1 << 20;

/// What a write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Set-user-id or set-group-id bits went: what the kernel has cached of the mode is wrong.
    pub changed_mode: bool,
}

impl Tree {
    /// The inode of a file with content.
    fn file(&self, node: u64) -> Result<Inode> {
        let inode = self.state.lock().inode(node)?;
        match inode.kind() {
            libc::S_IFREG => Ok(inode),
            libc::S_IFDIR => Err(Failure::new(libc::EISDIR)),
            _ => Err(Failure::new(libc::EINVAL)),
        }
    }

    /// Reads from `offset`; returns how many bytes come before the end.
    ///
    /// # Errors
    /// `EISDIR`, those of the space.
    pub fn read(&self, node: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _with_others = self.lock_of(node).read();
        let inode = self.file(node)?;
        let length = usize::try_from(inode.size.saturating_sub(offset).min(buf.len() as u64)).unwrap_or(0);
        if length > 0 {
            self.space.read(inode.data, offset, &mut buf[..length])?;
        }
        Ok(length)
    }

    /// Writes at `offset`. `kill_suid_sgid`: the caller may not keep set-user-id and set-group-id bits.
    ///
    /// # Errors
    /// `EFBIG`, `EISDIR`, those of the space.
    pub fn write(&self, node: u64, offset: u64, data: Bytes, kill_suid_sgid: bool) -> Result<Written> {
        let end = offset.checked_add(data.len() as u64).filter(|&end| end <= FILE_BYTES_MAX);
        let end = end.ok_or(Failure::new(libc::EFBIG))?;
        // Where the data lies does not change meanwhile, and the file is not cut.
        let _with_others = self.lock_of(node).read();
        let inode = self.file(node)?;
        if end > inode.size {
            self.tidy_end(&mut self.state.lock(), &inode)?;
        }
        self.space.write(inode.data, offset, data)?;
        // Data before the size that shows it.
        let now = self.now();
        let mut state = self.change()?;
        let mut inode = state.inode(node)?;
        inode.size = inode.size.max(end);
        (inode.modified, inode.changed) = (now, now);
        let changed_mode = kill_suid_sgid && kill_privileges(&mut inode);
        xattr::drop_capability(&mut state, node, &mut inode)?;
        state.put(node, inode);
        Ok(Written { changed_mode })
    }

    /// Makes sure that bytes behind the end read as zeroes before they come within the file: a loss of power may have left data
    /// there whose size it took.
    pub(super) fn tidy_end(&self, state: &mut State, inode: &Inode) -> Result<()> {
        if state.has_loose_end(inode.data) {
            self.space.discard(inode.data, inode.size..u64::MAX)?;
        }
        Ok(())
    }

    /// `fallocate`. Space is not reserved: what a compressed store needs for data is known when it comes.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for other modes than keeping the size, punching and zeroing; `EFBIG`.
    pub fn allocate(&self, node: u64, offset: u64, length: u64, mode: i32) -> Result<()> {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        let keeps_size = mode & KEEP != 0;
        let clears = match mode & !KEEP {
            0 => false,
            PUNCH if keeps_size => true,
            ZERO => true,
            _ => return Err(Failure::new(libc::EOPNOTSUPP)),
        };
        let end = offset.checked_add(length).filter(|&end| end <= FILE_BYTES_MAX);
        let end = end.ok_or(Failure::new(libc::EFBIG))?;
        let _alone = self.lock_of(node).write();
        let inode = self.file(node)?;
        if clears && offset < inode.size {
            self.space.discard(inode.data, offset..end.min(inode.size))?;
        }
        let now = self.now();
        let mut state = self.change()?;
        let mut inode = state.inode(node)?;
        if !keeps_size && end > inode.size {
            self.tidy_end(&mut state, &inode)?;
            inode.size = end;
        }
        if clears || !keeps_size {
            inode.modified = now;
        }
        inode.changed = now;
        state.put(node, inode);
        Ok(())
    }

    /// `lseek` with `SEEK_DATA` or `SEEK_HOLE`: where the next byte of that kind is. The end counts as a hole.
    ///
    /// # Errors
    /// `ENXIO` behind the end, and if there is no data behind `offset`.
    pub fn seek(&self, node: u64, offset: u64, wanted: Allocation) -> Result<u64> {
        let _with_others = self.lock_of(node).read();
        let inode = self.file(node)?;
        let none = Failure::new(libc::ENXIO);
        if offset >= inode.size {
            return Err(none);
        }
        let mut at = offset;
        while at < inode.size {
            let before = at;
            // Two runs are enough: one of them is of the kind, unless the answer is cut short.
            for run in self.space.allocation(inode.data, at, inode.size - at, 2)? {
                if run.allocation == wanted {
                    return Ok(at);
                }
                at = at.saturating_add(run.length);
            }
            if at == before {
                return Err(Failure::damaged(format_args!("the allocation of inode {node} cannot be told at {at}")));
            }
        }
        if wanted == Allocation::Hole { Ok(inode.size) } else { Err(none) }
    }

    /// Copies a range within the share; returns how many bytes there were.
    ///
    /// # Errors
    /// As [`Self::read`] and [`Self::write`]; `EINVAL` for ranges of one file that overlap.
    pub fn copy_range(&self, node: u64, offset: u64, to: u64, to_offset: u64, length: u64) -> Result<u64> {
        let size = self.file(node)?.size;
        let length = length.min(size.saturating_sub(offset));
        let overlap = offset < to_offset.saturating_add(length) && to_offset < offset.saturating_add(length);
        if node == to && overlap {
            return Err(Failure::new(libc::EINVAL));
        }
        let mut done = 0;
        while done < length {
            let mut piece = vec![0; usize::try_from(COPY_BYTES.min(length - done)).unwrap_or(0)];
            let read = self.read(node, offset + done, &mut piece)?;
            if read == 0 {
                break;
            }
            piece.truncate(read);
            self.write(to, to_offset + done, Bytes::from(piece), false)?;
            done += read as u64;
        }
        Ok(done)
    }
}
