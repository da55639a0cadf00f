//! The standby ring: a second copy of acknowledged data that is not in the log yet, in memory that
//! survives the process (`env::Standby`), so that a crash of the server loses no acknowledged
//! write. Owns the ring of records and their release; `standby_open` handles a ring that an opening
//! finds. A power failure destroys the memory: then only flushed data survives, as without it.
//!
//! A write or a discard goes through these steps, under the lock of its group's shard of the write
//! buffer:
//! 1. A record gets the next *position* of the ring and its head is written, under the ring's lock:
//!    so heads follow one another without a gap, and a reader of the ring can step over a record
//!    that was never finished. Then a word is updated to say that the records reach past this one:
//!    before that position an incomplete head is damage, and not the end.
//! 2. Its blocks are copied after the head.
//! 3. The word that makes it valid is stored: a checksum of head and blocks.
//! 4. The run goes into the write buffer, and keeps the record ([`Kept`]) as long as any part of it
//!    is there. Here the request may be acknowledged.
//! 5. When no part of the run is left in the buffer, the record is *released*: its blocks are in
//!    the log, applied; or a newer run covers them, whose record is valid by step 3; or their
//!    volume is gone. The *tail* is the position of the oldest record that has not been released.
//!    It moves when that record is released, and it alone marks, in the memory, the records that
//!    are still needed.
//!
//! **Claim.** Replaying the records from the tail on, in order, over the state after recovery,
//! gives each block the content of the newest acknowledged request.
//! - Requests to a block are ordered by its shard's lock, and positions follow that order, since
//!   step 1 is under it.
//! - Let *r* be the record of the newest acknowledged request to a block. If *r* is at or after the
//!   tail, it is valid (step 3 was before the acknowledgement), and the only later valid records
//!   that name the block are those of requests that were never acknowledged: either result is
//!   right.
//! - If *r* is before the tail, it was released, and no newer request covers it: so its blocks are
//!   in a batch that was applied, and the system has its bytes. Recovery finds every applied batch:
//!   the machine has not failed, and a batch is applied only when all before it are. No record from
//!   the tail on names the block.
//! - Records that the log has as well do no harm: all records from the tail on are replayed in
//!   order, so the newest one wins.
//! - Replaying twice does no harm for the same reason, as long as nothing else was written in
//!   between (see `standby_open`).
//!
//! **Changes that bypass the write buffer** (a large discard, a volume that is truncated or rolled
//! back, a snapshot that was received) are ordered by `Writes::drain_past_current`: it
//! returns when the tail has passed all records that existed when it was called.
//! - Under a volume's closed gate, before the batch that changes the volume: no record of older
//!   data can be replayed over it. Snapshots do the same, so that a replayed record never belongs
//!   to a past epoch.
//! - A large discard does it when its batches are applied, before it is acknowledged: all records
//!   after the tail are then newer than the hole.
//! - Destroying needs none of it: records of an object that is no live volume are not replayed, and
//!   its number is never reused.
//! - Moves and sorting change no content, so they need no record.
//!
//! **Replacement.** The file of the ring may be removed or damaged while it is in use
//! ([`Ring::fault`]). The ring then moves to a new file ([`Ring::replace`]), with its positions and
//! its session, while no thread uses its memory.
//! - This process knows the header and the words, so they are written from memory and never copied.
//! - Records are copied unchanged. A damaged record does not match its checksum in the new file
//!   either, so an opening reports it as lost. That ends when the write buffer has been drained:
//!   the tail is then past all records that were copied.
//!
//! **Bound.** The ring has the write buffer's limit and [`SLACK_BYTES`]. Its bytes are included
//! where writers wait and workers drain ([`WriteBuffer::held`]); a writer that finds no room for a
//! record waits for a drain.
//!
//! [`WriteBuffer::held`]: crate::buffer::write_buffer::WriteBuffer::held

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use env::{Standby, StandbyMemory};
use format::{
    STANDBY_ALIGN, STANDBY_COMMIT_OFFSET, STANDBY_DURABLE_OFFSET, STANDBY_HEAD_OFFSET, STANDBY_HEADER_BYTES,
    STANDBY_INCARNATION_OFFSET, STANDBY_PATH_OFFSET, STANDBY_RING_OFFSET, STANDBY_SEQ_OFFSET, STANDBY_TAIL_OFFSET,
    StandbyHeader, StandbyKind, StandbyRecord, load_word, word_stores,
};
use units::{BlockIndex, GROUP_BYTES, ObjectId, Seq};

use crate::base::canary::Canary;
use crate::base::group::GroupKey;
use crate::base::ranked::{Condvar, Mutex, RwLock};
use crate::base::ranks;
use crate::buffer::write_buffer::{DirtyRun, briefly};

/// Bytes of the largest record.
const RECORD_BYTES_MAX: usize = STANDBY_ALIGN + GROUP_BYTES;
/// Size of the ring beyond the limit of the write buffer: one record of maximum length, the pad
/// before it, and as much again for writers that passed the limit at the same time.
pub const SLACK_BYTES: usize = 4 * RECORD_BYTES_MAX;
/// Time that a thread waits for the tail before it drains again.
const PATIENCE: Duration = Duration::from_millis(20);
/// Bytes that are copied at a time when the memory is replaced.
const COPY_BYTES: usize = 256 << 10;

/// A record in the ring.
struct Live {
    /// The position after it.
    end: u64,
    is_needed: bool,
}

struct State {
    head: u64,
    tail: u64,
    /// All records from the tail on. Bounded by the ring: each takes a cache line or more of it.
    records: VecDeque<Live>,
    /// Number of the first of `records`.
    first: u64,
    /// Newest incarnation of the log that the memory matches.
    incarnation: u64,
    /// Number of the first batch that is not known to be durable.
    durable: u64,
    /// Number of the first batch that was not applied when the tail moved last.
    applied: u64,
    /// The memory is frozen: records released from now on were not drained.
    is_frozen: bool,
}

/// Facts about the log when a ring is made.
#[derive(Debug, Clone, Copy)]
pub struct LogFacts {
    /// The first batch that is not applied.
    pub applied: Seq,
    /// The first batch that is not known to be durable.
    pub durable: Seq,
}

/// Writes the first bytes of a ring without records over zeroes.
pub fn write_beginning(memory: &dyn StandbyMemory, header: &StandbyHeader, log: LogFacts, path: &[u8]) {
    State::new(header, log).write_beginning(memory, header, path);
}

/// Changes a word of standby memory.
pub fn set_word(memory: &dyn StandbyMemory, session: u64, offset: usize, value: u64) {
    word_stores(session, offset, value).into_iter().for_each(|(at, value)| memory.store(at, value));
}

/// The ring of one open pool.
pub struct Ring {
    memory: RwLock<Arc<dyn StandbyMemory>, ranks::StandbyMemory>,
    bytes: usize,
    header: StandbyHeader,
    state: Mutex<State, ranks::StandbyRing>,
    /// Signalled when the tail moves.
    moved: Condvar,
    /// Copy of `head - tail`.
    used: AtomicUsize,
    /// Number of the first batch that is not applied.
    log_seq: AtomicU64,
}

/// A record that the write buffer needs.
pub struct Kept {
    ring: Arc<Ring>,
    number: u64,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kept({})", self.number)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.ring.give_up(self.number);
    }
}

impl Ring {
    /// A ring without records, in memory whose beginning has been written.
    pub fn new(memory: Arc<dyn StandbyMemory>, header: &StandbyHeader, log: LogFacts) -> Self {
        Self {
            bytes: memory.len(),
            memory: RwLock::new(memory),
            header: *header,
            state: Mutex::new(State::new(header, log)),
            moved: Condvar::new(),
            used: AtomicUsize::new(0),
            log_seq: AtomicU64::new(log.applied.0),
        }
    }

    /// Bytes that records take, including released ones after the tail.
    #[inline]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes of the memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes up to which the ring may be filled before writers wait.
    #[inline]
    pub fn limit(&self) -> usize {
        (self.header.ring_bytes as usize).saturating_sub(SLACK_BYTES)
    }

    /// The memory matches this incarnation of the log as well.
    pub fn goes_with(&self, incarnation: u64) {
        let memory = self.memory.read();
        let mut state = briefly(&self.state);
        if state.incarnation < incarnation {
            state.incarnation = incarnation;
            set_word(&**memory, self.header.session, STANDBY_INCARNATION_OFFSET, incarnation);
        }
    }

    /// Returns the reason why the next process would not find the memory, or not recognise it.
    /// `None` if it would. Damaged records are left to an opening, which reads them all.
    pub fn fault(&self, standby: &dyn Standby, pool: &[u8; 16]) -> Option<String> {
        let memory = self.memory.read();
        let fault = standby.fault(pool, &**memory);
        if fault.is_some() || self.has_beginning(&**memory) || Canary::StandbyBeginningNotSeen.is_planted() {
            return fault;
        }
        Some(format!("{}: its first bytes have been overwritten", standby.place(pool)))
    }

    /// Whether the memory begins with the header and the words of this ring.
    fn has_beginning(&self, memory: &dyn StandbyMemory) -> bool {
        let mut bytes = [0; STANDBY_HEADER_BYTES];
        // Under the lock, because a word that is being changed looks damaged.
        let state = briefly(&self.state);
        let is_word = |(offset, value)| load_word(|at| memory.load(at), self.header.session, offset) == Some(value);
        memory.read(0, &mut bytes) && bytes[..] == self.header.encode() && state.words().into_iter().all(is_word)
    }

    /// Moves the ring to memory created by `make`: so many bytes, filled by a function. `path` is
    /// the pool's directory, for messages.
    ///
    /// # Errors
    /// When no other memory can be created.
    pub fn replace(
        &self,
        path: &[u8],
        make: impl FnOnce(usize, &dyn Fn(&dyn StandbyMemory)) -> std::io::Result<Arc<dyn StandbyMemory>>,
    ) -> std::io::Result<()> {
        let mut memory = self.memory.write();
        let old = Arc::clone(&memory);
        let fill = |new: &dyn StandbyMemory| {
            let mut bytes = vec![0; COPY_BYTES];
            // Memory that has been cut off must not be touched. Its records are then missing from
            // the new memory, where they look damaged.
            let end = if old.is_whole() { old.len() } else { STANDBY_RING_OFFSET };
            for at in (STANDBY_RING_OFFSET..end).step_by(COPY_BYTES) {
                let part = &mut bytes[..COPY_BYTES.min(end - at)];
                if old.read(at, part) {
                    new.write(at, part);
                }
            }
            briefly(&self.state).write_beginning(new, &self.header, path);
        };
        *memory = make(old.len(), &fill)?;
        Ok(())
    }

    /// All batches before this one are applied.
    pub(crate) fn log_reached(&self, seq: Seq) {
        self.log_seq.fetch_max(seq.0, Ordering::AcqRel);
    }

    /// All batches before this one are durable: without them the log is damaged.
    pub fn log_is_durable(&self, seq: Seq) {
        let memory = self.memory.read();
        let mut state = briefly(&self.state);
        if state.durable < seq.0 {
            state.durable = seq.0;
            set_word(&**memory, self.header.session, STANDBY_DURABLE_OFFSET, seq.0);
        }
    }

    /// Freezes the memory: data that the write buffer drops from now on is not in the log.
    pub fn freeze(&self) {
        self.state.lock().is_frozen = true;
    }

    /// Whether no record is needed.
    pub fn is_empty(&self) -> bool {
        self.state.lock().records.iter().all(|record| !record.is_needed)
    }

    /// Steps 1 to 3. `None`: there is no room.
    pub fn keep(self: &Arc<Self>, key: GroupKey, run: &DirtyRun) -> Option<Arc<Kept>> {
        let first = BlockIndex(key.group.first_block().0 + u64::from(run.first));
        let kind = if run.data.is_some() { StandbyKind::Data } else { StandbyKind::Hole };
        let record = StandbyRecord { position: 0, kind, object: key.object, first, count: run.count.into() };
        let memory = self.memory.read();
        let (record, number) = self.reserve(&**memory, record)?;
        let kept = Arc::new(Kept { ring: Arc::clone(self), number });
        let at = self.place(record.position);
        let payload = run.data.as_deref().unwrap_or_default();
        let commit = record.commit(self.header.session, payload);
        if Canary::StandbyRecordBeforePayload.is_planted() {
            memory.store(at + STANDBY_COMMIT_OFFSET, commit);
        }
        if !payload.is_empty() {
            memory.write(at + STANDBY_ALIGN, payload);
        }
        memory.store(at + STANDBY_COMMIT_OFFSET, commit);
        Some(kept)
    }

    /// Step 1.
    fn reserve(&self, memory: &dyn StandbyMemory, record: StandbyRecord) -> Option<(StandbyRecord, u64)> {
        let bytes = record.bytes() as u64;
        let mut state = briefly(&self.state);
        let to_end = self.header.ring_bytes - state.head % self.header.ring_bytes;
        let pad = if bytes > to_end { to_end } else { 0 };
        if state.head + pad + bytes - state.tail > self.header.ring_bytes {
            return None;
        }
        if pad > 0 {
            let count = (pad / STANDBY_ALIGN as u64) as u32;
            let (object, first) = (ObjectId(0), BlockIndex(0));
            let skipped = StandbyRecord { position: state.head, kind: StandbyKind::Pad, object, first, count };
            memory.write(self.place(skipped.position), &skipped.encode(self.header.session));
            state.push(pad, false);
        }
        let record = StandbyRecord { position: state.head, ..record };
        memory.write(self.place(record.position), &record.encode(self.header.session));
        let number = state.push(bytes, true);
        set_word(memory, self.header.session, STANDBY_HEAD_OFFSET, state.head);
        self.used.store((state.head - state.tail) as usize, Ordering::Relaxed);
        Some((record, number))
    }

    /// Where a position is in the memory.
    fn place(&self, position: u64) -> usize {
        STANDBY_RING_OFFSET + (position % self.header.ring_bytes) as usize
    }

    /// Step 5.
    fn give_up(&self, number: u64) {
        let memory = self.memory.read();
        let mut state = briefly(&self.state);
        let index = (number - state.first) as usize;
        if let Some(record) = state.records.get_mut(index) {
            record.is_needed = false;
        }
        // The oldest record may be a pad, which no run releases: so the tail moves whenever the
        // oldest is not needed, not only when this record is the oldest.
        if state.is_frozen || state.records.front().is_some_and(|oldest| oldest.is_needed) {
            return;
        }
        while let Some(record) = state.records.pop_front_if(|record| !record.is_needed) {
            state.tail = record.end;
            state.first += 1;
        }
        // The log must reach this batch before its data can be dropped here.
        state.applied = self.log_seq.load(Ordering::Acquire);
        set_word(&**memory, self.header.session, STANDBY_SEQ_OFFSET, state.applied);
        set_word(&**memory, self.header.session, STANDBY_TAIL_OFFSET, state.tail);
        self.used.store((state.head - state.tail) as usize, Ordering::Relaxed);
        drop(state);
        self.moved.notify_all();
    }

    /// The position of the next record.
    pub fn head(&self) -> u64 {
        self.state.lock().head
    }

    /// Waits briefly for the tail to reach a position; returns whether it has.
    pub fn is_behind(&self, position: u64) -> bool {
        let mut state = self.state.lock();
        if state.tail < position && !state.is_frozen {
            self.moved.wait_for(&mut state, PATIENCE);
        }
        state.tail >= position || state.is_frozen
    }
}

impl State {
    /// A ring without records.
    fn new(header: &StandbyHeader, log: LogFacts) -> Self {
        Self {
            head: 0,
            tail: 0,
            records: VecDeque::new(),
            first: 0,
            incarnation: header.incarnation,
            durable: log.durable.0,
            applied: log.applied.0,
            is_frozen: false,
        }
    }

    /// The mutable words, with their offsets.
    fn words(&self) -> [(usize, u64); 5] {
        [
            (STANDBY_TAIL_OFFSET, self.tail),
            (STANDBY_SEQ_OFFSET, self.applied),
            (STANDBY_INCARNATION_OFFSET, self.incarnation),
            (STANDBY_DURABLE_OFFSET, self.durable),
            (STANDBY_HEAD_OFFSET, self.head),
        ]
    }

    /// Writes everything before the records over zeroes; the header last, because it makes the rest
    /// valid.
    fn write_beginning(&self, memory: &dyn StandbyMemory, header: &StandbyHeader, path: &[u8]) {
        self.words().into_iter().for_each(|(offset, value)| set_word(memory, header.session, offset, value));
        memory.write(STANDBY_PATH_OFFSET, &path[..path.len().min(STANDBY_RING_OFFSET - STANDBY_PATH_OFFSET)]);
        memory.write(0, &header.encode());
    }

    /// Number of the new record.
    fn push(&mut self, bytes: u64, is_needed: bool) -> u64 {
        self.head += bytes;
        self.records.push_back(Live { end: self.head, is_needed });
        self.first + self.records.len() as u64 - 1
    }
}

/// Bytes of the ring in so much memory.
pub fn ring_bytes(memory_bytes: usize) -> u64 {
    (memory_bytes.saturating_sub(STANDBY_RING_OFFSET) / STANDBY_ALIGN * STANDBY_ALIGN) as u64
}
