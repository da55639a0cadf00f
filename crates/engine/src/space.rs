//! Admission: a write is taken only if everything that is dirty, however incompressible, still finds room in the log. So what
//! was acknowledged can always be flushed.

use std::sync::atomic::Ordering;

use surface::Result;
use units::BLOCK_BYTES;

use crate::core::Core;
use crate::object::Object;

/// Share of the pool's extents that only overwriting may take, and the least for which that makes sense: cleaning wins nothing from
/// extents of which less than a thirty-second part is dead.
const OVERWRITE_DIVISOR: u64 = 28;
const OVERWRITE_MIN: u64 = 16;
/// Extents that must have been filled since the pool was opened before they tell how much an extent holds.
const OPENED_KNOWN: u64 = 32;
/// What a group may cost in the log beside its data: in the worst case a batch of its own, padded.
const GROUP_COST_BYTES: u64 = BLOCK_BYTES as u64;

/// Room for data that is being put into the write buffer; dropped when it is there and counted as dirty.
pub(crate) struct Admitted<'a> {
    core: &'a Core,
    bytes: u64,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.core.admitting.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl Core {
    /// Bytes of data that are on their way to the log, what they may cost there beside included.
    ///
    /// Bytes go from admitted to dirty to used extents, and each is counted in the next place before it leaves the
    /// last one: read in this order, none is missed.
    pub(crate) fn committed_bytes(&self) -> u64 {
        let admitting = self.admitting.load(Ordering::Acquire);
        admitting + self.buffer.bytes() as u64 + self.buffer.groups() as u64 * GROUP_COST_BYTES
    }

    /// Extents that can be written before another one is freed, the reserve included.
    pub(crate) fn extents_left(&self) -> u64 {
        self.extents_free.load(Ordering::Acquire) + self.log.ahead() as u64
    }

    /// Extents that are neither reserved nor needed for what is on its way to the log.
    pub(crate) fn extents_spare(&self) -> u64 {
        let needed = self.committed_bytes().div_ceil(self.geometry.usable_bytes_min());
        self.extents_left().saturating_sub(self.geometry.reserve_extents() + needed)
    }

    /// Whether everything that is dirty or admitted fits, by what is known without a lock.
    pub(crate) fn has_room(&self) -> bool {
        self.has_room_before(self.geometry.reserve_extents())
    }

    /// Whether it fits so that `wall` extents are left.
    pub(crate) fn has_room_before(&self, wall: u64) -> bool {
        let committed = self.committed_bytes();
        self.extents_left().saturating_sub(wall) * self.geometry.usable_bytes_min() >= committed
    }

    /// Counts `bytes` as on their way to the log until what is returned is dropped, whether there is room for them or not.
    pub(crate) fn set_aside(&self, bytes: u64) -> Admitted<'_> {
        self.admitting.fetch_add(bytes, Ordering::AcqRel);
        Admitted { core: self, bytes }
    }

    /// The same for data of so many groups, with what they may cost beside.
    pub(crate) fn set_aside_groups(&self, bytes: u64, groups: u64) -> Admitted<'_> {
        self.set_aside(bytes + groups * GROUP_COST_BYTES)
    }

    /// Extents that only overwriting may take: a pool that is full for new data goes on taking changes of what it holds, because
    /// cleaning wins back what they leave dead. Small pools cannot afford it.
    fn overwrite_extents(&self) -> u64 {
        let share = u64::from(self.geometry.extents_usable()) / OVERWRITE_DIVISOR;
        if share < OVERWRITE_MIN { 0 } else { share }
    }

    /// Extents that new data of `object` must leave free now: for overwriting, and for what is reserved for other volumes.
    ///
    /// What is promised need not lie idle. As long as twice as much could be won by cleaning, nothing is kept; from there on it grows until
    /// all of it is kept when no more than that could be won. So new data finds the pool full at the same point as if it were always kept,
    /// and a log of which a fifth is dead is not cleaned as if it were fuller than it is, which would cost every write.
    fn extents_kept(&self, object: &Object) -> u64 {
        let promised = self.overwrite_extents() + self.extents_reserved_against(object);
        if promised == 0 { 0 } else { promised.min((2 * promised).saturating_sub(self.extents_winnable())) }
    }

    /// Extents before the reserve that would be free if all that is dead were cleaned, cautiously: what is on its way counts in full,
    /// and what has been written since the last checkpoint as if nothing died for it.
    fn extents_winnable(&self) -> u64 {
        let extents = u64::from(self.geometry.extents_usable()).saturating_sub(1 + self.geometry.reserve_extents());
        let live = self.live_bytes.load(Ordering::Relaxed);
        let coming = self.committed_bytes() + self.log.bytes_since_checkpoint();
        let opened = self.counters.opened_extents.get();
        let taken = if opened < OPENED_KNOWN {
            (live + coming).div_ceil(self.geometry.usable_bytes_min())
        } else {
            // As densely as it has been since the pool was opened: headers, padding and tails of extents take room too.
            let payload = self.counters.fragment_bytes.get() + self.counters.moved_bytes.get();
            let packed = u128::from(live) * u128::from(opened) / u128::from(payload.max(1));
            u64::try_from(packed).unwrap_or(u64::MAX) + coming.div_ceil(u64::from(self.geometry.extent_bytes))
        };
        extents.saturating_sub(taken)
    }

    /// Admits a write of `length` bytes at `offset` of an object; the room is its own until what is returned is dropped.
    ///
    /// The wall of new data is the soft wall (`clean_pass`) and what must be kept for overwriting and other volumes; that of
    /// overwriting is the soft wall alone. A write that does not seem to fit before its wall waits for the cleaner, and if that wins
    /// nothing it makes room itself: what is dirty is drained (it may be compressible), a checkpoint is taken (it may free extents), and
    /// extents are cleaned for as long as that wins anything. Only if there is no room then, up to the reserve instead of the soft
    /// wall, the pool is full. The verdict holds until something is applied.
    ///
    /// # Errors
    /// [`surface::ErrorKind::Full`], and whatever draining fails with.
    pub(crate) fn admit(&self, object: &Object, offset: u64, length: u64) -> Result<Admitted<'_>> {
        self.charge(object, offset, length)?;
        self.brake(length);
        // A part of a block makes a block of data.
        let admitted = self.set_aside(length.next_multiple_of(BLOCK_BYTES as u64) + GROUP_COST_BYTES);
        let promised = self.overwrite_extents() + self.extents_reserved_against(object);
        if self.has_room_before(self.soft_wall() + promised) {
            return Ok(admitted);
        }
        let kept = self.extents_kept(object);
        let kept = if kept > 0 && self.is_allocated(object, offset, length)? { 0 } else { kept };
        let has_room = |core: &Self| core.has_room_before(core.soft_wall() + kept);
        if has_room(self) {
            return Ok(admitted);
        }
        // Nothing could be won when it was tried last.
        let hopeless = self.full_at.load(Ordering::Relaxed) == self.log.applied_seq().0;
        if hopeless && self.buffer.bytes() == 0 && !self.has_room() {
            return Err(self.full_error());
        }
        if !hopeless && self.wait_for_cleaner(kept, has_room) {
            return Ok(admitted);
        }
        if self.find_room(kept, has_room)? {
            return Ok(admitted);
        }
        self.full_at.store(self.log.applied_seq().0, Ordering::Relaxed);
        Err(self.full_error())
    }

    /// Makes room by all means that there are, for one caller at a time; whether there is any then. `kept`: see [`Self::extents_kept`].
    pub(crate) fn find_room(&self, kept: u64, has_room: impl Fn(&Self) -> bool) -> Result<bool> {
        let _making_room = self.making_room.lock();
        if has_room(self) {
            return Ok(true);
        }
        self.drain_all()?;
        if has_room(self) {
            return Ok(true);
        }
        self.take_light_checkpoint()?;
        // Deleted volumes give their space back over several checkpoints.
        while !has_room(self) && self.objects.has_reaping() {
            self.take_checkpoint()?;
        }
        if has_room(self) || self.clean_for_room(kept)? {
            return Ok(true);
        }
        if self.map.settled().is_empty() {
            return Ok(false);
        }
        // Merging may show that more is dead.
        self.take_checkpoint()?;
        Ok(has_room(self) || self.clean_for_room(kept)?)
    }
}
