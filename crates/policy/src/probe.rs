//! The probe: estimates how compressible a unit is from a few of its bytes.
//!
//! 1. Pieces of 32 bytes are sampled at regular distances, each shifted a little so that no
//!    structure of a power of two hides.
//! 2. Pairs of equal bytes among them are counted: `n` bytes of the same value are `(n^2 - n) / 2`
//!    pairs.
//! 3. Equal pairs over all pairs is the probability that two bytes are equal: 1/256 for random
//!    bytes, 1/16 for English text, 1 for a constant. Its negative logarithm is the collision
//!    entropy (Rényi's of order 2); like Shannon's, which Nicolae (2011) samples, it bounds an
//!    order-0 coder, but it needs neither logarithms nor a second pass, and few samples.
//!
//! The probe cannot see repetitions of evenly distributed bytes. The actual results of a region's
//! units correct it ([`crate::Region`]).

use std::fmt;

/// Bytes of a piece: half a cache line; fetching the line costs more than examining it.
const PIECE_BYTES: usize = 32;
/// Pieces of a unit of up to 8 KiB, of up to 64 KiB, of more: enough that random data is misjudged
/// less than once in a hundred units, and few enough that they cost at most 3 % of lz4's time on
/// the unit.
const PIECES: [usize; 3] = [6, 12, 24];
/// Shorter units are examined whole.
const UNIT_BYTES_MIN: usize = PIECES[0] * (PIECE_BYTES + SHIFT);
/// Shift of each piece against the previous one: prime to the usual distances, so that the shifts
/// cover all of them.
const SHIFT: usize = 89;
/// One over this is the score of a constant unit.
const SCALE: u32 = 1 << 16;

/// Classes of data: codecs are measured separately for each.
pub const CLASSES: usize = 8;

/// Class of data as the probe sees it, from 0 (nearly constant) to [`Class::RANDOM`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(u8);

/// Least score of the classes 0 to 6: collision entropy 2, 3.25, 4, 4.75, 5.5, 6.5 and 7.5 bits.
const SCORES: [u32; CLASSES - 1] = [16384, 6889, 4096, 2435, 1448, 724, 362];

impl Class {
    /// Looks random: encrypted, or compressed already.
    pub const RANDOM: Self = Self(CLASSES as u8 - 1);
    /// The least compressible that does not look random.
    pub const DENSE: Self = Self(CLASSES as u8 - 2);

    /// The class of that number.
    pub const fn new(index: u8) -> Option<Self> {
        if (index as usize) < CLASSES { Some(Self(index)) } else { None }
    }
    /// Its number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
    /// Whether the unit looks random.
    pub const fn is_random(self) -> bool {
        self.0 == Self::RANDOM.0
    }
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..CLASSES as u8).map(Self)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0 => "below 2 bits per byte",
            1 => "2 to 3.25 bits per byte",
            2 => "3.25 to 4 bits per byte",
            3 => "4 to 4.75 bits per byte",
            4 => "4.75 to 5.5 bits per byte",
            5 => "5.5 to 6.5 bits per byte",
            6 => "6.5 to 7.5 bits per byte",
            _ => "random",
        })
    }
}

/// Result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Probability that two bytes are equal, in 65536ths: 256 for random bytes, 65536 for a
    /// constant.
    pub score: u32,
    /// Class of the score.
    pub class: Class,
}

impl Probe {
    fn of(score: u32) -> Self {
        let class = SCORES.iter().take_while(|least| score < **least).count();
        Self { score, class: Class(class as u8) }
    }

    /// Collision entropy in bits per byte, 0 to about 8.
    pub fn bits_per_byte(self) -> f64 {
        (f64::from(SCALE) / f64::from(self.score.max(1))).log2()
    }
}

/// Probes a unit.
pub fn probe(unit: &[u8]) -> Probe {
    Probe::of(match unit.len() {
        ..UNIT_BYTES_MIN => score(unit),
        UNIT_BYTES_MIN..=8192 => score(sample::<{ PIECES[0] }>(unit).as_flattened()),
        8193..=65536 => score(sample::<{ PIECES[1] }>(unit).as_flattened()),
        _ => score(sample::<{ PIECES[2] }>(unit).as_flattened()),
    })
}

/// Pieces of a unit. All of them are fetched before any is examined, so that the processor waits
/// for memory once and not for each piece. None straddles two cache lines if the unit starts on
/// one.
fn sample<const N: usize>(unit: &[u8]) -> [[u8; PIECE_BYTES]; N] {
    let mut taken = [[0; PIECE_BYTES]; N];
    let distance = unit.len() / N;
    let slack = distance - PIECE_BYTES;
    let mut shift = 0;
    for (index, slot) in taken.iter_mut().enumerate() {
        let start = (index * distance + shift) / PIECE_BYTES * PIECE_BYTES;
        if let Some(piece) = unit[start..].first_chunk() {
            *slot = *piece;
        }
        shift += SHIFT;
        if shift >= slack {
            shift -= slack;
        }
    }
    taken
}

/// Probability that two of these bytes are equal, in 65536ths.
fn score(bytes: &[u8]) -> u32 {
    // Two tables: where a byte repeats immediately, its count is not read while it is still being
    // written.
    let mut seen = [[0i16; 256]; 2];
    let (pairs, rest) = bytes.as_chunks();
    for [even, odd] in pairs {
        seen[0][usize::from(*even)] += 1;
        seen[1][usize::from(*odd)] += 1;
    }
    for byte in rest {
        seen[0][usize::from(*byte)] += 1;
    }
    let [even, odd] = &seen;
    let squares: i32 = even.iter().zip(odd).map(|(even, odd)| i32::from(even + odd).pow(2)).sum();
    let taken = bytes.len() as u64;
    let all = taken * taken.saturating_sub(1) / 2;
    let equal = (u64::from(squares.unsigned_abs()) - taken) / 2;
    (equal * u64::from(SCALE)).checked_div(all).map_or(SCALE, |score| score as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(len: usize, seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn classes_follow_the_entropy() {
        for len in [4096, 8192, 32768, 131_072] {
            let noise = random(len, 7);
            for (bits, classes) in [(0u32, 0..=0), (1, 0..=0), (3, 0..=1), (4, 1..=3), (6, 4..=6), (8, 7..=7)] {
                let unit: Vec<u8> = noise.iter().map(|b| (u32::from(*b) & ((1 << bits) - 1)) as u8).collect();
                let found = probe(&unit);
                assert!(classes.contains(&found.class.index()), "{len} bytes, {bits} bits: {found:?}");
                assert!((found.bits_per_byte() - f64::from(bits)).abs() < 0.6, "{len} bytes, {bits} bits: {found:?}");
            }
        }
    }

    #[test]
    fn random_units_look_random_and_text_never_does() {
        let text = b"It is a truth universally acknowledged, that a single man in possession of a good fortune, ";
        for len in [4096, 32768, 131_072] {
            let wrong = (0..500).filter(|seed| !probe(&random(len, *seed)).class.is_random()).count();
            assert!(wrong <= 10, "{wrong} of 500 random units of {len} bytes look compressible");
            let prose: Vec<u8> = text.iter().copied().cycle().take(len).collect();
            assert!(probe(&prose).class < Class::DENSE);
        }
    }

    #[test]
    fn any_length_is_probed() {
        for len in (0..2000).chain([4095, 4097, 8191, 65537, 131_072]) {
            let found = probe(&vec![7; len]);
            assert_eq!(found.class.index(), 0, "{len}");
        }
    }
}
