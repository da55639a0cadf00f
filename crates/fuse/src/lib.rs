//! The FUSE protocol of the Linux kernel: decoding requests, encoding replies, and the two
//! transports that carry them.
//!
//! Owns the encoding of the protocol (`wire`), the connection to the kernel (`Session`), mounting
//! and unmounting (`mount`), and the rule that each request gets exactly one answer ([`Answer`]).
//! Knows no file system: a [`FileSystem`] implements the operations, and may be called by several
//! threads. One decoder and one trait serve both `/dev/fuse` and the rings of io_uring.
//!
//! # The life of a request
//!
//! 1. A transport takes a message from the kernel: a reader thread from `/dev/fuse` (`device`), or
//!    the thread of a CPU's queue from a ring (`ring`).
//! 2. [`wire::decode`] turns the message into a [`Request`]. A malformed message is answered with
//!    `EIO`; an operation that this crate does not know with `ENOSYS`.
//! 3. [`FileSystem::serve`] answers at once, or, if that may wait for a disk, moves the [`Answer`] to
//!    another thread ([`Lanes`]) and returns.
//! 4. The answer is sent over the same transport. An answer that is dropped sends `EIO`, so that no caller waits indefinitely.

mod answer;
mod device;
mod io_flusher;
pub mod keep;
mod lanes;
pub mod mount;
mod notify;
mod ring;
mod session;
pub mod wire;

pub use answer::{Answer, WriteData};
pub use io_flusher::become_io_flusher;
pub use lanes::{LaneOptions, Lanes};
pub use notify::Notifier;
pub use session::{FileSystem, Session, SessionOptions, Transport};
pub use wire::attributes::{Attributes, Entry, StatFs, Time};
pub use wire::errno::Errno;
pub use wire::init::{Capabilities, Limits};
pub use wire::listing::{Listing, ListingPlus};
pub use wire::request::{Operation, Request, SetAttributes, TimeToSet};

/// The largest read or write of one request: the kernel's limit by default (256 pages).
pub const REQUEST_BYTES_MAX: u32 = 1 << 20;
