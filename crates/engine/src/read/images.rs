//! Groups being fetched from images, those that have arrived and are not in the log yet, and when
//! each was read. Lost with the process, which does no harm.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use store::base::group::GroupKey;
use store::base::ranked::{Condvar, Mutex};
use store::base::ranks;
use store::map::Piece;
use units::{BLOCK_BYTES, BlockMask, ObjectId};

use crate::read::ending::Unwritten;

/// Groups whose last use is remembered together.
pub(crate) const CHUNK_GROUPS: u64 = 16;

/// A group that was fetched: whole blocks, up to the image's end.
#[derive(Debug)]
pub(crate) struct Arrived(pub Vec<u8>);

/// Contact with an image's store since the pool was opened.
#[derive(Debug, Clone, Default)]
pub(crate) struct Contact {
    pub fetched_groups: u64,
    pub fetched_bytes: u64,
    pub failures: u64,
    /// When it failed last, in nanoseconds of the clock; 0: it has answered since.
    pub failed_at: u64,
    pub last_error: Option<String>,
    /// A group of it that has gone from its store, by the last answer.
    pub gone: Option<GroupKey>,
    /// A group of it that arrived damaged.
    pub damaged: Option<GroupKey>,
    /// Why it could not be held for its volumes, if it is gone.
    pub unheld: Option<String>,
    /// Time before which the store is not asked again, in nanoseconds of the clock.
    pub retry_at: u64,
    /// Pause after the next failure, in nanoseconds.
    pub backoff: u64,
    /// Requests that wait for it.
    pub waiting: u64,
    /// The group with which fetching in the background continues; `None`: the last round is
    /// complete.
    pub next: Option<u64>,
    /// In this round of fetching in the background, a group was missing.
    pub is_lacking: bool,
    /// The rest is wanted, but there is no room.
    pub lacks_room: bool,
    /// A round found all groups that volumes need, and nothing was dropped since.
    pub is_whole: bool,
}

#[derive(Default)]
pub(crate) struct State {
    /// Groups that a thread is fetching.
    pub claims: HashSet<GroupKey>,
    /// Arrived groups, for as long as a request holds them.
    pub arrived: HashMap<GroupKey, Weak<Arrived>>,
    pub contacts: BTreeMap<ObjectId, Contact>,
    /// Groups to be dropped.
    pub drops: Vec<GroupKey>,
    /// Changes of volumes that failed while the process was about to end.
    pub unwritten: BTreeMap<ObjectId, Unwritten>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Images {
    pub state: Mutex<State, ranks::Images>,
    /// A group has arrived, or will not arrive.
    pub changed: Condvar,
    /// Entries of `arrived`, to be read without the lock.
    pub arrivals: AtomicUsize,
    stopped: AtomicBool,
    /// Since when the process is about to end, in nanoseconds of the clock; 0: it is not.
    ending: AtomicU64,
    /// When a chunk of an image was read last, by a count of such reads.
    used: Mutex<HashMap<(ObjectId, u64), u64>, ranks::ImagesUsed>,
    reads: AtomicU64,
}

impl Images {
    /// Closes: no request waits any more.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        drop(self.state.lock());
        self.changed.notify_all();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Notes that the process is about to end: stores that do not answer are no longer waited for.
    /// The time of the first call is kept.
    pub(crate) fn end(&self, now: u64) {
        let _ = self.ending.compare_exchange(0, now.max(1), Ordering::AcqRel, Ordering::Acquire);
        drop(self.state.lock());
        self.changed.notify_all();
    }

    /// Since when it is about to end.
    pub(crate) fn ending_since(&self) -> Option<u64> {
        Some(self.ending.load(Ordering::Acquire)).filter(|since| *since > 0)
    }

    /// Answers from arrived groups: copies the data, and removes the answered pieces from `pieces`.
    /// `unknown`: the blocks without a record. Returns the answered blocks.
    pub(crate) fn answer(
        &self,
        key: GroupKey,
        pieces: &mut Vec<Piece>,
        unknown: BlockMask,
        copy: &mut dyn FnMut(u64, &[u8]),
    ) -> BlockMask {
        let of_image = |piece: &Piece| piece.object == key.object;
        let known = pieces.iter().filter(|piece| of_image(piece)).fold(unknown, |m, p| m.or(p.fragment.live));
        if known.is_empty() {
            return BlockMask::EMPTY;
        }
        if self.arrivals.load(Ordering::Acquire) > 0 {
            let arrived = self.state.lock().arrived.get(&key).and_then(Weak::upgrade);
            if let Some(Arrived(bytes)) = arrived.as_deref() {
                let start = key.group.first_block().offset_bytes();
                let mut answered = BlockMask::EMPTY;
                for (first, count) in known.runs() {
                    let (from, to) = (first as usize * BLOCK_BYTES, (first + count) as usize * BLOCK_BYTES);
                    if let Some(bytes) = bytes.get(from..to) {
                        copy(start + from as u64, bytes);
                        answered = answered.or(BlockMask::run(first, count));
                    }
                }
                pieces.retain(|piece| !of_image(piece) || !piece.fragment.live.minus(answered).is_empty());
                return answered;
            }
        }
        self.touch(key);
        BlockMask::EMPTY
    }

    /// Notes a read of a group.
    pub(crate) fn touch(&self, key: GroupKey) {
        let now = self.reads.fetch_add(1, Ordering::Relaxed);
        self.used.lock().insert((key.object, key.group.0 / CHUNK_GROUPS), now);
    }

    /// When a chunk was read last; 0: not since the pool was opened.
    pub(crate) fn used_at(&self, object: ObjectId, chunk: u64) -> u64 {
        self.used.lock().get(&(object, chunk)).map_or(0, |at| at + 1)
    }

    /// Forgets a chunk that was dropped.
    pub(crate) fn forget_use(&self, object: ObjectId, chunk: u64) {
        self.used.lock().remove(&(object, chunk));
    }

    /// Returns the groups that the next checkpoint drops.
    pub(crate) fn take_drops(&self) -> Vec<GroupKey> {
        std::mem::take(&mut self.state.lock().drops)
    }

    /// Keeps arrived groups for the requests that hold them.
    pub(crate) fn keep_arrived(&self, state: &mut State, key: GroupKey, arrived: &Arc<Arrived>) {
        state.arrived.retain(|_, held| held.strong_count() > 0);
        state.arrived.insert(key, Arc::downgrade(arrived));
        self.arrivals.store(state.arrived.len(), Ordering::Release);
    }

    /// Drops arrived groups that no request holds any more.
    pub(crate) fn drop_unheld(&self) {
        let mut state = self.state.lock();
        state.arrived.retain(|_, held| held.strong_count() > 0);
        self.arrivals.store(state.arrived.len(), Ordering::Release);
    }
}
