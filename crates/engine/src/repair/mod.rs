//! Opens, checks and repairs a pool after a crash or damage. Owns the lists of known damage
//! (`damages`) and of losses (`loss`). The thread that opens a pool calls it before the pool has
//! clients; checks and scrubs are called by threads of clients.
//!
//! 1. An opening applies the log after the last checkpoint (`recovery`), replays writes that a dead
//!    process had acknowledged and not drained (`standby_open`, `standby_left`), and reports the
//!    data that a lost standby memory may have had (`standby_lost`). Nothing is dropped unless the
//!    caller accepts the loss.
//! 2. With `check --repair`, a damaged map store is repaired before that (`mend`).
//! 3. A check reads everything, and compares (`check`). A scrub verifies the data while the pool is
//!    in use (`scrub`).
//! 4. Where nothing else helps, `rescue` rebuilds volumes in another pool from the log alone.

pub(crate) mod check;
pub(crate) mod damages;
pub(crate) mod loss;
pub(crate) mod mend;
pub(crate) mod recovery;
#[cfg(test)]
pub(crate) mod recovery_tests;
pub(crate) mod scrub;
pub(crate) mod standby_left;
pub(crate) mod standby_lost;
pub(crate) mod standby_open;
#[cfg(test)]
pub(crate) mod standby_tests;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use format::ScrubState;
use store::base::buffers::BufferPool;
use store::base::ranked::Mutex;
use store::base::ranks;
use store::base::status::{DamageReport, Problem};
use store::base::vitals::Vitals;
use store::log::Log;
use store::log::catalogue::Catalogue;
use store::log::geometry::Geometry;
use store::map::Map;
use store::map::apply::Applier;
use store::objects::Objects;
use store::space::Space;
use units::ExtentIndex;

use crate::checkpoint::Checkpoints;
use crate::clean::Cleaning;
use crate::clean::walked::Walked;
use crate::read::Reads;
use crate::repair::loss::Losses;
use crate::write::Writes;

/// Checks and repairs the parts of a pool. Owns known damage and losses, and the findings of its
/// opening.
pub(crate) struct Repairs {
    vitals: Arc<Vitals>,
    geometry: Geometry,
    pool_id: [u8; 16],
    buffers: Arc<BufferPool>,
    map: Arc<Map>,
    objects: Arc<Objects>,
    catalogue: Arc<Catalogue>,
    log: Arc<Log>,
    space: Arc<Space>,
    reads: Arc<Reads>,
    checkpoints: Arc<Checkpoints>,
    writes: Arc<Writes>,
    clean: Arc<Cleaning>,
    scrub: Mutex<Scrubbing, ranks::Scrub>,
    /// `Counters::reads_of_copies` when the keeper last looked at suspected places.
    copies_seen: AtomicU64,
    /// The last report of damage.
    damage_reported: Mutex<Reported, ranks::DamageReported>,
    /// Damage that opening the pool has repaired; a check reports it.
    pub mended: Mutex<Vec<Problem>, ranks::Mended>,
    /// Damaged copies that opening the pool has corrected, for the report of `check`.
    pub opening_notes: Mutex<Vec<String>, ranks::OpeningNotes>,
    /// Losses by repairs, and how the log ended.
    pub losses: Mutex<Losses, ranks::Losses>,
    /// The state in which the standby memory was found when the pool was opened.
    pub standby: Mutex<StandbyFacts, ranks::StandbyFacts>,
}

impl Repairs {
    pub(crate) fn new(
        (vitals, pool_id, buffers): (Arc<Vitals>, [u8; 16], Arc<BufferPool>),
        (applier, log, space): (&Applier, Arc<Log>, Arc<Space>),
        (reads, checkpoints, writes, clean): (Arc<Reads>, Arc<Checkpoints>, Arc<Writes>, Arc<Cleaning>),
    ) -> Self {
        Self {
            vitals,
            geometry: applier.geometry.clone(),
            pool_id,
            buffers,
            map: applier.map.clone(),
            objects: applier.objects.clone(),
            catalogue: applier.catalogue.clone(),
            log,
            space,
            reads,
            checkpoints,
            writes,
            clean,
            scrub: Mutex::default(),
            copies_seen: AtomicU64::new(0),
            damage_reported: Mutex::default(),
            mended: Mutex::default(),
            opening_notes: Mutex::default(),
            losses: Mutex::default(),
            standby: Mutex::default(),
        }
    }
}

/// Scrubbing state of an open pool.
#[derive(Default)]
pub(crate) struct Scrubbing {
    /// The progress, once it has been loaded.
    state: Option<ScrubState>,
    /// `Cleaning::traffic_bytes` when the last slice ended.
    traffic_bytes: u64,
    walked: Walked,
}

/// The last report, and the turn of the list's extents.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    /// The next extent to verify, of those with damages on the list.
    next: ExtentIndex,
    report: DamageReport,
    /// When the last slice of a scrub ended.
    slice_ended_ns: Option<u64>,
}

/// Facts about the standby memory of an open pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StandbyFacts {
    /// Records that were replayed when the pool was opened, and their bytes of data.
    pub replayed: u64,
    pub replayed_bytes: u64,
    /// Memory that was found and not replayed, and data that is missing.
    pub notes: Vec<String>,
    /// Whether memory of an earlier process has been taken over, and a ring of this process is
    /// wanted.
    pub is_wanted: bool,
    /// Why there is no standby memory now, or none with all data.
    pub why_none: Option<String>,
    /// Why the memory was last replaced.
    pub replaced: Option<String>,
    /// When the next attempt is due.
    pub next_try_ns: u64,
}
