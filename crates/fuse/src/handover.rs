//! Handing a reply over to its caller on one CPU. Owns the state of that, and its counters.
//!
//! The scheduler takes a CPU that runs nothing but threads of the idle policy for an idle one, and
//! lets a normal thread preempt them at once. So if the thread that replies sits on its caller's
//! CPU and has the idle policy while it replies, the kernel wakes the caller there, and not on
//! another CPU that has to leave a sleep state first. The server goes on when the caller blocks for
//! its next answer.
//!
//! # States
//!
//! - **Many**: readers run on all CPUs, replies are plain.
//! - **Alone**: begins after [`QUIET_MIN`] requests in a row of which none was queued.
//!   The only reader, the *leader*, is bound to its caller's CPU, and hands its replies over. It
//!   follows a caller that moves.
//!
//! Alone ends when the connection is idle, or by giving up ([`GiveUp`]). After giving up it does
//! not begin again for a second, then for twice as long, up to a minute; a spell that lasted longer
//! than that resets the pause.
//!
//! # Rules
//!
//! 1. The leader is idle during the system call that sends a reply, and normal again before it does
//!    anything else. A leader that cannot be ends, and nothing is handed over from then on.
//! 2. A caller that has its reply keeps the CPU, and so does any busy program there: the leader
//!    would starve, with the locks under which its handler answers. So a parked reader watches
//!    (`readers`). It gives a leader that sends one reply for several milliseconds the normal
//!    policy, and gives up if the caller still waits for that reply.
//! 3. The watcher gives up as well if requests wait. A leader that is given up gets all CPUs, and
//!    the normal policy.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::thread::CpuSet;

use crate::scheduler::{self, IdlePolicy, bind, only, whereabouts};
use crate::session::Transport;

/// Requests in a row without another one waiting, before a leader hands over. A second caller that
/// is active shows itself within a few requests.
const QUIET_MIN: u32 = 16;

/// Requests between two looks at the CPU of the caller: a look takes some 10 us.
const LOOK_EVERY: u32 = 64;

/// The same when requests come from another caller.
const LOOK_EVERY_OTHER: u32 = 16;

/// A reply that takes longer than this is late: its caller, or another program, kept the CPU.
const LATE: Duration = Duration::from_millis(1);

/// Handing over ends when one reply in [`LATE_WEIGHT`] or so is late for some time: either other
/// programs delay the caller, or it computes so long that it gains little.
const LATE_WEIGHT: u32 = 8;
const LATE_MAX: u32 = 64;

/// Pause after giving up: doubles with each time.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The reason why a leader no longer hands over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GiveUp {
    /// A request was queued.
    Queued,
    /// Another caller's request waited while a reply was handed over, or many replies are late.
    Late,
    /// Requests waited, or a reply did not reach its caller: a busy program holds the CPU, or a
    /// disk is slow.
    Stuck,
    /// The caller's CPU is not available to this process.
    Elsewhere,
}

/// Counters of handing over, of all connections of a server.
#[derive(Debug, Default)]
pub struct HandoverCounts {
    handoffs: AtomicU64,
    takeovers: AtomicU64,
    given_up: [AtomicU64; 4],
}

/// Values of [`HandoverCounts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HandoverFigures {
    /// Replies that were handed over.
    pub handoffs: u64,
    /// Times when a parked reader began to read because requests waited.
    pub takeovers: u64,
    /// Times when handing over ended because a request was queued.
    pub given_up_queued: u64,
    /// The same, because replies delayed callers.
    pub given_up_late: u64,
    /// The same, because the reader was stuck.
    pub given_up_stuck: u64,
    /// The same, because the caller's CPU was not available.
    pub given_up_elsewhere: u64,
}

impl HandoverCounts {
    /// Returns the counts.
    pub fn figures(&self) -> HandoverFigures {
        let of = |why: GiveUp| self.given_up[why as usize].load(Ordering::Relaxed);
        HandoverFigures {
            handoffs: self.handoffs.load(Ordering::Relaxed),
            takeovers: self.takeovers.load(Ordering::Relaxed),
            given_up_queued: of(GiveUp::Queued),
            given_up_late: of(GiveUp::Late),
            given_up_stuck: of(GiveUp::Stuck),
            given_up_elsewhere: of(GiveUp::Elsewhere),
        }
    }

    pub(crate) fn took_over(&self) {
        self.takeovers.fetch_add(1, Ordering::Relaxed);
    }
}

/// When the leader may hand over again.
struct Pause {
    length: Duration,
    until: Option<Instant>,
    began: Instant,
}

/// The state of a connection whose replies may be handed over.
pub(crate) struct Handover {
    counts: Arc<HandoverCounts>,
    /// CPUs of a reader that is not bound.
    usual: CpuSet,
    /// The thread that hands over; 0: none, the state is Many.
    leader: AtomicI32,
    /// The thread that waits for the reply in hand; 0: perhaps none, so another one may.
    caller: AtomicU32,
    /// The thread that has the idle policy or is about to; 0: none.
    replying: AtomicI32,
    /// Replies begun.
    replies: AtomicU64,
    /// A leader could not leave the idle policy.
    is_broken: AtomicBool,
    pause: Mutex<Pause>,
}

/// A request, as far as handing its reply over goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    /// The thread whose request it is; 0: none.
    pub(crate) caller: u32,
    /// The caller certainly waits for the reply.
    pub(crate) waits: bool,
    /// It waited while another one was carried out.
    pub(crate) is_queued: bool,
}

/// Returns the reason why replies of this process's mounts cannot be handed over; `None` if they
/// can.
pub fn why_no_handover() -> Option<&'static str> {
    if Transport::best() == Transport::Rings {
        return Some("requests come over io_uring");
    }
    Handover::new(Arc::default()).err()
}

/// Measures how long something lasts; never recorded.
#[allow(clippy::disallowed_methods, reason = "durations only, of which none is stored")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

impl Handover {
    /// Prepares to hand over.
    ///
    /// # Errors
    /// The reason why this process cannot.
    pub(crate) fn new(counts: Arc<HandoverCounts>) -> Result<Self, &'static str> {
        let usual = scheduler::own_cpus().map_err(|_| "its CPUs are unknown")?;
        if usual.count() < 2 {
            return Err("there is one CPU");
        }
        if !scheduler::is_normal(0) {
            return Err("the process has a scheduling policy of its own");
        }
        if !scheduler::can_leave_idle() {
            return Err("the process may not leave the idle policy (CAP_SYS_NICE)");
        }
        Ok(Self {
            counts,
            usual,
            leader: AtomicI32::new(0),
            caller: AtomicU32::new(0),
            replying: AtomicI32::new(0),
            replies: AtomicU64::new(0),
            is_broken: AtomicBool::new(false),
            pause: Mutex::new(Pause { length: PAUSE_MIN, until: None, began: now() }),
        })
    }

    /// Returns whether the state is Alone.
    pub(crate) fn is_alone(&self) -> bool {
        self.leader.load(Ordering::SeqCst) != 0
    }

    /// Returns whether the calling thread is the leader.
    pub(crate) fn is_led_here(&self) -> bool {
        self.is_alone() && self.is_led_by(scheduler::own_thread())
    }

    fn is_led_by(&self, thread: i32) -> bool {
        self.leader.load(Ordering::SeqCst) == thread
    }

    /// Makes the calling thread the leader, on the CPU of `caller`; returns whether it is.
    fn begin(&self, thread: i32, caller: u32) -> bool {
        let now = now();
        let mut pause = self.pause.lock();
        if self.is_broken.load(Ordering::Relaxed) || pause.until.is_some_and(|until| now < until) {
            return false;
        }
        let Some(found) = whereabouts(caller) else { return false };
        if self.leader.compare_exchange(0, thread, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return false;
        }
        pause.began = now;
        drop(pause);
        self.bind_leader(thread, found.cpu)
    }

    /// Moves the leader to the CPU of its caller; stays where it is if the caller has ended.
    fn follow(&self, thread: i32, caller: u32) {
        if let Some(found) = whereabouts(caller) {
            self.bind_leader(thread, found.cpu);
        }
    }

    fn bind_leader(&self, thread: i32, cpu: usize) -> bool {
        if !self.usual.is_set(cpu) || bind(thread, &only(cpu)).is_err() {
            self.give_up(GiveUp::Elsewhere);
            return false;
        }
        if !self.is_led_by(thread) {
            // The watcher gave up in the meantime.
            self.unbind(thread);
            return false;
        }
        true
    }

    fn unbind(&self, thread: i32) {
        if let Err(error) = bind(thread, &self.usual) {
            log::debug!("a thread of the FUSE front end stays on one CPU: {error}");
        }
    }

    /// Ends the state Alone, for any thread: the leader gets the normal policy and all CPUs.
    /// Returns whether it was in force.
    fn end(&self) -> bool {
        let leader = self.leader.swap(0, Ordering::SeqCst);
        if leader == 0 {
            return false;
        }
        // The leader checks `leader` once it is idle, so this comes after the change or makes it
        // undo the change.
        if self.replying.load(Ordering::SeqCst) == leader {
            let _ = scheduler::set_normal(leader);
        }
        self.unbind(leader);
        true
    }

    /// Ends the state Alone because the connection is idle: it may begin again at once.
    pub(crate) fn rest(&self) {
        self.end();
    }

    /// Ends the state Alone, and does not let it begin again for some time.
    pub(crate) fn give_up(&self, why: GiveUp) {
        if !self.end() {
            return;
        }
        self.counts.given_up[why as usize].fetch_add(1, Ordering::Relaxed);
        let now = now();
        let mut pause = self.pause.lock();
        if now.duration_since(pause.began) > pause.length {
            pause.length = PAUSE_MIN;
        }
        pause.until = Some(now + pause.length);
        pause.length = (2 * pause.length).min(PAUSE_MAX);
    }

    /// Returns the number of replies begun: the same at two looks if one lasts.
    pub(crate) fn replies(&self) -> u64 {
        self.replies.load(Ordering::SeqCst)
    }

    /// Rule 2, for the watcher.
    pub(crate) fn relieve(&self) {
        let leader = self.leader.load(Ordering::SeqCst);
        if leader == 0 || self.replying.load(Ordering::SeqCst) != leader {
            return;
        }
        if whereabouts(self.caller.load(Ordering::SeqCst)).is_some_and(|found| !found.is_running) {
            self.give_up(GiveUp::Stuck);
        } else {
            let _ = scheduler::set_normal(leader);
        }
    }

    /// Sends a reply from the calling thread, with the idle policy if it is the leader. `waiting`:
    /// the thread that certainly waits for it, or 0. Returns the time that it took if it was handed
    /// over, or an error if the thread stays idle: then it must end.
    fn reply<T>(&self, thread: i32, waiting: u32, send: impl FnOnce() -> T) -> (T, io::Result<Option<Duration>>) {
        let began = now();
        self.caller.store(waiting, Ordering::SeqCst);
        self.replies.fetch_add(1, Ordering::SeqCst);
        self.replying.store(thread, Ordering::SeqCst);
        let leave = |idle: Option<IdlePolicy>| idle.map_or(Ok(()), IdlePolicy::leave);
        let mut idle = IdlePolicy::enter().ok();
        let is_handed_over = idle.is_some() && self.is_led_by(thread);
        // If it was relieved, the reply is plain.
        let left = leave(idle.take_if(|_| !is_handed_over));
        let sent = send();
        let left = left.and(leave(idle));
        // Another leader may have begun since this one was given up.
        let _ = self.replying.compare_exchange(thread, 0, Ordering::SeqCst, Ordering::SeqCst);
        if let Err(error) = left {
            self.is_broken.store(true, Ordering::Relaxed);
            self.end();
            return (sent, Err(error));
        }
        if !is_handed_over {
            return (sent, Ok(None));
        }
        self.counts.handoffs.fetch_add(1, Ordering::Relaxed);
        (sent, Ok(Some(began.elapsed())))
    }
}

/// A reader's part in handing over: only its own thread has it.
#[derive(Debug)]
pub(crate) struct Turn {
    thread: i32,
    /// Requests in a row of which none was queued.
    quiet: u32,
    since_look: u32,
    looked_at: u32,
    /// The last reply was late.
    was_late: bool,
    /// Rises with each reply that is late, and falls with each other one.
    late: u32,
    /// It handed over its last reply.
    has_led: bool,
    /// The caller that waits for the next reply, or 0.
    waiting: u32,
}

impl Default for Turn {
    fn default() -> Self {
        Self {
            thread: scheduler::own_thread(),
            quiet: 0,
            since_look: 0,
            looked_at: 0,
            was_late: false,
            late: 0,
            has_led: false,
            waiting: 0,
        }
    }
}

impl Turn {
    /// Notes a request that this reader took; returns whether its reply is handed over.
    /// `may_begin`: this is the only reader, and another one watches it.
    pub(crate) fn note(&mut self, handover: &Handover, asked: Asked, may_begin: impl FnOnce() -> bool) -> bool {
        let Asked { caller, waits, is_queued } = asked;
        self.waiting = if waits { caller } else { 0 };
        let was_late = std::mem::take(&mut self.was_late);
        let leads = handover.is_led_by(self.thread);
        if std::mem::replace(&mut self.has_led, leads) && !leads {
            // The watcher has ended it.
            self.quiet = 0;
        }
        if is_queued || caller == 0 {
            self.quiet = 0;
            if is_queued {
                handover.give_up(GiveUp::Queued);
            }
            return false;
        }
        self.quiet = self.quiet.saturating_add(1);
        if leads {
            self.late = if was_late { self.late + LATE_WEIGHT } else { self.late.saturating_sub(1) };
            if was_late && (caller != self.looked_at || self.late >= LATE_MAX) {
                self.late = 0;
                handover.give_up(GiveUp::Late);
                return false;
            }
            self.since_look += 1;
            let every = if caller == self.looked_at { LOOK_EVERY } else { LOOK_EVERY_OTHER };
            if self.since_look >= every {
                self.looked(caller);
                handover.follow(self.thread, caller);
            }
        } else if self.quiet >= QUIET_MIN && may_begin() {
            self.looked(caller);
            if !handover.begin(self.thread, caller) {
                self.quiet = 0;
            }
        }
        handover.is_led_by(self.thread)
    }

    fn looked(&mut self, caller: u32) {
        (self.since_look, self.looked_at) = (0, caller);
    }

    /// Sends a reply; see [`Handover::reply`].
    pub(crate) fn reply<T>(&mut self, handover: &Handover, send: impl FnOnce() -> T) -> (T, io::Result<()>) {
        let (sent, took) = handover.reply(self.thread, self.waiting, send);
        self.was_late = took.as_ref().is_ok_and(|took| took.is_some_and(|took| took > LATE));
        (sent, took.map(drop))
    }

    /// Ends the reader's part: its thread ends.
    pub(crate) fn end(&self, handover: &Handover) {
        if handover.is_led_by(self.thread) {
            handover.rest();
        }
    }
}

#[cfg(test)]
#[path = "handover_tests.rs"]
mod tests;
