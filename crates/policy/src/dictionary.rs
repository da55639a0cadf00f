//! When a dictionary is used, and when one is worth keeping: pure functions of the measurements.
//!
//! A dictionary helps units of at most 16 KiB that `compression=auto` compresses with zstd: larger
//! ones contain enough context themselves. A volume holds different kinds of data, so it may have
//! several dictionaries; each region uses the one that helps it most, or none. A new one is adopted
//! under two conditions. On samples that it was not trained with, it saves a set amount more than
//! the current dictionaries on those parts of the volume where it is the best. And this would have
//! repaid its own size several times on the data written while the samples were taken.

use codec::{Codec, ZstdLevel};

use crate::{Candidates, Compression, Settings};

/// Largest unit that is compressed with a dictionary.
pub const DICTIONARY_UNIT_BYTES_MAX: usize = 16 << 10;

/// Most dictionaries used for new units of a volume: a comparison compresses a unit with each.
pub const DICTIONARIES_IN_FORCE_MAX: usize = 4;

/// Whether units of that size are compressed with a dictionary, if one exists and the codec is
/// zstd.
pub fn wants_dictionary(settings: &Settings, raw_len: usize) -> bool {
    settings.dictionary && raw_len <= DICTIONARY_UNIT_BYTES_MAX && judging_level(settings).is_some()
}

/// The level at which dictionaries are evaluated: that of the candidate nearest to zstd-3, since
/// other levels gain about the same; `None` if no candidate supports dictionaries.
pub fn judging_level(settings: &Settings) -> Option<ZstdLevel> {
    if settings.compression == Compression::Auto { judging_level_of(&settings.candidates) } else { None }
}

/// The same for a given list of candidates.
pub(crate) fn judging_level_of(candidates: &Candidates) -> Option<ZstdLevel> {
    /// Middle of the levels chosen for small units.
    const USUAL: u8 = 3;
    let levels = candidates.as_slice().iter().filter_map(|codec| match codec {
        Codec::Zstd(level) => Some(*level),
        _ => None,
    });
    levels.min_by_key(|level| level.get().abs_diff(USUAL))
}

/// When a dictionary is adopted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adoption {
    /// Least gain on held-out samples, in thousandths of their raw bytes.
    pub gain_permille_min: i64,
    /// How many times its own size it must have saved on the data written while samples were taken.
    pub payback_min: u64,
}

impl Adoption {
    /// The usual rule. 10: the gain must exceed the variation between two choices of samples (half
    /// a point at 256 samples); regions that gain less do not use it. 2: half of the data may be
    /// overwritten before the dictionary has paid for itself.
    pub const USUAL: Self = Self { gain_permille_min: 10, payback_min: 2 };
}

impl Default for Adoption {
    fn default() -> Self {
        Self::USUAL
    }
}

/// Measurements on held-out samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trial {
    /// Their bytes.
    pub raw_bytes: u64,
    /// Bytes stored with the current dictionaries.
    pub stored_now: u64,
    /// Bytes stored with the new dictionary.
    pub stored_new: u64,
    /// Bytes of the dictionary.
    pub dictionary_bytes: u64,
    /// Bytes written while samples were taken, the samples included.
    pub written_bytes: u64,
}

impl Trial {
    /// The gain, in thousandths of the raw bytes.
    pub fn gain_permille(&self) -> i64 {
        let gain = self.stored_now as i64 - self.stored_new as i64;
        gain * 1000 / (self.raw_bytes as i64).max(1)
    }
}

impl Adoption {
    /// Whether the dictionary is adopted.
    pub fn adopts(&self, trial: &Trial) -> bool {
        let gain = trial.gain_permille();
        let won = u128::from(trial.written_bytes) * gain.max(0).unsigned_abs() as u128 / 1000;
        gain >= self.gain_permille_min && won >= u128::from(self.payback_min) * u128::from(trial.dictionary_bytes)
    }
}

/// Held-out samples of one part of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Their bytes.
    pub raw_bytes: u64,
    /// Bytes stored with the current dictionaries.
    pub stored_now: u64,
    /// Bytes stored with each of the new dictionaries.
    pub stored_new: Vec<u64>,
}

impl Adoption {
    /// Selects which new dictionaries to adopt, at most `most`: the one that gains most first, then
    /// the one that adds most to it, and so on. Each is credited only with the parts where it is
    /// the best. `written_bytes`: as in [`Trial`], for all parts together.
    pub fn select(&self, parts: &[Part], dictionary_bytes: &[u64], written_bytes: u64, most: usize) -> Vec<usize> {
        let raw_bytes: u64 = parts.iter().map(|part| part.raw_bytes).sum();
        let mut now: Vec<u64> = parts.iter().map(|part| part.stored_now).collect();
        let mut selected = Vec::new();
        while selected.len() < most {
            let trial = |index: usize| {
                let mut trial = Trial { dictionary_bytes: dictionary_bytes[index], ..Trial::default() };
                for (part, now) in parts.iter().zip(&now) {
                    let new = part.stored_new.get(index).copied().unwrap_or(u64::MAX);
                    if new < *now {
                        trial.raw_bytes += part.raw_bytes;
                        trial.stored_now += now;
                        trial.stored_new += new;
                    }
                }
                let share = u128::from(written_bytes) * u128::from(trial.raw_bytes) / u128::from(raw_bytes.max(1));
                Trial { written_bytes: u64::try_from(share).unwrap_or(u64::MAX), ..trial }
            };
            let worthy = (0..dictionary_bytes.len()).map(|index| (index, trial(index)));
            let worthy = worthy.filter(|(_, trial)| trial.raw_bytes > 0 && self.adopts(trial));
            let Some((best, _)) =
                worthy.max_by_key(|(index, trial)| (trial.stored_now - trial.stored_new, std::cmp::Reverse(*index)))
            else {
                break;
            };
            for (part, now) in parts.iter().zip(&mut now) {
                *now = part.stored_new.get(best).map_or(*now, |new| (*now).min(*new));
            }
            selected.push(best);
        }
        selected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_part_by_table() {
        let auto = Settings::default();
        for (settings, raw_len, expected) in [
            (auto, 4096, true),
            (auto, 16 << 10, true),
            (auto, 20 << 10, false),
            (Settings { dictionary: false, ..auto }, 4096, false),
            (Settings { compression: Compression::Fixed("zstd-3".parse().unwrap()), ..auto }, 4096, false),
            (Settings { candidates: "lz4,gzip-6,zstd-fast-3".parse().unwrap(), ..auto }, 4096, false),
            (Settings { candidates: "lz4,zstd-19".parse().unwrap(), ..auto }, 4096, true),
        ] {
            assert_eq!(wants_dictionary(&settings, raw_len), expected, "{settings:?} {raw_len}");
        }
        let level = |candidates: &str| {
            judging_level(&Settings { candidates: candidates.parse().unwrap(), ..auto }).map(|level| level.get())
        };
        assert_eq!(level("lz4,zstd-1,zstd-3,zstd-19"), Some(3));
        assert_eq!(level("zstd-1,zstd-6"), Some(1));
        assert_eq!(level("zstd-19,lz4"), Some(19));
    }

    #[test]
    fn adoption_by_table() {
        let trial = Trial {
            raw_bytes: 1_000_000,
            stored_now: 500_000,
            stored_new: 420_000,
            dictionary_bytes: 64_000,
            written_bytes: 16_000_000,
        };
        let rule = Adoption::default();
        assert_eq!(trial.gain_permille(), 80);
        assert!(rule.adopts(&trial));
        for (what, refused) in [
            ("gains too little", Trial { stored_new: 491_000, ..trial }),
            ("does harm", Trial { stored_new: 510_000, ..trial }),
            ("does not pay its size", Trial { written_bytes: 1_500_000, ..trial }),
            ("has nothing to show", Trial { raw_bytes: 0, stored_now: 0, stored_new: 0, ..trial }),
            ("is huge", Trial { dictionary_bytes: u64::MAX, ..trial }),
        ] {
            assert!(!rule.adopts(&refused), "{what}");
        }
        let part = |now: u64, new: &[u64]| Part { raw_bytes: 1_000_000, stored_now: now, stored_new: new.to_vec() };
        let select =
            |parts: &[Part], most| rule.select(parts, &[64_000, 24_000, 24_000], parts.len() as u64 * 4_000_000, most);
        for (what, parts, expected) in [
            ("one for all", vec![part(500, &[420, 415, 500]), part(500, &[420, 500, 415])], &[0][..]),
            ("one more for what it suits", vec![part(500, &[420, 470, 490]), part(500, &[480, 500, 410])], &[0, 2]),
            ("each its own", vec![part(500, &[495, 430, 500]), part(500, &[495, 500, 410])], &[2, 1]),
            ("harm on one part is no matter", vec![part(500, &[600, 430, 600]), part(500, &[600, 700, 500])], &[1]),
            ("nothing pays", vec![part(500, &[495, 490, 500]), part(500, &[495, 500, 500])], &[]),
            ("there is nothing", vec![], &[]),
        ] {
            let parts: Vec<Part> = parts
                .into_iter()
                .map(|p| Part {
                    stored_now: p.stored_now * 1000,
                    stored_new: p.stored_new.iter().map(|n| n * 1000).collect(),
                    ..p
                })
                .collect();
            assert_eq!(select(&parts, 4), expected, "{what}");
            assert_eq!(select(&parts, 1).len(), expected.len().min(1), "{what}");
        }
        let always = Adoption { gain_permille_min: i64::MIN, payback_min: 0 };
        assert!(always.adopts(&Trial { stored_new: 600_000, ..trial }));
    }
}
