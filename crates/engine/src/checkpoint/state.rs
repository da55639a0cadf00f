//! The state that a checkpoint captures, and the state between checkpoints: unfinished work, deltas
//! in the store, and how far they are folded. Owned by the thread that holds
//! [`Checkpoints::state`](crate::checkpoint::Checkpoints::state).

use std::collections::BTreeMap;
use std::sync::Arc;

use format::{Filled, ObjectDescriptor, Reap};
use store::base::group::GroupKey;
use store::log::Position;
use store::log::catalogue::Pins;
use store::objects::timeline::Timelines;
use units::{ExtentIndex, ObjectId};

/// State captured by a checkpoint.
pub(crate) struct Captured {
    pub position: Position,
    pub next_object: u64,
    /// Number of objects.
    pub objects: usize,
    pub properties: BTreeMap<String, String>,
    pub pins: Pins,
    /// Descriptors that changed since the last checkpoint.
    pub descriptors: Vec<ObjectDescriptor>,
    /// Which points see which records at the position. An object destroyed since, however dead by
    /// now, may be alive again after a crash.
    pub timelines: Arc<Timelines>,
    /// Reaping that was due.
    pub reaping: Vec<(ObjectId, Reap, u64)>,
    /// Extents that had been cleaned, and become free with this checkpoint.
    pub evacuated: u64,
    /// Groups of images that are dropped and that the store has.
    pub drops: Vec<GroupKey>,
    /// How far extents are filled.
    pub filled: BTreeMap<ExtentIndex, Filled>,
}

impl Captured {
    /// Whether any point saw records of that object.
    pub(crate) fn sees(&self, object: ObjectId) -> bool {
        self.timelines.get(&object).is_some_and(|timeline| !timeline.is_dead())
    }
}

/// The one owner of a running checkpoint's state.
pub(crate) struct CheckpointState {
    /// Number of the last checkpoint.
    pub number: u64,
    /// Captured by a checkpoint that failed before its commit.
    pub unfinished: Option<Captured>,
    /// Deltas in the store, each the number of its checkpoint and its part of it: a full checkpoint
    /// removes them.
    pub deltas: Vec<(u64, u32)>,
    /// Number of the last full one.
    pub last_full: u64,
    /// The part of them that is merged after light checkpoints.
    pub folding: Folding,
}

impl CheckpointState {
    pub(crate) fn new(number: u64, deltas: Vec<(u64, u32)>) -> Self {
        Self { number, unfinished: None, deltas, last_full: number, folding: Folding::default() }
    }

    /// Returns whether one failed and waits to be repeated: then the map has changes that are
    /// neither new nor in the store.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.unfinished.is_some()
    }
}

/// Settled changes, on their way into the records.
pub(crate) struct Sweep {
    /// Groups that have yet to be folded, the next one last.
    pub groups: Vec<GroupKey>,
    /// Groups that cannot be.
    pub left: Vec<GroupKey>,
    /// Number of the checkpoint before the sweep.
    pub since: u64,
}

/// Deltas that can be dropped, and the changes to store again in their place.
#[derive(Default)]
pub(crate) struct Folded {
    /// The last checkpoint whose deltas are not needed.
    pub number: u64,
    /// Groups for which they have the only copy of a change.
    pub left: Vec<GroupKey>,
}

/// Progress of folding since the last full checkpoint.
#[derive(Default)]
pub(crate) struct Folding {
    /// The sweep that is under way.
    pub sweep: Option<Sweep>,
    /// Deltas that the next light checkpoint removes.
    pub folded: Folded,
    /// Most settled changes cannot be folded: a full checkpoint must merge them.
    pub is_vain: bool,
}
