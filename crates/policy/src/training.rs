//! Trains dictionaries from samples and selects those worth keeping: shared by volumes and
//! estimates. A function of the samples that takes seconds; the caller picks the moment.
//!
//! 1. Samples are divided into parts: adjacent data is usually of one kind. A quarter of each part
//!    is held out.
//! 2. One dictionary is trained with all of the rest, and one with each part.
//! 3. The held-out samples are compressed with the current dictionaries, and with each new one;
//!    [`Adoption::select`] picks those that pay.

use codec::{DICTIONARY_BYTES_MAX, UNIT_BYTES_MAX, ZstdLevel, evaluate, train};

use crate::dictionary::{Adoption, DICTIONARIES_IN_FORCE_MAX, Part};

/// Most parts, and fewest samples of a part: three quarters of them must suffice for training.
const PARTS_MAX: usize = 8;
const PART_SAMPLES_MIN: usize = 64;
/// One sample in this many is held out for evaluation.
const HELD_OUT: usize = 4;
/// Most dictionaries adopted by one training: with those of the next one, as many as can be in use.
const PER_TRAINING_MAX: usize = 3;
const _: () = assert!(PER_TRAINING_MAX < DICTIONARIES_IN_FORCE_MAX);
/// Longest dictionary trained: the maximum.
pub const DICTIONARY_BYTES_TRAINED_MAX: usize = DICTIONARY_BYTES_MAX;
const _: () = assert!(DICTIONARY_BYTES_MAX < UNIT_BYTES_MAX);
/// Shortest dictionary.
const TRAINED_BYTES_MIN: usize = 1 << 10;
/// Bytes of samples per byte of a dictionary. With fewer, a dictionary also contains accidental
/// matches, which only cost its space: the held-out samples decide whether it is adopted. With 32,
/// and dictionaries of up to 64 KiB, books saved a point less in units of 4 KiB, mail 0.7, logs
/// 0.6.
const SAMPLES_PER_BYTE: usize = 8;

/// Samples of one part.
#[derive(Debug, Default)]
pub struct SamplePart<'a> {
    /// To train with.
    pub train: Vec<&'a [u8]>,
    /// To judge by.
    pub held_out: Vec<&'a [u8]>,
}

impl<'a> SamplePart<'a> {
    fn samples(&self) -> usize {
        self.train.len() + self.held_out.len()
    }

    fn add(&mut self, sample: &'a [u8]) {
        if self.samples() % HELD_OUT == HELD_OUT - 1 { self.held_out.push(sample) } else { self.train.push(sample) }
    }
}

/// Step 1: divides samples, each with its region, into up to eight parts of whole regions and of a
/// minimum size.
pub fn divide_samples(mut samples: Vec<(u64, &[u8])>) -> Vec<SamplePart<'_>> {
    // Stable: within a region, samples keep their order.
    samples.sort_by_key(|(place, _)| *place);
    let least = samples.len().div_ceil(PARTS_MAX).max(PART_SAMPLES_MIN);
    let mut parts: Vec<SamplePart<'_>> = Vec::new();
    let mut last = None;
    for (index, (place, sample)) in samples.iter().enumerate() {
        let is_full = parts.last().is_none_or(|part| part.samples() >= least);
        // The remainder may be too small for a last part.
        if parts.is_empty() || is_full && last != Some(*place) && samples.len() - index >= PART_SAMPLES_MIN {
            parts.push(SamplePart::default());
        }
        last = Some(*place);
        if let Some(part) = parts.last_mut() {
            part.add(sample);
        }
    }
    parts
}

/// Steps 2 and 3: returns the dictionaries that pay, of at most `bytes_max` bytes each. `present`:
/// those in use. `(level, limit)`: the level for the evaluation, and how many bytes of a unit are
/// worth storing compressed. `written_bytes`: see [`Trial`](crate::Trial). Empty if there is no
/// memory.
pub fn train_dictionaries(
    parts: &[SamplePart<'_>],
    present: &[Vec<u8>],
    (level, limit): (ZstdLevel, &dyn Fn(usize) -> usize),
    bytes_max: usize,
    written_bytes: u64,
    adoption: &Adoption,
) -> Vec<Vec<u8>> {
    let most = bytes_max.min(DICTIONARY_BYTES_TRAINED_MAX);
    let train = |samples: &[&[u8]]| {
        let worthy = samples.iter().map(|sample| sample.len()).sum::<usize>() / SAMPLES_PER_BYTE;
        train(samples, worthy.max(TRAINED_BYTES_MIN).min(most))
    };
    let all: Vec<&[u8]> = parts.iter().flat_map(|part| part.train.iter().copied()).collect();
    let mut new: Vec<Vec<u8>> = train(&all).into_iter().collect();
    if parts.len() > 1 {
        new.extend(parts.iter().filter_map(|part| train(&part.train)));
    }
    let judge = |dictionary: &[u8], part: &SamplePart<'_>| evaluate(dictionary, level, &part.held_out, limit);
    let mut judged = Vec::new();
    for part in parts {
        let mut stored_new = Vec::new();
        let mut raw_bytes = 0;
        let mut stored_now = u64::MAX;
        for dictionary in &new {
            let Some(result) = judge(dictionary, part) else { return Vec::new() };
            raw_bytes = result.raw_bytes;
            stored_now = result.stored_without;
            stored_new.push(result.stored_with);
        }
        let with_present = present.iter().filter_map(|dictionary| judge(dictionary, part));
        let stored_now = with_present.map(|result| result.stored_with).fold(stored_now, u64::min);
        judged.push(Part { raw_bytes, stored_now, stored_new });
    }
    let lengths: Vec<u64> = new.iter().map(|dictionary| dictionary.len() as u64).collect();
    let selected = adoption.select(&judged, &lengths, written_bytes, PER_TRAINING_MAX);
    selected.into_iter().filter_map(|index| new.get(index).cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of a kind: they share their words, not their values.
    fn records(kind: u64, number: u64) -> Vec<u8> {
        let mut state = (1000 + kind * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut next = |seed: u64| {
            state = (state ^ seed).wrapping_mul(0xd134_2543_de82_ef95).rotate_left(23).wrapping_add(0x9e37_79b9);
            state
        };
        let words: Vec<u64> = (0..120).map(|_| next(0)).collect();
        let mut unit = Vec::new();
        while unit.len() < 4096 {
            let word = words[next(number) as usize % words.len()];
            unit.extend_from_slice(format!("{word:x}={:04x}\n", next(number) & 0xffff).as_bytes());
        }
        unit.truncate(4096);
        unit
    }

    #[test]
    fn each_kind_that_lies_together_gets_what_helps_it_and_random_data_gets_none() {
        let level = ZstdLevel::new(3).unwrap();
        let trained = |kinds: &[u64], is_random: bool| {
            let units: Vec<(u64, Vec<u8>)> = kinds
                .iter()
                .flat_map(|kind| (0..400).map(move |number| (*kind, records(*kind, number))))
                .enumerate()
                .map(|(number, (place, mut unit))| {
                    if is_random {
                        let mut state = number as u64;
                        for byte in &mut unit {
                            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                            *byte = (state >> 56) as u8;
                        }
                    }
                    (place, unit)
                })
                .collect();
            let parts = divide_samples(units.iter().map(|(place, unit)| (*place, &unit[..])).collect());
            train_dictionaries(&parts, &[], (level, &|len| len * 7 / 8), 64 << 10, 64 << 20, &Adoption::USUAL)
        };
        assert_eq!(trained(&[1], false).len(), 1, "one kind needs one");
        let of_three = trained(&[1, 2, 3], false);
        assert!((1..=PER_TRAINING_MAX).contains(&of_three.len()));
        assert!(trained(&[1, 2], true).is_empty() && trained(&[], false).is_empty());
        // A dictionary in force is not trained again.
        let present = trained(&[1], false);
        let units: Vec<Vec<u8>> = (0..400).map(|number| records(1, number)).collect();
        let parts = divide_samples(units.iter().map(|unit| (0, &unit[..])).collect());
        let limit: (ZstdLevel, &dyn Fn(usize) -> usize) = (level, &|len| len * 7 / 8);
        assert!(train_dictionaries(&parts, &present, limit, 64 << 10, 64 << 20, &Adoption::USUAL).is_empty());
    }
}
