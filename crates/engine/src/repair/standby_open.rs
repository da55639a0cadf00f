//! Takes over the ring that another process left (`standby` explains its content and why its
//! order is right).
//!
//! 1. [`find`] looks for a ring, and checks that it belongs to the pool in its present state. Five
//!    things are checked: the pool; the copy of it, because a backup that is opened must not take
//!    the original's ring; the boot of the machine, because memory of another boot is void; the
//!    incarnation of the log, because another process may have opened the pool since; and the
//!    length of the log. A ring that fails a check is not replayed: its acknowledged requests are
//!    lost (`standby_lost`). If the log is shorter than it was when it was flushed, it is damaged.
//!    Single damaged records are lost, and all others are replayed (`standby_left`).
//! 2. Before a checkpoint is taken under this opening's incarnation, the file's range is extended
//!    to it. So this opening may die as well.
//! 3. When the pool has its threads, the records from the tail on are replayed through the
//!    write buffer, and everything is flushed.
//! 4. The map forgets that a ring is needed, the file is made void, then removed. Until here no
//!    client has written to the pool. So a replay after a crash in between gives the same result.
//!    Files that accompany a ring that is not replayed are set aside first
//!    ([`env::Standby::pass_over_beside`]). Before that their loss is noted, and the map forgets
//!    that they are needed.
//! 5. A new file is created, if one is requested (`pool::standby`). Only then is the first request
//!    accepted. A file that was not replayed, and is not of another boot, is first kept under
//!    another name.
//!
//! Every opening takes steps 1 to 4, for any purpose: a later opening could not take them any more.

use format::{
    STANDBY_DURABLE_OFFSET, STANDBY_HEADER_BYTES, STANDBY_INCARNATION_OFFSET, STANDBY_RING_OFFSET, STANDBY_SEQ_OFFSET,
    StandbyHeader,
};
use store::base::canary::Canary;
use store::base::group::GroupKey;
use store::base::options::PoolEnv;
use store::buffer::standby::ring_bytes;
use surface::{Error, ErrorKind, Hint, Result};
use units::{BLOCK_BYTES, BlockIndex, BlockMask, Seq};

use crate::repair::Repairs;
use crate::repair::StandbyFacts;
use crate::repair::standby_left::Left;
use crate::volume::kept_blocks;
use store::buffer::write_buffer::DirtyRun;

/// Loss that is noted when journals are set aside and no other loss is noted with it.
const NAMES_LOST: &str = "acknowledged names of shares are missing: their journals do not match the standby \
     memory";

/// Result of step 1.
pub(crate) enum Found {
    /// No server left a ring.
    Nothing,
    /// A ring to be replayed.
    Left(Left),
    /// The log has lost durable batches: all before `durable` were.
    Short {
        /// Where the ring is.
        place: String,
        durable: Seq,
        /// Records after the missing batches, and their bytes of data.
        records: u64,
        bytes: u64,
    },
    /// A ring that is not valid.
    Refused {
        why: String,
        /// It is not of this boot: it may be removed.
        is_void: bool,
        /// It proves that acknowledged data is missing.
        is_lost: bool,
    },
}

/// Step 1.
///
/// # Errors
/// [`ErrorKind::InUse`] when another process has the ring: it is ending, and its data must not be
/// skipped.
pub(crate) fn find(env: &PoolEnv, pool: &[u8; 16], incarnation: u64, next_seq: Seq) -> Result<Found> {
    let Some(standby) = &env.standby else { return Ok(Found::Nothing) };
    let memory = match standby.left(pool) {
        Ok(Some(memory)) => memory,
        Ok(None) => return Ok(Found::Nothing),
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
            let text = "standby memory of an earlier server cannot be read yet; try again";
            return Err(Error::with_source(ErrorKind::InUse, text, error));
        }
        Err(error) => return Ok(Found::Refused { why: error.to_string(), is_void: false, is_lost: false }),
    };
    let place = standby.place(pool);
    let refused = |why: &str, is_void: bool, is_lost: bool| {
        Ok(Found::Refused { why: format!("{place}: {why}"), is_void, is_lost })
    };
    let mut bytes = [0; STANDBY_HEADER_BYTES];
    if memory.len() <= STANDBY_RING_OFFSET || !memory.read(0, &mut bytes) {
        return refused("it has been cut off", false, false);
    }
    if memory.load(0) == 0 {
        if Canary::StandbyVoidForgetsBeside.is_planted() {
            return refused("it was never finished", true, false);
        }
        // It was replayed, and the process that did so died before it removed the memory.
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
    if header.boot != boot {
        return refused("it is from before the machine was started", true, false);
    }
    if header.pool != *pool {
        return refused("it belongs to another pool", false, false);
    }
    if header.copy != standby.copy() {
        return refused("it belongs to another copy of the pool", false, false);
    }
    if header.ring_bytes != ring_bytes(memory.len()) {
        return refused("its length has changed", false, true);
    }
    let left = Left::read(memory, header);
    let words = [STANDBY_INCARNATION_OFFSET, STANDBY_SEQ_OFFSET, STANDBY_DURABLE_OFFSET].map(|at| left.word(at));
    let [Some(newest), Some(needs), Some(durable)] = words else {
        return refused("the words that identify its log are damaged", false, !left.is_empty());
    };
    let newest = if Canary::StandbyReplayedTwice.is_planted() { u64::MAX } else { newest };
    if !(left.first_incarnation()..=newest).contains(&incarnation) {
        let why = "the pool has been opened without it since, or has been replaced by another copy";
        return refused(why, false, !left.is_empty());
    }
    if next_seq.0 < durable {
        let (records, bytes) = (left.records().len() as u64, left.data_bytes());
        return Ok(Found::Short { place, durable: Seq(durable), records, bytes });
    }
    if next_seq.0 < needs {
        let text = format!("the log ends before batch {}, but had batch {}", next_seq.0, needs.saturating_sub(1));
        return refused(&text, false, true);
    }
    Ok(Found::Left(left))
}

impl Repairs {
    /// Takes steps 3 and 4. `notes`: texts on missing data, for `status`; `is_missing`: a ring with
    /// data is gone.
    ///
    /// # Errors
    /// When the records cannot be brought to the log: they stay, and the next opening tries again.
    pub(crate) fn take_over_standby(&self, found: Found, notes: Vec<String>, is_missing: bool) -> Result<()> {
        let Some(standby) = &self.vitals.env.standby else { return Ok(()) };
        let mut facts = StandbyFacts { notes, ..StandbyFacts::default() };
        // Files that accompany an invalid ring are invalid as well. This comes before the reason
        // for it is forgotten.
        let passed_over = match &found {
            Found::Nothing => is_missing.then_some(false),
            Found::Left(_) => None,
            Found::Short { .. } => Some(false),
            Found::Refused { is_void, .. } => Some(*is_void),
        };
        let noted = self.noted_journals()?;
        self.forget_journals(&noted.void)?;
        if let Some(is_void) = passed_over {
            let has_some = !noted.ours.is_empty() || standby.has_beside(&self.pool_id);
            let is_lost = !is_missing && !is_void && has_some;
            let is_late = Canary::StandbyLossNotedLate.is_planted();
            // Durable before the journals go: an opening after a crash in between finds none.
            if is_lost && !is_late {
                self.losses.lock().add(&self.vitals.env, NAMES_LOST)?;
            }
            self.forget_journals(&noted.ours)?;
            let kept = standby.pass_over_beside(&self.pool_id, is_void);
            if is_lost && is_late {
                self.losses.lock().add(&self.vitals.env, NAMES_LOST)?;
            }
            facts.notes.extend(kept.into_iter().map(|place| {
                format!(
                    "files that accompany that memory were not replayed either: they are kept as {place} \
                     until you remove them"
                )
            }));
        }
        let wants_one = self.vitals.options.standby_bytes_max > 0;
        let mut refused = |why: &str, is_void: bool| {
            let mut note = format!("standby memory of an earlier server was not replayed: {why}");
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
                        "writes that were acknowledged before the server died could not be written from {place} \
                         to the log; fix the cause and try again, or remove that file to open the pool \
                         without them"
                    );
                    Error::with_source(error.kind(), text, error)
                })?;
                if Canary::StandbyReplayedTwice.is_planted() {
                    *self.standby.lock() = facts;
                    return Ok(());
                }
                self.forget_need()?;
                left.void();
                // If that fails, a void file stays.
                let _ = standby.remove(&self.pool_id);
            }
            Found::Short { place, .. } => {
                refused(&format!("{place}: the log has lost earlier batches"), false);
                self.forget_need()?;
            }
            Found::Refused { why, is_void, .. } => {
                refused(&why, is_void);
                self.forget_need()?;
            }
        }
        facts.is_wanted = wants_one;
        *self.standby.lock() = facts;
        Ok(())
    }

    /// Step 3.
    fn replay(&self, left: &Left, facts: &mut StandbyFacts) -> Result<()> {
        let mut records = left.records().to_vec();
        if Canary::StandbyReplayOverNewer.is_planted() {
            records.reverse();
        }
        // All records of a group at once: if the power fails before the rest is in the log, no block
        // is older than another one of its unit. Records of different groups have no order.
        records.sort_by_key(|record| (record.object, record.first.group()));
        for group in records.chunk_by(|a, b| (a.object, a.first.group()) == (b.object, b.first.group())) {
            let key = GroupKey { object: group[0].object, group: group[0].first.group() };
            let Some(object) = self.objects.get(key.object).filter(|object| object.is_live()) else { continue };
            let size_bytes = object.size_bytes().next_multiple_of(BLOCK_BYTES as u64);
            self.writes.throttle_unadmitted()?;
            let runs = group.iter().filter_map(|record| {
                let end = (record.first.0 + u64::from(record.count)) * BLOCK_BYTES as u64;
                let run = left.run(record).filter(|_| end <= size_bytes)?;
                facts.replayed += 1;
                facts.replayed_bytes += record.payload_bytes() as u64;
                Some(with_holes(record.first, run))
            });
            let hint = Hint { copies: object.copies_of(key.group), ..Hint::default() };
            let runs = runs.flatten().map(|run| if run.data.is_some() { DirtyRun { hint, ..run } } else { run });
            self.writes.put_replayed(key, runs);
        }
        self.writes.flush()
    }
}

/// The parts of a record: zero blocks beside others become holes, as when they were written. Zeroes
/// alone were asked for as data.
fn with_holes(first: BlockIndex, run: DirtyRun) -> Vec<DirtyRun> {
    let kept = run.data.as_ref().map_or(BlockMask::EMPTY, |data| kept_blocks(first, data, false));
    if kept.is_empty() || kept == run.mask() {
        return vec![run];
    }
    run.with_holes(kept).collect()
}
