//! An in-memory object space that loses power on command.
//!
//! Between flushes each 4 KiB block has a separate history: after a power loss it holds its durable
//! content or any later one, independent of other blocks. The trait guarantees this much, and no
//! more, except where writes are ordered: that begins a new *round*, and of all rounds since the
//! last flush a power loss keeps the first ones whole, and one in part.
//!
//! The space's knowledge of a file, apart from its data, is represented by a *mark*, as if it were
//! one more block of the file: it exists from the first write on, and is removed when all of the
//! file was discarded and that was finished. Only memory knows which marks will be removed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use surface::{Allocation, Capacity, Error, ErrorKind, OWN_FILES_END, ObjectSpace, Result, Run};
use testkit::Gate;

use crate::Rng;

const BLOCK: u64 = 4096;
/// The number of a file's mark, after all of its blocks.
const MARK: u64 = u64::MAX;
/// Bytes of a file.
const FILE_BYTES: u64 = 1 << 52;

type Block = Option<Arc<[u8; BLOCK as usize]>>;

/// A block's durable content, and later writes with their rounds.
#[derive(Clone, Default)]
struct History {
    durable: Block,
    later: Vec<(u64, Block)>,
}

impl History {
    fn now(&self) -> &Block {
        self.later.last().map_or(&self.durable, |(_, block)| block)
    }
}

#[derive(Default)]
struct Inner {
    blocks: BTreeMap<(u64, u64), History>,
    unflushed: BTreeSet<(u64, u64)>,
    /// Files whose marks the next flush removes.
    to_go: BTreeSet<u64>,
    /// Times that writes were ordered since the last flush.
    round: u64,
    /// Flushes until now.
    flushes: u64,
    /// Changes and flushes until power goes.
    calls_left: Option<u64>,
    is_off: bool,
    calls: u64,
    room: Option<Room>,
    /// Blocks that hold data, counted when there is a limit.
    used: u64,
}

/// How many blocks a space takes.
#[derive(Debug, Clone, Copy)]
struct Room {
    blocks: u64,
    /// More of the tree's own files.
    own: u64,
    /// Writes to these files until one finds no space, regardless of the limit.
    own_writes: u64,
    /// Whether all writes to these files fail.
    refuses_own: bool,
}

/// See the head of the file.
#[derive(Default)]
pub struct SimSpace {
    inner: Mutex<Inner>,
    /// Where flushes wait.
    pub flushes: Gate,
    /// Where reads of files wait that do not belong to the tree itself.
    pub reads: Gate,
    /// Bytes that may be read ahead.
    ahead_max: AtomicU64,
    /// Files that were read ahead, in this order.
    ahead: Mutex<Vec<u64>>,
}

impl SimSpace {
    /// An empty space.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Cuts the power in the middle of a change or flush, after `calls` more of them.
    pub fn fail_after(&self, calls: u64) {
        self.inner.lock().calls_left = Some(calls);
    }

    /// Limits the space to `blocks` more blocks, plus `own` more of the tree's own files. After
    /// `own_writes`, one write to those finds no space regardless of the limit, as when too little
    /// was reserved.
    pub fn limit(&self, blocks: u64, own: u64, own_writes: u64) {
        let mut inner = self.inner.lock();
        inner.used = inner.held(0..u64::MAX).count() as u64;
        inner.room = Some(Room { blocks: inner.used + blocks, own, own_writes, refuses_own: false });
    }

    /// Refuses all writes, including those of the tree's own files.
    pub fn refuse_all(&self) {
        self.limit(0, 0, u64::MAX);
        if let Some(room) = &mut self.inner.lock().room {
            room.refuses_own = true;
        }
    }

    /// Whether there is a limit.
    pub fn is_limited(&self) -> bool {
        self.inner.lock().room.is_some()
    }

    /// Removes the limit.
    pub fn lift_limit(&self) {
        self.inner.lock().room = None;
    }

    /// Has up to so many bytes read ahead, for trees that are mounted afterwards.
    pub fn allow_read_ahead(&self, bytes: u64) {
        self.ahead_max.store(bytes, Ordering::Relaxed);
    }

    /// Files that were read ahead, in this order.
    pub fn files_read_ahead(&self) -> Vec<u64> {
        self.ahead.lock().clone()
    }

    /// Changes and flushes until now.
    pub fn calls(&self) -> u64 {
        self.inner.lock().calls
    }

    /// Flushes until now.
    pub fn flushes(&self) -> u64 {
        self.inner.lock().flushes
    }

    /// Whether the power is off.
    pub fn is_off(&self) -> bool {
        self.inner.lock().is_off
    }

    /// The state when power returns: for each block the durable content or a later one, chosen by
    /// `rng` within the order of the rounds.
    pub fn after_power_loss(&self, rng: &mut Rng) -> Arc<Self> {
        let inner = self.inner.lock();
        let mut blocks = BTreeMap::new();
        // The surviving part of the unflushed data is drawn once, so that runs with none, all and
        // anything in between occur.
        let share = rng.below(5);
        // The round of which a part survives.
        let last = if inner.round > 0 { rng.below(inner.round + 1) } else { 0 };
        for (&key, history) in &inner.blocks {
            let whole = history.later.partition_point(|(round, _)| *round < last);
            let versions = history.later.partition_point(|(round, _)| *round <= last) - whole;
            let survives = rng.below(4) < share;
            let kept = if survives && versions > 0 { rng.below(versions as u64 + 1) } else { 0 };
            let block = match whole + kept as usize {
                0 => history.durable.clone(),
                number => history.later[number - 1].1.clone(),
            };
            if block.is_some() {
                blocks.insert(key, History { durable: block, later: Vec::new() });
            }
        }
        Arc::new(Self { inner: Mutex::new(Inner { blocks, ..Inner::default() }), ..Self::default() })
    }

    /// The current state, as a snapshot.
    pub fn snapshot(&self) -> Arc<Self> {
        let inner = self.inner.lock();
        let blocks = inner.blocks.iter().filter(|(_, history)| history.now().is_some());
        let durable = |history: &History| History { durable: history.now().clone(), later: Vec::new() };
        let blocks = blocks.map(|(&key, history)| (key, durable(history))).collect();
        Arc::new(Self { inner: Mutex::new(Inner { blocks, ..Inner::default() }), ..Self::default() })
    }

    /// Files that hold data, or have a mark.
    pub fn files(&self) -> BTreeSet<u64> {
        let inner = self.inner.lock();
        inner.blocks.iter().filter(|(_, history)| history.now().is_some()).map(|((file, _), _)| *file).collect()
    }

    /// Blocks that hold data in files of these numbers.
    pub fn allocated_blocks(&self, files: Range<u64>) -> usize {
        self.inner.lock().held(files).count()
    }
}

fn full() -> Error {
    Error::new(ErrorKind::Full, "the simulated space is full")
}

fn off() -> Error {
    Error::new(ErrorKind::Io, "the simulated power is off")
}

impl Inner {
    /// Counts a change; `true` if the power goes off in the middle of it.
    fn count(&mut self) -> Result<bool> {
        if self.is_off {
            return Err(off());
        }
        self.calls += 1;
        match &mut self.calls_left {
            Some(0) => {
                self.is_off = true;
                Ok(true)
            }
            Some(left) => {
                *left -= 1;
                Ok(false)
            }
            None => Ok(false),
        }
    }

    /// Blocks that hold data in files of these numbers, without marks.
    fn held(&self, files: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
        let blocks = self.blocks.range((files.start, 0)..(files.end, 0));
        let is_held = |(key, history): &(&(u64, u64), &History)| key.1 != MARK && history.now().is_some();
        blocks.filter(is_held).map(|(key, _)| *key)
    }

    fn has_mark(&self, file: u64) -> bool {
        self.blocks.get(&(file, MARK)).is_some_and(|history| history.now().is_some())
    }

    /// Refuses a write for want of room.
    fn admit(&mut self, file: u64, offset: u64, length: u64) -> Result<()> {
        let Some(room) = &mut self.room else { return Ok(()) };
        let is_new = |(block, _, _): &(u64, usize, usize)| {
            !self.blocks.get(&(file, *block)).is_some_and(|history| history.now().is_some())
        };
        let new = pieces(offset, length).filter(is_new).count() as u64;
        let is_own = file < OWN_FILES_END;
        if is_own && room.refuses_own {
            return Err(full());
        }
        if is_own {
            match room.own_writes {
                0 => {
                    room.own_writes = u64::MAX;
                    return Err(full());
                }
                left => room.own_writes = left - 1,
            }
        }
        let limit = room.blocks + if is_own { room.own } else { 0 };
        if new > 0 && self.used + new > limit { Err(full()) } else { Ok(()) }
    }

    /// Writes the last blocks that find room of a write that as a whole does not.
    fn write_in_part(&mut self, file: u64, offset: u64, data: &[u8]) {
        let limit = self.room.map_or(0, |room| room.blocks);
        let mut end = data.len();
        for (block, at, length) in pieces(offset, data.len() as u64).collect::<Vec<_>>().into_iter().rev() {
            let is_new = !self.blocks.get(&(file, block)).is_some_and(|history| history.now().is_some());
            if is_new && self.used >= limit {
                return;
            }
            self.change((file, block), at, &data[end - length..end]);
            end -= length;
        }
    }

    fn set(&mut self, key: (u64, u64), block: Block) {
        let (is_there, round) = (block.is_some(), self.round);
        let history = self.blocks.entry(key).or_default();
        let was_there = history.now().is_some();
        history.later.push((round, block));
        if self.room.is_some() && key.1 != MARK {
            self.used = self.used + u64::from(is_there) - u64::from(was_there);
        }
        self.unflushed.insert(key);
    }

    /// Changes the part of a block.
    fn change(&mut self, key: (u64, u64), at: usize, bytes: &[u8]) {
        let before = self.blocks.get(&key).and_then(|history| history.now().clone());
        let mut block = before.map_or([0; BLOCK as usize], |block| *block);
        block[at..at + bytes.len()].copy_from_slice(bytes);
        self.set(key, Some(Arc::new(block)));
    }
}

/// The pieces of a range within blocks: block, offset in it, length.
fn pieces(offset: u64, length: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + length;
    (offset / BLOCK..end.div_ceil(BLOCK)).map(move |block| {
        let (from, to) = (offset.max(block * BLOCK), end.min((block + 1) * BLOCK));
        (block, (from % BLOCK) as usize, (to - from) as usize)
    })
}

impl ObjectSpace for SimSpace {
    fn read_ahead(&self, files: &[(u64, u64)]) -> u64 {
        self.ahead.lock().extend(files.iter().map(|(file, _)| file));
        files.iter().map(|(_, bytes)| bytes).sum()
    }

    fn read_ahead_max(&self) -> u64 {
        self.ahead_max.load(Ordering::Relaxed)
    }

    fn read(&self, file: u64, offset: u64, buf: &mut [u8]) -> Result<()> {
        if file >= OWN_FILES_END {
            self.reads.pass(file);
        }
        let inner = self.inner.lock();
        if inner.is_off {
            return Err(off());
        }
        let mut rest = buf;
        for (block, at, length) in pieces(offset, rest.len() as u64) {
            let (now, later) = rest.split_at_mut(length);
            match inner.blocks.get(&(file, block)).and_then(|history| history.now().as_ref()) {
                Some(bytes) => now.copy_from_slice(&bytes[at..at + length]),
                None => now.fill(0),
            }
            rest = later;
        }
        Ok(())
    }

    fn write(&self, file: u64, offset: u64, data: bytes::Bytes) -> Result<()> {
        let mut inner = self.inner.lock();
        let is_last = inner.count()?;
        if !is_last && let Err(error) = inner.admit(file, offset, data.len() as u64) {
            // Of a write to an ordinary file, the part that fits is stored.
            if file >= OWN_FILES_END {
                inner.write_in_part(file, offset, &data);
            }
            return Err(error);
        }
        inner.to_go.remove(&file);
        if file >= OWN_FILES_END && !inner.has_mark(file) {
            inner.change((file, MARK), 0, &file.to_le_bytes());
        }
        let mut rest = &data[..];
        for (number, (block, at, length)) in pieces(offset, data.len() as u64).enumerate() {
            let (now, later) = rest.split_at(length);
            // Of the change that power interrupts, every other block arrives.
            if !is_last || number % 2 == 0 {
                inner.change((file, block), at, now);
            }
            rest = later;
        }
        if is_last { Err(off()) } else { Ok(()) }
    }

    fn discard(&self, file: u64, range: Range<u64>) -> Result<()> {
        let mut inner = self.inner.lock();
        let is_last = inner.count()?;
        let (first, last) = (range.start / BLOCK, range.end.div_ceil(BLOCK));
        let keys: Vec<(u64, u64)> = inner.blocks.range((file, first)..(file, last)).map(|(&key, _)| key).collect();
        for key in keys {
            let begin = key.1 * BLOCK;
            let (from, to) = (range.start.max(begin), range.end.min(begin + BLOCK));
            if from == begin && to == begin + BLOCK {
                inner.set(key, None);
            } else {
                inner.change(key, (from - begin) as usize, &vec![0; (to - from) as usize]);
            }
            if is_last {
                break;
            }
        }
        if is_last {
            return Err(off());
        }
        if range.start == 0 && range.end >= FILE_BYTES && inner.has_mark(file) {
            inner.to_go.insert(file);
        }
        Ok(())
    }

    fn discard_files(&self, files: Range<u64>) -> Result<()> {
        let mut inner = self.inner.lock();
        let is_last = inner.count()?;
        let keys: Vec<(u64, u64)> = inner.blocks.range((files.start, 0)..(files.end, 0)).map(|(&key, _)| key).collect();
        let (marks, blocks): (Vec<_>, Vec<_>) = keys.into_iter().partition(|(_, block)| *block == MARK);
        blocks.into_iter().for_each(|key| inner.set(key, None));
        if is_last {
            return Err(off());
        }
        inner.to_go.extend(marks.into_iter().map(|(file, _)| file));
        Ok(())
    }

    fn finish_discards(&self) -> Result<()> {
        let is_due = !self.inner.lock().to_go.is_empty();
        if is_due { self.flush() } else { Ok(()) }
    }

    fn flush(&self) -> Result<()> {
        self.flushes.pass(0);
        let mut inner = self.inner.lock();
        if inner.count()? {
            return Err(off());
        }
        (inner.round, inner.flushes) = (0, inner.flushes + 1);
        for key in std::mem::take(&mut inner.unflushed) {
            if let Some(history) = inner.blocks.get_mut(&key) {
                history.durable = history.now().clone();
                history.later.clear();
                if history.durable.is_none() {
                    inner.blocks.remove(&key);
                }
            }
        }
        // Durable with the next flush.
        for file in std::mem::take(&mut inner.to_go) {
            inner.set((file, MARK), None);
        }
        Ok(())
    }

    fn order_writes(&self) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.count()? {
            return Err(off());
        }
        inner.round += 1;
        Ok(())
    }

    fn allocation(&self, file: u64, offset: u64, length: u64, runs_max: usize) -> Result<Vec<Run>> {
        let inner = self.inner.lock();
        let mut runs: Vec<Run> = Vec::new();
        let has_data =
            |block: u64| inner.blocks.range((file, block)..(file, MARK)).any(|(_, history)| history.now().is_some());
        if !has_data(offset / BLOCK) {
            return Ok(vec![Run { length, allocation: Allocation::Hole }]);
        }
        for (block, _, length) in pieces(offset, length.min(runs_max as u64 * (1 << 20))) {
            let is_there = inner.blocks.get(&(file, block)).is_some_and(|history| history.now().is_some());
            let allocation = if is_there { Allocation::Data } else { Allocation::Hole };
            let is_full = runs.len() == runs_max;
            match runs.last_mut() {
                Some(run) if run.allocation == allocation => run.length += length as u64,
                _ if is_full => break,
                _ => runs.push(Run { length: length as u64, allocation }),
            }
        }
        Ok(runs)
    }

    fn capacity(&self) -> Result<Capacity> {
        Ok(Capacity { total_bytes: 1 << 40, free_bytes: 1 << 40 })
    }

    fn admit(&self, bytes: u64) -> Result<()> {
        let inner = self.inner.lock();
        let is_full = inner.room.is_some_and(|room| inner.used + bytes.div_ceil(BLOCK) > room.blocks);
        if is_full { Err(full()) } else { Ok(()) }
    }

    fn set_aside(&self, bytes: u64) -> Result<()> {
        let inner = self.inner.lock();
        let is_full = inner.room.is_some_and(|room| inner.used + bytes.div_ceil(BLOCK) > room.blocks + room.own);
        if is_full { Err(full()) } else { Ok(()) }
    }

    fn own_room(&self) -> u64 {
        let inner = self.inner.lock();
        inner.room.map_or(1 << 40, |room| (room.blocks + room.own).saturating_sub(inner.used) * BLOCK)
    }
}
