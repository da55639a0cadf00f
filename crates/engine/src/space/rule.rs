//! Which extents a round of cleaning takes: the question that the cleaner asks of the accounts.

use units::ExtentIndex;

use crate::base::status::CleanMark;

/// What a cleaner looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rule {
    /// Most live bytes of an extent that is cleaned.
    pub live_max: u32,
    /// The least live bytes first, whatever their age: when space is needed now.
    pub greedy: bool,
    /// First of the extents among which victims are looked for, and the one behind the last.
    pub within: (ExtentIndex, ExtentIndex),
    /// Only extents that the log had filled by then: see [`CleanMark`].
    pub filled_by: CleanMark,
    /// They are to go (see `shrink`): however full they are, and although it wins nothing.
    pub away: bool,
    /// What can be read goes, although something beside it is damaged and stays (see `check`).
    pub beside_damage: bool,
    /// Cold data may be compressed anew: no writer waits for just this round.
    pub recodes: bool,
}
