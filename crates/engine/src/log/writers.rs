//! The queue between those who compress and those who write: a batch that has its place in the log waits here for a writer
//! thread, so that no compressing thread stands still while the device works. Bounded in bytes: who finds it full waits,
//! which is how a slow device slows the compressing down.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use surface::Error;

use super::{Log, Placed, Purpose, Refusal, Ticket};
use crate::prepared::Prepared;

#[derive(Default)]
struct State {
    queue: VecDeque<Placed>,
    /// Bytes queued and being written.
    bytes: usize,
    stop: bool,
}

pub(crate) struct Writers {
    bytes_max: usize,
    state: Mutex<State>,
    work: Condvar,
    room: Condvar,
}

impl Writers {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, state: Mutex::default(), work: Condvar::new(), room: Condvar::new() }
    }

    /// Waits until what is under way leaves room for more.
    pub(crate) fn wait_for_room(&self) {
        let mut state = self.state.lock();
        while state.bytes >= self.bytes_max && !state.stop {
            self.room.wait(&mut state);
        }
    }

    /// Hands a batch to the writers.
    pub(crate) fn push(&self, batch: Placed) {
        let mut state = self.state.lock();
        state.bytes += batch.bytes();
        state.queue.push_back(batch);
        drop(state);
        self.work.notify_one();
    }

    /// The next batch to write, in the order of the log. `None` if none came within `patience`.
    pub(crate) fn pop(&self, patience: Duration) -> Option<Placed> {
        let mut state = self.state.lock();
        if state.queue.is_empty() && !state.stop {
            self.work.wait_for(&mut state, patience);
        }
        state.queue.pop_front()
    }

    /// A batch of so many bytes has been written, or has failed.
    pub(crate) fn done(&self, bytes: usize) {
        self.state.lock().bytes -= bytes;
        self.room.notify_all();
    }

    /// No more batches will come; those that wait are still to be written.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.work.notify_all();
        self.room.notify_all();
    }
}

impl Log {
    /// Like [`append`](Self::append), but returns when all of it has its place; writer threads do the rest. If that
    /// fails, what was taken goes back, and [`take_failure`](Self::take_failure) tells why.
    pub(crate) fn enqueue(&self, mut prepared: Prepared, purpose: Purpose) -> std::result::Result<Ticket, Refusal> {
        loop {
            self.writers.wait_for_room();
            let (placed, rest) = self.place_or_refuse(prepared, purpose)?;
            let ticket = placed.ticket;
            self.writers.push(placed);
            match rest {
                Some(rest) => prepared = rest,
                None => return Ok(ticket),
            }
        }
    }

    /// Writes the next batch that waits for a writer thread; `false` if none came within `patience`.
    pub(crate) fn write_queued(&self, patience: Duration) -> bool {
        let Some(placed) = self.writers.pop(patience) else { return false };
        self.reserve_early();
        let bytes = placed.bytes();
        if let Err(error) = self.write_placed(placed) {
            self.state.lock().unreported.get_or_insert(error);
        }
        self.writers.done(bytes);
        true
    }

    /// Lets the writer threads come to their end.
    pub(crate) fn stop_writers(&self) {
        self.writers.stop();
    }

    /// Why a batch that was enqueued could not be written, once for each failure of the log.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.state.lock().unreported.take()
    }
}
