//! Decides when the cleaner runs, and for how long: in the background by the amount of free space,
//! for a writer that finds none, and on demand.
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
//! *Soft wall*: some extents before the wall, in pools that have some to spare. A writer that
//! reaches it waits for the cleaner; only if cleaning gains nothing may it continue, up to the
//! wall. The cleaner needs this room to work in. With the last extents alone it gains one or two at
//! a time, and needs a checkpoint each time before they can be used.
//!
//! **No cliff.** The nearer the wall, the less the cleaner rests between rounds. Once the pool is
//! pressed, writers are slowed down smoothly towards the rate at which cleaning has been winning
//! space, so that they meet that rate instead of the wall. While one round is under way, the
//! maintenance thread takes the light checkpoint that frees the extents of the last one.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use surface::Result;
use units::ExtentIndex;

use crate::base::ranked::{Condvar, Mutex};
use crate::base::ranks;
use crate::base::status::{CleanMark, CleanReport};
use crate::clean::round::{Cleaner, GAIN_DIVISOR, Round};
use crate::pool::Pool;
use crate::pool::core::Core;
use crate::space::admission::Admitted;
use crate::space::rule::Rule;

/// Extents before the wall below which the cleaner is pressed, and up to which it continues, as
/// parts of the extents that could be free at best; and the minimum of each.
const PRESSED_DIVISOR: u64 = 40;
const PRESSED_MIN: u64 = 2;
const RELIEVED_DIVISOR: u64 = 20;
const RELIEVED_MIN: u64 = 4;
/// The soft wall, as a part of the extents that could be free at best. Space that lies idle there
/// makes the log write more.
const SOFT_DIVISOR: u64 = 64;
const SOFT_MAX: u64 = 256;
/// The room, as a part of the soft wall, that a writer waits for at the soft wall.
const SOFT_AWAITED_DIVISOR: u64 = 2;
/// Upper bound of cleaned extents before a checkpoint is taken, and the lower one when space is
/// needed.
const EVACUATED_MAX: u64 = 64;
const EVACUATED_PRESSED: u64 = 8;
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
/// Longest wait of a writer for its turn: a bound on latency; the wall itself still holds.
const BRAKE_NS_MAX: u64 = 50_000_000;
/// Shorter waits than this cost more than they regulate; they add up in `next_ns`.
const BRAKE_LEAST: Duration = Duration::from_millis(10);
/// How often and how long a writer at the soft wall waits for a signal of the cleaner, before it
/// acts itself.
const WAITS_MAX: u32 = 50;
const WAIT: Duration = Duration::from_millis(20);
/// Rounds for which extents kept back from new data stay kept.
const KEPT_ROUNDS: u64 = 16;
/// Successful rounds after which a writer that cleans lets the cleaner's threads have their turn.
const TURN_ROUNDS: u32 = 8;
/// Consecutive rounds that ask for a checkpoint, after which another one is not expected to help.
const STUCK_MAX: u32 = 2;

impl Pool {
    /// Cleans the extents of which more than a twentieth is dead, in at most `rounds` rounds: until
    /// the pool is as free as the background cleaner would make it, or with `all` until none is
    /// left; extents that writers fill in the meantime are left out. The gained space is free on
    /// return.
    ///
    /// # Errors
    /// When the storage fails. Damage does not stop it: see
    /// [`PoolStatus::damages`](crate::PoolStatus::damages).
    pub fn clean(&self, all: bool, rounds: u32) -> Result<CleanReport> {
        self.core.clean_pass(all, rounds, None)
    }

    /// Continues a pass for which [`clean`](Self::clean) has reported the mark: only extents of
    /// that time are cleaned, so that the pass ends however much is written in the meantime.
    ///
    /// # Errors
    /// Those of [`clean`](Self::clean).
    pub fn clean_on(&self, all: bool, rounds: u32, mark: CleanMark) -> Result<CleanReport> {
        self.core.clean_pass(all, rounds, Some(mark))
    }
}

/// The cleaner's thread.
pub(crate) fn run(core: &Weak<Core>) {
    let mut pause = REST;
    let mut written = 0;
    while let Some(core) = core.upgrade() {
        if core.workers.rest(pause) {
            return;
        }
        let now = core.counters.written_bytes.get();
        let idle = now == written;
        written = now;
        let began = core.env.clock.now_ns();
        // Errors show up in the next flush or write, which meet them too.
        let paced =
            if core.check_failed().is_ok() { core.clean_some(idle && pause >= REST) } else { Ok(Paced::Nothing) };
        let paced = paced.unwrap_or(Paced::Nothing);
        let has_braked = core.brake.has_braked.swap(false, Ordering::Relaxed);
        let is_awaited = core.brake.waiting.load(Ordering::Acquire) > 0;
        if paced == Paced::Nothing && is_awaited {
            // Space gained before may be all that is left.
            let _ = core.take_light_checkpoint();
            *core.brake.futile.lock() += 1;
            core.brake.room.notify_all();
        }
        let took = Duration::from_nanos(core.env.clock.now_ns().saturating_sub(began));
        let urgency = core.urgency();
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
pub(crate) fn help(core: &Weak<Core>) {
    let mut pause = REST;
    while let Some(core) = core.upgrade() {
        if core.workers.rest(pause) {
            return;
        }
        let is_needed = core.needs_space_soon();
        let may_work = is_needed && core.check_failed().is_ok();
        let paced = if may_work { core.clean_some(false).unwrap_or(Paced::Nothing) } else { Paced::Nothing };
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

/// Slows writers down when the cleaner is pressed.
#[derive(Debug, Default)]
pub(crate) struct Brake {
    /// Extents left below which it brakes, and below which it does so fully.
    from: AtomicU64,
    /// Distance of the soft wall from the wall, in extents.
    soft: AtomicU64,
    /// Nanoseconds that cleaning takes for a MiB that it gains; 0 if it gains none.
    ns_per_mib: AtomicU64,
    /// When the next write may proceed. Changed by every write, so without a lock: the holder of a
    /// lock may lose its core.
    next_ns: AtomicU64,
    /// Writers that wait for their turn.
    easing: Mutex<(), ranks::Easing>,
    eased: Condvar,
    /// Writers that wait at the soft wall.
    waiting: AtomicU64,
    /// Writers have been slowed down or stopped since the last round.
    has_braked: AtomicBool,
    /// Rounds of the cleaners' threads that are under way.
    cleaning: AtomicU64,
    /// Number of cleanings without gain.
    futile: Mutex<u64, ranks::Futile>,
    room: Condvar,
    /// Extents before the soft wall that new data at that wall must not use, and the remaining
    /// rounds for which this applies.
    kept: AtomicU64,
    kept_rounds: AtomicU64,
}

impl Core {
    /// Extents left at which writers wait for the cleaner.
    pub(crate) fn soft_wall(&self) -> u64 {
        self.geometry.reserve_extents() + self.brake.soft.load(Ordering::Relaxed)
    }

    /// The wall used for pacing.
    fn paced_wall(&self) -> u64 {
        self.soft_wall() + self.brake.kept.load(Ordering::Relaxed)
    }

    /// Waits until the cleaner has made room for `bytes`, and takes it. Returns `None` if it gains
    /// nothing, or there is no cleaner.
    pub(crate) fn wait_for_cleaner(&self, bytes: u64, kept: &dyn Fn() -> u64) -> Option<Admitted<'_>> {
        if self.is_inline() {
            return None;
        }
        let wanted = kept();
        if wanted > 0 {
            self.brake.kept.store(wanted, Ordering::Relaxed);
            self.brake.kept_rounds.store(KEPT_ROUNDS, Ordering::Relaxed);
        }
        self.brake.waiting.fetch_add(1, Ordering::AcqRel);
        self.workers.wake_cleaner();
        let mut futile = self.brake.futile.lock();
        let before = *futile;
        let mut taken = None;
        for _ in 0..WAITS_MAX {
            // With little room, each of a few writes would be admitted and the next one wait again.
            let kept = kept();
            let wall = self.soft_wall() + kept;
            let awaited = self.brake.soft.load(Ordering::Relaxed) / SOFT_AWAITED_DIVISOR;
            taken = self.has_room_before(wall + awaited).then(|| self.try_admit(bytes, kept)).flatten();
            if taken.is_some() || *futile != before || self.check_failed().is_err() {
                break;
            }
            self.brake.room.wait_for(&mut futile, WAIT);
        }
        drop(futile);
        self.brake.waiting.fetch_sub(1, Ordering::AcqRel);
        taken.or_else(|| self.try_admit(bytes, kept()))
    }

    /// Returns whether the cleaner has to work for this pool, or soon will: then it pays to
    /// separate hot and cold data.
    pub(crate) fn is_short_of_space(&self) -> bool {
        let total = u64::from(self.geometry.extents()) - 1;
        self.extents_left() * 1000 < total * u64::from(self.objects.clean_marks().high_permille)
    }

    /// Returns whether a writer waits for space from the cleaner, or soon will.
    pub(crate) fn needs_space_soon(&self) -> bool {
        self.brake.waiting.load(Ordering::Acquire) > 0 || self.urgency() > 0.0
    }

    /// Returns how near the wall is: 0 where the brake begins, 1 at the wall.
    fn urgency(&self) -> f64 {
        let (from, wall) = (self.brake.from.load(Ordering::Relaxed), self.paced_wall());
        let left = self.extents_left();
        if left >= from || from <= wall {
            return 0.0;
        }
        // Past the soft wall the urgency cannot grow further.
        ((from - left) as f64 / (from - wall) as f64).min(1.0)
    }

    /// Delays a write of so many bytes until its turn, if space is gained more slowly than it is
    /// used. Bounded.
    pub(crate) fn brake(&self, bytes: u64) {
        let ns_per_mib = self.brake.ns_per_mib.load(Ordering::Relaxed);
        if ns_per_mib == 0 || self.extents_left() >= self.brake.from.load(Ordering::Relaxed) {
            return;
        }
        let cost = (bytes as f64 / f64::from(1 << 20) * ns_per_mib as f64 * self.urgency().min(1.0)) as u64;
        if cost == 0 {
            return;
        }
        let now = self.env.clock.now_ns();
        let after = |next: u64| Some((next.max(now) + cost).min(now + BRAKE_NS_MAX));
        let turn = self.brake.next_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).unwrap_or(0).max(now);
        let wait = Duration::from_nanos((turn - now).min(BRAKE_NS_MAX));
        self.brake.has_braked.store(true, Ordering::Relaxed);
        if wait >= BRAKE_LEAST {
            let mut easing = self.brake.easing.lock();
            // It may have been eased by now.
            if self.brake.next_ns.load(Ordering::Relaxed) > 0 {
                self.brake.eased.wait_for(&mut easing, wait);
            }
        }
    }

    /// Whether the next write will be slowed down.
    pub(crate) fn is_braking(&self) -> bool {
        self.brake.ns_per_mib.load(Ordering::Relaxed) > 0 && self.urgency() > 0.0
    }

    /// Lets waiting writers check again: a checkpoint may have freed the space that they wait for.
    pub(crate) fn ease_brake(&self) {
        self.brake.room.notify_all();
        if self.urgency() == 0.0 {
            self.brake.next_ns.store(0, Ordering::Relaxed);
            // A writer that saw the urgency before is waiting by now, and gets the wake-up below.
            drop(self.brake.easing.lock());
            self.brake.eased.notify_all();
        }
    }

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
        let left = self.extents_left() + self.evacuated.load(Ordering::Relaxed);
        let live = self.live_bytes.load(Ordering::Relaxed).div_ceil(extent_bytes);
        let spare = total.saturating_sub(wall + live);
        let soft = (spare / SOFT_DIVISOR).min(SOFT_MAX);
        self.brake.soft.store(soft, Ordering::Relaxed);
        let counts = self.brake.kept_rounds.load(Ordering::Relaxed);
        self.brake.kept_rounds.store(counts.saturating_sub(1), Ordering::Relaxed);
        if counts == 0 {
            self.brake.kept.store(0, Ordering::Relaxed);
        }
        let wall = self.paced_wall();
        let pressed = wall + (spare / PRESSED_DIVISOR).max(PRESSED_MIN);
        let relieved = wall + (spare / RELIEVED_DIVISOR).max(RELIEVED_MIN);
        self.brake.from.store(pressed, Ordering::Relaxed);
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
        let began = self.env.clock.now_ns();
        let at_once = self.brake.cleaning.fetch_add(1, Ordering::AcqRel) + 1;
        let round = self.clean_round_shared(rule);
        self.brake.cleaning.fetch_sub(1, Ordering::AcqRel);
        let round = round?;
        match round {
            Round::Idle => {
                self.brake.ns_per_mib.store(0, Ordering::Relaxed);
                Ok(Paced::Nothing)
            }
            Round::Busy => Ok(Paced::Busy),
            Round::Shunned => Ok(Paced::Worked),
            Round::NeedsCheckpoint => {
                self.take_light_checkpoint()?;
                Ok(Paced::Nothing)
            }
            Round::Cleaned { extents, moved } => {
                let took = self.env.clock.now_ns().saturating_sub(began);
                let won = (extents * u64::from(self.geometry.extent_bytes)).saturating_sub(moved).max(1);
                let now = u128::from(took) * (1 << 20) / u128::from(won) / u128::from(at_once);
                let before = self.brake.ns_per_mib.load(Ordering::Relaxed);
                let now = u64::try_from(now).unwrap_or(u64::MAX).min(BRAKE_NS_MAX * 1000);
                let mean = if before == 0 { now } else { before / 4 * 3 + now / 4 };
                self.brake.ns_per_mib.store(mean, Ordering::Relaxed);
                if self.is_space_due() {
                    if self.is_inline() {
                        self.take_light_checkpoint()?;
                    } else {
                        self.workers.wake_keeper();
                    }
                }
                Ok(Paced::Worked)
            }
        }
    }

    /// Runs a round in the background. A writer that determines how much can be gained at all keeps
    /// it out; otherwise the round's victims would be missing from its result.
    pub(crate) fn clean_round_shared(&self, rule: Rule) -> Result<Round> {
        let _shared = self.cleaning.read();
        self.clean_round(rule)
    }

    /// Whether the cleaner is at work because little space is left.
    pub(crate) fn is_pressed(&self) -> bool {
        self.extents_left() < self.brake.from.load(Ordering::Relaxed)
    }

    /// Returns whether the gained space should become free now: it cannot be used before a
    /// checkpoint.
    pub(crate) fn is_space_due(&self) -> bool {
        let left = self.extents_left().saturating_sub(self.geometry.reserve_extents());
        let patience = if self.is_pressed() { EVACUATED_PRESSED } else { EVACUATED_MAX };
        self.evacuated.load(Ordering::Relaxed) > patience.min(left)
    }

    fn clean_pass(&self, all: bool, rounds: u32, mark: Option<CleanMark>) -> Result<CleanReport> {
        self.take_checkpoint()?;
        let filled_by = mark.unwrap_or_else(|| self.extents.lock().mark());
        let (extents, moved) = (self.counters.cleaned_extents.get(), self.counters.moved_bytes.get());
        let rule = Rule { recodes: true, filled_by, ..self.rule(PASS_PERMILLE, true) };
        let high = u64::from(self.objects.clean_marks().high_permille);
        let total = u64::from(self.geometry.extents_usable()) - 1;
        let mut report =
            CleanReport { mark: filled_by, extents_free_before: self.extents_left(), ..CleanReport::default() };
        let mut stuck = 0;
        for _ in 0..rounds {
            let left = self.extents_left() + self.evacuated.load(Ordering::Relaxed);
            if !all && left * 1000 >= total * high {
                report.is_finished = true;
                break;
            }
            let round = {
                let _alone = self.cleaning.write();
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
            if stuck > 0 || self.evacuated.load(Ordering::Relaxed) > EVACUATED_MAX {
                self.take_light_checkpoint()?;
            }
        }
        self.take_checkpoint()?;
        let none = |_, _| false;
        let worth = self.extents.lock().victims(self.geometry.extent_bytes, rule, usize::MAX, none);
        report.extents_todo = worth.len() as u64;
        report.extents_cleaned = self.counters.cleaned_extents.get() - extents;
        report.bytes_moved = self.counters.moved_bytes.get() - moved;
        report.extents_free_after = self.extents_left();
        Ok(report)
    }

    /// Cleans until a writer of `bytes`, from whom `kept` extents are withheld in addition to the
    /// reserve, has room before the soft wall and some more is left before it, or until cleaning
    /// gains nothing. Returns the writer's room; `None` if there is none even up to the wall: the
    /// pool is full.
    ///
    /// Other writers are admitted as soon as there is room for them. Where they take the gained
    /// space, this loop would keep the cleaner's threads out indefinitely, which gain more
    /// together: after a few rounds they have their turn.
    ///
    /// # Errors
    /// Those of the storage and the map.
    pub(crate) fn clean_for_room(&self, bytes: u64, kept: &dyn Fn() -> u64) -> Result<Option<Admitted<'_>>> {
        let rule = self.rule(0, true);
        // Each round that cleans leaves fewer extents in use; this many cannot be needed.
        let mut rounds = 2 * GAIN_DIVISOR * u64::from(self.geometry.extents());
        let mut progress = Progress::default();
        loop {
            let alone = self.cleaning.write();
            let soft = self.brake.soft.load(Ordering::Relaxed);
            let enough = |core: &Self| core.has_room_for(bytes, core.soft_wall() + kept() + soft / 2);
            let mut turn = 0;
            let mut stuck = 0;
            let mut is_exhausted = false;
            while !enough(self) && !is_exhausted && (turn < TURN_ROUNDS || self.is_inline()) {
                rounds = rounds.saturating_sub(1);
                is_exhausted = rounds == 0;
                match self.clean_round(rule)? {
                    Round::Idle => {
                        is_exhausted = true;
                        continue;
                    }
                    Round::Shunned | Round::Busy => continue,
                    Round::NeedsCheckpoint => stuck += 1,
                    Round::Cleaned { .. } => {
                        stuck = 0;
                        turn += 1;
                        is_exhausted |= progress.is_none(self);
                    }
                }
                is_exhausted |= stuck > STUCK_MAX;
                // Gained space can be used only after a checkpoint, and each costs as much as many
                // extents.
                if stuck > 0 || self.evacuated.load(Ordering::Relaxed) >= soft {
                    self.take_light_checkpoint()?;
                }
            }
            if self.evacuated.load(Ordering::Relaxed) > 0 {
                self.take_light_checkpoint()?;
            }
            if is_exhausted && !enough(self) {
                // Waiting before the soft wall gains nothing now. The background cleaner sets it up
                // again.
                self.brake.soft.store(0, Ordering::Relaxed);
            }
            // The turn has ended: there may be room soon before the soft wall.
            let wall = if is_exhausted || enough(self) { self.geometry.reserve_extents() } else { self.soft_wall() };
            let wall = wall + kept();
            let admitted = {
                // See `is_surely_full`.
                let _still = self.checkpoint.lock();
                self.try_reserve(bytes, wall)
            };
            // Other writers may have been quicker to take the gained space: that does not make the
            // pool full.
            if admitted.is_some() || is_exhausted {
                return Ok(admitted);
            }
            drop(alone);
            if let Some(admitted) = self.wait_for_cleaner(bytes, kept) {
                return Ok(Some(admitted));
            }
        }
    }
}

/// Detects rounds without progress. Where extents are small, the ends of batches may use up the
/// gain that a round reports, and the next round would report it again, and so on.
#[derive(Debug, Default)]
struct Progress {
    /// Most extents that were left, or will be after a checkpoint.
    best: u64,
    /// Rounds since then.
    futile: u64,
    /// Data that others have written in the meantime, which takes the gained space.
    brought: u64,
}

impl Progress {
    /// Called after each round that cleaned. Each gains at least a [`GAIN_DIVISOR`]th of an extent:
    /// if twice as many have not gained one, there is none to gain.
    fn is_none(&mut self, core: &Core) -> bool {
        let left = core.extents_left() + core.evacuated.load(Ordering::Relaxed);
        let brought = core.counters.fragment_bytes.get();
        self.futile += 1;
        if left > self.best || brought != self.brought {
            *self = Self { best: left, futile: 0, brought };
        }
        self.futile >= 2 * GAIN_DIVISOR
    }
}

#[cfg(test)]
mod tests {
    use sim::Machine;

    use super::*;
    use crate::base::testing::pool_on;

    /// Writers stood still while rounds read their victims: the space before the soft wall was kept
    /// for the rounds, and so was the space that they had reserved.
    #[test]
    fn what_a_round_sets_aside_before_the_soft_wall_stands_in_nobodys_way() {
        let machine = Machine::new(8 << 20, 1);
        let core = pool_on(&machine, machine.disk.handle(), 8 << 20, 0).core;
        core.brake.soft.store(4, Ordering::Relaxed);
        let (extent, reserve) = (core.geometry.usable_bytes_min(), core.geometry.reserve_extents());
        let left = |wall: u64| core.room_before(wall) - core.committed_bytes();
        let (data, all) = (left(core.soft_wall()), left(reserve));
        assert_eq!(all - data, 4 * extent);
        let aside = core.reserve_for_cleaning(3 * extent);
        assert_eq!((left(core.soft_wall()), left(reserve)), (data, all - 3 * extent));
        let more = core.reserve_for_cleaning(3 * extent);
        assert_eq!((left(core.soft_wall()), left(reserve)), (data - 2 * extent, all - 6 * extent), "4 are kept");
        drop(aside);
        let others = core.reserve(extent);
        assert_eq!(
            (left(core.soft_wall()), left(reserve)),
            (data - extent, all - 4 * extent),
            "they keep nothing free"
        );
        drop((more, others));
        assert_eq!((left(core.soft_wall()), left(reserve)), (data, all));
    }
}
