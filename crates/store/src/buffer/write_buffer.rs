//! The write buffer: blocks that were written (or made holes) and are not in the map yet. Owns
//! their bytes, the order in which they are drained, and the bookkeeping by which a flush knows
//! when everything before it has been drained.
//!
//! A group goes through these steps:
//! 1. *dirty*: a write or a discard put runs of blocks here; the group is in the queue once. A
//!    rewrite replaces dirty blocks at no further cost.
//! 2. *in flight*: [`WriteBuffer::take`] moved its runs out to be compressed and appended; readers
//!    still find them here. New writes make it dirty again, but it is not taken a second time
//!    before
//! 3. *completed*: the batch is in the log and in the map, and the runs are dropped. Or *failed*:
//!    the runs become dirty again, below all newer writes.
//!
//! So a group never has more than one batch in flight, and the log keeps the order of its writes.
//!
//! Locks: a shard's lock may be held while the queue's is taken, never the other way round.

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use surface::Hint;
use units::{BLOCK_BYTES, BlockMask, GroupIndex, ObjectId};

use crate::base::canary::Canary;
use crate::base::group::GroupKey;
use crate::base::hash::FastHash;
use crate::base::ranked::{Condvar, Mutex, MutexGuard};
use crate::base::ranks::{self, Rank};
use crate::buffer::sorted::Sorted;
use crate::buffer::standby::{Kept, Ring};

/// Shards of the buffer: enough that two cores rarely meet, few enough to walk.
const SHARDS: usize = 256;
/// Memory of a dirty group in addition to its data: maps, queue, run headers.
const GROUP_OVERHEAD_BYTES: usize = 256;

/// The rest of an overwritten run is copied if the request that brought it is more than this many
/// times as large: a request's bytes stay in memory as long as any of them is needed, but only the
/// needed ones are counted. 8: a group of a request of a megabyte is not copied as long as it is
/// whole.
const PINNED_TIMES_MAX: usize = 8;

/// Blocks of a request of which no part may stay in memory for the sake of another.
pub const COPIED: u16 = u16::MAX;

/// Number of attempts on a lock that is held for a fraction of a microsecond before sleeping, and
/// the pause between two attempts.
const LOOKS_MAX: u32 = 50;
const PAUSES: u32 = 4;

/// Queue entries taken under one lock.
const ENTRIES_PER_LOCK: usize = 16;

/// Takes a lock that no thread holds for long. The lock itself yields the core after a few
/// attempts, and gets it back when all others have had their turn: with eight writers on two cores
/// that made one write in two hundred take a hundred times as long.
pub fn briefly<T, R: Rank>(mutex: &Mutex<T, R>) -> MutexGuard<'_, T, R> {
    mutex.expect();
    for _ in 0..LOOKS_MAX {
        if let Some(guard) = mutex.try_lock() {
            return guard;
        }
        (0..PAUSES).for_each(|_| std::hint::spin_loop());
    }
    mutex.lock()
}

/// Consecutive blocks of a group: bytes, or a hole.
#[derive(Debug, Clone)]
pub struct DirtyRun {
    pub first: u8,
    pub count: u8,
    /// `count` x 4 KiB, or `None` for a hole.
    pub data: Option<Bytes>,
    /// Blocks of the request that owns the buffer of `data`; [`COPIED`]: its parts are copied.
    pub pinned: u16,
    /// Set if no client has written it: it is on its way to a better place.
    pub sorted: Option<Sorted>,
    /// Its record in the standby memory, if there is one.
    pub kept: Option<Arc<Kept>>,
    /// The writer's hint about it.
    pub hint: Hint,
}

impl DirtyRun {
    /// Blocks that become holes.
    pub fn hole(first: u8, count: u8) -> Self {
        Self { first, count, data: None, pinned: 0, sorted: None, kept: None, hint: Hint::default() }
    }

    /// Blocks that become `data`, a buffer of their own.
    pub fn of(first: u8, count: u8, data: Bytes) -> Self {
        Self { first, count, data: Some(data), pinned: count.into(), sorted: None, kept: None, hint: Hint::default() }
    }

    #[inline]
    pub fn mask(&self) -> BlockMask {
        BlockMask::run(self.first.into(), self.count.into())
    }
    fn data_bytes(&self) -> usize {
        if self.data.is_some() { usize::from(self.count) * BLOCK_BYTES } else { 0 }
    }
    /// The part of the run from block `first`, `count` blocks long.
    fn part(&self, first: u8, count: u8) -> Self {
        let start = usize::from(first - self.first) * BLOCK_BYTES;
        let range = start..start + usize::from(count) * BLOCK_BYTES;
        let is_copied = usize::from(count) * PINNED_TIMES_MAX < usize::from(self.pinned);
        let of = |data: &Bytes| if is_copied { Bytes::copy_from_slice(&data[range]) } else { data.slice(range) };
        let pinned = if is_copied { count.into() } else { self.pinned };
        let data = self.data.as_ref().map(of);
        Self { first, count, data, pinned, sorted: self.sorted, kept: self.kept.clone(), hint: self.hint }
    }

    /// The parts of the run if only the blocks `kept` stay data, and the others become holes.
    pub fn with_holes(&self, kept: BlockMask) -> impl Iterator<Item = Self> {
        let data = kept.runs().map(|(first, count)| self.part(first as u8, count as u8));
        let hole = |(first, count)| Self { kept: self.kept.clone(), ..Self::hole(first as u8, count as u8) };
        data.chain(self.mask().minus(kept).runs().map(hole))
    }
}

/// Lays `run` over sorted, disjoint runs.
fn overlay(runs: &mut Vec<DirtyRun>, run: DirtyRun) {
    let (start, end) = (run.first, run.first + run.count);
    if runs.last().is_none_or(|last| last.first + last.count <= start) {
        // Most groups of random writes never hold a second run.
        if runs.is_empty() {
            runs.reserve_exact(1);
        }
        runs.push(run);
        return;
    }
    let mut out = Vec::with_capacity(runs.len() + 2);
    for old in runs.drain(..) {
        let old_end = old.first + old.count;
        if old_end <= start || old.first >= end {
            out.push(old);
            continue;
        }
        if old.first < start {
            out.push(old.part(old.first, start - old.first));
        }
        if old_end > end {
            out.push(old.part(end, old_end - end));
        }
    }
    out.push(run);
    out.sort_unstable_by_key(|r| r.first);
    *runs = out;
}

fn data_bytes(runs: &[DirtyRun]) -> usize {
    runs.iter().map(DirtyRun::data_bytes).sum()
}

/// Returns the bytes of the copies of runs of a group, and how many copies the group has.
fn copied(runs: &[DirtyRun]) -> (usize, usize) {
    let each = runs.iter().map(|run| (run.data_bytes(), usize::from(run.hint.copies)));
    each.fold((0, 0), |(bytes, most), (data, copies)| (bytes + data * copies, most.max(copies)))
}

#[derive(Default)]
struct DirtyGroup {
    dirty: Vec<DirtyRun>,
    /// Runs that are being drained: never empty. `None` costs no allocation, which most groups of
    /// random writes would pay twice.
    in_flight: Option<Arc<Vec<DirtyRun>>>,
    /// Whether a queue entry stands for `dirty`.
    queued: bool,
    /// Generations of queue entries that came up while the group was in flight.
    deferred: Vec<u64>,
}

impl DirtyGroup {
    fn is_empty(&self) -> bool {
        self.dirty.is_empty() && self.in_flight.is_none() && self.deferred.is_empty()
    }
}

#[derive(Default)]
struct Shard {
    groups: HashMap<GroupKey, DirtyGroup, FastHash>,
    /// Bytes of data by object, in flight included; objects without data have no entry.
    data: HashMap<ObjectId, usize, FastHash>,
    /// Raised by every insertion, so that a read-modify-write notices a change in between.
    version: u64,
}

impl Shard {
    /// Changes the data bytes of an object.
    fn count(&mut self, object: ObjectId, before: usize, after: usize) {
        if before == after {
            return;
        }
        let bytes = self.data.entry(object).or_default();
        *bytes = (*bytes + after).saturating_sub(before);
        if *bytes == 0 {
            self.data.remove(&object);
        }
    }
}

#[derive(Default)]
struct Queue {
    /// Groups in the order in which they became dirty, with the flush generation in force then.
    entries: VecDeque<(u64, GroupKey)>,
    generation: u64,
    /// Number of undrained queue entries by generation.
    outstanding: BTreeMap<u64, usize>,
}

impl Queue {
    /// Puts an entry where its generation belongs: a flush takes entries up to its own, and must
    /// not find a newer one in front of them.
    fn put_back(&mut self, entry: (u64, GroupKey)) {
        let at = self.entries.partition_point(|(generation, _)| *generation < entry.0);
        self.entries.insert(at, entry);
    }

    fn done(&mut self, generation: u64, entries: usize) {
        if let Some(count) = self.outstanding.get_mut(&generation) {
            *count -= entries;
            if *count == 0 {
                self.outstanding.remove(&generation);
            }
        }
    }
}

/// A group taken to be drained.
#[derive(Debug)]
pub struct Taken {
    pub key: GroupKey,
    pub runs: Arc<Vec<DirtyRun>>,
    generation: u64,
}

pub struct WriteBuffer {
    shards: Vec<Mutex<Shard, ranks::BufferShard>>,
    queue: Mutex<Queue, ranks::BufferQueue>,
    /// Signalled when outstanding entries are done and when entries become takeable.
    changed: Condvar,
    /// Bytes of data and overhead, in flight included.
    bytes: AtomicUsize,
    /// Groups that hold something.
    groups: AtomicUsize,
    /// Bytes and groups that the copies of this data will take in the log, in flight included.
    copied_bytes: AtomicUsize,
    copied_groups: AtomicUsize,
    /// Keeps a second copy of incoming data in case the process dies.
    standby: OnceLock<Arc<Ring>>,
}

impl Default for WriteBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl WriteBuffer {
    pub fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            queue: Mutex::default(),
            changed: Condvar::new(),
            bytes: AtomicUsize::new(0),
            groups: AtomicUsize::new(0),
            copied_bytes: AtomicUsize::new(0),
            copied_groups: AtomicUsize::new(0),
            standby: OnceLock::new(),
        }
    }

    fn shard(&self, key: GroupKey) -> MutexGuard<'_, Shard, ranks::BufferShard> {
        briefly(&self.shards[key.shard(SHARDS)])
    }

    fn queue(&self) -> MutexGuard<'_, Queue, ranks::BufferQueue> {
        briefly(&self.queue)
    }

    /// Bytes held, in flight included.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The standby memory, if there is one.
    #[inline]
    pub fn standby(&self) -> Option<&Arc<Ring>> {
        self.standby.get()
    }

    /// From now on all incoming data is kept in the standby memory as well.
    pub fn begin_standby(&self, ring: Arc<Ring>) {
        // There is one opening, and it does this once.
        let _ = self.standby.set(ring);
    }

    /// Bytes that are compared with its limit: its own, or those of the standby memory, where
    /// overwritten data takes room until all older data has been drained.
    #[inline]
    pub fn held(&self) -> usize {
        self.bytes().max(self.standby().map_or(0, |ring| ring.used()))
    }

    /// Bytes of data that it holds of an object, in flight included. Data drained during the count
    /// is already in the object's figures.
    pub fn data_bytes_of(&self, object: ObjectId) -> usize {
        self.shards.iter().filter_map(|shard| shard.lock().data.get(&object).copied()).sum()
    }

    /// Objects of which it holds data, in flight included: one look at each shard for all of them.
    pub fn objects_with_data(&self) -> HashSet<ObjectId> {
        let mut found = HashSet::new();
        self.shards.iter().for_each(|shard| found.extend(shard.lock().data.keys()));
        found
    }

    /// Groups held.
    #[inline]
    pub fn groups(&self) -> usize {
        self.groups.load(Ordering::Relaxed)
    }

    /// Bytes of data for its copies, in addition to [`bytes`](Self::bytes).
    #[inline]
    pub fn copied_bytes(&self) -> usize {
        self.copied_bytes.load(Ordering::Relaxed)
    }

    /// Copies of groups, in addition to [`groups`](Self::groups).
    #[inline]
    pub fn copied_groups(&self) -> usize {
        self.copied_groups.load(Ordering::Relaxed)
    }

    fn count_copies(&self, before: (usize, usize), after: (usize, usize)) {
        if before != after {
            self.copied_bytes.fetch_add(after.0.wrapping_sub(before.0), Ordering::Relaxed);
            self.copied_groups.fetch_add(after.1.wrapping_sub(before.1), Ordering::Relaxed);
        }
    }

    /// Lays a run over a group. Returns the run if the standby memory has no room for it.
    pub fn insert(&self, key: GroupKey, mut run: DirtyRun) -> Result<(), DirtyRun> {
        let mut shard = self.shard(key);
        if !self.keep(key, &mut run) {
            return Err(run);
        }
        self.insert_into(&mut shard, key, run);
        Ok(())
    }

    /// Lays a run over a group, of which only the blocks `kept` stay data; the others become holes.
    /// All of it becomes dirty at once, and has one record, so that neither a drain nor the death
    /// of the process tears it. Returns the run if the standby memory has no room for it.
    pub fn insert_with_holes(&self, key: GroupKey, mut run: DirtyRun, kept: BlockMask) -> Result<(), DirtyRun> {
        let mut shard = self.shard(key);
        if !self.keep(key, &mut run) {
            return Err(run);
        }
        run.with_holes(kept).for_each(|part| self.insert_into(&mut shard, key, part));
        Ok(())
    }

    /// Lays runs over a group, in their order and at once. They are not kept in standby memory.
    pub fn insert_all(&self, key: GroupKey, runs: impl Iterator<Item = DirtyRun>) {
        let mut shard = self.shard(key);
        runs.for_each(|run| self.insert_into(&mut shard, key, run));
    }

    /// Keeps a run in the standby memory, unless its content is in the log already. Returns `false`
    /// if there is no room.
    fn keep(&self, key: GroupKey, run: &mut DirtyRun) -> bool {
        let is_forgotten = run.data.is_none() && Canary::StandbyForgetsDiscards.is_planted();
        let Some(ring) = self.standby().filter(|_| run.sorted.is_none() && !is_forgotten) else { return true };
        run.kept = ring.keep(key, run);
        run.kept.is_some()
    }

    /// Number that changes with every insertion near `key`; see [`insert_if`](Self::insert_if).
    #[inline]
    pub fn version(&self, key: GroupKey) -> u64 {
        self.shard(key).version
    }

    /// Inserts only if nothing was inserted near `key` since [`version`](Self::version) returned
    /// `version`; returns whether it did. Returns the run if the standby memory has no room for it.
    pub fn insert_if(&self, key: GroupKey, mut run: DirtyRun, version: u64) -> Result<bool, DirtyRun> {
        let mut shard = self.shard(key);
        let is_planted = run.sorted.is_some() && Canary::SortDropsANewerWrite.is_planted();
        let unchanged = shard.version == version || is_planted;
        if unchanged {
            if !self.keep(key, &mut run) {
                return Err(run);
            }
            self.insert_into(&mut shard, key, run);
        }
        Ok(unchanged)
    }

    fn insert_into(&self, shard: &mut Shard, key: GroupKey, run: DirtyRun) {
        shard.version += 1;
        let group = match shard.groups.entry(key) {
            MapEntry::Occupied(entry) => entry.into_mut(),
            MapEntry::Vacant(entry) => {
                self.groups.fetch_add(1, Ordering::Relaxed);
                self.bytes.fetch_add(GROUP_OVERHEAD_BYTES, Ordering::Relaxed);
                entry.insert(DirtyGroup::default())
            }
        };
        let (before, copied_before) = (data_bytes(&group.dirty), copied(&group.dirty));
        overlay(&mut group.dirty, run);
        let after = data_bytes(&group.dirty);
        self.count_copies(copied_before, copied(&group.dirty));
        self.bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        let is_new = !std::mem::replace(&mut group.queued, true);
        shard.count(key.object, before, after);
        if is_new {
            let mut queue = self.queue();
            let generation = queue.generation;
            *queue.outstanding.entry(generation).or_default() += 1;
            queue.entries.push_back((generation, key));
        }
    }

    /// Passes the runs that cover any of `wanted` to `visit`, older ones first, and returns the
    /// blocks found.
    pub fn read(&self, key: GroupKey, wanted: BlockMask, visit: &mut dyn FnMut(&DirtyRun)) -> BlockMask {
        let mut found = BlockMask::EMPTY;
        let shard = self.shard(key);
        if let Some(group) = shard.groups.get(&key) {
            for run in group.in_flight.iter().flat_map(|runs| runs.iter()).chain(&group.dirty) {
                if !run.mask().and(wanted).is_empty() {
                    found = found.or(run.mask().and(wanted));
                    visit(run);
                }
            }
        }
        found
    }

    /// The groups in `from..to` of an object that hold something, in any order.
    pub fn groups_in(&self, object: ObjectId, from: GroupIndex, to: GroupIndex) -> Vec<GroupIndex> {
        let mut found = Vec::new();
        if (self.groups() as u64) < to.0.saturating_sub(from.0) {
            let inside = |key: &&GroupKey| key.object == object && key.group >= from && key.group < to;
            for shard in &self.shards {
                found.extend(shard.lock().groups.keys().filter(inside).map(|key| key.group));
            }
        } else {
            let is_held = |key: GroupKey| self.shard(key).groups.contains_key(&key);
            found.extend((from.0..to.0).map(GroupIndex).filter(|group| is_held(GroupKey { object, group: *group })));
        }
        found
    }

    /// Takes groups to drain, in order, until they make `bytes_max` of data (at least one group, if
    /// there is one). Only entries up to generation `limit` are taken.
    pub fn take(&self, bytes_max: usize, limit: u64) -> Vec<Taken> {
        self.take_leaving(bytes_max, limit, 0)
    }

    /// Like `take`, but leaves the last `left` groups: those that became dirty last.
    pub fn take_leaving(&self, bytes_max: usize, limit: u64, left: usize) -> Vec<Taken> {
        let mut taken = Vec::new();
        let mut bytes = 0;
        let mut entries = VecDeque::new();
        while bytes < bytes_max {
            if entries.is_empty() {
                self.pop_entries(&mut entries, limit, left);
            }
            let Some((generation, key)) = entries.pop_front() else { break };
            let mut shard = self.shard(key);
            match shard.groups.get_mut(&key) {
                Some(group) if group.in_flight.is_some() => group.deferred.push(generation),
                Some(group) if !group.dirty.is_empty() => {
                    group.queued = false;
                    let runs = Arc::new(std::mem::take(&mut group.dirty));
                    group.in_flight = Some(runs.clone());
                    // Holes cost something too, so that a flood of them is divided into batches.
                    bytes += data_bytes(&runs) + GROUP_OVERHEAD_BYTES;
                    taken.push(Taken { key, runs, generation });
                }
                // A failed batch has put its content back under an entry of its own.
                _ => {
                    drop(shard);
                    self.queue().done(generation, 1);
                    self.changed.notify_all();
                }
            }
        }
        if !entries.is_empty() {
            let mut queue = self.queue();
            for entry in entries.into_iter().rev() {
                queue.put_back(entry);
            }
            drop(queue);
            // A flush may have found the queue empty in between.
            self.changed.notify_all();
        }
        taken
    }

    /// Removes some entries up to generation `limit` from the queue, except the last `left`;
    /// several at a time to take its lock less often.
    fn pop_entries(&self, entries: &mut VecDeque<(u64, GroupKey)>, limit: u64, left: usize) {
        let mut queue = self.queue();
        for _ in 0..ENTRIES_PER_LOCK.min(queue.entries.len().saturating_sub(left)) {
            match queue.entries.front() {
                Some((generation, _)) if *generation <= limit => entries.extend(queue.entries.pop_front()),
                _ => break,
            }
        }
    }

    /// Drops groups whose batch is in the map.
    pub fn completed(&self, taken: &[Taken]) {
        self.finish(taken, false);
    }

    /// Makes groups dirty again whose batch could not be written.
    pub fn failed(&self, taken: &[Taken]) {
        self.finish(taken, true);
    }

    fn finish(&self, taken: &[Taken], put_back: bool) {
        let mut again = Vec::new();
        for Taken { key, generation, .. } in taken {
            let mut shard = self.shard(*key);
            let Some(group) = shard.groups.get_mut(key) else { continue };
            let Some(in_flight) = group.in_flight.take() else { continue };
            let mut released = data_bytes(&in_flight);
            self.count_copies(copied(&in_flight), (0, 0));
            if put_back {
                self.count_copies(copied(&group.dirty), (0, 0));
                let newer = std::mem::replace(&mut group.dirty, in_flight.to_vec());
                released += data_bytes(&newer);
                for run in newer {
                    overlay(&mut group.dirty, run);
                }
                released -= data_bytes(&group.dirty);
                self.count_copies((0, 0), copied(&group.dirty));
                group.queued = true;
                again.push((*generation, *key));
            }
            self.bytes.fetch_sub(released, Ordering::Relaxed);
            again.extend(group.deferred.drain(..).map(|generation| (generation, *key)));
            if group.is_empty() {
                shard.groups.remove(key);
                self.forget_group();
            }
            shard.count(key.object, released, 0);
        }
        // All writers need the queue: keep this short.
        let done = if put_back { &[] } else { taken };
        let mut queue = self.queue();
        for same in done.chunk_by(|one, next| one.generation == next.generation) {
            queue.done(same[0].generation, same.len());
        }
        for entry in again.into_iter().rev() {
            queue.put_back(entry);
        }
        drop(queue);
        self.changed.notify_all();
    }

    fn forget_group(&self) {
        self.groups.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(GROUP_OVERHEAD_BYTES, Ordering::Relaxed);
    }

    /// Begins a flush: returns the generation up to which everything must be drained.
    pub fn begin_flush(&self) -> u64 {
        let mut queue = self.queue();
        let generation = queue.generation;
        queue.generation += 1;
        generation
    }

    /// Whether everything up to a generation is drained.
    pub fn is_drained(&self, generation: u64) -> bool {
        self.queue().outstanding.first_key_value().is_none_or(|(oldest, _)| *oldest > generation)
    }

    /// Waits until everything up to a generation is drained (`true`) or something can be taken
    /// (`false`). Returns after `patience` in any case.
    pub fn wait_drained(&self, generation: u64, patience: std::time::Duration) -> bool {
        let mut queue = self.queue();
        let drained =
            |queue: &Queue| queue.outstanding.first_key_value().is_none_or(|(oldest, _)| *oldest > generation);
        if drained(&queue) {
            return true;
        }
        if queue.entries.front().is_none_or(|(oldest, _)| *oldest > generation) {
            self.changed.wait_for(&mut queue, patience);
        }
        drained(&queue)
    }
}

#[cfg(test)]
#[path = "write_buffer_tests.rs"]
pub mod tests;
