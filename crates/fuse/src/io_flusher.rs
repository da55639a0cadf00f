//! Threads that must not wait for their own file system when they allocate memory.

/// Declares to the kernel that this thread, and threads that it starts, serve storage: an
/// allocation then does not wait for dirty pages of a file system that lies on files of our own.
/// Needs `CAP_SYS_RESOURCE`, and does nothing without it.
pub fn become_io_flusher() {
    let _ = rustix::process::configure_io_flusher_behavior(true);
}
