//! bzip2 through libbz2-rs: whole streams with bzip2's own header. Wraps the library's unsafe
//! calls; owns its working memory.
//!
//! 1. The library allocates new tables for each stream. They come from a pool of retained buffers,
//!    so that a unit costs no system calls.
//! 2. A unit is at most 128 KiB, which bzip2's run-length stage expands to at most 5/4 of that: two
//!    blocks of level 1, or one block of level 2. Higher levels would produce the same bytes and
//!    use more memory, so they are written as level 2.
//! 3. A stream whose header asks for more is refused before memory is allocated for it.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};

use libbz2_rs_sys::{
    BZ_FINISH, BZ_OK, BZ_STREAM_END, BZ2_bzCompress, BZ2_bzCompressEnd, BZ2_bzCompressInit, BZ2_bzDecompress,
    BZ2_bzDecompressEnd, BZ2_bzDecompressInit, bz_stream,
};

use crate::Bzip2Level;

/// Highest level that changes the output for a unit.
const LEVEL_MAX: c_int = 2;
/// Longest input whose single block fits level 1: 100,000 bytes less bzip2's reserve of 19, times
/// 4/5.
const LEVEL_1_BYTES_MAX: usize = (100_000 - 19) / 5 * 4;
/// Most buffers in a pool: those of a compressor and a decompressor of both levels.
const BUFFERS_MAX: usize = 16;

/// Compressor and decompressor, with the working buffers that they reuse from call to call.
#[derive(Default)]
pub(crate) struct Bzip2 {
    pool: Box<Pool>,
}

impl Bzip2 {
    pub(crate) fn memory_bytes(&self) -> usize {
        self.pool.buffers.iter().map(|buffer| buffer.memory.len() * size_of::<u64>()).sum()
    }

    /// Compresses `src` into `dst` if it fits.
    pub(crate) fn compress(&mut self, level: Bzip2Level, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let digit = if src.len() <= LEVEL_1_BYTES_MAX { 1 } else { c_int::from(level.get()).min(LEVEL_MAX) };
        let mut stream = self.stream(src, dst)?;
        // SAFETY: the stream's pointers are valid for its lengths as long as `src`, `dst` and the
        // pool are borrowed, that is, until this function returns. The stream is ended and freed
        // before that on every path.
        let finished = unsafe {
            if BZ2_bzCompressInit(&raw mut stream, digit, 0, 0) != BZ_OK {
                return None;
            }
            let result = BZ2_bzCompress(&raw mut stream, BZ_FINISH);
            BZ2_bzCompressEnd(&raw mut stream);
            result == BZ_STREAM_END
        };
        finished.then(|| dst.len() - stream.avail_out as usize)
    }

    /// Decodes a stream that is exactly `dst.len()` bytes long; false when it is malformed or has
    /// another length.
    pub(crate) fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> bool {
        let [b'B', b'Z', b'h', b'1' | b'2', ..] = src else { return false };
        let Some(mut stream) = self.stream(src, dst) else { return false };
        let mut spill = [0u8; 1];
        // SAFETY: as in `compress`; `spill` lives to the end of this function too.
        let result = unsafe {
            if BZ2_bzDecompressInit(&raw mut stream, 0, 0) != BZ_OK {
                return false;
            }
            let mut result = BZ2_bzDecompress(&raw mut stream);
            if result == BZ_OK && stream.avail_out == 0 {
                // All bytes are decoded; whether the stream ends here only shows when more output
                // is requested.
                stream.next_out = spill.as_mut_ptr().cast();
                stream.avail_out = 1;
                result = BZ2_bzDecompress(&raw mut stream);
                stream.avail_out = if stream.avail_out == 1 { 0 } else { 1 };
            }
            BZ2_bzDecompressEnd(&raw mut stream);
            result
        };
        result == BZ_STREAM_END && stream.avail_out == 0 && stream.avail_in == 0
    }

    /// A stream from `src` to `dst` that allocates from the pool.
    fn stream(&mut self, src: &[u8], dst: &mut [u8]) -> Option<bz_stream> {
        let mut stream = bz_stream::zeroed();
        stream.next_in = src.as_ptr().cast();
        stream.avail_in = c_uint::try_from(src.len()).ok()?;
        stream.next_out = dst.as_mut_ptr().cast();
        stream.avail_out = c_uint::try_from(dst.len()).ok()?;
        stream.bzalloc = Some(take);
        stream.bzfree = Some(deallocate);
        stream.opaque = (&raw mut *self.pool).cast();
        Some(stream)
    }
}

/// Buffers kept for reuse.
#[derive(Default)]
struct Pool {
    buffers: Vec<Buffer>,
}

struct Buffer {
    /// Words, for the alignment that the library asks for.
    memory: Box<[u64]>,
    taken: bool,
}

/// The library's allocator: hands out the smallest free buffer that is large enough, else a new
/// one; null when the pool is at its limit.
unsafe extern "C" fn take(pool: *mut c_void, count: c_int, size: c_int) -> *mut c_void {
    // SAFETY: `pool` is the pointer set by `Bzip2::stream`; no other code uses the pool while the
    // stream is in use.
    let pool = unsafe { &mut *pool.cast::<Pool>() };
    let (Ok(count), Ok(size)) = (usize::try_from(count), usize::try_from(size)) else { return std::ptr::null_mut() };
    let Some(bytes) = count.checked_mul(size) else { return std::ptr::null_mut() };
    let words = bytes.div_ceil(size_of::<u64>());
    let fitting = pool.buffers.iter().enumerate().filter(|(_, buffer)| !buffer.taken && buffer.memory.len() >= words);
    let index = match fitting.min_by_key(|(_, buffer)| buffer.memory.len()) {
        Some((index, _)) => index,
        None if pool.buffers.len() < BUFFERS_MAX => {
            pool.buffers.push(Buffer { memory: vec![0; words].into_boxed_slice(), taken: false });
            pool.buffers.len() - 1
        }
        None => return std::ptr::null_mut(),
    };
    let buffer = &mut pool.buffers[index];
    buffer.taken = true;
    buffer.memory.as_mut_ptr().cast()
}

/// The library's deallocator.
unsafe extern "C" fn deallocate(pool: *mut c_void, memory: *mut c_void) {
    // SAFETY: as in `take`.
    let pool = unsafe { &mut *pool.cast::<Pool>() };
    if let Some(buffer) = pool.buffers.iter_mut().find(|buffer| buffer.memory.as_ptr().cast() == memory.cast_const()) {
        buffer.taken = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_does_not_grow_with_use() {
        let mut bzip2 = Bzip2::default();
        let mut after = Vec::new();
        for _ in 0..3 {
            for (len, level) in [(4096, 1), (131_072, 9), (131_072, 1), (70_000, 5), (90_000, 2)] {
                let raw: Vec<u8> = (0..len).map(|i| (i * i / 777) as u8).collect();
                let mut dst = vec![0; len + 3000];
                let stored = bzip2.compress(Bzip2Level::new(level).unwrap(), &raw, &mut dst).unwrap();
                let mut back = vec![0; len];
                assert!(bzip2.decompress(&dst[..stored], &mut back));
                assert_eq!(back, raw);
                assert!(bzip2.pool.buffers.iter().all(|buffer| !buffer.taken));
            }
            after.push(bzip2.memory_bytes());
        }
        assert!(after[0] < 5 << 20, "{after:?}");
        assert_eq!(after[0], after[2]);
    }

    #[test]
    fn headers_that_ask_for_more_memory_than_a_unit_needs_are_refused() {
        let mut bzip2 = Bzip2::default();
        let raw = [7u8; 5000];
        let mut dst = [0; 1000];
        let stored = bzip2.compress(Bzip2Level::MAX, &raw, &mut dst).unwrap();
        let mut back = [0; 5000];
        assert!(bzip2.decompress(&dst[..stored], &mut back));
        let before = bzip2.memory_bytes();
        dst[3] = b'9';
        assert!(!bzip2.decompress(&dst[..stored], &mut back));
        assert_eq!(bzip2.memory_bytes(), before);
    }
}
