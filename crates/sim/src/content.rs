//! Bytes to write: content that compresses well, badly, or not at all, and holes.

use crate::Rng;

/// Kind of bytes in a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentKind {
    /// Words and line ends.
    Text,
    /// Incompressible.
    Random,
    /// Half a block incompressible, half constant: near the minimum saving.
    Mixed,
    /// One byte repeated: the best case of every codec.
    Constant,
    /// Zeroes: whole blocks become holes.
    Zero,
}

impl ContentKind {
    /// A kind at random: mostly text, as data at rest is.
    pub fn choose(rng: &mut Rng) -> Self {
        match rng.below(100) {
            0..45 => Self::Text,
            45..70 => Self::Random,
            70..85 => Self::Mixed,
            85..93 => Self::Constant,
            _ => Self::Zero,
        }
    }
}

const WORDS: [&[u8]; 16] = [
    b"extent ",
    b"log ",
    b"block\n",
    b"the ",
    b"of ",
    b"checkpoint ",
    b"a ",
    b"0x7f",
    b"volume ",
    b"map ",
    b"batch, ",
    b"is ",
    b"not ",
    b"durable.\n",
    b"    ",
    b"fragment ",
];

/// Fills `buf` with bytes of a kind. Two calls produce different bytes (except for
/// [`ContentKind::Zero`]), so that a block's content identifies the write that it came from.
pub fn fill_content(rng: &mut Rng, kind: ContentKind, buf: &mut [u8]) {
    match kind {
        ContentKind::Zero => buf.fill(0),
        ContentKind::Random => rng.fill(buf),
        ContentKind::Constant => {
            // Two bytes of pattern, both nonzero: 65025 different contents.
            let pattern = [rng.between(1, 255) as u8, rng.between(1, 255) as u8];
            for (i, byte) in buf.iter_mut().enumerate() {
                *byte = pattern[i & 1];
            }
        }
        ContentKind::Mixed => {
            for block in buf.chunks_mut(4096) {
                let half = block.len().div_ceil(2);
                rng.fill(&mut block[..half]);
                block[half..].fill(0x55);
            }
        }
        ContentKind::Text => {
            let mut at = 0;
            let mut bits = 0;
            while at < buf.len() {
                // A fresh number at intervals keeps blocks distinct; 16 words per number keep it
                // cheap.
                if bits == 0 {
                    bits = rng.next_u64() | 1;
                }
                let word = WORDS[(bits & 15) as usize];
                bits >>= 4;
                let take = word.len().min(buf.len() - at);
                buf[at..at + take].copy_from_slice(&word[..take]);
                at += take;
            }
        }
    }
}
