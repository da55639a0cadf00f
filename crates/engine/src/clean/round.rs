//! The cleaner: moves live data out of extents that are mostly dead, so that a checkpoint can free
//! them.
//!
//! A round goes through these steps; only the last one excludes others:
//! 1. *Choose* victims: `Extents::victims`, as of a checkpoint whose number is noted.
//! 2. *Collect* their live data, until the round's budget is full: `collect`. If it takes as much
//!    space elsewhere as in the victims, these are shunned until something in them dies.
//! 3. *Append* the moves, and wait until they are applied. If a checkpoint captured or was
//!    published since step 1, the collected data is looked up again first. From the last look at
//!    the map on, no checkpoint captures before the moves are applied: that makes them exact (see
//!    `apply`). The rest of a checkpoint runs in parallel. If the log has no room left, the round
//!    ends there: appended moves stay valid, and other data stays in its place.
//!
//! The victims hold only dead data afterwards, and the next checkpoint frees them. So a crash at
//! any moment leaves each block in one valid place. It is the old place until the moves are in the
//! log after a checkpoint, and the new one from then on.
//!
//! **Room.** Data is admitted only if it leaves two extents for moves. Of the other extents, a
//! round reserves those that neither dirty nor admitted data needs. First come those before the
//! soft wall (`space::brake`), which are left for rounds anyway. The live data of one extent fits
//! in two. So a pool in which anything is dead can be cleaned, however full it is. A crash in the
//! middle of a round may leave those two used and nothing freed. Then one extent at a time is moved
//! into those that are kept for metadata (`Purpose::Rescue`).
//!
//! Costs: an extent is read whole, once; live data is written once; where the dead fragments are
//! not known (`space::dead_map`), each fragment costs a look-up in the map.

use std::sync::atomic::Ordering;

use store::log::geometry::CLEAN_EXTENTS;
use store::log::{Purpose, Refusal};
use store::space::admission::Admitted;
use store::space::extents::Victim;
use store::space::rule::Rule;
use surface::Result;
use units::ExtentIndex;

use crate::clean::Cleaning;
use crate::clean::cleaner::Cleaner;
use crate::clean::cold::ColdRecoder;
use crate::clean::collect::Collected;
use crate::clean::survivors::Survivors;
use crate::clean::victim_reads::VictimReads;

/// Victims examined in one round: bounds the bytes read.
const VICTIMS_MAX: usize = 64;
/// Upper bound of bytes that one round moves: bounds its memory, and how long a checkpoint may have
/// to wait for it.
const ROUND_BYTES_MAX: u64 = 8 << 20;
/// A round's buffers are reused if they have grown no larger than this. Only large extents need
/// more.
const SPARE_BYTES_MAX: usize = 2 * ROUND_BYTES_MAX as usize;
/// Headers and padding of moved fragments take this part of their payload, for fragments of half a
/// block.
const HEADERS_DIVISOR: u64 = 32;
/// Extents available to a round from which on hot survivors and others go to different ones.
const APART_EXTENTS_MIN: u64 = CLEAN_EXTENTS + 2;
/// A round must gain at least this share of the extents that it cleans: below that, it costs more
/// than 32 times its gain.
pub(crate) const GAIN_DIVISOR: u64 = 32;
/// Upper bound of damages that are remembered one by one.
const DAMAGES_MAX: usize = 100;
/// How a round ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// There is nothing to clean by the rule.
    Idle,
    /// So many extents will be free after the next checkpoint, for so many bytes moved.
    Cleaned { extents: u64, moved: u64 },
    /// The examined victims are not worth it; there may be more.
    Shunned,
    /// All candidates are being cleaned by another round.
    Busy,
    /// A checkpoint must be taken before anything can be moved.
    NeedsCheckpoint,
}

/// Limits of a round.
struct Allowance<'a> {
    /// Of the log.
    bytes: u64,
    victims: usize,
    purpose: Purpose,
    /// Room reserved for the round, for the lifetime of this value.
    _aside: Option<Admitted<'a>>,
}

/// The victims of a round, which no other one may choose during its lifetime.
struct Claim<'a> {
    cleaning: &'a Cleaning,
    /// The checkpoint as of which they were chosen.
    number: u64,
    victims: Vec<Victim>,
    survivors: Survivors,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut cleaner = self.cleaning.cleaner.lock();
        for victim in &self.victims {
            cleaner.busy.remove(&victim.extent);
        }
        self.survivors.cut_back((0, 0));
        if self.survivors.held_bytes() <= SPARE_BYTES_MAX {
            cleaner.spare.push(std::mem::take(&mut self.survivors));
        }
    }
}

/// Keeps as many of the first victims as have `bytes` of live data, headers and padding included,
/// and at least one. Reading one more would be wasted.
fn keep_within(victims: &mut Vec<Victim>, bytes: u64) {
    let mut live = 0;
    let fit = victims.iter().take_while(|victim| {
        live += u64::from(victim.live) * (HEADERS_DIVISOR + 1) / HEADERS_DIVISOR;
        live <= bytes
    });
    let count = fit.count().max(1);
    victims.truncate(count);
}

impl Cleaning {
    /// Step 1: returns the victims, and the number of the checkpoint as of which they were chosen.
    fn choose(&self, cleaner: &Cleaner, rule: Rule) -> (u64, Vec<Victim>) {
        let extents = self.space.extents.lock();
        // Extents evacuated after the last checkpoint's capture still appear to be live.
        let is_taken =
            |e: ExtentIndex| cleaner.busy.contains(&e) || cleaner.evacuated.iter().any(|(_, set)| set.contains(&e));
        let skip = |e: ExtentIndex, live: u32| is_taken(e) || cleaner.shuns(e, live, rule);
        let victims = extents.victims(self.geometry.extent_bytes, rule, VICTIMS_MAX, skip);
        (extents.checkpoint(), victims)
    }

    /// Extents that a round may fill now; with `may_dip`, including those kept for moves. `None` if
    /// a checkpoint has to be taken first.
    fn allowance(&self, rule: Rule, may_dip: bool) -> Option<Allowance<'_>> {
        let extent_bytes = u64::from(self.geometry.extent_bytes);
        let memory =
            (self.vitals.options.memory_bytes / 32 / extent_bytes).clamp(2, (ROUND_BYTES_MAX / extent_bytes).max(2));
        let ahead = self.log.ahead();
        let reachable = ahead.saturating_sub(self.geometry.kept_back(Purpose::Clean)) as u64;
        if rule.away {
            // It gains nothing that could be used: so it takes nothing that others may need.
            let wanted = self.space.extents_spare().min(memory).min(reachable.saturating_sub(CLEAN_EXTENTS));
            let aside = self.space.reserve(wanted * self.geometry.usable_bytes_min());
            let (bytes, victims, purpose) = (wanted * extent_bytes, VICTIMS_MAX, Purpose::Clean);
            let has_room = wanted > 0 && self.space.has_room();
            return has_room.then_some(Allowance { bytes, victims, purpose, _aside: Some(aside) });
        }
        if reachable == 0 {
            // Only when a writer waits for space: in the background a checkpoint may still bring
            // some.
            let extents = ahead.saturating_sub(self.geometry.kept_back(Purpose::Rescue)) as u64;
            let (bytes, victims) = (extents.min(CLEAN_EXTENTS) * extent_bytes, 1);
            return (rule.greedy && may_dip && extents > 0).then_some(Allowance {
                bytes,
                victims,
                purpose: Purpose::Rescue,
                _aside: None,
            });
        }
        // Room that others could take is reserved first, and released if another thread was
        // quicker.
        let wanted = self.space.extents_spare().min(memory).min(reachable.saturating_sub(CLEAN_EXTENTS));
        let aside = self.space.reserve_for_cleaning(wanted * self.geometry.usable_bytes_min());
        let (spare, aside) = if self.space.has_room() { (wanted, Some(aside)) } else { (0, None) };
        let kept = if may_dip { CLEAN_EXTENTS } else { 0 };
        let bytes = (kept + spare).min(reachable).min(memory) * extent_bytes;
        (bytes > 0).then_some(Allowance { bytes, victims: VICTIMS_MAX, purpose: Purpose::Clean, _aside: aside })
    }

    /// Runs one round. Two may run at the same time: they have different victims, and only one of
    /// them takes the extents kept for moves.
    ///
    /// # Errors
    /// When storage or map fail. Damage in the extents is remembered, not returned.
    pub(crate) fn clean_round(&self, rule: Rule) -> Result<Round> {
        self.vitals.check_failed()?;
        self.checkpoints.heal()?;
        let began = self.vitals.env.clock.now_ns();
        let dipping = self.dipping.try_lock();
        let Some(allowance) = self.allowance(rule, dipping.is_some()) else { return Ok(Round::NeedsCheckpoint) };
        let seen = self.checkpoints.map_version.load(Ordering::Acquire);
        let mut claim = {
            let mut cleaner = self.cleaner.lock();
            cleaner.forget_before(self.space.extents.lock().checkpoint());
            let (number, mut victims) = self.choose(&cleaner, rule);
            if victims.is_empty() {
                return Ok(if cleaner.busy.is_empty() { Round::Idle } else { Round::Busy });
            }
            victims.truncate(allowance.victims);
            keep_within(&mut victims, allowance.bytes);
            cleaner.busy.extend(victims.iter().map(|victim| victim.extent));
            let survivors = cleaner.spare.pop().unwrap_or_default();
            Claim { cleaning: self, number, victims, survivors }
        };
        let mut cold = (rule.recodes && allowance.purpose == Purpose::Clean).then(|| ColdRecoder::new(self));
        let round = self.clean_claim(&mut claim, &mut cold, rule, seen, &allowance);
        if let Some(cold) = cold {
            cold.finish(matches!(round, Ok(Round::Cleaned { .. })));
        }
        let took = self.vitals.env.clock.now_ns().saturating_sub(began);
        self.cold_pace.earn(took);
        self.vitals.counters.cleaning_ns.add(took);
        round
    }

    /// Steps 2 and 3 for the victims claimed by a round.
    fn clean_claim(
        &self,
        claim: &mut Claim<'_>,
        cold: &mut Option<ColdRecoder<'_>>,
        rule: Rule,
        seen: u64,
        allowance: &Allowance<'_>,
    ) -> Result<Round> {
        let _in_use = self.dictionaries.in_use.read();
        let extent_bytes = u64::from(self.geometry.extent_bytes);
        // Two streams may open an extent each: that must not take the extents kept for the
        // survivors of one.
        let is_apart_worth = allowance.purpose == Purpose::Clean && !rule.away;
        let apart = is_apart_worth && allowance.bytes >= APART_EXTENTS_MIN * extent_bytes;
        // So may those of copies. With little room, all extents of a round hold the same copies.
        let copies = self.geometry.copies();
        let mixes = copies > 0
            && allowance.purpose == Purpose::Clean
            && allowance.bytes >= (APART_EXTENTS_MIN + copies) * extent_bytes;
        let streams = u64::from(apart) + if mixes { copies } else { 0 };
        let budget = allowance.bytes - streams * extent_bytes;
        let mut only = None;
        let Claim { number, ref victims, ref mut survivors, .. } = *claim;
        // A running checkpoint holds the lock.
        let is_current = || self.checkpoints.state.try_lock().is_some_and(|checkpoint| checkpoint.number == number);
        let (mut taken, mut overflowed) = (Vec::new(), false);
        let mut reads = VictimReads::new(self, victims.clone());
        while let Some((victim, read)) = reads.next() {
            let mark = survivors.mark();
            let collected = match read {
                Ok(buf) => {
                    let extent = &buf[..extent_bytes as usize];
                    let collected =
                        self.collect(victim, extent, survivors, cold.as_mut(), (is_current, rule.despite_damage))?;
                    self.buffers.put(buf);
                    collected
                }
                Err(error) => {
                    let start = self.geometry.start(victim.extent);
                    Collected::Left(Some(format!("{extent_bytes} bytes at byte {start} cannot be read: {error}")))
                }
            };
            let copy = survivors.copy_since(mark);
            only = only.or(copy);
            // They may be older than this opening.
            self.geometry.note_copies(copy.unwrap_or(0));
            if !mixes && copy != only && copy.is_some() {
                // Its turn comes in another round.
                cold.iter_mut().for_each(|cold| cold.end_extent(false));
                survivors.cut_back(mark);
                continue;
            }
            match collected {
                Collected::All if apart => {
                    survivors
                        .mark_hot(mark, |object, group, blocks| self.writes.rewrites.are_hot(object, group, blocks));
                }
                Collected::All => {}
                Collected::Left(why) => {
                    cold.iter_mut().for_each(|cold| cold.end_extent(false));
                    if why.is_some() {
                        self.reads.suspects.note_extent(victim.extent);
                    }
                    self.remember_damage(why);
                    if !rule.despite_damage || survivors.mark() == mark {
                        survivors.cut_back(mark);
                        self.cleaner.lock().shun(victim, true);
                        continue;
                    }
                }
            }
            // Sorting all of them for each would be wasted while they obviously fit.
            if (survivors.payload_bytes() as u64) > budget / HEADERS_DIVISOR * (HEADERS_DIVISOR - 1) {
                let bytes = survivors.measure(self.geometry.extent_bytes).bytes;
                if bytes > budget {
                    survivors.cut_back(mark);
                    overflowed = true;
                    break;
                }
            }
            cold.iter_mut().for_each(|cold| cold.end_extent(true));
            taken.push(victim);
        }
        if taken.is_empty() {
            return Ok(if overflowed { Round::NeedsCheckpoint } else { Round::Shunned });
        }
        let cleaned_bytes = taken.len() as u64 * extent_bytes;
        let wins = |packed: u64| packed + cleaned_bytes / GAIN_DIVISOR <= cleaned_bytes;
        let mut packed = survivors.measure(self.geometry.extent_bytes).bytes;
        if apart && !wins(packed) {
            // The ends of the two parts may waste an extent's worth of space.
            survivors.forget_hot();
            packed = survivors.measure(self.geometry.extent_bytes).bytes;
        }
        if !wins(packed) && !rule.away {
            let mut cleaner = self.cleaner.lock();
            taken.into_iter().for_each(|victim| cleaner.shun(victim, false));
            return Ok(Round::Shunned);
        }
        let cleaned = Some((number, taken.len() as u64));
        let moved_at = self.move_survivors(survivors, seen, cleaned, allowance.purpose)?;
        let Some(moved_at) = moved_at else { return Ok(Round::NeedsCheckpoint) };
        let evacuated = taken.iter().map(|victim| victim.extent).collect();
        self.cleaner.lock().evacuated.push((moved_at, evacuated));
        Ok(Round::Cleaned { extents: taken.len() as u64, moved: packed })
    }

    fn remember_damage(&self, what: Option<String>) {
        let mut damages = self.damages.lock();
        if damages.len() < DAMAGES_MAX {
            let new = what.filter(|what| !damages.contains(what));
            damages.extend(new);
        }
    }

    /// Step 3: appends the survivors and waits until the moves are applied.
    ///
    /// `seen`: version of the map at the collection; if the map has changed since, the survivors
    /// are looked up again first. `cleaned`: number of the checkpoint and count of the emptied
    /// extents, if whole extents were cleaned.
    ///
    /// Returns the number of the last checkpoint that had captured before the moves. `None` if a
    /// checkpoint has to be taken before the rest can be moved.
    pub(crate) fn move_survivors(
        &self,
        survivors: &mut Survivors,
        seen: u64,
        cleaned: Option<(u64, u64)>,
        purpose: Purpose,
    ) -> Result<Option<u64>> {
        let _still = self.checkpoints.still.read();
        if self.checkpoints.map_version.load(Ordering::Acquire) != seen {
            self.keep_unmoved(survivors)?;
        }
        let mut last = None;
        let mut ended = Ok(true);
        // One at a time: a writer has one while the next is made.
        for batch in self.pack(survivors) {
            let bytes = batch.payload_bytes() as u64;
            let appended = if self.vitals.is_inline() {
                self.log.append(batch, purpose)
            } else {
                self.log.enqueue(batch, purpose)
            };
            match appended {
                Ok(ticket) => {
                    self.vitals.counters.moved_bytes.add(bytes);
                    last = Some(ticket);
                }
                Err(Refusal::NeedsCheckpoint(_) | Refusal::NeedsSpace(..)) => {
                    ended = Ok(false);
                    break;
                }
                Err(Refusal::Failed(error)) => {
                    ended = Err(error);
                    break;
                }
            }
        }
        if !matches!(ended, Ok(true)) {
            // Some of the refused moves may still be in flight: the next capture must not come
            // between their look at the map and their end.
            self.log.wait_settled();
        }
        let done = ended?;
        if let Some(ticket) = last {
            self.log.wait_applied(ticket)?;
        }
        if let Some((as_of, victims)) = cleaned {
            self.map.active().note(survivors.moved_from(as_of));
            if done {
                self.space.evacuate(victims);
                self.vitals.counters.cleaned_extents.add(victims);
            }
        }
        Ok(done.then(|| self.checkpoints.captured.load(Ordering::Acquire)))
    }
}
