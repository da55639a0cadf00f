//! Training a dictionary from samples, and judging it by units that it was not trained with. Pure
//! functions; they take seconds for megabytes of samples, and choosing the moment is the caller's
//! business.

use std::sync::Arc;

use crate::{Codec, DICTIONARY_BYTES_MAX, DictionaryNumber, EncodeDictionary, UNIT_BYTES_MAX, Workspace, ZstdLevel};

/// Fewest samples that training makes sense with; zstd itself asks for some.
pub const TRAINING_SAMPLES_MIN: usize = 32;
/// Most bytes of samples that are looked at; more costs time in proportion and changes little.
pub const TRAINING_BYTES_MAX: usize = 16 << 20;

/// Trains a dictionary of at most `bytes_max` bytes (itself at most [`DICTIONARY_BYTES_MAX`]) from
/// samples of the size that units will have. `None` when the samples are too few or too much alike
/// to learn from.
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

/// What a dictionary would have saved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evaluation {
    /// Bytes of the units as they are.
    pub raw_bytes: u64,
    /// Bytes stored without a dictionary, at the same level.
    pub stored_without: u64,
    /// Bytes stored with it, the dictionary's number in each unit included, the dictionary itself
    /// not.
    pub stored_with: u64,
}

impl Evaluation {
    /// The saving that the dictionary adds, in thousandths of the raw bytes; negative when it does
    /// harm.
    pub fn gain_permille(&self) -> i64 {
        let gain = self.stored_without as i64 - self.stored_with as i64;
        gain * 1000 / (self.raw_bytes as i64).max(1)
    }
}

/// Compresses units that the dictionary was not trained with, with and without it, as a writer
/// would: a unit is stored compressed if it takes at most `limit(raw length)` bytes, else raw.
/// `None` when there is no memory.
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
