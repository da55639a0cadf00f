//! When a checkpoint is taken, and of which kind: by the log and the changes of the map that have
//! come since the last one, by the space that it would free, and when nothing comes any more. Owns
//! no state.

use std::cell::Cell;

use store::log::Purpose;
use store::map::kind::Kind;
use surface::Result;

use crate::checkpoint::Checkpoints;

/// Idle time of the log, and the bytes since the last checkpoint, that justify a checkpoint without
/// any other reason. Longer than data stays in the write buffer.
const IDLE_NS: u64 = 10_000_000_000;
const IDLE_LOG_BYTES: u64 = 1 << 20;
/// As many bytes of map changes do, even if they were few in the log: a discard of a few MiB is a
/// line there, but frees space.
const IDLE_CHANGES_BYTES: usize = 16 << 10;

impl Checkpoints {
    /// Whether a checkpoint is due.
    pub(crate) fn is_due(&self) -> bool {
        self.is_full_one_due()
            || self.space.is_checkpoint_due()
            || self.log.ahead() as u64 <= 2 * self.geometry.reserve_extents() && self.space.has_free_extents()
    }

    fn is_full_one_due(&self) -> bool {
        self.log.bytes_since_checkpoint() >= self.vitals.options.checkpoint_log_bytes
            || self.map.active().bytes() >= self.shares.overlay
            || self.objects.has_reaping()
    }

    /// Takes a light checkpoint if the log has been idle for a while: then exact figures are cheap,
    /// and there is little to recover. If it fails, the next attempt is a while later, too.
    pub(crate) fn take_if_idle(&self) -> Result<()> {
        let bytes = self.log.bytes_since_checkpoint();
        let now = self.vitals.env.clock.now_ns();
        {
            let mut resting = self.resting.lock();
            let has_grown = resting.0 != bytes;
            if has_grown || !self.has_much_changed() || now.saturating_sub(resting.1) < IDLE_NS {
                if has_grown {
                    *resting = (bytes, now);
                }
                return Ok(());
            }
            resting.1 = now;
        }
        self.take_unless(Kind::Light, || !self.has_much_changed())
    }

    /// Returns whether there have been enough changes since the last checkpoint to justify one.
    fn has_much_changed(&self) -> bool {
        self.log.bytes_since_checkpoint() >= IDLE_LOG_BYTES || self.map.active().bytes() >= IDLE_CHANGES_BYTES
    }

    /// Returns whether the log has been idle for a while.
    pub(crate) fn is_resting(&self) -> bool {
        let resting = self.resting.lock();
        resting.0 == self.log.bytes_since_checkpoint()
            && self.vitals.env.clock.now_ns().saturating_sub(resting.1) >= IDLE_NS
    }

    /// Waits for a checkpoint if the changes of the map have more than their share of memory.
    pub(crate) fn bound_changes(&self) -> Result<()> {
        let are_many = || self.map.active().bytes() > self.shares.overlay;
        if are_many() { self.take_unless(Kind::Full, || !are_many()) } else { Ok(()) }
    }

    /// The kind of checkpoint that is due.
    pub(crate) fn kind_due(&self) -> Kind {
        if self.is_full_one_due() { Kind::Full } else { Kind::Light }
    }

    /// Asks for a checkpoint, or takes it when no other thread does.
    pub(crate) fn ask_if_due(&self) {
        if self.vitals.is_inline() {
            return;
        }
        if self.is_due() {
            self.signals.wake_keeper();
        }
    }

    /// Takes a checkpoint so that the log gets new extents to fill.
    pub(crate) fn refill_list(&self, purpose: Purpose) -> Result<()> {
        let kept_back = self.geometry.kept_back(purpose);
        let listed = self.log.listed_ever();
        let has_room = Cell::new(false);
        self.take_unless(Kind::Light, || {
            has_room.set(self.log.ahead() > kept_back);
            has_room.get()
        })?;
        // Others may have used up the room by now: a caller that needs room tries, and comes back.
        if has_room.get() || self.log.ahead() > kept_back || self.log.listed_ever() > listed {
            return Ok(());
        }
        Err(self.space.full_error())
    }
}
