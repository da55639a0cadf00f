//! Space below, set aside before the log needs it: a write must not fail for want of it; and filled
//! with zeroes where that makes syncs cheaper. Owns no state of its own: the space set aside is
//! part of the log's position.

use format::Stream;
use surface::{Error, Result};
use units::ExtentIndex;

use super::streams::Place;
use super::{Log, Purpose, State};

/// Most extents for which space is set aside below in one go. Each call waits for the file system's
/// journal, and for writes under way; so a long stream makes fewer and larger ones. The number
/// doubles from one call to the next, so that little more is set aside than has been written; the
/// most is what a user who looks at the space taken would not notice.
const RESERVE_AHEAD_MAX: usize = 32;

impl Log {
    /// Sets space aside below for the extent that is opened next and its neighbours, so that a
    /// write does not fail for want of it, and what gives space back does not either.
    pub(super) fn reserve_next(&self, state: &mut State, purpose: Purpose) -> Result<()> {
        while state.streams.reserved_ahead() <= self.geometry.held_below(purpose) {
            let Some((first, count)) = state.streams.unreserved(state.reserve_ahead) else { return Ok(()) };
            let count = match self.reserve_extents(first, count, false) {
                Ok(()) => count,
                // Near the end of the space below, the rest is taken extent by extent.
                Err(_) => self.reserve_one(first, purpose == Purpose::Metadata).map(|()| 1)?,
            };
            state.streams.set_reserved(first, count);
            state.reserve_ahead = (2 * state.reserve_ahead).min(RESERVE_AHEAD_MAX);
        }
        Ok(())
    }

    /// The same for what a stream has open since before the pool was opened: most often it has its
    /// space, which cannot be told from none.
    pub(super) fn reserve_open(&self, state: &mut State, stream: Stream) -> Result<()> {
        let Some(open) = state.streams.open_of(stream).filter(|open| !open.is_reserved) else { return Ok(()) };
        self.reserve_one(open.extent, true)?;
        open.is_reserved = true;
        Ok(())
    }

    /// Sets space aside before it is needed, without the log's lock: the file system waits for
    /// writes under way, and no compressing thread should wait with it. Whatever fails here fails
    /// again, and is told, when it is needed.
    pub(super) fn reserve_early(&self) {
        let (first, count) = {
            let mut state = self.state.lock();
            if state.reserving || state.streams.reserved_ahead() > state.reserve_ahead / 2 {
                return;
            }
            let Some(unreserved) = state.streams.unreserved(state.reserve_ahead) else { return };
            state.reserving = true;
            unreserved
        };
        let done = self.reserve_extents(first, count, false);
        let mut state = self.state.lock();
        state.reserving = false;
        // The log may have gone on elsewhere meanwhile.
        if done.is_ok() && state.streams.set_reserved(first, count) {
            state.reserve_ahead = (2 * state.reserve_ahead).min(RESERVE_AHEAD_MAX);
        }
    }

    /// Extents opened since the pool was, and those that have not been, in their order.
    pub(crate) fn opened_and_ahead(&self) -> (u64, Vec<ExtentIndex>) {
        let state = self.state.lock();
        (self.counters.opened_extents.get(), state.streams.unopened().collect())
    }

    /// `last`: also from the space left for the map. A few discards or deletions, and whatever else
    /// comes to the open extents, bring more back.
    fn reserve_one(&self, extent: ExtentIndex, last: bool) -> Result<()> {
        let no_space = "the storage below the data file gives no space for the log; free some there";
        self.reserve_extents(extent, 1, last).map_err(|e| Error::from_io(no_space, e))
    }

    fn reserve_extents(&self, first: ExtentIndex, count: usize, last: bool) -> std::io::Result<()> {
        if !self.backing.has(first, count) {
            let (start, len) = (self.geometry.start(first), count as u64 * u64::from(self.geometry.extent_bytes));
            if last { self.disk.reserve_last(start, len) } else { self.disk.reserve(start, len) }?;
            self.backing.gained(first, count);
        }
        Ok(())
    }

    /// See `log::zero_ahead`: how many zeroes the batch takes along.
    pub(super) fn fill_ahead(&self, state: &mut State, place: Place, len: usize) -> Result<usize> {
        if !self.disk.first_write_is_dear() || place.offset == 0 {
            return Ok(0);
        }
        let Some(open) = state.streams.open_of(place.stream) else { return Ok(0) };
        let (start, extent_bytes) = (self.geometry.start(place.extent), self.geometry.extent_bytes);
        let filled =
            open.prefill.before(&*self.disk, start, extent_bytes, place.offset, len, self.counters.syncs.get());
        filled.map_err(|e| Error::from_io("preparing the log's next stretch failed", e))
    }
}
