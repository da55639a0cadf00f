//! What is usual of a codec before anything has been measured: a new pool's first decisions and the choice of what is worth
//! testing. Measured over the benchmark's corpus; a machine that is twice as fast changes all times alike, and so no choice.

use codec::CodecId;

use crate::learned::{Estimate, Key};

/// Nanoseconds per KiB of text in units of 32 KiB.
const fn time(codec: CodecId) -> f64 {
    match codec.0 {
        0 => 100.0,
        1 => 500.0,
        2 => 5_000.0,
        16 => 2_000.0,
        17..=20 => 12_000.0,
        21..=25 => 25_000.0,
        26..=28 => 60_000.0,
        32 => 3_000.0,
        41..=44 => 9_000.0,
        45..=47 => 20_000.0,
        48..=49 => 45_000.0,
        51..=59 => 80_000.0,
        65 => 3_500.0,
        66..=67 => 5_000.0,
        68..=70 => 10_000.0,
        71..=74 => 22_000.0,
        75..=76 => 40_000.0,
        77..=79 => 100_000.0,
        80..=83 => 250_000.0,
        97..=106 => 2_500.0,
        120 => 5_000.0,
        _ => 100_000.0,
    }
}

/// How much of what an ideal coder would save the codec does: those without entropy coding save little of text and nothing of
/// data that only has uneven frequencies.
const fn strength(codec: CodecId) -> f64 {
    match codec.0 {
        0 => 0.0,
        1 => 0.1,
        2 => 0.55,
        16 | 32 => 0.7,
        17..=28 => 0.8,
        41..=44 => 1.0,
        45..=49 => 1.04,
        51..=59 => 1.08,
        65 => 1.0,
        66..=67 => 1.02,
        68..=70 => 1.05,
        71..=74 => 1.08,
        75..=79 => 1.1,
        80..=83 => 1.12,
        97..=106 => 0.8,
        120 => 1.1,
        _ => 0.9,
    }
}

/// Saving of an ideal coder by class of data.
const SAVING: [f64; crate::probe::CLASSES] = [0.8, 0.75, 0.68, 0.6, 0.5, 0.4, 0.2, 0.0];
/// Time of a byte and saving in units of up to 8 KiB, of up to 32 KiB, of more, as a share of those at 32 KiB.
const SIZE_TIME: [f64; crate::learned::SIZES] = [1.2, 1.0, 1.0];
const SIZE_SAVING: [f64; crate::learned::SIZES] = [0.8, 1.0, 1.06];

/// What is usual.
pub(crate) fn prior(key: Key) -> Estimate {
    let (class, size) = (key.class.index(), key.size.index());
    Estimate {
        ns_per_kib: time(key.codec) * SIZE_TIME[size],
        saving: (SAVING[class] * strength(key.codec) * SIZE_SAVING[size]).clamp(0.0, 0.95),
        samples: 0,
    }
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
            assert!(of(codec).saving > 0.0 && of(codec).ns_per_kib < 1e6, "{codec}");
        }
        let zstd: Vec<_> = (1..=19).map(|n| of(format!("zstd-{n}").parse().unwrap())).collect();
        assert!(zstd.is_sorted_by(|a, b| a.ns_per_kib <= b.ns_per_kib && a.saving <= b.saving));
        let random = Key { codec: CodecId::LZ4, class: Class::RANDOM, size: SizeClass::of(4096) };
        assert_eq!(prior(random).saving, 0.0);
    }
}
