//! Free space: the accounts of extents and their live data, admission of writes, reservations, and
//! the free space of the file system. Owns all of these ([`Space`]). It only counts: it never
//! drains, cleans or takes a checkpoint; `make_room` does that for a write that finds no room.
//! Checkpoints change the accounts of extents, the log takes extents from them, admission and the
//! cleaner read them. Any thread may call it; only a writer that is slowed down waits here.
//!
//! A byte of the data file goes through these steps:
//! 1. *Admitted*: a write is taken only if it surely finds room (`admission`, with `promises`,
//!    `claims` and `host_space`). The room counts as taken from here on. While space is short,
//!    writers are slowed down (`brake`).
//! 2. *Dirty*, and then in a batch of an extent that the log has open.
//! 3. *Live*, as of the checkpoint that counts it (`extents`, `usage`).
//! 4. *Dead*, when something newer takes its place (`dead_map`).
//! 5. *Free*, with its whole extent. **Only a checkpoint frees an extent** (`Extents::release`,
//!    called when it is published): when nothing in it is live and no reader is left in it. The
//!    cleaner only makes extents empty.
//! 6. Punched out of the data file (`trim`), unless it is filled again at once.

pub mod admission;
pub mod brake;
pub mod claims;
pub mod dead_map;
pub mod extents;
pub(crate) mod host_space;
mod pace;
pub mod promises;
pub mod reservations;
pub mod rule;
pub mod trim;
pub mod usage;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use units::ExtentIndex;

use crate::base::ranked::Mutex;
use crate::base::ranks;
use crate::base::vitals::Vitals;
use crate::buffer::write_buffer::WriteBuffer;
use crate::log::Log;
use crate::log::geometry::Geometry;
use crate::objects::Objects;
use crate::space::admission::Admission;
use crate::space::brake::Brake;
use crate::space::extents::Extents;
use crate::space::host_space::Below;

/// Upper bounds of cleaned extents before a checkpoint is taken, when space is needed and when not.
const EVACUATED_PRESSED: u64 = 8;
pub const EVACUATED_MAX: u64 = 64;

/// See the module.
pub struct Space {
    vitals: Arc<Vitals>,
    geometry: Geometry,
    buffer: Arc<WriteBuffer>,
    objects: Arc<Objects>,
    log: Arc<Log>,
    pub extents: Mutex<Extents, ranks::Extents>,
    /// Copy of `Extents::free`, to be read without the lock.
    extents_free: AtomicU64,
    /// Copy of `Extents::live_bytes`.
    live_bytes: AtomicU64,
    /// Extents that were cleaned and become free with the next checkpoint.
    evacuated: AtomicU64,
    /// Free extents whose space was not punched out of the data file.
    unpunched: Mutex<BTreeSet<ExtentIndex>, ranks::Unpunched>,
    below: Below,
    /// Bytes of reservations that are not used.
    reserved_unmet: AtomicU64,
    /// Whether there are shares, as of the last time that reservations were counted.
    has_shares: AtomicBool,
    admission: Admission,
    /// Upper bounds of the write buffer: its share of memory, and the bytes that are drained in
    /// time.
    buffer_share: usize,
    buffer_timely: AtomicUsize,
    pub brake: Brake,
}

impl Space {
    pub fn new(
        (vitals, geometry): (Arc<Vitals>, Geometry),
        (buffer, objects, log): (Arc<WriteBuffer>, Arc<Objects>, Arc<Log>),
        extents: Extents,
        buffer_share: usize,
    ) -> Self {
        Self {
            vitals,
            geometry,
            buffer,
            objects,
            log,
            extents_free: AtomicU64::new(extents.free()),
            live_bytes: AtomicU64::new(extents.live_bytes()),
            extents: Mutex::new(extents),
            evacuated: AtomicU64::new(0),
            unpunched: Mutex::default(),
            below: Below::default(),
            reserved_unmet: AtomicU64::new(0),
            has_shares: AtomicBool::new(false),
            admission: Admission::default(),
            buffer_share,
            buffer_timely: AtomicUsize::new(usize::MAX),
            brake: Brake::default(),
        }
    }

    /// Copies the figures that are read without the lock. The caller holds it, and has changed
    /// them.
    pub fn publish(&self, extents: &Extents) {
        self.extents_free.store(extents.free(), Ordering::Release);
        self.live_bytes.store(extents.live_bytes(), Ordering::Relaxed);
    }

    /// Live bytes as of the last checkpoint.
    #[inline]
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// Notes that the cleaner has emptied `extents` more.
    pub fn evacuate(&self, extents: u64) {
        self.evacuated.fetch_add(extents, Ordering::Relaxed);
    }

    /// Extents that were cleaned and become free with the next checkpoint.
    #[inline]
    pub fn evacuated(&self) -> u64 {
        self.evacuated.load(Ordering::Relaxed)
    }

    /// Notes that a checkpoint has freed the `extents` that were evacuated when it captured.
    pub fn freed_evacuated(&self, extents: u64) {
        self.evacuated.fetch_sub(extents, Ordering::Relaxed);
    }

    /// Extents that are free or listed, whether or not the file system has room for them.
    fn extents_free_or_listed(&self) -> u64 {
        self.extents_free.load(Ordering::Acquire) + self.log.ahead() as u64
    }

    /// Extents that can be written before another one is freed, including the reserve, as far as
    /// the file system has room.
    #[inline]
    pub fn extents_left(&self) -> u64 {
        self.extents_free_or_listed().min(self.extents_left_below())
    }

    /// Returns whether a checkpoint could put extents on the log's list, or free some.
    #[inline]
    pub fn has_free_extents(&self) -> bool {
        self.extents_free.load(Ordering::Relaxed) + self.evacuated() > 0
    }

    /// Returns whether the cleaner has to work for this pool, or soon will: then it pays to
    /// separate hot and cold data.
    #[inline]
    pub fn is_short(&self) -> bool {
        let total = u64::from(self.geometry.extents()) - 1;
        self.extents_left() * 1000 < total * u64::from(self.objects.clean_marks().high_permille)
    }

    /// Returns whether the gained space should become free now: it cannot be used before a
    /// checkpoint.
    pub fn is_checkpoint_due(&self) -> bool {
        let left = self.extents_left().saturating_sub(self.geometry.reserve_extents());
        let patience = if self.is_pressed() { EVACUATED_PRESSED } else { EVACUATED_MAX };
        self.evacuated() > patience.min(left)
    }
}
