//! The tree: what the operations of a POSIX file system do to the namespace and to data. Owns the locks, and the
//! order between data and namespace.
//!
//! # Order
//!
//! 1. Data is written before the size that shows it is changed.
//! 2. A commit flushes the data first, and so never makes a size durable whose data is not.
//! 3. Data that no name shows any more is discarded after the commit that says so is durable (`trim`).
//! 4. A file that has lost its last name while it is open is an orphan from the same commit on, and goes when the
//!    kernel has forgotten it, or when the share is opened again.
//!
//! After a loss of power the tree is as some commit left it, at least the one of the last `fsync`, and no file
//! ever shows bytes of another.
//!
//! # Locks
//!
//! An inode's own lock comes first (shared for reads and writes, exclusive for what changes where its data lies or ends),
//! then `committing`, then the namespace's. A commit holds the namespace until it is durable.

mod attributes;
mod check;
mod commit;
mod data;
mod directory;
mod make;
mod remove;
mod rename;
mod xattr;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::{Mutex, MutexGuard, RwLock};
use redb::{Builder, Database};
use surface::{Capacity, ObjectSpace};

use crate::backend::{Backend, ROOT};
use crate::failure::{Failure, Result};
use crate::inode::{Inode, Time};
use crate::store::State;

pub use attributes::{SetAttributes, TimeToSet};
pub use data::Written;
pub use directory::Listed;

/// Locks of inodes: two inodes that share one wait for each other now and then, and nothing worse.
const INODE_LOCKS: usize = 64;

/// How a tree is opened.
#[derive(Clone, Copy)]
pub struct Options {
    /// The wall clock.
    pub now: fn() -> Time,
    /// Bytes of the namespace that are cached.
    pub cache_bytes: usize,
}

/// Who asks, for what belongs to a new file. Permissions were checked by the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// A POSIX tree in an object space. Nodes are named by their inode numbers, the root by [`Tree::ROOT`].
pub struct Tree {
    space: Arc<dyn ObjectSpace>,
    database: Database,
    state: Mutex<State>,
    /// Held by the thread that commits, and by those that wait for it.
    committing: Mutex<()>,
    /// The last change that is durable.
    committed: AtomicU64,
    inode_locks: [RwLock<()>; INODE_LOCKS],
    options: Options,
}

impl Tree {
    /// The root directory's number.
    pub const ROOT: u64 = ROOT;

    /// Makes an empty tree in an empty space. `secret`: a random number.
    ///
    /// # Errors
    /// `EEXIST` if there is one; those of the space.
    pub fn create(space: Arc<dyn ObjectSpace>, secret: u64, options: Options) -> Result<Self> {
        if Backend::open(space.clone())?.is_some() {
            return Err(Failure::new(libc::EEXIST));
        }
        let database = Self::database(Backend::create(space.clone())?, options)?;
        let mut state = State::create(&database, secret)?;
        let now = (options.now)();
        let root = Inode {
            mode: libc::S_IFDIR | 0o755,
            uid: 0,
            gid: 0,
            links: 2,
            device: 0,
            size: 0,
            data: 0,
            parent: ROOT,
            accessed: now,
            modified: now,
            changed: now,
            born: now,
            target: Box::default(),
            flags: crate::inode::Flags::default(),
        };
        state.put(ROOT, root);
        let tree = Self::new(space, database, state, options);
        tree.commit()?;
        Ok(tree)
    }

    /// Opens the tree of a space: reaps orphans, carries out trims, and discards data of files that a loss of power took.
    ///
    /// # Errors
    /// `ENOENT` if there is none; `EIO` if it is damaged; those of the space.
    pub fn open(space: Arc<dyn ObjectSpace>, options: Options) -> Result<Self> {
        let backend = Backend::open(space.clone())?.ok_or(Failure::new(libc::ENOENT))?;
        let database = Self::database(backend, options)?;
        let mut state = State::open(&database)?;
        let lost = state.lost_numbers()?;
        if !lost.is_empty() {
            space.discard_files(lost)?;
        }
        for (data, from) in state.open_trims()? {
            space.discard(data, from..u64::MAX)?;
            state.trim_done(data)?;
        }
        for orphan in state.orphans()? {
            remove::reap(&mut state, orphan)?;
        }
        let tree = Self::new(space, database, state, options);
        tree.commit()?;
        Ok(tree)
    }

    fn database(backend: Backend, options: Options) -> Result<Database> {
        Ok(Builder::new().set_cache_size(options.cache_bytes).create_with_backend(backend)?)
    }

    fn new(space: Arc<dyn ObjectSpace>, database: Database, state: State, options: Options) -> Self {
        Self {
            space,
            database,
            state: Mutex::new(state),
            committing: Mutex::default(),
            committed: AtomicU64::new(0),
            inode_locks: [const { RwLock::new(()) }; INODE_LOCKS],
            options,
        }
    }

    fn now(&self) -> Time {
        (self.options.now)()
    }

    fn lock_of(&self, node: u64) -> &RwLock<()> {
        &self.inode_locks[node as usize % INODE_LOCKS]
    }

    /// The namespace, for a change: with room for it until the next commit.
    fn change(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state.lock();
        if !state.must_commit() {
            return Ok(state);
        }
        drop(state);
        self.commit()?;
        Ok(self.state.lock())
    }

    /// How much the share holds, and how much of that is free.
    ///
    /// # Errors
    /// Those of the space.
    pub fn capacity(&self) -> Result<Capacity> {
        Ok(self.space.capacity()?)
    }
}
