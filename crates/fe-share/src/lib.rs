//! FUSE front end of shares: a tree as a mounted directory. Owns what is negotiated with the kernel
//! for trees, the count of what the kernel refers to, and the life of the mount. What an operation
//! means is in crate `share`.
//!
//! # Few messages
//!
//! The kernel caches names, attributes and pages for as long as it likes: nothing changes a share
//! behind its back, since all doors come through its mount. Opens, closes and what need not be
//! asked are answered with `ENOSYS` once, and never come again. So a warm `stat`, a listing and a
//! read of cached pages cost no message; making, writing and closing a small file costs five.
//!
//! # Two traps
//!
//! 1. `ATOMIC_O_TRUNC` together with opens that are answered with `ENOSYS` loses `O_TRUNC`: it is never negotiated, and `O_TRUNC` comes as a
//!    change of the size.
//! 2. A write by a user without privileges clears set-user-id bits in the tree, and the kernel does not look again: the mode
//!    in its cache would still have them. Such a write is answered after the kernel was told to drop the attributes.
//!
//! # Durability
//!
//! `fsync` of a file or directory returns when all that was done before is durable. Otherwise
//! changes become durable within some seconds ([`MountOptions::commit_every`]). The death of the
//! program loses neither, where there is a place for a journal ([`MountOptions::journal`]).

mod access_times;
mod closing;
mod counted;
mod flags;
mod growing;
mod held;
mod holding;
mod kept;
mod moments;
mod mount;
mod process;
mod served;
mod set_id;

pub use counted::Counts;
pub use fuse::keep::KeptBy;
pub use kept::{Found as FoundJournal, JournalPlace, find as find_journal, mark_replayed};
pub use moments::{Moment, Moments, Visibility};
pub use mount::{KeptMount, Mount, MountOptions, mount, mount_with_moments, resume, resume_with_moments};
