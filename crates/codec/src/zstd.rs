//! zstd frames as the format wants them: magicless, without content size, checksum and dictionary
//! id (2 bytes of header and 3 for each block), with and without a dictionary. Wraps the C
//! library's contexts and keeps them for reuse.
//!
//! A context refers to the dictionary that it used last, by a pointer. It holds a count on that
//! dictionary too, so that the pointer stays good; and it lets go of both before it does something
//! without a dictionary, because the library would go on using it.
#![allow(unsafe_code)]

use std::sync::Arc;

use zstd_safe::{CCtx, CDict, CParameter, DCtx, DDict, DParameter, FrameFormat, ResetDirective};

use crate::{DecodeDictionary, EncodeDictionary, ZstdFastLevel, ZstdLevel, zstd_prefix};

/// Maps our level to zstd's.
pub(crate) fn level_of(level: ZstdLevel) -> i32 {
    level.get().into()
}

/// Maps our fast level to zstd's negative one.
pub(crate) fn level_of_fast(level: ZstdFastLevel) -> i32 {
    -i32::from(level.get())
}

/// A zstd compressor whose context is reused from call to call.
pub(crate) struct Compressor {
    context: CCtx<'static>,
    level: Option<i32>,
    dictionary: Option<Arc<EncodeDictionary>>,
}

impl Compressor {
    /// `None` when there is no memory.
    pub(crate) fn new() -> Option<Self> {
        let mut context = CCtx::try_create()?;
        for parameter in [
            CParameter::Format(FrameFormat::Magicless),
            CParameter::ContentSizeFlag(false),
            CParameter::ChecksumFlag(false),
            CParameter::DictIdFlag(false),
        ] {
            context.set_parameter(parameter).ok()?;
        }
        Some(Self { context, level: None, dictionary: None })
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.context.sizeof()
    }

    /// Compresses `src` into `dst` if it fits, at zstd's `level`.
    pub(crate) fn compress(&mut self, level: i32, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        if self.dictionary.is_some() {
            self.context.disable_dictionary().ok()?;
            self.dictionary = None;
        }
        if self.level != Some(level) {
            self.level = None;
            self.context.set_parameter(CParameter::CompressionLevel(level)).ok()?;
            self.level = Some(level);
        }
        self.run(src, dst)
    }

    /// Compresses with the current settings.
    fn run(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        // One call with the whole input: the library takes its size as pledged and picks the tables
        // for small inputs.
        let done = self.context.compress2(dst, src);
        if done.is_err() {
            // The context stopped within a frame, where it accepts no other dictionary. If this
            // reset fails, so does the next call.
            let _ = self.context.reset(ResetDirective::SessionOnly);
        }
        done.ok().filter(|n| *n <= dst.len())
    }

    /// Compresses `src` into `dst` if it fits, with a dictionary and the level that it was prepared
    /// for.
    pub(crate) fn compress_with(
        &mut self,
        dictionary: &Arc<EncodeDictionary>,
        src: &[u8],
        dst: &mut [u8],
    ) -> Option<usize> {
        if !self.dictionary.as_ref().is_some_and(|last| Arc::ptr_eq(last, dictionary)) {
            // SAFETY: only lengthens the reference's lifetime. Its target lives in
            // `self.dictionary` for as long as the context refers to it: no path from here to the
            // next assignment uses the context.
            let prepared = unsafe { &*std::ptr::from_ref::<CDict<'static>>(dictionary.prepared()) };
            self.context.ref_cdict(prepared).ok()?;
            self.dictionary = Some(Arc::clone(dictionary));
        }
        self.run(src, dst)
    }
}

/// A zstd decompressor whose context is reused from call to call.
pub(crate) struct Decompressor {
    context: DCtx<'static>,
    dictionary: Option<Arc<DecodeDictionary>>,
}

impl Decompressor {
    /// `None` when there is no memory.
    pub(crate) fn new() -> Option<Self> {
        let mut context = DCtx::try_create()?;
        context.set_parameter(DParameter::Format(FrameFormat::Magicless)).ok()?;
        Some(Self { context, dictionary: None })
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.context.sizeof()
    }

    /// Decodes at least the first `wanted` bytes of a frame of `dst.len()` bytes, made with that
    /// dictionary or with none; false when it has another length, if all of it is decoded, or is
    /// malformed.
    pub(crate) fn decompress(
        &mut self,
        dictionary: Option<&Arc<DecodeDictionary>>,
        src: &[u8],
        dst: &mut [u8],
        wanted: usize,
    ) -> bool {
        let is_ready = match dictionary {
            None => self.forget_dictionary(),
            Some(dictionary) => self.take_dictionary(dictionary),
        };
        let mut run = |src: &[u8], room: &mut [u8]| self.context.decompress(room, src);
        is_ready
            && (wanted < dst.len() && zstd_prefix::decode(src, dst, wanted, &mut run) || run(src, dst) == Ok(dst.len()))
    }

    fn forget_dictionary(&mut self) -> bool {
        if self.dictionary.is_some() {
            if self.context.disable_dictionary().is_err() {
                return false;
            }
            self.dictionary = None;
        }
        true
    }

    fn take_dictionary(&mut self, dictionary: &Arc<DecodeDictionary>) -> bool {
        if !self.dictionary.as_ref().is_some_and(|last| Arc::ptr_eq(last, dictionary)) {
            // SAFETY: as in `Compressor::compress_with`.
            let prepared = unsafe { &*std::ptr::from_ref::<DDict<'static>>(dictionary.prepared()) };
            if self.context.ref_ddict(prepared).is_err() {
                return false;
            }
            self.dictionary = Some(Arc::clone(dictionary));
        }
        true
    }
}
