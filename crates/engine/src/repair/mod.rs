//! Opens, checks and repairs a pool after a crash or damage, and rescues data from one that cannot
//! be repaired. Owns the lists of known damage (`damages`) and of losses (`loss`). The thread that
//! opens a pool calls it before the pool has clients; checks and scrubs are called by threads of
//! clients.
//!
//! 1. An opening applies the log after the last checkpoint (`recovery`), replays writes that a dead
//!    process had acknowledged and not drained (`standby_open`, `standby_left`), and reports the
//!    data that a lost standby memory may have had (`standby_lost`). Nothing is dropped unless the
//!    caller accepts the loss.
//! 2. With `check --repair`, a damaged map store is repaired before that (`mend`).
//! 3. A check reads everything, and compares (`check`). A scrub verifies the data while the pool is
//!    in use (`scrub`).
//! 4. Where nothing else helps, `salvage` rebuilds volumes in another pool from the log alone.

pub(crate) mod check;
pub(crate) mod damages;
pub(crate) mod loss;
pub(crate) mod mend;
pub(crate) mod recovery;
#[cfg(test)]
pub(crate) mod recovery_tests;
pub(crate) mod salvage;
pub(crate) mod scrub;
pub(crate) mod standby_left;
pub(crate) mod standby_lost;
pub(crate) mod standby_open;
#[cfg(test)]
pub(crate) mod standby_tests;

use crate::base::ranked::Mutex;
use crate::base::ranks;
use crate::base::status::Problem;
use crate::repair::damages::Reported;
use crate::repair::loss::Losses;
use crate::repair::scrub::Scrubbing;
use crate::repair::standby_open::StandbyFacts;

/// Known damage and losses, and what the opening of the pool found.
#[derive(Default)]
pub(crate) struct Repairs {
    scrub: Mutex<Scrubbing, ranks::Scrub>,
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
