//! FUSE front end of shares: a tree as a mounted directory. Owns the negotiation with the kernel
//! for trees, the count of the kernel's references, and the life of the mount. The semantics of
//! operations are in crate `share`.
//!
//! # Few messages
//!
//! The kernel caches names, attributes and pages without limit: a share changes only through its
//! mount, because every door goes through it, or with notifications to the kernel
//! ([`DirectChanges`]). Opens, closes and other requests that need no answer
//! from the server are answered with `ENOSYS` once, and are never sent again. So a warm `stat`, a
//! listing and a read of cached pages cost no message; creating, writing and closing a small file
//! costs five, or four if the mount has no extended attributes ([`XattrSupport`]).
//!
//! # Two traps
//!
//! 1. `ATOMIC_O_TRUNC` together with opens that are answered with `ENOSYS` loses `O_TRUNC`: it is
//!    never negotiated, and `O_TRUNC` arrives as a change of the size.
//! 2. A write by a user without privileges clears set-user-id bits in the tree, but the kernel does
//!    not look up the mode again: its cache would still have the bits. Such a write is answered
//!    after the kernel has been notified to drop the attributes.
//!
//! # Durability
//!
//! `fsync` of a file or directory returns when all earlier changes are durable. Other changes
//! become durable within some seconds ([`MountOptions::commit_every`]). If the program dies,
//! neither is lost, provided that there is a place for a journal ([`MountOptions::journal`]).

mod access_times;
mod closing;
mod direct;
mod flags;
mod growing;
mod journal_keeper;
mod lookups;
mod memory_journal;
mod mount;
mod process;
mod request_kind;
mod served;
mod set_id;
mod shown_tree;
mod snapshots;
mod waiting;
mod writing;
mod xattr_support;

pub use direct::DirectChanges;
pub use fuse::keep::KeeperSlot;
pub use memory_journal::{Found as FoundJournal, JournalPlace, find as find_journal, mark_replayed};
pub use mount::{Mount, MountOptions, OrphanedMount, mount, mount_with_snapshots, resume, resume_with_snapshots};
pub use request_kind::Counts;
pub use snapshots::{ShareSnapshot, Snapshots, Visibility};
pub use xattr_support::XattrSupport;
