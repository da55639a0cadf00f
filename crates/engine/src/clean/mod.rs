//! Empties extents that are mostly dead, so that a checkpoint can free them ([`Cleaning`]). Owns
//! the cleaner's memory between rounds, and decides its pace. Called by its own threads, by writers
//! that find no room (`make_room`), and by `upkeep` for work that goes from extent to extent.
//!
//! 1. *When*: by how much space is left (`pacing`), or for a writer that waits.
//! 2. *Which*: a round chooses victims (`round`) and reads them whole (`victim_reads`).
//! 3. *Data*: the live fragments in them (`extent_liveness`), verified, cut down to the parts that
//!    are still read (`collect`), and in order (`survivors`). Cold ones are recompressed where that is wanted
//!    (`cold`, `recode`); hot ones are kept apart (`write::write_heat`).
//! 4. They are appended as moves, which take effect only where no newer data exists (`map::apply`).
//! 5. The next checkpoint finds the victims empty, and frees them.

mod cleaner;
pub(crate) mod cold;
mod cold_pace;
pub(crate) mod collect;
pub(crate) mod extent_liveness;
pub(crate) mod pacing;
pub(crate) mod recode;
pub(crate) mod repair;
pub(crate) mod round;
pub(crate) mod survivors;
pub(crate) mod victim_reads;
pub(crate) mod walked;

use std::sync::Arc;

use store::base::buffers::BufferPool;
use store::base::jobs::Jobs;
use store::base::ranked::{Mutex, RwLock};
use store::base::ranks;
use store::base::signals::Signals;
use store::base::vitals::Vitals;
use store::log::Log;
use store::log::geometry::Geometry;
use store::map::Map;
use store::map::apply::Applier;
use store::objects::Objects;
use store::space::Space;

use crate::checkpoint::Checkpoints;
use crate::clean::cleaner::Cleaner;
use crate::clean::cold_pace::ColdPace;
use crate::codecs::chooser::Chooser;
use crate::codecs::dictionaries::Dictionaries;
use crate::read::Reads;
use crate::write::Writes;

/// Cleans extents.
pub(crate) struct Cleaning {
    vitals: Arc<Vitals>,
    geometry: Geometry,
    buffers: Arc<BufferPool>,
    map: Arc<Map>,
    objects: Arc<Objects>,
    applier: Arc<Applier>,
    log: Arc<Log>,
    space: Arc<Space>,
    reads: Arc<Reads>,
    checkpoints: Arc<Checkpoints>,
    writes: Arc<Writes>,
    chooser: Arc<Chooser>,
    dictionaries: Arc<Dictionaries>,
    signals: Arc<Signals>,
    jobs: Arc<Jobs>,
    cleaner: Mutex<Cleaner, ranks::Cleaner>,
    /// Held shared by rounds in the background, exclusively by a writer that determines how much
    /// can be gained at all.
    pub rounds: RwLock<(), ranks::Cleaning>,
    /// Held by the round that may take the extents kept for moves.
    dipping: Mutex<(), ranks::Dipping>,
    cold_pace: ColdPace,
    /// Damage that cleaning could not move.
    pub damages: Mutex<Vec<String>, ranks::Damages>,
}

impl Cleaning {
    pub(crate) fn new(
        (vitals, buffers, jobs): (Arc<Vitals>, Arc<BufferPool>, Arc<Jobs>),
        (applier, log, space): (Arc<Applier>, Arc<Log>, Arc<Space>),
        (reads, checkpoints, writes): (Arc<Reads>, Arc<Checkpoints>, Arc<Writes>),
        (chooser, dictionaries, signals): (Arc<Chooser>, Arc<Dictionaries>, Arc<Signals>),
    ) -> Self {
        Self {
            vitals,
            geometry: applier.geometry.clone(),
            buffers,
            map: applier.map.clone(),
            objects: applier.objects.clone(),
            applier,
            log,
            space,
            reads,
            checkpoints,
            writes,
            chooser,
            dictionaries,
            signals,
            jobs,
            cleaner: Mutex::default(),
            rounds: RwLock::new(()),
            dipping: Mutex::new(()),
            cold_pace: ColdPace::default(),
            damages: Mutex::default(),
        }
    }
}
