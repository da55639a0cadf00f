//! The usual costs of a codec, before anything has been measured: for a new pool's first decisions
//! and the choice of tests. Measured over the benchmark's corpus; a machine twice as fast scales
//! all times alike, which changes no choice.

use codec::CodecId;

use crate::learned::{Estimate, Key, SizeClass};

/// The usual costs of the codecs in a range of numbers: nanoseconds per KiB of text in units of 32
/// KiB; strength, the fraction of an ideal coder's savings that the codec reaches (those without
/// entropy coding save little on text and nothing on data that only has uneven frequencies); and
/// nanoseconds per KiB to decode, the mean over the compressible kinds of the corpus.
struct Usual {
    first: u8,
    last: u8,
    ns_per_kib: f64,
    strength: f64,
    decode_ns_per_kib: f64,
}

const fn row(first: u8, last: u8, ns_per_kib: f64, strength: f64, decode_ns_per_kib: f64) -> Usual {
    Usual { first, last, ns_per_kib, strength, decode_ns_per_kib }
}

const USUAL: &[Usual] = &[
    row(0, 0, 100.0, 0.0, 50.0),
    row(1, 1, 500.0, 0.1, 150.0),
    row(2, 2, 5_000.0, 0.55, 1_330.0),
    row(16, 16, 2_000.0, 0.7, 250.0),
    row(17, 20, 12_000.0, 0.8, 250.0),
    row(21, 25, 25_000.0, 0.8, 250.0),
    row(26, 28, 60_000.0, 0.8, 250.0),
    row(32, 32, 3_000.0, 0.7, 610.0),
    row(41, 44, 9_000.0, 1.0, 1_310.0),
    row(45, 47, 20_000.0, 1.04, 1_310.0),
    row(48, 49, 45_000.0, 1.04, 1_300.0),
    row(51, 59, 80_000.0, 1.08, 20_800.0),
    row(65, 65, 3_500.0, 1.0, 700.0),
    row(66, 67, 5_000.0, 1.02, 770.0),
    row(68, 70, 10_000.0, 1.05, 770.0),
    row(71, 74, 22_000.0, 1.08, 730.0),
    row(75, 76, 40_000.0, 1.1, 770.0),
    row(77, 79, 100_000.0, 1.1, 840.0),
    row(80, 83, 250_000.0, 1.12, 900.0),
    row(97, 106, 2_500.0, 0.8, 510.0),
    row(120, 120, 5_000.0, 1.1, 700.0),
];
/// An unknown codec.
const UNKNOWN: Usual = row(0, u8::MAX, 100_000.0, 0.9, 100_000.0);

/// Row of each codec number; out of range if the codec is unknown. Plans look it up dozens of
/// times.
const ROWS: [u8; 256] = {
    let mut rows = [u8::MAX; 256];
    let mut row = 0;
    while row < USUAL.len() {
        let mut codec = USUAL[row].first as usize;
        while codec <= USUAL[row].last as usize {
            rows[codec] = row as u8;
            codec += 1;
        }
        row += 1;
    }
    rows
};

fn usual(codec: CodecId) -> &'static Usual {
    USUAL.get(usize::from(ROWS[usize::from(codec.0)])).unwrap_or(&UNKNOWN)
}

/// Saving of an ideal coder by class of data.
const SAVING: [f64; crate::probe::CLASSES] = [0.8, 0.75, 0.68, 0.6, 0.5, 0.4, 0.2, 0.0];
/// Time per byte and saving relative to units of 32 KiB: units of up to 8 KiB, of up to 32 KiB,
/// larger ones, and small ones with a dictionary (as if it were not used).
const SIZE_TIME: [f64; crate::learned::SIZES] = [1.2, 1.0, 1.0, 1.2];
const SIZE_SAVING: [f64; crate::learned::SIZES] = [0.8, 1.0, 1.06, 0.85];
/// How much more zstd saves with a dictionary.
const DICTIONARY_GAIN: f64 = 1.12;

/// Returns the usual costs.
pub(crate) fn prior(key: Key) -> Estimate {
    let (class, size) = (key.class.index(), key.size.index());
    let usual = usual(key.codec);
    let is_helped = key.size == SizeClass::WITH_DICTIONARY && (65..=83).contains(&key.codec.0);
    let gain = if is_helped { DICTIONARY_GAIN } else { 1.0 };
    Estimate {
        ns_per_kib: usual.ns_per_kib * SIZE_TIME[size],
        saving: (SAVING[class] * usual.strength * SIZE_SAVING[size] * gain).clamp(0.0, 0.95),
        samples: 0,
    }
}

/// Usual decoding time per KiB in nanoseconds: reading one block decodes the whole unit, or the
/// part up to the block.
pub(crate) fn decode_ns_per_kib(codec: CodecId) -> f64 {
    usual(codec).decode_ns_per_kib
}

/// Nanoseconds that compressing a KiB of text usually takes.
pub(crate) fn usual_ns_per_kib(codec: CodecId) -> f64 {
    usual(codec).ns_per_kib
}

/// Fraction of an ideal coder's savings on ordinary data that the codec reaches: 0 if it saves
/// nothing, about 1 for a strong one.
pub fn strength(codec: CodecId) -> f64 {
    usual(codec).strength
}

#[cfg(test)]
mod tests {
    use codec::Codec;

    use super::*;
    use crate::{Class, SizeClass};

    #[test]
    fn stronger_codecs_of_a_family_are_slower_and_every_codec_is_known() {
        let of = |codec: Codec| prior(Key { codec: codec.id(), class: Class::DENSE, size: SizeClass::of(32768) });
        for codec in Codec::all().filter(|codec| *codec != Codec::Off) {
            assert!(usual(codec.id()).last < u8::MAX, "{codec} is not in the table");
            assert!(of(codec).saving > 0.0 && of(codec).ns_per_kib < 1e6, "{codec}");
        }
        let zstd: Vec<_> = (1..=19).map(|n| of(format!("zstd-{n}").parse().unwrap())).collect();
        assert!(zstd.is_sorted_by(|a, b| a.ns_per_kib <= b.ns_per_kib && a.saving <= b.saving));
        let random = Key { codec: CodecId::LZ4, class: Class::RANDOM, size: SizeClass::of(4096) };
        assert_eq!(prior(random).saving, 0.0);
        assert!(USUAL.is_sorted_by(|a, b| a.last < b.first));
    }
}
