//! Committing while others commit to the same log. Instead of racing for every number, a committer
//! leaves its operation as an offer, waits, and looks for a record of another process that carries
//! it. If there is none, its own next record carries all offers that it finds. So a crowd of any
//! size needs few records, each client waits about as long as the others, and none starves. Called
//! only by the leader of the committer.
//!
//! Several processes may try an offered operation. It is applied once, because a process builds
//! record `n + 1` with it only after it has read every record after the one that the offer names,
//! up to `n`, and has found the operation in none of them. This is also the rule for resuming an
//! upload.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::error::Error;
use crate::names::OpId;
use crate::protocol::commit::{Committer, State};
use crate::protocol::offer::{self, Offer};
use crate::protocol::record::{Done, Record};

/// Waiting operations of this process up to which they are offered: more of them share a record
/// anyway.
const OWN_MAX: usize = 4;
/// Offered operations that are remembered, including those whose callers have gone; beyond this no
/// more are offered.
const OFFERED_MAX: usize = 1024;
/// Records whose operations are remembered.
const RECENT_MAX: usize = 256;
/// Records read one after another before the newest is searched for by a gallop.
const WALK_MAX: u32 = 32;
/// Races lost to records with one operation before this client waits for others: a client that
/// appends in a loop pauses more often than that.
const AT_ONCE_MAX: u32 = 12;
/// Round trips after which a crowd is forgotten.
const HOLDS: u32 = 64;
/// The shortest wait for another process's record, in round trips, and the most that is added to it
/// at random.
const WAIT_MIN: f64 = 2.0;
const WAIT_SPREAD: f64 = 3.0;
/// Round trips added to the wait for each operation in the crowd.
const WAIT_EACH: f64 = 0.25;
/// Round trips allowed to the process with the oldest offer for its record: the rest of its wait, a
/// list, reads, the record.
const TURN: f64 = 8.0;
/// Round trips for each older offer: if its process was killed, the next one goes on.
const TURN_EACH: f64 = 0.25;
/// The longest wait: the most that a crowd may cost a client.
const WAIT_MAX: Duration = Duration::from_secs(8);

/// The committer's knowledge of the other processes.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    /// Operations in one record, or offered, when it last looked; 0 when it is alone.
    size: usize,
    seen_ns: u64,
    /// Every record after this one, up to the newest known, is in `recent`.
    from: u64,
    recent: VecDeque<(u64, Vec<Done>)>,
    /// Offered operations of this process, each with the record up to which it is known to be
    /// absent.
    offered: HashMap<OpId, u64>,
    /// Offers that the next record carries.
    pub(crate) carried: Vec<Offer>,
    /// Races that may still be lost before waiting for others.
    at_once: u32,
}

impl Crowd {
    /// Creates the state of a committer that knows of no others.
    pub(crate) fn starting_at(seq: u64) -> Self {
        Self { from: seq, at_once: 1, ..Self::default() }
    }

    /// Returns the record up to which an offered operation is known to be absent.
    pub(crate) fn since(&self, op: OpId) -> Option<u64> {
        self.offered.get(&op).copied()
    }

    /// Returns the operation if a record after `after` carries it, provided that all of those are
    /// known.
    fn look(&self, op: OpId, after: u64) -> Option<Option<(u64, Done)>> {
        let found = |(seq, ops): &(u64, Vec<Done>)| Some((*seq, *ops.iter().find(|done| done.op == op)?));
        (after >= self.from).then(|| self.recent.iter().filter(|(seq, _)| *seq > after).find_map(found))
    }

    /// Records the newest known record.
    fn note(&mut self, record: &Record, before: u64) {
        if record.seq == before + 1 {
            self.recent.push_back((record.seq, record.ops.clone()));
            if self.recent.len() > RECENT_MAX
                && let Some((seq, _)) = self.recent.pop_front()
            {
                self.from = seq;
            }
        } else if record.seq > before {
            // The records between the two were not read: one of them may carry an offer.
            (self.from, self.carried) = (record.seq, Vec::new());
            self.recent.clear();
        }
        self.carried.retain(|offer| record.find(offer.op.id).is_none());
    }

    /// Drops an operation whose outcome is known.
    pub(crate) fn forget(&mut self, op: OpId) {
        self.offered.remove(&op);
    }

    /// Called when this process's record is committed: returns the offers that it carries.
    pub(crate) fn won(&mut self, record: &Record, now_ns: u64) -> Vec<(u64, OpId)> {
        let carried = std::mem::take(&mut self.carried);
        let done = carried.iter().filter(|offer| record.find(offer.op.id).is_some());
        let mut taken: Vec<_> = done.map(|offer| (offer.since, offer.op.id)).collect();
        self.size = if taken.is_empty() { 0 } else { taken.len() + 1 };
        (self.at_once, self.seen_ns) = (1, now_ns);
        let own = |done: &Done| Some((self.offered.remove(&done.op)?, done.op));
        taken.extend(record.ops.iter().filter_map(own));
        taken
    }
}

impl Committer {
    /// Makes a record the newest known.
    pub(crate) fn advance(&self, state: &mut State, record: Arc<Record>) {
        let before = state.head.seq;
        state.crowd.note(&record, before);
        state.head = record;
    }

    /// Searches the records after `after`, up to the newest known, for an operation.
    pub(crate) async fn find(&self, state: &State, op: OpId, after: u64) -> Result<Option<(u64, Done)>, Error> {
        match state.crowd.look(op, after) {
            Some(known) => Ok(known),
            None => self.log().find(op, after, &state.head).await,
        }
    }

    /// Called when a race was lost and the winning record is the newest known. Either tries the
    /// next number at once, or waits for others.
    pub(crate) async fn lost(&self, state: &mut State) -> Result<(), Error> {
        let together = state.head.ops.len();
        state.crowd.seen_ns = self.log().backend.clock.now_ns();
        if together <= 1 && state.crowd.at_once > 0 && !state.head.tombstone {
            state.crowd.at_once -= 1;
            return Ok(());
        }
        if state.crowd.size == 0 && !self.is_idle() {
            // This client may be far behind the log.
            let newest = self.log().newest(state.head.clone()).await?;
            self.advance(state, newest);
        }
        state.crowd.at_once = 0;
        // Others may not offer their operations: then only the losses show how many they are.
        state.crowd.size = state.crowd.size.max(together).max(state.losses as usize / 2).max(1);
        Ok(())
    }

    /// Waits for others if there are any: offers the waiting operations, looks for another record
    /// that carries them, and collects the offers for the next record of this process.
    pub(crate) async fn meet_others(&self, state: &mut State) -> Result<(), Error> {
        let now = self.log().backend.clock.now_ns();
        let holds = state.round_trip_ns.saturating_mul(HOLDS.into());
        if state.crowd.size > 0 && now.saturating_sub(state.crowd.seen_ns) > holds {
            state.crowd.size = 0;
            state.crowd.at_once = 1;
        }
        let tries_at_once = state.losses > 0 && state.crowd.at_once > 0;
        if state.crowd.size == 0 || tries_at_once || self.is_idle() {
            return Ok(());
        }
        self.offer_own(state).await;
        let crowd = state.crowd.size as f64;
        let spread = WAIT_SPREAD + WAIT_EACH * crowd;
        if self.wait_for_others(state, WAIT_MIN + self.log().backend.fraction() * spread).await? {
            return Ok(());
        }
        let mut names = offer::list(self.log(), state.crowd.from).await;
        let first_own = names.iter().position(|(_, op, _)| state.crowd.offered.contains_key(op));
        // The process with the oldest offer carries all of them: the others need not read them.
        if let Some(older) = first_own.filter(|older| *older > 0) {
            if self.wait_for_others(state, TURN + TURN_EACH * older as f64).await? {
                return Ok(());
            }
            names = offer::list(self.log(), state.crowd.from).await;
        }
        names.retain(|(since, op, _)| {
            let is_new = state.crowd.look(*op, *since) == Some(None);
            let is_new = is_new || crate::canary!("offer-not-looked-up");
            is_new && *since <= state.head.seq && !state.crowd.offered.contains_key(op)
        });
        let found = offer::read_all(self.log(), names.into_iter()).await;
        let size = found.len() + 1;
        state.crowd.carried = found;
        state.crowd.size = size;
        (state.crowd.at_once, state.crowd.seen_ns) = (AT_ONCE_MAX, self.log().backend.clock.now_ns());
        Ok(())
    }

    /// Waits some round trips, then checks newer records. Returns whether they carry all waiting
    /// operations.
    async fn wait_for_others(&self, state: &mut State, round_trips: f64) -> Result<bool, Error> {
        tokio::time::sleep(Duration::from_nanos(state.round_trip_ns).mul_f64(round_trips).min(WAIT_MAX)).await;
        self.walk(state).await?;
        self.answer_committed(state).await?;
        Ok(self.is_idle())
    }

    /// Returns whether a known record carries all waiting operations.
    fn is_carried(&self, state: &State) -> bool {
        let mut all = true;
        self.each_waiting(|op, search_after| {
            let known = search_after.and_then(|after| state.crowd.look(op.id, after)).flatten();
            all &= known.is_some();
        });
        all
    }

    /// Offers the waiting operations, if they are few.
    async fn offer_own(&self, state: &mut State) {
        let since = state.head.seq;
        let mut offers = Vec::new();
        self.each_waiting(|op, search_after| {
            let room = offers.len() < OWN_MAX && state.crowd.offered.len() < OFFERED_MAX;
            // A committed operation is in a record that others would not search.
            let is_new = !state.crowd.offered.contains_key(&op.id) && state.outcomes.get(op.id).is_none();
            if room
                && is_new
                && let Some(bytes) = offer::encode(self.log().inc, op)
            {
                // From here on another process may commit it.
                state.crowd.offered.insert(op.id, since);
                *search_after = Some(search_after.unwrap_or(since).max(since));
                offers.push((op.id, bytes));
            }
        });
        join_all(offers.into_iter().map(|(op, bytes)| offer::leave(self.log(), since, op, bytes))).await;
    }

    /// Reads each newer record, and remembers its operations, until all waiting operations are
    /// found.
    async fn walk(&self, state: &mut State) -> Result<(), Error> {
        for _ in 0..WALK_MAX {
            let Some(record) = self.log().read(state.head.seq + 1).await? else { break };
            (state.crowd.size, state.crowd.seen_ns) = (record.ops.len().max(1), self.log().backend.clock.now_ns());
            self.advance(state, record);
            if !state.head.tombstone && self.is_carried(state) {
                return Ok(());
            }
        }
        if state.head.tombstone {
            let newest = self.log().newest(state.head.clone()).await?;
            self.advance(state, newest);
        }
        Ok(())
    }
}
