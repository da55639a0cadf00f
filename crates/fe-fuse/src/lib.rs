//! FUSE front end: each block device of a set is a raw file in a mounted directory, which `losetup`
//! turns into a block device on any kernel. Uses only the `surface` traits; owns the protocol's
//! side of names, attributes and handles, and the lifecycle of the mount.
//!
//! # Durability
//!
//! 1. A write reaches [`surface::BlockDevice::write`] before `write(2)` returns: the kernel's
//!    writeback cache is off.
//! 2. `fsync`, `fdatasync`, and a flush of a loop device call [`surface::BlockDevice::flush`], and
//!    return afterwards.
//! 3. Writes through a descriptor with `O_SYNC` or `O_DSYNC`, or with `RWF_DSYNC`, use FUA.
//! 4. `close` guarantees nothing.
//!
//! # Coherence
//!
//! Every handle is opened for direct I/O, whether or not its caller asked for `O_DIRECT`: `read(2)`
//! and `write(2)` never read or fill the kernel's page cache of the file. So a volume may be
//! written through another front end (NBD) at the same time, and a read that begins after such a
//! write returned sees it. This also avoids a second copy of the data in memory (a file system on
//! the loop device has its own cache, and so has the device below), and lets writes to one file run
//! in parallel, unlike the cached path. The price: small sequential reads get no read-ahead from
//! the kernel. (A file system mounted from a loop device has caches of its own, which no door below
//! it can keep coherent: mount a volume only once.)
//!
//! Two exceptions. Pages of a private `mmap` are read once and stay, which POSIX permits; shared
//! mappings are refused (`ENODEV`). And kernel-internal reads, by `splice(2)`, `sendfile(2)` and
//! `copy_file_range(2)`, go through the page cache despite direct I/O: a descriptor that stays open
//! may return a page as first read in this way, even if it was overwritten since through another
//! front end. Reopening the file drops those pages.
//!
//! # What the kernel serialises
//!
//! A file's `fsync` and `fallocate` exclude its writes and each other (the kernel holds the inode's
//! lock); reads continue. So at most one of the serving threads waits in a flush for each volume.
//!
//! # Who may use the files
//!
//! Any process except the one that serves them. If that one is killed while one of its threads
//! waits for its own mount, it cannot end: the thread waits for an answer, and the connection stays
//! open as long as the thread exists. (`umount -f DIR` frees it.)
//!
//! # Transports
//!
//! Crate `fuse` implements the protocol, through `/dev/fuse`, with a call for each request and one
//! for each answer; or over io_uring, through a memory ring for each CPU, where the kernel supports
//! it (Linux 6.14) and the administrator enables it: `echo Y >
//! /sys/module/fuse/parameters/enable_uring` before the mount. Semantics and guarantees are the
//! same. If the rings cannot be created, the mount is served without them, and the log has the
//! reason.
//!
//! # Sizes
//!
//! A file's size is its volume's, and no open or write changes it. Opening with `O_TRUNC` empties
//! the volume (all of it reads as zeroes, the space is freed) and keeps the size: programs that use
//! it (`cp`, `dd`, a shell's `>`) expect unwritten ranges to be zero, and skip the holes of a
//! sparse source. Ignoring it, as block devices do, would leave old data there. It is refused
//! (`EBUSY`) while another process has the file open, for instance a loop device, or while the
//! volume is open through another front end. Any other truncation is refused (`EPERM`), except one
//! that loses nothing, through a file opened with `O_TRUNC`.
//!
//! `stat` shows a new size immediately. A loop device learns it by `losetup -c`; on kernels that
//! take the size from the inode, a `stat` of the file must come first.

mod complaints;
mod directory;
mod errno;
mod file_io;
mod filesystem;
mod folders;
mod handles;
mod mount;
mod nodes;
mod open_file;
mod open_files;
mod opener;
mod options;
mod requests;
mod stack;
mod surviving_handles;

pub use fuse::become_io_flusher;
pub use fuse::keep::{Keeper, KeeperSlot, run_keeper};
pub use mount::{Ended, Mount, WhenBusy, mount};
pub use options::{MountOptions, READS_WAITING_DEFAULT, REQUEST_BYTES_MAX, THREADS_DEFAULT, THREADS_MAX};
pub use stack::Stack;
