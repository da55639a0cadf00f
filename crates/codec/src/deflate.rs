//! Deflate through libdeflate: a bare stream (RFC 1951), without the header and trailer of gzip or
//! zlib, because the fragment's own header does their work. Wraps the library's unsafe calls; owns
//! its contexts.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use libdeflate_sys::{
    libdeflate_alloc_compressor, libdeflate_alloc_decompressor, libdeflate_compressor, libdeflate_decompressor,
    libdeflate_deflate_compress, libdeflate_deflate_decompress_ex, libdeflate_free_compressor,
    libdeflate_free_decompressor, libdeflate_result_LIBDEFLATE_SUCCESS,
};

use crate::GzipLevel;

/// A compressor of one level, reused from call to call; another level needs another compressor.
pub(crate) struct Compressor {
    context: NonNull<libdeflate_compressor>,
    level: GzipLevel,
}

// SAFETY: the context is memory used only by its owner and is not tied to a thread.
unsafe impl Send for Compressor {}

impl Compressor {
    /// `None` when there is no memory.
    pub(crate) fn new(level: GzipLevel) -> Option<Self> {
        // SAFETY: any level may be asked for; the result is null or a context.
        let context = NonNull::new(unsafe { libdeflate_alloc_compressor(c_int::from(level.get())) })?;
        Some(Self { context, level })
    }

    pub(crate) fn level(&self) -> GzipLevel {
        self.level
    }

    /// Bytes that libdeflate 1.26 allocates for the level, as measured (the library does not report
    /// it).
    pub(crate) fn memory_bytes(&self) -> usize {
        match self.level.get() {
            1 => 200 << 10,
            _ => 660 << 10,
        }
    }

    /// Compresses `src` into `dst` if it fits.
    pub(crate) fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        // SAFETY: the context is live and ours alone; the pointers are valid for the lengths given
        // with them, and the library writes at most `dst.len()` bytes.
        let written = unsafe {
            libdeflate_deflate_compress(
                self.context.as_ptr(),
                src.as_ptr().cast(),
                src.len(),
                dst.as_mut_ptr().cast(),
                dst.len(),
            )
        };
        Some(written).filter(|n| *n > 0 && *n <= dst.len())
    }
}

impl Drop for Compressor {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed once.
        unsafe { libdeflate_free_compressor(self.context.as_ptr()) }
    }
}

/// A decompressor (12 KiB) that is reused from call to call.
pub(crate) struct Decompressor {
    context: NonNull<libdeflate_decompressor>,
}

// SAFETY: as for `Compressor`.
unsafe impl Send for Decompressor {}

impl Decompressor {
    /// Bytes that libdeflate 1.26 allocates, as measured.
    pub(crate) const MEMORY_BYTES: usize = 12 << 10;

    /// `None` when there is no memory.
    pub(crate) fn new() -> Option<Self> {
        // SAFETY: the result is null or a context.
        let context = NonNull::new(unsafe { libdeflate_alloc_decompressor() })?;
        Some(Self { context })
    }

    /// Decodes a stream that is exactly `dst.len()` bytes long; false when it is not, or is
    /// malformed.
    pub(crate) fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> bool {
        let mut read = 0;
        // SAFETY: the context is live and ours alone; the pointers are valid for the lengths given
        // with them; the library bounds-checks both. Without a place for the decoded length it
        // fails unless `dst` is filled exactly.
        let result = unsafe {
            libdeflate_deflate_decompress_ex(
                self.context.as_ptr(),
                src.as_ptr().cast(),
                src.len(),
                dst.as_mut_ptr().cast(),
                dst.len(),
                &raw mut read,
                ptr::null_mut(),
            )
        };
        result == libdeflate_result_LIBDEFLATE_SUCCESS && read == src.len()
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed once.
        unsafe { libdeflate_free_decompressor(self.context.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::{Layout, alloc, dealloc};
    use std::ffi::c_void;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    const HEAD: usize = 64;

    unsafe extern "C" fn count(bytes: usize) -> *mut c_void {
        TAKEN.fetch_add(bytes, Ordering::Relaxed);
        // SAFETY: never of size 0; the size is kept in front for `free`.
        unsafe {
            let memory = alloc(Layout::from_size_align(bytes + HEAD, HEAD).unwrap());
            memory.cast::<usize>().write(bytes);
            memory.add(HEAD).cast()
        }
    }

    unsafe extern "C" fn free(memory: *mut c_void) {
        // SAFETY: `memory` came from `count`.
        unsafe {
            let memory = memory.cast::<u8>().sub(HEAD);
            dealloc(memory, Layout::from_size_align(memory.cast::<usize>().read() + HEAD, HEAD).unwrap());
        }
    }

    #[test]
    fn memory_is_what_is_said() {
        let options = libdeflate_sys::libdeflate_options {
            sizeof_options: size_of::<libdeflate_sys::libdeflate_options>(),
            malloc_func: Some(count),
            free_func: Some(free),
        };
        let close = |said: usize| {
            let is = TAKEN.swap(0, Ordering::Relaxed);
            assert!(is <= said && is > said * 8 / 10, "{is} bytes, not {said}");
        };
        for level in GzipLevel::all() {
            // SAFETY: the options are valid; the contexts are freed once.
            unsafe {
                let context = libdeflate_sys::libdeflate_alloc_compressor_ex(level.get().into(), &raw const options);
                libdeflate_free_compressor(context);
            }
            close(Compressor::new(level).unwrap().memory_bytes());
        }
        // SAFETY: as above.
        unsafe { libdeflate_free_decompressor(libdeflate_sys::libdeflate_alloc_decompressor_ex(&raw const options)) };
        close(Decompressor::MEMORY_BYTES);
    }
}
