//! Open files and directories, by the number that the kernel passes with each request. Owns them
//! without interpreting them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};

/// Most open handles of one kind at a time. The kernel limits them per process, not in total; this
/// limits memory (some 100 bytes each), far above the needs of disks: one handle for each loop
/// device or VM.
pub(crate) const HANDLES_MAX: usize = 65_536;

/// Free numbers required before one is reused: a repeated request to close a file, sent again by
/// the kernel because its server was killed, must not close another one.
const FREE_MIN: usize = 64;

#[derive(Debug)]
pub(crate) struct Handles<T> {
    slots: RwLock<Slots<T>>,
    /// Held while announcing a removal, and when about to wait for one; acquired before `slots`.
    removing: Mutex<()>,
    removed: Condvar,
}

#[derive(Debug)]
struct Slots<T> {
    used: Vec<Option<Arc<T>>>,
    free: VecDeque<usize>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        let slots = RwLock::new(Slots { used: Vec::new(), free: VecDeque::new() });
        Self { slots, removing: Mutex::default(), removed: Condvar::default() }
    }
}

impl<T> Handles<T> {
    /// Stores `handle`, and returns its number; `None` if there are too many.
    pub(crate) fn insert(&self, handle: T) -> Option<u64> {
        let handle = Some(Arc::new(handle));
        let mut slots = self.slots.write();
        let may_reuse = slots.free.len() >= FREE_MIN || slots.used.len() >= HANDLES_MAX;
        let index = match may_reuse.then(|| slots.free.pop_front()).flatten() {
            Some(index) => {
                slots.used[index] = handle;
                index
            }
            None if slots.used.len() < HANDLES_MAX => {
                slots.used.push(handle);
                slots.used.len() - 1
            }
            None => return None,
        };
        Some(index as u64)
    }

    /// Stores a handle under the number that it had in another program.
    pub(crate) fn insert_at(&self, number: u64, handle: T) {
        let Ok(index) = usize::try_from(number) else { return };
        if index >= HANDLES_MAX {
            return;
        }
        let mut slots = self.slots.write();
        let free = slots.used.len()..index;
        slots.free.extend(free);
        let length = slots.used.len().max(index + 1);
        slots.used.resize_with(length, || None);
        slots.free.retain(|&free| free != index);
        slots.used[index] = Some(Arc::new(handle));
    }

    /// Returns the handle with that number.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<T>> {
        let slots = self.slots.read();
        slots.used.get(usize::try_from(number).ok()?)?.clone()
    }

    /// Returns a handle that satisfies `is_meant`.
    pub(crate) fn find(&self, is_meant: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        self.slots.read().used.iter().flatten().find(|handle| is_meant(handle)).cloned()
    }

    /// Waits until no handle satisfies `is_meant`; returns whether that happened. The kernel
    /// reports a closed file after close(2) has returned, possibly even after the caller's next
    /// action.
    pub(crate) fn await_none(&self, is_meant: impl Fn(&T) -> bool, patience: Duration) -> bool {
        let is_there = |_: &mut ()| self.find(&is_meant).is_some();
        !self.removed.wait_while_for(&mut self.removing.lock(), is_there, patience).timed_out()
    }

    /// Removes the handle with that number; it is dropped when its last request ends.
    pub(crate) fn remove(&self, number: u64) {
        let Ok(index) = usize::try_from(number) else { return };
        let mut slots = self.slots.write();
        if slots.used.get_mut(index).and_then(Option::take).is_some() {
            slots.free.push_back(index);
        }
        drop(slots);
        let _telling = self.removing.lock();
        self.removed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_reused_but_never_shared() {
        let handles = Handles::default();
        let a = handles.insert('a').unwrap();
        let b = handles.insert('b').unwrap();
        assert_ne!(a, b);
        handles.remove(a);
        handles.remove(a);
        assert!(handles.get(a).is_none());
        let c = handles.insert('c').unwrap();
        let d = handles.insert('d').unwrap();
        assert!(c != a && d != a && d != c);
        for number in 1..FREE_MIN {
            let next = handles.insert('x').unwrap();
            assert_ne!(next, a, "after {number}");
            handles.remove(next);
        }
        assert_eq!(handles.insert('y'), Some(a));
        assert_eq!((*handles.get(b).unwrap(), *handles.get(c).unwrap(), *handles.get(d).unwrap()), ('b', 'c', 'd'));
        assert!(handles.get(99).is_none());
    }

    #[test]
    fn handles_of_another_program_keep_their_numbers() {
        let handles = Handles::default();
        handles.insert_at(5, 'f');
        handles.insert_at(2, 'c');
        assert_eq!((*handles.get(5).unwrap(), *handles.get(2).unwrap()), ('f', 'c'));
        assert!(handles.get(3).is_none());
        assert_eq!(handles.insert('g'), Some(6));
    }

    #[test]
    fn the_end_of_a_handle_can_be_waited_for() {
        let handles = Handles::default();
        let a = handles.insert('a').unwrap();
        assert!(!handles.await_none(|&handle| handle == 'a', Duration::ZERO));
        assert!(handles.await_none(|&handle| handle == 'b', Duration::ZERO));
        std::thread::scope(|threads| {
            let waiting = threads.spawn(|| handles.await_none(|&handle| handle == 'a', Duration::MAX));
            handles.remove(a);
            assert!(waiting.join().unwrap());
        });
    }

    #[test]
    fn there_is_a_bound() {
        let handles = Handles::default();
        for _ in 0..HANDLES_MAX {
            handles.insert(()).unwrap();
        }
        assert!(handles.insert(()).is_none());
        handles.remove(3);
        assert_eq!(handles.insert(()), Some(3));
    }
}
