//! Many buffers of a few sizes, from one range of address space whose pages are all of one kind.
//!
//! **Small pages** are for a cache: it is filled once and then stays, so the cost of the first use
//! dominates. Under a hypervisor that reclaims unused guest memory, a huge page has usually been
//! reclaimed: its first use was measured at 10 us per 4 KiB, against 2 us for small pages, which
//! come from memory in recent use.
//!
//! **Huge pages** are for buffers that the device fills repeatedly in large requests. In small
//! pages, a request of 128 KiB has 32 segments and one of a megabyte 256; each costs the system
//! time and occupies a slot in the device's queue: a virtio disk has some 256 slots for all
//! requests together.
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
/// Largest buffer: 2^(`ORDER` - 1) pages, 16 MiB, as the largest extent.
const ORDER: usize = 13;
/// A huge page where they are of use; elsewhere it is merely an alignment.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The pages of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Of 4 KiB only.
    Small,
    /// Huge ones, as far as the system has them and gives them to this process.
    Huge,
}

/// A range of address space that buffers are allocated from. Only pages that were used occupy
/// memory.
pub struct Arena {
    memory: NonNull<u8>,
    len: usize,
    free: Mutex<FrameAllocator<ORDER>>,
}

// SAFETY: the memory is only accessed through buffers, which do not overlap; everything else is
// protected by a lock.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves address space for `len` bytes of buffers.
    ///
    /// # Errors
    /// When there is none.
    pub fn reserve(len: usize, pages: Pages) -> io::Result<Arc<Self>> {
        let (align, advice) = match pages {
            Pages::Small => (PAGE_BYTES, Advice::LinuxNoHugepage),
            Pages::Huge => (HUGE_PAGE_BYTES, Advice::LinuxHugepage),
        };
        let len = len.max(1).checked_next_multiple_of(align).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = map_aligned(len, align)?;
        // SAFETY: the advice is about the mapping just made. A system without huge pages refuses
        // it, and has small ones only.
        let _ = unsafe { rustix::mm::madvise(memory.as_ptr().cast(), len, advice) };
        let mut free = FrameAllocator::new();
        free.add_frame(0, len / PAGE_BYTES);
        Ok(Arc::new(Self { memory, len, free: Mutex::new(free) }))
    }

    /// A buffer of exactly `len` bytes with unspecified content; `None` if the arena has no room
    /// for it. It occupies the next power of two of pages.
    pub fn buffer(self: &Arc<Self>, len: usize) -> Option<ArenaBuf> {
        let pages = len.div_ceil(PAGE_BYTES).max(1);
        if pages > 1 << (ORDER - 1) {
            return None;
        }
        let page = self.free.lock().alloc(pages)?;
        Some(ArenaBuf { page, len, home: self.clone() })
    }
}

/// New address space aligned to `align` bytes, a power of two, whose length is a multiple of it.
fn map_aligned(len: usize, align: usize) -> io::Result<NonNull<u8>> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // A mapping starts on a page. One that is longer by `align` less a page contains an aligned
    // range; the rest at both ends is unmapped.
    let spare = align - PAGE_BYTES;
    let wide = len.checked_add(spare).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: a new mapping at an address chosen by the system affects nothing else.
    let whole = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), wide, access, flags) }?;
    let head = whole.addr().next_multiple_of(align) - whole.addr();
    // SAFETY: within the mapping: `head` is at most `spare`.
    let memory = unsafe { whole.byte_add(head) };
    for (end, bytes) in [(whole, head), (memory.wrapping_byte_add(len), spare - head)] {
        if bytes > 0 {
            // SAFETY: this part of the mapping just made has not been used, nor will be. If it
            // fails, it is address space that is lost.
            let _ = unsafe { rustix::mm::munmap(end, bytes) };
        }
    }
    NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory.into())
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `reserve`; every buffer holds the arena, so none exists
        // any more.
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
        // SAFETY: the allocator only returns pages of the mapping.
        unsafe { self.home.memory.as_ptr().add(self.page * PAGE_BYTES) }
    }
}

impl Deref for ArenaBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the pages are mapped and exclusive to this buffer; a new mapping contains zeroes.
        // Borrowed with self.
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
        let arena = Arena::reserve(1 << 20, Pages::Small).unwrap();
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
        let arena = Arena::reserve(64 << 10, Pages::Small).unwrap();
        let all: Vec<_> = (0..16).map(|_| arena.buffer(4096).unwrap()).collect();
        assert!(arena.buffer(1).is_none());
        drop(all);
        assert!(arena.buffer(65 << 10).is_none());
        let arena = Arena::reserve(64 << 20, Pages::Huge).unwrap();
        assert!(arena.buffer((16 << 20) + 1).is_none(), "above the largest buffer");
        assert!(arena.buffer(16 << 20).is_some());
    }

    #[test]
    fn a_buffer_keeps_its_arena() {
        let mut buf = Arena::reserve(64 << 10, Pages::Small).unwrap().buffer(8 << 10).unwrap();
        buf.fill(7);
        assert_eq!(*buf, [7; 8 << 10]);
    }

    #[test]
    fn huge_pages_begin_where_they_can() {
        for len in [1, 2 << 20, (2 << 20) + 1, 16 << 20] {
            let arena = Arena::reserve(len, Pages::Huge).unwrap();
            assert_eq!((arena.memory.as_ptr() as usize % HUGE_PAGE_BYTES, arena.len % HUGE_PAGE_BYTES), (0, 0));
            let mut all: Vec<_> = std::iter::from_fn(|| arena.buffer(1 << 20)).collect();
            assert_eq!(all.len(), len.div_ceil(HUGE_PAGE_BYTES) * 2);
            for buf in &mut all {
                assert!(buf.iter().all(|byte| *byte == 0));
                buf.fill(7);
            }
        }
    }

    #[test]
    fn more_than_the_address_space_is_an_error() {
        for len in [1 << 50, usize::MAX, usize::MAX - (3 << 20)] {
            assert!(Arena::reserve(len, Pages::Huge).is_err() && Arena::reserve(len, Pages::Small).is_err(), "{len}");
        }
    }
}
