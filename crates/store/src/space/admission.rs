//! Admission: a write is accepted only if all dirty data, however incompressible, still finds room
//! in the log. So acknowledged data can always be flushed. Owns the bytes on their way to the log,
//! and the decision on each write ([`Space::decide`]):
//!
//! 1. The bytes on their way are read, and then the free space, once.
//! 2. While space is short, the write waits for its turn (`brake`).
//! 3. Its bytes are counted as on their way, if all of them fit before its wall: that of all
//!    extents promised to others, or else of those that must be kept for them now (`promises`).
//! 4. The same free space bounds the write buffer, which may be full.
//!
//! Any thread may call it. It takes no lock, except in step 2, and in step 3 that of the log's
//! state for a write that needs promised extents.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use units::BLOCK_BYTES;

use crate::base::shares::BUFFER_BYTES_MIN;
use crate::space::Space;

/// The write buffer takes this part of the remaining room: dirty data may cost twice its bytes in
/// the log. With a quarter, writers would wait for the workers more often than for room.
const ROOM_DIVISOR: u64 = 3;
/// Lower bound of the limit that a slow codec can set for the write buffer: some batches for each
/// worker.
pub const BUFFER_TIMELY_MIN: usize = 8 << 20;
/// Overhead of a group in the log: in the worst case a batch of its own, padded.
pub const GROUP_COST_BYTES: u64 = BLOCK_BYTES as u64;

/// Bytes for which a write of `length` is admitted: a partial block becomes a block of data.
pub fn cost_of(length: u64) -> u64 {
    length.next_multiple_of(BLOCK_BYTES as u64) + GROUP_COST_BYTES
}

/// A write that asks for room.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    /// Bytes that it may take in the log.
    pub bytes: u64,
    /// Extents promised to others: those that must be kept for them now are left free before the
    /// soft wall.
    pub promised: u64,
    /// Bytes by which it reduces what can be gained for them.
    pub asking: u64,
    /// Bytes by which it is slowed down while space is short.
    pub paced_bytes: u64,
}

/// The decision on a write.
pub enum Decision<'a> {
    /// It has its room, and may go into the write buffer.
    Admit(Admitted<'a>),
    /// It has its room, but the write buffer is full.
    WaitForBuffer(Admitted<'a>),
    /// There is no room before its wall.
    MakeRoom,
}

/// Free space at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Free {
    /// Extents that can be written before another one is freed.
    pub extents: u64,
    /// Free extents for which the file system had no room at the last look.
    pub lacking_below: u64,
    /// Bytes that rounds of cleaning have reserved.
    cleaning: u64,
}

/// The bytes on their way to the log, and the free space that was left for them afterwards.
///
/// Bytes go from admitted to dirty to used extents, and each is counted in the next place before it
/// leaves the last one: read in this order, none is missed.
#[derive(Clone, Copy)]
struct Seen {
    releases: u64,
    admitting: u64,
    dirty: u64,
    free: Free,
}

/// The bytes on their way to the log, and the state of a pool that seems full.
pub(super) struct Admission {
    /// Bytes that were admitted and are not in the write buffer yet.
    admitting: AtomicU64,
    /// Number of times that bytes were subtracted from these, raised before that.
    releases: AtomicU64,
    /// The part of them reserved by rounds of cleaning.
    cleaning_bytes: AtomicU64,
    /// Applied sequence number at which the pool was found full.
    full_at: AtomicU64,
    /// Limit of the write buffer by the last free space that a decision was based on, and whether
    /// writers were slowed down then.
    buffer_limit: AtomicUsize,
    is_braking: AtomicBool,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            admitting: AtomicU64::new(0),
            releases: AtomicU64::new(0),
            cleaning_bytes: AtomicU64::new(0),
            full_at: AtomicU64::new(u64::MAX),
            buffer_limit: AtomicUsize::new(usize::MAX),
            is_braking: AtomicBool::new(false),
        }
    }
}

/// Room for data that is being put into the write buffer; dropped when the data is there and
/// counted as dirty.
pub struct Admitted<'a> {
    space: &'a Space,
    bytes: u64,
    /// It frees room: see [`Space::room_before`].
    cleans: bool,
    /// Limit of the write buffer, by the free space that the decision was based on.
    buffer_limit: usize,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if self.cleans {
            // In this order: released bytes must no longer appear as room either.
            self.space.admission.cleaning_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        }
        self.space.release(self.bytes);
    }
}

impl Admitted<'_> {
    /// Leaves the bytes counted, until [`Space::release`] is called for them.
    #[inline]
    pub fn keep(self) -> u64 {
        let bytes = self.bytes;
        std::mem::forget(self);
        bytes
    }

    /// Bytes that the write buffer may hold when this data is put into it.
    #[inline]
    pub fn buffer_limit(&self) -> usize {
        self.buffer_limit
    }

    /// Notes a newer limit, after the writer has waited.
    pub fn set_buffer_limit(&mut self, bytes: usize) {
        self.buffer_limit = bytes;
    }
}

impl Space {
    /// Decides on a write; the room is reserved until the result is dropped.
    pub fn decide(&self, ask: Ask) -> Decision<'_> {
        let mut seen = self.see();
        if ask.paced_bytes > 0 && self.brake(ask.paced_bytes, seen.free) {
            seen = self.see();
        }
        let soft_wall = self.soft_wall();
        let room = self.take(seen, ask.bytes, soft_wall + ask.promised).or_else(|| {
            let kept = self.extents_kept_of(ask.promised, ask.asking, seen.free.lacking_below);
            if kept < ask.promised { self.take(seen, ask.bytes, soft_wall + kept) } else { None }
        });
        match room {
            Some(room) if self.buffer.held() > room.buffer_limit => Decision::WaitForBuffer(room),
            Some(room) => Decision::Admit(room),
            None => Decision::MakeRoom,
        }
    }

    /// Takes over bytes that were [kept](Admitted::keep), for a caller that now puts as many into
    /// the write buffer.
    #[inline]
    pub fn take_over(&self, bytes: u64) -> Admitted<'_> {
        Admitted { space: self, bytes, cleans: false, buffer_limit: self.buffer_limit() }
    }

    /// Returns whether the next write would probably have to wait: for the write buffer as it is
    /// now, or for its turn, both by the free space of the last decision.
    #[inline]
    pub fn would_wait(&self) -> bool {
        self.buffer.held() >= self.admission.buffer_limit.load(Ordering::Relaxed)
            || self.admission.is_braking.load(Ordering::Relaxed)
    }

    /// Ends the accounting of bytes that were [kept](Admitted::keep).
    #[inline]
    pub fn release(&self, bytes: u64) {
        self.admission.releases.fetch_add(1, Ordering::AcqRel);
        self.admission.admitting.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Bytes of data on their way to the log, including their overhead there.
    #[inline]
    pub fn committed_bytes(&self) -> u64 {
        // In this order: see `Seen`.
        let admitting = self.admission.admitting.load(Ordering::Acquire);
        admitting + self.dirty_cost()
    }

    /// Bytes that rounds of cleaning have reserved.
    #[inline]
    pub fn cleaning_bytes(&self) -> u64 {
        self.admission.cleaning_bytes.load(Ordering::Acquire)
    }

    /// Bytes that dirty data may take in the log.
    fn dirty_cost(&self) -> u64 {
        let copies = self.buffer.copied_bytes() as u64 + self.buffer.copied_groups() as u64 * GROUP_COST_BYTES;
        self.buffer.bytes() as u64 + self.buffer.groups() as u64 * GROUP_COST_BYTES + copies
    }

    fn see(&self) -> Seen {
        let releases = self.admission.releases.load(Ordering::Acquire);
        let admitting = self.admission.admitting.load(Ordering::Acquire);
        let dirty = self.dirty_cost();
        Seen { releases, admitting, dirty, free: self.free() }
    }

    fn free(&self) -> Free {
        let cleaning = self.cleaning_bytes();
        let (free, below) = (self.extents_free_or_listed(), self.extents_left_below());
        Free { extents: free.min(below), lacking_below: free.saturating_sub(below), cleaning }
    }

    /// Extents that are neither reserved nor needed for data on its way to the log.
    pub fn extents_spare(&self) -> u64 {
        let needed = self.committed_bytes().div_ceil(self.geometry.usable_bytes_min());
        self.extents_left().saturating_sub(self.geometry.reserve_extents() + needed)
    }

    /// Returns whether all dirty and admitted data fits, by figures that need no lock.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.has_room_before(self.geometry.reserve_extents())
    }

    /// Returns whether it fits with `wall` extents left free.
    #[inline]
    pub fn has_room_before(&self, wall: u64) -> bool {
        self.has_room_for(0, wall)
    }

    /// Returns whether `bytes` more would fit with `wall` extents left free.
    #[inline]
    pub fn has_room_for(&self, bytes: u64, wall: u64) -> bool {
        // In this order: see `Seen`.
        let committed = self.committed_bytes() + bytes;
        self.room_before(wall) >= committed
    }

    /// Bytes that certainly fit if `wall` extents stay free, including data on its way to the log.
    ///
    /// The room before the soft wall is left for the cleaner: its reservations there are not
    /// subtracted a second time.
    #[inline]
    pub fn room_before(&self, wall: u64) -> u64 {
        self.room_at(self.free(), wall)
    }

    fn room_at(&self, free: Free, wall: u64) -> u64 {
        let usable = self.geometry.usable_bytes_min();
        let soft_wall = self.soft_wall();
        let soft = if wall < soft_wall { 0 } else { soft_wall.saturating_sub(self.geometry.reserve_extents()) };
        let cleans = free.cleaning.min(soft * usable);
        (free.extents * usable + cleans).saturating_sub(wall * usable)
    }

    /// Bytes that the write buffer may hold now: the least of these.
    /// - Its share of memory.
    /// - In a nearly full pool, a part of the log's room, because dirty data may take more than its
    ///   size there. So writers wait for the workers and not for the last extent.
    /// - With a slow codec, the bytes that are drained in a few seconds. So writers wait a little
    ///   each, and no flush waits for minutes.
    /// - The limit of the standby ring, if there is one.
    #[inline]
    pub fn buffer_limit(&self) -> usize {
        self.buffer_limit_at(self.free())
    }

    fn buffer_limit_at(&self, free: Free) -> usize {
        let room = self.room_at(free, self.geometry.reserve_extents());
        let limit = usize::try_from(room / ROOM_DIVISOR).unwrap_or(usize::MAX).max(BUFFER_BYTES_MIN);
        let timely = self.buffer_timely.load(Ordering::Relaxed).max(BUFFER_TIMELY_MIN);
        let standby = self.buffer.standby().map_or(usize::MAX, |ring| ring.limit());
        let limit = limit.min(timely).min(self.buffer_share).min(standby);
        self.admission.buffer_limit.store(limit, Ordering::Relaxed);
        self.admission.is_braking.store(self.is_braking(free), Ordering::Relaxed);
        limit
    }

    /// Sets the bytes that the workers drain in the time that a flush may take.
    pub fn set_buffer_timely(&self, bytes: usize) {
        self.buffer_timely.store(bytes, Ordering::Relaxed);
    }

    /// Counts `bytes` as on their way to the log until the result is dropped, if they fit with
    /// `wall` extents left free. A refused reservation leaves no trace, so requests that do not fit
    /// together cannot fail each other.
    #[inline]
    pub fn try_reserve(&self, bytes: u64, wall: u64) -> Option<Admitted<'_>> {
        self.take(self.see(), bytes, wall)
    }

    /// The same, for the soft wall plus the extents kept back from the caller.
    #[inline]
    pub fn try_admit(&self, bytes: u64, kept: u64) -> Option<Admitted<'_>> {
        self.try_reserve(bytes, self.soft_wall() + kept)
    }

    fn take(&self, mut seen: Seen, bytes: u64, wall: u64) -> Option<Admitted<'_>> {
        loop {
            let admitting = seen.admitting + bytes;
            if self.room_at(seen.free, wall) < admitting + seen.dirty {
                return None;
            }
            let entered = self.admission.admitting.compare_exchange(
                seen.admitting,
                admitting,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if entered.is_ok() {
                break;
            }
            seen = self.see();
        }
        let room = Admitted { space: self, bytes, cleans: false, buffer_limit: self.buffer_limit_at(seen.free) };
        // Between the check and the entry as many bytes may have come as have left, and those that
        // left have not been counted anywhere.
        let is_counted = self.admission.releases.load(Ordering::Acquire) == seen.releases;
        (is_counted || self.has_room_before(wall)).then_some(room)
    }

    /// Counts `bytes` as on their way to the log until the result is dropped, whether or not there
    /// is room for them.
    #[inline]
    pub fn reserve(&self, bytes: u64) -> Admitted<'_> {
        self.admission.admitting.fetch_add(bytes, Ordering::AcqRel);
        Admitted { space: self, bytes, cleans: false, buffer_limit: usize::MAX }
    }

    /// Like `reserve`, for work that frees more room than it takes.
    pub fn reserve_for_cleaning(&self, bytes: u64) -> Admitted<'_> {
        let mut aside = self.reserve(bytes);
        aside.cleans = true;
        self.admission.cleaning_bytes.fetch_add(bytes, Ordering::AcqRel);
        aside
    }

    /// Returns whether a write was refused for lack of room, and nothing has been applied since.
    pub fn is_full(&self) -> bool {
        self.admission.full_at.load(Ordering::Relaxed) == self.log.applied_seq().0
    }

    /// Notes that a write is refused for lack of room.
    pub fn note_full(&self) {
        self.admission.full_at.store(self.log.applied_seq().0, Ordering::Relaxed);
    }

    /// The size of the pool has changed: refused writers may find room now.
    pub fn forget_full(&self) {
        self.admission.full_at.store(u64::MAX, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use bytes::Bytes;
    use format::Entry;
    use sim::Machine;
    use units::{GROUP_BLOCKS, GROUP_BYTES, GroupIndex, ObjectId, Seq};

    use super::*;
    use crate::base::group::{GroupKey, StoredGroups};
    use crate::base::testing::vitals_on;
    use crate::buffer::write_buffer::{DirtyRun, Taken, WriteBuffer};
    use crate::log::geometry::Geometry;
    use crate::log::{Log, Position, Sink};
    use crate::objects::Objects;
    use crate::space::extents::Extents;

    /// Applies nothing: no batch is written.
    struct Nowhere;

    impl Sink for Nowhere {
        fn foresee(&self, _: &[Entry]) -> Vec<StoredGroups> {
            Vec::new()
        }
        fn apply(&self, _: Seq, _: &[Entry], _: u64, _: &[StoredGroups]) -> bool {
            true
        }
        fn reached(&self, _: Seq) {}
        fn completed(&self, _: &[Taken]) {}
        fn failed(&self, _: &[Taken]) {}
    }

    /// The accounts of an empty pool of 8 MiB.
    struct Accounts {
        geometry: Geometry,
        buffer: Arc<WriteBuffer>,
        space: Space,
    }

    impl Accounts {
        fn new() -> Self {
            let (vitals, geometry) = (vitals_on(&Machine::new(8 << 20, 1)), Geometry::new(64 << 10, 8 << 20));
            let buffer = Arc::new(WriteBuffer::new());
            let position = Position {
                incarnation: 1,
                incarnation_first_seq: Seq(1),
                next_seq: Seq(1),
                open: Default::default(),
                extents: Vec::new(),
                passed: Vec::new(),
                dropped: Vec::new(),
            };
            let disk = vitals.env.disk.clone();
            let (sink, buffers) = (Arc::new(Nowhere), Arc::default());
            let log =
                Log::new(geometry.clone(), [1; 16], disk, sink, vitals.clone(), buffers, position, Seq(1), 1 << 20);
            let space = Space::new(
                (vitals, geometry.clone()),
                (buffer.clone(), Arc::new(Objects::new(BTreeMap::new(), 1)), Arc::new(log)),
                Extents::new(&geometry, BTreeMap::new(), 0),
                1 << 20,
            );
            Self { geometry, buffer, space }
        }
    }

    /// Writers stood still while rounds read their victims: the space before the soft wall was kept
    /// for the rounds, and so was the space that they had reserved.
    #[test]
    fn what_a_round_sets_aside_before_the_soft_wall_stands_in_nobodys_way() {
        let Accounts { geometry, space, .. } = &Accounts::new();
        space.brake.soft.store(4, Ordering::Relaxed);
        let (extent, reserve) = (geometry.usable_bytes_min(), geometry.reserve_extents());
        let left = |wall: u64| space.room_before(wall) - space.committed_bytes();
        let (data, all) = (left(space.soft_wall()), left(reserve));
        assert_eq!(all - data, 4 * extent);
        let aside = space.reserve_for_cleaning(3 * extent);
        assert_eq!((left(space.soft_wall()), left(reserve)), (data, all - 3 * extent));
        let more = space.reserve_for_cleaning(3 * extent);
        assert_eq!((left(space.soft_wall()), left(reserve)), (data - 2 * extent, all - 6 * extent), "4 are kept");
        drop(aside);
        let others = space.reserve(extent);
        assert_eq!(
            (left(space.soft_wall()), left(reserve)),
            (data - extent, all - 4 * extent),
            "they keep nothing free"
        );
        drop((more, others));
        assert_eq!((left(space.soft_wall()), left(reserve)), (data, all));
    }

    /// A write of which one byte finds no room is not admitted, and the next one has all of it.
    #[test]
    fn a_decision_admits_to_the_last_byte_and_no_further() {
        let Accounts { space, .. } = &Accounts::new();
        let all = space.room_before(space.soft_wall()) - space.committed_bytes();
        // Nothing can be gained for others.
        let ask = |bytes, promised| space.decide(Ask { bytes, promised, asking: u64::MAX / 2, paced_bytes: bytes });
        assert!(matches!(ask(all + 1, 0), Decision::MakeRoom));
        assert!(matches!(ask(all, 1), Decision::MakeRoom));
        let room = ask(all, 0);
        assert!(matches!(room, Decision::Admit(_)));
        assert!(matches!(ask(1, 0), Decision::MakeRoom));
        drop(room);
        assert!(matches!(ask(all, 0), Decision::Admit(_)));
        assert_eq!(space.committed_bytes(), 0);
    }

    /// Extents that are promised to others need not lie idle as long as cleaning could gain them.
    #[test]
    fn a_decision_keeps_only_what_others_could_not_gain() {
        let Accounts { space, .. } = &Accounts::new();
        let all = space.room_before(space.soft_wall()) - space.committed_bytes();
        let ask = |asking| space.decide(Ask { bytes: all, promised: 1, asking, paced_bytes: 0 });
        assert!(matches!(ask(0), Decision::Admit(_)));
        assert!(matches!(ask(u64::MAX / 2), Decision::MakeRoom));
    }

    /// Between a writer's look and its entry, another one's bytes became dirty, and a third one's
    /// came in their place.
    #[test]
    fn a_reservation_does_not_trust_figures_from_before_a_release() {
        let Accounts { buffer, space, .. } = &Accounts::new();
        let wall = space.soft_wall();
        let (all, other) = (space.room_before(wall), cost_of(GROUP_BYTES as u64));
        let first = space.reserve(other);
        let seen = space.see();
        let run = DirtyRun::of(0, GROUP_BLOCKS as u8, Bytes::from(vec![1; GROUP_BYTES]));
        buffer.insert(GroupKey { object: ObjectId(1), group: GroupIndex(0) }, run).unwrap();
        let dirty = space.dirty_cost();
        drop(first);
        let _third = space.reserve(other);
        assert_eq!(space.committed_bytes(), dirty + other);
        assert!(space.take(seen, all - other, wall).is_none());
        assert_eq!(space.committed_bytes(), dirty + other, "it leaves no trace");
        assert!(space.take(space.see(), all - dirty - other, wall).is_some());
    }
}
