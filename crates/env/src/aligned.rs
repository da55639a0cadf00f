//! Memory at page-aligned addresses, as direct I/O needs it.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A zero-initialised buffer whose address and length are multiples of 4096.
pub struct AlignedBuf {
    memory: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its memory exclusively, like a Vec<u8>.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBuf {}

const ALIGN: usize = 4096;

impl AlignedBuf {
    /// A buffer of at least `len` bytes, rounded up to a multiple of 4096 (at least 4096).
    pub fn new(len: usize) -> Self {
        let len = len.max(1).next_multiple_of(ALIGN);
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        // SAFETY: `memory` is valid for `len` bytes; from here on all of them are initialised.
        unsafe { memory.as_ptr().write_bytes(0, len) };
        Self { memory, len }
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
        // SAFETY: valid and initialised for `len` bytes, borrowed with self.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: valid and initialised for `len` bytes, borrowed mutably with self.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout.
        unsafe { dealloc(self.memory.as_ptr(), Self::layout(self.len)) }
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}
