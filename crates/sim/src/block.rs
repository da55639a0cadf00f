//! The content of one block in the model: bytes or zeroes, and the operation that wrote it.

use std::fmt;
use std::sync::Arc;

use units::BLOCK_BYTES;

/// The content of a block and its origin. Equal when the bytes are equal.
#[derive(Clone)]
pub struct Content {
    /// `None` is all zeroes.
    pub(crate) bytes: Option<Arc<[u8]>>,
    pub(crate) digest: u64,
    /// Number of the operation that wrote it; 0 is the beginning.
    op: u64,
}

impl PartialEq for Content {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest && self.bytes == other.bytes
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            Some(_) => write!(f, "{:016x} (op {})", self.digest, self.op),
            None => write!(f, "zeroes (op {})", self.op),
        }
    }
}

/// A digest for messages and provenance: FNV-1a over words, one multiplication per eight bytes.
pub fn digest(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^= hash >> 29;
    }
    hash
}

/// Whether part of a block is all zeroes; by a comparison of memory, which is fast without
/// optimisation too.
pub(crate) fn is_zero(part: &[u8]) -> bool {
    const ZEROES: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
    *part == ZEROES[..part.len()]
}

impl Content {
    pub(crate) const fn zeroes(op: u64) -> Self {
        Self { bytes: None, digest: 0, op }
    }

    pub(crate) fn new(block: &[u8], op: u64) -> Self {
        if is_zero(block) {
            return Self::zeroes(op);
        }
        Self { digest: digest(block), bytes: Some(block.into()), op }
    }

    /// This content with `data` laid over it from byte `at`.
    pub(crate) fn overlaid(&self, at: usize, data: &[u8], op: u64) -> Self {
        let mut block = [0; BLOCK_BYTES];
        if let Some(bytes) = &self.bytes {
            block.copy_from_slice(bytes);
        }
        block[at..at + data.len()].copy_from_slice(data);
        Self::new(&block, op)
    }

    pub(crate) fn matches(&self, at: usize, data: &[u8]) -> bool {
        match &self.bytes {
            Some(bytes) => bytes[at..at + data.len()] == *data,
            None => is_zero(data),
        }
    }
}

/// Adds a content unless it is present.
pub(crate) fn push_new(contents: &mut Vec<Content>, content: Content) {
    if !contents.contains(&content) {
        contents.push(content);
    }
}
