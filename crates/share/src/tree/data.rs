//! Content of files.

use std::ops::Range;

use bytes::Bytes;
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use surface::{Allocation, ErrorKind};

use super::attributes::{FILE_BYTES_MAX, SetId, kill_privileges};
use super::in_record::{self, RECORD_CONTENT_BYTES_MAX};
use super::{Tree, compression, xattr};
use crate::compression::Compression;
use crate::failure::{Failure, Result};
use crate::inode::{Flags, Inode};
use crate::journal;
use crate::store::State;

/// Bytes that a copy within the share has in memory.
const COPY_BYTES: u64 = 1 << 20;

/// Space is allocated by such blocks.
const BLOCK_BYTES: u64 = 4096;

/// Runs requested at once, and the number of requests: a file with more holes than that is reported
/// larger than it is, and `stat` takes no longer.
const RUNS_MAX: usize = 256;
const ALLOCATION_ANSWERS_MAX: usize = 64;

/// Records a hole if a file is extended to `to`, or written from there on, past its last block.
pub(super) fn note_hole(inode: &mut Inode, to: u64) {
    if inode.content.is_none() && to > inode.size.next_multiple_of(BLOCK_BYTES) {
        inode.flags.set(Flags::SPARSE, true);
    }
}

/// Effect of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Whether set-user-id or set-group-id bits were cleared: the kernel's cached mode is outdated.
    pub changed_mode: bool,
}

/// A file as far as its content goes.
struct File {
    /// Its file of the object space.
    data: u64,
    size: u64,
    /// Its content if it is in the inode's record; otherwise it is in `data`.
    content: Option<Box<[u8]>>,
}

/// A file's lock, for a write.
#[allow(dead_code, reason = "guards are held, not read")]
enum Held<'a> {
    /// Its data does not move, and it is not cut.
    WithOthers(RwLockReadGuard<'a, ()>),
    /// The empty content also leaves the record in the change that the write ends with. Until then
    /// no other request may write into the record.
    Alone(RwLockWriteGuard<'a, ()>),
}

impl Tree {
    /// Location and size of a file's content.
    fn file(&self, node: u64) -> Result<File> {
        let of =
            |inode: &Inode| (inode.kind(), File { data: inode.data, size: inode.size, content: inode.content.clone() });
        let (kind, file) = self.state.read().look_at(node, of)?;
        match kind {
            libc::S_IFREG => Ok(file),
            libc::S_IFDIR => Err(Failure::new(libc::EISDIR)),
            _ => Err(Failure::new(libc::EINVAL)),
        }
    }

    /// Reads from `offset`; returns the number of bytes before the end.
    ///
    /// # Errors
    /// `EISDIR`, those of the space.
    pub fn read(&self, node: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _with_others = self.lock_of(node).read();
        let read = |data, buf: &mut [u8]| self.space.read(data, offset, buf).map(|()| true);
        Ok(self.read_by(node, offset, buf, read)?.0)
    }

    /// Like [`read`](Self::read), if the content is in memory and no writer has the file: then
    /// `Some`.
    ///
    /// # Errors
    /// The same.
    pub fn read_cached(&self, node: u64, offset: u64, buf: &mut [u8]) -> Result<Option<usize>> {
        let Some(_with_others) = self.lock_of(node).try_read() else { return Ok(None) };
        let read = |data, buf: &mut [u8]| self.space.read_cached(data, offset, buf);
        let (length, is_read) = self.read_by(node, offset, buf, read)?;
        Ok(is_read.then_some(length))
    }

    /// Reads with `from_space`, which returns whether it has filled its buffer, and returns that
    /// too. The caller holds the inode's lock.
    fn read_by(
        &self,
        node: u64,
        offset: u64,
        buf: &mut [u8],
        from_space: impl FnOnce(u64, &mut [u8]) -> surface::Result<bool>,
    ) -> Result<(usize, bool)> {
        let File { data, size, content } = self.file(node)?;
        let length = usize::try_from(size.saturating_sub(offset).min(buf.len() as u64)).unwrap_or(0);
        let is_read = match content {
            _ if length == 0 => true,
            // It is as long as its size.
            Some(content) => {
                buf[..length].copy_from_slice(&content[offset as usize..][..length]);
                true
            }
            None => from_space(data, &mut buf[..length])?,
        };
        Ok((length, is_read))
    }

    /// Returns whether a write of content would have to wait for the space now.
    pub fn write_would_wait(&self) -> bool {
        self.space.write_would_wait()
    }

    /// Writes at `offset`. `kill_suid_sgid`: the caller may not keep set-user-id and set-group-id
    /// bits.
    ///
    /// # Errors
    /// `EFBIG`, `EISDIR`, those of the space.
    pub fn write(&self, node: u64, offset: u64, bytes: Bytes, kill_suid_sgid: bool) -> Result<Written> {
        let end = offset.checked_add(bytes.len() as u64).filter(|&end| end <= FILE_BYTES_MAX);
        let end = end.ok_or(Failure::new(libc::EFBIG))?;
        let _passed = self.pass();
        let (held, File { data, size, content }) = self.lock_for_write(node, end)?;
        let in_force = self.in_force();
        let (mut said, found) = self.state.read().look_at(node, |inode| {
            (inode.compression(), compression::look(in_force.as_deref(), inode, offset, &bytes))
        })?;
        said.ruled = found.clone().unwrap_or(said.ruled);
        let hint = said.hint(in_force.as_deref());
        let (length, now) = (bytes.len() as u64, self.now());
        let written = match content {
            // Growth needs space in the way that names do.
            Some(_) if end > size => self.admit(bytes.len()),
            Some(_) => Ok(()),
            None => self.or_after_giving_back(|| self.space.write_hinted(data, offset, bytes.clone(), hint)),
        };
        if let Err(failure) = written {
            // A part of it may exist. No later size may expose it.
            if end > size && content.is_none() && !crate::canary!("refused-write-shows") {
                self.state.write().end_is_loose(data);
                drop(held);
                if let Err(later) = self.tidy_end_alone(node, data) {
                    // As often as a client tries.
                    log::debug!("the end of inode {node} will be tidied later: {later:?}");
                }
            }
            return Err(failure);
        }
        // Data before the size that shows it. If no size can, no later one may.
        let is_past_end = end > size && content.is_none() && !crate::canary!("unshown-write-shows");
        let mark_end = |state: &mut State| {
            if is_past_end {
                state.end_is_loose(data);
            }
        };
        let mut state = self.change_last().inspect_err(|_| mark_end(&mut self.state.write()))?;
        let mut inode = state.inode(node).inspect_err(|_| mark_end(&mut state))?;
        if matches!(held, Held::Alone(_)) {
            inode.content = None;
        }
        if let Some(content) = &inode.content {
            let content = in_record::write(content, offset, &bytes);
            inode.size = content.len() as u64;
            inode.content = Some(content);
        } else if end > inode.size {
            note_hole(&mut inode, offset);
            inode.size = end;
            state.must_order_first = true;
        }
        if let Some(ruled) = found {
            // A value set by a user in the meantime stays.
            inode.set_compression(Compression { ruled, ..inode.compression() });
        }
        (inode.modified, inode.changed) = (now, now);
        let changed_mode = kill_suid_sgid && kill_privileges(&mut inode, false);
        xattr::drop_capability(&mut state, node, &mut inode)?;
        state.put(node, inode);
        state.result = length;
        Ok(Written { changed_mode })
    }

    /// Locks a file for a write that ends at `end`, and returns the place of that write.
    fn lock_for_write(&self, node: u64, end: u64) -> Result<(Held<'_>, File)> {
        let lock = self.lock_of(node);
        loop {
            let with_others = lock.read();
            let file = self.file(node)?;
            let must_move = file.content.is_some() && end > RECORD_CONTENT_BYTES_MAX;
            let is_loose = file.content.is_none() && end > file.size && self.state.read().has_loose_end(file.data);
            if !must_move && !is_loose {
                return Ok((Held::WithOthers(with_others), file));
            }
            // Exclusively: others may have written data past the end that the next size would
            // expose.
            drop(with_others);
            if is_loose {
                self.tidy_end_alone(node, file.data)?;
                continue;
            }
            let alone = lock.write();
            let file = self.file(node)?;
            let is_empty = file.content.as_ref().is_some_and(|content| content.is_empty());
            if is_empty && !self.state.read().has_loose_end(file.data) {
                return Ok((Held::Alone(alone), File { content: None, ..file }));
            }
            self.move_out(node)?;
        }
    }

    /// Makes sure that bytes past the end read as zeroes before they become part of the file: a
    /// power loss may have left data there whose size was lost, and so may a write that found no
    /// space. There must be no other writer to the file.
    pub(super) fn tidy_end(&self, state: &mut State, data: u64, size: u64) -> Result<()> {
        if state.has_loose_end(data) {
            self.space.discard(data, size..u64::MAX)?;
            state.end_tidied(data);
            state.must_order_first = true;
        }
        Ok(())
    }

    /// The same for a caller without a lock on the file, which has found its content in `data`.
    fn tidy_end_alone(&self, node: u64, data: u64) -> Result<()> {
        let _alone = self.lock_of(node).write();
        let File { data: present, size, content } = self.file(node)?;
        let mut state = self.state.write();
        if content.is_some() {
            // Completed before anything is written there.
            return Ok(());
        }
        if present != data {
            // It was emptied, and its content is dropped.
            state.end_tidied(data);
            return Ok(());
        }
        self.tidy_end(&mut state, data, size)
    }

    /// `fallocate`. There must be space for the range, as if it were incompressible; it is not
    /// reserved, because only the data itself determines how much space a compressed store needs
    /// for it.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for modes other than keeping the size, punching and zeroing; `EFBIG`; `ENOSPC`.
    pub fn allocate(&self, node: u64, offset: u64, length: u64, mode: i32, set_id: SetId) -> Result<()> {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        let keeps_size = mode & KEEP != 0;
        let (clears, allocates) = match mode & !KEEP {
            0 => (false, true),
            PUNCH if keeps_size => (true, false),
            ZERO => (true, true),
            _ => return Err(Failure::new(libc::EOPNOTSUPP)),
        };
        let end = offset.checked_add(length).filter(|&end| end <= FILE_BYTES_MAX);
        let end = end.ok_or(Failure::new(libc::EFBIG))?;
        let _passed = self.pass();
        let _alone = self.lock_of(node).write();
        if allocates && end > RECORD_CONTENT_BYTES_MAX {
            self.admit_range(&self.file(node)?, offset..end)?;
        }
        if !keeps_size && end > RECORD_CONTENT_BYTES_MAX {
            self.move_out(node)?;
        }
        let File { data, size, content } = self.file(node)?;
        // The request can no longer be refused, and the content is still the old one.
        if let SetId::Cleared { every_sgid } = set_id {
            self.clear_set_id_in_part(node, every_sgid)?;
        }
        if clears && offset < size && content.is_none() {
            self.space.discard(data, offset..end.min(size))?;
        }
        let now = self.now();
        let mut state = self.change_last()?;
        let mut inode = state.inode(node)?;
        if let Some(mut content) = inode.content.take() {
            if clears && offset < size {
                content[offset as usize..end.min(size) as usize].fill(0);
            }
            if !keeps_size && end > size {
                content = in_record::resized(&content, end);
            }
            inode.size = content.len() as u64;
            inode.content = Some(content);
        } else {
            if !keeps_size && end > inode.size {
                self.tidy_end(&mut state, data, size)?;
                note_hole(&mut inode, offset / BLOCK_BYTES * BLOCK_BYTES);
                inode.size = end;
            }
            // An allocated range counts as allocated, even while it is unwritten.
            let covers_all = offset < BLOCK_BYTES && end >= inode.size;
            if !allocates || covers_all {
                inode.flags.set(Flags::SPARSE, !allocates);
            }
        }
        xattr::drop_capability(&mut state, node, &mut inode)?;
        if clears || !keeps_size {
            inode.modified = now;
        }
        inode.changed = now;
        state.put(node, inode);
        Ok(())
    }

    /// Refuses a range of a file for which there is no space, ignoring the part that has data.
    fn admit_range(&self, file: &File, range: Range<u64>) -> Result<()> {
        let range = range.start / BLOCK_BYTES * BLOCK_BYTES..range.end.next_multiple_of(BLOCK_BYTES);
        let end = range.end.min(file.size.next_multiple_of(BLOCK_BYTES));
        let has_blocks = file.content.is_none() && range.start < end;
        let present = if has_blocks { self.allocated(file.data, range.start..end) } else { 0 };
        let needed = range.end - range.start - present;
        self.or_after_giving_back(|| {
            let free_bytes = self.space.capacity()?.free_bytes;
            if crate::canary!("allocates-without-room") {
                return Ok(());
            }
            if needed > free_bytes {
                let message = format!("{needed} bytes requested, {free_bytes} free");
                return Err(surface::Error::new(ErrorKind::Full, message));
            }
            self.space.admit(needed)
        })
    }

    /// How much of an inode is allocated, in units of 512 bytes, before compression: `st_blocks`.
    pub fn blocks(&self, inode: &Inode) -> u64 {
        if !inode.is_file() {
            return 0;
        }
        if let Some(content) = &inode.content {
            // Not zero: programs take that for a file of holes.
            return content.len().div_ceil(512) as u64;
        }
        let size = inode.size.next_multiple_of(BLOCK_BYTES);
        let bytes = if inode.flags.has(Flags::SPARSE) { self.allocated(inode.data, 0..size) } else { size };
        bytes / 512
    }

    /// Bytes of a range of a file that are not holes. With very many runs, the rest counts as
    /// allocated, and so does a part whose allocation cannot be read.
    fn allocated(&self, data: u64, range: Range<u64>) -> u64 {
        let (mut at, mut bytes) = (range.start, 0);
        for _ in 0..ALLOCATION_ANSWERS_MAX {
            let Ok(runs) = self.space.allocation(data, at, range.end - at, RUNS_MAX) else { break };
            for run in runs {
                at += run.length;
                if run.allocation == Allocation::Data {
                    bytes += run.length;
                }
            }
            if at >= range.end {
                return bytes;
            }
        }
        bytes + (range.end - at)
    }

    /// `lseek` with `SEEK_DATA` or `SEEK_HOLE`: the position of the next byte of that kind. The end
    /// counts as a hole.
    ///
    /// # Errors
    /// `ENXIO` past the end, and if there is no data after `offset`.
    pub fn seek(&self, node: u64, offset: u64, wanted: Allocation) -> Result<u64> {
        let _with_others = self.lock_of(node).read();
        let File { data, size, content } = self.file(node)?;
        let none = Failure::new(libc::ENXIO);
        if offset >= size {
            return Err(none);
        }
        if content.is_some() {
            return Ok(if wanted == Allocation::Hole { size } else { offset });
        }
        let mut at = offset;
        while at < size {
            let before = at;
            // Two runs suffice: one of them is of the wanted kind, unless the reply is truncated.
            for run in self.space.allocation(data, at, size - at, 2)? {
                if run.allocation == wanted {
                    return Ok(at);
                }
                at = at.saturating_add(run.length);
            }
            if at == before {
                return Err(Failure::damaged(format_args!("the allocation of inode {node} is unknown at {at}")));
            }
        }
        if wanted == Allocation::Hole { Ok(size) } else { Err(none) }
    }

    /// Copies a range within the share; returns the number of bytes copied.
    ///
    /// # Errors
    /// As [`Self::read`] and [`Self::write`]; `EINVAL` for overlapping ranges of one file.
    pub fn copy_range(
        &self,
        (node, offset): (u64, u64),
        (to, to_offset): (u64, u64),
        length: u64,
        set_id: SetId,
    ) -> Result<u64> {
        let size = self.file(node)?.size;
        let length = length.min(size.saturating_sub(offset));
        let overlap = offset < to_offset.saturating_add(length) && to_offset < offset.saturating_add(length);
        if node == to && overlap {
            return Err(Failure::new(libc::EINVAL));
        }
        // Not recorded as a completed request: each piece is part of it, and copying again does no
        // harm.
        journal::answering(0, || {
            let mut done = 0;
            while done < length {
                let mut piece = vec![0; usize::try_from(COPY_BYTES.min(length - done)).unwrap_or(0)];
                let read = self.read(node, offset + done, &mut piece)?;
                if read == 0 {
                    break;
                }
                piece.truncate(read);
                self.write(to, to_offset + done, Bytes::from(piece), set_id != SetId::Kept)?;
                if set_id == (SetId::Cleared { every_sgid: true }) {
                    self.clear_set_id(to, true)?;
                }
                done += read as u64;
            }
            Ok(done)
        })
    }
}
