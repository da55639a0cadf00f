//! Gates where operations of a device wait for a test.

use std::collections::HashSet;

use parking_lot::{Condvar, Mutex};

use crate::PATIENCE;

/// A gate that operations of one kind pass, or wait at while it is shut.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_shut: bool,
    /// Offsets at which starting operations are stopped.
    shut_at: HashSet<u64>,
    waiting: usize,
}

impl State {
    fn is_shut_at(&self, offset: u64) -> bool {
        self.is_shut || self.shut_at.contains(&offset)
    }
}

impl Gate {
    /// All operations wait from now on.
    pub fn shut(&self) {
        self.state.lock().is_shut = true;
    }

    /// Operations that begin at `offset` wait from now on.
    pub fn shut_at(&self, offset: u64) {
        self.state.lock().shut_at.insert(offset);
    }

    /// Releases all waiting operations.
    pub fn open(&self) {
        let mut state = self.state.lock();
        state.is_shut = false;
        state.shut_at.clear();
        self.changed.notify_all();
    }

    /// Operations that wait now.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    /// Waits until `count` operations wait.
    ///
    /// # Panics
    /// When they do not arrive.
    #[track_caller]
    pub fn wait_for(&self, count: usize) {
        let mut state = self.state.lock();
        while state.waiting < count {
            let waited = self.changed.wait_for(&mut state, PATIENCE);
            assert!(!waited.timed_out(), "only {} of {count} operations came", state.waiting);
        }
    }

    /// Lets an operation pass, or makes it wait.
    pub fn pass(&self, offset: u64) {
        let mut state = self.state.lock();
        if !state.is_shut_at(offset) {
            return;
        }
        state.waiting += 1;
        self.changed.notify_all();
        // A test that failed opens no gate; its server must still stop.
        while state.is_shut_at(offset) && !self.changed.wait_for(&mut state, PATIENCE).timed_out() {}
        state.waiting -= 1;
    }
}
