//! Memory for a cache: many buffers of a few sizes, out of one stretch of address space that takes small pages only.
//!
//! Small pages on purpose. A cache is filled once and then stays, so that what its first use costs is what counts; and under a
//! hypervisor that takes back what a guest does not use, a huge page is as a rule one that was taken back: 10 us for each 4 KiB
//! of it were measured, against 2 us for small pages, which come from what was in use a moment ago.
//!
//! Pages that were used once stay with the arena; buffers come from its lowest free pages.
#![allow(unsafe_code)]

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use buddy_system_allocator::FrameAllocator;
use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Unit of allocation.
const PAGE_BYTES: usize = 4096;
/// Largest buffer: 2^(`ORDER` - 1) pages, 1 MiB.
const ORDER: usize = 9;

/// A stretch of address space that buffers come from. It takes memory only for what has been used.
pub struct Arena {
    memory: NonNull<u8>,
    len: usize,
    free: Mutex<FrameAllocator<ORDER>>,
}

// SAFETY: the memory is only reached through buffers, which do not overlap; the rest is behind a lock.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Sets address space for `len` bytes of buffers aside.
    ///
    /// # Errors
    /// When there is none.
    pub fn reserve(len: usize) -> io::Result<Arc<Self>> {
        let len = len.max(1).next_multiple_of(PAGE_BYTES);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at a place that the system chooses touches nothing else.
        let memory = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, access, flags) }?;
        // SAFETY: the advice is about the mapping just made. A system without huge pages refuses it, and needs none.
        let _ = unsafe { rustix::mm::madvise(memory, len, Advice::LinuxNoHugepage) };
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut free = FrameAllocator::new();
        free.add_frame(0, len / PAGE_BYTES);
        Ok(Arc::new(Self { memory, len, free: Mutex::new(free) }))
    }

    /// A buffer of exactly `len` bytes with any content; `None` if the arena has no room for it. It takes the next power of two of
    /// pages.
    pub fn buffer(self: &Arc<Self>, len: usize) -> Option<ArenaBuf> {
        let pages = len.div_ceil(PAGE_BYTES).max(1);
        if pages > 1 << (ORDER - 1) {
            return None;
        }
        let page = self.free.lock().alloc(pages)?;
        Some(ArenaBuf { page, len, home: self.clone() })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `reserve`; every buffer holds the arena, so none is left.
        let _ = unsafe { rustix::mm::munmap(self.memory.as_ptr().cast(), self.len) };
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arena({} bytes)", self.len)
    }
}

/// A buffer of an [`Arena`], page-aligned; its pages go back when it is dropped.
#[derive(Debug)]
pub struct ArenaBuf {
    page: usize,
    len: usize,
    home: Arc<Arena>,
}

impl ArenaBuf {
    fn start(&self) -> *mut u8 {
        // SAFETY: the allocator gives out pages of the mapping only.
        unsafe { self.home.memory.as_ptr().add(self.page * PAGE_BYTES) }
    }
}

impl Deref for ArenaBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the pages are mapped and this buffer's alone; a mapping's first content is zeroes. Borrowed with self.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }
}

impl DerefMut for ArenaBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; borrowed mutably with self.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}

impl AsRef<[u8]> for ArenaBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for ArenaBuf {
    fn drop(&mut self) {
        self.home.free.lock().dealloc(self.page, self.len.div_ceil(PAGE_BYTES).max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_do_not_overlap_and_come_back_whole() {
        let arena = Arena::reserve(1 << 20).unwrap();
        for round in 0..3u8 {
            let sizes = [4096, 100, 32 << 10, 12 << 10, 5000, 128 << 10, 64 << 10];
            let mut held: Vec<(u8, ArenaBuf)> = Vec::new();
            for (index, len) in sizes.iter().cycle().take(14).enumerate() {
                let mut buf = arena.buffer(*len).unwrap();
                assert_eq!(buf.len(), *len);
                assert_eq!(buf.as_ptr() as usize % PAGE_BYTES, 0);
                let fill = round * 16 + index as u8;
                buf.fill(fill);
                held.push((fill, buf));
            }
            for (fill, buf) in &held {
                assert!(buf.iter().all(|byte| byte == fill), "{fill}");
            }
        }
        assert!(arena.buffer(1 << 20).is_some(), "all of it is free again");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let arena = Arena::reserve(64 << 10).unwrap();
        let all: Vec<_> = (0..16).map(|_| arena.buffer(4096).unwrap()).collect();
        assert!(arena.buffer(1).is_none());
        drop(all);
        assert!(arena.buffer(65 << 10).is_none());
        assert!(Arena::reserve(4 << 20).unwrap().buffer(2 << 20).is_none(), "above the largest buffer");
    }

    #[test]
    fn a_buffer_keeps_its_arena() {
        let mut buf = Arena::reserve(64 << 10).unwrap().buffer(8 << 10).unwrap();
        buf.fill(7);
        assert_eq!(*buf, [7; 8 << 10]);
    }
}
