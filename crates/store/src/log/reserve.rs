//! Preallocates space in the file system before the log needs it, so that a write cannot fail for
//! lack of it; and fills it with zeroes where that makes syncs cheaper. Owns no state of its own:
//! preallocated space is part of the log's position.
//!
//! Both may take long, so neither is done with the log's lock held:
//! 1. A batch that is about to get its position finds a need there ([`Need`]), and gets none.
//! 2. Its thread releases the lock and meets the need ([`Log::meet`]). Other threads with the same
//!    need wait.
//! 3. It takes the lock and starts again from the beginning: the log may have continued elsewhere.

use env::AlignedBuf;
use surface::{Error, Result};
use units::ExtentIndex;

use super::streams::{Open, Place};
use super::{Log, Purpose, State};
use crate::base::ranked::MutexGuard;
use crate::base::ranks;
use crate::log::zero_ahead::Ahead;

/// A condition that a batch waits for before it gets its position.
#[derive(Debug, Clone, Copy)]
pub(super) enum Need {
    /// The end of another thread's zeroes there.
    Turn,
    /// Space for an extent that its stream has had open since before the pool was opened.
    SpaceOfOpen(Place),
    /// Space for so many extents, from the first one on, that are opened next.
    Space(ExtentIndex, usize),
    /// Zeroes from its position up to this offset.
    Zeroes(Place, u32),
}

/// The log's state, and whether the need is met.
type Met<'a> = (MutexGuard<'a, State, ranks::LogState>, Result<()>);

/// Upper bound of extents preallocated in one call. Each call waits for the file system's journal,
/// and for writes in flight; so a long stream makes fewer and larger ones. The number doubles from
/// one call to the next, so that little more is preallocated than has been written; at the bound, a
/// user who looks at the space taken would not notice it.
const RESERVE_AHEAD_MAX: usize = 32;

impl Log {
    /// Returns the extent that is opened next and its neighbours, if space must be preallocated for
    /// them, so that neither a write nor an entry that frees space fails for lack of it.
    pub(super) fn lacks_space(&self, state: &mut State, purpose: Purpose) -> Option<Need> {
        while state.streams.reserved_ahead() <= self.geometry.held_below(purpose) {
            let (first, count) = state.streams.unreserved(state.reserve_ahead)?;
            if !self.backing.has(first, count) {
                return Some(Need::Space(first, count));
            }
            state.note_reserved(first, count);
        }
        None
    }

    /// Like `lacks_space`, for an extent that a stream has had open since before the pool was
    /// opened: usually its space is allocated, but that cannot be verified.
    pub(super) fn open_lacks_space(&self, open: &mut Open, place: Place) -> Option<Need> {
        open.is_reserved |= self.backing.has(open.extent, 1);
        (!open.is_reserved).then_some(Need::SpaceOfOpen(place))
    }

    /// Meets a need of a batch of that purpose, without the log's lock, and takes the lock again.
    pub(super) fn meet<'a>(
        &'a self,
        mut state: MutexGuard<'a, State, ranks::LogState>,
        need: Need,
        purpose: Purpose,
    ) -> Met<'a> {
        match need {
            Need::Turn => {
                self.settled.wait(&mut state);
                (state, Ok(()))
            }
            Need::SpaceOfOpen(place) => {
                drop(state);
                let done = self.reserve_one(place.extent, true);
                let mut state = self.state.lock();
                let open = state.streams.open_of(place.stream).filter(|open| open.extent == place.extent);
                if let (Ok(true), Some(open)) = (&done, open) {
                    open.is_reserved = true;
                }
                (state, done.map(|_| ()))
            }
            Need::Space(..) if state.reserving => {
                self.settled.wait(&mut state);
                (state, Ok(()))
            }
            Need::Space(first, count) => {
                state.reserving = true;
                drop(state);
                let done = match self.reserve_extents(first, count, false) {
                    Ok(is_certain) => Ok((count, is_certain)),
                    // Near the end of the file system's space, the rest is taken extent by extent.
                    Err(_) => self.reserve_one(first, purpose == Purpose::Metadata).map(|is_certain| (1, is_certain)),
                };
                let mut state = self.reserving_ends();
                if let Ok((count, true)) = done {
                    state.note_reserved(first, count);
                }
                (state, done.map(|_| ()))
            }
            Need::Zeroes(place, end) => self.write_zeroes(state, place, end),
        }
    }

    /// Writes zeroes from a place up to an offset of the same extent, which is open.
    fn write_zeroes<'a>(
        &'a self,
        mut state: MutexGuard<'a, State, ranks::LogState>,
        place: Place,
        end: u32,
    ) -> Met<'a> {
        if let Some(open) = state.streams.open_of(place.stream) {
            open.is_zeroing = true;
        }
        drop(state);
        let len = (end - place.offset) as usize;
        let at = self.geometry.start(place.extent) + u64::from(place.offset);
        let written = self.disk.write_at(at, &AlignedBuf::new(len), len);
        let mut state = self.state.lock();
        // Still the same one: see `Open::is_zeroing`.
        if let Some(open) = state.streams.open_of(place.stream) {
            debug_assert_eq!((open.extent, open.offset), (place.extent, place.offset));
            open.is_zeroing = false;
            if written.is_ok() {
                open.prefill.filled(end);
            }
        }
        self.settled.notify_all();
        (state, written.map_err(|e| Error::from_io("preparing the log's next stretch failed", e)))
    }

    /// Ends a preallocation by this thread.
    fn reserving_ends(&self) -> MutexGuard<'_, State, ranks::LogState> {
        let mut state = self.state.lock();
        state.reserving = false;
        self.settled.notify_all();
        state
    }

    /// Preallocates space before it is needed, without the log's lock: the file system waits for
    /// writes in flight, and no compressing thread should wait with it. An error here occurs again,
    /// and is reported, when the space is needed.
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
        let mut state = self.reserving_ends();
        if let Ok(true) = done {
            state.note_reserved(first, count);
        }
    }

    /// Returns the number of extents opened since the pool was, and the unopened ones in order.
    pub(crate) fn opened_and_ahead(&self) -> (u64, Vec<ExtentIndex>) {
        let state = self.state.lock();
        (self.vitals.counters.opened_extents.get(), state.streams.unopened().collect())
    }

    /// `last`: also from the space left for the map. Discards, deletions and other small entries in
    /// the open extents free more than they take.
    fn reserve_one(&self, extent: ExtentIndex, last: bool) -> Result<bool> {
        let no_space = "the file system below the data file has no space for the log; free some there";
        self.reserve_extents(extent, 1, last).map_err(|e| Error::from_io(no_space, e))
    }

    /// Returns whether the space is certain: not if a punch happened at the same time, perhaps
    /// here.
    fn reserve_extents(&self, first: ExtentIndex, count: usize, last: bool) -> std::io::Result<bool> {
        if self.backing.has(first, count) {
            return Ok(true);
        }
        let losses = self.backing.losses();
        let (start, len) = (self.geometry.start(first), count as u64 * u64::from(self.geometry.extent_bytes));
        if last { self.disk.reserve_last(start, len) } else { self.disk.reserve(start, len) }?;
        Ok(self.backing.gained_since(losses, first, count))
    }

    /// Returns the decision of `log::zero_ahead` for a position.
    pub(super) fn fill_ahead(&self, state: &mut State, place: Place, len: usize) -> Ahead {
        if !self.disk.first_write_is_dear() || place.offset == 0 {
            return Ahead::Nothing;
        }
        let (extent_bytes, syncs) = (self.geometry.extent_bytes, self.vitals.counters.syncs.get());
        let open = state.streams.open_of(place.stream);
        open.map_or(Ahead::Nothing, |open| open.prefill.before(extent_bytes, place.offset, len, syncs))
    }
}

impl State {
    /// Notes that space was preallocated for so many extents, unless the log has continued
    /// elsewhere since.
    fn note_reserved(&mut self, first: ExtentIndex, count: usize) {
        if self.streams.set_reserved(first, count) {
            self.reserve_ahead = (2 * self.reserve_ahead).min(RESERVE_AHEAD_MAX);
        }
    }
}
