//! Reports acknowledged data that is missing, because a standby ring is damaged or gone.
//!
//! 1. Before the first request is taken, a durable note in the map says that a ring is in use: on
//!    which boot of the machine, and for which copy of the pool ([`Repairs::note_need`]).
//! 2. The note is removed durably before that ring is: when all of its data is in the log.
//! 3. So an opening that finds the note of this boot and of this copy, and no matching ring, knows
//!    that acknowledged writes may be missing ([`Missing::of`]). `status` reports that until it is
//!    acknowledged. The same holds for a matching ring with damaged records.
//! 4. An opening that finds the note of another copy works on a copy made while a server ran, or
//!    after it had died: writes acknowledged by that server belong to the other copy.
//! 5. A ring that records more batches as durable than the log has proves that the log is damaged
//!    ([`short`]). This is treated like damage in the log itself: only a repair opens the pool, and
//!    it reports the loss before it drops anything. The records of the ring follow the missing
//!    batches, so they are not replayed over the gap, and the ring stays.
//!
//! The journal of a share, which accompanies the ring, has a note of the same kind: made before the
//! journal takes the first name (`Pool::note_journal`), and removed before that journal is. It
//! goes with the reason for it: of another boot or copy, or with a ring that is not replayed
//! ([`Repairs::forget_journals`]). A program that opens a pool with such a note, and finds no journal,
//! reports the loss.

use std::ops::ControlFlow;

use env::MapBatch;
use format::{KEY_STANDBY, StandbyNeed, journal_key, journal_key_range, parse_journal_key};
use store::base::canary::Canary;
use store::base::loss::Loss;
use store::base::options::PoolEnv;
use store::base::store_error::store_error;
use store::objects::Objects;
use surface::{Error, ErrorKind, Result};
use units::{ObjectId, Seq};

use crate::repair::Repairs;
use crate::repair::loss::Losses;
use crate::repair::standby_open::Found;

/// Data that an opening knows to be missing.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    /// Acknowledged writes may be missing.
    lost: Option<String>,
    /// Texts that are reported and not remembered.
    notes: Vec<String>,
}

impl Missing {
    /// Steps 3 and 4. `is_orderly`: the log ended in an orderly way.
    ///
    /// # Errors
    /// Those of the map store.
    pub(crate) fn of(
        env: &PoolEnv,
        pool: &[u8; 16],
        found: &Found,
        is_orderly: bool,
        objects: &Objects,
    ) -> Result<Self> {
        let mut missing = Self::default();
        let Some(standby) = &env.standby else { return Ok(missing) };
        let others = standby.others(pool);
        if !others.is_empty() {
            missing.notes.push(format!(
                "standby memory that belongs to another copy of this pool is left alone: {}",
                others.join(", ")
            ));
        }
        let need = env.store.get(KEY_STANDBY).map_err(store_error)?.and_then(|bytes| StandbyNeed::decode(&bytes).ok());
        let need = need.filter(|need| standby.boot().ok() == Some(need.boot));
        match found {
            // Without the note, an earlier opening has reported that ring already.
            Found::Refused { is_lost: true, why, .. } if need.is_some_and(|need| need.copy == standby.copy()) => {
                missing.lost = Some(format!("acknowledged writes are missing: {why}"));
            }
            Found::Left(left) => {
                missing.lost = left.damage(objects).map(|damage| {
                    let place = standby.place(pool);
                    format!("acknowledged writes and discards are missing: {place} is damaged; lost: {damage}")
                });
            }
            _ => {}
        }
        let is_found = matches!(found, Found::Left(_) | Found::Short { .. });
        let Some(need) = need.filter(|_| !is_orderly && !is_found) else { return Ok(missing) };
        if need.copy != standby.copy() {
            missing.notes.push(
                "this is a copy of a pool that was not closed: data that its server had acknowledged and not \
                 flushed is in the original, and not here"
                    .to_owned(),
            );
        } else if missing.lost.is_none() {
            let place = standby.place(pool);
            let why = if let Found::Refused { why, .. } = found { why.clone() } else { format!("{place} is gone") };
            missing.lost = Some(format!(
                "writes that a server had acknowledged and not flushed before it died may be missing: its standby memory cannot be used ({why})"
            ));
        }
        Ok(missing)
    }

    /// Records, durably, that data may be lost; returns the notes for `status`, and whether data
    /// may be lost.
    ///
    /// # Errors
    /// Those of the map store.
    pub(crate) fn remember(self, env: &PoolEnv, losses: &mut Losses) -> Result<(Vec<String>, bool)> {
        let Self { lost, mut notes } = self;
        let is_lost = lost.is_some();
        if let Some(text) = lost {
            losses.add(env, &text)?;
            notes.push(text);
        }
        Ok((notes, is_lost))
    }
}

/// Shares whose journals are noted.
#[derive(Debug, Default)]
pub(crate) struct NotedJournals {
    /// On this boot, of this copy of the pool.
    pub ours: Vec<ObjectId>,
    /// All others.
    pub void: Vec<ObjectId>,
}

/// Step 5: the loss, with the ring's information, where the log ends before batch `next`.
///
/// # Errors
/// [`ErrorKind::Corrupt`] without `repairs`.
pub(crate) fn short(found: &Found, next: Seq, of_log: Option<Loss>, repairs: bool) -> Result<Option<Loss>> {
    let Found::Short { place, durable, records, bytes } = found else { return Ok(of_log) };
    let what = format!(
        "the log ends before batch {}, but batches up to {} had been flushed, as the standby memory of the dead \
         server proves ({place})",
        next.0,
        durable.0 - 1
    );
    if !repairs {
        let text = format!(
            "the pool's log is damaged: {what}. `shale check --repair` reports the data that would be lost by \
             opening the pool without them, and changes nothing before the loss is accepted"
        );
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    let mut loss = of_log.unwrap_or_else(|| Loss { first_batch: next.0, ..Loss::default() });
    let later = match *records {
        1 => "1 acknowledged write or discard",
        records => &format!("{records} acknowledged writes and discards"),
    };
    let are = if *records == 1 { "is" } else { "are" };
    let kept =
        format!("{what}; {later} ({}) in that memory are newer, and {are} left there", units::format_size(*bytes));
    loss.what = if loss.what.is_empty() { kept } else { format!("{}; {kept}", loss.what) };
    loss.flushed_before = loss.flushed_before.max(durable.0);
    let all = durable.0.saturating_sub(loss.first_batch);
    loss.batches_unknown += all.saturating_sub(loss.batches + loss.batches_unknown);
    Ok(Some(loss))
}

impl Repairs {
    /// Step 1.
    pub(crate) fn note_need(&self, need: StandbyNeed) -> Result<()> {
        if Canary::StandbyNeedNotNoted.is_planted() {
            return Ok(());
        }
        let mut batch = MapBatch::default();
        batch.put(KEY_STANDBY, need.encode());
        self.commit_durably(batch)
    }

    /// Step 2. A pool without a note is left unchanged.
    pub(crate) fn forget_need(&self) -> Result<()> {
        let store = &self.vitals.env.store;
        if store.get(KEY_STANDBY).map_err(store_error)?.is_none() {
            return Ok(());
        }
        let mut batch = MapBatch::default();
        batch.delete(KEY_STANDBY.to_vec());
        self.commit_durably(batch)
    }

    pub(crate) fn commit_durably(&self, batch: MapBatch) -> Result<()> {
        let store = &self.vitals.env.store;
        store.commit(batch).and_then(|()| store.persist()).map_err(store_error)
    }

    /// Returns the shares whose journals are noted; none where the boot is not known.
    pub(crate) fn noted_journals(&self) -> Result<NotedJournals> {
        let mut noted = NotedJournals::default();
        let Some(standby) = &self.vitals.env.standby else { return Ok(noted) };
        let Ok(boot) = standby.boot() else { return Ok(noted) };
        let ours = StandbyNeed { boot, copy: standby.copy() }.encode();
        let (from, to) = journal_key_range();
        let mut look = |key: &[u8], value: &[u8]| {
            let list = if value == ours { &mut noted.ours } else { &mut noted.void };
            list.extend(parse_journal_key(key));
            ControlFlow::Continue(())
        };
        self.vitals.env.store.scan(from, to, &mut look).map_err(store_error)?;
        Ok(noted)
    }

    /// Removes the notes of these shares' journals, durably.
    pub(crate) fn forget_journals(&self, shares: &[ObjectId]) -> Result<()> {
        if shares.is_empty() {
            return Ok(());
        }
        let mut batch = MapBatch::default();
        shares.iter().for_each(|share| batch.delete(journal_key(*share)));
        self.commit_durably(batch)
    }

    pub(crate) fn expect_open(&self) -> Result<()> {
        // Another process may have the map by now.
        if self.vitals.is_closed() { Err(Error::new(ErrorKind::Io, "the pool has been closed")) } else { Ok(()) }
    }
}
