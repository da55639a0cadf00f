//! Admission: a write is accepted only if all dirty data, however incompressible, still finds room
//! in the log. So acknowledged data can always be flushed.

use std::sync::atomic::{AtomicU64, Ordering};

use surface::Result;
use units::BLOCK_BYTES;

use crate::base::ranked::Mutex;
use crate::base::ranks;
use crate::base::status::PoolRoom;
use crate::objects::object::Object;
use crate::pool::Pool;
use crate::pool::core::Core;
use crate::space::claims::Claim;

/// Share of the pool's extents that only overwrites may take, and the minimum for which that makes
/// sense: cleaning gains nothing from extents of which less than a thirty-second part is dead.
const OVERWRITE_DIVISOR: u64 = 28;
const OVERWRITE_MIN: u64 = 16;
/// Share of the pool's extents that is reserved for the metadata of shares: removing a file writes
/// some before it frees any.
const TREE_DIVISOR: u64 = 64;
/// The largest share, in pools where the other is less than [`TREE_BYTES_MIN`].
const TREE_DIVISOR_SMALL: u64 = 16;
/// Bytes for some commits of a small namespace.
const TREE_BYTES_MIN: u64 = 512 << 10;
/// Upper bound of it: some hundred commits of a namespace of a million files.
const TREE_BYTES_MAX: u64 = 256 << 20;
/// Extents that must have been filled since the pool was opened before their average content is
/// used.
const OPENED_KNOWN: u64 = 32;
/// Minimum that is dropped of images in one go.
const DROPPED_MIN: u64 = 4 << 20;
/// Number of drops, each twice as large as the last, before everything is dropped.
const DROP_ROUNDS: u32 = 24;
/// Overhead of a group in the log: in the worst case a batch of its own, padded.
pub(crate) const GROUP_COST_BYTES: u64 = BLOCK_BYTES as u64;

/// Bytes for which a write of `length` is admitted: a partial block becomes a block of data.
pub(crate) fn cost_of(length: u64) -> u64 {
    length.next_multiple_of(BLOCK_BYTES as u64) + GROUP_COST_BYTES
}

/// The kind of data for which a write needs room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    /// Data of users.
    Data,
    /// File metadata of a share's tree. Neither a quota nor the wall of new data applies to it.
    Tree,
}

/// The bytes on their way to the log, and the state of a pool that seems full.
pub(crate) struct Admission {
    /// Held by the writer that makes room in a pool that seems full; others wait for the space that
    /// it gains.
    making_room: Mutex<(), ranks::MakingRoom>,
    /// Bytes that were admitted and are not in the write buffer yet.
    admitting: AtomicU64,
    /// The part of them reserved by rounds of cleaning.
    cleaning_bytes: AtomicU64,
    /// Applied sequence number at which the pool was found full.
    full_at: AtomicU64,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            making_room: Mutex::default(),
            admitting: AtomicU64::new(0),
            cleaning_bytes: AtomicU64::new(0),
            full_at: AtomicU64::new(u64::MAX),
        }
    }
}

impl Admission {
    /// The size of the pool has changed: refused writers may find room now.
    pub(crate) fn forget_full(&self) {
        self.full_at.store(u64::MAX, Ordering::Relaxed);
    }
}

/// Room for data that is being put into the write buffer; dropped when the data is there and
/// counted as dirty.
pub(crate) struct Admitted<'a> {
    core: &'a Core,
    bytes: u64,
    /// It frees room: see [`Core::room_before`].
    cleans: bool,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if self.cleans {
            // In this order: released bytes must no longer appear as room either.
            self.core.admission.cleaning_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        }
        self.core.admission.admitting.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl Pool {
    /// How full it is.
    pub fn room(&self) -> PoolRoom {
        let core = &self.core;
        PoolRoom {
            live_bytes: core.live_bytes.load(Ordering::Relaxed),
            available_bytes: core.available_bytes(),
            reserved_bytes: core.reserved_unmet.load(Ordering::Relaxed),
            is_full: core.is_full(),
            refused_writes: core.counters.refused_writes.get(),
        }
    }
}

impl Admitted<'_> {
    /// Leaves the bytes counted, until [`Core::release`] is called for them.
    pub(crate) fn keep(self) -> u64 {
        let bytes = self.bytes;
        std::mem::forget(self);
        bytes
    }
}

impl Core {
    /// Ends the accounting of bytes that were [kept](Admitted::keep).
    pub(crate) fn release(&self, bytes: u64) {
        self.admission.admitting.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Takes over bytes that were [kept](Admitted::keep), for a caller that now puts as many into
    /// the write buffer.
    pub(crate) fn taken_over(&self, bytes: u64) -> Admitted<'_> {
        Admitted { core: self, bytes, cleans: false }
    }

    /// Bytes of data on their way to the log, including their overhead there.
    ///
    /// Bytes go from admitted to dirty to used extents, and each is counted in the next place
    /// before it leaves the last one: read in this order, none is missed.
    pub(crate) fn committed_bytes(&self) -> u64 {
        let admitting = self.admission.admitting.load(Ordering::Acquire);
        admitting + self.dirty_cost()
    }

    /// Bytes that dirty data may take in the log.
    fn dirty_cost(&self) -> u64 {
        self.buffer.bytes() as u64 + self.buffer.groups() as u64 * GROUP_COST_BYTES
    }

    /// Extents that can be written before another one is freed, including the reserve, as far as
    /// the file system has room.
    pub(crate) fn extents_left(&self) -> u64 {
        (self.extents_free.load(Ordering::Acquire) + self.log.ahead() as u64).min(self.extents_left_below())
    }

    /// Extents that are neither reserved nor needed for data on its way to the log.
    pub(crate) fn extents_spare(&self) -> u64 {
        let needed = self.committed_bytes().div_ceil(self.geometry.usable_bytes_min());
        self.extents_left().saturating_sub(self.geometry.reserve_extents() + needed)
    }

    /// Returns whether all dirty and admitted data fits, by figures that need no lock.
    pub(crate) fn has_room(&self) -> bool {
        self.has_room_before(self.geometry.reserve_extents())
    }

    /// Returns whether it fits with `wall` extents left free.
    pub(crate) fn has_room_before(&self, wall: u64) -> bool {
        self.has_room_for(0, wall)
    }

    /// Returns whether `bytes` more would fit with `wall` extents left free.
    pub(crate) fn has_room_for(&self, bytes: u64, wall: u64) -> bool {
        // In this order: see `committed_bytes`.
        let committed = self.committed_bytes() + bytes;
        self.room_before(wall) >= committed
    }

    /// Bytes that certainly fit if `wall` extents stay free, including data on its way to the log.
    ///
    /// The room before the soft wall is left for the cleaner: its reservations there are not
    /// subtracted a second time.
    pub(crate) fn room_before(&self, wall: u64) -> u64 {
        let usable = self.geometry.usable_bytes_min();
        let soft_wall = self.soft_wall();
        let soft = if wall < soft_wall { 0 } else { soft_wall - self.geometry.reserve_extents() };
        let cleans = self.admission.cleaning_bytes.load(Ordering::Acquire).min(soft * usable);
        (self.extents_left() * usable + cleans).saturating_sub(wall * usable)
    }

    /// Counts `bytes` as on their way to the log until the result is dropped, if they fit with
    /// `wall` extents left free. A refused reservation leaves no trace, so requests that do not fit
    /// together cannot fail each other.
    pub(crate) fn try_reserve(&self, bytes: u64, wall: u64) -> Option<Admitted<'_>> {
        let fits = |admitting: u64| {
            let committed = admitting + self.dirty_cost() + bytes;
            (self.room_before(wall) >= committed).then_some(admitting + bytes)
        };
        self.admission.admitting.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).ok()?;
        let admitted = Admitted { core: self, bytes, cleans: false };
        // Between the check and the entry as many bytes may have come as have left, and those that
        // left have not been counted anywhere.
        self.has_room_before(wall).then_some(admitted)
    }

    /// The same, for the soft wall plus the extents kept back from the caller.
    pub(crate) fn try_admit(&self, bytes: u64, kept: u64) -> Option<Admitted<'_>> {
        self.try_reserve(bytes, self.soft_wall() + kept)
    }

    /// Counts `bytes` as on their way to the log until the result is dropped, whether or not there
    /// is room for them.
    pub(crate) fn reserve(&self, bytes: u64) -> Admitted<'_> {
        self.admission.admitting.fetch_add(bytes, Ordering::AcqRel);
        Admitted { core: self, bytes, cleans: false }
    }

    /// Like `reserve`, for work that frees more room than it takes.
    pub(crate) fn reserve_for_cleaning(&self, bytes: u64) -> Admitted<'_> {
        let mut aside = self.reserve(bytes);
        aside.cleans = true;
        self.admission.cleaning_bytes.fetch_add(bytes, Ordering::AcqRel);
        aside
    }

    /// Extents that only overwrites may take: a pool that is full for new data still accepts
    /// changes of existing data, because cleaning recovers the blocks that they leave dead. Small
    /// pools cannot afford it.
    fn overwrite_extents(&self) -> u64 {
        let share = u64::from(self.geometry.extents_usable()) / OVERWRITE_DIVISOR;
        if share < OVERWRITE_MIN { 0 } else { share }
    }

    /// Extents that only file metadata of trees may take; none in a pool without shares.
    pub(crate) fn tree_extents(&self) -> u64 {
        if !self.has_shares.load(Ordering::Relaxed) {
            return 0;
        }
        let usable = u64::from(self.geometry.extents_usable());
        let share = (usable / TREE_DIVISOR).min(TREE_BYTES_MAX / u64::from(self.geometry.extent_bytes));
        let wanted = TREE_BYTES_MIN.div_ceil(self.geometry.usable_bytes_min());
        share.max(wanted.min(usable / TREE_DIVISOR_SMALL))
    }

    /// Extents that `object` must leave to others: reservations of other volumes, the share of
    /// trees, and the part of the overwriting share that its write has no claim to.
    ///
    /// Where there is no overwriting share, an overwrite leaves nothing. It takes room until its
    /// dead bytes are counted, and would be refused as soon as new data has filled the pool up to
    /// the reservations.
    fn extents_promised(&self, object: &Object, claim: Claim) -> u64 {
        let reserved = self.extents_reserved_against(object);
        match (self.overwrite_extents(), claim) {
            (0, Claim::Overwrite) => 0,
            (share, claim) => claim.leaves_of(share) + self.tree_extents() + reserved,
        }
    }

    /// Extents that `object` must leave free now, out of those [promised](Self::extents_promised)
    /// to others.
    ///
    /// Promised extents need not lie idle. As long as cleaning could gain twice as many, none are
    /// kept free; below that, the number grows until all are kept when cleaning could gain no more
    /// than that. So new data finds the pool full at the same point as if they were always kept,
    /// and a log of which a fifth is dead is not cleaned as if it were fuller than it is, which
    /// would cost every write.
    ///
    /// `bytes`: the size of the request. An overwrite leaves as much dead, as long as it compresses
    /// alike, so it is not included. Where it takes more than it leaves, more is live at the next
    /// checkpoint, and less can be gained.
    fn extents_kept(&self, object: &Object, bytes: u64, claim: Claim) -> u64 {
        self.extents_kept_for(self.extents_promised(object, claim), bytes, claim)
    }

    /// The same, if so many are promised to others.
    fn extents_kept_for(&self, promised: u64, bytes: u64, claim: Claim) -> u64 {
        let asking = if claim == Claim::Overwrite { 0 } else { bytes };
        if promised == 0 { 0 } else { promised.min((2 * promised).saturating_sub(self.extents_winnable(asking))) }
    }

    /// Conservative estimate of the extents before the reserve that would be free if all dead data
    /// were cleaned, as far as the file system had room at the last look: cleaning gains no space
    /// that it lacks.
    fn extents_winnable(&self, asking: u64) -> u64 {
        self.extents_winnable_in_all(asking).saturating_sub(self.extents_lacking_below())
    }

    /// Free extents for which the file system had no room at the last look.
    fn extents_lacking_below(&self) -> u64 {
        let free = self.extents_free.load(Ordering::Acquire) + self.log.ahead() as u64;
        free.saturating_sub(self.extents_left_below())
    }

    /// The same estimate as if the file system had room for the whole pool: data on its way counts
    /// in full, `asking` included, and no data counts as dead because of writes since the last
    /// checkpoint.
    fn extents_winnable_in_all(&self, asking: u64) -> u64 {
        let extents = u64::from(self.geometry.extents_usable()).saturating_sub(1 + self.geometry.reserve_extents());
        let live = self.live_bytes.load(Ordering::Relaxed);
        let coming = self.committed_bytes() + asking + self.log.bytes_since_checkpoint();
        let opened = self.counters.opened_extents.get();
        let taken = if opened < OPENED_KNOWN {
            (live + coming).div_ceil(self.geometry.usable_bytes_min())
        } else {
            // As densely as since the pool was opened: headers, padding and tails of extents take
            // room too.
            let payload = self.counters.fragment_bytes.get() + self.counters.moved_bytes.get();
            let packed = u128::from(live) * u128::from(opened) / u128::from(payload.max(1));
            u64::try_from(packed).unwrap_or(u64::MAX) + coming.div_ceil(u64::from(self.geometry.extent_bytes))
        };
        extents.saturating_sub(taken)
    }

    /// Bytes of new data, without a reservation, for which there is still room once all dead data
    /// has been cleaned, as far as the file system has room.
    pub(crate) fn available_bytes(&self) -> u64 {
        let free = self.extents_free.load(Ordering::Acquire) + self.log.ahead() as u64;
        let left_below = self.free_bytes_below(free) / u64::from(self.geometry.extent_bytes);
        let lacking_below = free.saturating_sub(left_below);
        let promised = self.overwrite_extents() + self.tree_extents() + self.extents_reserved() + lacking_below;
        self.extents_winnable_in_all(0).saturating_sub(promised) * self.bytes_per_extent()
    }

    /// Bytes of file metadata that certainly still find room, by the last look at the file system:
    /// called for many changes of a tree.
    pub(crate) fn available_to_trees(&self) -> u64 {
        self.extents_winnable(0).saturating_sub(self.extents_reserved()) * self.geometry.usable_bytes_min()
    }

    /// Extents of unused reservations.
    fn extents_reserved(&self) -> u64 {
        self.reserved_unmet.load(Ordering::Relaxed).div_ceil(self.geometry.usable_bytes_min())
    }

    /// Average payload of an extent since the pool was opened; until that is known, its size.
    fn bytes_per_extent(&self) -> u64 {
        let opened = self.counters.opened_extents.get();
        let payload = self.counters.fragment_bytes.get() + self.counters.moved_bytes.get();
        let size = u64::from(self.geometry.extent_bytes);
        if opened < OPENED_KNOWN { size } else { (payload / opened).clamp(size / 2, size) }
    }

    /// Returns whether a write was refused for lack of room, and nothing has been applied since.
    pub(crate) fn is_full(&self) -> bool {
        self.admission.full_at.load(Ordering::Relaxed) == self.log.applied_seq().0
    }

    /// Admits a write of `length` bytes at `offset` of an object; the room is reserved until the
    /// result is dropped.
    ///
    /// The wall of new data is the soft wall (`clean::pacing`) plus the extents kept for overwrites
    /// and other volumes, a part of which small writes may take (`space::claims`). The wall of
    /// overwrites is the soft wall plus the reservations of other volumes. A write that does not
    /// seem to fit before its wall waits for the cleaner. If cleaning gains nothing, the write
    /// makes room itself: dirty data is drained (it may be compressible), a checkpoint is taken (it
    /// may free extents), and extents are cleaned for as long as that gains anything. Only if there
    /// is no room then, up to the reserve instead of the soft wall, the pool is full. That result
    /// stays valid until something is applied.
    ///
    /// # Errors
    /// [`surface::ErrorKind::Full`], and the errors of draining.
    pub(crate) fn admit(&self, object: &Object, offset: u64, length: u64) -> Result<Admitted<'_>> {
        self.charge(object, length, || self.overwrites(object, offset, length))?;
        self.brake(length);
        let bytes = cost_of(length);
        if let Some(admitted) = self.try_admit(bytes, self.extents_promised(object, Claim::New)) {
            return Ok(admitted);
        }
        if let Some(admitted) = self.try_admit(bytes, self.extents_kept(object, bytes, Claim::New)) {
            return Ok(admitted);
        }
        // Even if nothing is kept from new data now: other writers may take the rest while this one
        // waits, and then the write must not be refused as new data that is none.
        let claim = self.claim(object, offset, length)?;
        // Evaluated again on each try: conservative estimates become exact with the next
        // checkpoint.
        self.admit_before(bytes, &|| self.extents_kept(object, bytes, claim))
    }

    /// The same for data that overwrites nothing, and for the tree's own files.
    pub(crate) fn admit_new(&self, object: &Object, length: u64, asks: Asks) -> Result<Admitted<'_>> {
        let bytes = cost_of(length);
        match asks {
            Asks::Data => {
                self.charge(object, length, || Ok(false))?;
                if let Some(admitted) = self.try_admit(bytes, self.extents_promised(object, Claim::New)) {
                    return Ok(admitted);
                }
                self.admit_before(bytes, &|| self.extents_kept(object, bytes, Claim::New))
            }
            Asks::Tree => {
                // Reservations of other volumes apply as they do to overwriting.
                let promised = if self.overwrite_extents() == 0 { 0 } else { self.extents_reserved_against(object) };
                self.admit_before(bytes, &|| self.extents_kept_for(promised, bytes, Claim::Overwrite))
            }
        }
    }

    /// Reserves room for fetched groups of an image, if there is plenty: they can be fetched again.
    pub(crate) fn try_admit_fetched(&self, image: &Object, bytes: u64) -> Option<Admitted<'_>> {
        self.try_admit(bytes, self.extents_promised(image, Claim::New))
    }

    /// Admits `bytes` so that the extents `kept` are left.
    fn admit_before(&self, bytes: u64, kept: &dyn Fn() -> u64) -> Result<Admitted<'_>> {
        if let Some(admitted) = self.try_admit(bytes, kept()) {
            return Ok(admitted);
        }
        // The last attempt gained nothing.
        let hopeless = self.admission.full_at.load(Ordering::Relaxed) == self.log.applied_seq().0;
        if hopeless && self.buffer.bytes() == 0 && self.is_surely_full(bytes) {
            self.counters.refused_writes.add(1);
            return Err(self.full_error());
        }
        if !hopeless && let Some(admitted) = self.wait_for_cleaner(bytes, kept) {
            return Ok(admitted);
        }
        if let Some(admitted) = self.find_room(bytes, kept)? {
            return Ok(admitted);
        }
        self.admission.full_at.store(self.log.applied_seq().0, Ordering::Relaxed);
        self.counters.refused_writes.add(1);
        Err(self.full_error())
    }

    /// Makes room for `bytes` by all available means, for one caller at a time; `None` if there is
    /// none. `kept`: see [`Self::extents_kept`].
    pub(crate) fn find_room(&self, bytes: u64, kept: &dyn Fn() -> u64) -> Result<Option<Admitted<'_>>> {
        let try_now = || self.try_admit(bytes, kept());
        let _making_room = self.admission.making_room.lock();
        if let Some(admitted) = try_now() {
            return Ok(Some(admitted));
        }
        self.drain_all()?;
        if let Some(admitted) = try_now() {
            return Ok(Some(admitted));
        }
        self.refresh_host_space();
        self.take_light_checkpoint()?;
        // Deleted volumes free their space over several checkpoints.
        loop {
            if let Some(admitted) = try_now() {
                return Ok(Some(admitted));
            }
            if !self.objects.has_reaping() {
                break;
            }
            self.take_checkpoint()?;
        }
        // Data that can be fetched again is dropped before a write is refused.
        for round in 0..DROP_ROUNDS {
            if !self.drop_fetched(bytes.max(DROPPED_MIN) << round)? {
                break;
            }
            self.take_checkpoint()?;
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
        self.take_checkpoint()?;
        self.clean_for_room(bytes, kept)
    }

    /// Returns whether `bytes` do not even fit before the reserve. `false` while a checkpoint is
    /// running: the extents that it puts on the log's list are for a moment neither free nor
    /// listed.
    ///
    /// A round of the cleaner may reserve all room while it runs. That does not make the pool full:
    /// callers then wait for the end of the round.
    fn is_surely_full(&self, bytes: u64) -> bool {
        // In this order: it must no longer appear as room when it is no longer counted as taken.
        let cleaning = self.admission.cleaning_bytes.load(Ordering::Acquire);
        self.checkpoint.try_lock().is_some_and(|_still| {
            let taken = (self.committed_bytes() + bytes).saturating_sub(cleaning);
            self.room_before(self.geometry.reserve_extents()) < taken
        })
    }
}
