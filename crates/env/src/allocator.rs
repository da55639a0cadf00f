//! The memory allocator of the programs, and how it deals with the system.
#![allow(unsafe_code)]

use std::ffi::c_long;

use libmimalloc_sys::{mi_option_set_default, mi_option_t};
pub use mimalloc::MiMalloc as Allocator;

/// How long pages that are no longer used wait for a new use before the system gets them back:
/// `mi_option_purge_delay`, for which the crate has no name.
const PURGE_DELAY: mi_option_t = 15;
const PURGE_DELAY_MS: c_long = 10;

/// Sets up the allocator, whichever way the environment (`MIMALLOC_...`) does not. To be called
/// first of all.
pub fn tune_allocator() {
    take_small_pages_by_default();
    // Safety: sets a number.
    unsafe { mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) };
}

/// `PR_THP_DISABLE_EXCEPT_ADVISED` of prctl(2), since Linux 6.18.
const EXCEPT_ADVISED: libc::c_ulong = 1 << 1;
/// Which mappings get huge pages: those that ask for them (`[madvise]`), all (`[always]`), none.
const HUGE_PAGES_PATH: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// From now on this process takes huge pages only where it asks for them itself: see
/// [`Pages::Huge`](crate::Pages). Where the system gives them to all, and cannot make that
/// difference for a process (before Linux 6.18), it takes none.
///
/// Huge pages are not for the allocator, which is built without asking for them: each thread has
/// blocks of each size in pages of its own, few of them in use, so that most of a huge page is
/// memory that was not asked for. A server with a budget of 256 MiB and 32 readers came to 590 MiB;
/// without it comes to 150. Nor is it faster: see [`Arena`](crate::Arena) for what their first use
/// costs under a hypervisor.
fn take_small_pages_by_default() {
    let (disable, unused): (libc::c_ulong, libc::c_ulong) = (1, 0);
    // SAFETY: sets a flag of this process; no memory is passed.
    let done = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, disable, EXCEPT_ADVISED, unused, unused) } == 0;
    let given_to_all = || std::fs::read_to_string(HUGE_PAGES_PATH).is_ok_and(|mode| mode.contains("[always]"));
    if !done && given_to_all() {
        // Before Linux 3.15 there is no such thing, and memory is what it was.
        let _ = rustix::thread::disable_transparent_huge_pages(true);
    }
}

#[cfg(test)]
mod tests {
    use libmimalloc_sys::mi_option_get;

    use super::*;

    /// Without it a second passes: checkpoints are that often in a full log, and what one gave back
    /// lay beside what the next one took.
    #[test]
    fn freed_memory_is_given_back_soon() {
        // Safety: gets a number.
        let delay = || unsafe { mi_option_get(PURGE_DELAY) };
        assert_eq!(delay(), 1000, "another option, or another version's default");
        tune_allocator();
        assert_eq!(delay(), PURGE_DELAY_MS);
    }
}
