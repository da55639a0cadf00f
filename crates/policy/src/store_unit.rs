//! The path of one unit through the policy: probe, decision, attempts, and their feedback. The
//! compression itself is passed in ([`Attempts`]), so that the engine, a replay of measurements and
//! an estimate share this code.

use codec::{Codec, CodecId};

use crate::budget::pays_for_attempt;
use crate::candidates::CANDIDATES_MAX;
use crate::decide::wants_test;
use crate::dictionary::judging_level_of;
use crate::learned::{Key, SizeClass, Table};
use crate::plan::{Auto, ClassPlan, Contenders, Entrant, Facts, Pressure};
use crate::probe::CLASSES;
use crate::{Action, Class, Decision, Estimate, Probe, Region, SIZES, Why, decide, probe, wants_probe};

/// Effective saving as a share.
fn saving_of(raw_len: usize, attempt: Attempt) -> f64 {
    let stored = attempt.stored.unwrap_or(raw_len).min(raw_len);
    if raw_len == 0 { 0.0 } else { (raw_len - stored) as f64 / raw_len as f64 }
}

/// Weight of a unit's own saving, against the estimate of each codec, in a test: differences
/// between codecs on one unit are partly luck.
const OWN: f64 = 0.25;

/// Lead, as a share of the unit, that a candidate needs over a faster one in a test: savings
/// elsewhere do not make up for losses here. Stronger codecs do not save more on everything: on
/// hexadecimal digits zstd-9 saves less than zstd-1.
const LEAST_LEAD: f64 = -0.01;

/// Whether a codec that is usually no slower has saved clearly more on the same unit.
fn is_beaten<T: Table>(
    facts: &Facts<'_, T>,
    class: Class,
    measured: &[(Codec, f64)],
    (codec, saving): (Codec, f64),
) -> bool {
    let ns = |codec: Codec| facts.estimate(codec, class).ns_per_kib;
    measured.iter().any(|(other, saved)| *other != codec && saving - saved < LEAST_LEAD && ns(*other) <= ns(codec))
}

/// The codecs measured, with the averaged times, which are steadier than one measurement.
fn entrants<T: Table>(
    facts: &Facts<'_, T>,
    class: Class,
    measured: &[(Codec, f64)],
    expected: &[f64; CANDIDATES_MAX],
) -> impl Iterator<Item = Entrant> + Clone {
    let count = measured.len().max(1) as f64;
    let common = measured.iter().zip(expected).map(|((_, saving), expected)| saving - expected).sum::<f64>() / count;
    measured.iter().zip(expected).map(move |((codec, saving), expected)| {
        let usual = (expected + common).clamp(0.0, 1.0);
        // A codec that saved too little on this unit does not win, however well it usually does.
        let is_out = *saving <= 0.0 || is_beaten(facts, class, measured, (*codec, *saving));
        let saving = if is_out { 0.0 } else { saving * OWN + usual * (1.0 - OWN) };
        Entrant { codec: *codec, estimate: Estimate { saving, ..facts.estimate(*codec, class) } }
    })
}

/// Result of compressing a unit with one codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// Bytes; `None`: more than the least saving allows.
    pub stored: Option<usize>,
    /// CPU time, if requested and measurable.
    pub cpu_ns: Option<u64>,
}

/// Compresses one unit, any number of times.
pub trait Attempts {
    /// Compresses the unit; measures the time if `timed`.
    fn attempt(&mut self, codec: Codec, timed: bool) -> Attempt;
    /// Marks the last attempt for storing, until another one is kept.
    fn keep(&mut self);
    /// Number of dictionaries that zstd can use: numbered from 1, the newest last.
    fn dictionaries(&self) -> u8 {
        0
    }
    /// Selects the dictionary for zstd; 0: none.
    fn help(&mut self, dictionary: u8) {
        debug_assert_eq!(dictionary, 0);
    }
}

/// The outcome for a unit, and the region's new memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// The codec of the kept attempt; raw if none was kept.
    pub codec: CodecId,
    /// Bytes.
    pub bytes: usize,
    /// Class of the data.
    pub class: Class,
    /// Why.
    pub why: Why,
    /// The region's new memory.
    pub region: Region,
    /// CPU time of all attempts, where measured.
    pub cpu_ns: u64,
    /// The part of it spent on tests: attempts that were not kept.
    pub test_ns: u64,
}

/// Plans for one setting, created on first use. Valid for one batch: afterwards more measurements
/// exist.
pub struct Planner<'a, T: Table> {
    auto: Auto,
    price: f64,
    pressure: Pressure,
    table: &'a T,
    plans: [[Option<ClassPlan>; CLASSES]; SIZES],
}

impl<'a, T: Table> Planner<'a, T> {
    /// With the settings in force for a batch.
    pub fn new(auto: Auto, price: f64, pressure: Pressure, table: &'a T) -> Self {
        Self { auto, price, pressure, table, plans: [[None; CLASSES]; SIZES] }
    }

    /// The settings that it was made for.
    pub const fn auto(&self) -> Auto {
        self.auto
    }

    fn facts(&self, size: SizeClass) -> Facts<'a, T> {
        Facts { auto: self.auto, size, price: self.price, pressure: self.pressure, table: self.table }
    }

    fn plan(&mut self, size: SizeClass, class: Class) -> ClassPlan {
        let known = self.plans[size.index()][class.index()];
        known.unwrap_or_else(|| {
            let plan = self.facts(size).plan(class);
            self.plans[size.index()][class.index()] = Some(plan);
            plan
        })
    }

    /// Decides about a unit, has it compressed, and records the results. `credit_ns`: CPU time
    /// available for tests; `timed`: measure CPU time even without a test.
    pub fn store(
        &mut self,
        raw: &[u8],
        region: Region,
        credit_ns: i64,
        timed: bool,
        attempts: &mut impl Attempts,
    ) -> Stored {
        let stored = Stored {
            codec: CodecId::RAW,
            bytes: raw.len(),
            class: Class::RANDOM,
            why: Why::RandomRun,
            region: region.after_random(),
            cpu_ns: 0,
            test_ns: 0,
        };
        if !wants_probe(self.auto.mode, region) {
            return stored;
        }
        let Probe { class, .. } = probe(raw);
        let (region, dictionary, dictionary_ns) = self.help(raw.len(), class, region, credit_ns > 0, attempts);
        // zstd with a dictionary is measured separately.
        let size = if dictionary > 0 { SizeClass::WITH_DICTIONARY } else { SizeClass::of(raw.len()) };
        let stored = Stored { region: region.after_random(), ..stored };
        let mut plan = self.plan(size, class);
        let mut may_test = false;
        if wants_test(region, class) {
            (plan.contenders, may_test) = self.affordable(&plan, size, class, raw.len(), credit_ns);
        }
        let (facts, candidates) = (self.facts(size), self.auto.candidates);
        let considered = |id| candidates.find(id).filter(|codec| facts.considers(*codec));
        let Decision { action, why } = decide(self.auto.mode, &plan, region, class, may_test, considered);
        let stored = Stored { class, why, ..stored };
        let stored = match action {
            Action::Raw if class.is_random() => stored,
            Action::Raw => Stored { region: region.after_unit(class, raw.len(), raw.len()), ..stored },
            Action::Compress { codec, fallback } => {
                self.compress(raw.len(), size, region, stored, (codec, fallback), timed, attempts)
            }
            Action::Test(contenders) => self.test(raw.len(), size, region, stored, contenders, attempts),
        };
        let (cpu_ns, test_ns) = (stored.cpu_ns + dictionary_ns, stored.test_ns + dictionary_ns);
        Stored { cpu_ns, test_ns, ..stored }
    }

    /// The contenders of a test that the credit covers, and whether the test can yield anything
    /// new.
    fn affordable(
        &self,
        plan: &ClassPlan,
        size: SizeClass,
        class: Class,
        raw_len: usize,
        credit_ns: i64,
    ) -> (Contenders, bool) {
        let facts = self.facts(size);
        let kib = raw_len as f64 / 1024.0;
        let mut contenders = Contenders::default();
        let mut left_ns = credit_ns;
        let mut has_rival = false;
        for codec in plan.contenders.iter() {
            // A unit stored as it would be without a test costs nothing extra.
            if plan.winner != Some(codec) {
                let cost_ns = (facts.estimate(codec, class).ns_per_kib * kib) as i64;
                if !pays_for_attempt(left_ns, cost_ns) {
                    continue;
                }
                left_ns -= cost_ns;
                has_rival = true;
            }
            contenders.push(codec);
        }
        (contenders, credit_ns > 0 && (has_rival || plan.contenders == contenders))
    }

    /// Chooses the dictionary for a unit: its region's. From time to time all of them, and none,
    /// are compared on the unit. Also returns the CPU time spent.
    fn help(
        &self,
        raw_len: usize,
        class: Class,
        region: Region,
        may_test: bool,
        attempts: &mut impl Attempts,
    ) -> (Region, u8, u64) {
        let count = attempts.dictionaries();
        let Some(level) = judging_level_of(&self.auto.candidates).filter(|_| count > 0) else { return (region, 0, 0) };
        let mut region = region;
        let mut cpu_ns = 0;
        if may_test && !class.is_random() && region.wants_dictionaries() {
            let mut least: Option<(usize, u8)> = None;
            for dictionary in 0..=count {
                attempts.help(dictionary);
                let attempt = attempts.attempt(Codec::Zstd(level), true);
                cpu_ns += attempt.cpu_ns.unwrap_or(0);
                let stored = attempt.stored.unwrap_or(raw_len);
                if least.is_none_or(|(bytes, _)| stored < bytes) {
                    least = Some((stored, dictionary));
                }
            }
            // A unit that saves too little with any of them proves nothing.
            if let Some((_, best)) = least.filter(|(bytes, _)| *bytes < raw_len) {
                region = region.after_dictionaries(best);
            }
        }
        let dictionary = region.dictionary().unwrap_or(count).min(count);
        attempts.help(dictionary);
        (region, dictionary, cpu_ns)
    }

    fn learn_time(&self, key: Key, raw_len: usize, attempt: Attempt) {
        if let Some(cpu_ns) = attempt.cpu_ns {
            self.table.learn_time(key, raw_len, cpu_ns);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn compress(
        &self,
        raw_len: usize,
        size: SizeClass,
        region: Region,
        mut stored: Stored,
        (codec, fallback): (Codec, Option<Codec>),
        timed: bool,
        attempts: &mut impl Attempts,
    ) -> Stored {
        let class = stored.class;
        let attempt = attempts.attempt(codec, timed);
        self.learn_time(Key { codec: codec.id(), class, size }, raw_len, attempt);
        if timed {
            self.table.learn_savings(class, size, &[(codec.id(), saving_of(raw_len, attempt))]);
        }
        stored.cpu_ns = attempt.cpu_ns.unwrap_or(0);
        let mut region = region;
        if let Some(bytes) = attempt.stored {
            attempts.keep();
            stored = Stored { codec: codec.id(), bytes, ..stored };
        } else if let Some(fallback) = fallback {
            // Recorded in the region only: the units that get here are a biased sample of their
            // class.
            let second = attempts.attempt(fallback, timed);
            stored.cpu_ns += second.cpu_ns.unwrap_or(0);
            region = region.after_fallback(second.stored.is_some());
            if let Some(bytes) = second.stored {
                attempts.keep();
                stored = Stored { codec: fallback.id(), bytes, ..stored };
            }
        }
        let region = if class.is_random() && stored.codec == CodecId::RAW {
            region.after_random()
        } else if stored.why == Why::Check && class == Class::DENSE && stored.codec != CodecId::RAW {
            // The last test was bad luck.
            region.after_test(class, stored.codec, raw_len, stored.bytes)
        } else if stored.codec == CodecId::RAW {
            region.after_failure(class, raw_len)
        } else {
            region.after_unit(class, raw_len, stored.bytes)
        };
        Stored { region, ..stored }
    }

    fn test(
        &self,
        raw_len: usize,
        size: SizeClass,
        region: Region,
        mut stored: Stored,
        contenders: Contenders,
        attempts: &mut impl Attempts,
    ) -> Stored {
        let facts = self.facts(size);
        let class = stored.class;
        let mut measured = [(Codec::Off, 0.0); CANDIDATES_MAX];
        let mut count = 0;
        let mut kept: Option<(Codec, usize, u64)> = None;
        let mut before = [0.0; CANDIDATES_MAX];
        let mut left = contenders.iter();
        let mut is_last = false;
        while count < CANDIDATES_MAX {
            let Some(codec) = left.next() else {
                if kept.is_some() || is_last {
                    break;
                }
                (left, is_last) = (facts.stand_ins(class, &contenders).iter(), true);
                continue;
            };
            before[count] = facts.estimate(codec, class).saving;
            let attempt = attempts.attempt(codec, true);
            self.learn_time(Key { codec: codec.id(), class, size }, raw_len, attempt);
            let cpu_ns = attempt.cpu_ns.unwrap_or(0);
            stored.cpu_ns += cpu_ns;
            measured[count] = (codec, saving_of(raw_len, attempt));
            count += 1;
            let best = facts.choose(entrants(&facts, class, &measured[..count], &before));
            if let Some(bytes) = attempt.stored
                && best.is_some_and(|b| b.codec == codec)
            {
                attempts.keep();
                kept = Some((codec, bytes, cpu_ns));
            }
        }
        let winner = facts.choose(entrants(&facts, class, &measured[..count], &before));
        let tried = measured.map(|(codec, saving)| (codec.id(), saving));
        self.table.learn_savings(class, size, &tried[..count]);
        // Later attempts may have displaced the kept one, and the winner's attempt must be stored.
        if let Some(winner) = winner
            && kept.is_none_or(|(codec, ..)| codec != winner.codec)
        {
            let attempt = attempts.attempt(winner.codec, true);
            let cpu_ns = attempt.cpu_ns.unwrap_or(0);
            stored.cpu_ns += cpu_ns;
            if let Some(bytes) = attempt.stored {
                attempts.keep();
                kept = Some((winner.codec, bytes, cpu_ns));
            }
        }
        if let Some((codec, bytes, cpu_ns)) = kept {
            stored = Stored { codec: codec.id(), bytes, test_ns: stored.cpu_ns - cpu_ns, ..stored };
        } else {
            stored.test_ns = stored.cpu_ns;
        }
        let winner = winner.map_or(CodecId::RAW, |w| w.codec.id());
        Stored { region: region.after_test(class, winner, raw_len, stored.bytes), ..stored }
    }
}

#[cfg(test)]
#[path = "store_unit_tests.rs"]
mod tests;
