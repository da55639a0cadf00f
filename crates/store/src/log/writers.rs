//! The queue between compressing threads and writers: a batch with a position in the log waits here
//! for a writer thread, so that no compressing thread waits for the device. Bounded in bytes: a
//! thread that finds it full waits, so a slow device slows compression down.

use std::collections::VecDeque;

use surface::Error;

use super::{Log, Placed, Purpose, Refusal, Ticket};
use crate::base::ranked::{Condvar, Mutex};
use crate::base::ranks;
use crate::log::prepared::Prepared;

#[derive(Default)]
struct State {
    queue: VecDeque<Placed>,
    /// Bytes queued and being written.
    bytes: usize,
    stop: bool,
}

pub(crate) struct Writers {
    bytes_max: usize,
    state: Mutex<State, ranks::LogQueue>,
    work: Condvar,
    room: Condvar,
}

impl Writers {
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, state: Mutex::default(), work: Condvar::new(), room: Condvar::new() }
    }

    /// Waits until the batches under way leave room for more.
    pub fn wait_for_room(&self) {
        let mut state = self.state.lock();
        while state.bytes >= self.bytes_max && !state.stop {
            self.room.wait(&mut state);
        }
    }

    /// Passes a batch to the writers; returns it if they have been stopped.
    pub fn push(&self, batch: Placed) -> std::result::Result<(), Placed> {
        let mut state = self.state.lock();
        if state.stop {
            return Err(batch);
        }
        state.bytes += batch.bytes();
        state.queue.push_back(batch);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Waits for the next batch to write, in the order of the log; none: no batch will come any
    /// more.
    pub fn pop(&self) -> Option<Placed> {
        let mut state = self.state.lock();
        while state.queue.is_empty() && !state.stop {
            self.work.wait(&mut state);
        }
        // Under the lock of the queue: nothing can be added later to one that has been stopped.
        state.queue.pop_front()
    }

    /// Notes that a batch of so many bytes has been written, or has failed.
    pub fn done(&self, bytes: usize) {
        self.state.lock().bytes -= bytes;
        self.room.notify_all();
    }

    /// Accepts no more batches; waiting ones are still written.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.work.notify_all();
        self.room.notify_all();
    }
}

impl Log {
    /// Like [`append`](Self::append), but returns when all of it has its position; writer threads
    /// do the rest. If that fails, the taken groups are returned, and
    /// [`take_failure`](Self::take_failure) has the reason. While the pool is being closed, the
    /// caller itself writes it: a batch with a position that is never written would block all later
    /// ones.
    pub fn enqueue(&self, mut prepared: Prepared, purpose: Purpose) -> std::result::Result<Ticket, Refusal> {
        loop {
            self.writers.wait_for_room();
            let (placed, rest) = self.place_or_refuse(prepared, purpose)?;
            let ticket = placed.ticket;
            if let Err(placed) = self.writers.push(placed) {
                self.write_and_remember(placed);
            }
            match rest {
                Some(rest) => prepared = rest,
                None => return Ok(ticket),
            }
        }
    }

    /// Writes the next batch that waits for a writer thread; `false`: the thread can end.
    pub fn write_queued(&self) -> bool {
        let Some(placed) = self.writers.pop() else { return false };
        let bytes = placed.bytes();
        self.write_and_remember(placed);
        self.writers.done(bytes);
        // After the batch: all later ones in the log wait for it.
        self.reserve_early();
        true
    }

    fn write_and_remember(&self, placed: Placed) {
        if let Err(error) = self.write_placed(placed) {
            self.state.lock().unreported.get_or_insert(error);
        }
    }

    /// Lets the writer threads end.
    pub fn stop_writers(&self) {
        self.writers.stop();
    }

    /// Returns why an enqueued batch could not be written, once for each failure of the log.
    pub fn take_failure(&self) -> Option<Error> {
        self.state.lock().unreported.take()
    }
}
