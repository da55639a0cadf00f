//! Opens a pool: applies the batches after the last checkpoint (`map::loaded`) up to the first
//! incomplete one. Reads only the extents that the checkpoint lists, so that the time depends on
//! the checkpoint interval alone.
//!
//! The next batch follows the last one of its stream, or begins the next listed extent
//! (`log::streams` has the proof):
//! 1. Look after the last batch of each stream. The bytes there are remembered, since they may be a
//!    later batch.
//! 2. If none of them is the next batch, the next listed extent is read. If the batch is at its
//!    start, its stream fills this extent from now on, and the stream's former extent is complete.
//! 3. If it is not there either, or not whole, the log has ended. A batch of any stream that was
//!    written when the missing one was durable proves damage.
//!
//! **A map that is older than the log**, such as one from a backup, does not know later openings.
//! They have written to places where it expects the log to continue, and to extents where it has
//! data. Only `salvage` can handle that, so no option accepts it. The note of the newest opening
//! shows it first (`opening`); without a note, the batches of later openings do.
//!
//! **Unreadable areas** are read around, and retried alone where a batch is expected (`pieces`).
//! They matter only if they may hide a durable batch: at a place of the next batch; and anywhere
//! later, if there is a trace of that batch or of later ones, because the proof of its durability
//! may be hidden. A readable place without a trace of a batch never had one, so no relevant batch
//! follows it. Once a checkpoint under the next incarnation is durable, nothing after the end is
//! relevant any more, and `log::write_over` makes the area readable again, since the log will be
//! written there.

mod damage;
mod tail;

use std::ops::Range;

use env::MapStore;
use format::{
    BATCH_ALIGN, Batch, BatchHeader, Checkpoint, Entry, KEY_END, LogEnd, OpenExtent, STREAMS, Stream, decode_batch,
};
use store::base::canary::Canary;
use store::base::loss::Loss;
use store::base::store_error::store_error;
use store::log::Position;
use store::log::log_reads::{ExtentBytes, LogReads, Source};
use store::map::apply::Applier;
use surface::{Error, ErrorKind, Result};
use units::{ExtentIndex, Seq};

use crate::checkpoint::opening::older_map;

use damage::leave_damaged_moves;
use tail::{Found, Tail};

/// Recovery stops looking for proof of damage after this many consecutive listed extents without a
/// head: one event may destroy that many, and reading them adds little to the opening of a pool.
const HEADLESS_MAX: usize = 8;

/// Result of replaying the log.
pub(crate) struct Replayed {
    pub position: Position,
    pub batches: u64,
    pub bytes_read: u64,
    /// The loss, if damage is to be repaired.
    pub loss: Option<Loss>,
    /// Batches that are applied although some of their payloads are damaged.
    pub damaged: Vec<String>,
    /// Description of the log's end, if its last batch is torn.
    pub torn: Option<String>,
    /// Unreadable bytes of the data file after the end of the log.
    pub unreadable: Vec<Range<u64>>,
}

/// Returns whether the log of that opening was ended for good exactly there. Nothing depends on a
/// record that cannot be read.
pub(crate) fn ended_at(store: &dyn MapStore, incarnation: u64, next_seq: Seq) -> Result<bool> {
    let end = store.get(KEY_END).map_err(store_error)?.and_then(|bytes| LogEnd::decode(&bytes).ok());
    Ok(end == Some(LogEnd { incarnation, next_seq }))
}

/// Identifies the batches of one log.
#[derive(Clone, Copy)]
struct LogId {
    pool: u64,
    incarnation: u64,
}

impl LogId {
    fn has(self, header: &BatchHeader, extent: ExtentIndex) -> bool {
        (header.pool, header.extent, header.incarnation) == (self.pool, extent, self.incarnation)
    }

    /// Returns whether the batch is of a later opening: none writes before a checkpoint that names
    /// it is durable.
    fn is_newer(self, header: &BatchHeader, extent: ExtentIndex) -> bool {
        (header.pool, header.extent) == (self.pool, extent) && header.incarnation > self.incarnation
    }
}

/// How replay treats damage.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mending {
    /// The log may end before the damage; the resulting loss is reported.
    pub repairs: bool,
    /// The data file ends here, and reads as zeroes from here on.
    pub cut_at: Option<u64>,
}

/// Replay of the log after a checkpoint.
struct Replay<'a> {
    source: Source<'a>,
    id: LogId,
    checkpoint: &'a Checkpoint,
    next: Seq,
    /// The extent that each stream fills, at the current position.
    open: [Option<Tail>; STREAMS],
    /// Listed extents that have been opened.
    opened: usize,
    /// The next one, if it does not begin with the next batch.
    fresh: Option<Tail>,
    passed: Vec<ExtentIndex>,
    batches: u64,
    bytes_read: u64,
    /// See [`Replayed::damaged`].
    damaged: Vec<String>,
}

/// Findings at the apparent end of the log, and after it.
#[derive(Default)]
struct End {
    /// A batch that was written when the missing one was durable: a crash cannot leave that.
    later: Option<Seq>,
    /// The number of a later opening that wrote there.
    newer: Option<u64>,
    /// The first unreadable byte of the data file where the missing batch may be.
    hidden: Option<u64>,
    /// Unreadable bytes from there on.
    unreadable: Vec<Range<u64>>,
    /// The missing batch was written: it is there, torn or damaged, or there is something that
    /// could be it or a later one.
    is_begun: bool,
}

/// A batch to apply: its entries, and where its payloads begin in the data file.
struct Taken {
    seq: Seq,
    entries: Vec<Entry>,
    /// Where it begins.
    begins: u64,
    payload: u64,
    /// The number of its payloads that do not match, and of all.
    damaged: (usize, usize),
}

/// Result of following the log.
struct Followed {
    loss: Option<Loss>,
    torn: Option<String>,
    unreadable: Vec<Range<u64>>,
}

/// Applies the batches after a checkpoint.
///
/// # Errors
/// [`ErrorKind::Io`] if the log cannot be read where a durable batch may be. [`ErrorKind::Corrupt`]
/// if a damaged batch was durable, as a later one records, unless it is to be repaired: then the
/// log ends there, and the loss is reported. [`ErrorKind::Corrupt`] in any case if an opening later
/// than the checkpoint's has written there.
pub(crate) fn replay(
    source: Source<'_>,
    checkpoint: &Checkpoint,
    applier: &Applier,
    mending: Mending,
    ahead: usize,
) -> Result<Replayed> {
    let mut pool = [0; 8];
    pool.copy_from_slice(&checkpoint.pool[..8]);
    let mut replay = Replay {
        source,
        id: LogId { pool: u64::from_le_bytes(pool), incarnation: checkpoint.incarnation },
        checkpoint,
        next: checkpoint.next_seq,
        open: Default::default(),
        opened: 0,
        fresh: None,
        passed: Vec::new(),
        batches: 0,
        bytes_read: 0,
        damaged: Vec::new(),
    };
    let Followed { loss, torn, unreadable } = std::thread::scope(|scope| {
        let reads = LogReads::begin(source, &checkpoint.extents, ahead, scope);
        replay.run(&reads, applier, mending)
    })?;
    let open = replay.open.map(|tail| tail.map(|tail| OpenExtent { extent: tail.extent, offset: tail.at as u32 }));
    let position = Position {
        incarnation: checkpoint.incarnation,
        incarnation_first_seq: checkpoint.incarnation_first_seq,
        next_seq: replay.next,
        open,
        extents: checkpoint.extents[replay.opened..].to_vec(),
        passed: replay.passed,
        dropped: Vec::new(),
    };
    let (batches, bytes_read, damaged) = (replay.batches, replay.bytes_read, replay.damaged);
    Ok(Replayed { position, batches, bytes_read, loss, damaged, torn, unreadable })
}

impl Replay<'_> {
    fn run(&mut self, reads: &LogReads<'_>, applier: &Applier, mending: Mending) -> Result<Followed> {
        for stream in Stream::ALL {
            if let Some(OpenExtent { extent, offset }) = self.checkpoint.open[stream as usize] {
                let bytes = self.source.read_around(extent);
                self.open[stream as usize] = Some(self.load(extent, bytes, offset as usize, Some(stream)));
            }
        }
        let mut again: Option<Taken> = None;
        let why = loop {
            let next = self.advance(reads, false);
            let taken = match next {
                Ok(taken) => taken,
                Err(why) => match mending.repairs.then(|| self.advance_damaged(reads)).flatten() {
                    Some(taken) => taken,
                    None => break why,
                },
            };
            applier.replay(taken.seq, &taken.entries, taken.payload);
            if Canary::DoubleApply.is_planted() && again.is_none() {
                again = Some(taken);
            }
        };
        again.into_iter().for_each(|again| applier.replay(again.seq, &again.entries, again.payload));
        let end = self.end();
        if let Some(newer) = end.newer {
            return Err(older_map(self.id.incarnation, newer));
        }
        let behind = end.unreadable.first().map(|bad| bad.start);
        let hidden = end.hidden.or(behind.filter(|_| end.is_begun && end.later.is_none()));
        let next = self.next.0;
        let cut_at = mending.cut_at.filter(|cut_at| self.reaches(*cut_at));
        let what = match (end.later, hidden, cut_at) {
            (Some(later), ..) => {
                format!(
                    "the log is damaged: batch {next} was durable when batch {} was written, but there is {why}",
                    later.0
                )
            }
            (None, Some(at), _) => format!(
                "the log cannot be read at byte {at} of the data file, and may continue there: batch {next} was \
                 expected, and there is {why}"
            ),
            (None, None, Some(at)) => format!(
                "the log may continue after byte {at}, where the data was cut off: batch {next} was expected, \
                 and there is {why}"
            ),
            (None, None, None) => {
                let torn = end.is_begun.then(|| {
                    format!(
                        "batch {next} is torn: {why}; it is unknown whether it was flushed, and the log ends \
                         with batch {}",
                        next - 1
                    )
                });
                return Ok(Followed { loss: None, torn, unreadable: end.unreadable });
            }
        };
        if mending.repairs {
            let loss = Some(self.loss(what, applier));
            return Ok(Followed { loss, torn: None, unreadable: end.unreadable });
        }
        let kind = if hidden.is_some() { ErrorKind::Io } else { ErrorKind::Corrupt };
        let text = format!(
            "{what}. `shale check --repair` reports the data that would be lost by opening the pool without it, \
             and changes nothing before the loss is accepted"
        );
        Err(Error::new(kind, text))
    }

    /// Returns the next batch, or why there is none; with `even_damaged` also one whose payloads do
    /// not match.
    fn advance(&mut self, reads: &LogReads<'_>, even_damaged: bool) -> std::result::Result<Taken, String> {
        let has_next = |tail: &Option<Tail>| tail.as_ref().is_some_and(|tail| tail.has(self.next));
        let stream = match self.open.iter().position(has_next) {
            Some(stream) => stream,
            None => {
                let Some(extent) = self.checkpoint.extents.get(self.opened).copied() else {
                    return Err(self.missing());
                };
                let tail = match self.fresh.take() {
                    Some(tail) => tail,
                    None => self.load(extent, reads.next(extent), 0, None),
                };
                match &tail.found {
                    Found::Batch(batch) if tail.has(self.next) && (even_damaged || tail.is_whole(batch)) => {
                        let stream = batch.header.stream as usize;
                        self.opened += 1;
                        if Canary::RecoveryForgetsAStream.is_planted() {
                            self.open = Default::default();
                        }
                        let before = self.open[stream].replace(tail);
                        if let Some(before) = before {
                            self.passed.push(before.extent);
                            self.source.buffers.put(before.buf);
                        }
                        stream
                    }
                    _ => {
                        self.fresh = Some(tail);
                        return Err(self.missing());
                    }
                }
            }
        };
        let id = self.id;
        let Some(tail) = &mut self.open[stream] else { return Err(self.missing()) };
        let Some(mut batch) = tail.take(even_damaged) else { return Err(self.missing()) };
        let mut damaged = (0, 0);
        if even_damaged {
            let matches: Vec<_> = tail.payloads_match(tail.at, &batch).collect();
            damaged = (matches.iter().filter(|matches| !**matches).count(), matches.len());
            leave_damaged_moves(&mut batch, &matches);
        }
        let begins = self.source.geometry.start(tail.extent) + tail.at as u64;
        tail.at += batch.batch_bytes;
        tail.look(self.source, id, Some(batch.header.stream));
        self.next = Seq(self.next.0 + 1);
        self.batches += 1;
        Ok(Taken {
            seq: batch.header.seq,
            entries: batch.entries,
            begins,
            payload: begins + batch.header_bytes as u64,
            damaged,
        })
    }

    /// Loads the bytes of an extent, and examines byte `at` of it.
    fn load(&mut self, extent: ExtentIndex, bytes: ExtentBytes, at: usize, stream: Option<Stream>) -> Tail {
        self.bytes_read += u64::from(self.source.geometry.extent_bytes);
        let ExtentBytes { buf, unreadable } = bytes;
        let len = self.source.geometry.extent_bytes as usize;
        let found = Found::Other(String::new());
        let mut tail = Tail { extent, buf, len, unreadable, failed: None, at, found };
        tail.look(self.source, self.id, stream);
        tail
    }

    /// Describes the bytes at the places where the next batch could be.
    fn missing(&self) -> String {
        let places = self.open.iter().flatten().chain(&self.fresh).map(|tail| {
            let what = match &tail.found {
                Found::Batch(batch) if batch.header.seq == self.next => "its torn or damaged rest".to_owned(),
                Found::Batch(batch) => format!("batch {}", batch.header.seq.0),
                Found::Other(why) => why.clone(),
            };
            format!("at byte {} of the data file {what}", self.source.geometry.start(tail.extent) + tail.at as u64)
        });
        places.collect::<Vec<_>>().join(", ")
    }

    /// Examines the apparent end of the log, and the bytes after it.
    fn end(&mut self) -> End {
        let mut end = End::default();
        for tail in self.open.iter().flatten() {
            self.look_for_more(tail, true, &mut end);
        }
        // The missing batch may be the first of the next extent, whose head is unreadable. Extents
        // are opened in order, but a crash or damage may have destroyed several heads.
        let mut headless = 0;
        for (i, extent) in self.checkpoint.extents.iter().copied().enumerate().skip(self.opened) {
            let is_place = i == self.opened;
            if headless == HEADLESS_MAX || end.later.is_some() && !is_place {
                break;
            }
            // Bytes unreadable the first time must not pass for an empty place the second time.
            let tail = match self.fresh.take_if(|_| is_place) {
                Some(tail) => tail,
                None => self.load(extent, self.source.read_around(extent), 0, None),
            };
            self.look_for_more(&tail, is_place, &mut end);
            headless = if matches!(tail.found, Found::Other(_)) { headless + 1 } else { 0 };
            if is_place {
                self.fresh = Some(tail);
            } else {
                self.source.buffers.put(tail.buf);
            }
        }
        end
    }

    /// Adds the findings at and after the end of a tail; `is_place`: the missing batch could be
    /// there.
    fn look_for_more(&self, tail: &Tail, is_place: bool, end: &mut End) {
        let start = self.source.geometry.start(tail.extent);
        let behind = tail.unreadable.iter().filter(|bad| bad.end > tail.at);
        end.unreadable.extend(behind.map(|bad| start + bad.start.max(tail.at) as u64..start + bad.end as u64));
        if is_place {
            let hidden = tail.unreadable_in(tail.may_take(self.next));
            end.hidden = end.hidden.or(hidden.map(|at| start + at as u64));
            end.is_begun |= tail.is_begun();
        }
        for at in (0..tail.len).step_by(BATCH_ALIGN) {
            let Ok(Batch { header, .. }) = decode_batch(&tail.bytes()[at..]) else { continue };
            if self.id.is_newer(&header, tail.extent) {
                end.newer.get_or_insert(header.incarnation);
            }
            if at >= tail.at && self.id.has(&header, tail.extent) {
                end.is_begun |= header.seq >= self.next;
                end.later = end.later.or((header.durable_before > self.next).then_some(header.seq));
            }
        }
    }
}
