//! Locks that have a rank. Owns the rule that prevents deadlocks: a thread waits only for a lock
//! that comes after all those that it holds. `base::ranks` has the order.
//!
//! Debug builds, and so all tests, keep a list of the locks that each thread holds, and panic with
//! the names of both where the rule is broken: before the thread waits, and whether or not another
//! thread has the lock at that moment. In other builds these are the plain locks.
//!
//! 1. A lock that is waited for must come after all that the thread holds, or be a peer of them
//!    where the table allows that ([`Peers`]).
//! 2. A lock that is only tried, or waited for with a timeout, cannot block the thread
//!    indefinitely: it may be taken out of order. While it is held it is treated like the others.
//! 3. Waiting for a signal releases one lock and takes it again: it must be the last one held.
//! 4. A thread that calls the storage must not hold a lock that all other threads need released
//!    soon ([`expect_storage`]).

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

#[cfg(debug_assertions)]
use crate::base::ranks;
use crate::base::ranks::Rank;

/// Records that a thread holds a lock, for the lifetime of this value.
struct Held<R: Rank> {
    #[cfg(debug_assertions)]
    is_noted: bool,
    rank: PhantomData<R>,
}

impl<R: Rank> Held<R> {
    /// Records that the thread has the lock.
    fn new() -> Self {
        #[cfg(debug_assertions)]
        held::note(R::PLACE);
        Self {
            #[cfg(debug_assertions)]
            is_noted: true,
            rank: PhantomData,
        }
    }

    /// A token for a lock that is held but not listed.
    const fn untold() -> Self {
        Self {
            #[cfg(debug_assertions)]
            is_noted: false,
            rank: PhantomData,
        }
    }

    /// Checks the rule before the thread waits for the lock.
    fn expect() {
        #[cfg(debug_assertions)]
        held::check(R::PLACE);
    }

    /// Checks the rule before the thread waits for a signal, which releases the lock for that time.
    fn expect_signal() {
        #[cfg(debug_assertions)]
        held::check_signal(R::PLACE);
    }
}

#[cfg(debug_assertions)]
impl<R: Rank> Drop for Held<R> {
    fn drop(&mut self) {
        if self.is_noted {
            held::forget(R::PLACE);
        }
    }
}

/// The locks that this thread holds.
#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    use crate::base::ranks::{Peers, Place};

    thread_local! {
        static HELD: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
    }

    fn with<T>(look: impl FnOnce(&mut Vec<Place>) -> T) -> Option<T> {
        // A thread that is ending has no list any more.
        HELD.try_with(|held| look(&mut held.borrow_mut())).ok()
    }

    pub(super) fn note(place: Place) {
        with(|held| held.push(place));
    }

    pub(super) fn forget(place: Place) {
        with(|held| {
            if let Some(at) = held.iter().rposition(|one| *one == place) {
                held.remove(at);
            }
        });
    }

    pub(super) fn check(place: Place) {
        let is_before = |held: &[Place], one: &Place| match place.peers {
            _ if one.level != place.level => one.level < place.level,
            _ if *one != place => false,
            Peers::None => false,
            Peers::Beside => true,
            Peers::Under(level) => held.iter().any(|other| other.level == level),
        };
        let in_the_way = with(|held| {
            let held = &*held;
            held.iter().find(|one| !is_before(held, one)).copied()
        });
        if let Some(held) = in_the_way.flatten() {
            refuse(&format!("waiting for the lock '{}' while '{}' is held", place.name, held.name));
        }
    }

    pub(super) fn check_signal(place: Place) {
        let behind = with(|held| held.iter().find(|one| one.level > place.level).copied()).flatten();
        if let Some(held) = behind {
            refuse(&format!("releasing the lock '{}' to wait for a signal while '{}' is held", place.name, held.name));
        }
    }

    pub(super) fn check_storage(brief: &[Place]) {
        let held = with(|held| held.iter().find(|one| brief.contains(one)).copied()).flatten();
        if let Some(held) = held {
            refuse(&format!("calling the storage while '{}' is held", held.name));
        }
    }

    /// Panics: the program has a bug that could deadlock two threads.
    pub(super) fn refuse(what: &str) {
        // A thread that panics drops its locks in any order.
        assert!(std::thread::panicking(), "{what}: base/ranks.rs has the order of locks");
    }
}

/// Checks the rule before the thread calls the storage, which may take any time: with the log's
/// state or the map's layers held, it would keep all others from reading and writing.
#[cfg(debug_assertions)]
pub(crate) fn expect_storage() {
    held::check_storage(&[ranks::LogState::PLACE, ranks::MapLayers::PLACE]);
}

/// A lock with a rank.
pub struct Ranked<L, R: Rank> {
    plain: L,
    rank: PhantomData<R>,
}

/// A mutex with a rank.
pub type Mutex<T, R> = Ranked<parking_lot::Mutex<T>, R>;

/// A readers-writer lock with a rank.
pub type RwLock<T, R> = Ranked<parking_lot::RwLock<T>, R>;

impl<L: Default, R: Rank> Default for Ranked<L, R> {
    fn default() -> Self {
        Self { plain: L::default(), rank: PhantomData }
    }
}

impl<L: fmt::Debug, R: Rank> fmt::Debug for Ranked<L, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plain.fmt(f)
    }
}

/// Access to the content of a lock, for the lifetime of this value.
#[must_use = "the lock is let go at once"]
pub struct Guard<G, R: Rank> {
    // Released before the record of it.
    plain: G,
    held: Held<R>,
}

/// The content of a locked [`Mutex`].
pub type MutexGuard<'a, T, R> = Guard<parking_lot::MutexGuard<'a, T>, R>;

/// The content of a shared [`RwLock`].
pub type RwLockReadGuard<'a, T, R> = Guard<parking_lot::RwLockReadGuard<'a, T>, R>;

/// The content of an [`RwLock`] that one thread has alone.
pub(crate) type RwLockWriteGuard<'a, T, R> = Guard<parking_lot::RwLockWriteGuard<'a, T>, R>;

/// A part of the content of a shared [`RwLock`].
pub(crate) type MappedRwLockReadGuard<'a, T, R> = Guard<parking_lot::MappedRwLockReadGuard<'a, T>, R>;

impl<G, R: Rank> Guard<G, R> {
    /// Records that the thread has the lock.
    fn new(plain: G) -> Self {
        Self { plain, held: Held::new() }
    }
}

impl<G: Deref, R: Rank> Deref for Guard<G, R> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.plain
    }
}

impl<G: DerefMut, R: Rank> DerefMut for Guard<G, R> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.plain
    }
}

impl<T, R: Rank> Mutex<T, R> {
    pub const fn new(value: T) -> Self {
        Self { plain: parking_lot::Mutex::new(value), rank: PhantomData }
    }

    pub fn lock(&self) -> MutexGuard<'_, T, R> {
        self.expect();
        Guard::new(self.plain.lock())
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, R>> {
        self.plain.try_lock().map(Guard::new)
    }

    /// Checks the rule before the thread waits for the lock by other means.
    pub fn expect(&self) {
        Held::<R>::expect();
    }
}

/// A signal that threads wait for with a [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar {
    plain: parking_lot::Condvar,
}

impl Condvar {
    pub const fn new() -> Self {
        Self { plain: parking_lot::Condvar::new() }
    }

    pub fn wait<T, R: Rank>(&self, guard: &mut MutexGuard<'_, T, R>) {
        Held::<R>::expect_signal();
        self.plain.wait(&mut guard.plain);
    }

    /// Waits for at most so long.
    pub fn wait_for<T, R: Rank>(&self, guard: &mut MutexGuard<'_, T, R>, patience: Duration) {
        Held::<R>::expect_signal();
        self.plain.wait_for(&mut guard.plain, patience);
    }

    /// Waits while something holds, for at most so long.
    pub fn wait_while_for<T, R: Rank>(
        &self,
        guard: &mut MutexGuard<'_, T, R>,
        holds: impl FnMut(&mut T) -> bool,
        patience: Duration,
    ) {
        Held::<R>::expect_signal();
        self.plain.wait_while_for(&mut guard.plain, holds, patience);
    }

    pub(crate) fn notify_one(&self) {
        self.plain.notify_one();
    }

    pub fn notify_all(&self) {
        self.plain.notify_all();
    }
}

impl<T, R: Rank> RwLock<T, R> {
    pub const fn new(value: T) -> Self {
        Self { plain: parking_lot::RwLock::new(value), rank: PhantomData }
    }

    /// Checks the rule before the thread waits for the lock by other means.
    #[allow(clippy::unused_self)]
    pub fn expect(&self) {
        Held::<R>::expect();
    }

    pub fn read(&self) -> RwLockReadGuard<'_, T, R> {
        Held::<R>::expect();
        Guard::new(self.plain.read())
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, T, R> {
        Held::<R>::expect();
        Guard::new(self.plain.write())
    }

    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T, R>> {
        self.plain.try_read().map(Guard::new)
    }

    pub fn try_write_for(&self, patience: Duration) -> Option<RwLockWriteGuard<'_, T, R>> {
        self.plain.try_write_for(patience).map(Guard::new)
    }

    /// Shares the lock of something that no thread changes any more: so no thread waits for it, and
    /// it has no place in the order.
    pub(crate) fn read_unchanging(&self) -> RwLockReadGuard<'_, T, R> {
        #[cfg(debug_assertions)]
        if self.plain.is_locked_exclusive() {
            held::refuse(&format!("the lock '{}' is shared as one whose content never changes", R::PLACE.name));
        }
        Guard { plain: self.plain.read(), held: Held::untold() }
    }
}

impl<T, R: Rank> RwLock<T, R> {
    /// Locks it exclusively, if no other thread has it.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T, R>> {
        self.plain.try_write().map(Guard::new)
    }
}

impl<'a, T, R: Rank> RwLockReadGuard<'a, T, R> {
    /// Narrows the guard to a part of the content, if there is one.
    pub(crate) fn try_map<U>(
        guard: Self,
        part: impl FnOnce(&T) -> Option<&U>,
    ) -> Option<MappedRwLockReadGuard<'a, U, R>> {
        let Self { plain, held } = guard;
        let plain = parking_lot::RwLockReadGuard::try_map(plain, part).ok()?;
        Some(Guard { plain, held })
    }
}

#[cfg(test)]
#[cfg(debug_assertions)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::base::ranks;

    /// Returns the message with which something is refused, if it is.
    fn refusal(work: impl FnOnce()) -> Option<String> {
        let panic = catch_unwind(AssertUnwindSafe(work)).err()?;
        Some(panic.downcast_ref::<String>().expect("a message").clone())
    }

    #[test]
    fn a_lock_that_is_waited_for_out_of_turn_is_refused_with_both_names() {
        let admin = Mutex::<_, ranks::Admin>::new(());
        let gate = RwLock::<_, ranks::Gate>::new(());
        let text = refusal(|| {
            let _gate = gate.read();
            let _admin = admin.lock();
        });
        let text = text.expect("it was granted");
        assert!(text.contains("waiting for the lock 'objects::admin' while 'objects::gate' is held"), "{text}");
        // Nothing is held any more; in order both are granted, and so is the second one alone.
        assert_eq!(refusal(|| drop((admin.lock(), gate.write()))), None);
        assert_eq!(refusal(|| drop(gate.write())), None);
        // Locks under which no other lock is waited for come last, in any order.
        let (suspicion, kept) = (Mutex::<_, ranks::Suspicion>::new(()), Mutex::<_, ranks::Unpunched>::new(()));
        for in_turn in [true, false] {
            let text = refusal(|| {
                if in_turn { drop((suspicion.lock(), kept.lock())) } else { drop((kept.lock(), suspicion.lock())) }
            });
            assert!(text.expect("it was granted").contains("is held"));
        }
    }

    #[test]
    fn a_lock_is_never_waited_for_twice_unless_the_table_says_so() {
        let table = RwLock::<_, ranks::Objects>::new(0);
        let text = refusal(|| drop((table.read(), table.read()))).expect("it was granted");
        assert!(text.contains("waiting for the lock 'objects::table' while 'objects::table' is held"), "{text}");
        let shards = [(); 2].map(RwLock::<_, ranks::OverlayShard>::new);
        assert_eq!(refusal(|| drop((shards[0].read(), shards[1].write()))), None);
        // Gates of several volumes, by a thread that may change the table of objects.
        let gates = [(); 2].map(RwLock::<_, ranks::Gate>::new);
        let admin = Mutex::<_, ranks::Admin>::new(());
        assert!(refusal(|| drop((gates[0].read(), gates[1].write()))).is_some());
        assert_eq!(refusal(|| drop((admin.lock(), gates[1].write(), gates[0].write()))), None);
    }

    #[test]
    fn a_lock_that_is_only_tried_may_come_out_of_turn_and_counts_while_it_is_held() {
        let admin = Mutex::<_, ranks::Admin>::new(());
        let checkpoint = Mutex::<_, ranks::Checkpoint>::new(());
        let still = RwLock::<_, ranks::Still>::new(());
        assert_eq!(refusal(|| drop((still.read(), checkpoint.try_lock().unwrap()))), None);
        let text = refusal(|| drop((checkpoint.try_lock().unwrap(), admin.lock()))).expect("it was granted");
        assert!(text.contains("waiting for the lock 'objects::admin' while 'checkpoint::state' is held"), "{text}");
    }

    #[test]
    fn a_signal_is_waited_for_with_the_last_lock_only() {
        let (log, objects) = (Mutex::<_, ranks::LogState>::new(()), RwLock::<_, ranks::Objects>::new(()));
        let settled = Condvar::new();
        let text = refusal(|| {
            let mut state = log.lock();
            let _table = objects.read();
            settled.wait_for(&mut state, Duration::ZERO);
        });
        assert!(
            text.expect("it waited")
                .contains("releasing the lock 'log::state' to wait for a signal while 'objects::table' is held")
        );
        assert_eq!(refusal(|| settled.wait_for(&mut log.lock(), Duration::ZERO)), None);
    }

    #[test]
    fn the_storage_is_not_asked_while_all_others_would_wait() {
        let (log, objects) = (Mutex::<_, ranks::LogState>::new(()), RwLock::<_, ranks::Objects>::new(()));
        let text = refusal(|| {
            let _state = log.lock();
            expect_storage();
        });
        assert!(text.expect("it was asked").contains("calling the storage while 'log::state' is held"));
        let layers = RwLock::<_, ranks::MapLayers>::new(());
        assert!(
            refusal(|| {
                let _layers = layers.read();
                expect_storage();
            })
            .is_some()
        );
        assert_eq!(
            refusal(|| {
                let _table = objects.read();
                expect_storage();
            }),
            None
        );
    }

    #[test]
    fn what_no_thread_changes_has_no_place_in_the_order() {
        let (shard, layers) = (RwLock::<_, ranks::OverlayShard>::new(()), RwLock::<_, ranks::MapLayers>::new(()));
        assert!(refusal(|| drop((shard.read(), layers.read()))).is_some());
        assert_eq!(refusal(|| drop((shard.read_unchanging(), layers.read()))), None);
        let _changing = shard.write();
        assert!(refusal(|| drop(shard.read_unchanging())).is_some());
    }
}
