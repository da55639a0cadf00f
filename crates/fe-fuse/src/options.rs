//! How to mount: what the caller may choose, and why the defaults are what they are.

use std::time::SystemTime;

/// Threads that take requests from the kernel. Each does its request to the end, so this is how many reads can wait for
/// the disk at once; it must also exceed what can block for long, or reads would wait behind flushes. Idle threads cost a
/// stack; each that saw a large write keeps a buffer of [`REQUEST_BYTES_MAX`].
pub const THREADS_DEFAULT: usize = 16;

/// Most threads that are allowed: beyond this they cost memory (1 MiB each) and bring nothing.
pub const THREADS_MAX: usize = 256;

/// The largest read or write in one request: what the kernel allows without changing its limits (256 pages).
pub const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Threads that serve requests, 1 to [`THREADS_MAX`].
    pub threads: usize,
    /// Users other than the one who serves may enter (files stay `rw-------` of their owner). Needs root, or
    /// `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// What `mount` and `df` show as the source, for instance the path of the pool.
    pub source: String,
    /// The wall clock, for modification times only.
    pub now: fn() -> SystemTime,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self { threads: THREADS_DEFAULT, allow_other: false, source: "shale".to_owned(), now: wall_clock }
    }
}

/// Modification times are shown, never acted on, so that a simulated run does not need to control them.
#[allow(clippy::disallowed_methods, reason = "modification times only; callers can replace it")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
