//! Compresses windows with every setting, the way a pool compresses units, and measures CPU time.

use codec::{Codec, CodecId, UNIT_BYTES_MAX, Workspace};
use env::{Clock, SystemClock};
use policy::{
    Attempt, Attempts, Auto, Mode, PlainTable, Planner, Pressure, Region, RuleTrial, TEST_CREDIT_NS,
    dst_limit_permille, is_zero, strength, test_credit_earned,
};
use units::BLOCK_BYTES;

use super::dictionaries::Dictionaries;
use super::settings::{How, Plan, Setting};
use super::statistics::Observation;

/// Compared with the codec of a file-type rule: zstd-1, which is cheap and finds most of the
/// possible savings.
const QUICK: CodecId = CodecId(65);
/// [`strength`] above which a codec is meant to compress, and not only to omit zeroes.
const STRONG: f64 = 0.5;
/// Units of a batch whose decoding is timed, with each setting: a few per cent of the work.
const DECODED_UNITS: usize = 4;
/// Of how many samples of a stratum a slow setting gets one.
const SLOW_EVERY: usize = 8;
/// Samples up to which every setting gets all.
const FEW_SAMPLES: usize = 256;
/// Samples of a stratum that a slow setting gets at least.
const SLOW_SAMPLES_MIN: usize = 12;

/// Sampling interval of a slow setting, in a stratum with `samples` of `all` samples.
pub fn slow_every(samples: usize, all: usize) -> usize {
    if all <= FEW_SAMPLES { 1 } else { (samples / SLOW_SAMPLES_MIN).clamp(1, SLOW_EVERY) }
}

/// A rule's decision for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleOf {
    /// The codec that it names.
    pub codec: Codec,
    /// It is a default, which is believed only where the data agrees.
    pub is_default: bool,
}

/// The rules' decision for each mode, if any.
pub type RuleOfModes = [Option<RuleOf>; Mode::ALL.len()];

/// A window that was drawn.
pub struct Sample {
    /// Its bytes: whole blocks.
    pub bytes: Vec<u8>,
    /// The rules' decisions for its file.
    pub rules: RuleOfModes,
    /// It is tried with the slow settings too.
    pub slow: bool,
}

/// State of a setting: contexts of its own, because one that changes its level for every unit is
/// slower than in a pool; and the measurements of `auto`.
struct Bench {
    workspace: Workspace,
    table: PlainTable,
    region: Region,
    credit_ns: i64,
    /// Bytes of data whose decoding was timed, and nanoseconds of that.
    decoded: (u64, u64),
}

/// Measures.
pub struct Meter<'a> {
    plan: &'a Plan,
    benches: Vec<Bench>,
    dictionaries: Dictionaries,
    dst: Vec<u8>,
    /// Where units are decoded to.
    raw: Vec<u8>,
    clock: SystemClock,
}

impl<'a> Meter<'a> {
    /// For the settings of a plan, and the dictionaries that its small units would get.
    pub fn new(plan: &'a Plan, dictionaries: Dictionaries) -> Self {
        let fresh = |_| Bench {
            workspace: Workspace::new(),
            table: PlainTable::default(),
            region: Region::default(),
            credit_ns: TEST_CREDIT_NS,
            decoded: (0, 0),
        };
        Self {
            plan,
            benches: plan.settings.iter().map(fresh).collect(),
            dictionaries,
            dst: vec![0; UNIT_BYTES_MAX],
            raw: vec![0; UNIT_BYTES_MAX],
            clock: SystemClock::default(),
        }
    }

    /// CPU nanoseconds to decode a byte of data, by setting; none where nothing was decoded.
    pub fn decode_ns(&self) -> Vec<Option<f64>> {
        let of = |bench: &Bench| (bench.decoded.0 > 0).then(|| bench.decoded.1 as f64 / bench.decoded.0 as f64);
        self.benches.iter().map(of).collect()
    }

    /// Gathers the measurements that an established pool already has, and pays for them: tests of
    /// `auto` are covered by its compression from then on.
    pub fn warm_up(&mut self, samples: &[Sample]) {
        self.observe(samples);
        for bench in &mut self.benches {
            bench.credit_ns = bench.credit_ns.min(0);
        }
    }

    /// Compresses samples. Each setting processes all of them before the next one starts, as in a
    /// pool, where a codec finds its tables in the cache: alternating per unit makes some codecs
    /// look twice as slow as they are.
    pub fn observe(&mut self, samples: &[Sample]) -> Vec<Observation> {
        let count = self.plan.settings.len();
        let units: Vec<Vec<&[u8]>> = samples.iter().map(|sample| units_of(&sample.bytes)).collect();
        let raw = |units: &[&[u8]]| units.iter().map(|unit| unit.len()).sum::<usize>() as f64;
        let nothing =
            |units: &Vec<&[u8]>| Observation { raw: raw(units), stored: vec![None; count], cpu_ns: vec![None; count] };
        let mut observations: Vec<Observation> = units.iter().map(nothing).collect();
        let all: Vec<&[u8]> = units.iter().flatten().copied().collect();
        let dictionary = self.dictionaries.best(&all, self.plan);
        let rules: Vec<_> =
            samples.iter().zip(&units).map(|(sample, units)| self.believed(&sample.rules, units)).collect();
        for (index, setting) in self.plan.settings.iter().enumerate() {
            self.benches[index].region = self.benches[index].region.with_dictionary(dictionary);
            // They are compressed a second time.
            let decoded_max = if setting.is_slow() { 1 } else { DECODED_UNITS };
            let mut kept: Vec<(&[u8], Option<Codec>)> = Vec::new();
            for (((sample, units), rules), observation) in samples.iter().zip(&units).zip(&rules).zip(&mut observations)
            {
                if setting.is_slow() && !sample.slow {
                    continue;
                }
                let began = self.clock.thread_cpu_ns();
                let (mut bytes, mut codecs) = (0, Vec::with_capacity(units.len()));
                for unit in units {
                    let (stored, codec) = self.store(index, setting, rules, unit);
                    bytes += stored;
                    codecs.push(codec);
                }
                observation.stored[index] = Some(bytes as f64);
                observation.cpu_ns[index] = Some((self.clock.thread_cpu_ns() - began) as f64);
                let room = decoded_max.saturating_sub(kept.len());
                kept.extend(units.iter().copied().zip(codecs).take(room));
            }
            for (unit, codec) in kept {
                self.decode(index, unit, codec);
            }
        }
        observations
    }

    /// Times the decoding of a unit that a setting stores with this codec.
    fn decode(&mut self, index: usize, unit: &[u8], codec: Option<Codec>) {
        let Bench { workspace, decoded, .. } = &mut self.benches[index];
        let raw = &mut self.raw[..unit.len()];
        let stored = codec.and_then(|codec| Some((codec, workspace.compress(codec, unit, &mut self.dst)?)));
        let began = self.clock.thread_cpu_ns();
        match stored {
            Some((codec, bytes)) if workspace.decompress(codec.id(), &self.dst[..bytes], raw).is_err() => return,
            Some(_) => {}
            // Read into the buffer that it is sent from.
            None => return decoded.0 += unit.len() as u64,
        }
        decoded.0 += unit.len() as u64;
        decoded.1 += self.clock.thread_cpu_ns() - began;
    }

    /// The codecs of the rules, by mode, that apply to these units: tested as `import` does.
    fn believed(&mut self, rules: &RuleOfModes, units: &[&[u8]]) -> [Option<Codec>; Mode::ALL.len()] {
        rules.map(|rule| {
            let RuleOf { codec, is_default } = rule?;
            let holds = !is_default || rule_holds(codec, units, self.plan.min_saving_permille);
            holds.then_some(codec)
        })
    }

    /// Bytes stored of a unit, and the codec, as far as reading it can be timed without a
    /// dictionary; none: it is stored as it is.
    fn store(
        &mut self,
        index: usize,
        setting: &Setting,
        rules: &[Option<Codec>; Mode::ALL.len()],
        unit: &[u8],
    ) -> (usize, Option<Codec>) {
        let limit = dst_limit_permille(unit.len(), self.plan.min_saving_permille);
        let dst = &mut self.dst[..limit];
        let fixed = match setting.how {
            How::Fixed(codec) => Some(codec),
            How::Auto(Auto { mode, .. }) => Mode::ALL.iter().position(|m| *m == mode).and_then(|m| rules[m]),
        };
        match (fixed, setting.how) {
            (Some(codec), _) => match self.benches[index].workspace.compress(codec, unit, dst) {
                Some(bytes) => (bytes, Some(codec)),
                None => (unit.len(), None),
            },
            (None, How::Fixed(_)) => (unit.len(), None),
            (None, How::Auto(auto)) => {
                let Bench { workspace, table, region, credit_ns, .. } = &mut self.benches[index];
                let mut planner = Planner::new(auto, 1.0, Pressure::default(), table);
                let dictionaries = &mut self.dictionaries;
                let mut attempts = Tried { workspace, dst, unit, clock: &self.clock, dictionaries, helper: 0 };
                let stored = planner.store(unit, *region, *credit_ns, true, &mut attempts);
                *region = stored.region;
                *credit_ns -= stored.test_ns as i64;
                *credit_ns += test_credit_earned(*credit_ns, stored.cpu_ns.saturating_sub(stored.test_ns));
                // Decoding with a dictionary takes about as long as without.
                let codec = if stored.codec == CodecId::ZSTD_DICTIONARY { QUICK } else { stored.codec };
                (stored.bytes, codec_of(codec))
            }
        }
    }
}

/// The codec with this number; none: raw.
fn codec_of(id: CodecId) -> Option<Codec> {
    Codec::all().find(|codec| codec.id() == id).filter(|codec| *codec != Codec::Off)
}

/// Compresses for the policy.
struct Tried<'a> {
    workspace: &'a mut Workspace,
    dst: &'a mut [u8],
    unit: &'a [u8],
    clock: &'a SystemClock,
    dictionaries: &'a mut Dictionaries,
    /// The dictionary that helps, from 1; 0: none.
    helper: u8,
}

impl Attempts for Tried<'_> {
    fn attempt(&mut self, codec: Codec, timed: bool) -> Attempt {
        // Preparing a dictionary is not the unit's work.
        let helped = match codec {
            Codec::Zstd(level) => self.dictionaries.at(self.helper, level),
            _ => None,
        };
        let began = if timed { self.clock.thread_cpu_ns() } else { 0 };
        let stored = match helped {
            Some(dictionary) => self.workspace.compress_with(dictionary, self.unit, self.dst),
            None => self.workspace.compress(codec, self.unit, self.dst),
        };
        Attempt { stored, cpu_ns: timed.then(|| self.clock.thread_cpu_ns() - began) }
    }
    fn keep(&mut self) {}
    fn dictionaries(&self) -> u8 {
        self.dictionaries.count()
    }
    fn help(&mut self, dictionary: u8) {
        self.helper = dictionary;
    }
}

/// Whether units agree with the codec that a default rule names for their type (see `RuleTrial`).
pub fn rule_holds<U: AsRef<[u8]>>(rule: Codec, units: &[U], min_saving_permille: u32) -> bool {
    let Some(quick) = Codec::all().find(|codec| codec.id() == QUICK) else { return true };
    let (mut workspace, mut target, mut trial) = (Workspace::new(), vec![0; UNIT_BYTES_MAX], RuleTrial::default());
    for unit in units.iter().map(AsRef::as_ref) {
        let limit = dst_limit_permille(unit.len(), min_saving_permille);
        let mut with = |codec| workspace.compress(codec, unit, &mut target[..limit]);
        let (by_rule, by_quick) = (with(rule), with(quick));
        trial.enter(unit.len(), by_rule, by_quick);
    }
    trial.agrees(strength(rule.id()) >= STRONG)
}

/// The units of a window: the runs between blocks of zeroes, as when written to a volume.
pub(super) fn units_of(window: &[u8]) -> Vec<&[u8]> {
    let mut units = Vec::new();
    let mut begin = None;
    for at in (0..window.len()).step_by(BLOCK_BYTES) {
        let block = &window[at..window.len().min(at + BLOCK_BYTES)];
        match (is_zero(block), begin) {
            (true, Some(start)) => {
                units.push(&window[start..at]);
                begin = None;
            }
            (false, None) => begin = Some(at),
            _ => {}
        }
    }
    units.extend(begin.map(|start| &window[start..]));
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_blocks_divide_a_window_into_units() {
        let mut window = vec![0u8; 8 * BLOCK_BYTES];
        assert!(units_of(&window).is_empty());
        for block in [0, 1, 4, 7] {
            window[block * BLOCK_BYTES + 9] = 1;
        }
        let lengths: Vec<usize> = units_of(&window).iter().map(|unit| unit.len() / BLOCK_BYTES).collect();
        assert_eq!(lengths, [2, 1, 1]);
    }

    #[test]
    fn slow_settings_get_a_part_of_many_samples_and_all_of_few() {
        assert_eq!(slow_every(200, 200), 1);
        assert_eq!(slow_every(24, 4000), 2);
        assert_eq!(slow_every(5, 4000), 1);
        assert_eq!(slow_every(3000, 4000), 8);
    }
}
