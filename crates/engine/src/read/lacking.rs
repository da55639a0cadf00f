//! The groups of an image that a read is missing, and how long it may wait for them. `images`
//! fetches them.

use std::cell::Cell;

use store::base::group::GroupKey;
use surface::Error;

/// Groups of an image that a request needs and that have not been fetched, or were lost: the source
/// of an error.
#[derive(Debug)]
pub(crate) struct MissingGroups(pub(crate) Vec<GroupKey>);

impl std::fmt::Display for MissingGroups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("groups of the image must be fetched first")
    }
}

impl std::error::Error for MissingGroups {}

impl MissingGroups {
    /// Returns the one among an error's causes.
    pub(crate) fn of(error: &Error) -> Option<&Self> {
        let causes = std::iter::successors(std::error::Error::source(error), |error| error.source());
        causes.filter_map(|cause| cause.downcast_ref::<Self>()).next()
    }

    /// Returns whether an error has one among its causes.
    pub(crate) fn in_chain(error: &Error) -> bool {
        Self::of(error).is_some()
    }
}

/// How long a request waits for images: all its attempts together, for all groups.
pub(crate) struct Patience<'a> {
    /// Nanoseconds of the clock.
    began: u64,
    limit: u64,
    /// Without threads no time passes: pauses are counted.
    paused: Cell<u64>,
    /// No group is requested twice.
    is_once: bool,
    /// Whether the request is cancelled.
    is_over: &'a dyn Fn() -> bool,
}

impl Patience<'_> {
    /// A single attempt, without a time limit.
    pub(crate) fn once(now: u64) -> Self {
        Self { began: now, limit: u64::MAX, paused: Cell::new(0), is_once: true, is_over: &|| false }
    }

    /// So many seconds from now on; 0: without limit.
    pub(crate) fn seconds(now: u64, seconds: u32) -> Self {
        let limit = if seconds == 0 { u64::MAX } else { u64::from(seconds) * 1_000_000_000 };
        Self { limit, is_once: false, ..Self::once(now) }
    }

    /// The same, but over as soon as `is_over` returns `true`.
    pub(crate) fn unless<'b>(self, is_over: &'b dyn Fn() -> bool) -> Patience<'b> {
        Patience { began: self.began, limit: self.limit, paused: self.paused, is_once: self.is_once, is_over }
    }

    /// The remaining time, for one more attempt.
    pub(crate) fn for_one_more(self) -> Self {
        Self { is_once: true, ..self }
    }

    pub(crate) const fn is_once(&self) -> bool {
        self.is_once
    }

    pub(crate) fn is_over(&self) -> bool {
        (self.is_over)()
    }

    /// The time including simulated pauses.
    pub(crate) fn moment(&self, now: u64) -> u64 {
        now.saturating_add(self.paused.get())
    }

    /// Nanoseconds that are left.
    pub(crate) fn left(&self, now: u64) -> u64 {
        self.limit.saturating_sub(self.moment(now).saturating_sub(self.began))
    }

    /// Counts a simulated pause.
    pub(crate) fn pause(&self, nanoseconds: u64) {
        self.paused.set(self.paused.get().saturating_add(nanoseconds));
    }
}
