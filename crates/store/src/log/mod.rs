//! The log: positions of new batches, batches in flight, and the durable end. Owns the streams (an
//! open extent each, and the list of extents to open next: `streams`), sequence numbers, and the
//! syncs. Does not interpret batches: [`Sink`] applies them.
//!
//! A batch goes through these steps:
//! 1. [`Log::append`] assigns it a position and a sequence number, under the log's lock. If it does
//!    not fit in the rest of its stream's open extent, the remainder becomes a second batch in the
//!    next one. Preparing the storage (`reserve`), and the reads of the map store that its
//!    application needs ([`Sink::foresee`]), are done before that, without the lock.
//! 2. It is written, without a lock; batches of several threads are written at the same time.
//! 3. It is applied to the map once every batch before it has been: so the map is always that of a
//!    prefix of the log, and recovery, which stops at the first batch that is not whole, arrives at
//!    a state that readers saw.
//! 4. [`Log::sync`] makes all applied batches durable; one sync serves all waiters.
//!
//! If a batch cannot be written, it and all later ones are returned to their sink, and the log
//! refuses new batches until a checkpoint ([`Log::position`]) lets it continue in fresh extents,
//! under a new incarnation, so that written parts of the failed ones are never applied. If a sync
//! fails, the content of the medium is unknown: then the pool must be reopened, and the log reports
//! that to `base::vitals`.

pub mod backing;
pub mod catalogue;
pub mod extent_scan;
pub mod foreign;
pub mod geometry;
pub(crate) mod group_commit;
pub mod inventory;
pub mod log_reads;
pub mod prepared;
pub mod superblock_copies;
pub mod superblock_io;
pub mod write_over;
pub mod zero_ahead;

mod end;
mod reserve;
mod settle;
mod standing;
mod streams;
mod waits;
mod writers;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use env::{AlignedBuf, Disk};
use format::{BATCH_ALIGN, BatchHeader, Entry, OpenExtent, STREAMS, encode_batch};
use surface::{Error, ErrorKind, Result};
use units::{ExtentIndex, Seq};

use crate::base::buffers::BufferPool;
use crate::base::group::StoredGroups;
use crate::base::ranked::{Condvar, Mutex};
use crate::base::ranks;
use crate::base::vitals::Vitals;
use crate::buffer::write_buffer::Taken;
use crate::log::backing::Backing;
use crate::log::geometry::Geometry;
use crate::log::group_commit::Syncs;
use crate::log::prepared::Prepared;
use crate::log::zero_ahead::Ahead;

use self::reserve::Need;
use self::streams::{Place, Streams};
use self::writers::Writers;

/// Receives batches. Called under the log's lock, in the log's order.
pub trait Sink: Send + Sync {
    /// Reads from the map store what applying a batch will need. Called without the log's lock.
    fn foresee(&self, entries: &[Entry]) -> Vec<StoredGroups>;
    /// Applies the entries of a written batch. `payload` is where its payloads begin in the data
    /// file. Returns `false` if nothing has happened, because the store must be read again.
    #[must_use]
    fn apply(&self, seq: Seq, entries: &[Entry], payload: u64, foreseen: &[StoredGroups]) -> bool;
    /// All batches before `seq` are applied.
    fn reached(&self, seq: Seq);
    /// Everything of a drain is applied.
    fn completed(&self, taken: &[Taken]);
    /// A drain failed.
    fn failed(&self, taken: &[Taken]);
}

/// Handle to wait for with [`Log::wait_applied`].
#[derive(Debug, Clone, Copy)]
pub struct Ticket {
    pub seq: Seq,
    pub incarnation: u64,
}

/// Smallest rest of an extent that justifies a batch of its own when the whole does not fit.
const SPLIT_BYTES_MIN: usize = 2 * BATCH_ALIGN;
/// Upper bound of failures that are remembered: each takes a failed write and a checkpoint, and no
/// waiter sleeps through as many.
const RESETS_MAX: usize = 1024;
/// Number of attempts at a failing write.
const WRITE_TRIES: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Writing,
    Written,
    /// A thread reads the map store again for its application, without the log's lock. It is the
    /// first one in flight.
    Foreseeing,
    Failed,
}

struct Flight {
    seq: Seq,
    progress: Progress,
    entries: Vec<Entry>,
    foreseen: Vec<StoredGroups>,
    place: Place,
    /// Zeroes follow it, in the same write.
    has_tail: bool,
    /// Offset in the extent at which the batch ends.
    end: u32,
    payload: u64,
    /// Groups that are completed with it.
    taken: Vec<Taken>,
}

/// Position of the log, for a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    pub incarnation: u64,
    pub incarnation_first_seq: Seq,
    /// Sequence number of the first batch that is not applied.
    pub next_seq: Seq,
    /// The end of the last batch before it, in each stream.
    pub open: [Option<OpenExtent>; STREAMS],
    /// The extents that are opened from that batch on, in order.
    pub extents: Vec<ExtentIndex>,
    /// Extents that were passed since the last position was taken.
    pub passed: Vec<ExtentIndex>,
    /// Extents that were removed from the list unused.
    pub dropped: Vec<ExtentIndex>,
}

struct State {
    incarnation: u64,
    incarnation_first_seq: Seq,
    next_seq: Seq,
    streams: Streams,
    /// Number of extents to preallocate in one call.
    reserve_ahead: usize,
    /// A thread is preallocating without the lock.
    reserving: bool,
    applied_seq: Seq,
    flights: VecDeque<Flight>,
    /// The log has ended: nothing is appended any more.
    ended: bool,
    /// A write failed: nothing is appended before a checkpoint and fresh extents.
    broken: Option<(ErrorKind, String)>,
    /// That checkpoint's position has been taken.
    reset: bool,
    /// The incarnations under which the log continued after failures, and their first sequence
    /// numbers: for callers that wait for a failed batch.
    resets: VecDeque<(u64, Seq)>,
    /// A failure that no caller has seen yet.
    unreported: Option<Error>,
    bytes_since_checkpoint: u64,
}

pub struct Log {
    geometry: Geometry,
    pool: u64,
    disk: Arc<dyn Disk>,
    sink: Arc<dyn Sink>,
    vitals: Arc<Vitals>,
    buffers: Arc<BufferPool>,
    state: Mutex<State, ranks::LogState>,
    /// Copy of `Streams::ahead`, to be read without the lock.
    ahead: AtomicUsize,
    /// Extents ever put on the list, by checkpoints of this opening.
    listed: AtomicU64,
    /// Signalled when flights settle.
    settled: Condvar,
    syncs: Syncs,
    writers: Writers,
    pub backing: Backing,
}

/// How a batch may use space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Data that was admitted.
    Data,
    /// Moves, for which the cleaner has reserved room.
    Clean,
    /// Moves when not even the cleaner's own extents are left: a crash in the middle of a round has
    /// used them.
    Rescue,
    /// Discards, deletions, properties: may use all of the reserve.
    Metadata,
}

/// Why a batch was not appended. The batch is handed back.
pub enum Refusal {
    /// The list of extents is used up: take a checkpoint and try again.
    NeedsCheckpoint(Box<Prepared>),
    /// The file system gives no space for the next extent: a checkpoint may list one that has some.
    NeedsSpace(Box<Prepared>, Box<Error>),
    /// It failed; the taken groups have been returned to the sink.
    Failed(Error),
}

impl Log {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        geometry: Geometry,
        pool: [u8; 16],
        disk: Arc<dyn Disk>,
        sink: Arc<dyn Sink>,
        vitals: Arc<Vitals>,
        buffers: Arc<BufferPool>,
        position: Position,
        durable_before: Seq,
        queued_bytes_max: usize,
    ) -> Self {
        let mut id = [0; 8];
        id.copy_from_slice(&pool[..8]);
        let state = State {
            incarnation: position.incarnation,
            incarnation_first_seq: position.incarnation_first_seq,
            next_seq: position.next_seq,
            streams: Streams::new(position.open, position.extents, position.passed),
            reserve_ahead: 1,
            reserving: false,
            applied_seq: position.next_seq,
            flights: VecDeque::new(),
            ended: false,
            broken: None,
            reset: false,
            resets: VecDeque::new(),
            unreported: None,
            bytes_since_checkpoint: 0,
        };
        let syncs = Syncs::new(disk.clone(), vitals.clone(), durable_before);
        Self {
            geometry,
            pool: u64::from_le_bytes(id),
            disk,
            sink,
            vitals,
            buffers,
            syncs,
            ahead: AtomicUsize::new(state.streams.ahead()),
            listed: AtomicU64::new(0),
            state: Mutex::new(state),
            settled: Condvar::new(),
            writers: Writers::new(queued_bytes_max),
            backing: Backing::default(),
        }
    }

    /// Appends a batch, or several if it does not fit in the open extent. Returns when all of it is
    /// written.
    pub fn append(&self, mut prepared: Prepared, purpose: Purpose) -> std::result::Result<Ticket, Refusal> {
        loop {
            let (placed, rest) = self.place_or_refuse(prepared, purpose)?;
            let ticket = placed.ticket;
            if let Err(error) = self.write_placed(placed) {
                // Groups that were not placed yet are returned with the others.
                if let Some(rest) = rest {
                    self.sink.failed(&rest.taken);
                }
                return Err(Refusal::Failed(error));
            }
            match rest {
                Some(rest) => prepared = rest,
                None => return Ok(ticket),
            }
        }
    }

    /// Step 1, for as much as fits; returns the rest too.
    fn place_or_refuse(
        &self,
        mut prepared: Prepared,
        purpose: Purpose,
    ) -> std::result::Result<(Placed, Option<Prepared>), Refusal> {
        prepared.foreseen = self.sink.foresee(&prepared.entries);
        let mut state = self.state.lock();
        let (error, prepared) = loop {
            match self.place(&mut state, prepared, purpose) {
                Ok(Step::Placed(placed, rest)) => return Ok((placed, rest)),
                Ok(Step::NoExtent(prepared)) => return Err(Refusal::NeedsCheckpoint(prepared.into())),
                Ok(Step::Needs(need, back)) => {
                    let met;
                    (state, met) = self.meet(state, need, purpose);
                    match met {
                        Ok(()) => prepared = back,
                        Err(error) => break (error, back),
                    }
                }
                Err(failed) => break failed,
            }
        };
        let is_broken = state.broken.is_some();
        drop(state);
        if error.kind() == ErrorKind::Full && !is_broken {
            return Err(Refusal::NeedsSpace(prepared.into(), error.into()));
        }
        self.sink.failed(&prepared.taken);
        Err(Refusal::Failed(error))
    }

    /// Steps 2 and 3 of a batch with a position.
    fn write_placed(&self, placed: Placed) -> Result<()> {
        let Placed { ticket, at, buf, len } = placed;
        let written = self.write(at, &buf, len);
        self.buffers.put(buf);
        let mut state = self.state.lock();
        let flight = state.flights.iter_mut().find(|f| f.seq == ticket.seq);
        if let Some(flight) = flight {
            flight.progress = if written.is_ok() { Progress::Written } else { Progress::Failed };
        }
        let result = written.map_err(|error| {
            let error = Error::from_io(format!("writing the log failed at byte {at} of the data file"), error);
            state.broken.get_or_insert((error.kind(), error.to_string()));
            error
        });
        self.settle(state);
        result
    }

    /// Step 1: assigns a position to `prepared`, or to as much of it as fits.
    #[allow(clippy::result_large_err)]
    fn place(
        &self,
        state: &mut State,
        mut prepared: Prepared,
        purpose: Purpose,
    ) -> std::result::Result<Step, (Error, Prepared)> {
        if let Some(error) = state.refusal(prepared.begun) {
            return Err((error, prepared));
        }
        let extent_bytes = self.geometry.extent_bytes;
        let stream = prepared.stream;
        if state.is_zeroed_now(stream) {
            return Ok(Step::Needs(Need::Turn, prepared));
        }
        if let Some(open) = state.streams.open_of(stream) {
            let place = Place { stream, extent: open.extent, offset: open.offset };
            if open.offset < extent_bytes {
                if let Some(need) = self.open_lacks_space(open, place) {
                    return Ok(Step::Needs(need, prepared));
                }
                prepared = match self.place_at(state, place, prepared) {
                    Ok(step) => return Ok(step),
                    Err(prepared) => prepared,
                };
            }
        }
        let Some(extent) = state.streams.next() else { return Ok(Step::NoExtent(prepared)) };
        if state.streams.ahead() <= self.geometry.kept_back(purpose) {
            return Ok(Step::NoExtent(prepared));
        }
        if let Some(need) = self.lacks_space(state, purpose) {
            return Ok(Step::Needs(need, prepared));
        }
        let fresh = Place { stream, extent, offset: 0 };
        self.place_at(state, fresh, prepared).map_err(|prepared| {
            let text = format!("a batch of {} bytes does not fit in an extent", prepared.batch_bytes());
            (Error::new(ErrorKind::Invalid, text), prepared)
        })
    }

    /// Launches `prepared`, or as much of it as fits, at `place`. Returns it if nothing of it fits.
    #[allow(clippy::result_large_err)]
    fn place_at(&self, state: &mut State, place: Place, mut prepared: Prepared) -> std::result::Result<Step, Prepared> {
        let room = (self.geometry.extent_bytes - place.offset) as usize;
        if prepared.batch_bytes() <= room {
            let tail = match self.fill_ahead(state, place, prepared.batch_bytes()) {
                Ahead::Stretch(end) => return Ok(Step::Needs(Need::Zeroes(place, end), prepared)),
                Ahead::Tail(bytes) => bytes,
                Ahead::Nothing => 0,
            };
            return Ok(Step::Placed(self.launch(state, place, prepared, tail), None));
        }
        if room >= SPLIT_BYTES_MIN
            && let Some(part) = prepared.split(room, &self.buffers)
        {
            prepared.begun = Some(state.incarnation);
            return Ok(Step::Placed(self.launch(state, place, part, 0), Some(prepared)));
        }
        Err(prepared)
    }

    /// Assigns the next position and sequence number to a batch, and encodes its header. `tail`
    /// zeroes are written after it, if its buffer has room for them.
    fn launch(&self, state: &mut State, place: Place, part: Prepared, tail: usize) -> Placed {
        let ticket = Ticket { seq: state.next_seq, incarnation: state.incarnation };
        let at = self.geometry.start(place.extent) + u64::from(place.offset);
        let header = BatchHeader {
            pool: self.pool,
            seq: ticket.seq,
            incarnation: state.incarnation,
            incarnation_first_seq: state.incarnation_first_seq,
            durable_before: self.syncs.durable_before(),
            extent: place.extent,
            stream: place.stream,
        };
        let len = part.batch_bytes();
        let end = part.payload_bytes();
        let head = encode_batch(&header, &part.entries, part.header_bytes(), len);
        let Prepared { mut buf, entries, foreseen, taken, .. } = part;
        buf[..head.len()].copy_from_slice(&head);
        let written = (len + tail).min(buf.len());
        buf[head.len() + end..written].fill(0);
        state.next_seq = Seq(ticket.seq.0 + 1);
        state.streams.take(place, len as u32);
        self.vitals.counters.opened_extents.add(u64::from(place.offset == 0));
        self.ahead.store(state.streams.ahead(), Ordering::Relaxed);
        state.bytes_since_checkpoint += len as u64;
        state.flights.push_back(Flight {
            seq: ticket.seq,
            progress: Progress::Writing,
            entries,
            foreseen,
            place,
            has_tail: written > len,
            end: place.offset + len as u32,
            payload: at + head.len() as u64,
            taken,
        });
        Placed { ticket, at, buf, len: written }
    }

    /// Step 2.
    fn write(&self, at: u64, buf: &AlignedBuf, len: usize) -> std::io::Result<()> {
        let mut tries = 1;
        loop {
            match self.disk.write_at(at, buf, len) {
                Ok(()) => {
                    self.vitals.counters.log_bytes.add(len as u64);
                    return Ok(());
                }
                Err(error) if tries == WRITE_TRIES => return Err(error),
                Err(_) => tries += 1,
            }
        }
    }

    /// Step 4: makes all batches that are applied now durable.
    pub fn sync(&self) -> Result<()> {
        self.syncs.reach(self.applied_seq(), || self.applied_seq())
    }

    /// Makes all batches that are applied now durable, and all earlier writes to the data file.
    pub fn sync_all(&self) -> Result<()> {
        self.syncs.renew(|| self.applied_seq())
    }

    /// Whether a write failed, and the log waits for [`reset`](Self::reset).
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.state.lock().broken.is_some()
    }

    /// Calls `look` with the number of the next batch to be applied, while none is.
    pub fn while_still<R>(&self, look: impl FnOnce(Seq) -> R) -> R {
        let state = self.state.lock();
        look(state.applied_seq)
    }

    /// Returns the position of the log; `capture` runs while no batch can be applied. No extent
    /// from `mark` on is opened any more, and open ones are abandoned as soon as nothing is in
    /// flight there. With `shortens`, only extents with preallocated space stay on the list.
    pub fn position(&self, mark: ExtentIndex, shortens: bool, capture: impl FnOnce()) -> Position {
        let mut state = self.state.lock();
        // The preallocated extents are certain only when no thread is preallocating.
        while shortens && state.reserving {
            self.settled.wait(&mut state);
        }
        if state.broken.is_some() {
            while !state.flights.is_empty() || state.streams.is_zeroing() {
                self.settled.wait(&mut state);
            }
        }
        if state.broken.is_some() && !state.reset {
            // All batches that were not applied have been returned: continue after the applied
            // ones, in fresh extents.
            state.reset = true;
            state.incarnation += 1;
            state.next_seq = state.applied_seq;
            state.incarnation_first_seq = state.applied_seq;
            let reset = (state.incarnation, state.applied_seq);
            state.resets.push_back(reset);
            if state.resets.len() > RESETS_MAX {
                state.resets.pop_front();
            }
            state.streams.abandon();
            self.ahead.store(state.streams.ahead(), Ordering::Relaxed);
        }
        let dropped = state.streams.keep_before(mark, shortens);
        self.ahead.store(state.streams.ahead(), Ordering::Relaxed);
        capture();
        state.bytes_since_checkpoint = 0;
        let (open, extents, passed) = state.streams.position();
        Position {
            incarnation: state.incarnation,
            incarnation_first_seq: state.incarnation_first_seq,
            next_seq: state.applied_seq,
            open,
            extents,
            passed,
            dropped,
        }
    }

    /// Notes that a checkpoint at `position` is durable: its passed extents are forgotten, new ones
    /// are appended to the list, and a broken log continues.
    pub fn extend(&self, position: &Position, listed: &[ExtentIndex]) {
        let mut state = self.state.lock();
        state.streams.extend(position.passed.len(), listed);
        self.listed.fetch_add(listed.len() as u64, Ordering::Relaxed);
        self.ahead.store(state.streams.ahead(), Ordering::Relaxed);
        if state.reset && state.incarnation == position.incarnation {
            state.broken = None;
            state.reset = false;
            // Failed groups are dirty again in their source: later callers are not affected.
            state.unreported = None;
        }
    }
}

/// A batch that has a position.
pub(crate) struct Placed {
    ticket: Ticket,
    at: u64,
    buf: AlignedBuf,
    len: usize,
}

impl Placed {
    /// Bytes of memory that it holds.
    pub fn bytes(&self) -> usize {
        self.buf.len()
    }
}

enum Step {
    /// The batch was placed, entirely or in part with a remainder.
    Placed(Placed, Option<Prepared>),
    NoExtent(Prepared),
    Needs(Need, Prepared),
}
