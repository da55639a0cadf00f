//! Mount options, and the reasons for their defaults.

use std::time::SystemTime;

use fuse::keep::KeeperSlot;

/// Name of this door in operation counts.
pub(crate) const DOOR: &str = "mount";

/// Threads that receive requests from the kernel, and run those that need not wait. Few are better
/// than many: see the measurement in `fuse/lanes.rs`. Each keeps a buffer of [`REQUEST_BYTES_MAX`] once it
/// has handled a large write.
pub const THREADS_DEFAULT: usize = 4;

/// Reads that may wait for the disk at once: enough to keep a fast disk busy. Each is a sleeping
/// thread, which keeps a buffer of [`REQUEST_BYTES_MAX`] once it has handled a large read.
pub const READS_WAITING_DEFAULT: usize = 32;

/// Most threads of either kind: beyond this they cost memory (1 MiB each) without benefit.
pub const THREADS_MAX: usize = 256;

/// Writes, flushes and discards that may wait at once. A device syncs once for all that wait
/// together, so few suffice.
pub(crate) const CHANGES_WAITING: usize = 8;

/// Opens that may wait at once for the end of an exclusive operation on their device: rarely, and
/// for some seconds at most.
pub(crate) const OPENS_WAITING: usize = 4;

/// Files that may be emptied at once on open: each may wait for others to close it, and takes as
/// long as its device does. Further ones wait for their turn, without delaying other opens.
pub(crate) const EMPTYINGS_WAITING: usize = 4;

/// The largest read or write in one request: the kernel's default limit (256 pages).
pub const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Threads that serve requests, 1 to [`THREADS_MAX`].
    pub threads: usize,
    /// Reads that may wait for the disk at once, 1 to [`THREADS_MAX`].
    pub reads_waiting: usize,
    /// Whether users other than the serving one may enter (files stay `rw-------` of their owner).
    /// Needs root, or `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Source shown by `mount` and `df`, for instance the path of the pool.
    pub source: String,
    /// Whether a mount of the same source at the same place with a dead server is removed first.
    /// For callers that know that no other server of the source is alive.
    pub replaces_dead: bool,
    /// Mounts over a directory that is not empty, or over another mount; they are hidden then.
    pub overlay: bool,
    /// The keeper that holds the mount so that it survives this program: the next one to mount
    /// continues it. Unused if requests come over rings.
    pub kept_by: Option<KeeperSlot>,
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

/// Modification times are displayed, never acted on, so simulated runs do not need to control them.
#[allow(clippy::disallowed_methods, reason = "modification times only; callers can replace it")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
