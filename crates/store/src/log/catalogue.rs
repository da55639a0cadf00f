//! The pins: which extents are kept because they hold the newest catalogue, entries since, or marks
//! of openings. Owns the account of them; `checkpoint::catalogue` makes catalogues, and has the
//! proof of why these extents are enough.

use std::collections::BTreeSet;

use format::{BATCH_FIXED_BYTES, CatalogueRef, Entry, Incarnation, Incarnations, header_bytes};
use units::{ExtentIndex, Seq};

use crate::base::canary::Canary;
use crate::base::ranked::Mutex;
use crate::base::ranks;

/// Extents that are kept for the catalogue, and their content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pins {
    /// The catalogue covers all batches before this one. `None`: there is none.
    pub as_of: Option<Seq>,
    pub bytes: u64,
    pub base: BTreeSet<ExtentIndex>,
    pub since: BTreeSet<ExtentIndex>,
    pub since_bytes: u64,
    /// The openings that are remembered.
    pub incarnations: Incarnations,
}

impl Pins {
    pub fn of(stored: &CatalogueRef) -> Self {
        Self {
            as_of: (stored.as_of != Seq(0)).then_some(stored.as_of),
            bytes: stored.bytes,
            since_bytes: stored.since_bytes,
            base: stored.base.iter().copied().collect(),
            since: stored.since.iter().copied().collect(),
            incarnations: stored.incarnations.clone(),
        }
    }

    pub fn stored(&self) -> CatalogueRef {
        CatalogueRef {
            as_of: self.as_of.unwrap_or(Seq(0)),
            bytes: self.bytes,
            since_bytes: self.since_bytes,
            base: self.base.iter().copied().collect(),
            since: self.since.iter().copied().collect(),
            incarnations: self.incarnations.clone(),
        }
    }

    /// Returns all pinned extents. None without a catalogue: then later entries do not help either.
    pub fn extents(&self) -> BTreeSet<ExtentIndex> {
        let is_kept = self.as_of.is_some() && !Canary::CatalogueNotKept.is_planted();
        if is_kept { self.base.union(&self.since).copied().collect() } else { BTreeSet::new() }
    }
}

/// A catalogue that is being appended.
#[derive(Debug)]
struct Growing {
    as_of: Seq,
    base: BTreeSet<ExtentIndex>,
}

#[derive(Debug, Default)]
struct State {
    pins: Pins,
    growing: Option<Growing>,
    /// A new catalogue is wanted, whether or not there is one already.
    wanted: bool,
    /// The opening under which the log continues.
    newest: u64,
    /// The log does not name this opening yet.
    unmarked: bool,
    /// A checkpoint of this opening is durable. Before, nothing may be written: another opening
    /// could get the same number.
    has_begun: bool,
}

/// Extents with entries since a catalogue, and the bytes of these.
#[derive(Debug)]
pub struct Since(BTreeSet<ExtentIndex>, u64);

/// The owner of the pins.
#[derive(Debug, Default)]
pub struct Catalogue {
    state: Mutex<State, ranks::Catalogue>,
}

impl Catalogue {
    pub fn new(pins: Pins) -> Self {
        Self { state: Mutex::new(State { pins, ..State::default() }) }
    }

    /// Notes that a batch of these entries in `extent` has been applied.
    pub fn note(&self, entries: &[Entry], extent: ExtentIndex) {
        if entries.is_empty() {
            let mut state = self.state.lock();
            state.pins.since.insert(extent);
            state.pins.since_bytes += BATCH_FIXED_BYTES as u64;
        }
        for entry in entries {
            match entry {
                Entry::Object(_) | Entry::PoolProperties(_) => {
                    let bytes = header_bytes(std::slice::from_ref(entry)) - BATCH_FIXED_BYTES;
                    let mut state = self.state.lock();
                    state.pins.since.insert(extent);
                    state.pins.since_bytes += bytes as u64;
                }
                Entry::Catalogue(part) => {
                    if let Some(growing) = self.state.lock().growing.as_mut().filter(|g| g.as_of == part.as_of) {
                        growing.base.insert(extent);
                    }
                }
                _ => {}
            }
        }
    }

    /// Notes that the log continues under that opening. One that follows an orderly end
    /// (`is_orderly`) need not be remembered: no batch lies there.
    pub fn enter(&self, number: u64, first_seq: Seq, is_orderly: bool) {
        let mut state = self.state.lock();
        if number <= state.newest {
            return;
        }
        state.newest = number;
        state.unmarked = true;
        if !is_orderly {
            state.pins.incarnations.enter(Incarnation { number, first_seq });
        }
    }

    /// Drops the catalogue, which takes space from writers.
    pub fn give_up(&self) {
        let mut state = self.state.lock();
        let incarnations = std::mem::take(&mut state.pins.incarnations);
        state.pins = Pins { incarnations, ..Pins::default() };
    }

    /// Lets the next checkpoint make a new one.
    pub fn want(&self) {
        self.state.lock().wanted = true;
    }

    /// Returns whether a new one is wanted, but could not be made yet.
    pub fn is_wanted(&self) -> bool {
        self.state.lock().wanted
    }

    /// Notes that a checkpoint is durable.
    pub fn begin(&self) {
        self.state.lock().has_begun = true;
    }

    /// See [`Pins`].
    pub fn pins(&self) -> Pins {
        self.state.lock().pins.clone()
    }

    /// Evaluates `question` on the pins, and on whether a new catalogue is wanted.
    pub fn ask<T>(&self, question: impl FnOnce(&Pins, bool) -> T) -> T {
        let state = self.state.lock();
        question(&state.pins, state.wanted)
    }

    /// Whether a checkpoint of this opening is durable.
    pub fn has_begun(&self) -> bool {
        self.state.lock().has_begun
    }

    /// Returns whether the log must record the opening under which it continues.
    pub fn is_mark_due(&self) -> bool {
        let state = self.state.lock();
        state.has_begun && state.unmarked && !Canary::OpeningWithoutMark.is_planted()
    }

    /// Notes that the log has recorded the opening.
    pub fn marked(&self) {
        self.state.lock().unmarked = false;
    }

    /// Starts a new catalogue that covers all batches before `as_of`: it is appended from now on,
    /// and notes of entries start over. The caller ensures that no batch is applied between its own
    /// look at the descriptors and this call. Returns the openings for the new catalogue, and the
    /// earlier notes, for [`end_growing`](Self::end_growing).
    pub fn begin_growing(&self, as_of: Seq) -> (Incarnations, Since) {
        let mut state = self.state.lock();
        let before = Since(std::mem::take(&mut state.pins.since), std::mem::take(&mut state.pins.since_bytes));
        state.growing = Some(Growing { as_of, base: BTreeSet::new() });
        (state.pins.incarnations.clone(), before)
    }

    /// Installs the new catalogue, if all its `bytes` have been appended; otherwise the old one
    /// stays.
    pub fn end_growing(&self, before: Since, appended: Option<u64>) {
        let mut state = self.state.lock();
        let growing = state.growing.take();
        match (growing, appended) {
            (Some(Growing { as_of, base }), Some(bytes)) => {
                state.pins.as_of = Some(as_of);
                state.pins.bytes = bytes;
                state.pins.base = base;
                state.wanted = false;
            }
            _ => {
                state.pins.since.extend(before.0);
                state.pins.since_bytes += before.1;
            }
        }
    }
}
