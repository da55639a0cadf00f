//! The queue between those who compress and those who write: a batch that has its place in the log waits here for a writer
//! thread, so that no compressing thread stands still while the device works. Bounded in bytes: who finds it full waits,
//! which is how a slow device slows the compressing down.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::log::Placed;

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
