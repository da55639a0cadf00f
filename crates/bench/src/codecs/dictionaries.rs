//! The benefit of a trained dictionary: trained on a few units of a kind, measured on others.

use codec::{Evaluation, TRAINING_SAMPLES_MIN, ZstdLevel, evaluate, train};
use policy::{Settings, dst_limit};
use serde::Serialize;

use super::kinds::Kind;

/// Unit sizes that dictionaries are designed for.
const UNIT_BYTES: [usize; 2] = [4 << 10, 16 << 10];
const DICTIONARY_BYTES: usize = 64 << 10;
/// At most this part of the units is trained with.
const TRAINED_PART: usize = 4;
/// Most training bytes: as many as a volume can afford to keep.
const TRAINING_BYTES: usize = 4 << 20;

/// One kind and size.
#[derive(Debug, Clone, Serialize)]
pub struct Gain {
    pub kind: String,
    pub unit_bytes: usize,
    pub level: u8,
    pub dictionary_bytes: usize,
    pub trained_units: usize,
    pub raw_bytes: u64,
    pub stored_without: u64,
    pub stored_with: u64,
}

/// All kinds and sizes that have units enough.
pub fn measure(kinds: &[Kind], budget: usize) -> Vec<Gain> {
    let mut gains = Vec::new();
    for kind in kinds {
        for unit_bytes in UNIT_BYTES {
            // Without levels that no user would choose for small units.
            gains.extend(ZstdLevel::new(3).and_then(|level| one(kind, unit_bytes, level, budget)));
        }
    }
    gains
}

fn one(kind: &Kind, unit_bytes: usize, level: ZstdLevel, budget: usize) -> Option<Gain> {
    let units = kind.sample(unit_bytes, usize::MAX);
    let trained_units = (units.len() / TRAINED_PART).min(TRAINING_BYTES / unit_bytes);
    if trained_units < TRAINING_SAMPLES_MIN {
        return None;
    }
    let (samples, held_out) = units.split_at(trained_units);
    let held_out = &held_out[..held_out.len().min(budget / unit_bytes)];
    let dictionary = train(samples, DICTIONARY_BYTES)?;
    let settings = Settings::default();
    let Evaluation { raw_bytes, stored_without, stored_with } =
        evaluate(&dictionary, level, held_out, |raw| dst_limit(raw, &settings))?;
    Some(Gain {
        kind: kind.name.clone(),
        unit_bytes,
        level: level.get(),
        dictionary_bytes: dictionary.len(),
        trained_units,
        raw_bytes,
        stored_without,
        stored_with,
    })
}
