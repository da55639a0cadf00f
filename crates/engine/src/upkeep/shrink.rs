//! Shrinks a pool while it is in use.
//!
//! 1. *Mark*: if hardly anything is free before the new end, some of it is cleaned first. Then the
//!    log gets no extents from there on. Extents listed for it there are removed from its list with
//!    the next checkpoint, and open ones are abandoned as soon as nothing is in flight in them
//!    (`log::streams`).
//! 2. *Move*: live data beyond the mark is moved below it, by rounds of the cleaner whose victims
//!    are all extents there, however full. New locations come from the space that data may use,
//!    never from the reserve: moving gains no space below the mark. If there is none, the cleaner
//!    gains some below the mark first.
//! 3. *Switch*: once a durable checkpoint refers to nothing beyond the mark, the superblock records
//!    the new size, durably, in both copies: a crash in between leaves the old size or the new one,
//!    and either is right. Then the extents are forgotten, and the file is truncated.
//!
//! The work is done a slice at a time, so that the caller decides on the pace and can stop. Moved
//! data stays in its new place. The mark is lifted when the shrink is cancelled, when no slice was
//! requested for a while, and at the end of the process: then the pool has its former size, and the
//! next attempt has less to do.

use store::base::status::CleanMark;
use store::log::geometry::EXTENTS_MIN;
use store::log::{superblock_copies, superblock_io};
use store::space::rule::Rule;
use surface::{Error, ErrorKind, Result};
use units::{ExtentIndex, format_size};

use crate::clean::round::Round;
use crate::pool::Pool;
use crate::upkeep::{Shrinking, Upkeep};

/// How long a mark stays when no slice is requested.
const PATIENCE_NS: u64 = 60_000_000_000;
/// Consecutive rounds without gain, after which the shrink fails.
const STUCK_MAX: u32 = 4;
/// Extents that must be free below the mark before it is set, in addition to the reserve: the open
/// extents of the log, and some to move into.
const FREE_MIN: u64 = 4;

/// Progress of shrinking.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShrinkReport {
    /// The pool has its new size.
    pub is_finished: bool,
    /// Its capacity now.
    pub capacity_bytes: u64,
    /// Extents with content beyond the new end.
    pub extents_todo: u64,
    /// Live bytes there.
    pub bytes_todo: u64,
    /// Bytes moved by this slice.
    pub bytes_moved: u64,
}

fn full(text: String) -> Error {
    Error::new(ErrorKind::Full, text)
}

impl Pool {
    /// Continues shrinking the pool to `capacity_bytes`, rounded down to whole extents, for at most
    /// `rounds` rounds of the cleaner. Durable when the report says that it is finished.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it would not become smaller, or too small to be a pool;
    /// [`ErrorKind::Full`] if its content does not fit; [`ErrorKind::Corrupt`] if something cannot
    /// be moved because it is damaged; those of the storage. The mark is lifted on an error.
    pub fn shrink(&self, capacity_bytes: u64, rounds: u32) -> Result<ShrinkReport> {
        let done = self.shrink_slice(capacity_bytes, rounds);
        if done.is_err() {
            self.give_up_shrinking();
        }
        done
    }

    /// Lets the log use all extents again.
    pub fn give_up_shrinking(&self) {
        self.core.upkeep.mark(None);
    }

    fn shrink_slice(&self, capacity_bytes: u64, rounds: u32) -> Result<ShrinkReport> {
        let core = &self.core;
        core.vitals.check_failed()?;
        let extent_bytes = u64::from(core.geometry.extent_bytes);
        let now = core.geometry.extents();
        let wanted = u32::try_from(capacity_bytes / extent_bytes).unwrap_or(u32::MAX);
        if wanted == now {
            core.upkeep.mark(None);
            let moved = core.vitals.counters.moved_bytes.get();
            return Ok(ShrinkReport { is_finished: true, ..core.upkeep.shrink_report(moved) });
        }
        if wanted > now {
            let (now, wanted) = (format_size(u64::from(now) * extent_bytes), format_size(capacity_bytes));
            let text = format!("the pool has {now} and cannot be shrunk to {wanted}, which is more: use grow");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if wanted < EXTENTS_MIN {
            let (now, wanted) = (format_size(u64::from(now) * extent_bytes), format_size(capacity_bytes));
            let least = format_size(u64::from(EXTENTS_MIN) * extent_bytes);
            let text = format!(
                "the pool has {now} and cannot be shrunk to {wanted}: a pool with extents of this size has at \
                 least {least}"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        core.upkeep.check_fits(wanted)?;
        let moved = core.vitals.counters.moved_bytes.get();
        core.upkeep.make_room_below(wanted)?;
        core.upkeep.mark(Some(Shrinking { extents: wanted, asked_ns: core.vitals.env.clock.now_ns() }));
        let is_empty = core.upkeep.move_below_mark(wanted, rounds)?;
        if is_empty && self.switch(wanted)? {
            return Ok(ShrinkReport { is_finished: true, ..core.upkeep.shrink_report(moved) });
        }
        Ok(core.upkeep.shrink_report(moved))
    }

    /// Step 3. Returns `false` if there is data beyond the mark after all.
    fn switch(&self, extents: u32) -> Result<bool> {
        let core = &self.core;
        let _admin = core.objects.admin.lock();
        // The mark stays set. So once there is no data beyond it, there can be no new data there.
        let mut shrinking = core.upkeep.shrinking.lock();
        if shrinking.map(|s| s.extents) != Some(extents) {
            return Ok(false);
        }
        {
            // A checkpoint that began before the mark was set is not running any more.
            let _checkpoint = core.checkpoints.state.lock();
            if core.space.extents.lock().used_from(extents as usize) != (0, 0) {
                return Ok(false);
            }
        }
        let capacity_bytes = u64::from(extents) * u64::from(core.geometry.extent_bytes);
        let mut superblock = superblock_io::choose(&superblock_io::read_copies(&*core.vitals.env.disk)?)?;
        superblock.capacity_bytes = capacity_bytes;
        superblock.generation += 1;
        // After an error it is unknown whether the superblock has the new size: nothing may be
        // written beyond it.
        superblock_io::write(&*core.vitals.env.disk, &superblock).inspect_err(|error| core.vitals.fail(error))?;
        core.space.extents.lock().shrink(extents as usize);
        let gone = core.geometry.extents().saturating_sub(extents);
        core.geometry.shrink(extents);
        // When the pool grows again, those extents have no space allocated.
        core.log.backing.loses(ExtentIndex(extents), gone as usize);
        *shrinking = None;
        // If the truncation fails, space is wasted; the pool does not use that part any more.
        let _ = core.vitals.env.disk.shrink(superblock_copies::bytes_with_end(capacity_bytes));
        superblock_copies::write(&*core.vitals.env.disk, &*core.vitals.env.store, &superblock)
            .inspect_err(|error| core.vitals.fail(error))?;
        Ok(true)
    }
}

impl Upkeep {
    /// Sets the mark, or lifts it.
    fn mark(&self, shrinking: Option<Shrinking>) {
        let mut present = self.shrinking.lock();
        let extents = shrinking.map(|s| s.extents);
        if present.map(|s| s.extents) != extents {
            self.geometry.set_mark(extents);
            let mut all = self.space.extents.lock();
            all.set_mark(extents.map(|extents| extents as usize));
            self.space.publish(&all);
            // Refused writers may find room now, or less.
            self.space.forget_full();
        }
        *present = shrinking;
    }

    /// Lifts the mark if no slice was requested for a while.
    pub(crate) fn forget_shrinking(&self) {
        let Some(shrinking) = *self.shrinking.lock() else { return };
        if self.vitals.env.clock.now_ns().saturating_sub(shrinking.asked_ns) > PATIENCE_NS {
            self.mark(None);
        }
    }

    /// Fails if the pool's live data, its reservations, and data on its way to the log do not fit
    /// in so many extents, however badly they are packed.
    fn check_fits(&self, extents: u32) -> Result<()> {
        self.checkpoints.take()?;
        let live = self.space.extents.lock().live_bytes();
        let taken = live + self.space.reserved_unmet() + self.space.committed_bytes();
        let kept = 1 + self.geometry.reserve_extents();
        let needed = taken.div_ceil(self.geometry.usable_bytes_min()) + kept;
        if needed <= u64::from(extents) {
            return Ok(());
        }
        let extent_bytes = u64::from(self.geometry.extent_bytes);
        let (wanted, least) = (format_size(u64::from(extents) * extent_bytes), format_size(needed * extent_bytes));
        let is_smaller = needed < u64::from(self.geometry.extents());
        let advice = if is_smaller {
            format!("shrink it to {least} or more, or destroy something")
        } else {
            "destroy something first".into()
        };
        Err(full(format!(
            "the pool's content ({} and reservations) may not fit in {wanted}: {advice}",
            format_size(live)
        )))
    }

    fn shrink_report(&self, moved_before: u64) -> ShrinkReport {
        let (extents_todo, bytes_todo) = self.space.extents.lock().used_from(self.geometry.extents_usable() as usize);
        ShrinkReport {
            is_finished: false,
            capacity_bytes: u64::from(self.geometry.extents()) * u64::from(self.geometry.extent_bytes),
            extents_todo,
            bytes_todo,
            bytes_moved: self.vitals.counters.moved_bytes.get().saturating_sub(moved_before),
        }
    }

    /// Step 1: ensures that the log has room below the mark before it may no longer go beyond it.
    fn make_room_below(&self, extents: u32) -> Result<()> {
        let enough = self.geometry.reserve_extents() + FREE_MIN;
        let idle = |core: &Self| core.space.extents.lock().idle_before(extents as usize);
        let below = Rule { within: (ExtentIndex(0), ExtentIndex(extents)), ..self.clean.rule(0, true) };
        let mut stuck = 0;
        while idle(self) < enough {
            let round = self.clean.clean_round_shared(below)?;
            stuck = if matches!(round, Round::Cleaned { .. }) { 0 } else { stuck + 1 };
            self.checkpoints.take()?;
            if stuck > STUCK_MAX {
                return Err(full(format!(
                    "{} of the remaining extents are free, but {enough} are needed to begin: shrink the pool \
                     less, or destroy something",
                    idle(self)
                )));
            }
        }
        Ok(())
    }

    /// Step 2. Returns whether nothing is left beyond the mark.
    fn move_below_mark(&self, extents: u32, rounds: u32) -> Result<bool> {
        let beyond = (ExtentIndex(extents), ExtentIndex(u32::MAX));
        let away = Rule {
            live_max: u32::MAX,
            greedy: false,
            within: beyond,
            filled_by: CleanMark::NEVER,
            away: true,
            despite_damage: false,
            recodes: false,
        };
        let below = self.clean.rule(0, true);
        let left = |core: &Self| core.space.extents.lock().used_from(extents as usize);
        let mut stuck = 0;
        for _ in 0..rounds.max(1) {
            let round = match left(self) {
                (0, _) => return Ok(true),
                // The log has some of them open or listed.
                (_, 0) => Round::Idle,
                _ => self.clean.clean_round_shared(away)?,
            };
            match round {
                Round::Cleaned { .. } => {
                    stuck = 0;
                    continue;
                }
                // Everything that can be moved has been. The rest are extents that the log has open
                // or listed, or damaged data.
                Round::Idle => {
                    self.leave_open_extents()?;
                    stuck += 1;
                }
                Round::Shunned | Round::Busy => {
                    let damages = self.clean.damages.lock().clone();
                    if let Some(damage) = damages.first().filter(|_| stuck > 0) {
                        let text =
                            format!("data beyond the new end cannot be moved: {damage}; 'shale scrub' lists all of it");
                        return Err(Error::new(ErrorKind::Corrupt, text));
                    }
                    // Or another round is at work there.
                    self.checkpoints.take()?;
                    stuck += 1;
                }
                Round::NeedsCheckpoint => {
                    self.checkpoints.take()?;
                    stuck += 1;
                    if stuck > 1 {
                        let round = self.clean.clean_round_shared(below)?;
                        if let Round::Cleaned { .. } = round {
                            self.checkpoints.take()?;
                            stuck = 1;
                        }
                    }
                }
            }
            if stuck > STUCK_MAX {
                let (extents, bytes) = left(self);
                return Err(full(format!(
                    "there is no room for {} in {extents} extents beyond the new end: write less during the \
                     shrink, or shrink the pool less",
                    format_size(bytes)
                )));
            }
        }
        Ok(left(self) == (0, 0))
    }

    /// Takes checkpoints until the log has left its open or listed extents beyond the mark, as far
    /// as a write to each stream causes that.
    fn leave_open_extents(&self) -> Result<()> {
        // The first one removes extents from the list and abandons open ones, the second one frees
        // those without live data.
        self.writes.drain_all()?;
        self.checkpoints.take()?;
        self.checkpoints.take()
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, OnceLock, Weak};

    use bytes::Bytes;
    use env::{AlignedBuf, Disk, DiskLayer};
    use sim::{ContentKind, Machine, Rng, fill_content};
    use surface::{BlockDevice, WriteOptions};

    use super::*;
    use crate::pool::core::Core;
    use crate::pool::testing::pool_on;

    const EXTENT: u64 = 64 << 10;
    /// Remaining extents.
    const LEFT: u64 = 96;

    /// Asserts, whenever an extent is read whole, that no other thread could have exclusive use of
    /// the cleaner.
    struct WatchedDisk {
        below: Arc<dyn Disk>,
        core: OnceLock<Weak<Core>>,
        seen: AtomicU32,
    }

    impl DiskLayer for WatchedDisk {
        fn below(&self) -> &dyn Disk {
            &*self.below
        }
        fn read_at(&self, offset: u64, buf: &mut AlignedBuf, len: usize) -> io::Result<()> {
            if let Some(core) = self.core.get().and_then(Weak::upgrade).filter(|_| len as u64 == EXTENT) {
                assert!(core.clean.rounds.try_write().is_none(), "a round that nobody could wait for");
                self.seen.fetch_add(1, Ordering::Relaxed);
            }
            self.below.read_at(offset, buf, len)
        }
    }

    /// Extents that a cleaner found not worth cleaning must still be moved; the error was that
    /// there was no room for them.
    #[test]
    fn what_is_not_worth_cleaning_is_moved_all_the_same() {
        let capacity_bytes = 256 * EXTENT;
        let machine = Machine::new(capacity_bytes, 1);
        let pool = pool_on(&machine, machine.disk.handle(), capacity_bytes, 0);
        pool.create_volume("v", capacity_bytes, &Default::default()).unwrap();
        let volume = pool.volume("v").unwrap();
        // With its header it fills an extent: none can be packed any better.
        let mut data = vec![0; 60 << 10];
        for i in 0..192 {
            fill_content(&mut Rng::new(i), ContentKind::Random, &mut data);
            volume.write(i * EXTENT, Bytes::from(data.clone()), WriteOptions { fua: true }).unwrap();
        }
        volume.discard(0, 170 * EXTENT).unwrap();
        pool.checkpoint().unwrap();
        let core = &pool.core;
        let all = Rule { live_max: u32::MAX, ..core.clean.rule(0, true) };
        let mut shunned = 0;
        while core.clean.clean_round_shared(all).unwrap() == Round::Shunned {
            shunned += 1;
        }
        assert!(shunned > 0, "nothing was left");
        let slices = (0..100).map(|_| pool.shrink(LEFT * EXTENT, 4).unwrap());
        assert!(slices.take_while(|report| !report.is_finished).count() < 100);
        let again = pool.shrink(LEFT * EXTENT, 4).unwrap();
        assert_eq!((again.is_finished, again.bytes_moved), (true, 0), "nothing was moved for what is done");
    }

    /// Otherwise a writer would miss the victims of a round in its estimate of the possible gain,
    /// and report the pool as full.
    #[test]
    fn a_round_keeps_out_whoever_must_know_what_can_be_won_at_all() {
        let capacity_bytes = 256 * EXTENT;
        let machine = Machine::new(capacity_bytes, 1);
        let disk = WatchedDisk { below: machine.disk.handle(), core: OnceLock::new(), seen: AtomicU32::new(0) };
        let disk = Arc::new(disk);
        let pool = pool_on(&machine, Arc::clone(&disk) as _, capacity_bytes, 0);
        pool.create_volume("v", capacity_bytes, &Default::default()).unwrap();
        let volume = pool.volume("v").unwrap();
        let mut data = vec![0; EXTENT as usize];
        // Twice, so that the live data is in the second quarter of the pool and after it.
        for i in 0..128 {
            fill_content(&mut Rng::new(i), ContentKind::Random, &mut data);
            volume.write(i % 64 * EXTENT, Bytes::from(data.clone()), WriteOptions { fua: true }).unwrap();
        }
        volume.discard(0, 56 * EXTENT).unwrap();
        pool.checkpoint().unwrap();
        disk.core.set(Arc::downgrade(&pool.core)).unwrap();
        let slices = (0..100).map(|_| pool.shrink(LEFT * EXTENT, 4).unwrap());
        assert!(slices.take_while(|report| !report.is_finished).count() < 100);
        assert!(disk.seen.load(Ordering::Relaxed) > 0, "nothing had to be moved");
        assert!(!pool.core.log.backing.has(ExtentIndex(LEFT as u32), 1), "what was cut off seems to have space below");
    }
}
