//! How to mount: what the caller may choose, and why the defaults are what they are.

use std::time::SystemTime;

use fuse::keep::KeptBy;

/// What this door is called where operations are counted.
pub(crate) const DOOR: &str = "mount";

/// Threads that take requests from the kernel, and do those that need not wait. Few are better than many: see the
/// measurement in `lane`. Each that saw a large write keeps a buffer of [`REQUEST_BYTES_MAX`].
pub const THREADS_DEFAULT: usize = 4;

/// Reads that may wait for the disk at once: what keeps a fast disk busy. Each is a thread that
/// sleeps, and keeps a buffer of [`REQUEST_BYTES_MAX`] if it saw a large read.
pub const READS_WAITING_DEFAULT: usize = 32;

/// Most threads of either kind that are allowed: beyond this they cost memory (1 MiB each) and
/// bring nothing.
pub const THREADS_MAX: usize = 256;

/// Writes, flushes and discards that may wait at once. A device syncs for all that wait together,
/// so that few are enough.
pub(crate) const CHANGES_WAITING: usize = 8;

/// Files that may wait at once to be opened, each for the end of an exclusive operation on its
/// device: seldom, and for some seconds at most.
pub(crate) const OPENS_WAITING: usize = 4;

/// Files that may be emptied at once as they are opened: each may wait for others to close it, and
/// takes as long as its device does. More wait for their turn, and keep no other client from
/// opening files.
pub(crate) const EMPTYINGS_WAITING: usize = 4;

/// The largest read or write in one request: what the kernel allows without changing its limits
/// (256 pages).
pub const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Threads that serve requests, 1 to [`THREADS_MAX`].
    pub threads: usize,
    /// Reads that may wait for the disk at once, 1 to [`THREADS_MAX`].
    pub reads_waiting: usize,
    /// Users other than the one who serves may enter (files stay `rw-------` of their owner). Needs
    /// root, or `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// What `mount` and `df` show as the source, for instance the path of the pool.
    pub source: String,
    /// A mount of the same source at the same place whose server is dead is taken away first. For
    /// callers that know that no other server of the source lives.
    pub replaces_dead: bool,
    /// Mounts over a directory that is not empty, or over another mount; they are hidden then.
    pub overlay: bool,
    /// Who holds the mount, so that it outlives this program: the next one that mounts goes on with
    /// it. Nothing does if requests come over rings.
    pub kept_by: Option<KeptBy>,
    /// The wall clock, for modification times only.
    pub now: fn() -> SystemTime,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            threads: THREADS_DEFAULT,
            reads_waiting: READS_WAITING_DEFAULT,
            allow_other: false,
            source: "shale".to_owned(),
            replaces_dead: false,
            overlay: false,
            kept_by: None,
            now: wall_clock,
        }
    }
}

/// Modification times are shown, never acted on, so that a simulated run does not need to control
/// them.
#[allow(clippy::disallowed_methods, reason = "modification times only; callers can replace it")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
