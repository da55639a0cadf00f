//! Space below, set aside before the log needs it: a write must not fail for want of it. Owns no state of its own: what is set aside
//! is part of where the log stands.

use surface::{Error, Result};
use units::ExtentIndex;

use super::{Log, State};

/// Most extents for which space is set aside below in one go. Each call waits for the file system's journal, and for writes
/// under way; so a long stream makes fewer and larger ones. The number doubles
/// from one call to the next, so that little more is set aside than has been written; the most is what a user who looks at the
/// space taken would not notice.
const RESERVE_AHEAD_MAX: usize = 32;

impl State {
    /// The first extent without space set aside, which must exist, and how many lie side by side from there on, up to what is
    /// set aside in one go.
    fn unreserved(&self) -> (ExtentIndex, usize) {
        let from = self.reserved;
        let first = self.extents[from];
        let beside = |i: &usize| self.extents[*i].0 == first.0 + (*i - from) as u32;
        (first, (from..self.extents.len().min(from + self.reserve_ahead)).take_while(beside).count())
    }
}

impl Log {
    /// Sets space aside below for the open extent and its neighbours, so that a write does not fail for want of it.
    pub(super) fn reserve(&self, state: &mut State) -> Result<()> {
        if state.open < state.reserved {
            return Ok(());
        }
        state.reserved = state.open;
        let (first, count) = state.unreserved();
        let count = match self.reserve_extents(first, count) {
            Ok(()) => count,
            // Near the end of the space below, what is there is taken extent by extent.
            Err(_) => self.reserve_extents(first, 1).map(|()| 1).map_err(|e| {
                Error::from_io("the storage below the data file gives no space for the log; free some there", e)
            })?,
        };
        state.reserved += count;
        state.reserve_ahead = (2 * state.reserve_ahead).min(RESERVE_AHEAD_MAX);
        Ok(())
    }

    /// Sets space aside before it is needed, without the log's lock: the file system waits for writes under way, and nobody
    /// who compresses should wait with it. Whatever fails here fails again, and is told, when it is needed.
    pub(super) fn reserve_early(&self) {
        let (first, count) = {
            let mut state = self.state.lock();
            let left = state.reserved.saturating_sub(state.open);
            if state.reserving || left == 0 || left > state.reserve_ahead / 2 || state.reserved >= state.extents.len() {
                return;
            }
            state.reserving = true;
            state.unreserved()
        };
        let done = self.reserve_extents(first, count);
        let mut state = self.state.lock();
        state.reserving = false;
        // The log may have gone on elsewhere meanwhile.
        if done.is_ok() && state.extents.get(state.reserved) == Some(&first) {
            state.reserved += count;
            state.reserve_ahead = (2 * state.reserve_ahead).min(RESERVE_AHEAD_MAX);
        }
    }

    fn reserve_extents(&self, first: ExtentIndex, count: usize) -> std::io::Result<()> {
        self.disk.reserve(self.geometry.start(first), count as u64 * u64::from(self.geometry.extent_bytes))
    }
}
