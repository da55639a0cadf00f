//! Memory at page-aligned addresses, as direct I/O needs it.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::{Arena, ArenaBuf};

/// A buffer whose address and length are multiples of 4096.
pub struct AlignedBuf(Memory);

enum Memory {
    Allocated(Allocated),
    Arena(ArenaBuf),
}

/// Memory of the allocator, all of it initialised.
struct Allocated {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: owns its memory exclusively, like a Vec<u8>.
unsafe impl Send for Allocated {}
// SAFETY: shared access only reads.
unsafe impl Sync for Allocated {}

const ALIGN: usize = 4096;

impl AlignedBuf {
    /// A zeroed buffer of at least `len` bytes, rounded up to a multiple of 4096 (at least 4096).
    pub fn new(len: usize) -> Self {
        Self(Memory::Allocated(Allocated::zeroed(len.max(1).next_multiple_of(ALIGN))))
    }

    /// The same with unspecified content, allocated from an arena and returned to it on drop;
    /// `None` if the arena is full.
    pub fn of_arena(arena: &Arc<Arena>, len: usize) -> Option<Self> {
        let len = len.max(1).checked_next_multiple_of(ALIGN)?;
        Some(Self(Memory::Arena(arena.buffer(len)?)))
    }

    /// Whether it came from [`of_arena`](Self::of_arena).
    pub fn is_of_arena(&self) -> bool {
        matches!(self.0, Memory::Arena(_))
    }
}

impl Allocated {
    fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        // SAFETY: `start` is valid for `len` bytes; from here on all of them are initialised.
        unsafe { start.as_ptr().write_bytes(0, len) };
        Self { start, len }
    }

    fn layout(len: usize) -> Layout {
        match Layout::from_size_align(len, ALIGN) {
            Ok(layout) => layout,
            // Only a length above isize::MAX gets here; no allocator could serve it.
            Err(_) => handle_alloc_error(Layout::new::<u8>()),
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: valid and initialised for `len` bytes, borrowed with self.
            Memory::Allocated(Allocated { start, len }) => unsafe { std::slice::from_raw_parts(start.as_ptr(), *len) },
            Memory::Arena(buf) => buf,
        }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            // SAFETY: valid and initialised for `len` bytes, borrowed mutably with self.
            Memory::Allocated(Allocated { start, len }) => unsafe {
                std::slice::from_raw_parts_mut(start.as_ptr(), *len)
            },
            Memory::Arena(buf) => buf,
        }
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with the same layout.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) }
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pages;

    #[test]
    fn a_buffer_of_an_arena_goes_back_there() {
        let arena = Arena::reserve(2 << 20, Pages::Huge).unwrap();
        for _ in 0..3 {
            let mut all: Vec<_> =
                [5000, 1, 64 << 10, 1 << 20].iter().map(|len| AlignedBuf::of_arena(&arena, *len).unwrap()).collect();
            assert_eq!(all.iter().map(|buf| buf.len()).collect::<Vec<_>>(), [8192, 4096, 64 << 10, 1 << 20]);
            for (fill, buf) in (1..).zip(&mut all) {
                assert_eq!(buf.as_ptr() as usize % ALIGN, 0);
                buf.fill(fill);
            }
            assert!((1..).zip(&all).all(|(fill, buf)| buf.iter().all(|byte| *byte == fill)));
            assert!(AlignedBuf::of_arena(&arena, 1 << 20).is_none() && AlignedBuf::of_arena(&arena, 2 << 20).is_none());
        }
        let last = AlignedBuf::of_arena(&arena, 1 << 20).unwrap();
        drop(arena);
        assert!(last.is_of_arena() && last.len() == 1 << 20 && !AlignedBuf::new(1).is_of_arena());
    }
}
