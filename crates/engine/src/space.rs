//! Admission: a write is taken only if everything that is dirty, however incompressible, still finds room in the log. So what
//! was acknowledged can always be flushed.

use std::sync::atomic::Ordering;

use surface::Result;
use units::BLOCK_BYTES;

use crate::core::Core;

/// What a group may cost in the log beside its data: in the worst case a batch of its own, padded.
const GROUP_COST_BYTES: u64 = BLOCK_BYTES as u64;

impl Core {
    /// Whether `bytes` more of data fit, by what is known without a lock.
    fn has_room(&self, bytes: u64) -> bool {
        let extents = self.extents_free.load(Ordering::Relaxed) + self.log.ahead() as u64;
        let room = extents.saturating_sub(self.geometry.reserve_extents()) * self.geometry.usable_bytes_min();
        let dirty = self.buffer.bytes() as u64 + self.buffer.groups() as u64 * GROUP_COST_BYTES;
        room >= dirty + bytes + GROUP_COST_BYTES
    }

    /// Admits `bytes` of new data.
    ///
    /// When they do not seem to fit, what is dirty is drained first (it may be compressible) and a checkpoint is taken (it may free
    /// extents); only then is the pool full. The verdict holds until something is applied.
    ///
    /// # Errors
    /// [`surface::ErrorKind::Full`], and whatever draining fails with.
    pub(crate) fn admit(&self, bytes: u64) -> Result<()> {
        if self.has_room(bytes) {
            return Ok(());
        }
        if self.full_at.load(Ordering::Relaxed) == self.log.applied_seq().0 && self.buffer.bytes() == 0 {
            return Err(self.full_error());
        }
        self.drain_all()?;
        if self.has_room(bytes) {
            return Ok(());
        }
        self.take_checkpoint()?;
        // Deleted volumes give their space back over several checkpoints.
        while !self.has_room(bytes) && self.objects.has_deleting() {
            self.take_checkpoint()?;
        }
        if self.has_room(bytes) {
            return Ok(());
        }
        self.full_at.store(self.log.applied_seq().0, Ordering::Relaxed);
        Err(self.full_error())
    }
}
