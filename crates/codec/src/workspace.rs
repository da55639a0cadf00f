//! The reusable contexts of one thread.

use crate::{Codec, CodecId, DecodeError, lz4, zstd};

/// Largest unit in bytes: a group. Larger inputs are refused, so that a context's memory has a bound.
pub const UNIT_BYTES_MAX: usize = 128 << 10;

/// Compressors and decompressors of one thread, made when first needed and kept.
///
/// Memory: 16 KiB for lz4; for zstd what the highest level that was used needs for 128 KiB (0.5 MiB at
/// zstd-1, 0.9 MiB at zstd-3, 1.2 MiB at zstd-9, 2.8 MiB at zstd-19) and 0.1 MiB to decode.
#[derive(Default)]
pub struct Workspace {
    lz4: Option<lz4::Compressor>,
    zstd: Option<zstd::Compressor>,
    unzstd: Option<zstd::Decompressor>,
}

impl std::fmt::Debug for Workspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workspace").finish_non_exhaustive()
    }
}

impl Workspace {
    /// A workspace without contexts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Compresses `src` (at most [`UNIT_BYTES_MAX`]) into `dst` and returns the compressed length.
    ///
    /// `None` means: store it raw. The result does not fit in `dst`, or the codec is [`Codec::Off`], or `src` is empty or
    /// too long, or there is no memory. Nothing is ever written past `dst`; its content is undefined after `None`.
    pub fn compress(&mut self, codec: Codec, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        if src.is_empty() || src.len() > UNIT_BYTES_MAX || dst.is_empty() {
            return None;
        }
        match codec {
            Codec::Off => None,
            Codec::Lz4 => made(&mut self.lz4, lz4::Compressor::new)?.compress(src, dst),
            Codec::Zstd(level) => made(&mut self.zstd, zstd::Compressor::new)?.compress(level, src, dst),
        }
    }

    /// Decodes `src` into the whole of `dst`, whose length is the raw length exactly.
    ///
    /// # Errors
    /// When the codec is unknown, `src` is malformed, or decodes to another length. The content of `dst` is undefined then.
    pub fn decompress(&mut self, id: CodecId, src: &[u8], dst: &mut [u8]) -> Result<(), DecodeError> {
        let done = match id {
            CodecId::RAW => copy(src, dst),
            _ if !id.is_known() => return Err(DecodeError::UnknownCodec(id)),
            // Not made by `compress`; zstd would accept an empty stream, and anything longer than a unit.
            _ if dst.is_empty() || dst.len() > UNIT_BYTES_MAX => false,
            CodecId::LZ4 => lz4::decompress(src, dst),
            _ => made(&mut self.unzstd, zstd::Decompressor::new).ok_or(DecodeError::OutOfMemory)?.decompress(src, dst),
        };
        if done { Ok(()) } else { Err(DecodeError::Malformed { codec: id, stored: src.len(), raw: dst.len() }) }
    }

    /// Like [`decompress`](Self::decompress), but may stop once the first `wanted` bytes of `dst` are there; what lies
    /// behind them is undefined. Damage behind the place where it stopped is not noticed, nor is a raw length other than
    /// `dst.len()`: the payload's checksum must have been verified.
    ///
    /// # Errors
    /// As [`decompress`](Self::decompress).
    pub fn decompress_prefix(
        &mut self,
        id: CodecId,
        src: &[u8],
        dst: &mut [u8],
        wanted: usize,
    ) -> Result<(), DecodeError> {
        let malformed = DecodeError::Malformed { codec: id, stored: src.len(), raw: dst.len() };
        if wanted >= dst.len() {
            return if wanted == dst.len() { self.decompress(id, src, dst) } else { Err(malformed) };
        }
        match id {
            CodecId::RAW if src.len() == dst.len() => {
                dst[..wanted].copy_from_slice(&src[..wanted]);
                Ok(())
            }
            CodecId::LZ4 if dst.len() <= UNIT_BYTES_MAX => {
                if lz4::decompress_prefix(src, dst, wanted) {
                    Ok(())
                } else {
                    Err(malformed)
                }
            }
            _ => self.decompress(id, src, dst),
        }
    }
}

/// The context in `slot`, made now if there is none yet.
fn made<T>(slot: &mut Option<T>, make: impl FnOnce() -> Option<T>) -> Option<&mut T> {
    if slot.is_none() {
        *slot = make();
    }
    slot.as_mut()
}

fn copy(src: &[u8], dst: &mut [u8]) -> bool {
    let same = src.len() == dst.len();
    if same {
        dst.copy_from_slice(src);
    }
    same
}
