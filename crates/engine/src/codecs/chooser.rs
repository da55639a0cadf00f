//! `compression=auto` in the drain: collects the policy's inputs (regions, costs, pressure, the
//! budget for tests) and lets it decide about each unit.
//!
//! 1. A batch begins: plans are empty, no clock is read before something is compressed.
//! 2. Each unit goes through [`Planner::store`]; its region's memory is fetched when the region
//!    changes and put back when it changes again.
//! 3. The batch ends: the CPU time that it took pays into the budget for tests.
//!
//! Deciding costs a probe, a few loads, and one look at the clock for every sixteenth unit. With a
//! clock that is a function of the calls, so are the decisions.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use codec::{Codec, CodecId, Workspace};
use env::Clock;
use policy::{
    Attempt, Attempts, Auto, Mode, Planner, Settings, Stored, TEST_CREDIT_NS, Why, dst_limit, test_credit_earned,
    wants_probe,
};
use store::base::counters::Counter;
use units::{BlockIndex, ObjectId};

use crate::codecs::costs::Costs;
use crate::codecs::dictionaries::Encoders;
use crate::codecs::pressure::Meter;
use crate::codecs::regions::{RegionKey, Regions};
use crate::codecs::trace::{Trace, TraceRecord};

/// One unit in this many has its CPU time measured.
const TIMED_EVERY: u64 = 16;

/// State of `auto` for a pool.
pub(crate) struct Chooser {
    pub costs: Costs,
    pub regions: Regions,
    pub meter: Arc<Meter>,
    pub trace: Trace,
    clock: Arc<dyn Clock>,
    credit_ns: AtomicI64,
    units: AtomicU64,
    /// Units by the reason of their codec.
    choices: [Counter; Why::ALL.len()],
    /// Bits of the region of the last batch's end: a writer that continues begins next to it.
    last: AtomicU64,
}

impl Chooser {
    /// Counts a unit whose codec its properties, or a rule, name.
    pub(crate) fn count_fixed(&self) {
        self.choices[Why::Fixed as usize].add(1);
    }

    /// Units by the reason of their codec, since the pool was opened.
    pub(crate) fn choices(&self) -> Vec<(&'static str, u64)> {
        Why::ALL.iter().zip(&self.choices).map(|(why, count)| (why.name(), count.get())).collect()
    }

    fn last_region(&self) -> policy::Region {
        policy::Region::from_bits(self.last.load(Ordering::Relaxed))
    }

    /// `kept`: costs stored by a checkpoint.
    pub(crate) fn new(clock: Arc<dyn Clock>, meter: Arc<Meter>, memory_bytes: u64, kept: Option<&[u8]>) -> Self {
        Self {
            costs: Costs::new(kept),
            regions: Regions::new(memory_bytes),
            meter,
            trace: Trace::default(),
            clock,
            credit_ns: AtomicI64::new(TEST_CREDIT_NS),
            units: AtomicU64::new(0),
            choices: Default::default(),
            last: AtomicU64::new(0),
        }
    }

    /// `written_bytes`: bytes that writers have written since the pool was opened.
    pub(crate) fn begin(&self, pressed: bool, written_bytes: u64) -> Batch<'_> {
        self.meter.demanded(written_bytes);
        Batch { chooser: self, pressed, is_apart: false, planner: None, region: None, began: None, test_ns: 0 }
    }
}

/// A batch being compressed.
pub(crate) struct Batch<'a> {
    chooser: &'a Chooser,
    pressed: bool,
    /// See [`apart`](Self::apart).
    is_apart: bool,
    planner: Option<Planner<'a, Costs>>,
    region: Option<(RegionKey, policy::Region)>,
    /// Wall and CPU time when something was compressed first: a batch in which nothing is needs no
    /// clock.
    began: Option<(u64, u64)>,
    test_ns: u64,
}

/// One unit, and the target of its compressed bytes.
pub(crate) struct Unit<'a, 'core> {
    pub object: ObjectId,
    pub first: BlockIndex,
    pub raw: &'a [u8],
    pub settings: &'a Settings,
    /// The dictionaries that may help zstd, if the unit is small enough for one.
    pub dictionaries: Option<&'a mut Encoders<'core>>,
    /// The memory that applies to it: its region's, or that of its kind of content.
    pub region: RegionKey,
    /// Ignores the region's memory.
    pub afresh: bool,
    /// As long as the raw bytes.
    pub target: &'a mut [u8],
}

/// Result for one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub codec: CodecId,
    /// Its compressed size.
    pub stored: usize,
    /// Whether it looked random.
    pub is_random: bool,
}

impl<'a> Batch<'a> {
    /// Like this batch, for data that is recompressed: it has no neighbours that are being written.
    pub(crate) fn apart(self) -> Self {
        Self { is_apart: true, ..self }
    }

    /// Step 2: chooses a codec, and compresses into the unit's target (raw if nothing pays).
    /// Returns the codec and the size.
    pub(crate) fn store(&mut self, unit: Unit<'_, '_>, codecs: &mut Workspace, spare: &mut Vec<u8>) -> Chosen {
        let chooser = self.chooser;
        let key = unit.region;
        let remembered = self.enter(key, unit.settings.mode);
        let region = if unit.afresh { policy::Region::default() } else { remembered };
        if !chooser.trace.is_on() && !wants_probe(unit.settings.mode, region) {
            // Most units of a long run of random ones: no decision, no learning.
            self.region = Some((key, region.after_random()));
            chooser.choices[Why::RandomRun as usize].add(1);
            unit.target.copy_from_slice(unit.raw);
            return Chosen { codec: CodecId::RAW, stored: unit.raw.len(), is_random: true };
        }
        let number = chooser.units.fetch_add(1, Ordering::Relaxed);
        let is_traced = chooser.trace.is_on();
        let credit_ns = chooser.credit_ns.load(Ordering::Relaxed);
        let limit = dst_limit(unit.raw.len(), unit.settings);
        let Unit { raw, target, dictionaries, .. } = unit;
        let clock = &*chooser.clock;
        let mut attempts = UnitAttempts {
            codecs,
            clock,
            raw,
            dictionaries,
            helper: 0,
            target,
            spare,
            limit,
            last: None,
            kept: None,
            began: self.began,
        };
        let planner = self.planner(unit.settings.auto());
        let timed = is_traced || number.is_multiple_of(TIMED_EVERY);
        let stored = planner.store(raw, region, credit_ns, timed, &mut attempts);
        self.began = attempts.began;
        let (codec, bytes) = attempts.finish();
        let stored = Stored { codec, ..stored };
        chooser.choices[stored.why as usize].add(1);
        self.region = Some((key, stored.region));
        if stored.test_ns > 0 {
            self.test_ns += stored.test_ns;
            chooser.credit_ns.fetch_sub(stored.test_ns as i64, Ordering::Relaxed);
        }
        if is_traced {
            self.trace(unit.object, unit.first, raw.len(), &stored);
        }
        Chosen { codec, stored: bytes, is_random: stored.class.is_random() }
    }

    fn trace(&self, object: ObjectId, first: BlockIndex, raw: usize, stored: &Stored) {
        let pressure = self.chooser.meter.pressure(self.pressed);
        self.chooser.trace.add(TraceRecord {
            number: 0,
            unix_s: self.chooser.clock.unix_s(),
            object: object.0,
            offset: first.offset_bytes(),
            raw_bytes: raw as u32,
            stored_bytes: stored.bytes as u32,
            codec: stored.codec.to_string(),
            class: stored.class.index() as u8,
            why: stored.why.name().to_owned(),
            cpu_ns: stored.cpu_ns,
            test_ns: stored.test_ns,
            cpus: pressure.cpus,
            device_ns_per_kib: pressure.device_ns_per_kib,
            pressed: self.pressed,
            power: self.chooser.costs.power(),
        });
    }

    fn planner(&mut self, auto: Auto) -> &mut Planner<'a, Costs> {
        let chooser = self.chooser;
        let fresh = self.planner.take().filter(|planner| planner.auto() == auto);
        let pressed = self.pressed;
        // The price of CPU time is the same for all candidates, so that it changes no choice.
        let price = chooser.costs.power().watts();
        self.planner
            .insert(fresh.unwrap_or_else(|| Planner::new(auto, price, chooser.meter.pressure(pressed), &chooser.costs)))
    }

    fn enter(&mut self, key: RegionKey, mode: Mode) -> policy::Region {
        let before = self.region;
        match before {
            Some((known, region)) if known == key => region,
            _ => {
                self.leave();
                let region = self.chooser.regions.get(key);
                let is_new = region == policy::Region::default();
                let last = || if self.is_apart { policy::Region::default() } else { self.chooser.last_region() };
                let before = before.map_or_else(last, |(_, region)| region);
                let region = match (is_new, mode) {
                    (false, _) => region,
                    (true, Mode::Performance) => before.random_neighbour(),
                    (true, _) => before.checked_neighbour(),
                };
                region.or_dictionary_of(before)
            }
        }
    }

    fn leave(&mut self) {
        if let Some((key, region)) = self.region.take() {
            if !self.is_apart {
                self.chooser.last.store(region.bits(), Ordering::Relaxed);
            }
            self.chooser.regions.put(key, region);
        }
    }

    /// Step 3.
    pub(crate) fn finish(mut self) {
        self.leave();
        let chooser = self.chooser;
        let Some((began_ns, began_cpu_ns)) = self.began else { return };
        let wall_ns = chooser.clock.now_ns().saturating_sub(began_ns);
        let cpu_ns = chooser.clock.thread_cpu_ns().saturating_sub(began_cpu_ns);
        chooser.meter.compressed(wall_ns, cpu_ns);
        let saved = chooser.credit_ns.load(Ordering::Relaxed);
        let earned = test_credit_earned(saved, cpu_ns.saturating_sub(self.test_ns));
        chooser.credit_ns.fetch_add(earned, Ordering::Relaxed);
    }
}

/// Where bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Target,
    Spare,
}

/// Compresses a unit into its target or, while the target holds a result that may be kept, into a
/// spare buffer.
struct UnitAttempts<'a, 'core> {
    codecs: &'a mut Workspace,
    clock: &'a dyn Clock,
    raw: &'a [u8],
    dictionaries: Option<&'a mut Encoders<'core>>,
    /// The number of the dictionary that helps, from 1; 0: none.
    helper: u8,
    target: &'a mut [u8],
    spare: &'a mut Vec<u8>,
    /// Maximum compressed size that is worth storing.
    limit: usize,
    /// Its place, its codec, and its compressed size in bytes.
    last: Option<(Place, CodecId, usize)>,
    kept: Option<(Place, CodecId, usize)>,
    /// See [`Batch::began`].
    began: Option<(u64, u64)>,
}

impl Attempts for UnitAttempts<'_, '_> {
    fn attempt(&mut self, codec: Codec, timed: bool) -> Attempt {
        let place = if matches!(self.kept, Some((Place::Target, ..))) { Place::Spare } else { Place::Target };
        let dst = match place {
            Place::Target => &mut self.target[..self.limit],
            Place::Spare => {
                if self.spare.len() < self.limit {
                    self.spare.resize(codec::UNIT_BYTES_MAX, 0);
                }
                &mut self.spare[..self.limit]
            }
        };
        self.began.get_or_insert_with(|| (self.clock.now_ns(), self.clock.thread_cpu_ns()));
        // Preparing a dictionary is not the unit's work.
        let helped = match (&mut self.dictionaries, codec) {
            (Some(encoders), Codec::Zstd(level)) => encoders.at(self.helper, level),
            _ => None,
        };
        let began = timed.then(|| self.clock.thread_cpu_ns());
        let (id, stored) = match helped {
            Some(dictionary) => (CodecId::ZSTD_DICTIONARY, self.codecs.compress_with(dictionary, self.raw, dst)),
            None => (codec.id(), self.codecs.compress(codec, self.raw, dst)),
        };
        let cpu_ns = began.map(|began| self.clock.thread_cpu_ns().saturating_sub(began));
        self.last = stored.map(|len| (place, id, len));
        Attempt { stored, cpu_ns }
    }

    fn keep(&mut self) {
        self.kept = self.last;
    }

    fn dictionaries(&self) -> u8 {
        self.dictionaries.as_ref().map_or(0, |encoders| encoders.count())
    }

    fn help(&mut self, dictionary: u8) {
        self.helper = dictionary;
    }
}

impl UnitAttempts<'_, '_> {
    /// Moves the kept result into the target; raw if there is none.
    fn finish(self) -> (CodecId, usize) {
        match self.kept {
            Some((place, codec, len)) => {
                if place == Place::Spare {
                    self.target[..len].copy_from_slice(&self.spare[..len]);
                }
                (codec, len)
            }
            None => {
                self.target.copy_from_slice(self.raw);
                (CodecId::RAW, self.raw.len())
            }
        }
    }
}
