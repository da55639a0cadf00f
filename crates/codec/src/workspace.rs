//! The reusable contexts of one thread.

use std::sync::Arc;

use crate::id::Stream;
use crate::{
    Codec, CodecId, DecodeDictionary, DecodeError, DictionaryNumber, EncodeDictionary, bzip2, deflate, lz4, lzjb, lzo,
    zle, zstd,
};

/// Largest unit in bytes: a group. Larger inputs are refused, which bounds a context's memory.
pub const UNIT_BYTES_MAX: usize = 128 << 10;

/// Compressors and decompressors of one thread, created on first use and kept: a thread that only
/// uses lz4 pays for nothing else.
///
/// Memory to compress: 16 KiB for lz4, 256 KiB for lz4hc, 64 KiB for lzo, 4 KiB for lzjb, none for
/// zle; 0.2 MiB for gzip-1, 0.7 MiB for gzip-2 to 9 (the level used last); 1.1 to 2.7 MiB for
/// bzip2; for zstd the need of the highest level used so far, for 128 KiB (0.5 MiB at zstd-1, 0.9
/// MiB at zstd-3, 1.2 MiB at zstd-9, 2.8 MiB at zstd-19). To decompress: 0.1 MiB for zstd, 12 KiB
/// for gzip, 0.5 to 0.9 MiB for bzip2, none for the others. [`memory_bytes`](Self::memory_bytes)
/// returns the current total.
#[derive(Default)]
pub struct Workspace {
    lz4: Option<lz4::Compressor>,
    lz4hc: Option<lz4::CompressorHc>,
    lzjb: Option<lzjb::Compressor>,
    lzo: Option<lzo::Compressor>,
    deflate: Option<deflate::Compressor>,
    inflate: Option<deflate::Decompressor>,
    bzip2: bzip2::Bzip2,
    zstd: Option<zstd::Compressor>,
    unzstd: Option<zstd::Decompressor>,
}

impl std::fmt::Debug for Workspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workspace").field("memory_bytes", &self.memory_bytes()).finish_non_exhaustive()
    }
}

impl Workspace {
    /// A workspace without contexts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of memory used by the contexts created so far; prepared dictionaries are not included.
    pub fn memory_bytes(&self) -> usize {
        self.lz4.as_ref().map_or(0, |_| lz4::Compressor::MEMORY_BYTES)
            + self.lz4hc.as_ref().map_or(0, |_| lz4::CompressorHc::MEMORY_BYTES)
            + self.lzjb.as_ref().map_or(0, lzjb::Compressor::memory_bytes)
            + self.lzo.as_ref().map_or(0, lzo::Compressor::memory_bytes)
            + self.deflate.as_ref().map_or(0, deflate::Compressor::memory_bytes)
            + self.inflate.as_ref().map_or(0, |_| deflate::Decompressor::MEMORY_BYTES)
            + self.bzip2.memory_bytes()
            + self.zstd.as_ref().map_or(0, zstd::Compressor::memory_bytes)
            + self.unzstd.as_ref().map_or(0, zstd::Decompressor::memory_bytes)
    }

    /// Compresses `src` (at most [`UNIT_BYTES_MAX`]) into `dst` and returns the compressed length.
    ///
    /// `None` means: store it raw. The result does not fit in `dst`, or the codec is
    /// [`Codec::Off`], or `src` is empty or too long, or there is no memory. Nothing is ever
    /// written past `dst`; its content is undefined after `None`.
    pub fn compress(&mut self, codec: Codec, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        if src.is_empty() || src.len() > UNIT_BYTES_MAX || dst.is_empty() {
            return None;
        }
        match codec {
            Codec::Off => None,
            Codec::Zle => zle::compress(src, dst),
            Codec::Lzjb => self.lzjb.get_or_insert_with(lzjb::Compressor::new).compress(src, dst),
            Codec::Lz4 => made(&mut self.lz4, lz4::Compressor::new)?.compress(src, dst),
            Codec::Lz4Hc(level) => made(&mut self.lz4hc, lz4::CompressorHc::new)?.compress(level, src, dst),
            Codec::Lzo => self.lzo.get_or_insert_with(lzo::Compressor::new).compress(src, dst),
            Codec::Gzip(level) => {
                self.deflate.take_if(|compressor| compressor.level() != level);
                made(&mut self.deflate, || deflate::Compressor::new(level))?.compress(src, dst)
            }
            Codec::Bzip2(level) => self.bzip2.compress(level, src, dst),
            Codec::Zstd(level) => {
                made(&mut self.zstd, zstd::Compressor::new)?.compress(zstd::level_of(level), src, dst)
            }
            Codec::ZstdFast(level) => {
                made(&mut self.zstd, zstd::Compressor::new)?.compress(zstd::level_of_fast(level), src, dst)
            }
        }
    }

    /// Compresses like [`compress`](Self::compress), with a dictionary, for
    /// [`CodecId::ZSTD_DICTIONARY`]. The dictionary's number is part of the result.
    pub fn compress_with(&mut self, dictionary: &Arc<EncodeDictionary>, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        if src.is_empty() || src.len() > UNIT_BYTES_MAX {
            return None;
        }
        let (number, frame) = dst.split_first_chunk_mut()?;
        *number = dictionary.number().0.to_le_bytes();
        let written = made(&mut self.zstd, zstd::Compressor::new)?.compress_with(dictionary, src, frame)?;
        Some(DictionaryNumber::BYTES + written)
    }

    /// Decodes `src` into the whole of `dst`, whose length is the raw length exactly.
    ///
    /// # Errors
    /// When the codec is unknown, `src` is malformed, or decodes to another length, or needs a
    /// dictionary. The content of `dst` is undefined then.
    pub fn decompress(&mut self, id: CodecId, src: &[u8], dst: &mut [u8]) -> Result<(), DecodeError> {
        self.decompress_with(id, src, dst, &mut |_| None)
    }

    /// Decodes like [`decompress`](Self::decompress), and asks `dictionaries` for the dictionary if
    /// `src` needs one.
    ///
    /// # Errors
    /// As there; and when `dictionaries` does not have it.
    pub fn decompress_with(
        &mut self,
        id: CodecId,
        src: &[u8],
        dst: &mut [u8],
        dictionaries: &mut dyn FnMut(DictionaryNumber) -> Option<Arc<DecodeDictionary>>,
    ) -> Result<(), DecodeError> {
        let stream = id.stream().ok_or(DecodeError::UnknownCodec(id))?;
        let malformed = DecodeError::Malformed { codec: id, stored: src.len(), raw: dst.len() };
        let wanted = dst.len();
        let done = match stream {
            Stream::Raw => copy(src, dst),
            // `compress` never produces these; zstd would accept an empty stream, and input longer
            // than a unit.
            _ if dst.is_empty() || dst.len() > UNIT_BYTES_MAX => false,
            Stream::Zle => zle::decompress(src, dst, wanted).is_some(),
            Stream::Lzjb => lzjb::decompress(src, dst, wanted).is_some(),
            Stream::Lz4 => lz4::decompress(src, dst),
            Stream::Lzo => lzo::decompress(src, dst, wanted).is_some(),
            Stream::Deflate => {
                let inflate = made(&mut self.inflate, deflate::Decompressor::new).ok_or(DecodeError::OutOfMemory)?;
                inflate.decompress(src, dst)
            }
            Stream::Bzip2 => self.bzip2.decompress(src, dst),
            Stream::Zstd => self.unzstd()?.decompress(None, src, dst, wanted),
            Stream::ZstdDictionary => self.unzstd_with(src, dst, wanted, dictionaries, malformed)?,
        };
        if done { Ok(()) } else { Err(malformed) }
    }

    /// Like [`decompress`](Self::decompress), but may stop once the first `wanted` bytes of `dst`
    /// are decoded; the bytes after them are undefined. Damage past the point where it stopped goes
    /// unnoticed, and so does a raw length other than `dst.len()`: the caller must have verified
    /// the payload's checksum.
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
        self.decompress_prefix_with(id, src, dst, wanted, &mut |_| None)
    }

    /// Decodes like [`decompress_prefix`](Self::decompress_prefix), with dictionaries like
    /// [`decompress_with`](Self::decompress_with).
    ///
    /// # Errors
    /// As those.
    pub fn decompress_prefix_with(
        &mut self,
        id: CodecId,
        src: &[u8],
        dst: &mut [u8],
        wanted: usize,
        dictionaries: &mut dyn FnMut(DictionaryNumber) -> Option<Arc<DecodeDictionary>>,
    ) -> Result<(), DecodeError> {
        let malformed = DecodeError::Malformed { codec: id, stored: src.len(), raw: dst.len() };
        if wanted > dst.len() {
            return Err(malformed);
        }
        let done = match id.stream() {
            _ if wanted == dst.len() => return self.decompress_with(id, src, dst, dictionaries),
            Some(Stream::Raw) if src.len() == dst.len() => copy(&src[..wanted], &mut dst[..wanted]),
            Some(Stream::Lz4) if dst.len() <= UNIT_BYTES_MAX => lz4::decompress_prefix(src, dst, wanted),
            Some(Stream::Zle) if dst.len() <= UNIT_BYTES_MAX => zle::decompress(src, dst, wanted).is_some(),
            Some(Stream::Lzjb) if dst.len() <= UNIT_BYTES_MAX => lzjb::decompress(src, dst, wanted).is_some(),
            Some(Stream::Lzo) if dst.len() <= UNIT_BYTES_MAX => lzo::decompress(src, dst, wanted).is_some(),
            Some(Stream::Zstd) if dst.len() <= UNIT_BYTES_MAX => self.unzstd()?.decompress(None, src, dst, wanted),
            Some(Stream::ZstdDictionary) if dst.len() <= UNIT_BYTES_MAX => {
                self.unzstd_with(src, dst, wanted, dictionaries, malformed)?
            }
            _ => return self.decompress_with(id, src, dst, dictionaries),
        };
        if done { Ok(()) } else { Err(malformed) }
    }

    /// Finds the dictionary that `src` names, and decodes with it.
    fn unzstd_with(
        &mut self,
        src: &[u8],
        dst: &mut [u8],
        wanted: usize,
        dictionaries: &mut dyn FnMut(DictionaryNumber) -> Option<Arc<DecodeDictionary>>,
        malformed: DecodeError,
    ) -> Result<bool, DecodeError> {
        let (number, frame) = DictionaryNumber::split(src).ok_or(malformed)?;
        let dictionary = dictionaries(number).ok_or(DecodeError::MissingDictionary(number))?;
        Ok(self.unzstd()?.decompress(Some(&dictionary), frame, dst, wanted))
    }

    fn unzstd(&mut self) -> Result<&mut zstd::Decompressor, DecodeError> {
        made(&mut self.unzstd, zstd::Decompressor::new).ok_or(DecodeError::OutOfMemory)
    }
}

/// Returns the context in `slot`, creating it on first use.
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
