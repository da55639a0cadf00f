//! Room for writes: admits a write, and makes room for it when there is none. Owns the order of the
//! means by which room is made, and the lock by which one writer at a time uses them; `space` has
//! the accounts and decides. Threads of clients call it; they may wait for the cleaner, for the
//! data file and for the map store.
//!
//! 1. The write's quota is charged (`write::quota`), and `space` decides on it as on new data, by
//!    one look at the free space.
//! 2. A write that finds no room gets the wall of its claim (`space::claims`), and waits for the
//!    cleaner's threads.
//! 3. If cleaning gains nothing, the write makes room itself (`find`): dirty data is drained (it
//!    may be compressible), a checkpoint is taken (it may free extents), fetched groups of images
//!    are dropped, and extents are cleaned for as long as that gains anything.
//! 4. Only if there is no room then, up to the reserve instead of the soft wall, the pool is full.
//!    That result stays valid until something is applied.

mod find;
#[cfg(test)]
mod room_tests;

use std::sync::Arc;

use store::base::ranked::Mutex;
use store::base::ranks;
use store::base::signals::Signals;
use store::base::vitals::Vitals;
use store::buffer::write_buffer::WriteBuffer;
use store::log::geometry::Geometry;
use store::map::Map;
use store::map::apply::Applier;
use store::objects::Objects;
use store::objects::file_layout::NAMES;
use store::objects::object::Object;
use store::space::Space;
use store::space::admission::{Admitted, Ask, Decision, cost_of};
use store::space::claims::Claim;
use surface::Result;
use units::{BlockIndex, GroupIndex};

use crate::checkpoint::Checkpoints;
use crate::clean::Cleaning;
use crate::fetch::Fetches;
use crate::write::Writes;

/// The kind of data for which a write needs room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    /// Data of users.
    Data,
    /// File metadata of a share's tree. Neither a quota nor the wall of new data applies to it.
    Tree,
}

/// Admits writes.
pub(crate) struct MakeRoom {
    vitals: Arc<Vitals>,
    geometry: Geometry,
    buffer: Arc<WriteBuffer>,
    map: Arc<Map>,
    objects: Arc<Objects>,
    space: Arc<Space>,
    checkpoints: Arc<Checkpoints>,
    writes: Arc<Writes>,
    fetches: Arc<Fetches>,
    clean: Arc<Cleaning>,
    signals: Arc<Signals>,
    /// Held by the writer that makes room in a pool that seems full; others wait for the space that
    /// it gains.
    alone: Mutex<(), ranks::MakingRoom>,
}

impl MakeRoom {
    pub(crate) fn new(
        (vitals, applier, space): (Arc<Vitals>, &Applier, Arc<Space>),
        (checkpoints, writes): (Arc<Checkpoints>, Arc<Writes>),
        (fetches, clean, signals): (Arc<Fetches>, Arc<Cleaning>, Arc<Signals>),
    ) -> Self {
        Self {
            vitals,
            geometry: applier.geometry.clone(),
            buffer: applier.buffer.clone(),
            map: applier.map.clone(),
            objects: applier.objects.clone(),
            space,
            checkpoints,
            writes,
            fetches,
            clean,
            signals,
            alone: Mutex::new(()),
        }
    }

    /// Admits a write of `length` bytes at `offset` of an object, and waits until the write buffer
    /// takes it; the room is reserved until the result is dropped.
    ///
    /// The wall of new data is the soft wall (`space::brake`) plus the extents kept for overwrites
    /// and other volumes, a part of which small writes may take (`space::claims`). The wall of
    /// overwrites is the soft wall plus the reservations of other volumes.
    ///
    /// # Errors
    /// [`surface::ErrorKind::Full`], and the errors of draining.
    pub(crate) fn admit(&self, object: &Object, offset: u64, length: u64) -> Result<Admitted<'_>> {
        match self.decide(object, offset, length)? {
            Decision::Admit(room) => Ok(room),
            Decision::WaitForBuffer(room) => self.writes.wait_for_buffer(room),
            Decision::MakeRoom => self.writes.enter_buffer(self.make_room_by_claim(object, offset, length)?),
        }
    }

    /// The same for data that is appended to the log without the write buffer.
    ///
    /// # Errors
    /// Those of [`admit`](Self::admit).
    pub(crate) fn admit_to_log(&self, object: &Object, offset: u64, length: u64) -> Result<Admitted<'_>> {
        match self.decide(object, offset, length)? {
            Decision::Admit(room) | Decision::WaitForBuffer(room) => Ok(room),
            Decision::MakeRoom => self.make_room_by_claim(object, offset, length),
        }
    }

    /// Admits data that overwrites nothing, or the tree's own files. Does not wait for the write
    /// buffer; `paced_bytes`: see [`Ask`].
    ///
    /// # Errors
    /// Those of [`admit`](Self::admit).
    pub(crate) fn admit_new(&self, object: &Object, length: u64, paced_bytes: u64, asks: Asks) -> Result<Admitted<'_>> {
        let times = self.times(object, if asks == Asks::Tree { Some(NAMES.start) } else { None });
        let (bytes, length) = (times * cost_of(length), times * length);
        let kept = || match asks {
            Asks::Data => self.space.extents_kept(object, bytes, Claim::New),
            Asks::Tree => self.space.extents_kept_from_tree(object),
        };
        let (promised, asking) = match asks {
            Asks::Data => {
                self.writes.charge(object, length, || Ok(false))?;
                (self.space.extents_promised(object, Claim::New), bytes)
            }
            Asks::Tree => (self.space.extents_promised_by_tree(object), 0),
        };
        match self.space.decide(Ask { bytes, promised, asking, paced_bytes }) {
            Decision::Admit(room) | Decision::WaitForBuffer(room) => Ok(room),
            Decision::MakeRoom => self.make_room_for(bytes, &kept),
        }
    }

    /// Returns in how many copies data is stored: of a share's tree if it lies there, of files
    /// without an offset.
    fn times(&self, object: &Object, offset: Option<u64>) -> u64 {
        let group = offset.map_or(GroupIndex(0), |offset| BlockIndex::containing(offset).group());
        let copies = object.copies_of(group);
        self.geometry.note_copies(copies);
        1 + u64::from(copies)
    }

    /// Step 1.
    fn decide(&self, object: &Object, offset: u64, length: u64) -> Result<Decision<'_>> {
        let times = self.times(object, Some(offset));
        self.writes.charge(object, times * length, || self.writes.overwrites(object, offset, length))?;
        let (promised, bytes) = (self.space.extents_promised(object, Claim::New), times * cost_of(length));
        Ok(self.space.decide(Ask { bytes, promised, asking: bytes, paced_bytes: length }))
    }

    /// Steps 2 to 4.
    fn make_room_by_claim(&self, object: &Object, offset: u64, length: u64) -> Result<Admitted<'_>> {
        let bytes = self.times(object, Some(offset)) * cost_of(length);
        // Even if nothing is kept from new data now: other writers may take the rest while this one
        // waits, and then the write must not be refused as new data that is none.
        let claim = Claim::of(object, offset, length, self.writes.overwrites(object, offset, length)?);
        // Evaluated again on each try: conservative estimates become exact with the next
        // checkpoint.
        self.make_room_for(bytes, &|| self.space.extents_kept(object, bytes, claim))
    }

    /// Admits `bytes` so that the extents `kept` are left.
    fn make_room_for(&self, bytes: u64, kept: &dyn Fn() -> u64) -> Result<Admitted<'_>> {
        if let Some(admitted) = self.space.try_admit(bytes, kept()) {
            return Ok(admitted);
        }
        // The last attempt gained nothing.
        let hopeless = self.space.is_full();
        if hopeless && self.buffer.bytes() == 0 && self.is_surely_full(bytes) {
            self.vitals.counters.refused_writes.add(1);
            return Err(self.space.full_error());
        }
        if !hopeless && let Some(admitted) = self.wait_for_cleaner(bytes, kept) {
            return Ok(admitted);
        }
        if let Some(admitted) = self.find_room(bytes, kept)? {
            return Ok(admitted);
        }
        self.space.note_full();
        self.vitals.counters.refused_writes.add(1);
        Err(self.space.full_error())
    }

    /// Returns whether `bytes` do not even fit before the reserve. `false` while a checkpoint is
    /// running: the extents that it puts on the log's list are for a moment neither free nor
    /// listed.
    ///
    /// A round of the cleaner may reserve all room while it runs. That does not make the pool full:
    /// callers then wait for the end of the round.
    fn is_surely_full(&self, bytes: u64) -> bool {
        // In this order: it must no longer appear as room when it is no longer counted as taken.
        let cleaning = self.space.cleaning_bytes();
        self.checkpoints.state.try_lock().is_some_and(|_still| {
            let taken = (self.space.committed_bytes() + bytes).saturating_sub(cleaning);
            self.space.room_before(self.geometry.reserve_extents()) < taken
        })
    }
}
