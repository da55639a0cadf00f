//! The means by which room is made for a write: waiting for the cleaner's threads, and for one
//! writer at a time draining, checkpoints, dropping fetched groups of images, and cleaning.

use std::sync::atomic::Ordering;
use std::time::Duration;

use store::base::vitals::Vitals;
use store::space::Space;
use store::space::admission::Admitted;
use surface::Result;

use crate::clean::pacing::STUCK_MAX;
use crate::clean::round::{GAIN_DIVISOR, Round};
use crate::make_room::MakeRoom;

/// Minimum that is dropped of images in one go.
const DROPPED_MIN: u64 = 4 << 20;
/// Number of drops, each twice as large as the last, before everything is dropped.
const DROP_ROUNDS: u32 = 24;
/// The room, as a part of the soft wall, that a writer waits for at the soft wall.
const SOFT_AWAITED_DIVISOR: u64 = 2;
/// How often and how long a writer at the soft wall waits for a signal of the cleaner, before it
/// acts itself.
const WAITS_MAX: u32 = 50;
const WAIT: Duration = Duration::from_millis(20);
/// Successful rounds after which a writer that cleans lets the cleaner's threads have their turn.
const TURN_ROUNDS: u32 = 8;

impl MakeRoom {
    /// Makes room for `bytes` by all available means, for one caller at a time; `None` if there is
    /// none. `kept`: see `Space::extents_kept`.
    pub(crate) fn find_room(&self, bytes: u64, kept: &dyn Fn() -> u64) -> Result<Option<Admitted<'_>>> {
        let try_now = || self.space.try_admit(bytes, kept());
        let _making_room = self.alone.lock();
        if let Some(admitted) = try_now() {
            return Ok(Some(admitted));
        }
        self.writes.drain_all()?;
        if let Some(admitted) = try_now() {
            return Ok(Some(admitted));
        }
        self.space.refresh_host_space();
        self.checkpoints.take_light()?;
        // Deleted volumes free their space over several checkpoints.
        loop {
            if let Some(admitted) = try_now() {
                return Ok(Some(admitted));
            }
            if !self.objects.has_reaping() {
                break;
            }
            self.checkpoints.take()?;
        }
        // Data that can be fetched again is dropped before a write is refused.
        for round in 0..DROP_ROUNDS {
            if !self.fetches.drop_fetched(bytes.max(DROPPED_MIN) << round)? {
                break;
            }
            self.checkpoints.take()?;
            if let Some(admitted) = self.clean_for_room(bytes, kept)? {
                return Ok(Some(admitted));
            }
        }
        if let Some(admitted) = self.clean_for_room(bytes, kept)? {
            return Ok(Some(admitted));
        }
        if self.map.settled().is_empty() {
            return Ok(None);
        }
        // Merging may find more dead data.
        self.checkpoints.take()?;
        self.clean_for_room(bytes, kept)
    }

    /// Waits until the cleaner has made room for `bytes`, and takes it. Returns `None` if it gains
    /// nothing, or there is no cleaner.
    pub(crate) fn wait_for_cleaner(&self, bytes: u64, kept: &dyn Fn() -> u64) -> Option<Admitted<'_>> {
        if self.vitals.is_inline() {
            return None;
        }
        let wanted = kept();
        if wanted > 0 {
            self.space.brake.keep(wanted);
        }
        self.space.brake.waiting.fetch_add(1, Ordering::AcqRel);
        self.signals.wake_cleaner();
        let mut futile = self.space.brake.futile.lock();
        let before = *futile;
        let mut taken = None;
        for _ in 0..WAITS_MAX {
            // With little room, each of a few writes would be admitted and the next one wait again.
            let kept = kept();
            let wall = self.space.soft_wall() + kept;
            let awaited = self.space.brake.soft.load(Ordering::Relaxed) / SOFT_AWAITED_DIVISOR;
            taken = self.space.has_room_before(wall + awaited).then(|| self.space.try_admit(bytes, kept)).flatten();
            if taken.is_some() || *futile != before || self.vitals.check_failed().is_err() {
                break;
            }
            self.space.brake.room.wait_for(&mut futile, WAIT);
        }
        drop(futile);
        self.space.brake.waiting.fetch_sub(1, Ordering::AcqRel);
        taken.or_else(|| self.space.try_admit(bytes, kept()))
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
        let rule = self.clean.rule(0, true);
        // Each round that cleans leaves fewer extents in use; this many cannot be needed.
        let mut rounds = 2 * GAIN_DIVISOR * u64::from(self.geometry.extents());
        let mut progress = Progress::default();
        loop {
            let alone = self.clean.rounds.write();
            let soft = self.space.brake.soft.load(Ordering::Relaxed);
            let enough = || self.space.has_room_for(bytes, self.space.soft_wall() + kept() + soft / 2);
            let mut turn = 0;
            let mut stuck = 0;
            let mut is_exhausted = false;
            while !enough() && !is_exhausted && (turn < TURN_ROUNDS || self.vitals.is_inline()) {
                rounds = rounds.saturating_sub(1);
                is_exhausted = rounds == 0;
                match self.clean.clean_round(rule)? {
                    Round::Idle => {
                        is_exhausted = true;
                        continue;
                    }
                    Round::Shunned | Round::Busy => continue,
                    Round::NeedsCheckpoint => stuck += 1,
                    Round::Cleaned { .. } => {
                        stuck = 0;
                        turn += 1;
                        is_exhausted |= progress.is_none(&self.space, &self.vitals);
                    }
                }
                is_exhausted |= stuck > STUCK_MAX;
                // Gained space can be used only after a checkpoint, and each costs as much as many
                // extents.
                if stuck > 0 || self.space.evacuated() >= soft {
                    self.checkpoints.take_light()?;
                }
            }
            if self.space.evacuated() > 0 {
                self.checkpoints.take_light()?;
            }
            if is_exhausted && !enough() {
                // Waiting before the soft wall gains nothing now. The background cleaner sets it up
                // again.
                self.space.brake.soft.store(0, Ordering::Relaxed);
            }
            // The turn has ended: there may be room soon before the soft wall.
            let wall = if is_exhausted || enough() { self.geometry.reserve_extents() } else { self.space.soft_wall() };
            let wall = wall + kept();
            let admitted = {
                // See `MakeRoom::is_surely_full`.
                let _still = self.checkpoints.state.lock();
                self.space.try_reserve(bytes, wall)
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
    fn is_none(&mut self, space: &Space, vitals: &Vitals) -> bool {
        let left = space.extents_left() + space.evacuated();
        let brought = vitals.counters.fragment_bytes.get();
        self.futile += 1;
        if left > self.best || brought != self.brought {
            *self = Self { best: left, futile: 0, brought };
        }
        self.futile >= 2 * GAIN_DIVISOR
    }
}
