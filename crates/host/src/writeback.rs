//! Writing a file back to its disk before its sync, so that the disk works while the data is still
//! produced.

use std::os::fd::{AsFd, AsRawFd};

/// Starts to write all dirty pages of a file, and does not wait for them. A hint: a later sync
/// still writes what is left, and reports the errors.
pub fn start_writeback(file: impl AsFd) {
    let (to_the_end, flags) = (0, libc::SYNC_FILE_RANGE_WRITE);
    // SAFETY: the descriptor is open during the call, and no memory is passed.
    let _ = unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), 0, to_the_end, flags) };
}
