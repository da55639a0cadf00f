//! Empties extents that are mostly dead, so that a checkpoint can free them. Owns the cleaner's
//! memory between rounds, and decides its pace. Called by its own threads, by writers that find no
//! room (`make_room`), and by `upkeep` for work that goes from extent to extent.
//!
//! 1. *When*: by how much space is left (`pacing`), or for a writer that waits.
//! 2. *Which*: a round chooses victims (`round`) and reads them whole (`victim_reads`).
//! 3. *Data*: the live fragments in them (`extent_liveness`), verified, cut down to the parts that
//!    are still read, and in order (`survivors`). Cold ones are recompressed where that is wanted
//!    (`cold`, `recode`); hot ones are kept apart (`write::write_heat`).
//! 4. They are appended as moves, which take effect only where no newer data exists (`map::apply`).
//! 5. The next checkpoint finds the victims empty, and frees them.

pub(crate) mod cold;
pub(crate) mod extent_liveness;
pub(crate) mod pacing;
pub(crate) mod recode;
pub(crate) mod round;
pub(crate) mod survivors;
pub(crate) mod victim_reads;
pub(crate) mod walked;

use crate::base::ranked::{Mutex, RwLock};
use crate::base::ranks;
use crate::clean::cold::ColdPace;
use crate::clean::round::Cleaner;

/// The state of cleaning.
#[derive(Default)]
pub(crate) struct Cleaning {
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
