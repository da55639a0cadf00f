//! The shared state of an open pool. Any thread may call it; `base::ranks` has the order of its
//! locks.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use env::MapBatch;
use format::KEY_END;

use crate::base::buffers::BufferPool;
use crate::base::ranked::{Mutex, RwLock};
use crate::base::ranks;
use crate::base::shares::Shares;
use crate::base::signals::Signals;
use crate::base::status::Problem;
use crate::base::users::Users;
use crate::base::vitals::Vitals;
use crate::buffer::write_buffer::WriteBuffer;
use crate::checkpoint::CheckpointState;
use crate::checkpoint::opening::Noted;
use crate::clean::cold::ColdPace;
use crate::clean::round::Cleaner;
use crate::clean::walked::Walked;
use crate::codecs::chooser::Chooser;
use crate::codecs::dictionaries::Dictionaries;
use crate::codecs::samples::Sampling;
use crate::log::Log;
use crate::log::catalogue::Catalogue;
use crate::log::geometry::Geometry;
use crate::map::Map;
use crate::map::apply::Applier;
use crate::objects::Objects;
use crate::pool::workers::Workers;
use crate::read::images::Images;
use crate::read::suspects::Suspects;
use crate::read::unit_cache::UnitCache;
use crate::repair::damages::Reported;
use crate::repair::loss::Losses;
use crate::repair::scrub::Scrubbing;
use crate::repair::standby_open::StandbyFacts;
use crate::space::Space;
use crate::space::extents::Extents;
use crate::upkeep::defrag::SortWalk;
use crate::volume::claims::Claims;
use crate::write::precompress::Ahead;
use crate::write::write_heat::Rewrites;

pub(crate) struct Core {
    pub vitals: Arc<Vitals>,
    pub shares: Shares,
    pub geometry: Geometry,
    pub pool_id: [u8; 16],
    pub buffers: Arc<BufferPool>,
    pub buffer: Arc<WriteBuffer>,
    pub map: Arc<Map>,
    pub objects: Arc<Objects>,
    pub catalogue: Arc<Catalogue>,
    pub applier: Arc<Applier>,
    pub log: Arc<Log>,
    pub space: Space,
    pub noted: Noted,
    /// Unreadable areas after the end of the log, until the first checkpoint is durable.
    pub unreadable: Mutex<Vec<Range<u64>>, ranks::Unreadable>,
    pub cleaner: Mutex<Cleaner, ranks::Cleaner>,
    /// Held shared by rounds in the background, exclusively by a writer that determines how much
    /// can be gained at all.
    pub cleaning: RwLock<(), ranks::Cleaning>,
    /// Held by the round that may take the extents kept for moves.
    pub dipping: Mutex<(), ranks::Dipping>,
    pub scrub: Mutex<Scrubbing, ranks::Scrub>,
    pub suspects: Suspects,
    /// The last report of damage.
    pub damage_reported: Mutex<Reported, ranks::DamageReported>,
    /// Damage that opening the pool has repaired; a check reports it.
    pub mended: Mutex<Vec<Problem>, ranks::Mended>,
    /// Damaged copies that opening the pool has corrected, for the report of `check`.
    pub opening_notes: Mutex<Vec<String>, ranks::OpeningNotes>,
    /// Losses by repairs, and how the log ended.
    pub losses: Mutex<Losses, ranks::Losses>,
    /// Damage that cleaning could not move.
    pub damages: Mutex<Vec<String>, ranks::Damages>,
    pub checkpoint: Mutex<CheckpointState, ranks::Checkpoint>,
    /// Held shared from a look at the map to the moves that follow from it, exclusively for a
    /// moment while a checkpoint captures.
    pub still: RwLock<(), ranks::Still>,
    /// Raised when a checkpoint captures, and before and after it is published: a look in between
    /// may have seen a mixture.
    pub map_version: AtomicU64,
    /// Number of the checkpoint that captured last.
    pub captured: AtomicU64,
    /// Held while a reader uses locations; a checkpoint waits until all earlier readers are done,
    /// before extents are reused.
    pub readers: Users,
    pub units: UnitCache,
    pub images: Images,
    /// State of `compression=auto`.
    pub chooser: Chooser,
    /// Groups written lately.
    pub rewrites: Rewrites,
    pub cold_pace: ColdPace,
    pub dictionaries: Dictionaries,
    pub signals: Signals,
    pub workers: Workers,
    pub ahead: Ahead,
    /// Held by all changes to the table of objects.
    pub admin: Mutex<(), ranks::Admin>,
    /// The full checkpoint after which clones were last reparented, by its count; held while that
    /// is done.
    pub passed_on: Mutex<u64, ranks::PassedOn>,
    /// The shrink in progress.
    pub shrinking: Mutex<Option<crate::upkeep::shrink::Shrinking>, ranks::Shrinking>,
    /// Held by a slice of the recompression.
    pub recompressing: Mutex<(), ranks::Recompressing>,
    /// Progress of the recompression, after its last slice.
    pub recompressed: Mutex<Walked, ranks::Recompressed>,
    /// Held by the thread that sorts.
    pub sorting: Mutex<SortWalk, ranks::Sorting>,
    /// Held shared while a large range is made a hole past the write buffer; exclusively, for a
    /// moment, by a thread that relies on there being none.
    pub punching: RwLock<(), ranks::Punching>,
    /// Large ranges that were made holes.
    pub punches: AtomicU64,
    /// Held by the writer that makes room in a pool that seems full; others wait for the space that
    /// it gains.
    pub making_room: Mutex<(), ranks::MakingRoom>,
    /// Arrival time of the oldest dirty data, for the age limit: time of the first tick that saw
    /// the generation.
    pub aging: Mutex<(u64, u64), ranks::Aging>,
    /// Bytes of the log since the last checkpoint when that figure last changed, and the time of
    /// that.
    pub resting: Mutex<(u64, u64), ranks::Resting>,
    /// Opened trees of shares.
    pub tree_claims: Arc<Claims>,
    /// The state in which the standby memory was found when the pool was opened.
    pub standby: Mutex<StandbyFacts, ranks::StandbyFacts>,
}

/// Parts that `open` creates before the core.
pub(crate) struct Parts {
    pub vitals: Arc<Vitals>,
    /// Geometry, write buffer, map, objects and catalogue are shared with the core.
    pub applier: Arc<Applier>,
    pub pool_id: [u8; 16],
    pub buffers: Arc<BufferPool>,
    pub log: Log,
    pub extents: Extents,
    pub checkpoint: CheckpointState,
    pub chooser: Chooser,
    /// Unreadable bytes of the data file after the end of the log.
    pub unreadable: Vec<Range<u64>>,
}

impl Core {
    pub(crate) fn new(parts: Parts) -> Self {
        let shares = Shares::of(parts.vitals.options.memory_bytes);
        let geometry = parts.applier.geometry.clone();
        let capacity_bytes = u64::from(geometry.extents()) * u64::from(geometry.extent_bytes);
        let captured = AtomicU64::new(parts.extents.checkpoint());
        let log = Arc::new(parts.log);
        let space = Space::new(
            (parts.vitals.clone(), geometry.clone()),
            (parts.applier.buffer.clone(), parts.applier.objects.clone(), log.clone()),
            parts.extents,
            shares.write_buffer,
        );
        Self {
            shares,
            noted: Noted::default(),
            unreadable: Mutex::new(parts.unreadable),
            still: RwLock::new(()),
            map_version: AtomicU64::new(0),
            captured,
            space,
            cleaner: Mutex::default(),
            cleaning: RwLock::new(()),
            dipping: Mutex::new(()),
            scrub: Mutex::default(),
            suspects: Suspects::new(geometry.clone()),
            damage_reported: Mutex::default(),
            mended: Mutex::default(),
            opening_notes: Mutex::default(),
            losses: Mutex::default(),
            damages: Mutex::default(),
            units: UnitCache::new(shares.units, parts.buffers.clone()),
            cold_pace: ColdPace::default(),
            images: Images::default(),
            rewrites: Rewrites::new(capacity_bytes, parts.vitals.options.memory_bytes),
            dictionaries: Dictionaries::new(
                shares.dictionaries,
                Sampling::new(parts.vitals.options.training, parts.vitals.options.memory_bytes),
            ),
            signals: Signals::default(),
            workers: Workers::default(),
            ahead: Ahead::new(),
            admin: Mutex::new(()),
            passed_on: Mutex::new(0),
            shrinking: Mutex::new(None),
            recompressing: Mutex::default(),
            recompressed: Mutex::default(),
            sorting: Mutex::default(),
            punching: RwLock::new(()),
            punches: AtomicU64::new(0),
            making_room: Mutex::new(()),
            aging: Mutex::new((0, 0)),
            resting: Mutex::new((0, 0)),
            tree_claims: Arc::default(),
            standby: Mutex::default(),
            readers: Users::default(),
            chooser: parts.chooser,
            vitals: parts.vitals,
            geometry,
            pool_id: parts.pool_id,
            buffers: parts.buffers,
            buffer: parts.applier.buffer.clone(),
            map: parts.applier.map.clone(),
            objects: parts.applier.objects.clone(),
            catalogue: parts.applier.catalogue.clone(),
            applier: parts.applier,
            log,
            checkpoint: Mutex::new(parts.checkpoint),
        }
    }

    /// Ends the log for good, and stores its end: then the next opening knows that no batch
    /// follows. Without that note it must assume that one may, which does no harm.
    pub(crate) fn end_log(&self) {
        let Some(end) = self.log.end() else { return };
        let mut batch = MapBatch::default();
        batch.put(KEY_END, end.encode());
        let _ = self.vitals.env.store.commit(batch);
    }
}
