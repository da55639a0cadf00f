//! The dictionaries that a volume would train for its small units: from samples of the same
//! population, by the same rules as in a pool.
//!
//! 1. Windows are drawn from the whole population, as many as a volume keeps as samples, again
//!    excluding random-looking data.
//! 2. They are divided into parts in the order of the files, and passed to
//!    [`policy::train_dictionaries`].
//! 3. Before a batch of samples of one type is compressed, all adopted dictionaries, and none, are
//!    tried on some of its units: the best choice is the one that a region of a volume would arrive
//!    at, too.
//!
//! So the estimate is for a volume that already has its dictionaries: data written before the first
//! training is stored without.

use std::collections::BTreeMap;
use std::sync::Arc;

use codec::{Codec, DictionaryNumber, EncodeDictionary, UNIT_BYTES_MAX, Workspace, ZstdLevel};
use policy::{Adoption, DICTIONARY_BYTES_TRAINED_MAX, divide_samples, dst_limit_permille, probe, train_dictionaries};
use surface::Result;

use super::draw;
use super::meter::units_of;
use super::population::Population;
use super::settings::Plan;

/// Bytes of samples, and how many times that is written while a volume takes them: as the engine
/// has it.
const SAMPLE_BYTES: u64 = 4 << 20;
const WRITTEN_TIMES: u64 = 4;
/// Units of a batch that dictionaries are compared on.
const COMPARED_UNITS: usize = 6;
/// Seed offset for drawing samples, separate from that of the estimate: a dictionary evaluated on
/// its own training data would look too good.
const SEED: u64 = 0x5a3b;
/// Samples of a part are adjacent: windows that form one region.
const PLACE_WINDOWS: u64 = 256;

/// Dictionaries, prepared as they are needed.
pub struct Dictionaries {
    /// In the order in which they were adopted; they have the numbers from 1 on.
    trained: Vec<Vec<u8>>,
    prepared: BTreeMap<(u8, ZstdLevel), Option<Arc<EncodeDictionary>>>,
}

impl Dictionaries {
    /// Steps 1 and 2. None if the plan's units are too large for dictionaries, or nothing pays.
    ///
    /// # Errors
    /// Of reading a volume.
    pub fn train(population: &Population, plan: &Plan, seed: u64) -> Result<Self> {
        let mut trained = Vec::new();
        if let Some(level) = plan.dictionary_level {
            let drawn = draw::draw(population, SAMPLE_BYTES, 0, seed ^ SEED);
            let mut units: Vec<(u64, Vec<u8>)> = Vec::new();
            for (number, (stratum, windows)) in population.strata.iter().zip(&drawn).enumerate() {
                let mut open = None;
                for window in windows {
                    let Some(data) = population.read(stratum, *window, &mut open)? else { continue };
                    let place = ((number as u64) << 48) | (*window / PLACE_WINDOWS);
                    let worthy = units_of(&data.bytes).into_iter().filter(|unit| !probe(unit).class.is_random());
                    units.extend(worthy.map(|unit| (place, unit.to_vec())));
                }
            }
            let all: u64 = population.strata.iter().map(|stratum| stratum.windows()).sum();
            let written_bytes = (all * population.unit_bytes as u64).min(WRITTEN_TIMES * SAMPLE_BYTES);
            let parts = divide_samples(units.iter().map(|(place, unit)| (*place, &unit[..])).collect());
            let limit = |len| dst_limit_permille(len, plan.min_saving_permille);
            let most = DICTIONARY_BYTES_TRAINED_MAX;
            trained = train_dictionaries(&parts, &[], (level, &limit), most, written_bytes, &Adoption::USUAL);
        }
        Ok(Self { trained, prepared: BTreeMap::new() })
    }

    /// Number of dictionaries.
    pub fn count(&self) -> u8 {
        self.trained.len() as u8
    }

    /// A dictionary at a level; `None` for number 0.
    pub fn at(&mut self, number: u8, level: ZstdLevel) -> Option<&Arc<EncodeDictionary>> {
        let bytes = self.trained.get(usize::from(number.checked_sub(1)?))?;
        let prepare = || EncodeDictionary::prepare(DictionaryNumber(number.into()), bytes, level).map(Arc::new);
        self.prepared.entry((number, level)).or_insert_with(prepare).as_ref()
    }

    /// Step 3: returns the dictionary that helps most on some of these units; 0: none does.
    pub fn best(&mut self, units: &[&[u8]], plan: &Plan) -> u8 {
        let Some(level) = plan.dictionary_level.filter(|_| !self.trained.is_empty()) else { return 0 };
        let (mut workspace, mut dst) = (Workspace::new(), vec![0; UNIT_BYTES_MAX]);
        let count = self.trained.len() as u8;
        let mut stored = |number: u8| -> usize {
            let step = units.len().div_ceil(COMPARED_UNITS).max(1);
            let each = units.iter().step_by(step).map(|unit| {
                let dst = &mut dst[..dst_limit_permille(unit.len(), plan.min_saving_permille)];
                let done = match self.at(number, level) {
                    Some(dictionary) => workspace.compress_with(dictionary, unit, dst),
                    None => workspace.compress(Codec::Zstd(level), unit, dst),
                };
                done.unwrap_or(unit.len())
            });
            each.sum()
        };
        (0..=count).min_by_key(|number| stored(*number)).unwrap_or(0)
    }
}
