//! Panics that end a step and not the program. `redb` trusts the pages that it reads, and panics
//! over one that contradicts itself: in a database from elsewhere, and in one of a salvaged pool,
//! where pages may have an older content. So each step of `redb` is contained: a panic is the same
//! as an error.
//!
//! The program aborts on any other panic; its hook asks [`contains_panics`] first. The storage
//! below `redb` is no part of the step: after a panic there, nothing could be trusted.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

use redb::StorageError;

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread is expected now, and ends nothing but a step.
pub fn contains_panics() -> bool {
    CONTAINED.get()
}

/// Runs a step; `None` if it panicked. Nothing that the step has changed may be used afterwards.
pub(crate) fn contained<T>(step: impl FnOnce() -> Option<T>) -> Option<T> {
    let before = CONTAINED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(step));
    CONTAINED.set(before);
    result.ok().flatten()
}

/// Runs a step that may fail; a panic is an error, too.
pub(crate) fn checked<T, E: From<StorageError>>(step: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let damaged = || Err(StorageError::Corrupted("a page contradicts itself".to_owned()).into());
    contained(|| Some(step())).unwrap_or_else(damaged)
}

/// A part of `redb` whose end is a step, too: a database that is closed writes its list of free pages,
/// and the last transaction closes it if it was dropped before.
pub(crate) struct Contained<T>(Option<T>);

impl<T> Contained<T> {
    pub(crate) fn new(part: T) -> Self {
        Self(Some(part))
    }
}

impl<T> Deref for Contained<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().unwrap_or_else(|| unreachable!("only its end takes it"))
    }
}

impl<T> DerefMut for Contained<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().unwrap_or_else(|| unreachable!("only its end takes it"))
    }
}

impl<T> Drop for Contained<T> {
    fn drop(&mut self) {
        let part = self.0.take();
        let end = || {
            drop(part);
            Some(())
        };
        if contained(end).is_none() {
            log::error!("the database of a share's names was not closed: a page contradicts itself");
        }
    }
}

/// Runs something below a contained step that is no part of it.
pub(crate) fn outside<T>(what: impl FnOnce() -> T) -> T {
    let before = CONTAINED.replace(false);
    let result = what();
    CONTAINED.set(before);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_the_step_and_is_expected_only_there() {
        assert!(!contains_panics());
        assert_eq!(contained(|| Some(contains_panics())), Some(true));
        let ended: Option<u8> = contained(|| {
            assert_eq!(contained(|| Some(3)), Some(3));
            assert!(contains_panics(), "an inner step ends no outer one");
            assert!(!outside(contains_panics) && contains_panics());
            panic!("a page contradicts itself")
        });
        assert_eq!((ended, contains_panics()), (None, false));
    }

    #[test]
    fn a_panic_at_the_end_of_a_part_is_contained() {
        struct Bad<'a>(&'a Cell<bool>);
        impl Drop for Bad<'_> {
            fn drop(&mut self) {
                self.0.set(contains_panics());
                panic!("a page contradicts itself")
            }
        }
        let was_contained = Cell::new(false);
        drop(Contained::new(Bad(&was_contained)));
        assert!(was_contained.get() && !contains_panics());
    }
}
