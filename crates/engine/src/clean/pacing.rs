//! Decides when the cleaner runs, and for how long: in the background by the amount of free space,
//! and on demand. For a writer that finds none, `make_room` runs rounds.
//!
//! Bands of free space, the tightest first:
//! - *Wall*: the reserve. Data never gets past it.
//! - *Pressed*: little is left before the wall, measured by how much could be free at best. Then
//!   everything that gains space is cleaned. A log that is constantly overwritten stays in this
//!   band. The later an extent is cleaned, the less live data it has, so the band is narrow.
//! - *Below*: between the marks that the properties `clean-low` and `clean-high` set. Then only
//!   extents are cleaned of which three quarters are dead, so that a byte moved gains three.
//!   Half-dead extents hold the data that is written most, and will soon have less live data.
//! - *Idle*: half dead suffices, and the pool is treated as if it were below until the high mark.
//!
//! **No cliff.** The nearer the wall, the less the cleaner rests between rounds, and the more
//! writers are slowed down (`space::brake`). While one round is under way, the maintenance thread
//! takes the light checkpoint that frees the extents of the last one.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use store::base::status::{CleanMark, CleanReport};
use store::space::EVACUATED_MAX;
use store::space::brake::BRAKE_NS_MAX;
use store::space::rule::Rule;
use surface::Result;
use units::ExtentIndex;

use crate::clean::Cleaning;
use crate::clean::cleaner::Cleaner;
use crate::clean::round::Round;

/// Extents before the wall below which the cleaner is pressed, and up to which it continues, as
/// parts of the extents that could be free at best; and the minimum of each.
const PRESSED_DIVISOR: u64 = 40;
const PRESSED_MIN: u64 = 2;
const RELIEVED_DIVISOR: u64 = 20;
const RELIEVED_MIN: u64 = 4;
/// The soft wall (`space::brake`), as a part of the extents that could be free at best. Space that
/// lies idle there makes the log write more.
const SOFT_DIVISOR: u64 = 64;
const SOFT_MAX: u64 = 256;
/// Minimum dead share of an extent that is cleaned in the background below the marks, without
/// writers and with writers.
const IDLE_DEAD_PERMILLE: u32 = 500;
const BELOW_DEAD_PERMILLE: u32 = 750;
/// Minimum dead share of an extent that is cleaned on demand, in thousandths.
const PASS_PERMILLE: u32 = 50;
/// Pause of the cleaner when there is nothing to do; when nothing is written either; and when the
/// wall is near.
const REST: Duration = Duration::from_millis(200);
const REST_QUIET: Duration = Duration::from_secs(1);
const REST_NEAR: Duration = Duration::from_millis(10);
/// When it is pressed, the cleaner rests at most this many times as long as it works: 1 / this.
const URGENCY_MIN: f64 = 0.2;
/// Consecutive rounds that ask for a checkpoint, after which another one is not expected to help.
pub(crate) const STUCK_MAX: u32 = 2;

/// The cleaner's thread.
pub(crate) fn run(cleaning: &Weak<Cleaning>) {
    let (mut pause, mut seen, mut written) = (REST, 0, 0);
    while let Some(cleaning) = cleaning.upgrade() {
        let Some(wakes) = cleaning.signals.wait_for_cleaning(seen, pause) else { return };
        seen = wakes;
        let now = cleaning.vitals.counters.written_bytes.get();
        let idle = now == written;
        written = now;
        let began = cleaning.vitals.env.clock.now_ns();
        // Errors show up in the next flush or write, which meet them too.
        let paced = if cleaning.vitals.check_failed().is_ok() {
            cleaning.clean_some(idle && pause >= REST)
        } else {
            Ok(Paced::Nothing)
        };
        let paced = paced.unwrap_or(Paced::Nothing);
        let has_braked = cleaning.space.brake.has_braked.swap(false, Ordering::Relaxed);
        let is_awaited = cleaning.space.brake.waiting.load(Ordering::Acquire) > 0;
        if paced == Paced::Nothing && is_awaited {
            // Space gained before may be all that is left.
            let _ = cleaning.checkpoints.take_light();
            *cleaning.space.brake.futile.lock() += 1;
            cleaning.space.brake.room.notify_all();
        }
        let took = Duration::from_nanos(cleaning.vitals.env.clock.now_ns().saturating_sub(began));
        let urgency = cleaning.space.urgency();
        pause = match (paced, urgency > 0.0) {
            (Paced::Busy, _) => REST_NEAR,
            // No writer may wait for a resting cleaner.
            (Paced::Worked, _) if is_awaited || has_braked => Duration::ZERO,
            // Without demand, cleaning uses an eighth of two cores; where rounds are long, because
            // they compress (`cold`), a quarter at most.
            (Paced::Worked, false) => (took * 3).min(REST.max(took)),
            (Paced::Worked, true) => took.mul_f64((1.0 - urgency) / urgency.max(URGENCY_MIN)).min(REST),
            (Paced::Nothing, true) => REST_NEAR,
            // A writer that waits wakes it.
            (Paced::Nothing, false) if idle => REST_QUIET,
            (Paced::Nothing, false) => REST,
        };
    }
}

/// The thread of the second cleaner, which works only when space is needed: while one reads or
/// writes, the other one computes.
pub(crate) fn help(cleaning: &Weak<Cleaning>) {
    let (mut pause, mut seen) = (REST, 0);
    while let Some(cleaning) = cleaning.upgrade() {
        let Some(wakes) = cleaning.signals.wait_for_cleaning(seen, pause) else { return };
        seen = wakes;
        let is_needed = cleaning.space.is_needed_soon();
        let may_work = is_needed && cleaning.vitals.check_failed().is_ok();
        let paced = if may_work { cleaning.clean_some(false).unwrap_or(Paced::Nothing) } else { Paced::Nothing };
        pause = match (paced, is_needed) {
            (Paced::Worked, _) => Duration::ZERO,
            (_, true) => REST_NEAR,
            (_, false) => REST_QUIET,
        };
    }
}

/// The outcome of a bounded piece of background cleaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paced {
    /// Cleaning is not due, or there is nothing to clean.
    Nothing,
    /// All candidates are being cleaned by the other cleaner.
    Busy,
    Worked,
}

impl Cleaning {
    /// Returns the rule for extents with few enough live bytes to be worth cleaning.
    pub(crate) fn rule(&self, dead_permille: u32, greedy: bool) -> Rule {
        let live_max = u64::from(self.geometry.extent_bytes) * u64::from(1000 - dead_permille) / 1000;
        let within = (ExtentIndex(0), ExtentIndex(self.geometry.extents_usable()));
        let filled_by = CleanMark::NEVER;
        Rule {
            live_max: live_max as u32,
            greedy,
            within,
            filled_by,
            away: false,
            despite_damage: false,
            recodes: !greedy,
        }
    }

    /// Returns the rule for background cleaning now, if there is anything to clean.
    pub(crate) fn clean_pace(&self, cleaner: &mut Cleaner, idle: bool) -> Option<Rule> {
        let extent_bytes = u64::from(self.geometry.extent_bytes);
        let total = u64::from(self.geometry.extents_usable()) - 1;
        let wall = self.geometry.reserve_extents();
        let left = self.space.extents_left() + self.space.evacuated();
        let live = self.space.live_bytes().div_ceil(extent_bytes);
        let spare = total.saturating_sub(wall + live);
        let soft = (spare / SOFT_DIVISOR).min(SOFT_MAX);
        self.space.brake.soft.store(soft, Ordering::Relaxed);
        self.space.brake.age_kept();
        let wall = self.space.paced_wall();
        let pressed = wall + (spare / PRESSED_DIVISOR).max(PRESSED_MIN);
        let relieved = wall + (spare / RELIEVED_DIVISOR).max(RELIEVED_MIN);
        self.space.brake.from.store(pressed, Ordering::Relaxed);
        cleaner.pressed = left < if cleaner.pressed { relieved } else { pressed };
        let marks = self.objects.clean_marks();
        let mark = if cleaner.below || idle { marks.high_permille } else { marks.low_permille };
        cleaner.below = left * 1000 < total * u64::from(mark);
        if cleaner.pressed {
            Some(self.rule(30, false))
        } else if cleaner.below {
            Some(self.rule(if idle { IDLE_DEAD_PERMILLE } else { BELOW_DEAD_PERMILLE }, false))
        } else {
            None
        }
    }

    /// A bounded piece of background cleaning, if it is due.
    pub(crate) fn clean_some(&self, idle: bool) -> Result<Paced> {
        let Some(rule) = self.clean_pace(&mut self.cleaner.lock(), idle) else { return Ok(Paced::Nothing) };
        let began = self.vitals.env.clock.now_ns();
        let at_once = self.space.brake.rounds.fetch_add(1, Ordering::AcqRel) + 1;
        let round = self.clean_round_shared(rule);
        self.space.brake.rounds.fetch_sub(1, Ordering::AcqRel);
        let round = round?;
        match round {
            Round::Idle => {
                self.space.brake.ns_per_mib.store(0, Ordering::Relaxed);
                Ok(Paced::Nothing)
            }
            Round::Busy => Ok(Paced::Busy),
            Round::Shunned => Ok(Paced::Worked),
            Round::NeedsCheckpoint => {
                self.checkpoints.take_light()?;
                Ok(Paced::Nothing)
            }
            Round::Cleaned { extents, moved } => {
                let took = self.vitals.env.clock.now_ns().saturating_sub(began);
                let won = (extents * u64::from(self.geometry.extent_bytes)).saturating_sub(moved).max(1);
                let now = u128::from(took) * (1 << 20) / u128::from(won) / u128::from(at_once);
                let before = self.space.brake.ns_per_mib.load(Ordering::Relaxed);
                let now = u64::try_from(now).unwrap_or(u64::MAX).min(BRAKE_NS_MAX * 1000);
                let mean = if before == 0 { now } else { before / 4 * 3 + now / 4 };
                self.space.brake.ns_per_mib.store(mean, Ordering::Relaxed);
                if self.space.is_checkpoint_due() {
                    if self.vitals.is_inline() {
                        self.checkpoints.take_light()?;
                    } else {
                        self.signals.wake_keeper();
                    }
                }
                Ok(Paced::Worked)
            }
        }
    }

    /// Runs a round in the background. A writer that determines how much can be gained at all keeps
    /// it out; otherwise the round's victims would be missing from its result.
    pub(crate) fn clean_round_shared(&self, rule: Rule) -> Result<Round> {
        let _shared = self.rounds.read();
        self.clean_round(rule)
    }

    /// Cleans on demand: see [`Pool::clean`](crate::Pool::clean).
    pub(crate) fn clean_pass(&self, all: bool, rounds: u32, mark: Option<CleanMark>) -> Result<CleanReport> {
        self.checkpoints.take()?;
        let filled_by = mark.unwrap_or_else(|| self.space.extents.lock().mark());
        let (extents, moved) = (self.vitals.counters.cleaned_extents.get(), self.vitals.counters.moved_bytes.get());
        let rule = Rule { recodes: true, filled_by, ..self.rule(PASS_PERMILLE, true) };
        let high = u64::from(self.objects.clean_marks().high_permille);
        let total = u64::from(self.geometry.extents_usable()) - 1;
        let mut report =
            CleanReport { mark: filled_by, extents_free_before: self.space.extents_left(), ..CleanReport::default() };
        let mut stuck = 0;
        for _ in 0..rounds {
            let left = self.space.extents_left() + self.space.evacuated();
            if !all && left * 1000 >= total * high {
                report.is_finished = true;
                break;
            }
            let round = {
                let _alone = self.rounds.write();
                self.clean_round(rule)?
            };
            match round {
                Round::Idle => report.is_finished = true,
                Round::Shunned | Round::Busy => continue,
                Round::NeedsCheckpoint => stuck += 1,
                Round::Cleaned { .. } => stuck = 0,
            }
            report.is_finished |= stuck > STUCK_MAX;
            if report.is_finished {
                break;
            }
            if stuck > 0 || self.space.evacuated() > EVACUATED_MAX {
                self.checkpoints.take_light()?;
            }
        }
        self.checkpoints.take()?;
        let none = |_, _| false;
        let worth = self.space.extents.lock().victims(self.geometry.extent_bytes, rule, usize::MAX, none);
        report.extents_todo = worth.len() as u64;
        report.extents_cleaned = self.vitals.counters.cleaned_extents.get() - extents;
        report.bytes_moved = self.vitals.counters.moved_bytes.get() - moved;
        report.extents_free_after = self.space.extents_left();
        Ok(report)
    }
}
