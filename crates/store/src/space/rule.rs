//! The rule by which a round of cleaning chooses extents.

use units::ExtentIndex;

use crate::base::status::CleanMark;

/// Criteria for victims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Upper bound of live bytes of an extent that is cleaned.
    pub live_max: u32,
    /// The least live bytes first, regardless of age: when space is needed now.
    pub greedy: bool,
    /// First of the extents among which victims are searched, and the one after the last.
    pub within: (ExtentIndex, ExtentIndex),
    /// Only extents that the log had filled by then: see [`CleanMark`].
    pub filled_by: CleanMark,
    /// The extents must be emptied (see `shrink`), however full they are, and without gain.
    pub away: bool,
    /// Readable data is moved even if damaged data next to it stays (see `check`).
    pub despite_damage: bool,
    /// Cold data may be recompressed: no writer waits for this round.
    pub recodes: bool,
}
