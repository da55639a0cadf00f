//! zstd frames as the format wants them: magicless, without content size, checksum and dictionary id (2 bytes of header
//! and 3 for each block). Wraps the C library's contexts and keeps them for reuse.

use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat};

use crate::ZstdLevel;

/// A zstd compressor whose context is reused from call to call.
pub(crate) struct Compressor {
    context: CCtx<'static>,
    level: Option<ZstdLevel>,
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
        Some(Self { context, level: None })
    }

    /// Compresses `src` into `dst` if it fits.
    pub(crate) fn compress(&mut self, level: ZstdLevel, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        if self.level != Some(level) {
            self.level = None;
            self.context.set_parameter(CParameter::CompressionLevel(level.get().into())).ok()?;
            self.level = Some(level);
        }
        // One call with the whole input: the library takes its size as pledged and picks the tables for small inputs.
        self.context.compress2(dst, src).ok().filter(|n| *n <= dst.len())
    }
}

/// A zstd decompressor whose context is reused from call to call.
pub(crate) struct Decompressor {
    context: DCtx<'static>,
}

impl Decompressor {
    /// `None` when there is no memory.
    pub(crate) fn new() -> Option<Self> {
        let mut context = DCtx::try_create()?;
        context.set_parameter(DParameter::Format(FrameFormat::Magicless)).ok()?;
        Some(Self { context })
    }

    /// Decodes a frame that is exactly `dst.len()` bytes long; false when it is not, or is malformed.
    pub(crate) fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> bool {
        self.context.decompress(dst, src) == Ok(dst.len())
    }
}
