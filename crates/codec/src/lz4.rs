//! LZ4 blocks through the C library, in its fast and its high-compression form. Wraps the library's
//! unsafe calls; owns the compressors' states.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};

use crate::Lz4HcLevel;

unsafe extern "C" {
    // In lz4.h since 1.9, but not in lz4-sys. The first needs a state that was initialised once and
    // was since given only to functions of this family.
    fn LZ4_compress_fast_extState_fastReset(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe_partial(
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        target_output_size: c_int,
        dst_capacity: c_int,
    ) -> c_int;
    fn LZ4_initStream(buffer: *mut c_void, size: usize) -> *mut c_void;
    // In lz4hc.h since 1.9, likewise.
    fn LZ4_compress_HC_extStateHC_fastReset(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        dst_capacity: c_int,
        level: c_int,
    ) -> c_int;
    fn LZ4_initStreamHC(buffer: *mut c_void, size: usize) -> *mut c_void;
}

/// `LZ4_STREAM_MINSIZE` of lz4 1.10: (1 << LZ4_MEMORY_USAGE) + 32 with LZ4_MEMORY_USAGE = 14.
const STATE_BYTES: usize = (1 << 14) + 32;

/// The library's compression state, 16 KiB, aligned as it asks for.
#[repr(C, align(64))]
struct State([u8; STATE_BYTES]);

/// An LZ4 compressor whose state is reused from call to call.
pub(crate) struct Compressor {
    state: Box<State>,
}

impl Compressor {
    pub(crate) const MEMORY_BYTES: usize = size_of::<State>();

    /// `None` when the linked library wants a larger state than it was built for.
    pub(crate) fn new() -> Option<Self> {
        let mut state = Box::new(State([0; STATE_BYTES]));
        // SAFETY: the pointer is valid for STATE_BYTES; the function checks size and alignment
        // itself.
        let stream = unsafe { LZ4_initStream((&raw mut *state).cast(), STATE_BYTES) };
        (!stream.is_null()).then_some(Self { state })
    }

    /// Compresses `src` into `dst` if it fits.
    pub(crate) fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let (src_size, dst_capacity) = (c_int::try_from(src.len()).ok()?, c_int::try_from(dst.len()).ok()?);
        // SAFETY: the state was initialised in `new` and only this function uses it; the pointers
        // are valid for the lengths given with them, and the library writes at most `dst_capacity`
        // bytes.
        let written = unsafe {
            LZ4_compress_fast_extState_fastReset(
                (&raw mut *self.state).cast(),
                src.as_ptr().cast(),
                dst.as_mut_ptr().cast(),
                src_size,
                dst_capacity,
                1,
            )
        };
        usize::try_from(written).ok().filter(|n| *n > 0 && *n <= dst.len())
    }
}

/// `LZ4_STREAMHC_MINSIZE` of lz4 1.10.
const STATE_HC_BYTES: usize = 262_200;

/// The library's state for searching longer, 256 KiB, aligned as it asks for.
#[repr(C, align(64))]
struct StateHc([u8; STATE_HC_BYTES]);

/// An LZ4 compressor with a longer search, whose state is reused from call to call.
pub(crate) struct CompressorHc {
    state: Box<StateHc>,
}

impl CompressorHc {
    pub(crate) const MEMORY_BYTES: usize = size_of::<StateHc>();

    /// `None` when the linked library wants a larger state than it was built for.
    pub(crate) fn new() -> Option<Self> {
        let mut state = Box::new(StateHc([0; STATE_HC_BYTES]));
        // SAFETY: the pointer is valid for STATE_HC_BYTES; the function checks size and alignment
        // itself.
        let stream = unsafe { LZ4_initStreamHC((&raw mut *state).cast(), STATE_HC_BYTES) };
        (!stream.is_null()).then_some(Self { state })
    }

    /// Compresses `src` into `dst` if it fits.
    pub(crate) fn compress(&mut self, level: Lz4HcLevel, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let (src_size, dst_capacity) = (c_int::try_from(src.len()).ok()?, c_int::try_from(dst.len()).ok()?);
        // SAFETY: the state was initialised in `new` and only this function uses it; the pointers
        // are valid for the lengths given with them, and the library writes at most `dst_capacity`
        // bytes.
        let written = unsafe {
            LZ4_compress_HC_extStateHC_fastReset(
                (&raw mut *self.state).cast(),
                src.as_ptr().cast(),
                dst.as_mut_ptr().cast(),
                src_size,
                dst_capacity,
                level.get().into(),
            )
        };
        usize::try_from(written).ok().filter(|n| *n > 0 && *n <= dst.len())
    }
}

/// Decodes a block that is exactly `dst.len()` bytes long; false when it is not, or is malformed.
pub(crate) fn decompress(src: &[u8], dst: &mut [u8]) -> bool {
    let (Ok(src_size), Ok(dst_capacity)) = (c_int::try_from(src.len()), c_int::try_from(dst.len())) else {
        return false;
    };
    // SAFETY: the pointers are valid for the lengths given with them; the library bounds-checks
    // reads and writes.
    let written =
        unsafe { lz4_sys::LZ4_decompress_safe(src.as_ptr().cast(), dst.as_mut_ptr().cast(), src_size, dst_capacity) };
    usize::try_from(written) == Ok(dst.len())
}

/// Decodes at least the first `wanted` bytes (at most `dst.len()`); false when that cannot be done.
pub(crate) fn decompress_prefix(src: &[u8], dst: &mut [u8], wanted: usize) -> bool {
    let (Ok(src_size), Ok(dst_capacity), Ok(target)) =
        (c_int::try_from(src.len()), c_int::try_from(dst.len()), c_int::try_from(wanted))
    else {
        return false;
    };
    // SAFETY: as in `decompress`; the library never writes more than the smaller of target and
    // capacity.
    let written = unsafe {
        LZ4_decompress_safe_partial(src.as_ptr().cast(), dst.as_mut_ptr().cast(), src_size, target, dst_capacity)
    };
    usize::try_from(written).is_ok_and(|n| n >= wanted)
}
