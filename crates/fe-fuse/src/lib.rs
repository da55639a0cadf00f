//! FUSE front end: each block device of a set is a raw file in a mounted directory, which `losetup`
//! turns into a block device on any kernel. Speaks to the `surface` traits only; owns the
//! protocol's side of names, attributes, handles, and the life of the mount.
//!
//! # Durability
//!
//! 1. A write reaches [`surface::BlockDevice::write`] before `write(2)` returns: the kernel's
//!    writeback cache is off.
//! 2. `fsync`, `fdatasync`, and a flush of a loop device call [`surface::BlockDevice::flush`], and
//!    return when it did.
//! 3. Writes through a descriptor with `O_SYNC` or `O_DSYNC` are done with FUA, `RWF_DSYNC` too.
//! 4. `close` promises nothing.
//!
//! # Coherence
//!
//! Every handle is opened for direct I/O, whether its caller asked for `O_DIRECT` or not: `read(2)`
//! and `write(2)` never see or fill the kernel's page cache of the file. So a volume may be written
//! through another front end (NBD) at the same time, and a read that begins after such a write
//! returned sees it. It also costs no second copy of the data in memory (a file system on the loop
//! device has its own cache, the device below another), and lets writes of one file run in
//! parallel, which the cached path does not. The price: small reads in sequence get no read-ahead
//! from the kernel. (A file system that is mounted from a loop device has caches of its own, which
//! no door below it can keep coherent: mount a volume once.)
//!
//! Two exceptions. Pages of a private `mmap` are read once and stay, as POSIX leaves it open;
//! shared mappings are refused (`ENODEV`). And what reads in the kernel without a buffer of its
//! own, `splice(2)`, `sendfile(2)` and `copy_file_range(2)`, goes through the page cache, direct
//! I/O or not: through a descriptor that is held open it may get a page as it was when it was read
//! first in this way, though something else was written since through another front end. Opening
//! the file anew drops those pages.
//!
//! # What the kernel serialises
//!
//! One file's `fsync` and `fallocate` exclude its writes and each other (the kernel holds the
//! inode's lock); reads go on. So at most one of the serving threads waits in a flush for each
//! volume.
//!
//! # Who may use the files
//!
//! Any process but the one that serves them. One that is killed while a thread of it waits for its
//! own mount cannot end: the thread waits for an answer, and the connection stays open as long as
//! the thread exists. (`umount -f DIR` frees it.)
//!
//! # How requests come
//!
//! Crate `fuse` speaks the protocol, through `/dev/fuse`, a call for each request and one for each
//! answer; or over io_uring, through a ring in memory for each CPU, where the kernel has that
//! (Linux 6.14) and its administrator allows it: `echo Y >
//! /sys/module/fuse/parameters/enable_uring` before the mount. The meaning of requests, and the
//! promises, are the same. If rings cannot be made after all, the mount is served without, and the
//! log says why.
//!
//! # Sizes
//!
//! A file's size is its volume's, and no open or write changes it. Opening with `O_TRUNC` empties
//! the volume (all of it reads as zeroes, the space comes back) and keeps the size: a program that
//! asks for it (`cp`, `dd`, a shell's `>`) takes the unwritten range for zeroes, and skips the
//! holes of a sparse source. Ignoring it, as block devices do, would leave old data there. It is
//! refused (`EBUSY`) while another process has the file open, a loop device for instance, or the
//! volume through another front end. Any other truncation is refused (`EPERM`), except one that
//! loses nothing through a file that was opened in this way.
//!
//! `stat` shows a new size at once. A loop device learns it with `losetup -c`; on kernels that take
//! the size from the inode, a `stat` of the file must come first.

mod complaints;
mod directory;
mod errno;
mod file_io;
mod filesystem;
mod folders;
mod handles;
mod kept;
mod lane;
mod mount;
mod nodes;
mod open_file;
mod open_files;
mod options;
mod requests;
mod stack;

pub use fuse::become_io_flusher;
pub use fuse::keep::{Keeper, KeptBy, run_keeper};
pub use mount::{Ended, Mount, WhenBusy, mount};
pub use options::{MountOptions, READS_WAITING_DEFAULT, REQUEST_BYTES_MAX, THREADS_DEFAULT, THREADS_MAX};
pub use stack::Stack;
