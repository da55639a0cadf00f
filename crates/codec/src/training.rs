//! Trains a dictionary from samples, and evaluates it on units that it was not trained with. Pure
//! functions that take seconds for megabytes of samples; the caller picks the moment.

use std::sync::Arc;

use crate::{Codec, DICTIONARY_BYTES_MAX, DictionaryNumber, EncodeDictionary, UNIT_BYTES_MAX, Workspace, ZstdLevel};

/// Fewest samples worth training with; zstd has a minimum of its own.
pub const TRAINING_SAMPLES_MIN: usize = 32;
/// Most bytes of samples used; more take proportionally longer and change little.
pub const TRAINING_BYTES_MAX: usize = 16 << 20;

/// Trains a dictionary of at most `bytes_max` bytes (capped at [`DICTIONARY_BYTES_MAX`]) from
/// samples as large as the units will be. `None` when the samples are too few or too much alike.
pub fn train(samples: &[&[u8]], bytes_max: usize) -> Option<Vec<u8>> {
    if samples.len() < TRAINING_SAMPLES_MIN {
        return None;
    }
    let mut joined = Vec::new();
    let mut sizes = Vec::new();
    for sample in samples.iter().filter(|sample| !sample.is_empty()) {
        if joined.len() + sample.len() > TRAINING_BYTES_MAX {
            break;
        }
        joined.extend_from_slice(sample);
        sizes.push(sample.len());
    }
    let mut dictionary = vec![0; bytes_max.min(DICTIONARY_BYTES_MAX)];
    let len = zstd_safe::train_from_buffer(dictionary.as_mut_slice(), &joined, &sizes).ok()?;
    dictionary.truncate(len);
    Some(dictionary).filter(|bytes| !bytes.is_empty())
}

/// Savings measured with and without a dictionary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evaluation {
    /// Bytes of the units uncompressed.
    pub raw_bytes: u64,
    /// Bytes stored without a dictionary, at the same level.
    pub stored_without: u64,
    /// Bytes stored with it, including the dictionary's number in each unit but not the dictionary
    /// itself.
    pub stored_with: u64,
}

impl Evaluation {
    /// The additional saving due to the dictionary, in thousandths of the raw bytes; negative if it
    /// hurts.
    pub fn gain_permille(&self) -> i64 {
        let gain = self.stored_without as i64 - self.stored_with as i64;
        gain * 1000 / (self.raw_bytes as i64).max(1)
    }
}

/// Compresses units that were not part of the training set, with and without the dictionary. As in
/// the write path, a unit is stored compressed if it takes at most `limit(raw length)` bytes, else
/// raw. `None` when there is no memory.
pub fn evaluate(
    dictionary: &[u8],
    level: ZstdLevel,
    units: &[&[u8]],
    limit: impl Fn(usize) -> usize,
) -> Option<Evaluation> {
    let prepared = Arc::new(EncodeDictionary::prepare(DictionaryNumber(0), dictionary, level)?);
    let mut workspace = Workspace::new();
    let mut dst = vec![0; UNIT_BYTES_MAX];
    let mut total = Evaluation::default();
    for unit in units {
        let dst = dst.get_mut(..limit(unit.len()).min(UNIT_BYTES_MAX))?;
        let stored = |length: Option<usize>| length.unwrap_or(unit.len()) as u64;
        total.raw_bytes += unit.len() as u64;
        total.stored_without += stored(workspace.compress(Codec::Zstd(level), unit, dst));
        total.stored_with += stored(workspace.compress_with(&prepared, unit, dst));
    }
    Some(total)
}
