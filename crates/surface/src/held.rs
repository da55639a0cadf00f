//! Requests that failed for lack of space, held until there is some (the property `when-full`).
//! Owns them, and the thread that retries them.
//!
//! 1. A front end whose write fails with [`ErrorKind::Full`](crate::ErrorKind::Full) asks the
//!    device how long to hold such a write
//!    ([`BlockDevice::full_wait`](crate::BlockDevice::full_wait)), and passes the request on.
//! 2. At each tick, the oldest request of each queue is retried. As soon as one is answered, the
//!    next of its queue follows.
//! 3. A request that has timed out is tried a last time, and answered with the result. So is every
//!    request when the front end stops.
//!
//! The threads of the front end continue with reads, and with discards, which free space.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Interval between retries: short compared to the time an administrator needs to free space, long
/// compared to an attempt in a full pool.
const TICK: Duration = Duration::from_millis(250);

/// Most requests held at once: four clients with as many in flight as a front end accepts from one.
/// A request beyond this fails immediately.
const HELD_MAX: usize = 1024;

/// Tries a request again; `true`: it is answered. With `true` as its argument it must be.
pub type Attempt = Box<dyn FnMut(bool) -> bool + Send>;

struct Request {
    ticks_left: u32,
    attempt: Attempt,
}

#[derive(Default)]
struct State {
    queues: BTreeMap<usize, VecDeque<Request>>,
    /// Requests in the queues, and the one that is being tried.
    count: usize,
    is_closed: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// See the module's text.
pub struct Held {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Held {
    /// Starts the thread, which sleeps while no request is held.
    ///
    /// # Errors
    /// When no more threads can be started.
    pub fn start(name: &str) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let its = Arc::clone(&shared);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || its.work())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Holds a request for about `most`, queued after those of the same `queue`: space for one
    /// device may not be space for another.
    ///
    /// # Errors
    /// Returns the request when too many are held, or the front end stops: it should be tried a
    /// last time.
    pub fn hold(&self, queue: usize, most: Duration, attempt: Attempt) -> Result<(), Attempt> {
        let mut state = self.shared.state.lock();
        if state.is_closed || state.count >= HELD_MAX {
            return Err(attempt);
        }
        let ticks = most.as_millis().div_ceil(TICK.as_millis());
        let request = Request { ticks_left: u32::try_from(ticks).unwrap_or(u32::MAX), attempt };
        state.queues.entry(queue).or_default().push_back(request);
        state.count += 1;
        if state.count == 1 {
            self.shared.changed.notify_all();
        }
        Ok(())
    }

    /// Holds `request` like [`hold`](Self::hold). `again` retries it, or answers it with any result
    /// if its second argument is `true`; it returns the request if it should be retried. A request
    /// that cannot be held is tried a last time immediately.
    pub fn retry<R: Send + 'static>(
        &self,
        queue: usize,
        most: Duration,
        request: R,
        mut again: impl FnMut(R, bool) -> Option<R> + Send + 'static,
    ) {
        let mut left = Some(request);
        let attempt = move |is_last| {
            left = left.take().and_then(|request| again(request, is_last));
            left.is_none()
        };
        if let Err(mut refused) = self.hold(queue, most, Box::new(attempt)) {
            refused(true);
        }
    }

    /// Requests that are held now.
    pub fn count(&self) -> usize {
        self.shared.state.lock().count
    }

    /// Holds no more requests from now on; the thread tries all a last time.
    pub fn begin_close(&self) {
        self.shared.state.lock().is_closed = true;
        self.shared.changed.notify_all();
    }

    /// Holds no more requests, and returns when all were tried a last time.
    pub fn close(&self) {
        self.begin_close();
        if let Some(thread) = self.thread.lock().take() {
            // A thread that panicked was reported by the panic handler; the requests it held are
            // answered when dropped.
            drop(thread.join());
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if state.is_closed && state.count == 0 {
                return;
            }
            if state.count == 0 {
                self.changed.wait(&mut state);
                continue;
            }
            if !state.is_closed {
                if !self.changed.wait_for(&mut state, TICK).timed_out() {
                    continue;
                }
                let held = state.queues.values_mut().flatten();
                held.for_each(|request| request.ticks_left = request.ticks_left.saturating_sub(1));
            }
            let queues: Vec<_> = state.queues.keys().copied().collect();
            for queue in queues {
                while let Some(mut request) = state.queues.get_mut(&queue).and_then(VecDeque::pop_front) {
                    let is_last = request.ticks_left == 0 || state.is_closed;
                    drop(state);
                    let is_answered = (request.attempt)(is_last);
                    state = self.state.lock();
                    if !is_answered && !is_last {
                        state.queues.entry(queue).or_default().push_front(request);
                        break;
                    }
                    state.count -= 1;
                }
            }
            state.queues.retain(|_, requests| !requests.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// An attempt that takes one of `room` places; reports its name and whether it succeeded.
    fn attempt(room: &Arc<Mutex<u32>>, name: u32, out: &Sender<(u32, bool)>) -> Attempt {
        let (room, out) = (Arc::clone(room), out.clone());
        Box::new(move |is_last| {
            let mut room = room.lock();
            let found = *room > 0;
            *room -= u32::from(found);
            if found || is_last {
                out.send((name, found)).unwrap();
            }
            found
        })
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn what_is_held_comes_through_in_order_when_there_is_room_and_fails_when_its_time_is_over() {
        let held = Held::start("held").unwrap();
        let (none, some) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0)));
        let (out, told) = channel();
        // The first request of the other queue never succeeds; it does not block other queues.
        assert!(held.hold(1, LONG, attempt(&none, 0, &out)).is_ok());
        for name in 1..=3 {
            assert!(held.hold(2, LONG, attempt(&some, name, &out)).is_ok());
        }
        *some.lock() = 2;
        assert_eq!((told.recv().unwrap(), told.recv().unwrap()), ((1, true), (2, true)));
        assert!(held.hold(3, Duration::ZERO, attempt(&none, 4, &out)).is_ok());
        assert_eq!(told.recv().unwrap(), (4, false), "its time is over");
        // The thread answers a request before it removes it from the count.
        while held.count() > 2 {
            std::thread::yield_now();
        }
        assert_eq!(held.count(), 2);
        held.close();
        assert_eq!(held.count(), 0);
        let mut rest: Vec<_> = told.try_iter().collect();
        rest.sort_unstable();
        assert_eq!(rest, [(0, false), (3, false)], "stopping answers the rest");
    }

    #[test]
    fn no_more_are_held_than_there_may_be_and_none_once_it_is_closed() {
        let held = Held::start("held").unwrap();
        let none = Arc::new(Mutex::new(0));
        let (out, told) = channel();
        for name in 0..HELD_MAX as u32 {
            assert!(held.hold(0, LONG, attempt(&none, name, &out)).is_ok());
        }
        assert!(held.hold(1, LONG, attempt(&none, 0, &out)).is_err());
        held.close();
        assert_eq!(told.try_iter().count(), HELD_MAX);
        let mut refused = held.hold(1, LONG, attempt(&none, 7, &out)).err().unwrap();
        assert!(!refused(true));
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [(7, false)]);
    }
}
