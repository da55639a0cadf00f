//! Creating and opening a tree.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use redb::Builder;
use surface::ObjectSpace;

use super::{INODE_LOCKS, Namespace, Options, Tree, Turn, remove};
use crate::backend::{Backend, ROOT};
use crate::contained::{Contained, checked};
use crate::failure::{Failure, Result};
use crate::foreign;
use crate::inode::{Flags, Inode};
use crate::journal::{Journal, Left};
use crate::log::Log;
use crate::scratch::Scratch;
use crate::store::{self, Reopen, State};

impl Tree {
    /// Creates an empty tree in an empty space. `secret`: a random number.
    ///
    /// # Errors
    /// `EEXIST` if there is one; those of the space.
    pub fn create(space: Arc<dyn ObjectSpace>, secret: u64, options: Options) -> Result<Self> {
        if Backend::open(space.clone())?.is_some() {
            return Err(Failure::new(libc::EEXIST));
        }
        let namespace = Namespace::with(Backend::create(space.clone())?, options)?;
        store::create(&namespace.database, secret)?;
        foreign::seal(&*space)?;
        let mut state = State::open(&namespace.database, namespace.facts.clone(), reopen(&space, options))?;
        state.begin_session(0, space.lineage())?;
        let now = (options.now)();
        let root = Inode {
            mode: libc::S_IFDIR | 0o755,
            uid: 0,
            gid: 0,
            links: 2,
            device: 0,
            generation: state.generation(),
            size: 0,
            data: 0,
            parent: ROOT,
            accessed: now,
            modified: now,
            changed: now,
            born: now,
            target: Box::default(),
            flags: Flags::default(),
            content: None,
            compression: None,
        };
        state.put(ROOT, root);
        let tree = Self::new(space, namespace, state, options);
        tree.commit()?;
        Ok(tree)
    }

    /// Opens the tree of a space: replays the log, reaps orphans, and makes pending discards,
    /// including the data of files lost in a power loss.
    ///
    /// # Errors
    /// `ENOENT` if there is none; `EIO` if it is damaged; those of the space.
    pub fn open(space: Arc<dyn ObjectSpace>, options: Options) -> Result<Self> {
        let tree = Self::opened(space, options)?;
        tree.commit()?;
        Ok(tree)
    }

    /// Like [`Self::open`], but readable as far as possible: if a page that this would change is
    /// damaged, the tree accepts no changes, and the log is left alone.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_to_serve(space: Arc<dyn ObjectSpace>, options: Options) -> Result<Self> {
        let tree = Self::opened(space, options)?;
        match tree.commit() {
            Err(_) if tree.state.read().is_stuck => {}
            committed => committed?,
        }
        Ok(tree)
    }

    /// All that opening does before the first commit.
    fn opened(space: Arc<dyn ObjectSpace>, options: Options) -> Result<Self> {
        let (namespace, mut state) = Self::begin(&space, options)?;
        let meta = store::meta(&namespace.database)?;
        // For the next commit, and for the one after it, if that was in progress.
        for commit in [meta.commit + 1, meta.commit + 2] {
            for body in Log::left(&*space, meta.session, commit)? {
                let (next, changes) = split_number(&body)?;
                state.replay(commit, next, changes)?;
            }
        }
        discard_lost(&*space, state.begin_session(0, space.lineage())?)?;
        if !crate::canary!("orphan-not-reaped") {
            for orphan in state.orphans()? {
                remove::reap(&mut state, orphan)?;
            }
        }
        Ok(Self::new(space, namespace, state, options))
    }

    /// Opens the tree of a space for a mount that has outlived its program: in the state that its
    /// users saw, with the changes in that program's journal. Files without a name are kept,
    /// because they may be open.
    ///
    /// # Errors
    /// As [`Self::open`]; `ESTALE` if the tree has since been changed in another way, so that the
    /// kernel's cached state is outdated.
    pub fn take_over(space: Arc<dyn ObjectSpace>, options: Options, left: &Left) -> Result<Self> {
        let (namespace, mut state) = Self::begin(&space, options)?;
        let meta = store::meta(&namespace.database)?;
        let (mut done, mut brought_back) = (HashMap::new(), 0);
        // The same number can recur when a share is rolled back to a snapshot.
        let is_of_session = meta.session == left.session && !left.is_replayed;
        if !is_of_session && meta.replayed != left.session {
            return Err(Failure::new(libc::ESTALE));
        }
        for commit in left.commits() {
            for record in left.records.iter().filter(|(of, _)| *of == commit).map(|(_, record)| record) {
                let (request, rest) = split_number(record)?;
                let (result, rest) = split_number(rest)?;
                let (next, changes) = split_number(rest)?;
                if request != 0 {
                    done.insert(request, result);
                }
                // Changes that the database already has are skipped, and so are those that an
                // earlier program had replayed.
                if is_of_session && commit > meta.commit {
                    brought_back += u64::from(state.replay(commit, next, changes)?);
                }
            }
        }
        discard_lost(&*space, state.begin_session(left.session, space.lineage())?)?;
        let mut tree = Self::new(space, namespace, state, options);
        (tree.done, tree.brought_back) = (done, brought_back);
        tree.commit()?;
        Ok(tree)
    }

    fn begin(space: &Arc<dyn ObjectSpace>, options: Options) -> Result<(Namespace, State)> {
        let namespace = Namespace::open(space, options)?;
        let state = State::open(&namespace.database, namespace.facts.clone(), reopen(space, options))?;
        Ok((namespace, state))
    }

    fn new(space: Arc<dyn ObjectSpace>, namespace: Namespace, state: State, options: Options) -> Self {
        let log = Log::new(space.clone(), state.session());
        let space_number = space.lineage().map_or(0, |lineage| lineage.space);
        Self {
            space,
            space_number,
            gate: RwLock::new(()),
            state: RwLock::new(state),
            committing: Mutex::new(namespace),
            committed: AtomicU64::new(0),
            log: Mutex::new(Turn { log, served: 0 }),
            syncs: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            journal: OnceLock::new(),
            done: HashMap::new(),
            brought_back: 0,
            inode_locks: [const { RwLock::new(()) }; INODE_LOCKS],
            in_force: OnceLock::new(),
            options,
        }
    }

    /// Records all changes in a journal from now on, which starts with the requests known as
    /// completed by the previous one.
    pub fn keep_journal(&self, journal: Arc<dyn Journal>) {
        let mut state = self.state.write();
        state.keeps_journal = true;
        // Only requests that the previous program did not answer can be repeated: a few, and the
        // latest.
        for (&request, &result) in &self.done {
            journal.keep(state.commit_number(), &store::journal_record(request, result, 0));
        }
        let _ = self.journal.set(journal);
    }

    /// Number of this opening of the tree, which its journal must name.
    pub fn session(&self) -> u64 {
        self.state.read().session()
    }

    /// How many changes the journal of the program before this one had that the namespace had not.
    pub fn brought_back(&self) -> u64 {
        self.brought_back
    }

    /// Result of a request that the previous program completed; `None` if it did not.
    pub fn was_done(&self, request: u64) -> Option<u64> {
        if crate::canary!("resent-done-again") {
            return None;
        }
        self.done.get(&request).copied()
    }
}

impl Namespace {
    /// Opens the database of a space; `ENOENT` if there is none.
    pub(super) fn open(space: &Arc<dyn ObjectSpace>, options: Options) -> Result<Self> {
        if !foreign::is_sealed(&**space) {
            foreign::adopt(space, options)?;
        }
        let backend = Backend::open(space.clone())?.ok_or(Failure::new(libc::ENOENT))?;
        Self::with(backend, options)
    }

    /// Switches to a reopened database.
    pub(super) fn replace(&mut self, new: Self, state: &mut State) -> Result<()> {
        // The old one is dropped when nothing reads from it any more.
        state.read_from(&new.database, new.facts.clone())?;
        *self = new;
        Ok(())
    }

    pub(super) fn with(backend: Backend, options: Options) -> Result<Self> {
        let facts = backend.facts();
        let opened = checked(|| Builder::new().set_cache_size(options.cache_bytes).create_with_backend(backend));
        // Opening it writes something.
        let database =
            opened.map_err(|error| if facts.was_full() { Failure::new(libc::ENOSPC) } else { error.into() })?;
        Ok(Self { database: Contained::new(database), facts, is_read_only: false })
    }
}

/// Opens the database of a space for reading; its writes stay in memory.
fn reopen(space: &Arc<dyn ObjectSpace>, options: Options) -> Reopen {
    let space = space.clone();
    Arc::new(move || {
        let below: Arc<dyn ObjectSpace> = Arc::new(Scratch::over(space.clone()));
        Ok(Namespace::open(&below, options)?.database)
    })
}

fn discard_lost(space: &dyn ObjectSpace, lost: std::ops::Range<u64>) -> Result<()> {
    if !lost.is_empty() {
        space.discard_files(lost)?;
        // Before a commit records that these numbers need not be searched for any more.
        space.finish_discards()?;
    }
    Ok(())
}

/// Splits off a number.
fn split_number(bytes: &[u8]) -> Result<(u64, &[u8])> {
    let damaged = || Failure::damaged(format_args!("a record of changes is too short"));
    let (number, rest) = bytes.split_first_chunk().ok_or_else(damaged)?;
    Ok((u64::from_le_bytes(*number), rest))
}
