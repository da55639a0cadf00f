//! Space below the data file: how much of the pool can be written at all. Owns the bound that a
//! file system puts on a sparse file, as of the last look.
//!
//! A pool is as large as its data file says, but the file system may have less room left. Admission
//! (`space::admission`) must know it: acknowledged data has to find its place when it is flushed. So extents
//! count as left only as far as they have their space below, or can get it.
//!
//! 1. A *look* asks the storage for its room. If that is enough for every extent that could be
//!    filled, there is no bound.
//! 2. Otherwise extents that have their space already (`backing`) are counted, and with the room
//!    they are the bound. Those that the pool had when it was opened are looked at once:
//!    the free ones by the first such look, the others when a checkpoint frees them.
//! 3. With next to no room, the pool is *tight*. In a tight pool, checkpoints keep the log's list
//!    short, put extents with space on it first, and give the space of all others that are free
//!    back at once: so discarded, destroyed and cleaned data is room again, for the pool and for
//!    other users of the file system.
//!
//! Looks are taken when the pool is opened, by the maintenance thread every now and then, whenever
//! a checkpoint has freed something, and before a write is refused. In between, another program may
//! fill the file system: then a flush fails until there is room.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use units::ExtentIndex;

use crate::space::Space;

/// Free space of the file system that is left out of all accounts: more than can be on its way to
/// the log until the next look.
const AMPLE_BYTES: u64 = 1 << 30;
/// Extents of room in the file system below which a pool is tight: some more than the log has
/// listed then.
const TIGHT_EXTENTS: u64 = 64;

/// Result of the last look.
#[derive(Debug)]
pub struct Below {
    /// Number of extents that the log can open in all, counted since the pool was opened;
    /// `u64::MAX`: no bound.
    bound: AtomicU64,
    is_tight: AtomicBool,
    /// Whether it is known which extents have had their space since before the pool was opened.
    is_learned: AtomicBool,
}

impl Default for Below {
    fn default() -> Self {
        Self { bound: AtomicU64::new(u64::MAX), is_tight: AtomicBool::new(false), is_learned: AtomicBool::new(false) }
    }
}

impl Space {
    /// Returns whether the file system has next to no room, and less than the pool.
    #[inline]
    pub fn is_tight(&self) -> bool {
        self.below.is_tight.load(Ordering::Relaxed)
    }

    /// Returns whether it is the file system, and not the pool's capacity, that bounds how much can
    /// be written to so many free extents.
    pub fn is_short_below(&self, extents_free: u64) -> bool {
        self.extents_left_below() < extents_free
    }

    /// Extents that the log can open before it needs more room than the file system has.
    pub(crate) fn extents_left_below(&self) -> u64 {
        self.below.bound.load(Ordering::Relaxed).saturating_sub(self.vitals.counters.opened_extents.get())
    }

    /// Returns the bytes that can be written to so many free extents: those that they occupy
    /// already, and the room of the file system. Asks the file system each time, since the figure
    /// is shown to users.
    pub fn free_bytes_below(&self, extents_free: u64) -> u64 {
        let extent_bytes = u64::from(self.geometry.extent_bytes);
        let free = extents_free.min(self.extents_left_below()) * extent_bytes;
        let room = self.vitals.env.disk.room_bytes();
        if room >= free {
            return free;
        }
        // Used extents have their space to the last byte: it is preallocated extent by extent.
        let used = u64::from(self.geometry.extents()).saturating_sub(extents_free) * extent_bytes;
        // If the storage cannot answer, count nothing.
        let occupied = self.vitals.env.disk.occupied_bytes().unwrap_or(0);
        free.min(room.saturating_add(occupied.saturating_sub(used)))
    }

    /// Takes a look.
    pub fn refresh_host_space(&self) {
        let bytes = self.vitals.env.disk.room_bytes();
        let room = bytes / u64::from(self.geometry.extent_bytes);
        let is_ample = bytes >= AMPLE_BYTES || room >= u64::from(self.geometry.extents());
        let bound = if is_ample { u64::MAX } else { self.bound_below(room) };
        self.below.bound.store(bound, Ordering::Relaxed);
        self.below.is_tight.store(bound != u64::MAX && room < TIGHT_EXTENTS, Ordering::Relaxed);
    }

    /// Learns which of the extents that a checkpoint has freed have their space since before the
    /// pool was opened. Otherwise each of them would need room a second time.
    pub(crate) fn learn_freed(&self, freed: &[ExtentIndex]) {
        if self.below.is_learned.load(Ordering::Relaxed) {
            self.learn_backing(freed);
        }
    }

    fn learn_backing(&self, extents: &[ExtentIndex]) {
        let extent_bytes = u64::from(self.geometry.extent_bytes);
        let is_unknown = |extent: &&ExtentIndex| !self.log.backing.has(**extent, 1);
        let has_space = |e: &&ExtentIndex| self.vitals.env.disk.has_space(self.geometry.start(**e), extent_bytes);
        extents.iter().filter(is_unknown).filter(has_space).for_each(|extent| self.log.backing.gained(*extent, 1));
    }

    /// The bound with room for so many more extents in the file system.
    fn bound_below(&self, room: u64) -> u64 {
        let (opened, mut empty) = self.log.opened_and_ahead();
        {
            let extents = self.extents.lock();
            let all = (1..self.geometry.extents_usable()).map(ExtentIndex);
            empty.extend(all.filter(|extent| extents.is_free(*extent)));
        }
        if room >= empty.len() as u64 {
            return u64::MAX;
        }
        if !self.below.is_learned.swap(true, Ordering::Relaxed) {
            self.learn_backing(&empty);
        }
        let missing = empty.iter().filter(|extent| !self.log.backing.has(**extent, 1)).count() as u64;
        if missing <= room { u64::MAX } else { opened + empty.len() as u64 - missing + room }
    }
}
