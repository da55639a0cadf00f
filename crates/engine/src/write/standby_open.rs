//! Takes over the ring that another process left (`standby` explains its content and why its
//! order is right).
//!
//! 1. [`find`] looks whether there is a ring, and whether it belongs to the pool as it is. Five
//!    things are checked: the pool; the copy of it, because a backup that is opened must not take
//!    what the original's server left; the boot of the machine, because memory of another boot says
//!    nothing; the incarnation of the log, because another process may have opened the pool since;
//!    and the length of the log. A ring that fails a check is not replayed. If the log is shorter
//!    than it was when it was flushed, it is damaged (`standby_lost`).
//! 2. Before a checkpoint is taken under this opening's incarnation, the file's range is
//!    extended to it. So this opening may die as well.
//! 3. When the pool has its threads, the records from the tail on are replayed through the
//!    write buffer, and everything is flushed.
//! 4. The map forgets that a ring is needed, the file is made void, then removed. Until here no
//!    client has written to the pool. So a replay after a death in between gives the same result.
//!    Files beside a ring that is not replayed are passed over first: see
//!    [`env::Standby::pass_over_beside`].
//! 5. A new file is made, if one is asked for. Only now the first request is taken. A file that was
//!    not replayed, and is not of another boot, is kept under another name before.
//!
//! Every opening takes steps 1 to 4, whatever its purpose: the next opening could not take them
//! any more.

use std::sync::Arc;

use bytes::Bytes;
use env::StandbyMemory;
use format::{
    STANDBY_ALIGN, STANDBY_COMMIT_OFFSET, STANDBY_DURABLE_OFFSET, STANDBY_HEADER_BYTES, STANDBY_INCARNATION_OFFSET,
    STANDBY_PATH_OFFSET, STANDBY_RING_OFFSET, STANDBY_SEQ_OFFSET, STANDBY_TAIL_OFFSET, StandbyHeader, StandbyKind,
    StandbyNeed, StandbyRecord,
};
use surface::{Error, ErrorKind, Result};
use units::{BLOCK_BYTES, GROUP_BLOCKS, Seq, format_size};

use crate::base::canary::Canary;
use crate::base::group::GroupKey;
use crate::base::options::PoolEnv;
use crate::base::status::StandbyStatus;
use crate::buffer::standby::{Ring, SLACK_BYTES, ring_bytes};
use crate::buffer::write_buffer::DirtyRun;
use crate::pool::core::Core;

/// Least bytes of the ring: as much again as the slack, so that writers wait for drains and not for
/// single records.
const RING_BYTES_MIN: usize = 2 * SLACK_BYTES;

/// Facts about the standby memory of an open pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StandbyFacts {
    /// Records that were replayed when the pool was opened, and their bytes of data.
    pub replayed: u64,
    pub replayed_bytes: u64,
    /// Memory that was left and not replayed, and why there is no standby memory where it was asked for.
    pub notes: Vec<String>,
}

/// A ring that another process left and that goes with the pool.
pub(crate) struct Left {
    memory: Arc<dyn StandbyMemory>,
    header: StandbyHeader,
    tail: u64,
}

/// What step 1 found.
pub(crate) enum Found {
    /// Nothing that a server left.
    Nothing,
    /// A ring to be replayed.
    Left(Left),
    /// The log has lost batches that were durable: all before `durable` were.
    Short {
        /// Where the ring is.
        place: String,
        durable: Seq,
        /// Records that came behind the missing batches, and their bytes of data.
        records: u64,
        bytes: u64,
    },
    /// What does not count.
    Refused {
        why: String,
        /// It says nothing of this boot: it may be removed.
        is_void: bool,
        /// It proves that something which was acknowledged is not there.
        is_lost: bool,
    },
}

/// Step 1.
///
/// # Errors
/// [`ErrorKind::InUse`] when another process has the ring: it is ending, and what it left is not to
/// be passed over.
pub(crate) fn find(env: &PoolEnv, pool: &[u8; 16], incarnation: u64, next_seq: Seq) -> Result<Found> {
    let Some(standby) = &env.standby else { return Ok(Found::Nothing) };
    let memory = match standby.left(pool) {
        Ok(Some(memory)) => memory,
        Ok(None) => return Ok(Found::Nothing),
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
            let text = "what an earlier server left in standby memory cannot be read yet; try again";
            return Err(Error::with_source(ErrorKind::InUse, text, error));
        }
        Err(error) => {
            let is_void = error.kind() == std::io::ErrorKind::InvalidData;
            return Ok(Found::Refused { why: error.to_string(), is_void, is_lost: false });
        }
    };
    let place = standby.place(pool);
    let refused = |why: &str, is_void: bool, is_lost: bool| {
        Ok(Found::Refused { why: format!("{place}: {why}"), is_void, is_lost })
    };
    let mut bytes = [0; STANDBY_HEADER_BYTES];
    if memory.len() <= STANDBY_RING_OFFSET || !memory.read(0, &mut bytes) {
        return refused("it is too short", true, false);
    }
    if memory.load(0) == 0 {
        // Its maker died before the first request, or it was replayed.
        return Ok(Found::Nothing);
    }
    let header = match StandbyHeader::decode(&bytes) {
        Ok(header) => header,
        Err(error) => return refused(&error.to_string(), false, false),
    };
    let boot = match standby.boot() {
        Ok(boot) => boot,
        Err(error) => return refused(&error.to_string(), false, false),
    };
    let newest = memory.load(STANDBY_INCARNATION_OFFSET);
    let newest = if Canary::StandbyReplayedTwice.is_planted() { u64::MAX } else { newest };
    let needs = memory.load(STANDBY_SEQ_OFFSET);
    let durable = memory.load(STANDBY_DURABLE_OFFSET);
    if header.boot != boot {
        return refused("it was left before the machine was started", true, false);
    }
    if header.pool != *pool {
        return refused("it belongs to another pool", false, false);
    }
    if header.copy != standby.copy() {
        return refused("it belongs to another copy of the pool", false, false);
    }
    if header.ring_bytes != ring_bytes(memory.len()) {
        return refused("its length is not what it was", false, false);
    }
    if !(header.incarnation..=newest).contains(&incarnation) {
        let why = "the pool has been opened without it since, or another copy was put in the place of the one that it goes with";
        return refused(why, false, false);
    }
    let left = Left { tail: memory.load(STANDBY_TAIL_OFFSET), memory, header };
    if next_seq.0 < durable {
        let runs = left.records().into_iter().filter(|record| left.run(record).is_some());
        let (records, bytes) = runs.fold((0, 0), |(n, bytes), record| (n + 1, bytes + record.payload_bytes() as u64));
        return Ok(Found::Short { place, durable: Seq(durable), records, bytes });
    }
    if next_seq.0 < needs {
        let text = format!("the log ends before batch {}, and had batch {}", next_seq.0, needs.saturating_sub(1));
        return refused(&text, false, true);
    }
    Ok(Found::Left(left))
}

impl Left {
    /// Step 2.
    pub(crate) fn goes_with(&self, incarnation: u64) {
        self.memory.store(STANDBY_INCARNATION_OFFSET, incarnation);
    }

    /// The records from the tail on, in their order, those that do not count included.
    fn records(&self) -> Vec<StandbyRecord> {
        let StandbyHeader { session, ring_bytes, .. } = self.header;
        let mut records = Vec::new();
        let mut position = self.tail;
        while position - self.tail < ring_bytes {
            let mut head = [0; STANDBY_COMMIT_OFFSET];
            if !self.memory.read(self.place(position), &mut head) {
                break;
            }
            let Some(record) = StandbyRecord::decode(&head, position, session) else { break };
            let room = ring_bytes - position % ring_bytes;
            if record.bytes() as u64 > room {
                break;
            }
            position += record.bytes() as u64;
            if record.kind != StandbyKind::Pad {
                records.push(record);
            }
        }
        records
    }

    fn place(&self, position: u64) -> usize {
        STANDBY_RING_OFFSET + (position % self.header.ring_bytes) as usize
    }

    /// The run of a record, if the record counts.
    fn run(&self, record: &StandbyRecord) -> Option<DirtyRun> {
        let at = self.place(record.position);
        let mut payload = vec![0; record.payload_bytes()];
        if !self.memory.read(at + STANDBY_ALIGN, &mut payload) {
            return None;
        }
        let commit = self.memory.load(at + STANDBY_COMMIT_OFFSET);
        let is_whole = commit == record.commit(self.header.session, &payload);
        if !is_whole && (commit == 0 || !Canary::StandbyRecordBeforePayload.is_planted()) {
            return None;
        }
        let (first, count) = (record.first.in_group(), record.count);
        if first + count > GROUP_BLOCKS as u32 {
            return None;
        }
        Some(match record.kind {
            StandbyKind::Data => DirtyRun::of(first as u8, count as u8, Bytes::from(payload)),
            StandbyKind::Hole | StandbyKind::Pad => DirtyRun::hole(first as u8, count as u8),
        })
    }
}

impl Core {
    /// Takes steps 3 to 5. `notes`: texts on missing data, for `status`; `is_missing`: a ring that
    /// held something is gone.
    ///
    /// # Errors
    /// When what was left cannot be brought to the log: it stays, and the next opening tries again.
    pub(crate) fn take_over_standby(&self, found: Found, notes: Vec<String>, is_missing: bool) -> Result<()> {
        let Some(standby) = &self.env.standby else { return Ok(()) };
        let mut facts = StandbyFacts { notes, ..StandbyFacts::default() };
        // What the process kept beside a ring that does not count must not count either. This comes
        // before anything forgets why.
        let passed_over = match &found {
            Found::Nothing => is_missing.then_some(false),
            Found::Left(_) => None,
            Found::Short { .. } => Some(false),
            Found::Refused { is_void, .. } => Some(*is_void),
        };
        if let Some(is_void) = passed_over {
            let kept = standby.pass_over_beside(&self.pool_id, is_void);
            facts.notes.extend(kept.into_iter().map(|place| {
                format!("what goes with that memory was not replayed either: it is kept as {place} until you remove it")
            }));
        }
        let wants_one = self.options.standby_bytes_max > 0;
        let mut refused = |why: &str, is_void: bool| {
            let mut note = format!("what an earlier server left in standby memory was not replayed: {why}");
            if wants_one && is_void {
                let _ = standby.remove(&self.pool_id);
            } else if wants_one {
                match standby.set_aside(&self.pool_id) {
                    Ok(place) => note.push_str(&format!("; it is kept as {place} until you remove it")),
                    Err(error) => note.push_str(&format!("; it stays there ({error})")),
                }
            }
            facts.notes.push(note);
        };
        match found {
            Found::Nothing => {
                self.forget_need()?;
                if wants_one {
                    let _ = standby.remove(&self.pool_id);
                }
            }
            Found::Left(left) => {
                self.replay(&left, &mut facts).map_err(|error| {
                    let place = standby.place(&self.pool_id);
                    let text = format!(
                        "writes that were acknowledged before the server died could not be brought from {place} to the log; remove that \
                         file to open the pool without them"
                    );
                    Error::with_source(error.kind(), text, error)
                })?;
                if Canary::StandbyReplayedTwice.is_planted() {
                    *self.standby.lock() = facts;
                    return Ok(());
                }
                self.forget_need()?;
                // All at once: without the first word it is no file of ours.
                left.memory.store(0, 0);
                drop(left);
                // What stays there is void.
                let _ = standby.remove(&self.pool_id);
            }
            Found::Short { place, .. } => {
                refused(&format!("{place}: the log has lost batches that came before"), false);
                self.forget_need()?;
            }
            Found::Refused { why, is_void, .. } => {
                refused(&why, is_void);
                self.forget_need()?;
            }
        }
        if wants_one && let Err(why) = self.begin_standby() {
            facts.notes.push(format!("no standby memory: {why}"));
        }
        *self.standby.lock() = facts;
        Ok(())
    }

    /// Step 3.
    fn replay(&self, left: &Left, facts: &mut StandbyFacts) -> Result<()> {
        let mut records = left.records();
        if Canary::StandbyReplayOverNewer.is_planted() {
            records.reverse();
        }
        for record in records {
            let Some(run) = left.run(&record) else { continue };
            let Some(object) = self.objects.get(record.object).filter(|object| object.is_live()) else { continue };
            let end = (record.first.0 + u64::from(record.count)) * BLOCK_BYTES as u64;
            if end > object.size_bytes().next_multiple_of(BLOCK_BYTES as u64) {
                continue;
            }
            self.throttle()?;
            facts.replayed += 1;
            facts.replayed_bytes += record.payload_bytes() as u64;
            self.put(GroupKey { object: record.object, group: record.first.group() }, run)?;
        }
        self.flush()
    }

    /// Step 5.
    fn begin_standby(&self) -> std::result::Result<(), String> {
        let Some(standby) = &self.env.standby else { return Ok(()) };
        let (pool, most) = (&self.pool_id, self.options.standby_bytes_max);
        let told = |error: std::io::Error| error.to_string();
        let boot = standby.boot().map_err(told)?;
        let mut id = [0; 8];
        self.env.entropy.fill(&mut id).map_err(told)?;
        let mut wanted = (self.shares.write_buffer + SLACK_BYTES).min(most);
        let memory = loop {
            // With less memory writers wait sooner, and nothing worse.
            match standby.make(pool, STANDBY_RING_OFFSET + wanted.max(RING_BYTES_MIN)) {
                Ok(memory) => break memory,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Err(told(error)),
                Err(error) if wanted <= RING_BYTES_MIN => {
                    let text = format!("{error}; at least {} are needed there", format_size(RING_BYTES_MIN as u64));
                    return Err(text);
                }
                Err(_) => wanted /= 2,
            }
        };
        let session = u64::from_le_bytes(id);
        let incarnation = self.log.incarnation();
        let seq = self.log.applied_seq();
        let (copy, ring_bytes) = (standby.copy(), ring_bytes(memory.len()));
        let header = StandbyHeader { pool: *pool, boot, copy, session, incarnation, ring_bytes };
        memory.store(STANDBY_SEQ_OFFSET, seq.0);
        memory.store(STANDBY_DURABLE_OFFSET, self.log.durable_before().0);
        memory.store(STANDBY_INCARNATION_OFFSET, incarnation);
        let path = standby.pool_path();
        memory.write(STANDBY_PATH_OFFSET, &path[..path.len().min(STANDBY_RING_OFFSET - STANDBY_PATH_OFFSET)]);
        // The first word comes last: without it nothing of the rest counts.
        let encoded = header.encode();
        memory.write(8, &encoded[8..]);
        memory.store(0, u64::from_le_bytes(std::array::from_fn(|i| encoded[i])));
        if let Err(error) = self.note_need(StandbyNeed { boot, copy }) {
            drop(memory);
            let _ = standby.remove(pool);
            return Err(error.to_string());
        }
        let ring = Arc::new(Ring::new(memory, session, seq));
        self.buffer.begin_standby(Arc::clone(&ring));
        // A checkpoint may have gone on under another one meanwhile.
        ring.goes_with(self.log.incarnation());
        Ok(())
    }

    /// For `status`.
    pub(crate) fn standby_status(&self) -> StandbyStatus {
        let StandbyFacts { replayed, replayed_bytes, notes } = self.standby.lock().clone();
        let ring = self.buffer.standby();
        let place = ring.and(self.env.standby.as_ref()).map(|standby| standby.place(&self.pool_id));
        StandbyStatus { place, bytes: ring.map_or(0, |ring| ring.bytes() as u64), replayed, replayed_bytes, notes }
    }

    /// The pool has been closed. If all is in the log, the standby memory goes; else it stays for
    /// the next opening.
    pub(crate) fn end_standby(&self, is_durable: bool) {
        let Some(ring) = self.buffer.standby() else { return };
        ring.freeze();
        if let Some(standby) = &self.env.standby
            && is_durable
            && ring.is_empty()
            && self.forget_need().is_ok()
        {
            let _ = standby.remove(&self.pool_id);
        }
    }
}
