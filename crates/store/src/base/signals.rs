//! Signals between the pool's threads and the threads of clients: there is data to drain, a
//! checkpoint or space is wanted, the write buffer has room, the pool ends. Owns the numbers that
//! waiting threads compare, so that no signal is lost, and the last error of a drain. Any thread
//! may call it; the threads themselves are those of `pool::threads`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use surface::{Error, ErrorKind, Result};

use crate::base::ranked::{Condvar, Mutex};
use crate::base::ranks;

/// Longest wait of a writer for room, after which it checks by itself whether there is some.
const ROOM_PERIOD: Duration = Duration::from_millis(100);
/// Longest pause of a worker with nothing to do: an idle pool must not keep the processor awake.
const WORK_PERIOD: Duration = Duration::from_secs(1);
/// Pause of a worker after an error, unless it is woken.
const ERROR_PAUSE: Duration = Duration::from_millis(500);

#[derive(Default)]
struct State {
    /// Raised by `wake`; a worker that saw an older number checks again.
    wakes: u64,
    keeper_wakes: u64,
    cleaner_wakes: u64,
    stop: bool,
    /// The last error of a drain, until one succeeds.
    error: Option<(ErrorKind, String)>,
}

/// See the module.
#[derive(Default)]
pub struct Signals {
    state: Mutex<State, ranks::Work>,
    work: Condvar,
    keeper: Condvar,
    cleaner: Condvar,
    /// Writers wait here for room.
    room: Condvar,
    idle: AtomicUsize,
}

impl Signals {
    /// Ends all waits, now and later: the threads are to end.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.work.notify_all();
        self.keeper.notify_all();
        self.cleaner.notify_all();
        self.room.notify_all();
    }

    /// Pauses a thread that nobody waits for. Returns `true` if the pool is being closed.
    pub fn rest(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.stop && !time.is_zero() {
            self.cleaner.wait_for(&mut state, time);
        }
        state.stop
    }

    /// Wakes the workers: there is data to drain.
    pub fn wake(&self) {
        if self.idle.load(Ordering::Acquire) > 0 {
            let mut state = self.state.lock();
            state.wakes += 1;
            // They are on their way: no other thread need wake them.
            self.idle.store(0, Ordering::Release);
            drop(state);
            self.work.notify_all();
        }
    }

    /// Wakes one worker for work other than draining.
    pub fn wake_one(&self) {
        drop(self.state.lock());
        self.work.notify_one();
    }

    /// Wakes the cleaners: a writer waits for space.
    pub fn wake_cleaner(&self) {
        self.state.lock().cleaner_wakes += 1;
        self.cleaner.notify_all();
    }

    /// Lets a cleaner, which has seen wake-up `seen`, rest until the next one, for a `time` at
    /// most. Returns the number of the last one; `None` if the pool is being closed.
    pub fn wait_for_cleaning(&self, seen: u64, time: Duration) -> Option<u64> {
        let mut state = self.state.lock();
        if !state.stop && state.cleaner_wakes == seen && !time.is_zero() {
            self.cleaner.wait_for(&mut state, time);
        }
        (!state.stop).then_some(state.cleaner_wakes)
    }

    /// Wakes the keeper: a checkpoint is due.
    pub fn wake_keeper(&self) {
        self.state.lock().keeper_wakes += 1;
        self.keeper.notify_all();
    }

    /// Returns the number of the last wake-up of the workers; `None` if they are to end.
    #[inline]
    pub fn wakes(&self) -> Option<u64> {
        let state = self.state.lock();
        (!state.stop).then_some(state.wakes)
    }

    /// Lets a worker that has seen wake-up `seen` wait for the next one, unless it `is_asked` for
    /// other work.
    pub fn wait_for_work(&self, seen: u64, is_asked: impl Fn() -> bool) {
        let mut state = self.state.lock();
        if !state.stop && state.wakes == seen && !is_asked() {
            self.idle.fetch_add(1, Ordering::AcqRel);
            self.work.wait_for(&mut state, WORK_PERIOD);
            // The waking thread has set the count of idle workers to zero.
            if state.wakes == seen {
                self.idle.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Notes that a worker cannot drain, and lets it pause, unless it was woken after `seen`.
    pub fn drain_failed(&self, error: &Error, seen: u64) {
        let mut state = self.state.lock();
        state.error = Some((error.kind(), error.to_string()));
        self.room.notify_all();
        if !state.stop && state.wakes == seen {
            self.work.wait_for(&mut state, ERROR_PAUSE);
        }
    }

    /// Notes a successful drain by any thread: the error that kept a worker from draining is over.
    #[inline]
    pub fn drained(&self) {
        self.state.lock().error = None;
    }

    /// Lets waiting writers check whether there is room.
    pub fn note_room(&self) {
        // A writer that saw none before is waiting by now, and gets the wake-up.
        drop(self.state.lock());
        self.room.notify_all();
    }

    /// Waits briefly while the write buffer `is_full`.
    ///
    /// # Errors
    /// When the workers cannot drain it.
    pub fn wait_for_room(&self, is_full: impl Fn() -> bool) -> Result<()> {
        let mut state = self.state.lock();
        if !is_full() {
            return Ok(());
        }
        if let Some((kind, text)) = &state.error {
            return Err(Error::new(*kind, text.clone()));
        }
        if state.stop {
            return Err(Error::new(ErrorKind::Io, "the pool is being closed"));
        }
        self.room.wait_for(&mut state, ROOM_PERIOD);
        Ok(())
    }

    /// Lets the keeper, which has seen wake-up `seen`, wait for the next one, for a `period` at
    /// most. Returns the number of the last one; `None` if it is to end.
    pub fn wait_for_keeping(&self, seen: u64, period: Duration) -> Option<u64> {
        let mut state = self.state.lock();
        if state.stop {
            return None;
        }
        if state.keeper_wakes == seen {
            self.keeper.wait_for(&mut state, period);
        }
        Some(state.keeper_wakes)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The failure does not concern the next writer that waits for room, and no worker may have had
    /// a reason to try again.
    #[test]
    fn a_drain_that_succeeds_ends_the_error_of_an_earlier_one() {
        let signals = Signals::default();
        let failed = Error::new(ErrorKind::Io, "a write that failed");
        // A worker that was woken since does not pause.
        signals.state.lock().wakes = 1;
        signals.drain_failed(&failed, 0);
        assert!(signals.wait_for_room(|| false).is_ok());
        let error = signals.wait_for_room(|| true).unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Io, "a write that failed".to_owned()));
        signals.drained();
        assert!(signals.wait_for_room(|| true).is_ok());
    }

    /// It rested for all of its pause, and the writer that had woken it waited as long.
    #[test]
    fn a_cleaner_that_is_woken_just_before_it_rests_does_not_rest() {
        let signals = Signals::default();
        assert_eq!(signals.wait_for_cleaning(0, Duration::ZERO), Some(0));
        signals.wake_cleaner();
        assert_eq!(signals.wait_for_cleaning(0, Duration::MAX), Some(1));
    }

    #[test]
    fn nobody_waits_once_the_pool_ends() {
        let signals = Signals::default();
        assert_eq!((signals.wakes(), signals.rest(Duration::ZERO)), (Some(0), false));
        signals.wake_keeper();
        assert_eq!(signals.wait_for_keeping(0, Duration::MAX), Some(1));
        signals.stop();
        assert_eq!((signals.wakes(), signals.wait_for_keeping(1, Duration::MAX)), (None, None));
        assert_eq!(signals.wait_for_cleaning(0, Duration::MAX), None);
        assert!(signals.rest(Duration::MAX));
        assert!(signals.wait_for_room(|| true).is_err());
    }
}
