//! Decides which codec pays for a class of data, from the measurements: a pure function of the
//! facts.
//!
//! - No mode except `archive` chooses a candidate that decodes so slowly that a random read of a
//!   block would suffer ([`DECODE_NS_PER_KIB_MAX`]), unless all candidates do; nor one that usually
//!   takes more than [`MODERATE_CPU_MULTIPLE`] times the CPU time of the fastest candidate with an
//!   entropy coder: it would have to save a fifth more, hardly any data allows that, and finding
//!   out costs more than it saves.
//! - `balanced`, `energy`, `archive`: the candidate of least cost ([`crate::ln_cost`]) with the
//!   mode's exponents; `archive` only among those that take at most [`ARCHIVE_CPU_MULTIPLE`] times
//!   the CPU time of the choice of `balanced`, and save no less.
//! - `performance`: the candidate that saves most among those that do not slow the writer down. The
//!   throughput of a codec is the lesser of two rates: that of the CPUs, and that at which the
//!   device takes the output. A writer that waits for neither is not slowed by a codec that keeps
//!   up with it. Never a codec that takes more CPU time than the choice of `balanced`.
//! - A test includes the candidates that might beat the winner, by the estimates plus an allowance.
//!   Where none of them saves enough on a unit, the estimates do not hold for it, and the
//!   candidates that would be next are tried.
//!
//! **Modes are monotone**: for the same facts, the choice of a mode is expected to save at least as
//! much as the choice of an earlier one, in the order energy, balanced, archive; and `performance`
//! never spends more CPU time than `balanced`. For let *a* be chosen with saving exponent *m* and
//! *b* with *n > m*, time exponents equal. Then t(a)/s(a)^m <= t(b)/s(b)^m and t(b)/s(b)^n <=
//! t(a)/s(a)^n; the product of both is (s(b)/s(a))^(n-m) >= 1. The bounds of `archive` keep the
//! choice of `balanced` among its options, and admit none that saves less.

use codec::Codec;

use crate::candidates::{CANDIDATES_MAX, Candidates};
use crate::cost::{SAVING_MIN, ln_cost};
use crate::learned::{Estimate, Key, SizeClass, Table};
use crate::mode::ARCHIVE_CPU_MULTIPLE;
use crate::prior::{decode_ns_per_kib, strength, usual_ns_per_kib};
use crate::{Class, Mode};

/// Settings of `auto`, from the properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Auto {
    /// The goal.
    pub mode: Mode,
    /// The codecs to choose among.
    pub candidates: Candidates,
    /// Least saving, in thousandths of the raw length, for which a unit is stored compressed.
    pub min_saving_permille: u32,
}

/// Where the writer waits, as measured over the last moments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pressure {
    /// CPU seconds per second available to compression: cores, less other load.
    pub cpus: f64,
    /// Nanoseconds that the device takes for a KiB while it is busy; 0: not known.
    pub device_ns_per_kib: f64,
    /// CPU nanoseconds that storing a KiB raw takes: copy and checksum.
    pub raw_ns_per_kib: f64,
    /// Nanoseconds between two KiB of a writer that is not held up; 0: unknown.
    pub demand_ns_per_kib: f64,
    /// The writer is held up, or nearly: the write buffer is more than half full.
    pub pressed: bool,
}

impl Default for Pressure {
    /// Nothing is known: no writer waits.
    fn default() -> Self {
        Self { cpus: 1.0, device_ns_per_kib: 0.0, raw_ns_per_kib: 100.0, demand_ns_per_kib: 0.0, pressed: false }
    }
}

/// Share of the time between two KiB of an unhindered writer that storing a KiB may take: twice the
/// writer's speed leaves room for bursts.
const DEMAND_SHARE: f64 = 0.5;
/// How much slower than the fastest way a codec may be in `performance`: measurements are no more
/// precise.
const SLOWER: f64 = 1.05;
/// Decoding time per KiB above which a codec is too slow to read from: 40 microseconds for a unit
/// of the default size, of which a random read wants one block.
pub const DECODE_NS_PER_KIB_MAX: f64 = 40_000.0 / 32.0;
/// Usual CPU time of a candidate, as a multiple of that of the fastest one with an entropy coder,
/// up to which modes other than `archive` consider it: zstd-9 relative to zstd-1 (11 times), not
/// zstd-15 (29 times).
pub const MODERATE_CPU_MULTIPLE: f64 = 16.0;
/// [`strength`] above which a codec is taken to have an entropy coder.
const STRONG: f64 = 0.95;
/// CPU time, as a multiple of the fastest one's, up to which candidates with an entropy coder are
/// tested on data that looks random: zstd-1 and zstd-3.
const RANDOM_CPU_MULTIPLE: f64 = 2.0;
/// Samples needed before an average is trusted.
const SAMPLES_FEW: u64 = 4;
/// Share of its remaining size that a codec might save beyond its average, when deciding whether a
/// test could show it as the winner; four times that while there are few samples.
const HOPE: f64 = 0.04;

/// The facts from which a plan is made.
pub struct Facts<'a, T: Table> {
    /// Settings from the properties.
    pub auto: Auto,
    /// How large the units are.
    pub size: SizeClass,
    /// Price of CPU time: watts, or 1.
    pub price: f64,
    /// Where the writer waits; used by `performance` only.
    pub pressure: Pressure,
    /// The measurements.
    pub table: &'a T,
}

/// A bounded list of codecs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contenders {
    codecs: [Option<Codec>; CANDIDATES_MAX],
}

impl Contenders {
    fn has(&self, codec: Codec) -> bool {
        self.codecs.contains(&Some(codec))
    }

    pub(crate) fn push(&mut self, codec: Codec) {
        if let Some(free) = self.codecs.iter_mut().find(|slot| slot.is_none()) {
            *free = Some(codec);
        }
    }
    /// The codecs, in the order of the candidates.
    pub fn iter(&self) -> impl Iterator<Item = Codec> + Clone + use<> {
        self.codecs.into_iter().flatten()
    }
}

/// Plan for the units of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassPlan {
    /// Codec that pays; `None`: raw.
    pub winner: Option<Codec>,
    /// Another codec that usually saves enough, tried when the winner saves too little on a unit.
    pub fallback: Option<Codec>,
    /// Candidates that might win a test.
    pub contenders: Contenders,
    /// The fastest candidate, which gives up early on most data that looks random: such units are
    /// checked with it. `None` if that is not worth it.
    pub check: Option<Codec>,
}

/// A candidate, and its expected or measured result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entrant {
    /// The codec.
    pub codec: Codec,
    /// Its time and saving.
    pub estimate: Estimate,
}

impl<T: Table> Facts<'_, T> {
    /// Expected performance of a codec.
    pub fn estimate(&self, codec: Codec, class: Class) -> Estimate {
        self.table.estimate(Key { codec: codec.id(), class, size: self.size })
    }

    /// Plans for one class.
    pub fn plan(&self, class: Class) -> ClassPlan {
        let entrants = self.considered(class);
        let entrants = || entrants.iter().flatten().copied();
        let winner = self.choose(entrants());
        let check = self.check(entrants());
        let has_quick = entrants().any(|entrant| self.is_quick_and_strong(entrant.codec));
        let mut contenders = Contenders::default();
        for entrant in entrants() {
            // Data that looks random is not worth a test with slow candidates: they find nothing in
            // most of it either. But the fastest one, which makes the check, finds nothing in some
            // data that a fast one with an entropy coder shrinks by an eighth (PNG, deflate of
            // small alphabets).
            let might_win = if class.is_random() && winner.is_none() {
                if has_quick {
                    self.is_quick_and_strong(entrant.codec)
                } else {
                    check.is_some_and(|c| c == entrant.codec)
                }
            } else {
                self.might_win(entrant, winner) || self.is_quickest_strong(entrant.codec)
            };
            if might_win {
                contenders.push(entrant.codec);
            }
        }
        ClassPlan {
            winner: winner.map(|w| w.codec),
            fallback: winner.and_then(|winner| self.fallback(winner, entrants())).map(|f| f.codec),
            contenders,
            check: check.filter(|_| self.auto.mode != Mode::Performance),
        }
    }

    /// The candidates that the mode considers, and their estimates.
    fn considered(&self, class: Class) -> [Option<Entrant>; CANDIDATES_MAX] {
        let is_moderate = self.moderate();
        let mut entrants = [None; CANDIDATES_MAX];
        for (slot, codec) in entrants.iter_mut().zip(self.auto.candidates.as_slice()) {
            if self.auto.mode == Mode::Archive || is_moderate(*codec) {
                *slot = Some(Entrant { codec: *codec, estimate: self.estimate(*codec, class) });
            }
        }
        entrants
    }

    /// Candidates that might win a test in which none of the contenders saved enough: the class's
    /// usual values do not hold for such a unit. Excludes the contenders; empty for data that looks
    /// random.
    pub(crate) fn stand_ins(&self, class: Class, contenders: &Contenders) -> Contenders {
        let mut stand_ins = Contenders::default();
        if class.is_random() {
            return stand_ins;
        }
        let entrants = self.considered(class);
        let rest = || entrants.iter().flatten().copied().filter(|e| !contenders.has(e.codec));
        if let Some(best) = self.choose(rest()) {
            rest().filter(|e| self.might_win(*e, Some(best))).for_each(|e| stand_ins.push(e.codec));
        }
        stand_ins
    }

    /// Only a codec without entropy coding gets through random data several times as fast as
    /// through other data.
    fn check(&self, entrants: impl Iterator<Item = Entrant>) -> Option<Codec> {
        let fastest = entrants.min_by(|a, b| a.estimate.ns_per_kib.total_cmp(&b.estimate.ns_per_kib))?;
        Some(fastest.codec)
    }

    /// Whether a candidate's output decodes fast enough, or no candidate's does.
    pub fn is_quick_to_read(&self, codec: Codec) -> bool {
        let is_quick = |codec: &Codec| decode_ns_per_kib(codec.id()) <= DECODE_NS_PER_KIB_MAX;
        is_quick(&codec) || !self.auto.candidates.as_slice().iter().any(is_quick)
    }

    /// Whether modes other than `archive` consider a candidate: it decodes fast, and is not many
    /// times slower than the fastest one that has an entropy coder, which saves nearly as much.
    pub fn is_moderate(&self, codec: Codec) -> bool {
        self.moderate()(codec)
    }

    /// Usual CPU time of the fastest candidate with an entropy coder.
    fn quickest_strong_ns(&self) -> f64 {
        let candidates = self.auto.candidates.as_slice().iter().map(|codec| codec.id());
        candidates.filter(|id| strength(*id) >= STRONG).map(usual_ns_per_kib).fold(f64::INFINITY, f64::min)
    }

    /// Whether it is the fastest candidate with an entropy coder: it takes part in every test in
    /// `archive`, where its cost is negligible next to the others. Stronger ones do not save more
    /// on everything.
    fn is_quickest_strong(&self, codec: Codec) -> bool {
        self.auto.mode == Mode::Archive
            && strength(codec.id()) >= STRONG
            && usual_ns_per_kib(codec.id()) <= self.quickest_strong_ns()
    }

    /// Whether a candidate has an entropy coder and is about as fast as the fastest one that does.
    fn is_quick_and_strong(&self, codec: Codec) -> bool {
        strength(codec.id()) >= STRONG
            && usual_ns_per_kib(codec.id()) <= self.quickest_strong_ns() * RANDOM_CPU_MULTIPLE
    }

    /// Whether the mode considers a candidate.
    pub(crate) fn considers(&self, codec: Codec) -> bool {
        self.auto.mode == Mode::Archive || self.is_moderate(codec)
    }

    /// [`Self::is_moderate`] for callers with several candidates: looks up the fastest one once.
    fn moderate(&self) -> impl Fn(Codec) -> bool + Copy {
        let candidates = self.auto.candidates.as_slice().iter().map(|codec| codec.id());
        let strong = candidates.filter(|id| strength(*id) >= STRONG && decode_ns_per_kib(*id) <= DECODE_NS_PER_KIB_MAX);
        let quickest = strong.map(usual_ns_per_kib).fold(f64::INFINITY, f64::min);
        let most = quickest * MODERATE_CPU_MULTIPLE;
        move |codec| self.is_quick_to_read(codec) && usual_ns_per_kib(codec.id()) <= most
    }

    /// The winner among entrants; `None`: none pays.
    pub fn choose(&self, entrants: impl Iterator<Item = Entrant> + Clone) -> Option<Entrant> {
        let worth_it = |e: &Entrant| e.estimate.saving >= self.least_saving();
        let is_moderate = self.moderate();
        let quick = entrants.clone().filter(worth_it).filter(|e| is_moderate(e.codec));
        let balanced = self.cheapest(Mode::Balanced, quick.clone());
        match self.auto.mode {
            Mode::Balanced => balanced,
            Mode::Energy => self.cheapest(Mode::Energy, quick),
            Mode::Archive => {
                let limit = balanced.map_or(f64::INFINITY, |b| b.estimate.ns_per_kib * ARCHIVE_CPU_MULTIPLE);
                let least = balanced.map_or(0.0, |b| b.estimate.saving);
                let allowed = |e: &Entrant| e.estimate.ns_per_kib <= limit && e.estimate.saving >= least;
                self.cheapest(Mode::Archive, entrants.filter(worth_it).filter(allowed))
            }
            Mode::Performance => self.unhindering(balanced?, quick),
        }
    }

    /// Expected saving below which a codec is not tried on every unit: it would fail most of the
    /// time.
    fn least_saving(&self) -> f64 {
        let share = f64::from(self.auto.min_saving_permille) / 1000.0;
        let share = if self.auto.mode == Mode::Archive { share / 16.0 } else { share / 4.0 };
        share.max(SAVING_MIN)
    }

    fn cost(&self, mode: Mode, estimate: Estimate) -> f64 {
        ln_cost(mode.weights(), estimate.ns_per_kib, self.price, estimate.saving)
    }

    /// The first of least cost.
    fn cheapest(&self, mode: Mode, entrants: impl Iterator<Item = Entrant>) -> Option<Entrant> {
        let mut best: Option<(Entrant, f64)> = None;
        for entrant in entrants {
            let cost = self.cost(mode, entrant.estimate);
            if cost.is_finite() && best.is_none_or(|(_, least)| cost < least) {
                best = Some((entrant, cost));
            }
        }
        best.map(|(entrant, _)| entrant)
    }

    /// Wall-clock nanoseconds per KiB when stored with this codec, if nothing else limits it.
    fn wall(&self, cpu_ns_per_kib: f64, saving: f64) -> f64 {
        let pressure = &self.pressure;
        (cpu_ns_per_kib / pressure.cpus.max(0.01)).max(pressure.device_ns_per_kib * (1.0 - saving))
    }

    /// The choice of `performance`.
    fn unhindering(&self, balanced: Entrant, entrants: impl Iterator<Item = Entrant> + Clone) -> Option<Entrant> {
        let pressure = &self.pressure;
        let of = |e: &Entrant| self.wall(e.estimate.ns_per_kib + pressure.raw_ns_per_kib, e.estimate.saving);
        let entrants = entrants.filter(|e| e.estimate.ns_per_kib <= balanced.estimate.ns_per_kib);
        let raw = self.wall(pressure.raw_ns_per_kib, 0.0);
        let fastest = entrants.clone().map(|e| of(&e)).fold(raw, f64::min);
        let mut limit = fastest * SLOWER;
        if !pressure.pressed {
            // No writer waits: a codec that keeps up is free.
            let unhurried = if pressure.demand_ns_per_kib > 0.0 { pressure.demand_ns_per_kib } else { f64::INFINITY };
            limit = limit.max(unhurried * DEMAND_SHARE);
        }
        let mut best: Option<Entrant> = None;
        for entrant in entrants.filter(|e| of(e) <= limit) {
            if best.is_none_or(|b| entrant.estimate.saving > b.estimate.saving) {
                best = Some(entrant);
            }
        }
        best
    }

    /// Whether a test could show that `entrant` beats the winner.
    fn might_win(&self, entrant: Entrant, winner: Option<Entrant>) -> bool {
        let Some(winner) = winner else { return true };
        if winner.codec == entrant.codec {
            return true;
        }
        let few = entrant.estimate.samples < SAMPLES_FEW;
        // Cheaper than the codec it is compared with.
        if entrant.estimate.ns_per_kib <= winner.estimate.ns_per_kib && self.auto.mode != Mode::Archive {
            return true;
        }
        let hope = if few { 4.0 * HOPE } else { HOPE };
        // The estimate of a slower codec may come from other data; it rarely saves less than a
        // faster one.
        let mut saving = entrant.estimate.saving;
        if entrant.estimate.ns_per_kib > winner.estimate.ns_per_kib {
            saving = saving.max(winner.estimate.saving);
        }
        saving += (1.0 - saving) * hope;
        let hoped = Estimate { saving, ..entrant.estimate };
        match self.auto.mode {
            // Tests fill the table: `performance` compares times and savings that change with the
            // load.
            Mode::Performance => few || entrant.estimate.ns_per_kib <= 2.0 * winner.estimate.ns_per_kib,
            mode => self.cost(mode, hoped) < self.cost(mode, winner.estimate),
        }
    }

    /// A codec for units on which the winner saves too little: the one that usually saves most, if
    /// it saves enough and more.
    fn fallback(&self, winner: Entrant, entrants: impl Iterator<Item = Entrant>) -> Option<Entrant> {
        let multiple = match self.auto.mode {
            Mode::Performance => return None,
            Mode::Energy | Mode::Balanced => 4.0,
            Mode::Archive => ARCHIVE_CPU_MULTIPLE,
        };
        let least = winner.estimate.saving.max(f64::from(self.auto.min_saving_permille) / 1000.0);
        let limit = winner.estimate.ns_per_kib * multiple;
        let mut best: Option<Entrant> = None;
        for e in entrants.filter(|e| e.estimate.saving > least && e.estimate.ns_per_kib <= limit) {
            if e.codec != winner.codec && best.is_none_or(|b| e.estimate.saving > b.estimate.saving) {
                best = Some(e);
            }
        }
        best
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
