//! Known damage, until it is repaired or acknowledged: one list, kept in the map store with the
//! state of scrubbing.
//!
//! 1. An extent comes under suspicion (`read::suspects`) when any reader of the data meets bytes in
//!    it that do not match, or do not decode.
//! 2. Scrubbing, every request for a [`DamageReport`], and the end of the pool verify suspected
//!    extents again. Data that no checkpoint has counted yet gets a light one first. The result
//!    replaces the list's entries of the extent. So damage that was overwritten, discarded or
//!    destroyed leaves the list, and a transient read error never gets onto it.
//!    Damage that another copy repairs never gets onto the list, and is counted. The keeper looks
//!    when a reader has met some.
//! 3. A record of the map that cannot be read has no extent: its damage is entered directly, and
//!    leaves the list with the next complete scrub.
//! 4. Damage that the administrator has acknowledged stays on the list, and is counted apart.
//!
//! Suspected extents that could not be verified, because the pool has failed, are reported too.
//!
//! Owns the list. [`scrub`](crate::repair::scrub) owns how an extent is verified.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use env::MapBatch;
use format::{KEY_SCRUB, ScrubDamage, ScrubState};
use store::base::status::{DamageReport, Problem};
use store::base::store_error::store_error;
use store::space::extents::{Extents, Victim};
use surface::{Error, Result};
use units::ExtentIndex;

use crate::pool::Pool;
use crate::read::suspects::SUSPECTS_MAX;
use crate::repair::Repairs;

/// Upper bound of damages that are kept one by one; beyond them only the count matters. As many as
/// there can be suspected extents, each with a damage of its own.
pub(crate) const DAMAGES_MAX: usize = SUSPECTS_MAX;
/// Extents that one damage report verifies again: 16 MiB at the usual size, a fraction of a second.
const LOOKED_AT: usize = 16;
/// A scrub is reported as running for this long after its last slice: longer than it rests under
/// load.
const UNDER_WAY_NS: u64 = 5_000_000_000;

impl Pool {
    /// Returns the known damage. Verifies a few of the damaged places again.
    pub fn damage_report(&self) -> DamageReport {
        self.core.repairs.damage_report()
    }

    /// Returns whether possible damage was found since the last report.
    pub fn suspects_damage(&self) -> bool {
        self.core.reads.suspects.is_waiting()
    }

    /// Acknowledges all known damage: it stays on the list, and is counted apart. Returns how much
    /// there is.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub fn acknowledge_damage(&self) -> Result<u64> {
        self.core.repairs.acknowledge_damage()
    }
}

impl Repairs {
    /// Stores the result of a scrub's slice.
    pub(crate) fn publish_damage(&self, report: DamageReport, slice_ended: bool) {
        let mut reported = self.damage_reported.lock();
        reported.report = report;
        if slice_ended {
            reported.slice_ended_ns = Some(self.vitals.env.clock.now_ns());
        }
    }

    fn damage_report(&self) -> DamageReport {
        // While a slice is running, the list is reported as of the beginning of that slice.
        let (mut is_in_slice, mut cannot_look) = (true, false);
        if let Some(mut known) = self.scrub.try_lock() {
            (is_in_slice, cannot_look) = (false, true);
            // Without the map nothing can be verified; the last report stands.
            if self.vitals.failure().is_none()
                && let Ok(mut state) = known.state(self)
            {
                cannot_look = self.look_again(&mut state, LOOKED_AT).is_err();
                self.publish_damage(known.report(&state), false);
                known.keep(state);
            }
        }
        let (mut report, slice_ended_ns) = {
            let reported = self.damage_reported.lock();
            (reported.report.clone(), reported.slice_ended_ns)
        };
        if cannot_look {
            self.reads.suspects.with(|suspected| {
                report.damages.extend(suspected.extents.iter().map(|extent| problem(&self.not_looked_at(*extent))));
                report.damages.extend(suspected.met.iter().map(problem));
                report.unlisted += u64::from(suspected.has_overflowed);
            });
        }
        let since = |ended: u64| self.vitals.env.clock.now_ns().saturating_sub(ended);
        let is_paced = slice_ended_ns.is_some_and(|ended| since(ended) < UNDER_WAY_NS);
        report.is_scrubbing = is_in_slice || is_paced && report.finished_unix_s == 0;
        report
    }

    fn acknowledge_damage(&self) -> Result<u64> {
        let mut known = self.scrub.lock();
        let mut state = known.state(self)?;
        let count = state.damages.iter().filter(|damage| !damage.is_acknowledged).count() as u64 + state.unlisted;
        state.damages.iter_mut().for_each(|damage| damage.is_acknowledged = true);
        state.unlisted = 0;
        let kept = self.keep_scrub(&state, true);
        self.publish_damage(known.report(&state), false);
        known.keep(state);
        kept.map(|()| count)
    }

    fn not_looked_at(&self, extent: ExtentIndex) -> ScrubDamage {
        let start = self.geometry.start(extent);
        let detail = format!(
            "data in the extent at byte {start} of the data file could not be read or verified, and the pool \
             accepts no writes: shale scrub names the volumes when it accepts them again"
        );
        ScrubDamage { detail, ..ScrubDamage::default() }
    }

    /// Looks at suspected places, if readers have found some that have another copy: for the keeper.
    pub(crate) fn repair_suspects(&self) {
        let reads = self.vitals.counters.reads_of_copies.get();
        if self.copies_seen.load(Ordering::Relaxed) == reads {
            return;
        }
        let mut is_done = !self.reads.suspects.is_waiting();
        if !is_done
            && let Some(mut known) = self.scrub.try_lock()
            && let Ok(mut state) = known.state(self)
        {
            // What could not be looked at stays suspected until a copy is read again.
            let failed = self.look_again(&mut state, LOOKED_AT).is_err();
            self.publish_damage(known.report(&state), false);
            known.keep(state);
            is_done = failed || !self.reads.suspects.is_waiting();
        }
        // If not, the next call goes on: a scrub has the state, or there are more suspects.
        if is_done {
            self.copies_seen.store(reads, Ordering::Relaxed);
        }
    }

    /// Enters all suspects: for a check, which has read everything, and for closing the pool.
    pub(crate) fn enter_suspects(&self) -> Result<()> {
        if !self.reads.suspects.is_waiting() {
            return Ok(());
        }
        let mut known = self.scrub.lock();
        let mut state = known.state(self)?;
        let result = self.look_again(&mut state, SUSPECTS_MAX);
        known.keep(state);
        result
    }

    /// Step 2: verifies suspected extents, and at most so many of those with damages on the list.
    /// Suspects stay suspects if that fails.
    fn look_again(&self, state: &mut ScrubState, max: usize) -> Result<()> {
        let suspected = self.reads.suspects.take(max);
        let suspects: Vec<_> = suspected.extents.iter().copied().collect();
        let extents = {
            let mut reported = self.damage_reported.lock();
            let known: BTreeSet<_> = state.damages.iter().map(|damage| damage.extent).collect();
            let next = reported.next;
            let in_turn = known.range(next..).chain(known.range(..next)).filter(|extent| extent.0 > 0);
            let mut extents = suspects.clone();
            extents.extend(in_turn.take(max - suspects.len()));
            reported.next = extents.last().map_or(next, |last| ExtentIndex(last.0 + 1));
            extents
        };
        let before = (state.damages.clone(), state.unlisted, state.repaired);
        enter_met(state, &suspected.met);
        state.unlisted = state.unlisted.max(suspected.has_overflowed.into());
        let looked = self.look_at(state, &suspects, extents);
        let kept = looked.and_then(|()| {
            if (&state.damages, state.unlisted, state.repaired) == (&before.0, before.1, before.2) {
                Ok(())
            } else {
                self.keep_scrub(state, true)
            }
        });
        if kept.is_err() {
            self.reads.suspects.put_back(suspected);
        }
        kept
    }

    fn look_at(&self, state: &mut ScrubState, suspects: &[ExtentIndex], extents: Vec<ExtentIndex>) -> Result<()> {
        let is_recent = |extents: &Extents| suspects.iter().any(|extent| extents.is_listed(*extent));
        if is_recent(&self.space.extents.lock()) {
            self.checkpoints.take_light()?;
        }
        for extent in extents {
            let number = self.checkpoints.state.lock().number;
            let live = self.space.extents.lock().live_of(extent);
            let mut found = Vec::new();
            if live > 0 {
                let read = self.clean.read_extent(extent).ok();
                let verified = self.scrub_extent(Victim { extent, live }, number, read, true)?;
                state.repaired += verified.repaired;
                found = verified.damages;
                found.retain(|damage| !is_listed_before(state, extent, damage));
            }
            state.unlisted = state.unlisted.max(enter(state, extent, found).min(1));
        }
        Ok(())
    }

    /// Writes the state of scrubbing to the map store, durably if it names new damage.
    pub(crate) fn keep_scrub(&self, state: &ScrubState, is_news: bool) -> Result<()> {
        let mut batch = MapBatch::default();
        batch.put(KEY_SCRUB, state.encode());
        self.vitals.env.store.commit(batch).map_err(store_error)?;
        if is_news { self.vitals.env.store.persist().map_err(store_error) } else { Ok(()) }
    }

    /// Loads it.
    pub(crate) fn load_scrub(&self) -> Result<ScrubState> {
        let Some(value) = self.vitals.env.store.get(KEY_SCRUB).map_err(store_error)? else {
            return Ok(ScrubState::default());
        };
        // A damaged state only means starting over.
        Ok(ScrubState::decode(&value).unwrap_or_default())
    }
}

/// Replaces the list's entries of an extent by the new findings. Returns the number of findings for
/// which the list has no room.
pub(crate) fn enter(state: &mut ScrubState, extent: ExtentIndex, mut found: Vec<ScrubDamage>) -> u64 {
    let is_same =
        |a: &ScrubDamage, b: &ScrubDamage| a.extent == b.extent && a.volume == b.volume && a.offset == b.offset;
    for damage in &mut found {
        damage.extent = extent;
        damage.is_acknowledged = state.damages.iter().any(|old| is_same(old, damage) && old.is_acknowledged);
    }
    state.damages.retain(|damage| damage.extent != extent);
    let room = DAMAGES_MAX - state.damages.len().min(DAMAGES_MAX);
    let unlisted = found.len().saturating_sub(room) as u64;
    state.damages.extend(found.into_iter().take(room));
    unlisted
}

/// Returns whether the list has the same damage for a lower extent: a damaged record of the map
/// affects each extent in which its group has or had data.
pub(crate) fn is_listed_before(state: &ScrubState, extent: ExtentIndex, damage: &ScrubDamage) -> bool {
    let is_same =
        |old: &&ScrubDamage| (&old.volume, old.offset, &old.detail) == (&damage.volume, damage.offset, &damage.detail);
    state.damages.iter().filter(is_same).any(|old| old.extent.0 > 0 && old.extent < extent)
}

/// Step 3: enters damage without an extent, unless the list has it already.
fn enter_met(state: &mut ScrubState, met: &[ScrubDamage]) {
    for damage in met {
        let is_known = state.damages.iter().any(|old| old.volume == damage.volume && old.offset == damage.offset);
        if is_known {
            continue;
        }
        if state.damages.len() < DAMAGES_MAX {
            state.damages.push(damage.clone());
        } else {
            state.unlisted = state.unlisted.max(1);
        }
    }
}

/// Converts a damage to the form in which it is reported.
pub(crate) fn problem(damage: &ScrubDamage) -> Problem {
    let concerned = !damage.volume.is_empty();
    Problem {
        kind: if concerned { "fragment" } else { "header" },
        volume: concerned.then(|| damage.volume.clone()),
        offset: concerned.then_some(damage.offset),
        detail: damage.detail.clone(),
        ..Problem::default()
    }
}

/// Converts an error for a whole extent to a damage.
pub(crate) fn of_extent(error: &Error) -> ScrubDamage {
    ScrubDamage { detail: error.to_string(), ..ScrubDamage::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damage(volume: &str, offset: u64) -> ScrubDamage {
        ScrubDamage { volume: volume.to_owned(), offset, ..ScrubDamage::default() }
    }

    #[test]
    fn an_extent_that_is_looked_at_anew_replaces_what_was_known_of_it() {
        let mut state = ScrubState::default();
        assert_eq!(enter(&mut state, ExtentIndex(3), vec![damage("v", 0), damage("v", 4096)]), 0);
        assert_eq!(enter(&mut state, ExtentIndex(4), vec![damage("w", 0)]), 0);
        state.damages[0].is_acknowledged = true;
        enter(&mut state, ExtentIndex(3), vec![damage("v", 0), damage("v", 8192)]);
        let listed = |state: &ScrubState| {
            state.damages.iter().map(|d| (d.volume.clone(), d.offset, d.is_acknowledged)).collect::<Vec<_>>()
        };
        let (v, w) = ("v".to_owned(), "w".to_owned());
        assert_eq!(listed(&state), [(w.clone(), 0, false), (v.clone(), 0, true), (v, 8192, false)]);
        enter(&mut state, ExtentIndex(3), Vec::new());
        assert_eq!(listed(&state), [(w, 0, false)]);
    }

    #[test]
    fn what_the_list_has_no_room_for_is_counted() {
        let mut state = ScrubState::default();
        let many = (0..DAMAGES_MAX as u64 + 7).map(|n| damage("v", n * 4096)).collect();
        assert_eq!(enter(&mut state, ExtentIndex(1), many), 7);
        assert_eq!(enter(&mut state, ExtentIndex(2), vec![damage("w", 0)]), 1);
        assert_eq!(state.damages.len(), DAMAGES_MAX);
    }
}
