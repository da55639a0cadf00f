//! Committing: how operations become a record. There is one committer for a blob and process. It
//! puts all waiting operations into one record and takes no lock but its own. Any task may call
//! `commit`; one of the callers leads and does the work for all.
//!
//! The steps, in this order:
//!
//! 1. The packs that an operation names are uploaded and acknowledged. That is up to the caller.
//! 2. The newest record `h` is known.
//! 3. Each waiting operation is applied to `h`. One that cannot be applied is answered with an
//!    error.
//! 4. The body of record `h + 1` is built, with a fresh nonce as its name. From here on it is
//!    *undecided*: it is kept until the content of number `h + 1` is known, even if every caller
//!    has gone.
//! 5. The store is asked to create record `h + 1`.
//! 6. "Done" means committed. Any other answer means nothing, and `h + 1` is read. If it has this
//!    body, it is committed. If it has another body, each operation in that body is committed, and
//!    the others return to step 2 with the newest record. If it is absent, step 5 is repeated with
//!    *the same body*. A store that refused every request permanently (its disk is full, the keys
//!    may not write) has not applied any: the operations fail.
//!
//! An operation is acknowledged after step 6 and nowhere else. Where others commit to the same log,
//! `crowd` lets one record carry the operations of several processes.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use codec::Workspace;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::data::layout::LAYOUT_BYTES_MAX;
use crate::error::Error;
use crate::names::{self, Nonce, OpId};
use crate::protocol::crowd::Crowd;
use crate::protocol::log::Log;
use crate::protocol::offer;
use crate::protocol::ops::{Action, Op, Patch};
use crate::protocol::outcomes::Outcomes;
use crate::protocol::record::{OPS_MAX, Record};
use crate::store::backend::{Created, is_permanent};
use crate::store::files::lacks_log;

/// Assumed round trip until one has been measured.
const ROUND_TRIP_NS_MIN: u64 = 1_000_000;
/// Encoded bytes of a layout that a record may have: eight times the size at which the committer
/// begins to fold, because a fold may lose a race, and less than the limit of a record.
const LAYOUT_BYTES_LIMIT: usize = 8 * LAYOUT_BYTES_MAX;

/// The outcome of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Number of the record that carries it: the version, if it changed content.
    pub seq: u64,
    /// Byte at which it wrote: the offset of an append.
    pub at: u64,
    /// Bytes written.
    pub len: u64,
}

/// Pieces of a layout that were moved into a node, and the oldest session that uploaded the node.
#[derive(Debug, Clone)]
pub struct Fold {
    /// The replacements to make in the layout.
    pub patches: Vec<Patch>,
    /// `born` of the session that uploaded the nodes.
    pub born: u64,
}

/// A future that can move between threads.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Moves pieces of a long layout into nodes, and uploads the nodes.
pub trait Folder: Send + Sync {
    /// Folds the layout of a record. The node contains pieces of `base` only, never those of a
    /// waiting operation.
    fn fold<'a>(&'a self, base: &'a Record) -> Boxed<'a, Result<Option<Fold>, Error>>;
}

/// Options of a committer.
#[derive(Clone)]
pub struct CommitOptions {
    /// Time after which the caller of an operation gets [`Error::Unknown`].
    pub timeout: Duration,
    /// Folds layouts. Without one they grow until a commit is refused.
    pub folder: Option<Arc<dyn Folder>>,
}

impl Default for CommitOptions {
    /// Two minutes, enough for a store to elect a leader or restart a node; no folder.
    fn default() -> Self {
        Self { timeout: Duration::from_secs(120), folder: None }
    }
}

impl std::fmt::Debug for CommitOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommitOptions").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// Commits operations to one blob.
#[derive(Debug)]
pub struct Committer {
    log: Log,
    options: CommitOptions,
    queue: Mutex<VecDeque<Waiting>>,
    state: tokio::sync::Mutex<State>,
}

#[derive(Debug)]
struct Waiting {
    op: Arc<Op>,
    /// Every record after this one is searched for the operation before it is tried: another
    /// process may have committed it.
    search_after: Option<u64>,
    answer: oneshot::Sender<Result<Committed, Error>>,
}

/// State of the leading operation. Consistent at every `await`, because a leader may be cancelled
/// at any of them.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) head: Arc<Record>,
    undecided: Option<Undecided>,
    fold: Option<Fold>,
    /// Races lost since the last record of this process.
    pub(crate) losses: u32,
    pub(crate) round_trip_ns: u64,
    pub(crate) crowd: Crowd,
    pub(crate) outcomes: Outcomes,
}

impl State {
    /// Adds a measured round trip to the mean. An outlier changes the mean by half at most.
    fn note_round_trip(&mut self, ns: u64) {
        let mean = self.round_trip_ns;
        let ns = ns.max(ROUND_TRIP_NS_MIN);
        self.round_trip_ns =
            if mean == ROUND_TRIP_NS_MIN { ns } else { (7 * mean + ns.min(mean.saturating_mul(5))) / 8 };
    }
}

/// A record body that may have been written, or may still be.
#[derive(Debug)]
struct Undecided {
    record: Arc<Record>,
    body: Bytes,
    waiting: Vec<Waiting>,
    /// Every request so far was refused permanently: none had an effect, and none will.
    is_refused: bool,
}

impl Committer {
    /// Creates a committer that starts from a record, not necessarily the newest.
    pub fn new(log: Log, head: Arc<Record>, options: CommitOptions) -> Self {
        let state = State {
            crowd: Crowd::starting_at(head.seq),
            head,
            undecided: None,
            fold: None,
            losses: 0,
            round_trip_ns: ROUND_TRIP_NS_MIN,
            outcomes: Outcomes::default(),
        };
        Self { log, options, queue: Mutex::default(), state: tokio::sync::Mutex::new(state) }
    }

    /// Returns the log.
    pub const fn log(&self) -> &Log {
        &self.log
    }

    /// Returns the newest record that the committer knows. Its number is the `born` of a session
    /// that begins now.
    pub async fn head(&self) -> Arc<Record> {
        self.state.lock().await.head.clone()
    }

    /// Looks for newer records, and returns the newest.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn refresh(&self) -> Result<Arc<Record>, Error> {
        let mut state = self.state.lock().await;
        let newest = self.log.newest(state.head.clone()).await?;
        // An undecided record stays undecided here: its own number decides it.
        if state.undecided.is_none() {
            self.advance(&mut state, newest.clone());
        }
        Ok(newest)
    }

    /// Commits an operation whose packs are uploaded and acknowledged, in one record with all other
    /// waiting operations.
    ///
    /// # Errors
    /// [`Error::Unknown`] when the store did not report the outcome in time: the operation may have
    /// been committed, or may still be. Calling again with the same operation resumes this one.
    /// After any other error, the operation is not committed and never will be.
    pub async fn commit(&self, op: Op) -> Result<Committed, Error> {
        self.commit_with(op, None).await
    }

    /// Commits an operation without data under a new name, and returns the name as well.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub(crate) async fn change(&self, action: Action) -> Result<(OpId, Committed), Error> {
        let id = OpId::random(&*self.log.backend.entropy)?;
        self.commit(Op::without_data(id, action)).await.map(|committed| (id, committed))
    }

    /// Commits an operation that an earlier process may have committed: first, every record after
    /// `born` is searched for it.
    ///
    /// # Errors
    /// As [`commit`](Self::commit), and [`Error::Unknown`] also where `commit` would report that
    /// the operation is not possible: the earlier process may have seen a newer record than this
    /// one. Only "fenced", "expired", "removed" and "exists" are final.
    pub async fn resume(&self, op: Op, born: u64) -> Result<Committed, Error> {
        self.commit_with(op, Some(born)).await
    }

    async fn commit_with(&self, op: Op, search_after: Option<u64>) -> Result<Committed, Error> {
        let id = op.id;
        let (answer, mut answered) = oneshot::channel();
        self.queue.lock().push_back(Waiting { op: Arc::new(op), search_after, answer });
        let lead = async {
            loop {
                let mut state = self.state.lock().await;
                match answered.try_recv() {
                    Ok(answer) => return answer,
                    Err(oneshot::error::TryRecvError::Empty) => self.lead(&mut state).await?,
                    Err(oneshot::error::TryRecvError::Closed) => {
                        return Err(Error::Refused("the commit was cancelled before it was tried; try again".into()));
                    }
                }
            }
        };
        let result = tokio::time::timeout(self.options.timeout, lead).await;
        match result {
            Ok(Ok(committed)) => Ok(committed),
            Ok(Err(error)) => self.abandon(id, Some(error), search_after.is_some()).await,
            Err(_) => self.abandon(id, None, search_after.is_some()).await,
        }
    }

    /// Answers an operation whose caller no longer leads or waits for it.
    async fn abandon(&self, op: OpId, error: Option<Error>, resumed: bool) -> Result<Committed, Error> {
        self.queue.lock().retain(|waiting| waiting.op.id != op);
        let state = self.state.lock().await;
        let resumed = resumed || state.crowd.since(op).is_some();
        if let Some(committed) = state.outcomes.get(op) {
            return Ok(committed);
        }
        if let Some(undecided) = &state.undecided
            && undecided.record.find(op).is_some()
        {
            return Err(Error::Unknown { seq: undecided.record.seq, op });
        }
        if resumed
            && !matches!(error, Some(Error::Fenced { .. } | Error::Expired(_) | Error::Removed | Error::Exists(_)))
        {
            return Err(Error::Unknown { seq: state.head.seq + 1, op });
        }
        Err(error.unwrap_or_else(|| {
            Error::Refused(
                "the commit was not tried in time, because other commits were ahead of it, and had no effect; try again".into(),
            )
        }))
    }

    /// Advances one record as far as possible: decides the undecided one, or builds one from all
    /// waiting operations.
    async fn lead(&self, state: &mut State) -> Result<(), Error> {
        if state.undecided.is_none() {
            if state.head.tombstone {
                let newest = self.log.newest(state.head.clone()).await?;
                self.advance(state, newest);
            }
            self.answer_committed(state).await?;
            self.meet_others(state).await?;
            if self.is_idle() {
                return Ok(());
            }
            self.fold(state).await;
            state.undecided = self.next_record(state)?;
        }
        if state.undecided.is_none() {
            return Ok(());
        }
        let (winner, read) = self.decide(state).await?;
        self.settle(state, winner, read).await
    }

    /// Answers operations that another committer has committed already.
    pub(crate) async fn answer_committed(&self, state: &mut State) -> Result<(), Error> {
        if crate::canary!("resume-gallops") {
            return Ok(());
        }
        // Operations whose callers have gone must not block a later call with the same operation.
        self.queue.lock().retain(|waiting| !waiting.answer.is_closed());
        self.each_waiting(|op, search_after| *search_after = search_after.or_else(|| state.crowd.since(op.id)));
        loop {
            let next = {
                let queue = self.queue.lock();
                queue
                    .iter()
                    .find_map(|w| w.search_after.filter(|after| *after < state.head.seq).map(|after| (w.op.id, after)))
            };
            let Some((op, after)) = next else {
                return Ok(());
            };
            let found = self.find(state, op, after).await?;
            let mut queue = self.queue.lock();
            let Some(index) = queue.iter().position(|waiting| waiting.op.id == op) else { continue };
            match found {
                None => queue[index].search_after = Some(state.head.seq),
                Some((seq, done)) => {
                    let committed = Committed { seq, at: done.at, len: done.len };
                    // The caller may be gone before it reads the answer.
                    state.outcomes.note(op, committed);
                    state.crowd.forget(op);
                    if let Some(waiting) = queue.remove(index) {
                        let _ = waiting.answer.send(Ok(committed));
                    }
                }
            }
        }
    }

    /// Calls `look` for each waiting operation, with the record after which it is searched for.
    pub(crate) fn each_waiting(&self, mut look: impl FnMut(&Op, &mut Option<u64>)) {
        for waiting in self.queue.lock().iter_mut().filter(|waiting| !waiting.answer.is_closed()) {
            look(&waiting.op, &mut waiting.search_after);
        }
    }

    /// Returns whether nothing waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.lock().iter().all(|waiting| waiting.answer.is_closed())
    }

    /// Folds the layout if it is long. If the fold fails, the commit goes on without it.
    async fn fold(&self, state: &mut State) {
        let Some(folder) = &self.options.folder else { return };
        // A client that loses its races leaves folding to the others, as long as they do it.
        let limit = if state.losses == 0 { LAYOUT_BYTES_MAX } else { 2 * LAYOUT_BYTES_MAX };
        if state.fold.is_none() && state.head.layout.encoded_bytes() > limit {
            state.fold = folder.fold(&state.head).await.ok().flatten();
        }
    }

    /// Builds the next record from the waiting operations; `None` if none of them can be applied.
    fn next_record(&self, state: &mut State) -> Result<Option<Undecided>, Error> {
        let base = state.head.clone();
        let mut next = Record {
            seq: base.seq + 1,
            previous: base.nonce,
            nonce: Nonce(names::random(&*self.log.backend.entropy)?),
            // Ages are differences of these: a slow clock must not make new records look old.
            unix_s: self.log.backend.clock.unix_s().max(base.unix_s),
            raw: 0,
            stored: 0,
            message: String::new(),
            ops: Vec::new(),
            ..(*base).clone()
        };
        if crate::canary!("fence-not-inherited") {
            next.fence = 0;
        }
        if crate::canary!("expired-not-inherited") {
            next.expired.clear();
        }
        if let Some(fold) = &state.fold
            && fold.born >= base.fence
        {
            for patch in &fold.patches {
                patch.lay_over(&mut next.layout);
            }
        }
        let mut queue = self.queue.lock();
        let (mut taken, mut later) = (Vec::new(), Vec::new());
        while let Some(waiting) = queue.pop_front() {
            if waiting.answer.is_closed() {
                continue;
            }
            let search_after = waiting.search_after.or_else(|| state.crowd.since(waiting.op.id));
            if search_after.is_some_and(|after| after < base.seq) && !crate::canary!("resume-gallops") {
                // It arrived after the search for the others.
                later.push(waiting);
                continue;
            }
            if let Some(committed) = state.outcomes.get(waiting.op.id) {
                let _ = waiting.answer.send(Ok(committed));
                continue;
            }
            let before = next.clone();
            match waiting.op.apply(&base, &mut next) {
                Err(error) => {
                    next = before;
                    // An earlier process may have tried it on a record that this one has not seen.
                    // So only a reason that no later record can remove is final.
                    let stays =
                        matches!(error, Error::Fenced { .. } | Error::Expired(_) | Error::Removed | Error::Exists(_));
                    let unknown = Error::Unknown { seq: next.seq, op: waiting.op.id };
                    let _ =
                        waiting.answer.send(Err(if stays || waiting.search_after.is_none() { error } else { unknown }));
                }
                Ok(done) => {
                    next.ops.push(done);
                    let fits = next.layout.encoded_bytes() <= LAYOUT_BYTES_LIMIT && next.ops.len() <= OPS_MAX;
                    if fits {
                        taken.push(waiting);
                        continue;
                    }
                    next = before;
                    if taken.is_empty() {
                        let why = "the blob's layout has too many pieces: `shale blob optimize` joins them";
                        let _ = waiting.answer.send(Err(Error::Refused(why.into())));
                        continue;
                    }
                    queue.push_front(waiting);
                    break;
                }
            }
        }
        for waiting in later.into_iter().rev() {
            queue.push_front(waiting);
        }
        drop(queue);
        if taken.is_empty() {
            return Ok(None);
        }
        for offer in &state.crowd.carried {
            // The offer may be in this record already: this process may have taken it over, or it
            // was offered twice.
            if next.find(offer.op.id).is_some() {
                continue;
            }
            let before = next.clone();
            // An offer that cannot be applied is left to its own process, which reports the reason
            // to its caller.
            match offer.op.apply(&base, &mut next) {
                Ok(done) if next.ops.len() < OPS_MAX && next.layout.encoded_bytes() <= LAYOUT_BYTES_LIMIT => {
                    next.ops.push(done);
                }
                _ => next = before,
            }
        }
        if next.is_version() {
            (next.version, next.versions) = (next.seq, base.versions + 1);
        }
        match next.encode(&mut Workspace::new()) {
            Ok(body) => {
                Ok(Some(Undecided { record: Arc::new(next), body: body.into(), waiting: taken, is_refused: true }))
            }
            Err(error) => {
                let why = format!("{error}: remove tags, or run `shale blob optimize`");
                for waiting in taken {
                    let _ = waiting.answer.send(Err(Error::Refused(why.clone())));
                }
                Ok(None)
            }
        }
    }

    /// Repeats the request until the number is decided. Returns the record that has the number, and
    /// whether it had to be read.
    async fn decide(&self, state: &mut State) -> Result<(Arc<Record>, bool), Error> {
        let clock = &self.log.backend.clock;
        let mut tries = 0;
        loop {
            let Some(undecided) = &mut state.undecided else { return Ok((state.head.clone(), true)) };
            let (record, body) = (undecided.record.clone(), undecided.body.clone());
            // A request that is cancelled while in flight may still have an effect.
            let was_refused = std::mem::replace(&mut undecided.is_refused, false);
            let path = self.log.key.record(self.log.inc, record.seq);
            let began = clock.now_ns();
            let answer = self.log.backend.create(&path, body).await;
            state.note_round_trip(clock.now_ns() - began);
            let Created::Ask(error) = answer else { return Ok((record, false)) };
            // An error means nothing: a request that had an effect may be answered with "exists",
            // and one that had none, too.
            let found = self.log.read(record.seq).await;
            let was_read = found.is_ok();
            match found {
                Ok(Some(winner)) => return Ok((winner, true)),
                // Another body, which this program cannot read, has the number.
                Err(error @ Error::Newer { .. }) => {
                    self.requeue(state);
                    return Err(error);
                }
                Ok(None) | Err(_) => {}
            }
            tries += 1;
            // A request that the store refuses permanently has no effect; any other may still have
            // one.
            let is_refused = was_refused && is_permanent(&error, u32::MAX);
            if is_refused && was_read && is_permanent(&error, tries) {
                self.requeue(state);
                if lacks_log(&error) {
                    return Err(Error::Vanished(self.log.key.path().to_string()));
                }
                return Err(Error::store(format!("writing {path}"), error));
            }
            if let Some(undecided) = &mut state.undecided {
                undecided.is_refused = is_refused;
            }
            if crate::canary!("new-nonce-forgets-old") {
                self.forget_nonce(state)?;
            }
            self.log.backend.pause(tries).await;
        }
    }

    /// Drops a record that was not and will not be written, and queues its operations again.
    fn requeue(&self, state: &mut State) {
        let Some(undecided) = state.undecided.take() else { return };
        let mut queue = self.queue.lock();
        for waiting in undecided.waiting.into_iter().rev() {
            queue.push_front(waiting);
        }
    }

    /// Applied to an undecided body by a canary.
    fn forget_nonce(&self, state: &mut State) -> Result<(), Error> {
        if let Some(undecided) = &mut state.undecided {
            let nonce = Nonce(names::random(&*self.log.backend.entropy)?);
            let record = Record { nonce, ..(*undecided.record).clone() };
            if let Ok(body) = record.encode(&mut Workspace::new()) {
                (undecided.record, undecided.body) = (Arc::new(record), body.into());
            }
        }
        Ok(())
    }

    /// Answers the operations in the decided record, and puts the others back at the front of the
    /// queue.
    async fn settle(&self, state: &mut State, winner: Arc<Record>, read: bool) -> Result<(), Error> {
        let Some(undecided) = state.undecided.take() else { return Ok(()) };
        let mine = winner.nonce == undecided.record.nonce;
        #[allow(clippy::nonminimal_bool, reason = "without the canaries both sides are false")]
        let disowned =
            (crate::canary!("412-taken-as-loss") && read) || (crate::canary!("new-nonce-forgets-old") && !mine);
        let mut lost = Vec::new();
        for waiting in undecided.waiting {
            let Some(done) = winner.find(waiting.op.id).filter(|_| !disowned) else {
                lost.push(waiting);
                continue;
            };
            let committed = Committed { seq: winner.seq, at: done.at, len: done.len };
            state.outcomes.note(waiting.op.id, committed);
            let _ = waiting.answer.send(Ok(committed));
        }
        {
            let mut queue = self.queue.lock();
            for waiting in lost.into_iter().rev() {
                queue.push_front(waiting);
            }
        }
        if mine {
            let taken = state.crowd.won(&winner, self.log.backend.clock.now_ns());
            self.advance(state, winner);
            state.fold = None;
            state.losses = 0;
            self.log.leave_hint(state.head.seq, &undecided.body).await;
            if !taken.is_empty() {
                offer::take(&self.log, taken).await;
            }
            return Ok(());
        }
        self.advance(state, winner);
        state.losses = state.losses.saturating_add(1);
        self.lost(state).await
    }
}
