//! Configuration of the programs' memory allocator, and of its use of the system.
#![allow(unsafe_code)]

use std::ffi::c_long;

use libmimalloc_sys::{mi_option_set_default, mi_option_t};
pub use mimalloc::MiMalloc as Allocator;

/// How long pages that are no longer used wait for a new use before the system gets them back:
/// `mi_option_purge_delay`, for which the crate has no name.
const PURGE_DELAY: mi_option_t = 15;
const PURGE_DELAY_MS: c_long = 10;

/// Configures the allocator, except for options set in the environment (`MIMALLOC_...`). Must be
/// called first.
pub fn tune_allocator() {
    take_small_pages_by_default();
    // Safety: sets a number.
    unsafe { mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) };
}

/// `PR_THP_DISABLE_EXCEPT_ADVISED` of prctl(2), since Linux 6.18.
const EXCEPT_ADVISED: libc::c_ulong = 1 << 1;
/// Which mappings get huge pages: those that request them (`[madvise]`), all (`[always]`), or none.
const HUGE_PAGES_PATH: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Restricts huge pages to memory that requests them: see [`Pages::Huge`](crate::Pages). Where the
/// system gives them to all memory, and cannot exempt a process (before Linux 6.18), the process
/// goes without.
///
/// The allocator does not benefit from huge pages, and is built without requesting them: each
/// thread has blocks of each size in pages of its own, few of them in use, so most of a huge page
/// would be memory that was never requested. With huge pages, a server with a budget of 256 MiB and
/// 32 readers grew to 590 MiB; without, to 150. Nor are they faster: see [`Arena`](crate::Arena)
/// for the cost of their first use under a hypervisor.
fn take_small_pages_by_default() {
    let (disable, unused): (libc::c_ulong, libc::c_ulong) = (1, 0);
    // SAFETY: sets a flag of this process; no memory is passed.
    let done = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, disable, EXCEPT_ADVISED, unused, unused) } == 0;
    let given_to_all = || std::fs::read_to_string(HUGE_PAGES_PATH).is_ok_and(|mode| mode.contains("[always]"));
    if !done && given_to_all() {
        // Linux before 3.15 lacks the option; memory stays as configured.
        let _ = rustix::thread::disable_transparent_huge_pages(true);
    }
}

#[cfg(test)]
mod tests {
    use libmimalloc_sys::mi_option_get;

    use super::*;

    /// By default a second passes: checkpoints are that frequent in a full log, and the memory
    /// freed by one coexisted with that of the next.
    #[test]
    fn freed_memory_is_given_back_soon() {
        // Safety: gets a number.
        let delay = || unsafe { mi_option_get(PURGE_DELAY) };
        assert_eq!(delay(), 1000, "another option, or another version's default");
        tune_allocator();
        assert_eq!(delay(), PURGE_DELAY_MS);
    }
}
