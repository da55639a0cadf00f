//! The tree: implements the operations of a POSIX file system on the namespace and on data. Owns
//! the locks, and the order between data and namespace.
//!
//! # Order
//!
//! 1. Data is written before the size that shows it is changed.
//! 2. Data is durable before a commit, or a record of the log, makes a size durable that shows it.
//! 3. Data that no name refers to any more is discarded after the commit that records this is
//!    durable (`trim`).
//! 4. A file that has lost its last name while it is open is an orphan from the same change on, and
//!    is removed when the kernel has forgotten it, or when the share is reopened.
//!
//! After a power loss the tree is in the state of some moment, the last `fsync` or later, and no
//! file ever shows bytes of another.
//!
//! # Durability
//!
//! Changes go into an overlay in memory (`overlay`), and from there into the database periodically,
//! while reads and changes continue (`store`). `fsync` does not wait for that: it appends the
//! changes since the last record to a log in the space (`log`), and one turn serves all callers
//! that wait. Where the mount outlives the program, a journal in memory keeps the changes that are
//! not durable yet (`journal`).
//!
//! # Snapshots
//!
//! Every change of the tree passes a gate, many at a time, and holds it until names and data agree.
//! A snapshot closes the gate, commits, and is taken before the gate opens again (`still`): so it
//! has the names and the data of one moment.
//!
//! # Locks
//!
//! The gate comes first, and is passed once. Then an inode's own lock (shared for reads and writes,
//! exclusive for changes of the location or the end of its data), then the log's, then
//! `committing`, then the namespace's, which is never held while something becomes durable.

mod attributes;
mod census;
mod check;
mod commit;
mod compression;
mod data;
mod directory;
mod in_record;
mod lost_attributes;
mod make;
mod mount_points;
mod open;
mod paths;
mod read_ahead;
mod rebuild;
mod remove;
mod rename;
mod repair;
mod still;
mod usage;
mod xattr;

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use policy::InForce;
use redb::Database;
use surface::{Capacity, ObjectSpace};

use crate::backend::{Facts, ROOT};
use crate::contained::Contained;
use crate::failure::{Failure, Result};
use crate::inode::{Inode, Time};
use crate::journal::{self, Journal};
use crate::log::Log;
use crate::store::{Due, State};

pub use attributes::{SetAttributes, SetId, TimeToSet};
pub use data::Written;
pub use directory::Listed;
pub use in_record::RECORD_CONTENT_BYTES_MAX;
pub use lost_attributes::AttributesLost;
pub(crate) use mount_points::MountPoints;
pub use paths::Paths;
pub use read_ahead::Beginning;
pub use rebuild::NamesSurvey;
pub(crate) use rebuild::copy_database;
pub use repair::Repaired;
pub use still::Still;
pub use xattr::CAPABILITY;

/// Locks of inodes: two inodes that share one occasionally wait for each other, nothing worse.
const INODE_LOCKS: usize = 64;

/// How a tree is opened.
#[derive(Clone, Copy)]
pub struct Options {
    /// The wall clock.
    pub now: fn() -> Time,
    /// Bytes of the namespace that are cached.
    pub cache_bytes: usize,
}

/// The caller, as owner of new files. The kernel has checked permissions.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// A POSIX tree in an object space. Nodes are named by their inode numbers, the root by
/// [`Tree::ROOT`].
pub struct Tree {
    space: Arc<dyn ObjectSpace>,
    /// Differs from that of other trees of the pool.
    space_number: u32,
    /// Held shared by all changes of names or data, exclusively while a snapshot is taken.
    gate: RwLock<()>,
    state: RwLock<State>,
    /// Held by the thread that commits, and by those that wait for it.
    committing: Mutex<Namespace>,
    /// The last change that a commit made durable.
    committed: AtomicU64,
    log: Mutex<Turn>,
    /// Requests for durability until now.
    syncs: AtomicU64,
    /// Something could not be made durable.
    has_failed: AtomicBool,
    journal: OnceLock<Arc<dyn Journal>>,
    /// Requests that the previous program completed, and their results.
    done: HashMap<u64, u64>,
    /// Records of that program's journal that the namespace did not have.
    brought_back: u64,
    inode_locks: [RwLock<()>; INODE_LOCKS],
    /// The rules and properties for the compression of files.
    in_force: OnceLock<Arc<dyn InForce>>,
    options: Options,
}

/// The namespace's database.
struct Namespace {
    database: Contained<Database>,
    facts: Arc<Facts>,
    /// It found no space, and was opened over memory: the next commit must write to the space
    /// itself.
    is_read_only: bool,
}

/// The right to write the log.
struct Turn {
    log: Log,
    /// The last request for durability that was served.
    served: u64,
}

/// The namespace while an operation changes it.
struct Change<'a> {
    tree: &'a Tree,
    state: RwLockWriteGuard<'a, State>,
    request: u64,
    /// Result of the operation: the number of a new inode, or of bytes.
    result: u64,
    /// The operation's, unless it passed the gate before.
    _passed: Option<RwLockReadGuard<'a, ()>>,
}

impl Deref for Change<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Change<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if let Some(record) = self.state.end_operation(self.request, self.result) {
            self.tree.keep(self.state.commit_number(), &record);
        }
    }
}

impl Tree {
    /// The root directory's number.
    pub const ROOT: u64 = ROOT;

    /// The generation of a node, as part of its handles: nodes with the same number in different
    /// states of a share, and in different shares of a pool, differ in it. The kernel assumes 0 for
    /// the root.
    pub fn generation(&self, node: u64, inode: &Inode) -> u32 {
        if node == Self::ROOT || crate::canary!("generation-constant") {
            return 0;
        }
        inode.generation.wrapping_add(self.space_number)
    }

    /// The part of it shared by all nodes of the tree.
    pub const fn space_number(&self) -> u32 {
        self.space_number
    }

    fn now(&self) -> Time {
        (self.options.now)()
    }

    fn lock_of(&self, node: u64) -> &RwLock<()> {
        &self.inode_locks[node as usize % INODE_LOCKS]
    }

    /// Passes the gate: no snapshot is taken while the guard exists.
    fn pass(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read()
    }

    /// Access to the namespace, for an operation that changes nothing else.
    fn change(&self) -> Result<Change<'_>> {
        let passed = self.pass();
        let mut change = self.change_last()?;
        change._passed = Some(passed);
        Ok(change)
    }

    /// The namespace, for the change that an operation ends with. The caller has passed the gate.
    fn change_last(&self) -> Result<Change<'_>> {
        let mut change = self.change_in_part()?;
        change.request = journal::request();
        Ok(change)
    }

    /// Access to the namespace, for a change that is followed by another one of the same operation.
    /// The caller has passed the gate.
    ///
    /// New names have been admitted before this. Everything else continues in a full space: a
    /// removal must not fail for lack of the space that it would free. So if an early commit finds
    /// none, changes wait in memory until there are too many.
    fn change_in_part(&self) -> Result<Change<'_>> {
        let mut has_committed = false;
        loop {
            self.check_health()?;
            let state = self.state.write();
            if state.is_stuck {
                return Err(Failure::new(libc::EIO));
            }
            let journal_bytes = self
                .journal
                .get()
                .map_or(journal::JOURNAL_BYTES, |journal| journal.commit_bytes().min(journal::JOURNAL_BYTES));
            let due = state.commit_due(journal_bytes, || self.space.own_room());
            // One early commit is enough: there may still be hardly any space after it.
            if due == Due::Not || due == Due::Early && has_committed {
                return Ok(Change { tree: self, state, request: 0, result: 0, _passed: None });
            }
            // Records of discarded data are not changes, but a commit writes them, too.
            let has_notes_only = self.committed.load(Ordering::Acquire) >= state.changes;
            let wanted = if has_notes_only { u64::MAX } else { state.changes };
            drop(state);
            has_committed = true;
            match self.commit_up_to(wanted, false) {
                Err(failure) if failure.errno() == libc::ENOSPC && due == Due::Early => {
                    self.state.write().postpone_commit();
                }
                done => done?,
            }
        }
    }

    /// The same where no commit may come first: for the end of an operation.
    fn change_anyway(&self) -> Change<'_> {
        Change { tree: self, state: self.state.write(), request: 0, result: 0, _passed: None }
    }

    fn keep(&self, commit: u64, record: &[u8]) {
        if let Some(journal) = self.journal.get() {
            journal.keep(commit, record);
            #[cfg(feature = "canaries")]
            if let Some(after) = crate::canary::AFTER_KEEPING.get() {
                after();
            }
        }
    }

    /// Total and free capacity of the share.
    ///
    /// # Errors
    /// Those of the space.
    pub fn capacity(&self) -> Result<Capacity> {
        Ok(self.space.capacity()?)
    }

    /// How long a write that finds no space should be retried; `None`: it fails immediately.
    pub fn full_wait(&self) -> Option<Duration> {
        self.space.full_wait()
    }
}
