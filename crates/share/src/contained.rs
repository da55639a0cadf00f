//! Panics that end a step and not the program. `redb` trusts the pages that it reads, and panics
//! over one that contradicts itself. Where a database may be damaged or crafted (`reading`), each
//! step of `redb` is contained: a panic is the same as an error.
//!
//! The program aborts on any other panic; its hook asks [`contains_panics`] first.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

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
            panic!("a page contradicts itself")
        });
        assert_eq!((ended, contains_panics()), (None, false));
    }
}
