//! The threads that read a connection's device where replies may be handed over: few read, and the
//! others are parked. Owns which of them read.
//!
//! The kernel wakes waiting readers in turns, so four readers serve a lone caller with four stacks
//! on four CPUs. Here one reads while requests come one at a time, and another one is woken when
//! it is needed.
//!
//! # States of a reader
//!
//! - **Free**: reads, or carries out a request that is expected to be quick.
//! - **Away**: carries out a request that may wait for a disk ([`before_wait`]).
//! - **Parked**: sleeps. One of the parked readers is the *watcher*.
//!
//! # Rules
//!
//! 1. One reader at least is free, or none is parked: a free reader that goes away, or ends, calls
//!    a parked one if it was the last. A thread that starts is free if no other one is.
//! 2. A reader calls a parked one if more than one in three of its requests were queued for some
//!    time. A request was queued if it was there, and no reader waited, before the reply to the one
//!    before it was sent.
//! 3. A reader parks after a request if another one waits for requests, and no second reader was
//!    needed for [`SPARE`]. The one that hands replies over does not.
//! 4. The watcher looks every [`TICK`] while requests come. If requests are pending at two looks
//!    and none was taken in between, it begins to read, and another parked reader becomes the
//!    watcher. So a request that waits unexpectedly, for a lock or for another request, delays the
//!    others by some milliseconds.
//! 5. The watcher rests while all readers wait for requests. A reader that takes one checks
//!    afterwards whether the watcher rests; the watcher checks before it rests, but after it has
//!    said so, whether a reader has a request. Both in one total order, so one of them notices.
//! 6. A call counts the reader as free at once, under the lock: no call is lost, and no two are for
//!    the same reader.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::device::Reader;
use crate::handover::{Asked, GiveUp, Handover, HandoverCounts, Turn, now};
use crate::session::FileSystem;

/// Another reader is called after three queued requests in a row, and if more than one in three are
/// queued. Each adds the weight to a count, and each other one takes 1 off.
const QUEUED_WEIGHT: u32 = 2;
const QUEUED_MAX: u32 = 5;

/// How long a second reader stays after it was last needed.
const SPARE: Duration = Duration::from_millis(1);

/// Interval of the watcher's looks.
const TICK: Duration = Duration::from_millis(2);

/// Looks without any request before the watcher rests: waking it again costs the next request.
const QUIET_TICKS: u32 = 5;

struct State {
    /// Parked readers without the watcher; the last one is the warmest.
    parked: Vec<usize>,
    watcher: Option<usize>,
    /// Readers that were called, and have not noticed yet.
    called: Vec<bool>,
    /// When a second reader was needed last.
    needed: Instant,
    has_ended: bool,
}

/// The readers of a connection.
pub(crate) struct Readers {
    state: Mutex<State>,
    wake: Vec<Condvar>,
    /// Free readers; changes under the lock of `state` only.
    free: AtomicUsize,
    /// Free readers that have a request.
    serving: AtomicUsize,
    /// Requests taken so far.
    taken: AtomicU64,
    /// The watcher does not rest.
    is_watched: AtomicBool,
    device: Arc<OwnedFd>,
    /// Where takeovers are counted.
    counts: Arc<HandoverCounts>,
    handover: Option<Handover>,
}

/// What the watcher saw.
#[derive(Default)]
struct Look {
    taken: u64,
    replies: u64,
    is_pending: bool,
    quiet: u32,
}

/// Whether requests wait in the kernel.
fn is_pending(device: &OwnedFd) -> bool {
    let mut ready = [PollFd::new(device, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut ready, Some(&now)).is_ok() && ready[0].revents().contains(PollFlags::IN)
}

impl Readers {
    /// For `count` readers of a connection, of which number 0 begins as a free one. The others
    /// join when their threads start.
    pub(crate) fn new(
        count: usize,
        device: Arc<OwnedFd>,
        counts: Arc<HandoverCounts>,
        handover: Option<Handover>,
    ) -> Arc<Self> {
        let state = State {
            parked: Vec::with_capacity(count),
            watcher: None,
            called: vec![false; count],
            needed: now(),
            has_ended: false,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            wake: (0..count).map(|_| Condvar::new()).collect(),
            free: AtomicUsize::new(1),
            serving: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            is_watched: AtomicBool::new(true),
            device,
            counts,
            handover,
        })
    }

    /// Serves requests on this thread, as reader `number`, until the connection has ended.
    pub(crate) fn serve<F: FileSystem>(
        self: &Arc<Self>,
        number: usize,
        reader: &mut Reader,
        file_system: &F,
    ) -> io::Result<()> {
        let mut member = Member::join(self.clone(), number);
        if number != 0 && !member.park(Park::AtStart) {
            return Ok(());
        }
        loop {
            if !reader.read()? {
                self.end();
                return Ok(());
            }
            member.took(reader);
            reader.serve_message(file_system);
            member.done()?;
            if self.free.load(Ordering::Relaxed) > 1 && !member.park(Park::IfSpare) {
                return Ok(());
            }
        }
    }

    fn add_free(&self, _state: &State) {
        self.free.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the number that is left.
    fn remove_free(&self, _state: &State) -> usize {
        self.free.fetch_sub(1, Ordering::SeqCst) - 1
    }

    /// Calls a parked reader, if there is one; the watcher last.
    fn call(&self, state: &mut State) {
        state.needed = now();
        if let Some(number) = state.parked.pop().or_else(|| state.watcher.take()) {
            state.called[number] = true;
            self.add_free(state);
            self.wake[number].notify_one();
        }
    }

    /// Wakes the watcher if it rests.
    fn watch(&self) {
        let state = self.state.lock();
        if !self.is_watched.swap(true, Ordering::SeqCst)
            && let Some(watcher) = state.watcher
        {
            self.wake[watcher].notify_one();
        }
    }

    /// Ends all readers that are parked; the others notice the end of the connection.
    fn end(&self) {
        self.state.lock().has_ended = true;
        for wake in &self.wake {
            wake.notify_all();
        }
    }

    /// Sleeps until the reader is called; returns `false` at the end. The reader is not counted as
    /// free any more.
    fn sleep<'a>(&'a self, state: &mut MutexGuard<'a, State>, number: usize) -> bool {
        self.station(state, number);
        let mut look = Look::default();
        loop {
            if state.has_ended {
                return false;
            }
            if std::mem::take(&mut state.called[number]) {
                return true;
            }
            if state.watcher != Some(number) {
                self.wake[number].wait(state);
            } else if !self.is_watched.load(Ordering::SeqCst) {
                self.wake[number].wait(state);
                look = Look::default();
            } else if self.wake[number].wait_for(state, TICK).timed_out() {
                let is_stuck = MutexGuard::unlocked(state, || self.look(&mut look));
                // It may have been called meanwhile.
                if is_stuck && state.watcher == Some(number) {
                    self.take_over(state);
                    return true;
                }
                if look.quiet >= QUIET_TICKS && state.watcher == Some(number) {
                    self.rest();
                }
            }
        }
    }

    fn station(&self, state: &mut State, number: usize) {
        if state.watcher.is_none() {
            state.watcher = Some(number);
            self.is_watched.store(true, Ordering::SeqCst);
        } else {
            state.parked.push(number);
        }
    }

    /// Rule 4, for the watcher: returns whether it is to read.
    fn look(&self, look: &mut Look) -> bool {
        let (taken, is_pending) = (self.taken.load(Ordering::SeqCst), is_pending(&self.device));
        let is_unmoved = taken == look.taken;
        let was_pending = std::mem::replace(&mut look.is_pending, is_pending);
        look.taken = taken;
        let is_idle = is_unmoved && !is_pending && self.serving.load(Ordering::SeqCst) == 0;
        look.quiet = if is_idle { look.quiet + 1 } else { 0 };
        // Another reader may take requests while the leader is stuck.
        if let Some(handover) = &self.handover {
            let replies = handover.replies();
            if std::mem::replace(&mut look.replies, replies) == replies {
                handover.relieve();
            }
        }
        is_unmoved && was_pending && is_pending
    }

    fn take_over(&self, state: &mut State) {
        state.needed = now();
        self.add_free(state);
        state.watcher = state.parked.pop();
        self.is_watched.store(true, Ordering::SeqCst);
        if let Some(watcher) = state.watcher {
            self.wake[watcher].notify_one();
        }
        self.counts.took_over();
        if let Some(handover) = &self.handover {
            handover.give_up(GiveUp::Stuck);
        }
    }

    /// Rule 5.
    fn rest(&self) {
        self.is_watched.store(false, Ordering::SeqCst);
        if self.serving.load(Ordering::SeqCst) > 0 || self.free.load(Ordering::SeqCst) == 0 {
            self.is_watched.store(true, Ordering::SeqCst);
        } else if let Some(handover) = &self.handover {
            handover.rest();
        }
    }

    /// Returns whether the calling thread hands replies over.
    fn is_led_here(&self) -> bool {
        self.handover.as_ref().is_some_and(Handover::is_led_here)
    }

    /// Returns whether requests wait, and no reader does.
    fn has_queue(&self) -> bool {
        self.serving.load(Ordering::SeqCst) >= self.free.load(Ordering::SeqCst) && is_pending(&self.device)
    }

    /// Returns whether the calling reader is the only free one, and watched.
    fn has_lone_reader(&self) -> bool {
        self.free.load(Ordering::SeqCst) == 1 && self.state.lock().watcher.is_some()
    }
}

/// The place of a thread among readers, for calls that come from a request's handler.
#[derive(Default)]
struct Seat {
    readers: RefCell<Option<Arc<Readers>>>,
    is_away: Cell<bool>,
    /// Requests were queued when the last one was answered.
    had_queue: Cell<bool>,
    /// The next reply of this thread is handed over.
    hands_over: Cell<bool>,
    turn: RefCell<Turn>,
    /// The reason why the thread must end.
    failure: Cell<Option<io::Error>>,
}

thread_local! {
    static SEAT: Seat = Seat::default();
}

/// Says that the request that the calling thread carries out may wait for a disk, so that another
/// reader is there for the next ones. Does nothing on a thread that takes no requests.
pub(crate) fn before_wait() {
    SEAT.with(|seat| {
        let readers = seat.readers.borrow();
        let Some(readers) = &*readers else { return };
        // A lone caller would pay for waking another reader; the watcher has one read as soon as a
        // request is pending.
        if readers.is_led_here() || seat.is_away.replace(true) {
            return;
        }
        readers.serving.fetch_sub(1, Ordering::SeqCst);
        let mut state = readers.state.lock();
        state.needed = now();
        if readers.remove_free(&state) == 0 {
            readers.call(&mut state);
        }
    });
}

/// Says that the calling thread is about to start another one, which would inherit the one CPU to
/// which a thread that hands replies over is bound.
pub fn before_spawn() {
    SEAT.with(|seat| {
        if let Some(readers) = seat.readers.borrow().as_ref().filter(|readers| readers.is_led_here())
            && let Some(handover) = &readers.handover
        {
            handover.rest();
        }
    });
}

/// Sends the reply to the request that the calling thread carries out, and hands it over if that is
/// due. Notes before whether requests are queued behind it: a lone caller sends none before that,
/// but may have sent one just after it.
pub(crate) fn reply<T>(send: impl FnOnce() -> T) -> T {
    SEAT.with(|seat| {
        let readers = seat.readers.borrow();
        let Some(readers) = &*readers else { return send() };
        if !seat.is_away.get() {
            seat.had_queue.set(readers.has_queue());
        }
        let Some(handover) = readers.handover.as_ref().filter(|_| seat.hands_over.take()) else { return send() };
        let (sent, left) = seat.turn.borrow_mut().reply(handover, send);
        seat.failure.set(left.err());
        sent
    })
}

/// When a reader parks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Park {
    /// At once: its thread has started.
    AtStart,
    /// By rule 3.
    IfSpare,
}

/// A reader, on its own thread.
struct Member {
    readers: Arc<Readers>,
    number: usize,
    /// Rises with each request that was queued, and falls with each other one.
    queued: u32,
    /// The caller of the last request.
    caller: u32,
    /// It has a request and is free.
    is_serving: bool,
    /// It is counted neither as free nor as parked: called readers are counted by their callers.
    is_out: bool,
}

impl Member {
    fn join(readers: Arc<Readers>, number: usize) -> Self {
        SEAT.with(|seat| {
            seat.is_away.set(false);
            seat.had_queue.set(false);
            seat.turn.replace(Turn::default());
            seat.readers.replace(Some(readers.clone()));
        });
        Self { readers, number, queued: 0, caller: 0, is_serving: false, is_out: number != 0 }
    }

    /// Parks; returns `false` at the end.
    fn park(&mut self, park: Park) -> bool {
        let mut state = self.readers.state.lock();
        if park == Park::AtStart && self.readers.free.load(Ordering::SeqCst) == 0 {
            // The others went away before there was a parked one to call.
            self.readers.add_free(&state);
            self.is_out = false;
            return !state.has_ended;
        }
        if park == Park::IfSpare {
            let waiting =
                self.readers.free.load(Ordering::SeqCst).saturating_sub(self.readers.serving.load(Ordering::SeqCst));
            if waiting < 2 || state.needed.elapsed() < SPARE || self.readers.is_led_here() {
                return !state.has_ended;
            }
            self.readers.remove_free(&state);
            self.is_out = true;
        }
        let is_called = self.readers.sleep(&mut state, self.number);
        drop(state);
        self.is_out = !is_called;
        self.queued = 0;
        SEAT.with(|seat| seat.had_queue.set(false));
        is_called
    }

    /// Notes a message that has been read.
    fn took(&mut self, reader: &Reader) {
        let readers = &self.readers;
        readers.taken.fetch_add(1, Ordering::SeqCst);
        readers.serving.fetch_add(1, Ordering::SeqCst);
        self.is_serving = true;
        if !readers.is_watched.load(Ordering::SeqCst) {
            readers.watch();
        }
        let had_queue = SEAT.with(|seat| seat.had_queue.take());
        // No caller waits for messages without an answer.
        if reader.is_forget() {
            return;
        }
        let caller = reader.caller();
        // A caller that waits for its replies has sent this one after the last: a FORGET was there.
        let (is_same, waits) = (std::mem::replace(&mut self.caller, caller) == caller, !reader.is_data());
        let asked = Asked { caller, waits, is_queued: had_queue && !(is_same && waits) };
        self.queued = if asked.is_queued { self.queued + QUEUED_WEIGHT } else { self.queued.saturating_sub(1) };
        if self.queued > QUEUED_MAX {
            self.queued = 0;
            readers.call(&mut readers.state.lock());
        }
        if let Some(handover) = &readers.handover {
            SEAT.with(|seat| {
                let hands_over = seat.turn.borrow_mut().note(handover, asked, || readers.has_lone_reader());
                seat.hands_over.set(hands_over);
            });
        }
    }

    /// Ends a message.
    ///
    /// # Errors
    /// The thread must end: it could not leave the idle policy.
    fn done(&mut self) -> io::Result<()> {
        let (was_away, failure) = SEAT.with(|seat| {
            seat.hands_over.set(false);
            (seat.is_away.take(), seat.failure.take())
        });
        self.is_serving = false;
        if was_away {
            self.readers.add_free(&self.readers.state.lock());
        } else {
            self.readers.serving.fetch_sub(1, Ordering::SeqCst);
        }
        failure.map_or(Ok(()), Err)
    }
}

impl Drop for Member {
    /// Ends a reader: at the end of the connection, by an error, or by a panic of a handler.
    fn drop(&mut self) {
        let was_away = SEAT.with(|seat| {
            seat.readers.replace(None);
            seat.hands_over.set(false);
            if let Some(handover) = &self.readers.handover {
                seat.turn.borrow().end(handover);
            }
            seat.is_away.take()
        });
        if self.is_serving && !was_away {
            self.readers.serving.fetch_sub(1, Ordering::SeqCst);
        }
        if !self.is_out && !was_away {
            let mut state = self.readers.state.lock();
            if self.readers.remove_free(&state) == 0 {
                self.readers.call(&mut state);
            }
        }
    }
}

#[cfg(test)]
#[path = "readers_tests.rs"]
pub(crate) mod tests;
