//! What a committer does when others commit to the same log: instead of racing for every number, it
//! leaves its operation as an offer, waits, and looks whether a record of another process carries
//! it; if none does, its own next record carries all offers that it finds. So a crowd of any size
//! takes few records, each client waits about as long as the others, and none is left behind.
//!
//! An operation that is offered may be tried by several processes. It is done once, because each
//! builds record `n + 1` with it only after it has read every record behind the one that the offer
//! names, up to `n`, and found it in none: the rule of a process that resumes an upload.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::commit::{Committer, State};
use crate::error::Error;
use crate::names::OpId;
use crate::offer::{self, Offer};
use crate::record::{Done, Record};

/// Operations of this process up to which they are offered: more of them share a record anyway.
const OWN_MAX: usize = 4;
/// Operations that were offered and whose callers have gone, or wait: past this none is offered.
const OFFERED_MAX: usize = 1024;
/// Records whose operations are remembered.
const RECENT_MAX: usize = 256;
/// Records that are read one after the other, before the newest is looked for by a gallop.
const WALK_MAX: u32 = 32;
/// Races that are lost at once to records that carry one operation, before others are waited for:
/// a client that appends in a loop pauses more often than that.
const AT_ONCE_MAX: u32 = 12;
/// Round trips after which a crowd is forgotten.
const HOLDS: u32 = 64;
/// The shortest wait for another process's record, in round trips, and up to how much longer it is.
const WAIT_MIN: f64 = 2.0;
const WAIT_SPREAD: f64 = 3.0;
/// Round trips by which the wait may be longer, for each operation in the crowd.
const WAIT_EACH: f64 = 0.25;
/// Round trips that the process with the oldest offer has for its record: the rest of its wait, a list, reads, the record.
const TURN: f64 = 8.0;
/// Round trips for each older offer: were its process killed, the next one would go on.
const TURN_EACH: f64 = 0.25;
/// The longest wait: what a crowd of that size may cost a client.
const WAIT_MAX: Duration = Duration::from_secs(8);

/// What a committer knows of others.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    /// Operations that were in one record, or offered, when it last looked: 0 when it is alone.
    size: usize,
    seen_ns: u64,
    /// Every record behind this one, up to the newest known, is in `recent`.
    from: u64,
    recent: VecDeque<(u64, Vec<Done>)>,
    /// Operations of this process that were offered, and the record up to which they are in none.
    offered: HashMap<OpId, u64>,
    /// Offers that the next record carries.
    pub(crate) carried: Vec<Offer>,
    /// Races that may still be lost before others are waited for.
    at_once: u32,
}

impl Crowd {
    /// Returns one that knows of no others.
    pub(crate) fn starting_at(seq: u64) -> Self {
        Self { from: seq, at_once: 1, ..Self::default() }
    }

    /// Returns the record up to which an offered operation is in none.
    pub(crate) fn since(&self, op: OpId) -> Option<u64> {
        self.offered.get(&op).copied()
    }

    /// Returns the operation, if a record behind `after` carries it and all of those are known.
    fn look(&self, op: OpId, after: u64) -> Option<Option<(u64, Done)>> {
        let found = |(seq, ops): &(u64, Vec<Done>)| Some((*seq, *ops.iter().find(|done| done.op == op)?));
        (after >= self.from).then(|| self.recent.iter().filter(|(seq, _)| *seq > after).find_map(found))
    }

    /// Takes in a record that is now the newest known.
    fn note(&mut self, record: &Record, before: u64) {
        if record.seq == before + 1 {
            self.recent.push_back((record.seq, record.ops.clone()));
            if self.recent.len() > RECENT_MAX
                && let Some((seq, _)) = self.recent.pop_front()
            {
                self.from = seq;
            }
        } else if record.seq > before {
            // Records between the two were not read: an offer may be in one of them.
            (self.from, self.carried) = (record.seq, Vec::new());
            self.recent.clear();
        }
        self.carried.retain(|offer| record.find(offer.op.id).is_none());
    }

    /// An operation's outcome is known.
    pub(crate) fn forget(&mut self, op: OpId) {
        self.offered.remove(&op);
    }

    /// This process's record was committed: returns the offers that it carries.
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

    /// Finds an operation in a record behind `after`, up to the newest known.
    pub(crate) async fn find(&self, state: &State, op: OpId, after: u64) -> Result<Option<(u64, Done)>, Error> {
        match state.crowd.look(op, after) {
            Some(known) => Ok(known),
            None => self.log().find(op, after, &state.head).await,
        }
    }

    /// A race was lost, and the record that won is the newest known. The next number is tried at
    /// once, or others are waited for.
    pub(crate) async fn lost(&self, state: &mut State) -> Result<(), Error> {
        let together = state.head.ops.len();
        state.crowd.seen_ns = self.log().world.clock.now_ns();
        if together <= 1 && state.crowd.at_once > 0 && !state.head.tombstone {
            state.crowd.at_once -= 1;
            return Ok(());
        }
        if state.crowd.size == 0 && !self.is_idle() {
            // Where this client comes from far behind.
            let newest = self.log().newest(state.head.clone()).await?;
            self.advance(state, newest);
        }
        state.crowd.at_once = 0;
        // Others may not offer what they have: then only the losses tell how many they are.
        state.crowd.size = state.crowd.size.max(together).max(state.losses as usize / 2).max(1);
        Ok(())
    }

    /// Waits for others where there are some: offers what waits here, looks whether another record
    /// carries it, and finds what the next record of this process is to carry.
    pub(crate) async fn meet_others(&self, state: &mut State) -> Result<(), Error> {
        let now = self.log().world.clock.now_ns();
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
        if self.wait_for_others(state, WAIT_MIN + self.log().world.fraction() * spread).await? {
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
        (state.crowd.at_once, state.crowd.seen_ns) = (AT_ONCE_MAX, self.log().world.clock.now_ns());
        Ok(())
    }

    /// Waits some round trips, and looks whether a newer record carries what waits here; tells whether all of it was carried.
    async fn wait_for_others(&self, state: &mut State, round_trips: f64) -> Result<bool, Error> {
        tokio::time::sleep(Duration::from_nanos(state.round_trip_ns).mul_f64(round_trips).min(WAIT_MAX)).await;
        self.walk(state).await?;
        self.look_behind(state).await?;
        Ok(self.is_idle())
    }

    /// Tells whether a record that is known carries all that waits here.
    fn is_carried(&self, state: &State) -> bool {
        let mut all = true;
        self.each_waiting(|op, look_behind| {
            let known = look_behind.and_then(|after| state.crowd.look(op.id, after)).flatten();
            all &= known.is_some();
        });
        all
    }

    /// Offers the operations that wait here, if they are few.
    async fn offer_own(&self, state: &mut State) {
        let since = state.head.seq;
        let mut offers = Vec::new();
        self.each_waiting(|op, look_behind| {
            let room = offers.len() < OWN_MAX && state.crowd.offered.len() < OFFERED_MAX;
            // What is committed already is in a record that others would not look into.
            let is_new = !state.crowd.offered.contains_key(&op.id) && state.answered.get(op.id).is_none();
            if room
                && is_new
                && let Some(bytes) = offer::encode(self.log().inc, op)
            {
                // From here on another process may commit it.
                state.crowd.offered.insert(op.id, since);
                *look_behind = Some(look_behind.unwrap_or(since).max(since));
                offers.push((op.id, bytes));
            }
        });
        join_all(offers.into_iter().map(|(op, bytes)| offer::leave(self.log(), since, op, bytes))).await;
    }

    /// Reads each newer record, and remembers what it carries, until all that waits here is
    /// carried.
    async fn walk(&self, state: &mut State) -> Result<(), Error> {
        for _ in 0..WALK_MAX {
            let Some(record) = self.log().read(state.head.seq + 1).await? else { break };
            (state.crowd.size, state.crowd.seen_ns) = (record.ops.len().max(1), self.log().world.clock.now_ns());
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
