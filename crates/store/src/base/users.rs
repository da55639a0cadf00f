//! A lock that many threads share while they use something; another thread can wait until all
//! earlier users are gone. Owns the rule that this never blocks later users: one user may be slow,
//! and must not hold up the later ones through the waiting thread.
//!
//! There are two gates, of which one is open.
//! 1. A new user shares the open gate. If it was closed at that moment, the other one is open.
//! 2. A waiting thread closes the open gate by opening the other one, and then locks the closed one
//!    exclusively: that succeeds when its users are gone.
//!
//! **No user is missed.** A user of a gate has seen it open while it was already shared. So the
//! thread that closes it later finds it shared, and waits. A user that shared it too late sees that
//! it is closed, and releases it. Threads that wait do so one after the other. So the last one has
//! waited for the gate that is opened now, and all users share the gate that is closed.

use std::sync::atomic::{AtomicUsize, Ordering, fence};

use crate::base::ranked::{Mutex, RwLock, RwLockReadGuard};
use crate::base::ranks;

/// Held by a user.
pub(crate) type Using<'a> = RwLockReadGuard<'a, (), ranks::Readers>;

/// See the module.
#[derive(Default)]
pub struct Users {
    gates: [RwLock<(), ranks::Readers>; 2],
    open: AtomicUsize,
    /// Held by the thread that waits.
    waiting: Mutex<(), ranks::ReadersGo>,
}

impl Users {
    /// Becomes a user, and never waits for other users.
    pub fn read(&self) -> Using<'_> {
        self.gates[0].expect();
        loop {
            if let Some(using) = self.try_read() {
                return using;
            }
            std::hint::spin_loop();
        }
    }

    /// The same; `None` if a gate was being closed at that moment.
    #[inline]
    pub fn try_read(&self) -> Option<Using<'_>> {
        let at = self.open.load(Ordering::Relaxed);
        let using = self.gates[at].try_read()?;
        // Either this sees that the gate is closed, or the thread that closes it sees that it is
        // shared. A user that finds it open sees everything done before it was opened.
        fence(Ordering::SeqCst);
        (self.open.load(Ordering::Acquire) == at).then_some(using)
    }

    /// Returns when all earlier users are gone.
    pub fn wait_until_gone(&self) {
        let _alone = self.waiting.lock();
        let before = self.open.load(Ordering::Relaxed);
        self.open.store(1 - before, Ordering::Release);
        fence(Ordering::SeqCst);
        drop(self.gates[before].write());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    #[test]
    fn who_comes_while_a_thread_waits_for_a_slow_user_does_not_wait() {
        let users = Users::default();
        let slow = users.read();
        let is_gone = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                users.wait_until_gone();
                is_gone.store(true, Ordering::SeqCst);
            });
            while users.open.load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
            let others = scope.spawn(|| {
                for _ in 0..1000 {
                    drop(users.read());
                    drop(users.try_read());
                }
            });
            others.join().unwrap();
            assert!(!is_gone.load(Ordering::SeqCst), "it did not wait for the slow one");
            drop(slow);
        });
        assert!(is_gone.load(Ordering::SeqCst));
    }

    /// Threads use a valid thing, while two others make another one valid, wait, and invalidate the
    /// previous one.
    #[test]
    fn nothing_is_spoiled_while_it_is_used() {
        const ROUNDS: usize = 3000;
        let users = Users::default();
        let valid: Vec<AtomicBool> = (0..=2 * ROUNDS).map(|_| AtomicBool::new(true)).collect();
        let next = AtomicUsize::new(0);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let using = users.read();
                        let at = next.load(Ordering::Acquire);
                        thread::yield_now();
                        assert!(valid[at].load(Ordering::Acquire), "it was spoiled under its user");
                        drop(using);
                    }
                });
            }
            let spoilers = [(); 2].map(|()| {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let before = next.fetch_add(1, Ordering::AcqRel);
                        users.wait_until_gone();
                        valid[before].store(false, Ordering::Release);
                    }
                })
            });
            for spoiler in spoilers {
                spoiler.join().unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
